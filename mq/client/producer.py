"""A producer: messages gathered into batches, several batches in flight, each stored once and in order.

The thread that fills a batch sends it. A thread of the producer's own sends what lingered, and puts things right after
a failure: it waits until nothing is in flight, then sends what failed again, one by one, in the order of its sequence.
A batch that the broker has already is recognised there, so a retry never doubles.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any

from mq.client import codec, unclosed
from mq.client.codec import HeaderValue
from mq.client.connection import ATTEMPT_SECONDS, Connection
from mq.client.options import PublishOptions
from mq.client.outbox import MOST_MESSAGES, OutBatch, Outbox, Sent, Told, tell
from mq.client.publisher import PUBLISH_BATCH
from mq.client.resend import resend
from mq.client.sequence import Sequence
from mq.client.transport import TimedOut, same
from mq.client.value import Codec, batches_of, key_of, message_of
from mq.errors import InvalidArgument, MqError, Unavailable

MANY = 5_000  # messages at a time, where a whole iterable is sent
IN_FLIGHT = 8  # batches; far below the 64 that a broker recognises a retry among


def mq_error(error: BaseException) -> MqError:
    """What a batch ends with: a mistake that nobody foresaw ends one batch, not the producer."""
    return error if isinstance(error, MqError) else MqError(f"{type(error).__name__}: {error}")


def is_left(batches: list[OutBatch] | None, unfinished: Mapping[OutBatch, None]) -> bool:
    """Whether one of these has no outcome yet. None: one at all. Those that have are dropped, so each is seen once."""
    if batches is None:
        return bool(unfinished)
    while batches and batches[-1] not in unfinished:
        del batches[-1]
    return bool(batches)


class Producer:
    """Made by `Client.producer`. All methods may be called from any thread.

    >>> with client.producer("orders", linger_ms=5) as producer:
    ...     sent = producer.send(b"four")
    >>> sent.result().offset
    3
    """

    def __init__(
        self,
        connection: Connection,
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
        self._sequence = Sequence()
        self._sequence.head(channel, options, 0)  # raises here what no request can hold
        self._lock = threading.Lock()  # of everything below
        self._changed = threading.Condition(self._lock)
        self._sending = threading.RLock()  # keeps the order of what leaves
        self._outbox = Outbox(channel, partitions, batch_size, batch_bytes, request_bytes)
        self._many_bytes = min(2 * batch_bytes, self._outbox.most_bytes)
        self._ready: deque[OutBatch] = deque()
        self._in_flight: dict[int, OutBatch] = {}
        self._failed: list[tuple[OutBatch, MqError]] = []
        self._unfinished: dict[OutBatch, None] = {}  # what holds messages and has no outcome yet, in order
        self._buffered = 0
        self._oldest: OutBatch | None = None  # in flight, at the last look
        self._look_at = 0.0
        self._tellers: set[int] = set()  # threads that are in callbacks
        self._is_flushing = 0
        self._is_closed = False
        self._error: MqError | None = None  # the first one that nobody was told of by `flush`
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="mq-producer", daemon=True)
        self._thread.start()
        unclosed.opened(self)

    # ------------------------------------------------------------ sending

    def send(
        self, value: Any, key: str | bytes | None = None, headers: Mapping[str, HeaderValue] | None = None
    ) -> Sent:
        """Put a message on its way. Waits only where the buffer is full; `.result()` of what it returns says where it
        was stored.

        >>> with client.producer("orders") as producer:
        ...     producer.send({"item": 7}, key="c-42").result().offset
        3
        """
        message = message_of(value, key, headers, self._codec)
        partition = None if key is None else self._outbox.partition_of(key_of(key))
        self._check_usable()  # before the lock: after a fork somebody else may have it for ever
        with self._lock:
            batch, index, is_full = self._add(partition, message, 1)
        if is_full:
            self._pump()
        return Sent(batch, index)

    def send_many(self, values: Iterable[Any], key: str | bytes | None = None) -> int:
        """Put many on their way, faster than one by one; returns how many. `flush` tells whether they were stored.

        >>> with client.producer("orders") as producer:
        ...     producer.send_many(b"line %d" % number for number in range(10_000))
        10000
        """
        partition = None if key is None else self._outbox.partition_of(key_of(key))
        self._check_usable()
        source, total = iter(values), 0
        while chunk := list(islice(source, self._many)):
            for count, messages in batches_of(chunk, key, self._codec, self._many_bytes):
                with self._lock:
                    self._add(partition, messages, count)
                    self._close(partition)
                self._pump()
            total += len(chunk)
        return total

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far is durable. Raises the first error since the last flush, or TimedOut.

        >>> with client.producer("orders") as producer:
        ...     sent = producer.send(b"four")
        ...     producer.flush()
        ...     sent.done()
        True
        """
        self._check_usable()
        self._check_may_wait()
        with self._lock:
            batches = list(self._unfinished)
        self._drain(timeout, batches)

    def close(self, timeout: float | None = None) -> None:
        """Flush and stop. Idempotent."""
        if self._pid != os.getpid() or self._is_closed:
            return
        self._check_may_wait()
        try:
            self._drain(timeout, None)
        finally:
            unclosed.closed(self)
            with self._lock:
                self._is_closed = True
                self._changed.notify_all()
            self._connection.close()
            self._give_up()
            self._thread.join(1.0)

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    def __repr__(self) -> str:
        return f"<mq.Producer of {self.channel}>"

    # ------------------------------------------------------------ into batches

    def _add(self, partition: int | None, messages: bytes, count: int) -> tuple[OutBatch, int, bool]:
        self._check_usable()
        while self._buffered > self._buffer_bytes and threading.get_ident() not in self._tellers:
            self._changed.wait()
            self._check_usable()
        batch = self._outbox.open_batch(partition, 0.0)
        is_ready = not self._outbox.is_for(batch, len(messages), count) and self._outbox.close_if(batch, is_due=True)
        if is_ready:
            self._ready.append(batch)
            batch = self._outbox.open_batch(partition, 0.0)
        if not batch.count:
            self._unfinished[batch] = None
            batch.due = time.monotonic() + self._linger
            if self._linger:
                self._changed.notify_all()  # the thread looks after what lingers
        index = batch.add(messages, count)
        self._buffered += len(messages)
        # Without a linger a lone message leaves in the thread that sends it; those after it gather until the answer.
        if self._outbox.close_if(batch, not self._linger and not self._in_flight):
            self._ready.append(batch)
            is_ready = True
        return batch, index, is_ready

    def _close(self, partition: int | None) -> None:
        """What is open leaves now."""
        batch = self._outbox.open_batch(partition, 0.0)
        batch.due = 0.0
        self._ready.extend(self._outbox.take_due(0.0))

    def _check_usable(self) -> None:
        if self._pid != os.getpid():
            raise Unavailable("this producer was made before a fork: make a new one in the child")
        if self._is_closed:
            raise Unavailable("the producer is closed")

    # ------------------------------------------------------------ out

    def _pump(self) -> None:
        """Send what is ready and finds room, in order."""
        if self._failed:
            return  # the producer's thread goes on when that is put right
        with self._sending:
            while (batch := self._next()) is not None:
                try:
                    transport = self._connection.transport()
                    transport.send(PUBLISH_BATCH, self._request(batch), partial(self._answered, batch))
                except Exception as error:
                    self._answered(batch, mq_error(error))

    def _next(self) -> OutBatch | None:
        with self._lock:
            if not self._ready or len(self._in_flight) >= IN_FLIGHT or self._failed:
                return None
            batch = self._ready.popleft()
            if batch.count == 0:
                return None
            batch.sequence = self._sequence.next
            self._sequence.next += 1
            self._in_flight[batch.sequence] = batch
            return batch

    def _request(self, batch: OutBatch) -> bytes:
        options = self._options if batch.partition is None else self._options._replace(partition=batch.partition)
        head = self._sequence.head(self.channel, options, batch.sequence)
        return codec.publish_request(head, batch.pieces)

    def _answered(self, batch: OutBatch, answer: bytes | MqError) -> None:
        """Called by the transport. A failure is only noted here: the producer's thread deals with it."""
        with self._lock:
            if self._in_flight.get(batch.sequence) is not batch:
                return  # a transport that breaks may tell it twice
            del self._in_flight[batch.sequence]
            if isinstance(answer, MqError):
                self._failed.append((batch, answer))
            if self._failed or self._ready or not (self._in_flight or self._linger):
                self._changed.notify_all()
        if not isinstance(answer, MqError):
            self._finish(batch, answer)

    def _finish(self, batch: OutBatch, answer: bytes | MqError) -> None:
        told = batch.finish(answer)
        if told is None:
            return  # it was given up before
        with self._lock:
            was_full = self._buffered > self._buffer_bytes
            self._buffered -= batch.bytes
            del self._unfinished[batch]
            if isinstance(answer, MqError) and self._error is None:
                self._error = answer
            if was_full or self._is_flushing:
                self._changed.notify_all()
        if told:
            self._tell(told)

    def _tell(self, told: Told) -> None:
        """Others wait for this thread meanwhile: what is called here does not wait for them."""
        me = threading.get_ident()
        is_nested = me in self._tellers
        self._tellers.add(me)
        try:
            tell(told)
        finally:
            if not is_nested:
                self._tellers.discard(me)

    def _check_may_wait(self) -> None:
        if threading.get_ident() in self._tellers:
            raise InvalidArgument("a callback of a message can't wait for its producer: flush and close elsewhere")

    # ------------------------------------------------------------ the end

    def _drain(self, timeout: float | None, batches: list[OutBatch] | None) -> None:
        """Wait until each of these has its outcome. None: until there is nothing left, whenever it came."""
        end = None if timeout is None else time.monotonic() + timeout
        with self._lock:
            for batch in self._outbox.open_batches():
                batch.due = 0.0
            self._is_flushing += 1
            self._changed.notify_all()
            try:
                while is_left(batches, self._unfinished):
                    left = None if end is None else end - time.monotonic()
                    if left is not None and left <= 0:
                        raise TimedOut(f"{self._buffered} bytes are not durable yet")
                    self._changed.wait(left)
            finally:
                self._is_flushing -= 1
            error, self._error = self._error, None
        if error is not None:
            raise same(error)

    def _give_up(self) -> None:
        """Nobody sends what is left any more: whoever waits for it hears so."""
        with self._lock:
            self._ready.clear()
            left = list(self._unfinished)
        for batch in left:
            self._finish(batch, Unavailable("the producer was closed: the message may be stored or not"))

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        while True:
            is_late = False
            with self._lock:
                while not self._has_work() and not is_late:
                    due = self._outbox.next_due()
                    left = ATTEMPT_SECONDS if due is None else max(0.0, due - time.monotonic())
                    self._changed.wait(min(ATTEMPT_SECONDS, left))
                    is_late = self._is_late()
                if self._is_closed:
                    return
                self._ready.extend(self._outbox.take_due(time.monotonic()))
                is_broken = bool(self._failed) and not self._in_flight
            if is_late:
                self._connection.drop()  # which fails what is in flight
                continue
            if is_broken:
                self._recover()
            self._pump()

    def _is_late(self) -> bool:
        """A batch that is the oldest in flight at two looks had no answer in between."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        before, self._oldest = self._oldest, next(iter(self._in_flight.values()), None)
        self._look_at = now + ATTEMPT_SECONDS
        return self._oldest is not None and self._oldest is before

    def _has_work(self) -> bool:
        if self._is_closed:
            return True
        if self._failed:
            return not self._in_flight
        due = self._outbox.next_due()
        if due is not None and due <= time.monotonic():
            return True
        return bool(self._ready) and len(self._in_flight) < IN_FLIGHT

    def _recover(self) -> None:
        """Nothing is in flight: send what failed once more, in order, until each has its outcome."""
        with self._sending:
            with self._lock:
                plan = resend(list(self._failed), self._sequence, self._finish)
            batch = next(plan, None)
            while batch is not None:
                try:
                    batch = plan.send(self._again(batch))
                except StopIteration:
                    break
            with self._lock:
                self._failed.clear()

    def _again(self, batch: OutBatch) -> bytes | MqError:
        try:
            return self._connection.call(PUBLISH_BATCH, self._request(batch), patient=True)
        except Exception as error:
            return mq_error(error)
