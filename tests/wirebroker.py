"""A broker in a thread, on the loop that a test asks for: the server's own is uvloop, mq.testing's is asyncio's."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import count
from typing import Any

import uvloop
from wirepeer import DEADLINE, Peer, request

from mq import wire
from mq.config import Config
from mq.pb import mq_pb2 as pb
from mq.server import Server

LOOPS = ["asyncio", "uvloop"]
_numbers = count()


class Broker:
    """A server, its loop, and a way to do things there."""

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self.server = server
        self.loop = loop
        self.door = server.wire
        self.port = server.wire.port

    def do(self, act: Callable[[], Any]) -> Any:
        """Run something on the broker's loop."""

        async def run() -> Any:
            return act()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(DEADLINE)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Look at the broker, on its loop, until something is so."""
        end = time.monotonic() + DEADLINE
        while not self.do(condition):
            assert time.monotonic() < end, "it did not come to pass"
            time.sleep(0.005)

    def wait_for_connections(self, number: int) -> None:
        self.wait_until(lambda: len(self.door.connections) == number)

    def create(self) -> str:
        """A new channel."""
        name = f"wire-{next(_numbers)}"
        with Peer(self.port) as peer:
            peer.call(1, "CreateChannel", pb.CreateChannelRequest(channel=name))
            assert peer.take()[1] == wire.OK
        return name

    def publish(self, name: str, *contents: bytes) -> None:
        batch = pb.Batch(messages=[pb.BatchMessage(content=content) for content in contents])
        with Peer(self.port) as peer:
            peer.send(request(1, "PublishBatch", pb.PublishBatchRequest(channel=name, batch=batch)))
            assert peer.take()[1] == wire.OK


@contextmanager
def wire_broker(loop: str, **settings: str) -> Iterator[Broker]:
    config = Config.from_env({"SERVER_PORT": "0", "STORAGE_MODE": "memory", **settings})
    ready: Future[Broker] = Future()
    over = threading.Event()

    async def serve() -> None:
        server = Server(config)
        await server.start()
        ready.set_result(Broker(server, asyncio.get_running_loop()))
        await asyncio.to_thread(over.wait)
        if not server.wire.is_draining:
            await server.stop()

    run = uvloop.run if loop == "uvloop" else asyncio.run
    thread = threading.Thread(target=lambda: run(serve()), name="mq-broker")
    thread.start()
    try:
        yield ready.result(DEADLINE)
    finally:
        over.set()
        thread.join(DEADLINE)
        assert not thread.is_alive()
