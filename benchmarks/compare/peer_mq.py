"""mq, by its own Python client over the wire."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import repeat
from typing import ClassVar

import mq

from .driver import GROUP, QUEUE, Driver, batches_until, stamped
from .server import CACHE, FSYNC, Server


class MqServer(Server):
    name = "mq"
    client = "mq-broker"
    settings: ClassVar = {FSYNC: "as installed: fsync before the answer, group commit", CACHE: "WAL_SYNC=false"}

    @classmethod
    def version(cls) -> str | None:
        return mq.__version__

    def command(self) -> list[str]:
        # the wire's port is the one that clients use
        return [sys.executable, "-m", "mq.cli", "serve", "--port", "0", "--wire-port", str(self.port)]

    def environment(self) -> dict[str, str]:
        sync = "true" if self.durability == FSYNC else "false"
        return {"WAL_DIR_PATH": str(self.directory / "data"), "LOG_LEVEL": "WARNING", "WAL_SYNC": sync}


class MqDriver(Driver):
    def __init__(self, port: int, durability: str) -> None:
        self.client = mq.Client(f"mq://127.0.0.1:{port}")

    def create(self) -> None:
        self.client.create_channel(QUEUE, exist_ok=True)
        self.client.join_group(QUEUE, GROUP, "earliest", ordered=False)

    def publish(self, body: bytes, batch: int, end: float) -> int:
        count = 0
        bodies = [body] * batch
        with self.client.producer(QUEUE, batch_size=batch, batch_bytes=1 << 20, buffer_bytes=4 << 20) as producer:
            for _ in batches_until(end):
                count += producer.send_many(bodies)
        return count

    def publish_count(self, body: bytes, count: int) -> None:
        with self.client.producer(QUEUE) as producer:
            producer.send_many(repeat(body, count))

    def paced(self, size: int, rate: float, end: float) -> None:
        with self.client.producer(QUEUE, linger_ms=0) as producer:
            due = time.perf_counter()
            while due < end:
                time.sleep(max(0.0, due - time.perf_counter()))
                producer.send(stamped(size))
                due += 1 / rate

    def publish_one(self, body: bytes) -> None:
        self.client.publish(QUEUE, body)

    def consume(self) -> Iterator[list[bytes]]:
        with self.client.consumer(QUEUE, GROUP, batch_size=5_000) as consumer:
            for batch in consumer.batches():
                yield batch.contents()
                batch.ack()

    def close(self) -> None:
        self.client.close()
