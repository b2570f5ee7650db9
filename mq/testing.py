"""A real broker for tests: started on a free port in a thread, stopped at the end of the `with` block.

    with mq.testing.broker() as address:
        client = mq.Client(address)

Without a directory it keeps nothing on disk. Settings are the variables of the environment: `LOG_LEVEL="DEBUG"`.
pytest finds the fixtures `mq_broker` (an address) and `mq_client` (a client of it) by itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from mq.config import Config
from mq.server import Server

DEADLINE_SECONDS = 30
SMALL = {"WAL_SEGMENT_SIZE": "8MiB"}  # a log takes the room of a few segments as soon as it is made


class Running(str):
    """A broker that serves: its address, as `mq.Client` takes it, and what a closer look needs."""

    server: Server
    loop: asyncio.AbstractEventLoop

    def __new__(cls, server: Server, loop: asyncio.AbstractEventLoop) -> Running:
        host, wire = "127.0.0.1", server.wire.port
        self = super().__new__(cls, f"mq://{host}:{wire}" if wire else f"grpc://{host}:{server.grpc.port}")
        self.server = server
        self.loop = loop
        return self

    @property
    def port(self) -> int:
        return self.server.grpc.port

    @property
    def address(self) -> str:
        """For gRPC."""
        return f"127.0.0.1:{self.port}"


@contextmanager
def broker(directory: Path | str | None = None, **settings: str) -> Iterator[Running]:
    """A broker that keeps its log in a directory, or only in memory."""
    storage = {"STORAGE_MODE": "memory"} if directory is None else {"WAL_DIR_PATH": str(directory), **SMALL}
    config = Config.from_env({"SERVER_PORT": "0", **storage, **settings})
    ready: Future[Running] = Future()
    over = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_serve(config, ready, over)), name="mq-broker")
    thread.start()
    try:
        yield ready.result(DEADLINE_SECONDS)
    finally:
        over.set()
        thread.join(DEADLINE_SECONDS)


async def _serve(config: Config, ready: Future[Running], over: threading.Event) -> None:
    try:
        server = Server(config)
        await server.start()
    except BaseException as error:
        ready.set_exception(error)
        return
    ready.set_result(Running(server, asyncio.get_running_loop()))
    await asyncio.to_thread(over.wait)
    await server.stop()
