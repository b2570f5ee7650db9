"""NATS JetStream, by nats-py: atomic batches, pull consumers whose last ack counts for all before it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterator
from itertools import count, cycle
from typing import Any, ClassVar, TypeVar

from .driver import GROUP, QUEUE, Driver, batches_until, parts, stamped, tasks
from .server import CACHE, FSYNC, Server, found, output_of

T = TypeVar("T")
BATCH = 1_000  # the most that an atomic batch may hold
IN_FLIGHT = 4  # batches of one client


class NatsServer(Server):
    name = "NATS"
    client = "nats-py"
    settings: ClassVar = {
        FSYNC: "jetstream sync_interval: always; atomic batch publish",
        CACHE: "as installed (fsync every 2 minutes); atomic batch publish",
    }

    @classmethod
    def version(cls) -> str | None:
        program = found("nats-server", "NATS_SERVER")
        return output_of(program, "--version").split()[-1].removeprefix("v") if program else None

    def prepare(self) -> None:
        sync = "sync_interval: always" if self.durability == FSYNC else ""
        text = (
            f'listen: 127.0.0.1:{self.port}\nmax_payload: 4MB\njetstream {{ store_dir: "{self.directory}"\n {sync} }}\n'
        )
        (self.directory.parent / "nats.conf").write_text(text)

    def command(self) -> list[str]:
        program = found("nats-server", "NATS_SERVER")
        assert program
        return [program, "-c", str(self.directory.parent / "nats.conf")]


class NatsDriver(Driver):
    def __init__(self, port: int, durability: str) -> None:
        import nats
        import uvloop

        self.nats = nats
        self.loop = uvloop.new_event_loop()
        self.client = self.run(nats.connect(f"nats://127.0.0.1:{port}", pending_size=64 << 20))
        self.stream = self.client.jetstream(timeout=60)
        self.ids = count()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    def create(self) -> None:
        async def create() -> None:
            api = self.nats.js.api
            await self.stream.add_stream(api.StreamConfig(name=QUEUE, subjects=[QUEUE], allow_atomic=True))
            policy = api.ConsumerConfig(durable_name=GROUP, ack_policy=api.AckPolicy.ALL, max_ack_pending=1_000_000)
            await self.stream.add_consumer(QUEUE, policy)

        self.run(create())

    async def _batch(self, bodies: list[bytes]) -> int:
        name = f"{id(self)}-{time.time_ns()}-{next(self.ids)}"
        for number, body in enumerate(bodies[:-1], 1):
            headers = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(number)}
            await self.client.publish(QUEUE, body, headers=headers)
        last = {"Nats-Batch-Id": name, "Nats-Batch-Sequence": str(len(bodies)), "Nats-Batch-Commit": "1"}
        await self.stream.publish(QUEUE, bodies[-1], headers=last, timeout=60)
        return len(bodies)

    def _several(self, batches: Iterator[list[bytes]]) -> int:
        """Each of several tasks takes the next batch when its last one is confirmed."""

        async def one() -> int:
            done = 0
            for bodies in batches:
                done += await self._batch(bodies)
            return done

        async def several() -> int:
            return sum(await asyncio.gather(*(one() for _ in range(IN_FLIGHT))))

        return self.run(several())

    def publish(self, batches: list[list[bytes]], end: float) -> int:
        return self._several(batches_until(batches, end))

    def publish_all(self, bodies: list[bytes]) -> None:
        self._several(parts(bodies, BATCH))

    def singles(self, bodies: list[bytes], callers: int, end: float) -> list[float]:
        async def publish(body: bytes) -> None:
            await self.stream.publish(QUEUE, body, timeout=60)

        return self.run(tasks(publish, bodies, callers, end))

    def paced(self, bodies: list[bytes], rate: float, end: float) -> None:
        async def run() -> None:
            due, turn = time.perf_counter(), cycle(bodies)
            while due < end:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                await self.stream.publish_async(QUEUE, stamped(next(turn)), wait_stall=60)
                due += 1 / rate
            await self.stream.publish_async_completed()

        self.run(run())

    def consume(self) -> Iterator[list[bytes]]:
        subscription = self.run(self.stream.pull_subscribe_bind(GROUP, QUEUE))
        while True:
            try:
                messages = self.run(subscription.fetch(BATCH, timeout=1))
            except (TimeoutError, self.nats.errors.TimeoutError):
                continue
            yield [message.data for message in messages]
            self.run(messages[-1].ack())

    def close(self) -> None:
        self.run(self.client.close())
