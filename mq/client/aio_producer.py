"""A producer for asyncio: the same batches, numbers and retries as `mq.client.producer`, without threads."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterable, Generator, Iterable, Mapping
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any

from mq.client import codec
from mq.client.aio_connection import AsyncConnection
from mq.client.codec import HeaderValue
from mq.client.connection import ATTEMPT_SECONDS
from mq.client.message import Published
from mq.client.options import PublishOptions
from mq.client.outbox import MOST_MESSAGES, OutBatch, Outbox, Sent, tell
from mq.client.producer import IN_FLIGHT, MANY, is_left, mq_error
from mq.client.publisher import PUBLISH_BATCH
from mq.client.resend import resend
from mq.client.sequence import Sequence
from mq.client.transport import TimedOut, same
from mq.client.value import Codec, batches_of, key_of, message_of
from mq.errors import InvalidArgument, MqError, Unavailable


class AsyncSent(Sent):
    """A message on its way: await it to know where it was stored."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, Published]:
        if not self.done():
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.add_done_callback(lambda _: None if future.done() else future.set_result(None))
            yield from future.__await__()
        return self.result(0)


class AsyncProducer:
    """Made by `AsyncClient.producer`.

    >>> async def main():
    ...     async with mq.AsyncClient(address) as client:
    ...         async with await client.producer("orders") as producer:
    ...             sent = await producer.send(b"four")
    ...         print((await sent).offset)
    >>> asyncio.run(main())
    3
    """

    def __init__(
        self,
        connection: AsyncConnection,
        channel: str,
        partitions: int,
        *,
        linger_ms: float,
        batch_size: int,
        batch_bytes: int,
        buffer_bytes: int,
        request_bytes: int,
        options: PublishOptions,
        made_by: Codec | None,
    ) -> None:
        if batch_size < 1 or linger_ms < 0:
            raise InvalidArgument("batch_size is at least 1, linger_ms is not negative")
        self.channel = channel
        self._connection = connection
        self._linger = linger_ms / 1_000
        self._many = min(max(batch_size, MANY), MOST_MESSAGES)
        self._buffer_bytes = buffer_bytes
        self._options = options
        self._codec = made_by
        self._loop = asyncio.get_running_loop()
        self._sequence = Sequence()
        self._sequence.head(channel, options, 0)  # raises here what no request can hold
        self._outbox = Outbox(channel, partitions, batch_size, batch_bytes, request_bytes)
        self._many_bytes = min(2 * batch_bytes, self._outbox.most_bytes)
        self._ready: deque[OutBatch] = deque()
        self._in_flight: dict[int, OutBatch] = {}
        self._failed: list[tuple[OutBatch, MqError]] = []
        self._unfinished: dict[OutBatch, None] = {}  # what holds messages and has no outcome yet, in order
        self._buffered = 0
        self._changed = asyncio.Event()  # never stays set: it wakes those who wait, and no task is needed for it
        self._timer: asyncio.TimerHandle | None = None
        self._watch: asyncio.TimerHandle | None = None  # while something is in flight
        self._recovery: asyncio.Task[None] | None = None
        self._error: MqError | None = None
        self._is_closed = False

    async def send(
        self, value: Any, key: str | bytes | None = None, headers: Mapping[str, HeaderValue] | None = None
    ) -> AsyncSent:
        """Put a message on its way; waits only where the buffer is full. Await what it returns to know the outcome."""
        message = message_of(value, key, headers, self._codec)
        partition = None if key is None else self._outbox.partition_of(key_of(key))
        if self._buffered > self._buffer_bytes or self._is_closed:
            await self._room()
        batch, index = self._add(partition, message, 1)
        if self._outbox.close_if(batch):
            self._ready.append(batch)
            self._pump()
        return AsyncSent(batch, index)

    async def send_many(self, values: Iterable[Any] | AsyncIterable[Any], key: str | bytes | None = None) -> int:
        """Put many on their way, faster than one by one; returns how many. `flush` tells whether they were stored."""
        total = 0
        if isinstance(values, AsyncIterable):
            async for value in values:
                await self.send(value, key)
                total += 1
            return total
        partition = None if key is None else self._outbox.partition_of(key_of(key))
        source = iter(values)
        while chunk := list(islice(source, self._many)):
            for count, messages in batches_of(chunk, key, self._codec, self._many_bytes):
                await self._room()
                batch, _ = self._add(partition, messages, count)
                self._outbox.close_if(batch, is_due=True)
                self._ready.append(batch)
                self._pump()
            total += len(chunk)
            await asyncio.sleep(0)  # the loop's turn: answers come in, others run
        return total

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far is durable. Raises the first error since the last flush, or TimedOut."""
        await self._drain(timeout, list(self._unfinished))

    async def close(self, timeout: float | None = None) -> None:
        """Flush and stop. Idempotent."""
        if self._is_closed:
            return
        try:
            await self._drain(timeout, None)
        finally:
            self._is_closed = True
            for timer in (self._timer, self._watch):
                if timer is not None:
                    timer.cancel()
            recovery = self._recovery
            if recovery is not None:
                recovery.cancel()
            self._give_up(Unavailable("the producer was closed: the message may be stored or not"))
            await self._connection.close()
            if recovery is not None:
                await asyncio.gather(recovery, return_exceptions=True)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ------------------------------------------------------------ into batches

    async def _room(self) -> None:
        """Wait until the buffer has room."""
        while self._buffered > self._buffer_bytes and not self._is_closed:
            await self._changed.wait()
        if self._is_closed:
            raise Unavailable("the producer is closed")

    def _add(self, partition: int | None, messages: bytes, count: int) -> tuple[OutBatch, int]:
        batch = self._outbox.open_batch(partition, 0.0)
        if not self._outbox.is_for(batch, len(messages), count):
            self._outbox.close_if(batch, is_due=True)
            self._ready.append(batch)
            self._pump()
            batch = self._outbox.open_batch(partition, 0.0)
        if not batch.count:
            self._unfinished[batch] = None
            batch.due = self._loop.time() + self._linger
            if self._timer is None:
                self._timer = self._loop.call_at(batch.due, self._on_time)
        index = batch.add(messages, count)
        self._buffered += len(messages)
        return batch, index

    # ------------------------------------------------------------ out

    def _on_time(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._ready.extend(self._outbox.take_due(self._loop.time()))
        due = self._outbox.next_due()
        if due is not None:
            self._timer = self._loop.call_at(due, self._on_time)
        self._pump()

    def _pump(self) -> None:
        while self._ready and len(self._in_flight) < IN_FLIGHT and not self._failed:
            batch = self._ready.popleft()
            batch.sequence = self._sequence.next
            self._sequence.next += 1
            self._in_flight[batch.sequence] = batch
            transport = self._connection.ready
            if transport is None:
                self._answered(batch, Unavailable("not connected"))
                return
            try:
                answer = transport.submit(PUBLISH_BATCH, self._request(batch))
            except Exception as error:
                self._answered(batch, mq_error(error))
                return
            answer.add_done_callback(partial(self._done, batch))
            if self._watch is None:
                self._watch = self._loop.call_later(ATTEMPT_SECONDS, self._look, batch)

    def _look(self, oldest: OutBatch) -> None:
        """A batch that is the oldest in flight at two looks had no answer in between: the connection is given up."""
        self._watch = None
        now_oldest = next(iter(self._in_flight.values()), None)
        if now_oldest is oldest:
            self._connection.drop()  # which fails what is in flight
        if now_oldest is not None and not self._is_closed:
            self._watch = self._loop.call_later(ATTEMPT_SECONDS, self._look, now_oldest)

    def _request(self, batch: OutBatch) -> bytes:
        options = self._options if batch.partition is None else self._options._replace(partition=batch.partition)
        head = self._sequence.head(self.channel, options, batch.sequence)
        return codec.publish_request(head, batch.pieces)

    def _done(self, batch: OutBatch, answer: asyncio.Future[bytes]) -> None:
        if answer.cancelled():
            self._answered(batch, Unavailable("the request was cancelled"))
            return
        error = answer.exception()
        if error is None:
            self._answered(batch, answer.result())
        else:
            self._answered(batch, mq_error(error))

    def _answered(self, batch: OutBatch, answer: bytes | MqError) -> None:
        del self._in_flight[batch.sequence]
        if batch.is_done:
            return  # it was given up before
        if isinstance(answer, MqError):
            self._failed.append((batch, answer))
        else:
            self._finish(batch, answer)
        if self._failed and not self._in_flight and self._recovery is None and not self._is_closed:
            self._recovery = asyncio.ensure_future(self._recover())
            self._recovery.add_done_callback(self._recovered)
        elif not self._failed:
            self._pump()

    def _finish(self, batch: OutBatch, answer: bytes | MqError) -> None:
        told = batch.finish(answer)
        if told is None:
            return  # it was given up before
        self._buffered -= batch.bytes
        del self._unfinished[batch]
        if isinstance(answer, MqError) and self._error is None:
            self._error = answer
        self._changed.set()
        self._changed.clear()
        tell(told)

    # ------------------------------------------------------------ the end

    async def _drain(self, timeout: float | None, batches: list[OutBatch] | None) -> None:
        """Wait until each of these has its outcome. None: until there is nothing left, whenever it came."""
        for batch in self._outbox.open_batches():
            batch.due = 0.0
        self._on_time()
        try:
            async with asyncio.timeout(timeout):
                while is_left(batches, self._unfinished):
                    await self._changed.wait()
        except TimeoutError:
            raise TimedOut(f"{self._buffered} bytes are not durable yet") from None
        error, self._error = self._error, None
        if error is not None:
            raise same(error)

    def _give_up(self, error: MqError) -> None:
        """Nobody sends what is left any more: whoever waits for it hears so."""
        self._ready.clear()
        self._outbox.take_due(math.inf)
        for batch in list(self._unfinished):
            self._finish(batch, error)

    # ------------------------------------------------------------ after a failure

    async def _recover(self) -> None:
        """Nothing is in flight: send what failed once more, in order, until each has its outcome."""
        plan = resend(list(self._failed), self._sequence, self._finish)
        batch = next(plan, None)
        while batch is not None:
            outcome = await self._again(batch)
            try:
                batch = plan.send(outcome)
            except StopIteration:
                break

    def _recovered(self, recovery: asyncio.Task[None]) -> None:
        """Where it was cancelled, perhaps before it began, the loop comes to its end: nobody tries again."""
        self._recovery = None
        self._failed.clear()
        error = recovery.exception() if not recovery.cancelled() else Unavailable("sending was cancelled")
        if error is not None:
            self._sequence.renew()
            self._give_up(mq_error(error))
        self._pump()

    async def _again(self, batch: OutBatch) -> bytes | MqError:
        try:
            return await self._connection.call(PUBLISH_BATCH, self._request(batch), patient=True)
        except Exception as error:
            return mq_error(error)
