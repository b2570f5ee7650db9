"""The wire for asyncio: one connection, any number of tasks, as many requests in flight as the window allows.

Requests of one turn of the loop leave in one write. What the window or the socket does not take stands in line. A
stream has a connection of its own: a consumer that stops reading it holds up nobody else.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from typing import cast

from mq import wire
from mq.client import greeting
from mq.client.transport import AsyncDone, same
from mq.errors import InvalidArgument, MqError, Unavailable
from mq.pb import mq_pb2 as pb

SCRATCH_BYTES = 64 << 10
CONNECT_SECONDS = 5.0
STREAM_BYTES = 1 << 20  # of a stream that nobody has taken yet, then the socket is not read


class AsyncWireTransport:
    """Implements `AsyncTransport`. Made by `connect`, and used on the loop that ran it."""

    def __init__(self, peer: _Peer, host: str, port: int, connect_timeout: float) -> None:
        self._peer = peer
        self._where = host, port, connect_timeout
        self.welcome = peer.welcome
        self.start_id = peer.welcome.start_id

    @classmethod
    async def connect(cls, host: str, port: int, *, connect_timeout: float = CONNECT_SECONDS) -> AsyncWireTransport:
        """Raises Unavailable, and InvalidArgument where something else than the wire answers there."""
        return cls(await _connect(host, port, connect_timeout), host, port, connect_timeout)

    async def call(self, method: str, request: bytes) -> bytes:
        answer: asyncio.Future[bytes] = self._peer.loop.create_future()
        id_ = self._peer.begin(method, request, answer)
        try:
            return await answer
        except asyncio.CancelledError:
            self._peer.give_up(id_)
            raise

    def submit(self, method: str, request: bytes) -> asyncio.Future[bytes]:
        answer = self._peer.loop.create_future()
        self._peer.begin(method, request, answer)
        return answer

    def send(self, method: str, request: bytes, done: AsyncDone) -> None:
        self._peer.begin(method, request, done)

    async def stream(self, method: str, request: bytes) -> AsyncIterator[bytes]:
        peer = await _connect(*self._where)
        items = _Items(peer)
        try:
            peer.begin(method, request, items)
            while (item := await items.take()) is not None:
                yield item
        finally:
            peer.fail(Unavailable("the stream was closed"))

    async def close(self) -> None:
        self._peer.fail(Unavailable("the client was closed"))

    @property
    def is_usable(self) -> bool:
        return self._peer.failure is None and not self._peer.is_draining


class _Items:
    """A stream's answers on their way to whoever iterates."""

    def __init__(self, peer: _Peer) -> None:
        self._peer = peer
        self._items: deque[bytes | MqError | None] = deque()
        self._bytes = 0
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: bytes | MqError | None) -> None:
        """None: the end. An empty item only says that the stream has begun."""
        if item == b"":
            return
        self._items.append(item)
        if isinstance(item, bytes):
            self._bytes += len(item)
            if self._bytes > STREAM_BYTES:
                self._peer.pause_reading(True)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> bytes | None:
        while not self._items:
            self._waiter = self._peer.loop.create_future()
            await self._waiter
        item = self._items.popleft()
        if isinstance(item, MqError):
            raise item
        if item is not None:
            self._bytes -= len(item)
            if self._bytes <= STREAM_BYTES // 2:
                self._peer.pause_reading(False)
        return item


_Receiver = asyncio.Future[bytes] | AsyncDone | _Items


class _Peer(asyncio.BufferedProtocol):
    """The connection."""

    def __init__(self, address: str) -> None:
        self.loop = asyncio.get_running_loop()
        self.welcomed: asyncio.Future[pb.WireWelcome] = self.loop.create_future()
        self.welcome = pb.WireWelcome()
        self.failure: MqError | None = None
        self.is_draining = False
        self._address = address
        self._inbox = wire.Inbox(bytearray(SCRATCH_BYTES), greeting.LONGEST_ANSWER)
        self._magic: bytes | None = b""  # what came of it; None: it is behind us
        self._calls: dict[int, _Receiver] = {}
        self._line: deque[tuple[int, bytes, bytes]] = deque()  # requests that found no room: id, header, payload
        self._last_id = 0
        self._out: list[bytes] = []
        self._is_write_paused = False
        self._is_read_paused = False
        self._sent = 0  # requests that are with the server

    # ------------------------------------------------------------ asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(greeting.HELLO)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._inbox.room()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            if self._magic is not None:
                nbytes = self._skip_magic(nbytes)
            for id_, code, flags, payload in self._inbox.received(nbytes) if nbytes else ():
                if code >= wire.CONTROL:
                    self._control(id_, code, flags, payload)
                elif flags & wire.MORE:
                    self._item(id_, payload)
                else:
                    self._answer(id_, payload if code == wire.OK else greeting.read_error(code, payload))
        except MqError as error:
            self.fail(error)
        except wire.FrameTooLong as error:
            self.fail(Unavailable(f"{self._address} sent what can't be read: {error}"))

    def eof_received(self) -> None:
        if self._magic is not None:
            self.fail(_refusal(self._magic, self._address))
        self.fail(Unavailable(f"{self._address} closed the connection"))

    def connection_lost(self, exc: Exception | None) -> None:
        reason = f"broke: {exc}" if exc else "is closed"
        self.fail(Unavailable(f"the connection to {self._address} {reason}"))

    def pause_writing(self) -> None:
        self._is_write_paused = True

    def resume_writing(self) -> None:
        self._is_write_paused = False
        self._move_up()

    def pause_reading(self, is_paused: bool) -> None:
        if is_paused != self._is_read_paused and not self._transport.is_closing():
            self._is_read_paused = is_paused
            (self._transport.pause_reading if is_paused else self._transport.resume_reading)()

    # ------------------------------------------------------------ out

    def begin(self, method: str, request: bytes, answer: _Receiver) -> int:
        """Send a request, or put it in line. Raises what a call can raise before it has left."""
        if self.failure is not None:
            raise same(self.failure)
        if len(request) > self.welcome.max_frame_bytes:
            raise InvalidArgument(f"a request has at most {self.welcome.max_frame_bytes} bytes, not {len(request)}")
        self._last_id = id_ = self._last_id % 0xFFFFFFFF + 1
        self._calls[id_] = answer
        header = wire.pack_header(len(request), id_, wire.METHODS[method], 0)
        if self._sent >= self.welcome.window or self._is_write_paused or self._line:
            self._line.append((id_, header, request))
        else:
            self._sent += 1
            self._send(header, request)
        return id_

    def give_up(self, id_: int) -> None:
        """Nobody waits for this answer any more; its place in the window is free when the server has answered."""
        if id_ in self._calls and self.failure is None:
            self._send(wire.pack(id_, wire.CANCEL))

    def _send(self, *buffers: bytes) -> None:
        if not self._out:
            self.loop.call_soon(self._flush)
        self._out += buffers

    def _flush(self) -> None:
        out, self._out = self._out, []
        if out and not self._transport.is_closing():
            self._transport.write(b"".join(out))

    def _move_up(self) -> None:
        """Send from the line what there is room for."""
        while self._line and self._sent < self.welcome.window and not self._is_write_paused:
            id_, header, request = self._line.popleft()
            answer = self._calls.get(id_)
            if isinstance(answer, asyncio.Future) and answer.done():
                del self._calls[id_]  # given up before it left
                continue
            self._sent += 1
            self._send(header, request)

    # ------------------------------------------------------------ in

    def _skip_magic(self, nbytes: int) -> int:
        assert self._magic is not None
        data = self._magic + bytes(self._inbox.room()[:nbytes])
        self._magic, rest = data[: len(wire.MAGIC)], data[len(wire.MAGIC) :]
        if len(self._magic) < len(wire.MAGIC):
            return 0
        greeting.check_magic(self._magic, self._address)
        self._magic = None
        self._inbox.room()[: len(rest)] = rest
        return len(rest)

    def _control(self, id_: int, code: int, flags: int, payload: bytes) -> None:
        if not self.welcomed.done():
            self.welcome = greeting.read_welcome((id_, code, flags, payload), self._address)
            self.welcomed.set_result(self.welcome)
        elif code == wire.PING:
            self._send(wire.pack(id_, wire.PONG, 0, payload))
        elif code == wire.DRAIN:
            self.is_draining = True
        elif code == wire.GOODBYE:
            self.fail(greeting.lost(payload, self._address))

    def _item(self, id_: int, payload: bytes) -> None:
        items = self._calls.get(id_)
        if isinstance(items, _Items):
            items.put(payload)

    def _answer(self, id_: int, answer: bytes | MqError) -> None:
        call = self._calls.pop(id_, None)
        if call is None:
            return
        self._sent -= 1
        _deliver(call, answer)
        if self._line:
            self._move_up()

    def fail(self, error: MqError) -> None:
        """The end of the connection, for everybody who waits. Idempotent."""
        if self.failure is not None:
            return
        self.failure = error
        if not self.welcomed.done():
            self.welcomed.set_exception(error)
        calls, self._calls = self._calls, {}
        self._line.clear()
        for call in calls.values():
            _deliver(call, same(error))
        self._flush()
        self._transport.close()


def _deliver(call: _Receiver, answer: bytes | MqError) -> None:
    if isinstance(call, _Items):
        call.put(answer)
        call.put(None)
    elif not isinstance(call, asyncio.Future):
        try:
            call(answer)
        except Exception:  # a mistake with one answer is not to hold back the others
            logging.getLogger("mq.client").exception("the callback of an answer failed")
    elif call.done():  # cancelled
        pass
    elif isinstance(answer, MqError):
        call.set_exception(answer)
    else:
        call.set_result(answer)


def _refusal(start: bytes, address: str) -> MqError:
    try:
        greeting.check_magic(start, address)
    except InvalidArgument as error:
        return error
    return Unavailable(f"{address} closed the connection")


async def _connect(host: str, port: int, connect_timeout: float) -> _Peer:
    address = f"{host}:{port}"
    loop = asyncio.get_running_loop()
    peer: _Peer | None = None
    is_welcome = False
    try:
        async with asyncio.timeout(connect_timeout):
            _, peer = await loop.create_connection(lambda: _Peer(address), host, port)
            await peer.welcomed
            is_welcome = True
            return peer
    except TimeoutError:
        raise Unavailable(f"{address} did not answer within {connect_timeout} s") from None
    except OSError as error:
        raise Unavailable(f"can't connect to {address}: {error.strerror or error}") from None
    finally:
        if peer is not None and not is_welcome:  # also where whoever wanted it was cancelled
            peer.fail(Unavailable("the connection was given up"))
