"""`mq.AsyncClient`: the same names as `mq.Client`, with await and async for, on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import warnings
from collections.abc import Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar
from weakref import WeakSet

from mq.client import address as addresses
from mq.client.aio_admin import AsyncAdmin
from mq.client.aio_connection import AsyncConnection
from mq.client.aio_consumer import AsyncConsumer
from mq.client.aio_producer import AsyncProducer
from mq.client.aio_publisher import AsyncLane
from mq.client.aio_reader import AsyncReader
from mq.client.aio_transaction import AsyncTransaction
from mq.client.client import MOST_LANES, TIMEOUT_SECONDS, extend_seconds, first_turn, member_name, settings_of
from mq.client.codec import HeaderValue
from mq.client.connection import CONNECT_SECONDS
from mq.client.message import Published
from mq.client.options import PLAIN, PublishOptions
from mq.client.position import Start, start_of
from mq.client.pulling import Cursor, MemberPull, Membership, OnPartitions
from mq.client.transaction import Numberings
from mq.client.transport import TimedOut
from mq.client.value import Codec, message_of

T = TypeVar("T", AsyncProducer, AsyncConsumer)


class AsyncClient(AsyncAdmin):
    """A connection to a broker.

    >>> async def main():
    ...     async with mq.AsyncClient(address) as client:
    ...         await client.create_channel("orders", exist_ok=True)
    ...         print((await client.publish("orders", b"hello")).offset)
    >>> asyncio.run(main())
    3

    Make it on the loop that uses it. Arguments are those of `mq.Client`; entering the block connects, and raises
    Unavailable where no broker answers.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        timeout: float = TIMEOUT_SECONDS,
        connect_timeout: float = CONNECT_SECONDS,
        codec: Codec | None = None,
    ) -> None:
        text = addresses.from_environment(os.environ) if address is None else address
        self._connection = AsyncConnection(addresses.parse(text), timeout=timeout, connect_timeout=connect_timeout)
        self._codec = codec
        self._lanes: dict[tuple[str, PublishOptions], AsyncLane] = {}
        self._open: list[AsyncProducer | AsyncConsumer] = []
        self._readers: WeakSet[AsyncReader] = WeakSet()  # they need no close: they hold nothing but while they read
        self._numberings = Numberings()
        self._is_closed = True  # until it was open

    async def connect(self) -> AsyncClient:
        """Connect now, not with the first call. Raises Unavailable."""
        await self._connection.transport()
        self._is_closed = False
        return self

    # ------------------------------------------------------------ publishing

    async def publish(
        self,
        channel: str,
        value: Any,
        key: str | bytes | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        *,
        partition: int | None = None,
        durability: str | None = None,
        delay_ms: int = 0,
        deliver_at: datetime | None = None,
        ttl_ms: int = 0,
        codec: Codec | None = None,
        timeout: float | None = None,
    ) -> Published:
        """Publish one message; returns when it is durable. Tasks that publish at the same time share requests."""
        message = message_of(value, key, headers, codec or self._codec)
        options = PLAIN
        if partition is not None or durability or delay_ms or deliver_at or ttl_ms:
            options = PublishOptions(partition, durability, delay_ms, deliver_at, ttl_ms)
        lane = self._lane(channel, options)
        if timeout is None:
            return await lane.publish(message)
        try:
            async with asyncio.timeout(timeout):
                return await lane.publish(message)
        except TimeoutError:
            raise TimedOut(f"no answer within {timeout} s: the message may be stored or not") from None

    async def producer(
        self,
        channel: str,
        *,
        linger_ms: float = 5,
        batch_size: int = 500,
        batch_bytes: int = 256 << 10,
        buffer_bytes: int = 32 << 20,
        durability: str | None = None,
        ttl_ms: int = 0,
        codec: Codec | None = None,
    ) -> AsyncProducer:
        """A producer: batches, back-pressure, each message stored once and in order. Leaving its block flushes.

        async with await client.producer("orders") as producer:
            await producer.send(b"hello")
        """
        partitions = len((await self.describe_channel(channel)).partitions)
        connection = self._connection.another()
        try:
            await connection.transport()
            made = AsyncProducer(
                connection,
                channel,
                partitions,
                linger_ms=linger_ms,
                batch_size=batch_size,
                batch_bytes=batch_bytes,
                buffer_bytes=buffer_bytes,
                request_bytes=connection.request_bytes,
                options=PublishOptions(durability=durability, ttl_ms=ttl_ms),
                made_by=codec or self._codec,
            )
        except BaseException:
            await connection.close()
            raise
        return self._keep(made)

    def transaction(self, *, codec: Codec | None = None) -> AsyncTransaction:
        """Publishes to several channels and acks, all or nothing."""
        return AsyncTransaction(self._call, codec or self._codec, self._numberings)

    # ------------------------------------------------------------ consuming

    async def consumer(
        self,
        channel: str,
        group: str,
        *,
        start: Start = "earliest",
        batch_size: int = 500,
        interval: float = 0.0,
        ordered: bool = False,
        member: str | None = None,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        codec: Codec | None = None,
    ) -> AsyncConsumer:
        """A member of a group, which is made where there is none.

        `member`: its name. Where the group is ordered, who comes later under a name that is in use takes it over.

        async with await client.consumer("orders", group="billing") as consumer:
            async for message in consumer:
                async with message.process():
                    await charge(message.json())
        """
        settings = settings_of(await self.join_group(channel, group, start, ordered), ordered)
        pull = MemberPull(channel, group, member or member_name(), start_of(start), first_turn(settings))
        membership = Membership(pull, batch_size, interval, codec or self._codec, on_assigned, on_revoked)
        made = AsyncConsumer(self._connection, self._connection.another(), membership, extend_seconds(settings))
        return self._keep(made)

    def read(
        self,
        channel: str,
        start: Start = "earliest",
        *,
        follow: bool = True,
        partition: int | None = None,
        batch_size: int = 5_000,
        max_bytes: int = 1 << 20,
        interval: float = 0.0,
        codec: Codec | None = None,
    ) -> AsyncReader:
        """Read a channel without a group. `follow`: wait for more at the end, instead of ending there."""
        made = AsyncReader(
            self._connection.another(),
            Cursor(channel, start, partition, codec or self._codec),
            follow=follow,
            batch_size=batch_size,
            max_bytes=max_bytes,
            interval=interval,
        )
        self._readers.add(made)
        return made

    # ------------------------------------------------------------ the end

    async def close(self) -> None:
        """Close what was made from this client, and the connection. Idempotent."""
        self._is_closed = True
        opened = [*self._open, *self._readers]
        self._open.clear()
        try:
            async with contextlib.AsyncExitStack() as stack:
                for each in opened:
                    stack.push_async_callback(each.close)
        finally:
            await self._connection.close()

    def _keep(self, made: T) -> T:
        self._open = [each for each in self._open if not each.is_closed]
        self._open.append(made)
        return made

    async def __aenter__(self) -> AsyncClient:
        return await self.connect()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True):
            warnings.warn("an mq.AsyncClient was not closed: use `async with`", ResourceWarning, stacklevel=2)

    # ------------------------------------------------------------ inside

    async def _call(self, method: str, request: bytes, wait: float = 0.0) -> bytes:
        return await self._connection.call(method, request, wait=wait)

    def _lane(self, channel: str, options: PublishOptions) -> AsyncLane:
        lane = self._lanes.get((channel, options))
        if lane is None:
            if len(self._lanes) >= MOST_LANES:
                self._lanes.clear()
            lane = self._lanes[channel, options] = AsyncLane(self._connection, channel, options)
        return lane
