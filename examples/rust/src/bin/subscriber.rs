//! Pulls messages as a member of a group, prints and acks them; examples/README.md tells the scenario.

use std::process::ExitCode;

use mq_example::pb::{AckRequest, CreateChannelRequest, LeaveRequest, PullRequest, PulledBatch, Receipt};
use mq_example::{run, Broker, Settings, Stop};
use tonic::Status;
use uuid::Uuid;

async fn subscribe(mut broker: Broker, settings: Settings, mut stop: Stop) -> Result<(), Status> {
    let (channel, group) = (settings.channel, settings.group);
    // A group shares the channel among its members, so each member needs a name of its own.
    let member = format!("rust-{}", Uuid::new_v4());
    broker.create_channel(CreateChannelRequest { channel: channel.clone(), ..Default::default() }).await?;
    let mut left = if settings.count > 0 { settings.count.into() } else { u64::MAX };
    let mut acked = 0;
    while left > 0 && !stop.is_set() {
        // The first pull makes the group; nothing is said about where it starts, so it starts at the earliest.
        let pull = PullRequest {
            channel: channel.clone(),
            group: group.clone(),
            member: member.clone(),
            max_messages: left.min(settings.batch_size.into()) as u32,
            ..Default::default()
        };
        let batches = broker.pull(pull).await?.into_inner().batches;
        batches.iter().for_each(show);
        if !batches.is_empty() {
            // Only now: what is not acked, because this process died above, is delivered again.
            let receipts =
                batches.into_iter().map(|batch| Receipt { receipt: batch.receipt, ranges: vec![] }).collect();
            let (channel, group, member) = (channel.clone(), group.clone(), member.clone());
            let ack = AckRequest { channel, group, member, receipts };
            let done = broker.ack(ack).await?.into_inner().acked;
            acked += done;
            left -= done;
        }
        if left > 0 {
            stop.wait(settings.pull_interval).await;
        }
    }
    broker.leave(LeaveRequest { channel, group, member, ..Default::default() }).await?;
    println!("{acked} acked");
    Ok(())
}

fn show(batch: &PulledBatch) {
    let messages = batch.batch.iter().flat_map(|batch| &batch.messages);
    for (index, message) in messages.enumerate() {
        // Offsets follow each other, unless the deltas say otherwise.
        let delta = batch.offset_deltas.get(index).map_or(index as u64, |&delta| delta.into());
        let (partition, offset) = (batch.partition, batch.base_offset + delta);
        println!("partition {partition} offset {offset}: {}", String::from_utf8_lossy(&message.content));
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    run(subscribe, 0).await
}
