"""Publishes COUNT numbered messages one by one, as clients of the first mq broker do."""

from __future__ import annotations

import os
import sys

import grpc
from pb import mq_pb2 as mq
from pb.mq_pb2_grpc import MQServiceStub

ADDRESS = f"{os.environ.get('BROKER_HOST', 'localhost')}:{os.environ.get('BROKER_PORT', '50051')}"
CHANNEL = os.environ.get("CHANNEL", "orders")
COUNT = int(os.environ.get("COUNT", "100"))


def main() -> None:
    with grpc.insecure_channel(ADDRESS) as connection:
        broker = MQServiceStub(connection)
        broker.CreateChannel(mq.CreateChannelRequest(channel=CHANNEL))
        for n in range(1, COUNT + 1):
            broker.Publish(mq.PublishRequest(channel=CHANNEL, content=f"message {n}".encode()))
    print(f"{COUNT} published")


if __name__ == "__main__":
    try:
        main()
    except grpc.RpcError as error:
        sys.exit(f"mq: {error.details()}")
