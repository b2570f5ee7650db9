"""A connection that comes back, for asyncio: the same rules as `mq.client.connection`, on one event loop."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Callable, Sequence

from mq.client.address import Address
from mq.client.backoff import Backoff
from mq.client.connection import ATTEMPT_SECONDS, CONNECT_SECONDS, SILENCE_SECONDS
from mq.client.transport import AsyncDone, AsyncTransport, TimedOut, same
from mq.errors import MqError, ResourceExhausted, Unavailable


async def connect(address: Address, timeout: float) -> AsyncTransport:
    """A transport to an address. Raises Unavailable, InvalidArgument."""
    if address.scheme == "mq":
        from mq.client.wire_async import AsyncWireTransport

        return await AsyncWireTransport.connect(address.host, address.port, connect_timeout=timeout)
    from mq.client.grpc import AsyncGrpcTransport

    return await AsyncGrpcTransport.connect(address.host, address.port, connect_timeout=timeout)


class AsyncConnection:
    """Shared by all tasks of one loop."""

    def __init__(
        self, addresses: Sequence[Address], *, timeout: float, connect_timeout: float = CONNECT_SECONDS
    ) -> None:
        self.timeout = timeout
        self.reconnects = 0
        self._addresses = list(addresses)
        self._connect_timeout = connect_timeout
        self._pid = os.getpid()
        self._closed = asyncio.Event()
        self._transport: AsyncTransport | None = None
        self._connecting: asyncio.Task[AsyncTransport] | None = None  # a try that is under way
        self._silent_since = 0.0  # when the first of some calls began that all timed out; 0: the last one was answered
        self._turn = 0
        self._dropping: set[asyncio.Task[None]] = set()  # somebody has to keep them

    def another(self) -> AsyncConnection:
        """A connection of its own to the same broker."""
        order = self._addresses[self._turn :] + self._addresses[: self._turn]
        return AsyncConnection(order, timeout=self.timeout, connect_timeout=self._connect_timeout)

    @property
    def ready(self) -> AsyncTransport | None:
        """The transport, where there is one that can be used at once."""
        transport = self._transport
        return transport if transport is not None and transport.is_usable else None

    async def call(
        self,
        method: str,
        request: bytes,
        *,
        timeout: float | None = None,
        wait: float = 0.0,
        patient: bool = False,
        before_retry: Callable[[], bytes] | None = None,
    ) -> bytes:
        """One request, one answer, however often it takes. Raises MqError when the time is over.

        `before_retry`: called after an answer that may be lost; what it returns is sent instead.
        """
        self.check_usable()
        loop = asyncio.get_running_loop()
        end = loop.time() + (self.timeout if timeout is None else timeout)
        backoff = Backoff()
        is_unanswered = False
        while True:
            try:
                transport = self.ready or await self._transport_until(end)
                return await self._attempt(
                    transport, method, request, min(ATTEMPT_SECONDS + wait, max(0.001, end - loop.time()))
                )
            except MqError as error:
                error.went_unanswered = is_unanswered
                is_unanswered = is_unanswered or not isinstance(error, ResourceExhausted)
                if error.status == "UNIMPLEMENTED":
                    raise MqError(f"the broker does not know {method}: it is older than this client") from error
                if not error.retryable or (isinstance(error, ResourceExhausted) and not patient):
                    raise
                pause = backoff.seconds()
                if self._closed.is_set() or loop.time() + pause >= end:
                    raise
            if before_retry is not None:
                request = before_retry()  # before the pause, in which others may ask
            if await self.pause(pause):
                raise Unavailable("the client was closed")

    def send(self, method: str, request: bytes, done: AsyncDone) -> bool:
        """One try, without a task, where there is a transport to send on at once; else false. Raises MqError."""
        self.check_usable()
        transport = self.ready
        if transport is None:
            return False
        transport.send(method, request, done)
        return True

    def drop(self) -> None:
        """It did not answer in time: give the transport up, and fail what is in flight on it."""
        if self._transport is not None:
            task = asyncio.get_running_loop().create_task(self._discard(self._transport))
            self._dropping.add(task)
            task.add_done_callback(self._dropping.discard)

    async def transport(self) -> AsyncTransport:
        """A transport that can be used. Raises Unavailable after one try of each address, its own or another's.

        A task of its own tries, for as long as it takes: whoever has little time, or is cancelled, leaves it to those
        who come after him, and does not spoil it for those who wait with him.
        """
        self.check_usable()
        if self.ready is not None:
            return self.ready
        if self._connecting is None:
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
            self._connecting.add_done_callback(self._end_connecting)
        connecting = self._connecting
        try:
            return await asyncio.shield(connecting)
        except MqError as error:
            raise same(error) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if connecting.cancelled() and task is not None and not task.cancelling():
                raise Unavailable("the client was closed") from None
            raise

    async def _connect(self) -> AsyncTransport:
        if self._transport is not None:
            await self._discard(self._transport)
        transport = await self._reach()
        if self._closed.is_set():
            await transport.close()
            raise Unavailable("the client was closed")
        self._transport = transport
        return transport

    def _end_connecting(self, connecting: asyncio.Task[AsyncTransport]) -> None:
        self._connecting = None
        if not connecting.cancelled():
            connecting.exception()  # nobody may be left who waits for it

    async def _transport_until(self, end: float) -> AsyncTransport:
        try:
            async with asyncio.timeout_at(end):
                return await self.transport()
        except TimeoutError:
            raise TimedOut("no broker was reached in time") from None

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

    async def pause(self, seconds: float) -> bool:
        """Wait, unless the connection is closed first; true where it was."""
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Idempotent."""
        self._closed.set()
        if self._pid != os.getpid():
            return
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._transport is not None:
            await self._transport.close()

    async def _attempt(self, transport: AsyncTransport, method: str, request: bytes, seconds: float) -> bytes:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(seconds):
                answer = await transport.call(method, request)
        except TimeoutError:
            self._silent_since = self._silent_since or began
            if loop.time() - self._silent_since >= SILENCE_SECONDS:  # others use it as well, and may have more patience
                await self._discard(transport)
            raise TimedOut("the broker did not answer in time") from None
        self._silent_since = 0.0
        return answer

    async def _discard(self, transport: AsyncTransport) -> None:
        if self._transport is transport:
            self._transport = None
            self._silent_since = 0.0
            self.reconnects += 1
        await transport.close()

    async def _reach(self) -> AsyncTransport:
        failures: list[str] = []
        for _ in self._addresses:
            address = self._addresses[self._turn]
            try:
                return await self._reach_one(address)
            except Unavailable as error:
                failures.append(str(error))
                self._turn = (self._turn + 1) % len(self._addresses)
        raise Unavailable("; ".join(failures))

    async def _reach_one(self, address: Address) -> AsyncTransport:
        try:
            return await connect(address, self._connect_timeout)
        except Unavailable as error:
            if address.fallback is None:
                raise
            return await self._fall_back(address, address.fallback, error)

    async def _fall_back(self, address: Address, fallback: Address, error: Unavailable) -> AsyncTransport:
        try:
            transport = await connect(fallback, self._connect_timeout)
        except Unavailable:
            raise error from None
        try:
            # gRPC waits for a broker that is about to start, which then answers here, too.
            better = await connect(address, self._connect_timeout)
        except MqError:
            better = None
        except BaseException:
            await transport.close()
            raise
        if better is not None:
            await transport.close()
            return better
        self._addresses[self._turn] = fallback
        try:
            warnings.warn(f"{address} does not answer: using {fallback}, which is slower", RuntimeWarning, stacklevel=2)
        except BaseException:  # where warnings are errors
            await transport.close()
            raise
        return transport
