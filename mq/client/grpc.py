"""gRPC as a transport, for threads and for asyncio. The only module of the client that imports grpc."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

import grpc

from mq.client.transport import AsyncDone, Done, error_of
from mq.errors import MessageTooLarge, MqError, Unavailable

CONNECT_SECONDS = 5.0
WINDOW = 1_000  # calls in flight that `send` allows; what more there is waits in the caller
REASON = "mq-reason"  # trailing metadata: the name of the error's class

OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", -1),  # one message is always returned, however large it was allowed to be
    ("grpc.max_send_message_length", -1),  # the server says what is too much, in words
    ("grpc.use_local_subchannel_pool", 1),  # a connection of its own: two transports share nothing
    ("grpc.keepalive_time_ms", 60_000),  # finds a server that vanished while a pull waits
    ("grpc.keepalive_timeout_ms", 20_000),
]


def error_from(error: grpc.RpcError) -> MqError:
    """What a failed call means."""
    call = cast(Any, error)
    status, metadata = call.code().name, call.trailing_metadata() or ()
    reason = next((str(value) for key, value in metadata if key == REASON), "")
    if not reason and status == "CANCELLED":
        return Unavailable("the call was given up")
    if not reason and status == "RESOURCE_EXHAUSTED" and "larger than max" in (call.details() or ""):
        return MessageTooLarge(str(call.details()))  # gRPC's own limit, before the broker saw the request
    return error_of(status, reason, call.details() or status)


class GrpcTransport:
    """Implements `Transport`."""

    def __init__(self, host: str, port: int, *, connect_timeout: float = CONNECT_SECONDS) -> None:
        """Raises Unavailable where nobody answers."""
        self.address = _target(host, port)
        self._pid = os.getpid()
        self._is_closed = False
        self._room = threading.BoundedSemaphore(WINDOW)
        self._channel = grpc.insecure_channel(self.address, OPTIONS)
        self._calls: dict[str, Any] = {}
        try:
            grpc.channel_ready_future(self._channel).result(connect_timeout)
        except grpc.FutureTimeoutError:
            self.close()
            raise Unavailable(f"can't connect to {self.address} within {connect_timeout} s") from None

    def call(self, method: str, request: bytes, timeout: float | None = None) -> bytes:
        self._check_usable()
        try:
            return cast(bytes, self._method(method)(request, timeout=timeout))
        except grpc.RpcError as error:
            raise error_from(error) from None
        except ValueError:  # the channel was closed meanwhile
            raise Unavailable("the client was closed") from None

    def send(self, method: str, request: bytes, done: Done) -> None:
        self._check_usable()
        self._room.acquire()

        def finish(future: Any) -> None:
            self._room.release()
            try:
                answer: bytes | MqError = future.result()
            except grpc.RpcError as error:
                answer = error_from(error)
            except (grpc.FutureCancelledError, ValueError):
                answer = Unavailable("the client was closed")
            done(answer)

        try:
            future = self._method(method).future(request)
        except ValueError:
            self._room.release()
            raise Unavailable("the client was closed") from None
        future.add_done_callback(finish)

    def stream(self, method: str, request: bytes) -> Iterator[bytes]:
        self._check_usable()
        call = cast(Any, self._channel.unary_stream(f"/{method}"))(request)
        try:
            yield from call
        except grpc.RpcError as error:
            raise error_from(error) from None
        finally:
            call.cancel()

    def close(self) -> None:
        self._is_closed = True
        if self._pid == os.getpid():
            self._channel.close()

    @property
    def is_usable(self) -> bool:
        """gRPC connects again by itself."""
        return not self._is_closed and self._pid == os.getpid()

    def _check_usable(self) -> None:
        if self._pid != os.getpid():
            raise Unavailable("this client was made before a fork: make a new one in the child")
        if self._is_closed:
            raise Unavailable("the client was closed")

    def _method(self, method: str) -> Any:
        call = self._calls.get(method)
        if call is None:
            call = self._calls[method] = self._channel.unary_unary(f"/{method}")
        return call


class AsyncGrpcTransport:
    """Implements `AsyncTransport`. Made by `connect`, and used on the loop that ran it."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._calls: dict[str, Any] = {}
        self._is_closed = False

    @classmethod
    async def connect(cls, host: str, port: int, *, connect_timeout: float = CONNECT_SECONDS) -> AsyncGrpcTransport:
        """Raises Unavailable where nobody answers."""
        address = _target(host, port)
        channel = grpc.aio.insecure_channel(address, OPTIONS)
        try:
            await asyncio.wait_for(channel.channel_ready(), connect_timeout)
        except BaseException as error:
            await channel.close()
            if isinstance(error, TimeoutError):
                raise Unavailable(f"can't connect to {address} within {connect_timeout} s") from None
            raise
        return cls(channel)

    async def call(self, method: str, request: bytes) -> bytes:
        if self._is_closed:
            raise Unavailable("the client was closed")
        call = self._calls.get(method)
        if call is None:
            call = self._calls[method] = self._channel.unary_unary(f"/{method}")
        try:
            return cast(bytes, await call(request))
        except grpc.RpcError as error:
            raise error_from(error) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():  # a channel that is closed ends what is in flight so
                raise Unavailable("the client was closed") from None
            raise

    def submit(self, method: str, request: bytes) -> asyncio.Future[bytes]:
        return asyncio.ensure_future(self.call(method, request))

    def send(self, method: str, request: bytes, done: AsyncDone) -> None:
        def report(answer: asyncio.Future[bytes]) -> None:
            done(asyncio.CancelledError() if answer.cancelled() else answer.exception() or answer.result())

        self.submit(method, request).add_done_callback(report)

    async def stream(self, method: str, request: bytes) -> AsyncIterator[bytes]:
        if self._is_closed:
            raise Unavailable("the client was closed")
        call = cast(Any, self._channel.unary_stream(f"/{method}"))(request)
        try:
            async for item in call:
                yield cast(bytes, item)
        except grpc.RpcError as error:
            raise error_from(error) from None
        finally:
            call.cancel()

    async def close(self) -> None:
        self._is_closed = True
        await self._channel.close()

    @property
    def is_usable(self) -> bool:
        """gRPC connects again by itself."""
        return not self._is_closed


def _target(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
