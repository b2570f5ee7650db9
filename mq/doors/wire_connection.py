"""One peer on the wire: frames in, frames out (docs/wire.md).

No task and no future per request: a request is handed to the service in the read callback, and its answer is sent when
the service calls back. A peer that does not read is not read from: what it has already sent waits, the rest stays in
the socket.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from google.protobuf.message import DecodeError

from mq import wire
from mq.doors.foreign import answer_to
from mq.doors.wire_outbox import HIGH_WATER_BYTES, Outbox
from mq.doors.wire_stream import Stream, open_stream
from mq.errors import InvalidArgument, MqError, ResourceExhausted, Unavailable
from mq.pb import mq_pb2 as pb
from mq.service import METHODS, Answer, Connection, Delivery, Kind, Method

if TYPE_CHECKING:
    from mq.doors.wire import WireDoor

WINDOW = 8_192  # requests in flight on one connection: what a fast disk answers in some milliseconds
HANDSHAKE_SECONDS = 5.0
IDLE_SECONDS = 60.0  # of silence, then a ping; of as much again, then the end
CLOSE_SECONDS = 5.0  # for a peer to read our last words
PING_BYTES = 64  # of a ping's payload that come back

_METHODS: dict[int, Method] = {wire.METHODS[name]: method for name, method in METHODS.items()}
_STREAMS = frozenset({Kind.SUBSCRIBE, Kind.PUBLISH_STREAM})
_pack_header = wire.pack_header


class Pending(Protocol):
    """A request in flight that can be given up."""

    def cancel(self) -> None: ...


class WireConnection(asyncio.BufferedProtocol):
    """One peer."""

    __slots__ = (
        "_address", "_backlog", "_connection", "_door", "_heard", "_held_bytes", "_holds", "_inbox", "_is_greeted",
        "_is_over", "_is_pinged", "_magic", "_outbox", "_pending", "_since", "_transport", "_writable",
    )  # fmt: skip

    def __init__(self, door: WireDoor) -> None:
        self._door = door
        self._inbox = wire.Inbox(door.scratch, door.max_frame_bytes)
        self._magic: bytes | None = b""  # what came of it; None: it is behind us
        self._is_greeted = False
        self._is_over = False  # nothing more is taken from the peer
        self._pending: dict[int, Pending | None] = {}
        self._backlog: list[wire.Frame] = []  # read, and not looked at while the peer does not read
        self._holds = 0
        self._held_bytes = 0  # of an unfinished frame, as the door counts them
        self._writable: asyncio.Event | None = None  # only where a stream has to wait
        self._heard = self._since = door.loop.time()  # `_since`: the connection was made, or its end began
        self._is_pinged = False
        self._transport: asyncio.Transport
        self._outbox: Outbox

    # ------------------------------------------------------------ asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._outbox = Outbox(self._door.mail, self._transport, self._go_on)
        address, port, *_ = transport.get_extra_info("peername") or ("", 0)
        self._address = str(address)
        self._connection = Connection(f"{address}:{port}")
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        refusal = self._door.admit(self, self._address)
        if refusal is not None:
            self.say_goodbye(refusal)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._inbox.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._heard = self._door.loop.time()
        self._is_pinged = False
        if self._is_over:
            return
        try:
            if self._magic is not None:
                nbytes = self._skip_magic(nbytes)
            frames = self._inbox.received(nbytes)
            self._count_held()
        except wire.FrameTooLong as error:
            self.say_goodbye(InvalidArgument(str(error)))
            return
        if self._backlog:
            self._backlog += frames
        else:
            self._work(frames)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        self._backlog = []
        self._door.forget(self, self._address, self._held_bytes)
        pending, self._pending = self._pending, {}
        for each in pending.values():
            if each is not None:
                each.cancel()
        self._outbox.drop()

    def pause_writing(self) -> None:
        self.hold()
        if self._writable is not None:
            self._writable.clear()

    def resume_writing(self) -> None:
        self._outbox.note_sent()
        if self._writable is not None:
            self._writable.set()
        self.let_go()

    # ------------------------------------------------------------ back-pressure

    def hold(self) -> None:
        """Take nothing from the peer until as many have let go as held."""
        self._holds += 1
        if not self._transport.is_closing():
            self._transport.pause_reading()

    def let_go(self) -> None:
        self._holds -= 1
        self._go_on()

    def _go_on(self) -> None:
        """There may be room again: take what was read before, then read on."""
        if self._backlog and not (self._holds or self._is_over or self._transport.is_closing()):
            frames, self._backlog = self._backlog, []
            self._work(frames)
        if not self._is_stuck():
            self._transport.resume_reading()

    def _is_stuck(self) -> bool:
        return bool(self._holds or self._backlog) or self._is_over or self._transport.is_closing()

    def _work(self, frames: list[wire.Frame]) -> None:
        outbox = self._outbox
        for index, frame in enumerate(frames):
            if self._holds or outbox.bytes > HIGH_WATER_BYTES:
                self._backlog = frames[index:]
                self._transport.pause_reading()
                return
            self._take(*frame)
            if self._is_over:
                return

    def _count_held(self) -> None:
        held = self._inbox.held_bytes
        if held != self._held_bytes:
            has_room = self._door.hold_bytes(held - self._held_bytes)
            self._held_bytes = held
            if not has_room:
                self.say_goodbye(ResourceExhausted("too many unfinished requests are held; send them again later"))

    # ------------------------------------------------------------ what a peer says

    def _skip_magic(self, nbytes: int) -> int:
        """Until the magic is there, gather; then leave what follows it where the inbox looks. Returns its size."""
        assert self._magic is not None
        data = self._magic + bytes(self._inbox.room()[:nbytes])
        self._magic, rest = data[: len(wire.MAGIC)], data[len(wire.MAGIC) :]
        if not wire.MAGIC.startswith(self._magic):
            self._transport.write(answer_to(self._magic))
            self.close()
            return 0
        if len(self._magic) < len(wire.MAGIC):
            return 0
        self._magic = None
        self._inbox.room()[: len(rest)] = rest
        return len(rest)

    def _take(self, id_: int, code: int, flags: int, payload: bytes) -> None:
        if not self._is_greeted:
            self._greet(code, payload)
        elif code >= wire.CONTROL:
            self._control(id_, code, payload)
        elif id_ in self._pending:
            self._continue(id_, code, flags, payload)
        elif len(self._pending) >= WINDOW:
            self.say_goodbye(ResourceExhausted(f"more than {WINDOW} requests are in flight"))
        elif not id_:
            self.say_goodbye(InvalidArgument("a request has an id other than 0"))
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
        elif method.kind in _STREAMS:
            self._pending[id_] = open_stream(self, service, self._connection, method, id_, flags, payload)
        elif flags:
            self.answer(id_, InvalidArgument("this method takes one frame, without flags"))
        elif method.can_wait:
            pull = _Pull(self, id_)
            pull.waiter = service.call(method, self._connection, payload, pull)
            if pull.waiter is not None and not pull.is_over:
                self._pending[id_] = pull
        else:
            service.call(method, self._connection, payload, partial(self.answer, id_))

    def _continue(self, id_: int, code: int, flags: int, payload: bytes) -> None:
        stream = self._pending[id_]
        if not isinstance(stream, Stream) or not stream.takes(code):
            self.say_goodbye(InvalidArgument(f"request {id_} is in flight already"))
        else:
            stream.feed(payload, is_last=not flags & wire.MORE)

    def _greet(self, code: int, payload: bytes) -> None:
        try:
            hello = pb.WireHello.FromString(payload)
        except DecodeError:
            hello = pb.WireHello()
        if code != wire.HELLO or not hello.version:
            self.say_goodbye(InvalidArgument("a connection begins with a hello that names a version"))
        elif hello.version < wire.OLDEST_VERSION:
            text = f"version {hello.version} of the wire is too old; the oldest spoken here is {wire.OLDEST_VERSION}"
            self.say_goodbye(InvalidArgument(text))
        else:
            self._is_greeted = True
            self._outbox.put(wire.MAGIC + self._door.welcome(min(hello.version, wire.VERSION)))
            if self._door.is_draining:
                self.drain()

    def _control(self, id_: int, code: int, payload: bytes) -> None:
        if code == wire.PING:
            self._outbox.put(wire.pack(id_, wire.PONG, 0, payload[:PING_BYTES]))
        elif code == wire.CANCEL:
            self._cancel(id_)
        elif code == wire.GOODBYE:
            self.close()
        elif code != wire.PONG:
            self.say_goodbye(InvalidArgument(f"there is no control code {code:#x} for a client"))

    def _cancel(self, id_: int) -> None:
        """Give a request up. One that is already decided is answered all the same."""
        pending = self._pending.get(id_)
        if pending is not None:
            pending.cancel()
            self._refuse(id_, "CANCELLED", "Cancelled", "cancelled by the client")

    # ------------------------------------------------------------ what we say

    def answer(self, id_: int, answer: Answer) -> None:
        """The one answer to a request."""
        if isinstance(answer, MqError):
            self._refuse(id_, answer.status, type(answer).__name__, str(answer))
            return
        if self._pending.pop(id_, self) is self:  # the peer is gone
            if type(answer) is Delivery:
                answer.release()
            return
        if len(answer) == 1:
            self._outbox.put(_pack_header(len(answer[0]), id_, wire.OK, 0) + answer[0])
        else:
            self._outbox.put(_pack_header(sum(map(len, answer)), id_, wire.OK, 0))
            for piece in answer:
                self._outbox.put(piece)
        if type(answer) is Delivery:
            self._outbox.put_delivery(answer)
        if not self._pending:
            self._door.settled()

    def _refuse(self, id_: int, status: str, reason: str, message: str) -> None:
        if self._pending.pop(id_, self) is self:
            return
        error = pb.WireError(reason=reason, message=message).SerializeToString()
        self._outbox.put(wire.pack(id_, wire.STATUS.get(status, wire.STATUS["INTERNAL"]), 0, error))
        if not self._pending:
            self._door.settled()

    def send_item(self, id_: int, item: bytes) -> None:
        """One part of a stream's answer."""
        self._outbox.put(_pack_header(len(item), id_, wire.OK, wire.MORE) + item)

    def end_stream(self, id_: int, error: MqError | None = None) -> None:
        self.answer(id_, error if error is not None else [b""])

    async def writable(self) -> None:
        """Wait until the peer has read enough."""
        if self._outbox.unsent_bytes <= HIGH_WATER_BYTES:
            return
        self._outbox.flush()
        if self._outbox.unsent_bytes > HIGH_WATER_BYTES:
            self._writable = self._writable or asyncio.Event()
            self._writable.clear()
            await self._writable.wait()

    def say_goodbye(self, error: MqError) -> None:
        """The peer broke the rules, or can't be served: say why, and close."""
        text = pb.WireError(reason=type(error).__name__, message=str(error)).SerializeToString()
        opening = b"" if self._is_greeted else wire.MAGIC
        self._outbox.put(opening + wire.pack(0, wire.GOODBYE, 0, text))
        self.close()

    # ------------------------------------------------------------ the door's wishes

    @property
    def is_busy(self) -> bool:
        return bool(self._pending or self._backlog or self._outbox.bytes)

    def drain(self) -> None:
        """Tell the peer to ask nothing more; streams end, the rest is answered."""
        if self._is_greeted:
            self._outbox.put(wire.pack(0, wire.DRAIN))
        for id_, pending in list(self._pending.items()):
            if isinstance(pending, Stream):
                pending.cancel()
                self.end_stream(id_, Unavailable("the broker is shutting down"))

    def check_alive(self, now: float) -> None:
        """Called every second or so."""
        self._outbox.note_sent()
        silence = now - self._heard
        if self._is_over:
            if now - self._since > CLOSE_SECONDS:
                self._transport.abort()
        elif not self._is_greeted:
            if now - self._since > HANDSHAKE_SECONDS:
                self.say_goodbye(Unavailable(f"no hello came within {HANDSHAKE_SECONDS:.0f} s"))
        elif silence > 2 * IDLE_SECONDS and not self._connection.streams:
            self.say_goodbye(Unavailable("no word and no pong came for too long"))
        elif silence > IDLE_SECONDS and not self._is_pinged:
            self._is_pinged = True
            self._outbox.put(wire.pack(0, wire.PING))

    def close(self) -> None:
        """End the connection once what was said has left."""
        if not self._is_over:
            self._is_over = True
            self._since = self._door.loop.time()
        self._outbox.flush()
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()


class _Pull:
    """A pull, which may wait. Its answer may come after it was given up, and its id may be another request's then."""

    __slots__ = ("_id", "_peer", "is_over", "waiter")

    def __init__(self, peer: WireConnection, id_: int) -> None:
        self._peer = peer
        self._id = id_
        self.is_over = False
        self.waiter: Pending | None = None

    def __call__(self, answer: Answer) -> None:
        if not self.is_over:
            self.is_over = True
            self._peer.answer(self._id, answer)
        elif type(answer) is Delivery:
            answer.release()

    def cancel(self) -> None:
        self.is_over = True
        if self.waiter is not None:
            self.waiter.cancel()
