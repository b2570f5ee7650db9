"""Publishing one message at a time, from many tasks: those who come while a request is in flight share the next."""

from __future__ import annotations

import asyncio
from functools import partial

from mq.client import codec
from mq.client.aio_connection import AsyncConnection
from mq.client.connection import ATTEMPT_SECONDS
from mq.client.message import Published, published
from mq.client.options import PublishOptions
from mq.client.publisher import MOST_BYTES, MOST_MESSAGES, PUBLISH_BATCH, unclear
from mq.client.sequence import Sequence
from mq.client.transport import TimedOut, same
from mq.errors import InvalidArgument, MqError, SequenceRefused
from mq.pb import mq_pb2 as pb

LATE_SECONDS = 1.0  # between two looks at a request that is late

Entry = tuple[bytes, asyncio.Future[Published]]


class AsyncLane:
    """The publishes to one channel with the same options, one request at a time.

    A request that is answered needs no task, only two callbacks: one sends for all who stand in line by then, one tells
    them what came of it. A task is for what has to connect first, or to be tried again.
    """

    def __init__(self, connection: AsyncConnection, channel: str, options: PublishOptions) -> None:
        self._connection = connection
        self._channel = channel
        self._options = options
        self._sequence = Sequence()
        self._loop = asyncio.get_running_loop()
        self._line: list[Entry] = []
        self._is_busy = False  # a request is in flight, or about to leave
        self._sent_at = 0.0  # when the one in flight left; 0: none is
        self._is_watched = False
        self._task: asyncio.Task[None] | None = None  # somebody has to keep it

    def publish(self, message: bytes) -> asyncio.Future[Published]:
        """One message, durable when this has a result. Whoever cancels it leaves the line."""
        answer: asyncio.Future[Published] = self._loop.create_future()
        self._line.append((message, answer))
        if not self._is_busy:
            self._is_busy = True
            self._loop.call_soon(self._send_next)
        return answer

    def _send_next(self) -> None:
        entries = self._take()
        if not entries:
            self._is_busy = False
            return
        is_sent = False
        try:
            is_sent = self._connection.send(PUBLISH_BATCH, self._request(entries), partial(self._hear, entries))
        except MqError:
            pass  # it is raised again, where there is time to see whom it concerns
        except Exception as error:  # an argument that no request can hold
            self._refuse(entries, error)
            return
        if not is_sent:
            self._send_with_patience(entries, self._connection.timeout)
            return
        self._sent_at = self._loop.time()
        if not self._is_watched:
            self._watch(self._attempt_seconds)

    def _hear(self, entries: list[Entry], answer: bytes | BaseException) -> None:
        left, self._sent_at = self._connection.timeout - (self._loop.time() - self._sent_at), 0.0
        if isinstance(answer, asyncio.CancelledError):  # the loop comes to its end
            self._abandon(entries)
            return
        if isinstance(answer, bytes):
            self._sequence.next += 1
            try:
                self._tell(entries, answer)
            except Exception as strange:
                self._refuse(entries, strange)
            else:
                self._loop.call_soon(self._send_next)  # behind those who were told: they may be back in line by then
        elif not _may_help_to_ask_again(answer):
            if isinstance(answer, MqError) and answer.leaves_open:
                self._sequence.renew()
            self._refuse(entries, answer)
        elif left > 0:
            is_unanswered = isinstance(answer, MqError) and answer.leaves_open
            self._send_with_patience(entries, left, is_unanswered)
        else:
            self._sequence.renew()
            self._refuse(entries, TimedOut("the broker did not answer in time"))

    def _abandon(self, entries: list[Entry]) -> None:
        """Whoever comes after these, to clean up, still gets an answer, and a number that was not used."""
        self._sequence.renew()
        for _, future in entries:
            future.cancel()
        self._loop.call_soon(self._send_next)

    def _refuse(self, entries: list[Entry], error: BaseException) -> None:
        _fail(entries, error)
        self._loop.call_soon(self._send_next)

    def _watch(self, seconds: float) -> None:
        self._is_watched = True
        self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """One timer, however many requests: it looks whether the one in flight is late."""
        self._is_watched = False
        if self._sent_at:
            left = self._sent_at + self._attempt_seconds - self._loop.time()
            if left <= 0:
                self._connection.drop()  # which fails what is in flight
            self._watch(left if left > 0 else LATE_SECONDS)

    @property
    def _attempt_seconds(self) -> float:
        return min(ATTEMPT_SECONDS, self._connection.timeout)

    def _send_with_patience(self, entries: list[Entry], timeout: float, is_unanswered: bool = False) -> None:
        """`is_unanswered`: it was sent before, and nobody knows what became of it."""
        self._task = self._loop.create_task(self._send_all(entries, timeout, is_unanswered))
        self._task.add_done_callback(partial(self._see_to, entries))

    def _see_to(self, entries: list[Entry], task: asyncio.Task[None]) -> None:
        if task.cancelled():  # the loop comes to its end, perhaps before the task began
            self._abandon(entries)

    async def _send_all(self, entries: list[Entry], timeout: float, is_unanswered: bool) -> None:
        try:
            await self._send(entries, self._loop.time() + timeout, is_unanswered)
        except Exception as error:
            self._refuse(entries, error)
        else:
            self._send_next()

    def _request(self, entries: list[Entry]) -> bytes:
        head = self._sequence.head(self._channel, self._options, self._sequence.next)
        return codec.publish_request(head, [message for message, _ in entries])

    def _tell(self, entries: list[Entry], data: bytes) -> None:
        answer = pb.PublishBatchResponse.FromString(data)
        for (_, future), outcome in zip(entries, published(self._channel, answer, len(entries)), strict=True):
            if not future.done():
                future.set_result(outcome)

    def _take(self) -> list[Entry]:
        most = self._options.most_messages(MOST_MESSAGES)
        taken: list[Entry] = []
        size = 0
        for place, entry in enumerate(self._line):
            if entry[1].done():  # who cancelled it has left
                continue
            size += len(entry[0])
            if len(taken) >= most or (taken and size > MOST_BYTES):
                self._line = self._line[place:]
                return taken
            taken.append(entry)
        self._line = []
        return taken

    async def _send(self, entries: list[Entry], end: float, is_unanswered: bool = False) -> None:
        try:
            data = await self._call(entries, end, is_unanswered)
        except InvalidArgument as error:
            if len(entries) == 1:
                _fail(entries, error)
            elif error.went_unanswered:
                _fail(entries, unclear(error))
            else:
                end = self._loop.time() + self._connection.timeout
                for entry in entries:  # one of them is at fault, and only that one shall hear of it
                    await self._send([entry], end)
        except MqError as error:
            _fail(entries, error)
        else:
            self._tell(entries, data)

    async def _call(self, entries: list[Entry], end: float, is_unanswered: bool) -> bytes:
        sequence = self._sequence
        while True:
            try:
                left = max(0.001, end - self._loop.time())
                data = await self._connection.call(PUBLISH_BATCH, self._request(entries), timeout=left, patient=True)
            except SequenceRefused:
                is_new = sequence.next == 0
                sequence.renew()
                if is_new:
                    raise
            except MqError as error:
                error.went_unanswered = error.went_unanswered or is_unanswered
                if error.leaves_open:
                    sequence.renew()
                raise
            else:
                sequence.next += 1
                return data


def _fail(entries: list[Entry], error: BaseException) -> None:
    for _, future in entries:
        if not future.done():
            future.set_exception(same(error) if isinstance(error, MqError) else error)


def _may_help_to_ask_again(error: BaseException) -> bool:
    """Later, in smaller parts, under another name, or for better words of what is wrong."""
    return isinstance(error, MqError) and (
        error.retryable or isinstance(error, (InvalidArgument, SequenceRefused)) or error.status == "UNIMPLEMENTED"
    )
