"""A connection that comes back: finds a broker that answers, retries what may be retried, within a deadline.

A transport says what happened; here is what is done about it. Retries are safe because every request that changes
something can be recognised: publishes carry a producer and a sequence, acks a receipt.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from mq.client.address import Address
from mq.client.backoff import Backoff
from mq.client.transport import TimedOut, Transport, same
from mq.errors import MqError, ResourceExhausted, Unavailable

CONNECT_SECONDS = 5.0
BUSY_POLL_SECONDS = 200e-6  # that a lone caller looks on before it sleeps, where answers come within twice that
SILENCE_SECONDS = 1.0  # of calls that all time out: less says more of their timeouts than of the broker
ATTEMPT_SECONDS = 10.0  # without an answer for so long, a connection is given up and the request sent on a new one
Connect = Callable[[Address, float], Transport]


def connect(address: Address, timeout: float, busy_poll: float = BUSY_POLL_SECONDS) -> Transport:
    """A transport to an address. Raises Unavailable, InvalidArgument."""
    if address.scheme == "mq":
        from mq.client.wire import WireTransport

        return WireTransport(address.host, address.port, connect_timeout=timeout, busy_poll=busy_poll)
    from mq.client.grpc import GrpcTransport

    return GrpcTransport(address.host, address.port, connect_timeout=timeout)


class Connection:
    """Shared by all threads. The first connection is made at once and tried once; later ones until the deadline."""

    def __init__(
        self,
        addresses: Sequence[Address],
        *,
        timeout: float,
        connect_timeout: float = CONNECT_SECONDS,
        attempt_seconds: float = ATTEMPT_SECONDS,
        connect: Connect = connect,
    ) -> None:
        self.timeout = timeout
        self._addresses = list(addresses)
        self._connect = connect
        self._connect_timeout = connect_timeout
        self._attempt_seconds = attempt_seconds
        self._pid = os.getpid()
        self._lock = threading.Lock()  # of _transport, of _attempt and the fact that it is closed
        self._attempt: Future[Transport] | None = None  # a try to connect that is under way
        self._closed = threading.Event()
        self._transport: Transport | None = None
        self._is_cut = False
        self._silent_since = 0.0  # when the first of some calls began that all timed out; 0: the last one was answered
        self._turn = 0
        self.reconnects = 0  # successful ones, after the first

    def another(self) -> Connection:
        """A connection of its own to the same broker, for one that waits or sends a lot."""
        return Connection(
            self._addresses[self._turn :] + self._addresses[: self._turn],
            timeout=self.timeout,
            connect_timeout=self._connect_timeout,
            attempt_seconds=self._attempt_seconds,
            connect=self._connect,
        )

    def call(
        self,
        method: str,
        request: bytes,
        *,
        timeout: float | None = None,
        wait: float = 0.0,
        patient: bool = False,
        once: bool = False,
        before_retry: Callable[[], bytes] | None = None,
    ) -> bytes:
        """One request, one answer, however often it takes. `wait`: seconds that the broker may hold the answer back.

        `patient`: also come back while the broker is short of something. `once`: do not come back at all.
        `before_retry`: called after an answer that may be lost; what it returns is sent instead. Raises MqError when
        the time is over.
        """
        self.check_usable()
        now = time.monotonic()
        end = now + (self.timeout if timeout is None else timeout)
        backoff: Backoff | None = None
        is_unanswered = False
        while True:
            transport = self._transport
            try:
                if transport is None:
                    transport = self.transport(end)
                    now = time.monotonic()
                if self._is_cut:
                    raise Unavailable("the client was closed")
                limit = min(self._attempt_seconds + wait, max(0.001, end - now))
                answer = transport.call(method, request, limit)
                self._silent_since = 0.0
                return answer
            except MqError as error:
                error.went_unanswered = is_unanswered
                is_unanswered = is_unanswered or not isinstance(error, ResourceExhausted)
                self._judge(error, method, transport, now)
                is_over = once or self._is_cut or not error.retryable
                if is_over or (isinstance(error, ResourceExhausted) and not patient):
                    raise
                backoff = backoff or Backoff()
                pause = backoff.seconds()
                if self._closed.is_set() or time.monotonic() + pause >= end:
                    raise
            if before_retry is not None:
                request = before_retry()
            if self._closed.wait(pause):
                raise Unavailable("the client was closed")
            now = time.monotonic()

    def transport(self, end: float = float("inf")) -> Transport:
        """A transport that worked when it was last used. Raises Unavailable after one try of each address, its own or
        another's, and TimedOut where that takes longer than until `end`.

        A thread of its own tries, for as long as it takes: whoever has little time leaves it to those who come after
        him, and does not spoil it for those who wait with him.
        """
        transport = self._transport
        if transport is not None and self._pid == os.getpid():
            return transport
        self.check_usable()
        with self._lock:
            if self._transport is not None:
                return self._transport
            self.check_usable()  # once more: nobody ends an attempt that begins after the close
            attempt = self._attempt or self._begin_attempt()
        seconds = end - time.monotonic()
        try:
            error = attempt.exception(max(0.0, seconds) if seconds < threading.TIMEOUT_MAX else None)
        except TimeoutError:
            raise TimedOut("there was no time to connect: nothing was sent") from None
        if error is not None:
            raise same(error) if isinstance(error, MqError) else error
        return attempt.result()

    @property
    def start_id(self) -> str:
        """Of the start of the broker that is connected; empty where the transport does not tell."""
        return str(getattr(self._transport, "start_id", ""))

    @property
    def request_bytes(self) -> int:
        """What the broker takes in one request; 0 where the transport does not tell."""
        return int(getattr(getattr(self._transport, "welcome", None), "max_frame_bytes", 0))

    def check_usable(self) -> None:
        """Raises Unavailable."""
        if self._pid != os.getpid():
            raise Unavailable("this client was made before a fork: make a new one in the child")
        if self._closed.is_set():
            raise Unavailable("the client was closed")

    def discard(self, transport: Transport) -> None:
        """Use this one no more; the next call finds another."""
        with self._lock:
            if self._transport is transport:
                self._transport = None
                self._silent_since = 0.0
                self.reconnects += 1
        transport.close()

    def drop(self) -> None:
        """It did not answer in time: give the transport up, and fail what is in flight on it."""
        transport = self._transport
        if transport is not None:
            self.discard(transport)

    def pause(self, seconds: float) -> bool:
        """Wait, unless the connection is closed first; true where it was."""
        return self._closed.wait(seconds)

    @property
    def can_be_cut(self) -> bool:
        """There is a connection, of a kind that `cut` ends."""
        return hasattr(self._transport, "cut")

    @property
    def needs_a_close(self) -> bool:
        """There is a connection, of a kind that `cut` does not end."""
        return self._transport is not None and not self.can_be_cut

    def cut(self) -> None:
        """End the call that waits; there is none after it. Takes no lock, so a signal's handler may do it."""
        self._is_cut = True
        if cut := getattr(self._transport, "cut", None):
            cut()

    def close(self) -> None:
        """Idempotent. After a fork the connection is the parent's, and stays open."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._closed.set()
            transport = self._transport
            attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.set_exception(Unavailable("the client was closed"))
        if transport is not None:
            transport.close()

    def _judge(self, error: MqError, method: str, transport: Transport | None, began: float) -> None:
        """Part with a transport that is broken, and say what an old broker does not."""
        if error.status == "UNIMPLEMENTED":
            raise MqError(f"the broker does not know {method}: it is older than this client") from error
        if transport is None:
            return
        is_over = not getattr(transport, "is_usable", True) or getattr(transport, "is_draining", False)
        if isinstance(error, TimedOut):  # others use it as well, and may have more patience
            self._silent_since = self._silent_since or began
            is_over = is_over or time.monotonic() - self._silent_since >= SILENCE_SECONDS
        if is_over and isinstance(error, (TimedOut, Unavailable)):
            self.discard(transport)

    def _begin_attempt(self) -> Future[Transport]:
        """Try to connect; with the lock."""
        attempt: Future[Transport] = Future()
        threading.Thread(target=self._try, args=(attempt,), name="mq-connect", daemon=True).start()
        self._attempt = attempt
        return attempt

    def _try(self, attempt: Future[Transport]) -> None:
        try:
            transport = self._reach()
        except BaseException as error:
            if self._end_attempt(attempt, None):
                attempt.set_exception(error)
            return
        if self._end_attempt(attempt, transport):
            attempt.set_result(transport)
        else:
            transport.close()

    def _end_attempt(self, attempt: Future[Transport], transport: Transport | None) -> bool:
        """False: this was closed meanwhile, and whoever waited has heard of it."""
        with self._lock:
            if self._attempt is not attempt:
                return False
            self._attempt, self._transport = None, transport
            return True

    def _reach(self) -> Transport:
        failures: list[str] = []
        for _ in self._addresses:
            address = self._addresses[self._turn]
            try:
                return self._reach_one(address)
            except Unavailable as error:
                failures.append(str(error))
                self._turn = (self._turn + 1) % len(self._addresses)
        raise Unavailable("; ".join(failures))

    def _reach_one(self, address: Address) -> Transport:
        try:
            return self._connect(address, self._connect_timeout)
        except Unavailable as error:
            if address.fallback is None:
                raise
            return self._fall_back(address, address.fallback, error)

    def _fall_back(self, address: Address, fallback: Address, error: Unavailable) -> Transport:
        try:
            transport = self._connect(fallback, self._connect_timeout)
        except Unavailable:
            raise error from None
        try:
            # gRPC waits for a broker that is about to start, which then answers here, too.
            better = self._connect(address, self._connect_timeout)
        except MqError:
            better = None
        if better is not None:
            transport.close()
            return better
        self._addresses[self._turn] = fallback
        try:
            warnings.warn(f"{address} does not answer: using {fallback}, which is slower", RuntimeWarning, stacklevel=2)
        except BaseException:  # where warnings are errors
            transport.close()
            raise
        return transport
