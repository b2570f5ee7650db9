"""Publishing one message at a time, from many tasks: those who come while a request is in flight share the next."""

from __future__ import annotations

import asyncio

from mq.client import codec
from mq.client.aio_connection import AsyncConnection
from mq.client.message import Published, published
from mq.client.options import PublishOptions
from mq.client.publisher import MOST_BYTES, MOST_MESSAGES, PUBLISH_BATCH
from mq.client.sequence import Sequence
from mq.client.transport import same
from mq.errors import InvalidArgument, MqError, SequenceRefused
from mq.pb import mq_pb2 as pb

Entry = tuple[bytes, asyncio.Future[Published]]


class AsyncLane:
    """The publishes to one channel with the same options, one request at a time."""

    def __init__(self, connection: AsyncConnection, channel: str, options: PublishOptions) -> None:
        self._connection = connection
        self._channel = channel
        self._options = options
        self._sequence = Sequence()
        self._line: list[Entry] = []
        self._task: asyncio.Task[None] | None = None

    async def publish(self, message: bytes) -> Published:
        """One message, durable when this returns. A task that is cancelled leaves the line. Raises MqError."""
        answer: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
        self._line.append((message, answer))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        return await answer

    async def _run(self) -> None:
        try:
            while entries := self._take():
                await self._send(entries)
        finally:
            self._task = None

    def _take(self) -> list[Entry]:
        waiting = [entry for entry in self._line if not entry[1].done()]
        most = self._options.most_messages(MOST_MESSAGES)
        size = count = 0
        for message, _ in waiting:
            size += len(message)
            if count >= most or (count and size > MOST_BYTES):
                break
            count += 1
        self._line = waiting[count:]
        return waiting[:count]

    async def _send(self, entries: list[Entry]) -> None:
        try:
            answer = await self._call([message for message, _ in entries])
        except InvalidArgument as error:
            if len(entries) == 1:
                _fail(entries, error)
                return
            for entry in entries:  # one of them is at fault, and only that one shall hear of it
                await self._send([entry])
        except MqError as error:
            _fail(entries, error)
        else:
            for (_, future), outcome in zip(entries, published(self._channel, answer, len(entries)), strict=True):
                if not future.done():
                    future.set_result(outcome)

    async def _call(self, messages: list[bytes]) -> pb.PublishBatchResponse:
        sequence = self._sequence
        while True:
            head = sequence.head(self._channel, self._options, sequence.next)
            try:
                data = await self._connection.call(PUBLISH_BATCH, codec.publish_request(head, messages), patient=True)
            except SequenceRefused:
                is_new = sequence.next == 0
                sequence.renew()
                if is_new:
                    raise
            except MqError as error:
                if error.retryable:
                    sequence.renew()
                raise
            else:
                sequence.next += 1
                return pb.PublishBatchResponse.FromString(data)


def _fail(entries: list[Entry], error: MqError) -> None:
    for _, future in entries:
        if not future.done():
            future.set_exception(same(error))
