"""Streams a channel from its beginning, as clients of the first mq broker do."""

from __future__ import annotations

import os
import signal
import sys

import grpc
from pb import mq_pb2 as mq
from pb.mq_pb2_grpc import MQServiceStub

ADDRESS = f"{os.environ.get('BROKER_HOST', 'localhost')}:{os.environ.get('BROKER_PORT', '50051')}"
CHANNEL = os.environ.get("CHANNEL", "orders")
COUNT = int(os.environ.get("COUNT", "0"))
PULL_INTERVAL_MS = int(os.environ.get("PULL_INTERVAL", "100"))


def main() -> None:
    request = mq.SubscribeRequest(
        channel=CHANNEL, offset=mq.SubscribeRequest.OFFSET_BEGINNING, pull_interval=PULL_INTERVAL_MS
    )
    received = 0
    with grpc.insecure_channel(ADDRESS) as connection:
        stream = MQServiceStub(connection).Subscribe(request)
        signal.signal(signal.SIGTERM, lambda *_: stream.cancel())
        try:
            for message in stream:
                print(message.content.decode(), flush=True)
                received += 1
                if received == COUNT:
                    stream.cancel()
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.CANCELLED:
                raise
    print(f"{received} received")


if __name__ == "__main__":
    try:
        main()
    except grpc.RpcError as error:
        sys.exit(f"mq: {error.details()}")
