"""The wire for threads: one connection, any number of callers, as many requests in flight as the window allows.

There is no thread that reads. Whoever waits for an answer reads the socket himself, hands the others theirs, and passes
the reading on when he has his own; so a lone caller writes and reads in its own thread, without a hand-over. Only
`send`, whose caller does not wait, starts a thread that reads for it. A stream has a connection of its own: a consumer
that stops reading it holds up nobody else.

A broker with a quick disk answers about as soon as a sleeping processor wakes up. So where the answer before came soon,
a lone caller looks on for a moment before it sleeps. That serves also one whose answer comes a little later: what has
slept for less long wakes sooner.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

from mq import wire
from mq.client import greeting
from mq.client.transport import Done, TimedOut, same
from mq.client.wire_socket import CAN_LOOK, CONNECT_SECONDS, WireSocket
from mq.errors import InvalidArgument, MqError, Unavailable

QUIET_SECONDS = 1.0  # after so long without a call, look whether the server has left before asking it something


class _Call:
    """A request in flight, and where its answer goes."""

    __slots__ = ("answer", "done", "is_given_up", "ready")

    def __init__(self, done: Done | None = None) -> None:
        self.answer: bytes | MqError | None = None
        self.done = done
        self.is_given_up = False  # nobody waits any more; it counts in the window until the server has answered
        self.ready: threading.Lock | None = None  # of who waits while another reads: released when he is to look again


class WireTransport:
    """Implements `Transport`."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        connect_timeout: float = CONNECT_SECONDS,
        busy_poll: float = 0.0,
    ) -> None:
        """`busy_poll`: seconds that a lone caller looks on before it sleeps, where answers come within twice that.

        Raises Unavailable, and InvalidArgument where something else than the wire answers there.
        """
        self._where = host, port, connect_timeout
        self._pid = os.getpid()
        self._socket = WireSocket(host, port, connect_timeout)
        self.welcome = self._socket.welcome
        self.start_id = self.welcome.start_id
        self._window, self._most_bytes = self.welcome.window, self.welcome.max_frame_bytes
        self.is_draining = False  # the server asked for no more requests
        self._calls: dict[int, _Call] = {}
        self._last_id = 0
        self._used = time.monotonic()
        self._lock = threading.Lock()  # of everything above, and of _failure
        self._busy_poll = busy_poll if CAN_LOOK else 0.0
        self._took = float("inf")  # seconds, the last call; of any thread, as near enough
        self._room = threading.Condition(self._lock)
        self._waiting = 0  # for room
        self._sending = threading.Lock()
        self._reading = threading.Lock()
        self._reader: threading.Thread | None = None
        self._failure: MqError | None = None

    # ------------------------------------------------------------ Transport

    def call(self, method: str, request: bytes, timeout: float | None = None) -> bytes:
        now = time.monotonic()
        deadline = None if timeout is None else now + timeout
        call = _Call()
        awake_until = 0.0
        if self._took < 2 * self._busy_poll:
            awake_until = now + (self._busy_poll if timeout is None else min(self._busy_poll, timeout))
        id_ = self._begin(method, request, call, now, deadline)
        try:
            self._wait(call, deadline, awake_until)
        except BaseException:
            self._give_up(id_, call)
            raise
        self._took = time.monotonic() - now
        answer = call.answer
        if isinstance(answer, MqError):
            raise answer
        assert answer is not None
        return answer

    def send(self, method: str, request: bytes, done: Done) -> None:
        self._start_reader()
        self._begin(method, request, _Call(done), time.monotonic())

    def stream(self, method: str, request: bytes) -> Iterator[bytes]:
        own = WireSocket(*self._where)
        try:
            own.send(wire.pack(1, wire.METHODS[method], 0, request))
            while True:
                for _, code, flags, payload in own.read():
                    if code == wire.PING:
                        own.send(wire.pack(0, wire.PONG, 0, payload))
                    elif code == wire.GOODBYE:
                        raise greeting.lost(payload, own.address)
                    elif code >= wire.CONTROL:
                        continue
                    elif code != wire.OK:
                        raise greeting.read_error(code, payload)
                    elif payload:
                        yield payload
                    if code == wire.OK and not flags & wire.MORE:
                        return
        finally:
            own.shut()

    def close(self) -> None:
        if self._pid == os.getpid():
            self._fail(Unavailable("the client was closed"))
        else:
            self._socket.let_go()

    def cut(self) -> None:
        """Whoever reads finds the end of the connection. Takes no lock."""
        if self._pid == os.getpid():
            self._socket.cut()

    @property
    def is_usable(self) -> bool:
        return self._failure is None and not self.is_draining and self._pid == os.getpid()

    # ------------------------------------------------------------ out

    def _begin(self, method: str, request: bytes, call: _Call, now: float, deadline: float | None = None) -> int:
        if self._pid != os.getpid():
            raise Unavailable("this client was made before a fork: make a new one in the child")
        code = wire.METHODS[method]
        if len(request) > self._most_bytes:
            raise InvalidArgument(f"a request has at most {self._most_bytes} bytes, not {len(request)}")
        if now - self._used > QUIET_SECONDS:
            self._hear_news()
        self._used = now
        with self._lock:
            while len(self._calls) >= self._window and self._failure is None:
                self._waiting += 1
                try:
                    is_told = self._room.wait(None if deadline is None else deadline - time.monotonic())
                    if not is_told and len(self._calls) >= self._window:
                        raise TimedOut(f"{self._socket.address} left {self._window} requests without an answer")
                finally:
                    self._waiting -= 1
            if self._failure is not None:
                raise same(self._failure)
            self._last_id = id_ = self._last_id % 0xFFFFFFFF + 1
            self._calls[id_] = call
        try:
            with self._sending:
                self._socket.send(wire.pack_header(len(request), id_, code, 0), request)
        except Unavailable as error:
            self._fail(error)
        except BaseException:  # interrupted: half a frame may have left
            self._fail(Unavailable("sending was interrupted"))
            raise
        return id_

    def _give_up(self, id_: int, call: _Call) -> None:
        """Nobody waits for this answer any more."""
        with self._lock:
            call.is_given_up = True
            if id_ not in self._calls:
                return
        self._pass_reading_on()  # who read until now may have passed it on to himself
        try:
            with self._sending:
                self._socket.send(wire.pack(id_, wire.CANCEL))
        except Unavailable as error:
            self._fail(error)

    def _hear_news(self) -> None:
        """A server that left while nobody asked it anything is noticed before a request goes nowhere."""
        if self._reading.acquire(False):
            try:
                while self._failure is None and self._socket.has_news():
                    self._read(None)
            finally:
                self._reading.release()
                self._pass_reading_on()

    # ------------------------------------------------------------ in

    def _wait(self, call: _Call, deadline: float | None, awake_until: float) -> None:
        while call.answer is None:
            if self._reading.acquire(False):
                try:
                    while call.answer is None:
                        self._read(deadline, awake_until if len(self._calls) == 1 else 0.0)
                finally:
                    self._reading.release()
                    self._pass_reading_on()
            elif call.ready is None:
                # Then look once more: who read until now may have looked for those who wait before this was there.
                ready = threading.Lock()
                ready.acquire()
                call.ready = ready
            elif not call.ready.acquire(timeout=-1 if deadline is None else max(0.0, deadline - time.monotonic())):
                raise TimedOut(f"{self._socket.address} did not answer in time")

    def _pass_reading_on(self) -> None:
        """Wake one of those who wait: he finds no answer, and reads. Who is about to wait looks by himself before."""
        if not self._calls:
            return
        with self._lock:
            for call in self._calls.values():
                if call.ready is not None and not call.is_given_up and call.answer is None:
                    _wake(call)
                    return

    def _read(self, deadline: float | None, awake_until: float = 0.0) -> None:
        """Read what is there, and hand it out. Raises TimedOut."""
        try:
            for id_, code, _, payload in self._socket.read(deadline, awake_until):
                if code >= wire.CONTROL:
                    self._control(id_, code, payload)
                else:
                    self._take(id_, payload if code == wire.OK else greeting.read_error(code, payload))
        except TimedOut:
            raise
        except Unavailable as error:
            self._fail(error)
        except BaseException:  # interrupted: bytes may be lost
            self._fail(Unavailable("reading was interrupted"))
            raise

    def _take(self, id_: int, answer: bytes | MqError) -> None:
        with self._lock:
            call = self._calls.pop(id_, None)
            if self._waiting:
                self._room.notify()
        if call is not None and not call.is_given_up:
            _deliver(call, answer)

    def _control(self, id_: int, code: int, payload: bytes) -> None:
        if code == wire.PING:
            # Who is sending is heard anyway; waiting for him here could mean that nobody reads what he waits for.
            if self._sending.acquire(blocking=False):
                try:
                    self._socket.send(wire.pack(id_, wire.PONG, 0, payload))
                finally:
                    self._sending.release()
        elif code == wire.DRAIN:
            self.is_draining = True
        elif code == wire.GOODBYE:
            raise greeting.lost(payload, self._socket.address)

    def _fail(self, error: MqError) -> None:
        with self._lock:
            if self._failure is not None:
                return
            self._failure = error
            calls, self._calls = list(self._calls.values()), {}
            self._room.notify_all()
        self._socket.shut()
        for call in calls:
            if not call.is_given_up:
                _deliver(call, same(error))

    def _start_reader(self) -> None:
        with self._lock:
            if self._reader is None:
                self._reader = threading.Thread(target=self._keep_reading, name="mq-wire-reader", daemon=True)
                self._reader.start()

    def _keep_reading(self) -> None:
        with self._reading:
            while self._failure is None:
                self._read(None)


def _wake(call: _Call) -> None:
    if call.ready is not None:
        with suppress(RuntimeError):  # somebody else has done it
            call.ready.release()


def _deliver(call: _Call, answer: bytes | MqError) -> None:
    call.answer = answer
    if call.done is None:
        _wake(call)
        return
    try:
        call.done(answer)
    except Exception:  # a mistake with one answer is not to hold back the others
        logging.getLogger("mq.client").exception("the callback of an answer failed")
