"""What a client asks of a transport: a request's bytes there, an answer's bytes back, and errors as MqError.

Two implement it, the wire and gRPC, each in a form for threads and one for asyncio. Nothing here retries: a transport
says what happened, and `error.retryable` what to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Protocol

from mq import errors
from mq.errors import MqError, Unavailable

Done = Callable[[bytes | MqError], None]
AsyncDone = Callable[[bytes | BaseException], None]  # also asyncio.CancelledError, where the loop comes to its end

_CLASSES: dict[str, type[MqError]] = {
    name: cls for name, cls in vars(errors).items() if isinstance(cls, type) and issubclass(cls, MqError)
}


class Transport(Protocol):
    """One connection, shared by all threads."""

    def call(self, method: str, request: bytes, timeout: float | None = None) -> bytes:
        """One request, one answer. Raises MqError; TimedOut after so many seconds, the outcome then unknown."""
        ...

    def send(self, method: str, request: bytes, done: Done) -> None:
        """The same without waiting: `done` is called once, from another thread. Blocks while the window is full.

        `done` is quick and sends nothing itself: it runs where answers are read.
        """
        ...

    def stream(self, method: str, request: bytes) -> Iterator[bytes]:
        """One request, many answers. Closing the iterator cancels it."""
        ...

    def close(self) -> None:
        """Give the connection up; what is in flight fails with Unavailable. Idempotent."""
        ...

    @property
    def is_usable(self) -> bool:
        """False once the connection is gone, or about to go: open another for the next call."""
        ...


class AsyncTransport(Protocol):
    """The same for one event loop."""

    async def call(self, method: str, request: bytes) -> bytes:
        """Deadlines are asyncio's: `async with asyncio.timeout(…)`."""
        ...

    def submit(self, method: str, request: bytes) -> asyncio.Future[bytes]:
        """The same without waiting, and no task for each. What the window does not take stands in line."""
        ...

    def send(self, method: str, request: bytes, done: AsyncDone) -> None:
        """The same without a future: `done` is called once, when the answer is read, and not before this returns."""
        ...

    def stream(self, method: str, request: bytes) -> AsyncIterator[bytes]:
        """One request, many answers. Closing the iterator cancels it."""
        ...

    async def close(self) -> None: ...

    @property
    def is_usable(self) -> bool: ...


class TimedOut(Unavailable):
    """No answer came in time; whether the request had its effect is unknown."""

    status = "DEADLINE_EXCEEDED"


def error_of(status: str, reason: str, message: str) -> MqError:
    """The error that a server spoke of, as the class of the same name; an unknown one keeps its status."""
    cls = TimedOut if status == TimedOut.status else _CLASSES.get(reason)
    if cls is None:
        cls = next((each for each in _CLASSES.values() if each.status == status), MqError)
    error = cls(message)
    error.status = status
    return error


def same(error: MqError) -> MqError:
    """Another of the same kind: one object raised in many places would carry the tracebacks of all of them."""
    copy = type(error)(*error.args)
    copy.status = error.status
    copy.went_unanswered = error.went_unanswered
    return copy
