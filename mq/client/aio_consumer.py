"""A consumer for asyncio: `async for`, or fetch by hand. A task pulls the next batch while one is worked on."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Sequence
from types import TracebackType
from typing import TypeVar

from mq.client.aio_connection import AsyncConnection
from mq.client.aio_keeper import AsyncKeeper
from mq.client.aio_message import AsyncBatch, AsyncMessage
from mq.client.consumer import PREFETCH, Membership
from mq.client.message import Delivery, Part
from mq.client.position import Start, start_of
from mq.client.pulling import LONGEST_WAIT_SECONDS, PULL, Pulled
from mq.errors import MqError, Unavailable
from mq.pb import mq_pb2 as pb

T = TypeVar("T")
Messages = AsyncMessage | Sequence[AsyncMessage] | AsyncBatch


class AsyncConsumer:
    """Made by `AsyncClient.consumer`.

    >>> async def main():
    ...     async with mq.AsyncClient(address) as client:
    ...         async with await client.consumer("orders", "billing") as consumer:
    ...             async for message in consumer:
    ...                 async with message.process():
    ...                     print(message.text())
    ...                 if message.offset == 1:
    ...                     consumer.stop()
    >>> asyncio.run(main())
    one
    two
    """

    def __init__(
        self, shared: AsyncConnection, own: AsyncConnection, membership: Membership, extend_seconds: float
    ) -> None:
        pull = membership.pull
        self.channel, self.group, self.member = pull.channel, pull.group, pull.member
        self._shared = shared  # acks, and all that is not a pull
        self._own = own
        self._as = membership
        self._keeper = AsyncKeeper(shared, self.channel, self.group, self.member, extend_seconds)
        self._arrived: asyncio.Queue[Pulled | MqError | None] = asyncio.Queue(PREFETCH)
        self._waiting: deque[Delivery] = deque()
        self._fetcher: asyncio.Task[None] | None = None
        self._assigned: frozenset[int] = frozenset()
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._stopping = asyncio.Event()
        self._is_closed = False

    # ------------------------------------------------------------ taking messages

    async def __aiter__(self) -> AsyncIterator[AsyncMessage]:
        """Messages as they come, until `stop` or `close`."""
        self._check_usable()
        while (delivery := await self._take()) is not None:
            for index in range(delivery.count):
                if self._stopping.is_set() or delivery.is_lost:
                    break
                yield AsyncMessage(delivery, index)

    async def batches(self) -> AsyncIterator[AsyncBatch]:
        """The same in batches of up to `batch_size`, with one ack each."""
        self._check_usable()
        while (delivery := await self._take()) is not None:
            parts, room = [delivery.whole()], self._as.batch_size - delivery.count
            while self._waiting and self._waiting[0].count <= room:
                following = self._waiting.popleft()
                if not following.is_lost:
                    room -= following.count
                    parts.append(following.whole())
            yield AsyncBatch(parts)

    async def fetch(self, max_messages: int | None = None, timeout: float = 0.0) -> AsyncBatch:
        """Up to so many messages: what is there, or what comes first within the timeout. Perhaps none.

        After an iteration what was pulled ahead comes first, in the batches that it came in.
        """
        self._check_usable()
        if not self._resumed.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._unless_stopped(self._resumed.wait())
            if not self._resumed.is_set():
                return AsyncBatch([])
        if self._waiting or self._fetcher is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    delivery = await self._take()
                    if delivery is not None:
                        return AsyncBatch([delivery.whole()])
            return AsyncBatch([])
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        while True:
            wait = min(LONGEST_WAIT_SECONDS, max(0.0, end - loop.time()))
            self._enter(await self._pull(max_messages or self._as.batch_size, wait, timeout + self._own.timeout))
            parts = [delivery.whole() for delivery in self._waiting]
            self._waiting.clear()
            if parts or loop.time() >= end or self._stopping.is_set():
                return AsyncBatch(parts)

    async def ack(self, messages: Messages) -> None:
        """These are done. Sent with the next few; `flush` sends them now."""
        self._keeper.ack(parts_of(messages))

    async def nack(self, messages: Messages, delay_ms: int | None = None) -> None:
        """Deliver these again."""
        self._keeper.nack(parts_of(messages), delay_ms)

    async def reject(self, messages: Messages, reason: str = "") -> None:
        """These go to the dead-letter channel."""
        self._keeper.reject(parts_of(messages), reason)

    async def flush(self) -> None:
        """Wait until all acks so far are durable."""
        await self._keeper.flush()

    # ------------------------------------------------------------ steering

    def pause(self) -> None:
        """Hand out nothing more until `resume`; what was handed out stays leased."""
        self._resumed.clear()

    def resume(self) -> None:
        """Go on after a `pause`."""
        self._resumed.set()

    def stop(self) -> None:
        """End the iteration after the message that is worked on."""
        self._stopping.set()

    async def seek(self, start: Start, *, partition: int | None = None) -> None:
        """Move the whole group; what this consumer holds is given back."""
        await self._stop_fetching()
        self._waiting.clear()
        await self._keeper.flush()
        await self._leave()
        request = pb.SeekRequest(channel=self.channel, group=self.group, start=start_of(start), force=True)
        if partition is not None:
            request.partition = partition
        await self._shared.call("mq.MQService/Seek", request.SerializeToString())

    @property
    def assigned(self) -> frozenset[int]:
        """Ordered groups: the partitions that this consumer owns."""
        return self._assigned

    @property
    def lost(self) -> int:
        """Messages whose lease was gone when they were acked: they are delivered again."""
        return self._keeper.lost

    async def close(self) -> None:
        """Send the acks, give back what is not acked, leave the group. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self.stop()
        await self._stop_fetching()
        await self._own.close()
        try:
            await self._keeper.close()
        finally:
            with contextlib.suppress(MqError):
                await self._leave()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    async def __aenter__(self) -> AsyncConsumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ------------------------------------------------------------ inside

    async def _take(self) -> Delivery | None:
        """The next delivery; None: stopped or closed."""
        if self._stopping.is_set():
            return None
        if self._fetcher is None:
            self._fetcher = asyncio.create_task(self._fetch_all(self._arrived))
        while not self._stopping.is_set():
            if not await self._unless_stopped(self._resumed.wait()):
                return None
            while self._waiting:
                delivery = self._waiting.popleft()
                if not delivery.is_lost:
                    return delivery
            arrived = await self._unless_stopped(self._arrived.get())
            if isinstance(arrived, MqError):
                self._fetcher = None
                raise arrived
            if isinstance(arrived, Pulled):
                self._enter(arrived)
        return None

    async def _unless_stopped(self, coroutine: Awaitable[T]) -> T | None:
        """What a wait gives; None where `stop` came first."""
        waiting = asyncio.ensure_future(coroutine)
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((waiting, stopping), return_when=asyncio.FIRST_COMPLETED)
            return waiting.result() if waiting.done() else None
        finally:
            stopping.cancel()
            waiting.cancel()

    def _enter(self, pulled: Pulled) -> None:
        if pulled.assigned != self._assigned:
            before, self._assigned = self._assigned, pulled.assigned
            if self._as.on_revoked and before - pulled.assigned:
                self._as.on_revoked(before - pulled.assigned)
            if self._as.on_assigned and pulled.assigned - before:
                self._as.on_assigned(pulled.assigned - before)
        self._waiting.extend(pulled.deliveries)

    async def _fetch_all(self, arrived: asyncio.Queue[Pulled | MqError | None]) -> None:
        while True:
            try:
                pulled = await self._pull(self._as.batch_size, LONGEST_WAIT_SECONDS, float("inf"))
            except MqError as error:
                await arrived.put(error)
                return
            if pulled.deliveries or pulled.assigned != self._assigned:
                await arrived.put(pulled)
            if self._as.interval:
                await asyncio.sleep(self._as.interval)

    async def _pull(self, count: int, wait: float, timeout: float) -> Pulled:
        data = await self._own.call(PULL, self._as.pull.request(count, wait), wait=wait, timeout=timeout)
        pulled = self._as.pull.answer(data, self._as.codec)
        self._keeper.hold(pulled.deliveries, self._own.start_id)
        return pulled

    async def _stop_fetching(self) -> None:
        fetcher, self._fetcher = self._fetcher, None
        if fetcher is not None:
            fetcher.cancel()
            await asyncio.gather(fetcher, return_exceptions=True)
        self._arrived = asyncio.Queue(PREFETCH)

    async def _leave(self) -> None:
        request = pb.LeaveRequest(channel=self.channel, group=self.group, member=self.member)
        await self._shared.call("mq.MQService/Leave", request.SerializeToString())

    def _check_usable(self) -> None:
        if self._is_closed:
            raise Unavailable("the consumer is closed")


def parts_of(messages: Messages) -> list[Part]:
    if isinstance(messages, AsyncMessage):
        return [messages.part()]
    if isinstance(messages, AsyncBatch):
        return messages.parts()
    return [message.part() for message in messages]
