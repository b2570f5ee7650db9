"""The wire door: the service's methods over plain TCP, multiplexed and pipelined (docs/wire.md). Opens, counts
connections, watches over them, drains them; what one of them says is `wire_connection`'s business.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress

from mq import wire
from mq.doors.listening import BACKLOG
from mq.doors.wire_connection import WINDOW, WireConnection
from mq.doors.wire_link import IDLE_SECONDS, Link
from mq.doors.wire_outbox import Mail
from mq.errors import MqError, ResourceExhausted, Unavailable
from mq.pb import mq_pb2 as pb
from mq.service import Service

SCRATCH_BYTES = 64 << 10  # read at a time, shared by all connections: some hundred small requests
SWEEP_SECONDS = 1.0
START_SECONDS = 2.0  # for so long calls wait for a broker that is starting, then they hear that it is
FRAME_ROOM_BYTES = 1 << 10  # a request may be a little too large for the service, which answers that in words

# A vanished machine is found by TCP itself, also where the peer has nothing to say: an open stream, for example.
_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))


class WireDoor:
    """One port. `serve` is called when the broker is ready, and not before."""

    def __init__(
        self,
        *,
        max_request_bytes: int,
        server: str,
        start_id: str,
        max_connections: int = 20_000,
        max_per_address: int = 15_000,
        max_held_bytes: int = 256 << 20,
    ) -> None:
        """`max_held_bytes`: of requests that have not arrived whole, all connections together."""
        self.service: Service | None = None
        self.is_waiting = True  # calls are kept back: who came early need not come back, and is answered at once
        self.port = 0
        self.connections: set[Link] = set()
        self.scratch = bytearray(SCRATCH_BYTES)
        self.max_frame_bytes = max_request_bytes + FRAME_ROOM_BYTES
        self.is_draining = False
        self._max_connections = max_connections
        self._max_per_address = max_per_address
        self._max_held_bytes = max(max_held_bytes, 4 * self.max_frame_bytes)
        self._held_bytes = 0
        self._addresses: dict[str, int] = {}
        self._servers: list[asyncio.Server] = []  # one for each address
        self._sweeper: asyncio.TimerHandle | None = None
        self._waiter: asyncio.TimerHandle | None = None
        self._settled = asyncio.Event()  # a connection has nothing in flight any more, or is gone
        self._welcome = pb.WireWelcome(
            server=server,
            max_frame_bytes=self.max_frame_bytes,
            window=WINDOW,
            idle_ms=int(IDLE_SECONDS * 1_000),
            start_id=start_id,
        )

    async def open(self, sockets: Sequence[socket.socket]) -> None:
        """Take those who connect to these, which listen already."""
        self.loop = asyncio.get_running_loop()
        self.mail = Mail(self.loop)
        self.port = sockets[0].getsockname()[1]
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # accepted sockets inherit this
            for name, value in _KEEPALIVE:
                if hasattr(socket, name):
                    each.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            self._servers.append(
                await self.loop.create_server(lambda: WireConnection(self), sock=each, backlog=BACKLOG)
            )
        self._sweeper = self.loop.call_later(SWEEP_SECONDS, self._sweep)
        self._waiter = self.loop.call_later(START_SECONDS, self._stop_waiting)

    def serve(self, service: Service) -> None:
        """The broker is ready."""
        self.service = service
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._waiter is not None:
            self._waiter.cancel()
        if self.is_waiting:
            self.is_waiting = False
            for connection in list(self.connections):
                connection.stop_waiting()

    def send(self) -> None:
        """A group's answers were given out: send them now, and not after another look at the network."""
        if self.port:
            self.mail.flush()

    def burn(self) -> None:
        """The answers that were made ready may not leave: nobody knows whether they are true."""
        if self.port:
            self.mail.burn()

    async def drain(self) -> None:
        """Tell the peers that the end is near, and end the streams. What they still ask is refused by the broker."""
        self.is_draining = True
        for each in self._servers:
            each.close()
        self._stop_waiting()
        for connection in list(self.connections):
            connection.drain()

    async def close(self, grace_seconds: float) -> None:
        """Wait until nothing is in flight, then say goodbye to everybody; after the grace they are cut."""
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await self._until(lambda: not any(connection.is_busy for connection in self.connections))
                self._say_goodbye()
                await self._until(lambda: not self.connections)
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._say_goodbye()
        for connection in list(self.connections):
            connection.abort()
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):  # aborting takes a turn of the loop
                await self._until(lambda: not self.connections)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._settled.clear()
            await self._settled.wait()

    def _say_goodbye(self) -> None:
        for connection in list(self.connections):
            connection.say_goodbye(Unavailable("the broker is shutting down"))

    def admit(self, connection: Link, address: str) -> MqError | None:
        """Count a new connection, or say why it can't be served."""
        is_full = len(self.connections) >= self._max_connections
        self.connections.add(connection)
        count = self._addresses[address] = self._addresses.get(address, 0) + 1
        if is_full:
            return ResourceExhausted(f"{self._max_connections} connections are open, the most there may be")
        if count > self._max_per_address:
            return ResourceExhausted(f"{count - 1} connections from {address} are open, the most there may be")
        return None

    def forget(self, connection: Link, address: str, held_bytes: int) -> None:
        """A connection is gone."""
        self.connections.discard(connection)
        self._held_bytes -= held_bytes
        self._addresses[address] -= 1
        if not self._addresses[address]:
            del self._addresses[address]
        self.settled()

    def hold_bytes(self, more: int) -> bool:
        """Unfinished requests take so many bytes more, or less; False: that is too much."""
        self._held_bytes += more
        return more <= 0 or self._held_bytes <= self._max_held_bytes

    def settled(self) -> None:
        """A connection has nothing in flight any more, or is gone."""
        if self.is_draining:
            self._settled.set()

    def welcome(self, version: int) -> bytes:
        """The frame that answers a hello."""
        self._welcome.version = version
        return wire.pack(0, wire.WELCOME, 0, self._welcome.SerializeToString())

    def _sweep(self) -> None:
        """One timer for all: ten thousand idle connections need not have one each."""
        now = self.loop.time()
        for connection in list(self.connections):
            connection.check_alive(now)
        self._sweeper = self.loop.call_later(SWEEP_SECONDS, self._sweep)
