"""Publishes COUNT numbered messages in batches; examples/README.md tells the scenario."""

from __future__ import annotations

import threading

import grpc
from pb import mq_pb2 as mq
from pb.mq_pb2_grpc import MQServiceStub
from scenario import DEADLINE_SECONDS, Settings, run


def publish(settings: Settings, stop: threading.Event) -> None:
    with grpc.insecure_channel(settings.address) as connection:
        broker = MQServiceStub(connection)
        # Making a channel that is there already is no error.
        broker.CreateChannel(mq.CreateChannelRequest(channel=settings.channel), timeout=DEADLINE_SECONDS)
        published = 0
        while published < settings.count and not stop.is_set():
            first, last = published + 1, min(published + settings.batch_size, settings.count)
            messages = [mq.BatchMessage(content=f"message {n}".encode()) for n in range(first, last + 1)]
            request = mq.PublishBatchRequest(channel=settings.channel, batch=mq.Batch(messages=messages))
            # The answer comes when the batch is on disk.
            answer = broker.PublishBatch(request, timeout=DEADLINE_SECONDS)
            print(f"published {first}-{last} at offset {answer.base_offset}", flush=True)
            published = last
        print(f"{published} published", flush=True)


if __name__ == "__main__":
    run(publish, count=100)
