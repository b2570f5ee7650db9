"""Redis Streams, by redis-py with hiredis: pipelines of XADD, consumer groups with XACK."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any, ClassVar

from .driver import GROUP, QUEUE, Driver, batches_until, parts, tasks
from .server import CACHE, FSYNC, LOOK_SECONDS, Server, found, output_of

PIPELINE = 1_000


class RedisServer(Server):
    name = "Redis"
    client = "redis"
    settings: ClassVar = {
        FSYNC: "--appendonly yes --appendfsync always --save '' (group commit by pipeline and event loop)",
        CACHE: "--appendonly yes --appendfsync everysec --save ''",
    }

    @classmethod
    def version(cls) -> str | None:
        program = found("redis-server", "REDIS_SERVER")
        return output_of(program, "--version").split("v=")[1].split()[0] if program else None

    def command(self) -> list[str]:
        sync = "always" if self.durability == FSYNC else "everysec"
        program = found("redis-server", "REDIS_SERVER")
        assert program
        options = ["--appendonly", "yes", "--appendfsync", sync, "--save", "", "--dir", str(self.directory)]
        return [program, "--port", str(self.port), "--bind", "127.0.0.1", *options]


class RedisDriver(Driver):
    def __init__(self, port: int, durability: str) -> None:
        import redis.asyncio
        import uvloop

        super().__init__(port, durability)
        self.redis, self.asyncio, self.uvloop = redis, redis.asyncio, uvloop
        self._pool = redis.ConnectionPool(host="127.0.0.1", port=port, max_connections=64)
        self._local = threading.local()

    @property
    def connection(self) -> Any:
        """One for each thread."""
        if not hasattr(self._local, "connection"):
            self._local.connection = self.redis.Redis(connection_pool=self._pool)
        return self._local.connection

    def create(self) -> None:
        while True:
            try:
                self.connection.xgroup_create(QUEUE, GROUP, id="0", mkstream=True)
                return
            except self.redis.exceptions.BusyLoadingError:
                time.sleep(LOOK_SECONDS)  # it listens before it has read its file
            except self.redis.exceptions.ResponseError:
                return  # there is one

    def _batch(self, bodies: list[bytes]) -> int:
        pipeline = self.connection.pipeline(transaction=False)
        for body in bodies:
            pipeline.execute_command("XADD", QUEUE, "*", "b", body)
        return len(pipeline.execute())

    def publish(self, batches: list[list[bytes]], end: float) -> int:
        return sum(self._batch(bodies) for bodies in batches_until(batches, end))

    def publish_all(self, bodies: list[bytes]) -> None:
        for part in parts(bodies, PIPELINE):
            self._batch(part)

    def publish_one(self, body: bytes) -> None:
        self.connection.execute_command("XADD", QUEUE, "*", "b", body)

    def singles(self, bodies: list[bytes], callers: int, end: float) -> list[float]:
        """Many callers are tasks, each with its connection; for one, the blocking client is faster."""
        if callers == 1:
            return super().singles(bodies, callers, end)
        return self.uvloop.run(self._tasks(bodies, callers, end))

    async def _tasks(self, bodies: list[bytes], callers: int, end: float) -> list[float]:
        async def call(mine: list[bytes]) -> list[float]:
            async with self.asyncio.Redis(port=self.port, single_connection_client=True) as redis:
                return await tasks(partial(redis.execute_command, "XADD", QUEUE, "*", "b"), mine, 1, end)

        shares = [bodies[number::callers] for number in range(callers)]
        return list(chain.from_iterable(await asyncio.gather(*map(call, shares))))

    def consume(self) -> Iterator[list[bytes]]:
        done: list[bytes] = []
        while True:
            pipeline = self.connection.pipeline(transaction=False)
            if done:
                pipeline.xack(QUEUE, GROUP, *done)
            pipeline.xreadgroup(GROUP, "one", {QUEUE: ">"}, count=PIPELINE, block=1_000)
            answer = pipeline.execute()[-1]
            done = []
            if answer:
                entries = answer[0][1] if isinstance(answer, list) else next(iter(answer.values()))[0]
                done = [entry[0] for entry in entries]
                yield [entry[1][b"b"] for entry in entries]

    def close(self) -> None:
        self._pool.disconnect()
