"""The wire for threads: one connection, any number of callers, as many requests in flight as the window allows.

There is no thread that reads. Whoever waits for an answer reads the socket himself, hands the others theirs, and passes
the reading on when he has his own; so a lone caller writes and reads in its own thread, without a hand-over. Only
`send`, whose caller does not wait, starts a thread that reads for it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
import time
from collections.abc import Iterator
from itertools import count

from mq import wire
from mq.client.transport import Done, TimedOut, error_of
from mq.errors import InvalidArgument, MqError, Unavailable
from mq.pb import mq_pb2 as pb

SCRATCH_BYTES = 256 << 10
CONNECT_SECONDS = 5.0
_STATUS_NAMES = {number: name for name, number in wire.STATUS.items()}


class _Call:
    """A request in flight, and where its answer goes."""

    __slots__ = ("answer", "done", "items", "ready")

    def __init__(
        self, done: Done | None = None, items: queue.SimpleQueue[bytes | MqError | None] | None = None
    ) -> None:
        self.answer: bytes | MqError | None = None
        self.done = done
        self.items = items
        self.ready = threading.Lock()  # released when the answer is there, or the reading is passed on
        self.ready.acquire()


class WireTransport:
    """Implements `Transport`."""

    def __init__(self, host: str, port: int, *, connect_timeout: float = CONNECT_SECONDS) -> None:
        self._address = f"{host}:{port}"
        self._pid = os.getpid()
        self._inbox = wire.Inbox(bytearray(SCRATCH_BYTES), 1 << 31)
        self._ids = count(1)
        self._calls: dict[int, _Call] = {}
        self._lock = threading.Lock()  # of _calls and _failure
        self._room = threading.Condition(self._lock)
        self._sending = threading.Lock()
        self._reading = threading.Lock()
        self._reader: threading.Thread | None = None
        self._failure: MqError | None = None
        self.is_draining = False  # the server asked for no more requests
        try:
            self._socket = socket.create_connection((host, port), connect_timeout)
        except OSError as error:
            raise Unavailable(f"can't connect to {self._address}: {error.strerror or error}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.welcome = self._greet()
        except BaseException:
            self._socket.close()
            raise
        self._socket.settimeout(None)
        self._inbox.max_bytes = 1 << 30  # what a server answers is not bounded by what it takes

    # ------------------------------------------------------------ Transport

    def call(self, method: str, request: bytes, timeout: float | None = None) -> bytes:
        call = _Call()
        id_ = self._begin(method, request, call)
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            self._wait(call, deadline)
        except BaseException:
            self._give_up(id_)
            raise
        answer = call.answer
        if isinstance(answer, MqError):
            raise answer
        assert answer is not None
        return answer

    def send(self, method: str, request: bytes, done: Done) -> None:
        self._start_reader()
        self._begin(method, request, _Call(done))

    def stream(self, method: str, request: bytes) -> Iterator[bytes]:
        items: queue.SimpleQueue[bytes | MqError | None] = queue.SimpleQueue()
        self._start_reader()
        id_ = self._begin(method, request, _Call(items=items))
        try:
            while (item := items.get()) is not None:
                if isinstance(item, MqError):
                    raise item
                yield item
        finally:
            self._give_up(id_)

    def close(self) -> None:
        self._fail(Unavailable("the client was closed"))

    @property
    def is_usable(self) -> bool:
        return self._failure is None and self._pid == os.getpid()

    # ------------------------------------------------------------ out

    def _begin(self, method: str, request: bytes, call: _Call) -> int:
        if self._pid != os.getpid():
            raise Unavailable("this client was made before a fork: make a new one in the child")
        code = wire.METHODS[method]
        if len(request) > self.welcome.max_frame_bytes:
            raise InvalidArgument(f"a request has at most {self.welcome.max_frame_bytes} bytes, not {len(request)}")
        with self._lock:
            while len(self._calls) >= self.welcome.window and self._failure is None:
                self._room.wait()
            if self._failure is not None:
                raise self._failure
            id_ = next(self._ids) & 0xFFFFFFFF
            self._calls[id_] = call
        try:
            with self._sending:
                self._socket.sendall(wire.pack_header(len(request), id_, code, 0) + request)
        except OSError as error:
            self._fail(Unavailable(f"the connection to {self._address} broke: {error.strerror or error}"))
        return id_

    def _give_up(self, id_: int) -> None:
        """Nobody waits for this answer any more."""
        with self._lock:
            if self._calls.pop(id_, None) is None:
                return
            self._room.notify()
        try:
            with self._sending:
                self._socket.sendall(wire.pack(id_, wire.CANCEL))
        except OSError as error:
            self._fail(Unavailable(f"the connection to {self._address} broke: {error.strerror or error}"))

    # ------------------------------------------------------------ in

    def _wait(self, call: _Call, deadline: float | None) -> None:
        while call.answer is None:
            if self._reading.acquire(blocking=False):
                try:
                    while call.answer is None:
                        self._read(deadline)
                finally:
                    self._reading.release()
                    self._pass_reading_on()
            elif not call.ready.acquire(timeout=-1 if deadline is None else max(0.0, deadline - time.monotonic())):
                raise TimedOut(f"{self._address} did not answer in time")

    def _pass_reading_on(self) -> None:
        """Wake one of those who still wait: he finds no answer, and reads."""
        if not self._calls:
            return
        with self._lock:
            for call in self._calls.values():
                if call.answer is None and call.done is None and call.items is None:
                    if call.ready.locked():
                        call.ready.release()
                    return

    def _read(self, deadline: float | None) -> None:
        """Read what is there, and hand it out."""
        try:
            if deadline is not None:
                self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            size = self._socket.recv_into(self._inbox.room())
        except TimeoutError:
            raise TimedOut(f"{self._address} did not answer in time") from None
        except (OSError, ValueError) as error:
            self._fail(Unavailable(f"the connection to {self._address} broke: {error}"))
            return
        finally:
            if deadline is not None and self._failure is None:
                self._socket.settimeout(None)
        if not size:
            self._fail(Unavailable(f"{self._address} closed the connection"))
            return
        for frame in self._inbox.received(size):
            self._take(frame)

    def _take(self, frame: wire.Frame) -> None:
        id_, code, flags, payload = frame
        if code >= wire.CONTROL:
            self._control(id_, code, payload)
            return
        is_last = not flags & wire.MORE
        with self._lock:
            call = self._calls.pop(id_, None) if is_last else self._calls.get(id_)
            if is_last:
                self._room.notify()
        if call is not None:
            _deliver(call, payload if code == wire.OK else _error(code, payload), is_last)

    def _control(self, id_: int, code: int, payload: bytes) -> None:
        if code == wire.PING:
            with self._sending:
                self._socket.sendall(wire.pack(id_, wire.PONG, 0, payload))
        elif code == wire.DRAIN:
            self.is_draining = True
        elif code == wire.GOODBYE:
            said = pb.WireError.FromString(payload)
            self._fail(error_of("UNAVAILABLE", said.reason, said.message))

    def _fail(self, error: MqError) -> None:
        with self._lock:
            if self._failure is not None:
                return
            self._failure = error
            calls, self._calls = list(self._calls.values()), {}
            self._room.notify_all()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes whoever reads
        if self._pid == os.getpid():
            self._socket.close()
        for call in calls:
            _deliver(call, error, True)

    # ------------------------------------------------------------ beginnings

    def _greet(self) -> pb.WireWelcome:
        hello = pb.WireHello(version=wire.VERSION, client="mq-python").SerializeToString()
        self._socket.sendall(wire.MAGIC + wire.pack(0, wire.HELLO, 0, hello))
        start = self._receive(len(wire.MAGIC))
        if start != wire.MAGIC:
            is_http = start[:3] == b"\0\0\0" or start[3:4] == b"\4"
            hint = "it speaks gRPC: use grpc://" if is_http else "it does not speak the mq wire"
            raise InvalidArgument(f"{self._address} is no wire port: {hint}")
        while True:
            size = self._socket.recv_into(self._inbox.room())
            if not size:
                raise Unavailable(f"{self._address} closed the connection")
            for frame in self._inbox.received(size):
                if frame.code == wire.WELCOME:
                    return pb.WireWelcome.FromString(frame.payload)
                said = pb.WireError.FromString(frame.payload)
                raise error_of("UNAVAILABLE", said.reason, said.message)

    def _receive(self, size: int) -> bytes:
        data = b""
        try:
            while len(data) < size and (more := self._socket.recv(size - len(data))):
                data += more
        except OSError as error:
            raise Unavailable(f"{self._address} did not greet: {error}") from None
        return data

    def _start_reader(self) -> None:
        with self._lock:
            if self._reader is None:
                self._reader = threading.Thread(target=self._keep_reading, name="mq-wire-reader", daemon=True)
                self._reader.start()

    def _keep_reading(self) -> None:
        with self._reading:
            while self._failure is None:
                self._read(None)


def _deliver(call: _Call, answer: bytes | MqError, is_last: bool) -> None:
    if call.items is not None:
        if answer or isinstance(answer, MqError):
            call.items.put(answer)
        if is_last:
            call.items.put(None)
        return
    call.answer = answer
    if call.done is not None:
        call.done(answer)
    elif call.ready.locked():
        call.ready.release()


def _error(code: int, payload: bytes) -> MqError:
    said = pb.WireError.FromString(payload)
    return error_of(_STATUS_NAMES.get(code, "UNKNOWN"), said.reason, said.message)
