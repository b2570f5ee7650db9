"""Pulls messages as a member of a group, prints and acks them; examples/README.md tells the scenario."""

from __future__ import annotations

import sys
import threading
import uuid

import grpc
from pb import mq_pb2 as mq
from pb.mq_pb2_grpc import MQServiceStub
from scenario import DEADLINE_SECONDS, Settings, run


def subscribe(settings: Settings, stop: threading.Event) -> None:
    channel, group = settings.channel, settings.group
    # A group shares the channel among its members, so each member needs a name of its own.
    member = f"python-{uuid.uuid4()}"
    with grpc.insecure_channel(settings.address) as connection:
        broker = MQServiceStub(connection)
        broker.CreateChannel(mq.CreateChannelRequest(channel=channel), timeout=DEADLINE_SECONDS)
        left = settings.count or sys.maxsize
        acked = 0
        while left and not stop.is_set():
            # The first pull makes the group; nothing is said about where it starts, so it starts at the earliest.
            most = min(settings.batch_size, left)
            pull = mq.PullRequest(channel=channel, group=group, member=member, max_messages=most)
            answer = broker.Pull(pull, timeout=DEADLINE_SECONDS)
            for batch in answer.batches:
                show(batch)
            if answer.batches:
                # Only now: what is not acked, because this process died above, is delivered again.
                receipts = [mq.Receipt(receipt=batch.receipt) for batch in answer.batches]
                ack = mq.AckRequest(channel=channel, group=group, member=member, receipts=receipts)
                done = broker.Ack(ack, timeout=DEADLINE_SECONDS).acked
                acked += done
                left -= done
            if left:
                stop.wait(settings.pull_interval_ms / 1000)
        broker.Leave(mq.LeaveRequest(channel=channel, group=group, member=member), timeout=DEADLINE_SECONDS)
        print(f"{acked} acked", flush=True)


def show(batch: mq.PulledBatch) -> None:
    # Offsets follow each other, unless the deltas say otherwise.
    deltas = batch.offset_deltas or range(len(batch.batch.messages))
    for delta, message in zip(deltas, batch.batch.messages, strict=True):
        offset = batch.base_offset + delta
        print(f"partition {batch.partition} offset {offset}: {message.content.decode(errors='replace')}", flush=True)


if __name__ == "__main__":
    run(subscribe, count=0)
