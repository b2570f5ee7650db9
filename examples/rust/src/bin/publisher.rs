//! Publishes COUNT numbered messages in batches; examples/README.md tells the scenario.

use std::process::ExitCode;

use mq_example::pb::{Batch, BatchMessage, CreateChannelRequest, PublishBatchRequest};
use mq_example::{run, Broker, Settings, Stop};
use tonic::Status;

async fn publish(mut broker: Broker, settings: Settings, stop: Stop) -> Result<(), Status> {
    let channel = settings.channel;
    // Making a channel that is there already is no error.
    broker.create_channel(CreateChannelRequest { channel: channel.clone(), ..Default::default() }).await?;
    let mut published = 0;
    while published < settings.count && !stop.is_set() {
        let (first, last) = (published + 1, settings.count.min(published + settings.batch_size));
        let messages = (first..=last)
            .map(|n| BatchMessage { content: format!("message {n}").into_bytes(), ..Default::default() })
            .collect();
        let request =
            PublishBatchRequest { channel: channel.clone(), batch: Some(Batch { messages }), ..Default::default() };
        // The answer comes when the batch is on disk.
        let answer = broker.publish_batch(request).await?.into_inner();
        println!("published {first}-{last} at offset {}", answer.base_offset);
        published = last;
    }
    println!("{published} published");
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    run(publish, 100).await
}
