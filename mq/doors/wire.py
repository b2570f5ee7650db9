"""The wire door: the service's methods over plain TCP, multiplexed and pipelined (docs/wire.md). Listens, counts
connections, watches over them, drains them; what one of them says is `wire_connection`'s business.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from mq import wire
from mq.doors.wire_connection import IDLE_SECONDS, WINDOW, WireConnection
from mq.errors import MqError, ResourceExhausted
from mq.pb import mq_pb2 as pb
from mq.service import Service

SCRATCH_BYTES = 256 << 10  # read at a time, shared by all connections
SWEEP_SECONDS = 1.0


class WireDoor:
    """One listening port. `service` is set when the broker is ready, and not before."""

    def __init__(
        self,
        *,
        max_request_bytes: int,
        server: str,
        start_id: str,
        max_connections: int = 20_000,
        max_per_address: int = 20_000,
    ) -> None:
        self.service: Service | None = None
        self.port = 0
        self.connections: set[WireConnection] = set()
        self.scratch = bytearray(SCRATCH_BYTES)
        self.max_frame_bytes = max_request_bytes + (1 << 10)
        self.is_draining = False
        self._max_connections = max_connections
        self._max_per_address = max_per_address
        self._addresses: dict[str, int] = {}
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._settled = asyncio.Event()  # a connection has nothing in flight any more, or is gone
        self._welcome = pb.WireWelcome(
            version=wire.VERSION,
            server=server,
            max_frame_bytes=self.max_frame_bytes,
            window=WINDOW,
            idle_ms=int(IDLE_SECONDS * 1_000),
            start_id=start_id,
        ).SerializeToString()

    async def open(self, host: str, port: int) -> None:
        """Listen. Raises OSError where the address can't be had."""
        self.loop = asyncio.get_running_loop()
        try:
            self._server = await self.loop.create_server(
                lambda: WireConnection(self), host.strip("[]") or None, port, backlog=4_096
            )
        except OSError as error:
            raise OSError(f"can't listen on {host}:{port}: {error.strerror or error}") from None
        self.port = self._server.sockets[0].getsockname()[1]
        self._sweeper = self.loop.call_later(SWEEP_SECONDS, self._sweep)

    async def drain(self) -> None:
        """Tell the peers that the end is near, and end the streams. What they still ask is refused by the broker."""
        self.is_draining = True
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.drain()

    async def close(self, grace_seconds: float) -> None:
        """Wait until nothing is in flight, then close every connection; after the grace they are cut."""
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                while any(connection.is_busy for connection in self.connections):
                    self._settled.clear()
                    await self._settled.wait()
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self.connections):
            connection.close()

    def admit(self, connection: WireConnection, address: str) -> MqError | None:
        """Count a new connection, or say why not."""
        count = self._addresses.get(address, 0)
        if len(self.connections) >= self._max_connections:
            return ResourceExhausted(f"{self._max_connections} connections are open, the most there may be")
        if count >= self._max_per_address:
            return ResourceExhausted(f"{count} connections from {address} are open, the most there may be")
        self._addresses[address] = count + 1
        self.connections.add(connection)
        return None

    def forget(self, connection: WireConnection, address: str) -> None:
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]
        self._settled.set()

    def settled(self) -> None:
        """A connection has nothing in flight any more."""
        if self.is_draining:
            self._settled.set()

    @property
    def welcome(self) -> bytes:
        return wire.MAGIC + wire.pack(0, wire.WELCOME, 0, self._welcome)

    def _sweep(self) -> None:
        """One timer for all: ten thousand idle connections need not have one each."""
        now = self.loop.time()
        for connection in list(self.connections):
            connection.check_alive(now)
        self._sweeper = self.loop.call_later(SWEEP_SECONDS, self._sweep)
