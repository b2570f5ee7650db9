"""Batches on their way: messages gathered by partition until a batch is full or old enough. No I/O, no threads here."""

from __future__ import annotations

import logging
import threading
import zlib
from collections.abc import Callable, Iterable

from mq.client.message import Published, published
from mq.client.transport import same
from mq.errors import MqError
from mq.pb import mq_pb2 as pb

MOST_MESSAGES = 10_000  # of one publish: a broker takes no more
REQUEST_BYTES = 4 << 20  # likewise, unless it is told otherwise
HEAD_BYTES = 64 << 10  # left for what of a request is not its messages

Callback = Callable[["Sent"], None]


class OutBatch:
    """Messages of one request, and what became of them."""

    __slots__ = (
        "_acks",
        "_callbacks",
        "_calling",
        "_done",
        "answer",
        "bytes",
        "channel",
        "count",
        "due",
        "error",
        "partition",
        "pieces",
        "sequence",
    )

    def __init__(self, channel: str, partition: int | None, due: float) -> None:
        self.channel = channel
        self.partition = partition
        self.pieces: list[bytes] = []
        self.count = 0
        self.bytes = 0
        self.due = due  # when it leaves, full or not
        self.sequence = -1
        self.answer: bytes | None = None
        self.error: MqError | None = None
        self._callbacks: list[tuple[Callback, Sent]] = []
        self._calling = threading.Lock()
        self._done = threading.Event()
        self._acks: list[Published] | None = None

    def add(self, messages: bytes, count: int = 1) -> int:
        """Returns the index of the first."""
        index = self.count
        self.pieces.append(messages)
        self.count += count
        self.bytes += len(messages)
        return index

    @property
    def is_done(self) -> bool:
        return self._done.is_set()

    def finish(self, answer: bytes | MqError) -> Told | None:
        """Who is to be told, by `tell`, once the rest is done; None: it has its outcome already, and keeps it."""
        with self._calling:
            if self.is_done:
                return None
            if isinstance(answer, MqError):
                self.error = answer
            else:
                self.answer = answer
            self.pieces = []
            self._done.set()
            callbacks, self._callbacks = self._callbacks, []
        return callbacks

    def call_back(self, callback: Callback, sent: Sent) -> None:
        with self._calling:
            if not self.is_done:
                self._callbacks.append((callback, sent))
                return
        tell([(callback, sent)])

    def wait(self, timeout: float | None) -> bool:
        return self._done.wait(timeout)

    def published(self, index: int) -> Published:
        if self.error is not None:
            raise same(self.error)
        if self._acks is None:
            assert self.answer is not None
            self._acks = published(self.channel, pb.PublishBatchResponse.FromString(self.answer), self.count)
        return self._acks[index]


class Sent:
    """A message on its way: what `producer.send` returns.

    >>> with client.producer("orders") as producer:
    ...     sent = producer.send(b"four")
    ...     sent.add_done_callback(lambda each: print(each.result().offset))
    3
    """

    __slots__ = ("_batch", "_index")

    def __init__(self, batch: OutBatch, index: int) -> None:
        self._batch = batch
        self._index = index

    def done(self) -> bool:
        """Whether its outcome is known."""
        return self._batch.is_done

    def result(self, timeout: float | None = None) -> Published:
        """Where it was stored. Raises the error of its batch, or TimeoutError where that takes too long."""
        if not self._batch.wait(timeout):
            raise TimeoutError("the message is not durable yet")
        return self._batch.published(self._index)

    def exception(self, timeout: float | None = None) -> MqError | None:
        """Why it was not stored; None where it was."""
        if not self._batch.wait(timeout):
            raise TimeoutError("the message is not durable yet")
        return self._batch.error

    def add_done_callback(self, callback: Callback) -> None:
        """Call back when the outcome is known, from another thread; at once if it is.

        It may send, and not wait: others wait for that thread, so `flush` and `close` are refused there.
        """
        self._batch.call_back(callback, self)


Told = list[tuple[Callback, Sent]]


def tell(told: Told) -> None:
    for callback, sent in told:
        try:
            callback(sent)
        except Exception:  # a mistake in one callback is not to hold back the others, nor the producer
            logging.getLogger("mq.client").exception("the callback of a message failed")


class Outbox:
    """Open batches by partition. A batch that is full, or due, is handed out once."""

    def __init__(
        self, channel: str, partitions: int, batch_messages: int, batch_bytes: int, request_bytes: int = 0
    ) -> None:
        """`request_bytes`: what the broker takes at once; 0: it is not known."""
        self.partitions = partitions
        self.most_bytes = (request_bytes or REQUEST_BYTES) - HEAD_BYTES  # of the messages of one request
        self._channel = channel
        self._batch_messages = min(batch_messages, MOST_MESSAGES)
        self._batch_bytes = min(batch_bytes, self.most_bytes)
        self._open: dict[int | None, OutBatch] = {}

    def partition_of(self, key: bytes | None) -> int | None:
        """As the broker chooses it; None: the broker may choose."""
        if key is None or self.partitions == 1:
            return None
        return zlib.crc32(key) % self.partitions

    def open_batch(self, partition: int | None, due: float) -> OutBatch:
        batch = self._open.get(partition)
        if batch is None:
            batch = self._open[partition] = OutBatch(self._channel, partition, due)
        return batch

    def is_for(self, batch: OutBatch, size: int, count: int) -> bool:
        """Whether so many messages may join a batch: many have one of their own, and a large one may not fit."""
        return not batch.count or (count == 1 and batch.bytes + size <= self.most_bytes)

    def close_if(self, batch: OutBatch, is_due: bool = False) -> bool:
        """Close a batch that is full, or due anyway; it is the caller's then."""
        if not is_due and batch.count < self._batch_messages and batch.bytes < self._batch_bytes:
            return False
        self._open.pop(batch.partition, None)
        return True

    def take_due(self, now: float) -> list[OutBatch]:
        """What has waited long enough."""
        due = [batch for batch in self._open.values() if batch.due <= now]
        for batch in due:
            del self._open[batch.partition]
        return due

    def next_due(self) -> float | None:
        return min((batch.due for batch in self._open.values()), default=None)

    def open_batches(self) -> Iterable[OutBatch]:
        return self._open.values()
