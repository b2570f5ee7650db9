"""mq, by its own Python client over the wire."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import uvloop

import mq

from .driver import GROUP, QUEUE, Driver, batches_until, tasks
from .server import CACHE, FSYNC, Server


class MqServer(Server):
    name = "mq"
    client = "mq-broker"
    settings: ClassVar = {
        FSYNC: "as installed: fsync before the answer, group commit",
        CACHE: "WAL_SYNC=false",
    }

    @classmethod
    def version(cls) -> str | None:
        return mq.__version__

    def command(self) -> list[str]:
        # the wire's port is the one that clients use
        return [sys.executable, "-m", "mq.cli", "serve", "--port", "0", "--wire-port", str(self.port)]

    def environment(self) -> dict[str, str]:
        sync = "true" if self.durability == FSYNC else "false"
        return {"WAL_DIR_PATH": str(self.directory / "data"), "LOG_LEVEL": "WARNING", "WAL_SYNC": sync}


class AwakeMqServer(MqServer):
    """Who wants the shortest way for a message, and has a processor for it."""

    name = "mq busy-poll"
    settings: ClassVar = {
        FSYNC: "SERVER_BUSY_POLL=2ms: it does not sleep while messages come that often",
        CACHE: "WAL_SYNC=false SERVER_BUSY_POLL=2ms",
    }

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "SERVER_BUSY_POLL": "2ms"}


class MqDriver(Driver):
    def __init__(self, port: int, durability: str) -> None:
        self.address = f"mq://127.0.0.1:{port}"
        self.client = mq.Client(self.address)

    def create(self) -> None:
        self.client.create_channel(QUEUE, exist_ok=True)
        self.client.join_group(QUEUE, GROUP, "earliest", ordered=False)

    def publish(self, batches: list[list[bytes]], end: float) -> int:
        settings = {"batch_size": len(batches[0]), "batch_bytes": 1 << 20, "buffer_bytes": 4 << 20}
        with self.client.producer(QUEUE, **settings) as producer:
            return sum(producer.send_many(bodies) for bodies in batches_until(batches, end))

    def publish_all(self, bodies: list[bytes]) -> None:
        with self.client.producer(QUEUE) as producer:
            producer.send_many(bodies)

    def publish_one(self, body: bytes) -> None:
        self.client.publish(QUEUE, body)

    def singles(self, bodies: list[bytes], callers: int, end: float) -> list[float]:
        """Many callers are tasks, whose messages share requests; for one, the client of threads is faster."""
        if callers == 1:
            return super().singles(bodies, callers, end)

        async def run() -> list[float]:
            async with mq.AsyncClient(self.address) as client:
                return await tasks(partial(client.publish, QUEUE), bodies, callers, end)

        return uvloop.run(run())

    def consume(self) -> Iterator[list[bytes]]:
        with self.client.consumer(QUEUE, GROUP, batch_size=5_000) as consumer:
            for batch in consumer.batches():
                yield batch.contents()
                batch.ack()

    def close(self) -> None:
        self.client.close()
