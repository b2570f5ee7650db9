//! What publisher and subscriber share: the stubs, the settings, the signal, and how a failure is told.

use std::env;
use std::fmt::Display;
use std::future::Future;
use std::process::ExitCode;
use std::time::Duration;

use tokio::signal::unix::{signal, SignalKind};
use tokio::sync::watch;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// The code that build.rs made from proto/mq.proto.
pub mod pb {
    tonic::include_proto!("mq");
}

pub type Broker = pb::mq_service_client::MqServiceClient<Channel>;

/// A call that takes longer has no broker at its other end.
const DEADLINE: Duration = Duration::from_secs(10);

pub struct Settings {
    pub address: String,
    pub channel: String,
    pub group: String,
    pub count: u32,
    pub batch_size: u32,
    pub pull_interval: Duration,
}

impl Settings {
    fn from_env(count: u32) -> Result<Self, String> {
        let host = text("BROKER_HOST", "localhost");
        Ok(Self {
            address: format!("{host}:{}", number("BROKER_PORT", 50051, 0)?),
            channel: text("CHANNEL", "orders"),
            group: text("GROUP", "billing"),
            count: number("COUNT", count, 0)?,
            batch_size: number("BATCH_SIZE", 10, 1)?,
            pull_interval: Duration::from_millis(number("PULL_INTERVAL", 100, 1)?.into()),
        })
    }
}

fn text(name: &str, default: impl Display) -> String {
    env::var(name).ok().filter(|value| !value.is_empty()).unwrap_or_else(|| default.to_string())
}

fn number(name: &str, default: u32, least: u32) -> Result<u32, String> {
    let text = text(name, default);
    let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(value) if is_digits && (least..=i32::MAX as u32).contains(&value) => Ok(value),
        _ => Err(format!("{name} must be a whole number from {least} on, not '{text}'")),
    }
}

/// Becomes set at SIGTERM or SIGINT. It does not reach into calls: one that is under way is finished.
pub struct Stop(watch::Receiver<bool>);

impl Stop {
    fn on_signals() -> std::io::Result<Self> {
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let (set, stop) = watch::channel(false);
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            set.send_replace(true);
        });
        Ok(Self(stop))
    }

    pub fn is_set(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits for the given time, or less where the signal comes before.
    pub async fn wait(&mut self, time: Duration) {
        let _ = tokio::time::timeout(time, self.0.wait_for(|stopped| *stopped)).await;
    }
}

/// Runs a scenario until it ends or a signal stops it; a failure is one line and exit code 1.
pub async fn run<F>(scenario: impl FnOnce(Broker, Settings, Stop) -> F, count: u32) -> ExitCode
where
    F: Future<Output = Result<(), Status>>,
{
    match try_run(scenario, count).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("mq: {reason}");
            ExitCode::FAILURE
        }
    }
}

async fn try_run<F>(scenario: impl FnOnce(Broker, Settings, Stop) -> F, count: u32) -> Result<(), String>
where
    F: Future<Output = Result<(), Status>>,
{
    let settings = Settings::from_env(count)?;
    let stop = Stop::on_signals().map_err(|error| error.to_string())?;
    let address = settings.address.clone();
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| error.to_string())?;
    let connection = endpoint.connect_timeout(DEADLINE).timeout(DEADLINE).connect_lazy();
    scenario(Broker::new(connection), settings, stop).await.map_err(|status| match status.code() {
        // Cancelled: the endpoint's timeout ended the call.
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled => format!("no broker answers at {address}"),
        _ => status.message().to_string(),
    })
}
