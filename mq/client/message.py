"""Messages as a user sees them: light views over the bytes of one answer. A message costs when it is touched.

A `Delivery` is one pulled batch. Its bytes are taken apart when the first message is looked into, and where all
messages are alike (no key, no headers, one length) by slicing alone.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from mq.client import codec
from mq.client.value import Codec
from mq.errors import InvalidArgument
from mq.pb import mq_pb2 as pb
from mq.pb import raw_pb2 as raw

if TYPE_CHECKING:
    from mq.client.settling import Ledger

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DURABILITY = {pb.FSYNC: "fsync", pb.OS: "os", pb.MEMORY: "memory"}


class Published(NamedTuple):
    """Where a message was stored: the answer of a publish.

    >>> client.publish("orders", b"four").offset
    3
    """

    channel: str
    partition: int
    offset: int
    timestamp: datetime
    durable: str = "fsync"  # what the answer waited for: fsync, os or memory
    is_duplicate: bool = False  # a retry found it stored already
    schedule_id: int = 0  # of a delayed message, which has no offset yet


def published_alone(channel: str, answer: pb.PublishBatchResponse) -> Published:
    """What the only message of a batch was answered."""
    if answer.placements:
        return published(channel, answer, 1)[0]
    return Published(
        channel,
        answer.partition,
        answer.base_offset,
        time_of(answer.timestamp_us),
        DURABILITY.get(answer.durable, "fsync"),
        answer.duplicate,
        answer.schedule_id,
    )


def published(channel: str, answer: pb.PublishBatchResponse, count: int) -> list[Published]:
    """What each message of a batch was answered."""
    when = time_of(answer.timestamp_us)
    rest = (when, DURABILITY.get(answer.durable, "fsync"), answer.duplicate)
    step = 0 if answer.schedule_id else 1
    if not answer.placements:
        base, number = answer.base_offset, answer.schedule_id
        return [Published(channel, answer.partition, base + index * step, *rest, number) for index in range(count)]
    made: list[Published] = [Published(channel, answer.partition, 0, *rest, answer.schedule_id)] * count
    for at in answer.placements:
        for place, index in enumerate(at.indexes):
            made[index] = Published(channel, at.partition, at.base_offset + place * step, *rest, at.schedule_id)
    return made


def time_of(microseconds: int) -> datetime:
    return _EPOCH + timedelta(0, 0, microseconds)


Part = tuple["Delivery", int, int]  # of a delivery: the first index, and the one after the last


class Delivery:
    """One pulled batch: messages that share a partition, a receipt and a delivery count."""

    __slots__ = (
        "_contents",
        "_data",
        "_parsed",
        "base",
        "channel",
        "codec",
        "count",
        "delivery_count",
        "deltas",
        "given",
        "group",
        "is_lost",
        "ledger",
        "partition",
        "receipt",
        "settled",
        "start_id",
        "timestamp_us",
        "unsettled",
    )

    def __init__(self, pulled: raw.PulledBatch, channel: str, group: str = "", codec: Codec | None = None) -> None:
        self.channel = channel
        self.group = group
        self.codec = codec
        self.partition = pulled.partition
        self.base = pulled.base_offset
        self.count = pulled.count
        self.timestamp_us = pulled.timestamp_us
        self.deltas = pulled.offset_deltas[:]
        self.receipt = pulled.receipt
        self.delivery_count = pulled.delivery_count
        self.ledger: Ledger | None = None  # what keeps book of its acks; None: nothing was leased
        self.start_id = ""  # of the start of the broker that delivered it, where the transport tells
        self.settled: bytearray | None = None  # made with the first message that is settled alone
        self.unsettled = pulled.count
        self.given = 0  # messages of it that a consumer has handed out
        self.is_lost = False
        self._data = pulled.batch
        self._contents: list[bytes] | None = None
        self._parsed: Any = None

    def contents(self) -> list[bytes]:
        """The bodies of all messages."""
        if self._contents is None:
            found = codec.split(self._data, self.count)
            self._contents = [each.content for each in self.parsed()] if found is None else found
        return self._contents

    def parsed(self) -> Any:
        """All messages, as protobuf has them."""
        if self._parsed is None:
            self._parsed = pb.Batch.FromString(self._data).messages
        return self._parsed

    def details(self, index: int) -> pb.BatchMessage | None:
        """One message with its key and headers; None where no message of this batch has any."""
        if self._parsed is None and self._contents is None:
            self.contents()
        if self._parsed is None:
            return None
        found: pb.BatchMessage = self._parsed[index]
        return found

    def offset(self, index: int) -> int:
        return self.base + (self.deltas[index] if self.deltas else index)

    def whole(self) -> Part:
        return self, 0, self.count


class View:
    """What a message holds. `value` is its content, or what the codec made of it.

    >>> view = next(iter(client.read("orders", follow=False)))
    >>> view.offset, view.key, view.value, view.headers
    (0, None, b'one', {})
    """

    __slots__ = ("_delivery", "_index")

    def __init__(self, delivery: Delivery, index: int) -> None:
        self._delivery = delivery
        self._index = index

    @property
    def channel(self) -> str:
        """The name of its channel."""
        return self._delivery.channel

    @property
    def group(self) -> str:
        """Empty where it was read without a group."""
        return self._delivery.group

    @property
    def partition(self) -> int:
        """The partition of the channel that it is in."""
        return self._delivery.partition

    @property
    def offset(self) -> int:
        """Its place in the partition."""
        return self._delivery.offset(self._index)

    @property
    def content(self) -> bytes:
        """The body as it was published."""
        return self._delivery.contents()[self._index]

    @property
    def value(self) -> Any:
        """The body: bytes, or what `codec=` makes of them."""
        content = self._delivery.contents()[self._index]
        return content if self._delivery.codec is None else self._delivery.codec.decode(content)

    @property
    def key(self) -> bytes | None:
        """Messages of one key are in one partition, in order; None: it has no key."""
        details = self._delivery.details(self._index)
        return details.key if details is not None and details.HasField("key") else None

    @property
    def headers(self) -> dict[str, str]:
        """Names and values as text; `raw_headers` has the exact bytes, and names that come twice."""
        return {name: value.decode(errors="surrogateescape") for name, value in self.raw_headers}

    @property
    def raw_headers(self) -> list[tuple[str, bytes]]:
        """Names and values as they were published."""
        details = self._delivery.details(self._index)
        return [] if details is None else [(header.name, header.value) for header in details.headers]

    @property
    def timestamp(self) -> datetime:
        """When the broker took it."""
        return time_of(self._delivery.timestamp_us)

    @property
    def delivery_count(self) -> int:
        """1 at the first delivery; 0 where it was read without a group."""
        return self._delivery.delivery_count

    def text(self) -> str:
        """The body as UTF-8."""
        return self.content.decode()

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.content)

    def part(self) -> Part:
        """The delivery behind it, with its index there and the next one."""
        return self._delivery, self._index, self._index + 1

    def _ledger(self) -> Ledger:
        ledger = self._delivery.ledger
        if ledger is None:
            raise InvalidArgument("this message was read without a group: there is nothing to ack")
        return ledger

    def __repr__(self) -> str:
        shown = self.content if len(self.content) <= 40 else self.content[:40] + b"..."
        return f"<Message {self.channel}/{self.partition}@{self.offset} {shown!r}>"


class Message(View):
    """One message, and what can be done about it.

    >>> with client.consumer("orders", "billing") as consumer:
    ...     message = consumer.fetch(1, timeout=5)[0]
    ...     message.ack()
    >>> message.text(), message.delivery_count
    ('one', 1)
    """

    __slots__ = ()

    def ack(self) -> None:
        """Done: once the broker has that, it is never delivered again. Sent with the next few, so it is cheap."""
        self._ledger().ack_one(self._delivery, self._index)

    def nack(self, delay_ms: int | None = None) -> None:
        """Deliver it again, after a delay or the group's backoff."""
        self._ledger().nack([self.part()], delay_ms)

    def reject(self, reason: str = "") -> None:
        """Never deliver it again: it goes to the dead-letter channel."""
        self._ledger().reject([self.part()], reason)

    def extend(self) -> None:
        """Keep it longer. A consumer does this by itself; here it happens now."""
        self._ledger().extend(self._delivery)

    def process(self) -> AbstractContextManager[Message]:
        """A block that acks at its end, and nacks where it raises."""
        return Processing(self)


class Processing(AbstractContextManager[Message]):
    """Acks a message, or hands it back, by how its block ends."""

    def __init__(self, message: Message) -> None:
        self._message = message

    def __enter__(self) -> Message:
        return self._message

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._message.ack()
        else:
            self._message.nack()
