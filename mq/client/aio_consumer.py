"""A consumer for asyncio: `async for`, or fetch by hand. A task pulls the next batch while one is worked on."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any

from mq.client.ahead import PREFETCH
from mq.client.aio_connection import AsyncConnection
from mq.client.aio_keeper import AsyncKeeper
from mq.client.aio_message import AsyncBatch, AsyncMessage
from mq.client.message import Delivery, Part
from mq.client.position import Start, start_of
from mq.client.pulling import LEAVE, LONGEST_WAIT_SECONDS, PULL, Membership, Pulled
from mq.client.waiting import Waiting
from mq.errors import LeaseLost, MqError, Unavailable
from mq.pb import mq_pb2 as pb

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
        self._arrived: deque[Pulled | Exception] = deque()  # from the fetcher; an error is its end
        self._room = asyncio.Semaphore(PREFETCH)  # for answers that wait there
        self._waiting = Waiting()
        self._news = asyncio.Event()  # something came, or was said: whoever waits looks again
        self._fetcher: asyncio.Task[None] | None = None
        self._pulls: list[asyncio.Task[MqError | None]] = []  # of `fetch`, under way
        self._assigned: frozenset[int] = frozenset()
        self._seeks = 0  # under way
        self._is_paused = self._is_stopping = self._is_closed = self._has_left = False

    # ------------------------------------------------------------ taking messages

    async def __aiter__(self) -> AsyncIterator[AsyncMessage]:
        """Messages as they come, until `stop` or `close`."""
        self._check_usable()
        while (delivery := await self._next()) is not None:
            while (index := delivery.given) < delivery.count:
                if self._is_paused or self._seeks or self._is_stopping or delivery.is_lost:
                    break
                delivery.given = index + 1
                yield AsyncMessage(delivery, index)

    async def batches(self) -> AsyncIterator[AsyncBatch]:
        """The same in batches of up to `batch_size`, with one ack each."""
        self._check_usable()
        while await self._next() is not None:
            yield AsyncBatch(self._waiting.take(self._as.batch_size))

    async def fetch(self, max_messages: int | None = None, timeout: float = 0.0) -> AsyncBatch:
        """Up to so many messages: what is there, or what comes first within the timeout. Perhaps none."""
        self._check_usable()
        count = max_messages or self._as.batch_size
        now = asyncio.get_running_loop().time
        end = now() + timeout
        parts = self._at_hand(count)
        while not parts and not self._is_stopping:
            if self._is_resting or self._fetcher is not None:
                await self._wait(max(0.0, end - now()))
            else:
                await self._pull_by_hand(count, end)
            parts = self._at_hand(count)
            if now() >= end:
                break
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
        self._is_paused = True

    def resume(self) -> None:
        """Go on after a `pause`."""
        self._is_paused = False
        self._news.set()

    def stop(self) -> None:
        """End the iteration after the message that is worked on."""
        self._is_stopping = True
        self._news.set()

    async def seek(self, start: Start, *, partition: int | None = None) -> None:
        """Move the whole group; what this consumer holds is given back."""
        request = pb.SeekRequest(channel=self.channel, group=self.group, start=start_of(start), force=True)
        if partition is not None:
            request.partition = partition
        self._seeks += 1  # nobody pulls meanwhile: what is given back here would come from where the group was
        try:
            await self._stop_fetching()
            await self._keeper.flush()
            await self._leave()
            await self._shared.call("mq.MQService/Seek", request.SerializeToString())
        except BaseException:
            self._as.pull.lost(self._as.pull.turn)  # what is forgotten here is still leased: where order counts,
            raise  # the next pull gives it back first
        finally:
            self._seeks -= 1
            self._news.set()

    @property
    def assigned(self) -> frozenset[int]:
        """Ordered groups: the partitions that this consumer owns."""
        return self._assigned

    @property
    def held(self) -> int:
        """Messages that are leased to this consumer: handed out and not settled, or pulled ahead."""
        return self._keeper.held

    @property
    def lost(self) -> int:
        """Messages whose lease was gone when they were acked: they are delivered again."""
        return self._keeper.lost

    async def close(self) -> None:
        """Send the acks, give back what is not acked, leave the group. Idempotent.

        One that is cancelled does all of it first: nobody else would end what keeps the leases.
        """
        if self._has_left:
            return
        self._is_closed = True
        self.stop()
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self._leave_at_last)
            stack.push_async_callback(self._keeper.close)
            stack.push_async_callback(self._own.close)
            await self._stop_fetching()

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

    async def _next(self) -> Delivery | None:
        """The delivery to hand out of; None: stopped or closed."""
        while not self._is_stopping:
            if not self._is_resting:
                self._receive(1)
                if (delivery := self._waiting.first()) is not None:
                    return delivery
                if self._fetcher is None:  # not yet, or not any more: a seek or an error has ended it
                    self._fetcher = asyncio.create_task(self._fetch_all(self._room))
            await self._wait(None)
        return None

    @property
    def _is_resting(self) -> bool:
        """Nothing is handed out for now: there is a pause, or a seek is under way."""
        return self._is_paused or self._seeks > 0

    def _at_hand(self, count: int) -> list[Part]:
        """Up to so many messages, without a wait."""
        if self._is_resting or self._is_stopping:
            return []
        self._receive(count)
        return self._waiting.take(count)

    def _receive(self, count: int) -> None:
        """Take in what the fetcher brought, until so many messages wait. Raises what ended it, when none do."""
        while self._arrived and len(self._waiting) < count:
            arrived = self._arrived[0]
            if isinstance(arrived, Exception):
                if not len(self._waiting):
                    self._arrived.popleft()
                    self._fetcher = None
                    self._news.set()  # who waits beside this one needs another fetcher
                    raise arrived
                return
            self._arrived.popleft()
            self._room.release()
            self._enter(arrived)

    async def _wait(self, seconds: float | None) -> None:
        """Until there is news. Nothing is taken here, so a wait that is cancelled loses nothing."""
        self._news.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()

    def _enter(self, pulled: Pulled) -> None:
        try:
            if pulled.assigned != self._assigned:
                before, self._assigned = self._assigned, pulled.assigned
                self._as.tell(before, pulled.assigned)
        finally:
            self._waiting.add(pulled.deliveries)  # also where a callback raises: they are leased, and kept

    async def _fetch_all(self, room: asyncio.Semaphore) -> None:
        while True:
            await room.acquire()
            try:
                pulled = await self._pull(self._as.batch_size, LONGEST_WAIT_SECONDS, float("inf"))
            except asyncio.CancelledError:
                room.release()
                raise
            except Exception as error:  # whatever it is: who iterates would wait for ever
                room.release()
                self._arrived.append(error)
                self._news.set()
                return
            if pulled.deliveries or pulled.assigned != self._assigned:
                self._arrived.append(pulled)
                self._news.set()
            else:
                room.release()
            if self._as.interval:
                await asyncio.sleep(self._as.interval)

    async def _pull_by_hand(self, count: int, end: float) -> None:
        """Pull for `fetch`. Where that is cancelled the pull goes on, and what it brings waits for the next fetch. That
        one waits for it as well, and asks itself only when its time is over: for what is there now."""
        now = asyncio.get_running_loop().time
        if self._pulls:
            left = max(0.0, end - now())
            await asyncio.wait(self._pulls, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if len(self._waiting) or now() < end or self._is_resting or self._is_stopping:
                return
        left = max(0.0, end - now())
        pull = asyncio.create_task(self._pull_in(count, min(LONGEST_WAIT_SECONDS, left), left + self._own.timeout))
        self._pulls.append(pull)
        pull.add_done_callback(self._pulls.remove)
        await asyncio.wait([pull])
        if not pull.cancelled() and (error := pull.result()) is not None:
            raise error

    async def _pull_in(self, count: int, wait: float, timeout: float) -> MqError | None:
        try:
            self._enter(await self._pull(count, wait, timeout))
        except MqError as error:
            return error  # to whoever waits; the next fetch meets it by itself
        finally:
            self._news.set()
        return None

    async def _pull(self, count: int, wait: float, timeout: float) -> Pulled:
        pull = self._as.pull
        turn = 0  # that it was sent in; another pull may have had one since

        def request() -> bytes:
            nonlocal turn
            if pull.begins_afresh:
                self._keeper.lose_all()
            made, turn = pull.request(count, wait), pull.turn
            return made

        def again() -> bytes:
            pull.lost(turn)
            return request()

        try:
            data = await self._own.call(PULL, request(), wait=wait, timeout=timeout, before_retry=again)
            pulled = pull.answer(data, turn, self._as.codec)
        except BaseException as error:
            pull.failed(turn, error)
            if isinstance(error, LeaseLost) and turn < pull.turn:
                return Pulled.nothing(self._assigned)  # it came after that other
            raise
        if pull.is_void(turn):
            return Pulled.nothing(self._assigned)
        self._keeper.hold(pulled.deliveries, self._own.start_id)
        return pulled

    async def _stop_fetching(self) -> None:
        """End the pulls that wait, and forget what was pulled and not handed out: nobody extends its leases now."""
        fetcher, self._fetcher = self._fetcher, None
        ended: list[asyncio.Task[Any]] = [*self._pulls, *([fetcher] if fetcher else [])]
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)
        forgotten = self._waiting.deliveries()
        for arrived in self._arrived:
            forgotten += arrived.deliveries if isinstance(arrived, Pulled) else []
        for each in forgotten:
            self._keeper.take((each, each.given, each.count))
        self._arrived.clear()
        self._room = asyncio.Semaphore(PREFETCH)
        self._waiting.clear()

    async def _leave(self) -> None:
        await self._shared.call(LEAVE, self._as.pull.leave())

    async def _leave_at_last(self) -> None:
        with contextlib.suppress(MqError):
            await self._leave()
        self._has_left = True

    def _check_usable(self) -> None:
        if self._is_closed:
            raise Unavailable("the consumer is closed")


def parts_of(messages: Messages) -> list[Part]:
    if isinstance(messages, AsyncMessage):
        return [messages.part()]
    if isinstance(messages, AsyncBatch):
        return messages.parts()
    return [message.part() for message in messages]
