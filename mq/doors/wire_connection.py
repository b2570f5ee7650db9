"""One peer on the wire: frames in, frames out (docs/wire.md).

No task and no future per request: a request is handed to the service in the read callback, and its answer is sent when
the service calls back.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from google.protobuf.message import DecodeError

from mq import wire
from mq.doors.wire_link import Link
from mq.doors.wire_stream import Stream, open_stream
from mq.errors import InvalidArgument, MqError, ResourceExhausted, Unavailable
from mq.pb import mq_pb2 as pb
from mq.service import METHODS, Answer, Delivery, Kind, Method

if TYPE_CHECKING:
    from mq.doors.wire import WireDoor

WINDOW = 8_192  # requests in flight on one connection: what a fast disk answers in some milliseconds
PING_BYTES = 64  # of a ping's payload that come back

_METHODS: dict[int, Method] = {wire.METHODS[name]: method for name, method in METHODS.items()}
_STREAMS = frozenset(code for code, method in _METHODS.items() if method.kind in (Kind.SUBSCRIBE, Kind.PUBLISH_STREAM))
_pack_header = wire.pack_header


class Pending(Protocol):
    """A request in flight that can be given up."""

    def cancel(self) -> None: ...


class WireConnection(Link):
    """One peer."""

    __slots__ = ("_pending",)

    def __init__(self, door: WireDoor) -> None:
        super().__init__(door)
        self._pending: dict[int, Pending | None] = {}

    def give_up(self) -> None:
        pending, self._pending = self._pending, {}
        for each in pending.values():
            if each is not None:
                each.cancel()

    # ------------------------------------------------------------ what a peer says

    def take(self, id_: int, code: int, flags: int, payload: bytes) -> None:
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
        elif code in _STREAMS:
            self._pending[id_] = open_stream(self, service, self._connection, method, id_, flags, payload)
        elif flags:
            self.answer(id_, InvalidArgument("this method takes one frame, without flags"))
        elif method.can_wait:
            pull = _Pull(self, id_)
            waiter = service.call(method, self._connection, payload, pull)
            if waiter is not None and not pull.is_over:
                pull.waiter = waiter
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
            if self._door.is_waiting:
                self.hold()
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
            size = sum(map(len, answer))
            self._outbox.put(_pack_header(size, id_, wire.OK, 0))
            self._outbox.add(answer, size)
        if type(answer) is Delivery:
            self._outbox.put_delivery(answer)
        if self._door.is_draining and not self._pending:
            self._door.settled()

    def _refuse(self, id_: int, status: str, reason: str, message: str) -> None:
        if self._pending.pop(id_, self) is self:
            return
        error = pb.WireError(reason=reason, message=message).SerializeToString()
        self._outbox.put(wire.pack(id_, wire.STATUS.get(status, wire.STATUS["INTERNAL"]), 0, error))
        if self._door.is_draining and not self._pending:
            self._door.settled()

    def send_item(self, id_: int, item: bytes) -> None:
        """One part of a stream's answer."""
        self._outbox.put(_pack_header(len(item), id_, wire.OK, wire.MORE) + item)

    def end_stream(self, id_: int, error: MqError | None = None) -> None:
        self.answer(id_, error if error is not None else [b""])

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


class _Pull:
    """A pull, which may wait. Its answer may come after it was given up, and its id may be another request's then.

    It forgets its waiter when it is over: each of the two knows the other, and together they would stay in memory until
    a collection of garbage, which halts the broker for milliseconds.
    """

    __slots__ = ("_id", "_peer", "is_over", "waiter")

    def __init__(self, peer: WireConnection, id_: int) -> None:
        self._peer = peer
        self._id = id_
        self.is_over = False
        self.waiter: Pending | None = None

    def __call__(self, answer: Answer) -> None:
        if not self.is_over:
            self.is_over = True
            self.waiter = None
            self._peer.answer(self._id, answer)
        elif type(answer) is Delivery:
            answer.release()

    def cancel(self) -> None:
        self.is_over = True
        waiter, self.waiter = self.waiter, None
        if waiter is not None:
            waiter.cancel()
