"""One peer on the wire: frames in, frames out (docs/wire.md).

No task and no future per request: a request is handed to the service in the read callback, and its answer is sent when
the service calls back. The answers of one turn of the loop leave in one `writelines`, stored batches uncopied. A peer
that does not read is not read from.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Protocol

from mq import wire
from mq.doors.wire_stream import Stream, open_stream
from mq.errors import InvalidArgument, MqError, ResourceExhausted, Unavailable
from mq.pb import mq_pb2 as pb
from mq.service import METHODS, Answer, Connection, Delivery, Kind, Method

if TYPE_CHECKING:
    from mq.doors.wire import WireDoor

WINDOW = 8_192  # requests in flight on one connection: what a fast disk answers in some milliseconds
HIGH_WATER_BYTES = 1 << 20  # of unread output, then no more requests are read
MOST_OUTPUT_BYTES = 64 << 20  # then the peer is given up: answers to what was in flight came, and it reads none
HANDSHAKE_SECONDS = 5.0
IDLE_SECONDS = 60.0  # of silence, then a ping; of as much again, then the end

_METHODS: dict[int, Method] = {wire.METHODS[name]: method for name, method in METHODS.items()}
_FOREIGN = (
    (b"PRI ", b"mq: this port speaks the mq wire; gRPC is served on another port\r\n"),
    (b"\x16\x03", b"mq: this port speaks the mq wire, without TLS\r\n"),
)
_pack_header = wire.pack_header


class Pending(Protocol):
    """A request in flight that can be given up."""

    def cancel(self) -> None: ...


class WireConnection(asyncio.BufferedProtocol):
    """One peer."""

    __slots__ = (
        "_address", "_connection", "_deliveries", "_door", "_heard", "_holds", "_inbox", "_is_flush_planned",
        "_is_greeted", "_is_pinged", "_loop", "_out", "_out_bytes", "_pending", "_queued_bytes", "_transport",
        "_unread", "_writable",
    )  # fmt: skip

    def __init__(self, door: WireDoor) -> None:
        self._door = door
        self._loop = door.loop
        self._inbox = wire.Inbox(door.scratch, door.max_frame_bytes)
        self._unread: bytes | None = b""  # what came before the magic was complete; None: that is behind us
        self._is_greeted = False
        self._pending: dict[int, Pending | None] = {}
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._queued_bytes = 0  # given to the transport so far
        self._deliveries: deque[tuple[int, Delivery]] = deque()  # leases on their way, by the byte that ends them
        self._is_flush_planned = False
        self._holds = 0
        self._writable: asyncio.Event | None = None  # only where a stream has to wait
        self._heard = self._loop.time()
        self._is_pinged = False
        self._transport: asyncio.Transport

    # ------------------------------------------------------------ asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        address, port, *_ = transport.get_extra_info("peername") or ("", 0)
        self._address = str(address)
        self._connection = Connection(f"{address}:{port}")
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        refusal = self._door.admit(self, self._address)
        if refusal is not None:
            self._transport.write(wire.MAGIC)
            self.say_goodbye(refusal)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._inbox.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._heard = self._loop.time()
        self._is_pinged = False
        if self._unread is not None:
            nbytes = self._skip_magic(nbytes)
        try:
            for frame in self._inbox.received(nbytes):
                if self._transport.is_closing():
                    return
                self._take(frame)
        except wire.FrameTooLong as error:
            self.say_goodbye(InvalidArgument(str(error)))

    def connection_lost(self, exc: Exception | None) -> None:
        self._door.forget(self, self._address)
        pending, self._pending = self._pending, {}
        for each in pending.values():
            if each is not None:
                each.cancel()
        sent = self._queued_bytes - self._transport.get_write_buffer_size()
        for end, delivery in self._deliveries:
            if end > sent:
                delivery.release()
        self._deliveries.clear()
        self._out.clear()

    def pause_writing(self) -> None:
        self.hold()
        if self._writable is not None:
            self._writable.clear()

    def resume_writing(self) -> None:
        self.let_go()
        if self._writable is not None:
            self._writable.set()

    def hold(self) -> None:
        """Read nothing from the peer until as many have let go as held."""
        self._holds += 1
        self._transport.pause_reading()

    def let_go(self) -> None:
        self._holds -= 1
        if not self._holds and not self._transport.is_closing():
            self._transport.resume_reading()

    # ------------------------------------------------------------ what a peer says

    def _skip_magic(self, nbytes: int) -> int:
        """Until the magic is there, gather; then leave what follows it where the inbox looks. Returns its size."""
        assert self._unread is not None
        self._unread += bytes(self._inbox.room()[:nbytes])
        magic = self._unread[: len(wire.MAGIC)]
        if not wire.MAGIC.startswith(magic):
            self._turn_away(magic)
            return 0
        if len(magic) < len(wire.MAGIC):
            return 0
        rest, self._unread = self._unread[len(magic) :], None
        self._inbox.room()[: len(rest)] = rest
        return len(rest)

    def _turn_away(self, start: bytes) -> None:
        for theirs, hint in _FOREIGN:
            if start.startswith(theirs):
                self._transport.write(hint)
        self.close()

    def _take(self, frame: wire.Frame) -> None:
        id_, code, flags, payload = frame
        if not self._is_greeted:
            self._greet(code, payload)
        elif code >= wire.CONTROL:
            self._control(id_, code, payload)
        elif id_ in self._pending:
            self._continue(id_, code, flags, payload)
        elif len(self._pending) >= WINDOW:
            self.say_goodbye(ResourceExhausted(f"more than {WINDOW} requests are in flight"))
        else:
            self._call(id_, code, flags, payload)

    def _call(self, id_: int, code: int, flags: int, payload: bytes) -> None:
        method = _METHODS.get(code)
        service = self._door.service
        self._pending[id_] = None
        if method is None:
            self._refuse(id_, "UNIMPLEMENTED", "InvalidArgument", f"there is no method {code}")
        elif service is None:
            self.answer(id_, Unavailable("the broker is starting"))
        elif method.kind is Kind.SUBSCRIBE or method.kind is Kind.PUBLISH_STREAM:
            self._pending[id_] = open_stream(self, service, self._connection, method, id_, flags, payload)
        elif flags:
            self.answer(id_, InvalidArgument("this method takes one frame"))
        else:
            waiter = service.call(method, self._connection, payload, partial(self.answer, id_))
            if waiter is not None and id_ in self._pending:
                self._pending[id_] = waiter

    def _continue(self, id_: int, code: int, flags: int, payload: bytes) -> None:
        stream = self._pending[id_]
        if not isinstance(stream, Stream) or not stream.takes(code):
            self.say_goodbye(InvalidArgument(f"request {id_} is in flight already"))
        else:
            stream.feed(payload, is_last=not flags & wire.MORE)

    def _greet(self, code: int, payload: bytes) -> None:
        try:
            hello = pb.WireHello.FromString(payload)
        except ValueError:  # protobuf's DecodeError is one
            hello = pb.WireHello()
        if code != wire.HELLO or not hello.version:
            self.say_goodbye(InvalidArgument("a connection begins with a hello"))
            return
        self._is_greeted = True
        self._send([self._door.welcome])
        if self._door.is_draining:
            self.drain()

    def _control(self, id_: int, code: int, payload: bytes) -> None:
        if code == wire.PING:
            self._send([wire.pack(id_, wire.PONG, 0, payload[:64])])
        elif code == wire.CANCEL:
            self._cancel(id_)
        elif code == wire.GOODBYE:
            self.close()
        elif code != wire.PONG:
            self.say_goodbye(InvalidArgument(f"there is no control code {code}"))

    def _cancel(self, id_: int) -> None:
        """Give a request up. One that is already decided is answered all the same."""
        pending = self._pending.get(id_)
        if pending is not None:
            pending.cancel()
            self._refuse(id_, "CANCELLED", "Cancelled", "cancelled by the client")

    # ------------------------------------------------------------ what we say

    def answer(self, id_: int, answer: Answer) -> None:
        """The one answer to a request."""
        if id_ not in self._pending:  # the peer gave it up, or is gone
            if type(answer) is Delivery:
                answer.release()
            return
        if isinstance(answer, MqError):
            self._refuse(id_, answer.status, type(answer).__name__, str(answer))
            return
        del self._pending[id_]
        size = sum(map(len, answer))
        self._send([_pack_header(size, id_, wire.OK, 0), *answer])
        if type(answer) is Delivery:
            self._deliveries.append((self._queued_bytes + self._out_bytes, answer))
        if not self._pending:
            self._door.settled()

    def _refuse(self, id_: int, status: str, reason: str, message: str) -> None:
        self._pending.pop(id_, None)
        error = pb.WireError(reason=reason, message=message).SerializeToString()
        self._send([wire.pack(id_, wire.STATUS.get(status, wire.STATUS["INTERNAL"]), 0, error)])
        if not self._pending:
            self._door.settled()

    def send_item(self, id_: int, item: bytes) -> None:
        """One part of a stream's answer."""
        self._send([_pack_header(len(item), id_, wire.OK, wire.MORE), item])

    def end_stream(self, id_: int, error: MqError | None = None) -> None:
        if id_ in self._pending:
            self.answer(id_, error if error is not None else [b""])

    async def writable(self) -> None:
        """Wait until the peer has read enough."""
        if self._transport.get_write_buffer_size() + self._out_bytes <= HIGH_WATER_BYTES:
            return
        self._flush()
        if self._transport.get_write_buffer_size() > HIGH_WATER_BYTES:
            self._writable = self._writable or asyncio.Event()
            self._writable.clear()
            await self._writable.wait()

    def say_goodbye(self, error: MqError) -> None:
        """The peer broke the rules, or can't be served: say why, and close."""
        self._flush()
        text = pb.WireError(reason=type(error).__name__, message=str(error)).SerializeToString()
        self._transport.write(wire.pack(0, wire.GOODBYE, 0, text))
        self.close()

    def _send(self, buffers: list[bytes]) -> None:
        self._out += buffers
        self._out_bytes += sum(map(len, buffers))
        if not self._is_flush_planned:
            self._is_flush_planned = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_planned = False
        if not self._out or self._transport.is_closing():
            return
        out, self._out = self._out, []
        self._queued_bytes += self._out_bytes
        self._out_bytes = 0
        self._transport.writelines(out)
        unsent = self._transport.get_write_buffer_size()
        while self._deliveries and self._deliveries[0][0] <= self._queued_bytes - unsent:
            self._deliveries.popleft()
        if unsent > MOST_OUTPUT_BYTES:
            self._transport.abort()

    # ------------------------------------------------------------ the door's wishes

    @property
    def is_busy(self) -> bool:
        return bool(self._pending or self._out)

    def drain(self) -> None:
        """Tell the peer to ask nothing more; streams end, the rest is answered."""
        if self._is_greeted:
            self._send([wire.pack(0, wire.DRAIN)])
        for id_, pending in list(self._pending.items()):
            if isinstance(pending, Stream):
                pending.cancel()
                self.end_stream(id_, Unavailable("the broker is shutting down"))

    def check_alive(self, now: float) -> None:
        silence = now - self._heard
        if not self._is_greeted:
            if silence > HANDSHAKE_SECONDS:
                self.close()
        elif silence > 2 * IDLE_SECONDS:
            self.close()
        elif silence > IDLE_SECONDS and not self._is_pinged:
            self._is_pinged = True
            self._send([wire.pack(0, wire.PING)])

    def close(self) -> None:
        """End the connection once what was said has left."""
        self._flush()
        self._transport.close()
