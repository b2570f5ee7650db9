"""Records: the facts in the log, as protobuf messages, and their way into and out of a frame's payload.

No I/O here. A record is one of the messages of proto/wal.proto; which one is told by the type number in the
frame's header. What this code does not know it carries: a type from the future becomes `Unknown`, unknown
fields stay inside their message, and both are written back as they were read.

`batch` is the highest field of the records that have it, so a payload is `serialized head + tag + length + batch`.
`Carried` uses that: the batch rides beside its record in pieces, and is never copied into a message. So does `Joined`
(wal/joined.py), which is never a message at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from google.protobuf.message import DecodeError, Message

from wal.joined import Joined
from wal.pb import wal_pb2 as pb
from wal.pb.wal_pb2 import (
    Acked,
    Atomic,
    ChannelCreated,
    ChannelDeleted,
    ChannelSnapshot,
    ChannelUpdated,
    Committed,
    Damaged,
    DeadLettered,
    Expired,
    GroupCreated,
    GroupDeleted,
    GroupUpdated,
    Published,
    Redelivered,
    ScheduleCancelled,
    Scheduled,
    Seal,
    Skipped,
    SnapshotBegin,
    SnapshotEnd,
    Sought,
    Trimmed,
)
from wal.varint import varint

__all__ = [
    "ATOMIC",
    "CHANNEL_SNAPSHOT",
    "CLASS_OF",
    "DAMAGED",
    "DEAD_LETTERED",
    "PUBLISHED",
    "SEAL",
    "SKIPPED",
    "SNAPSHOT_BEGIN",
    "SNAPSHOT_END",
    "TYPE_OF",
    "Acked",
    "Atomic",
    "Carried",
    "ChannelCreated",
    "ChannelDeleted",
    "ChannelSnapshot",
    "ChannelUpdated",
    "Committed",
    "Damaged",
    "DeadLettered",
    "Encoded",
    "Expired",
    "GroupCreated",
    "GroupDeleted",
    "GroupUpdated",
    "Joined",
    "Placement",
    "Published",
    "Record",
    "Redelivered",
    "ScheduleCancelled",
    "Scheduled",
    "Seal",
    "Skipped",
    "SnapshotBegin",
    "SnapshotEnd",
    "Sought",
    "Trimmed",
    "Unknown",
    "atomic",
    "decode",
    "encode",
    "end_offset",
    "head_of",
    "items_of",
    "placements",
    "plain",
    "published_in",
]

CLASS_OF: dict[int, type[Message]] = {
    pb.SEAL: Seal,
    pb.CHANNEL_CREATED: ChannelCreated,
    pb.CHANNEL_UPDATED: ChannelUpdated,
    pb.CHANNEL_DELETED: ChannelDeleted,
    pb.PUBLISHED: Published,
    pb.SCHEDULED: Scheduled,
    pb.SCHEDULE_CANCELLED: ScheduleCancelled,
    pb.DEAD_LETTERED: DeadLettered,
    pb.GROUP_CREATED: GroupCreated,
    pb.GROUP_UPDATED: GroupUpdated,
    pb.GROUP_DELETED: GroupDeleted,
    pb.ACKED: Acked,
    pb.COMMITTED: Committed,
    pb.SOUGHT: Sought,
    pb.REDELIVERED: Redelivered,
    pb.TRIMMED: Trimmed,
    pb.EXPIRED: Expired,
    pb.ATOMIC: Atomic,
    pb.SNAPSHOT_BEGIN: SnapshotBegin,
    pb.CHANNEL_SNAPSHOT: ChannelSnapshot,
    pb.SNAPSHOT_END: SnapshotEnd,
    pb.DAMAGED: Damaged,
    pb.SKIPPED: Skipped,
}
# What may be appended: the seal is the log's own.
TYPE_OF: dict[type[Message], int] = {cls: number for number, cls in CLASS_OF.items() if number != pb.SEAL}

SEAL, PUBLISHED, SNAPSHOT_BEGIN, SNAPSHOT_END = pb.SEAL, pb.PUBLISHED, pb.SNAPSHOT_BEGIN, pb.SNAPSHOT_END
CHANNEL_SNAPSHOT = pb.CHANNEL_SNAPSHOT
DAMAGED, SKIPPED, ATOMIC, DEAD_LETTERED = pb.DAMAGED, pb.SKIPPED, pb.ATOMIC, pb.DEAD_LETTERED

_BATCH_TAG = bytes([15 << 3 | 2])  # field 15, length-delimited
_WITH_BATCH: dict[int, type[Published | Scheduled]] = {pb.PUBLISHED: Published, pb.SCHEDULED: Scheduled}
_MOST_HEAD_BYTES = 4096  # in which a batch must begin, or a record is decoded as a whole


@dataclass(frozen=True, slots=True)
class Unknown:
    """A record of a type that this version does not know: kept, not understood."""

    type: int
    payload: bytes


class Carried(NamedTuple):
    """A record whose batch bytes ride beside it. Its own `batch` is empty; the pieces follow each other."""

    record: Published | Scheduled
    batch: Sequence[bytes]


class Encoded(NamedTuple):
    """A record of a channel that was encoded ahead of its turn. The pieces follow each other in its payload."""

    type: int
    channel_id: int
    pieces: list[bytes]

    def ByteSize(self) -> int:  # noqa: N802 - as a message is asked
        return sum(map(len, self.pieces))


Record: TypeAlias = Message | Unknown | Carried | Encoded | Joined


# Where a record puts messages: channel id, partition, and offsets base <= offset < end. One for every publish, so it is
# a bare tuple: naming the fields would take as long as reading them.
Placement: TypeAlias = tuple[int, int, int, int]


def encode(record: Record) -> tuple[int, list[bytes], int]:
    """The type number, the payload in pieces, and its length."""
    if isinstance(record, Joined):
        head = record.head() + _BATCH_TAG + varint(record.size)
        return PUBLISHED, [head, *record.pieces], len(head) + record.size
    if isinstance(record, Carried):
        message, batch = record
        length = sum(map(len, batch))
        head = message.SerializeToString() + _BATCH_TAG + varint(length)
        return TYPE_OF[type(message)], [head, *batch], len(head) + length
    if isinstance(record, Encoded):
        return record.type, record.pieces, record.ByteSize()
    if isinstance(record, Unknown):
        if record.type in (pb.RECORD_TYPE_UNSPECIFIED, pb.SEAL):
            raise ValueError(f"no record has type {record.type}")
        return record.type, [record.payload], len(record.payload)
    payload = record.SerializeToString()
    return TYPE_OF[type(record)], [payload], len(payload)


def decode(type_: int, payload: bytes) -> Message | Unknown:
    """The record in a payload. Raises protobuf's DecodeError on bytes that no writer of ours made."""
    cls = CLASS_OF.get(type_)
    return Unknown(type_, payload) if cls is None else cls.FromString(payload)


def head_of(type_: int, payload: bytes, length: int | None = None) -> Published | Scheduled | None:
    """A record as it is without its batch, of which nothing is copied; None where it has none, or that is not clear.

    The first bytes of a payload are enough, if its length is told. What ends inside a field can't be decoded; so what
    is decoded here ends where a batch begins, and that is the last field, because it reaches the payload's end.
    """
    cls = _WITH_BATCH.get(type_)
    if cls is None:
        return None
    length = len(payload) if length is None else length
    at = payload.find(_BATCH_TAG, 0, _MOST_HEAD_BYTES)
    while at >= 0:
        if _reaches_end(payload, at + 1, length):
            try:
                return cls.FromString(payload[:at])
            except DecodeError:
                pass  # no tag, but part of another field
        at = payload.find(_BATCH_TAG, at + 1, _MOST_HEAD_BYTES)
    return None


def _reaches_end(payload: bytes, at: int, length: int) -> bool:
    """Whether the field whose size stands here is all that is left of a payload."""
    size = shift = 0
    for byte in payload[at : at + 5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if byte < 0x80:
            return at + size == length
    return False


def plain(record: Record) -> Message | Unknown:
    """The record as reading it back would give it."""
    if isinstance(record, (Joined, Carried, Encoded)):
        type_, pieces, _ = encode(record)
        return decode(type_, b"".join(pieces))
    return record


def atomic(records: Sequence[Record], **fields: str | int) -> Atomic:
    """Several records as one, applied all or not at all; none of them may be an Atomic itself."""
    items = []
    for record in records:
        type_, pieces, _ = encode(record)
        if type_ == ATOMIC:
            raise ValueError("a record of type Atomic can't be inside another")
        items.append(Atomic.Item(type=type_, payload=b"".join(pieces)))
    return Atomic(items=items, **fields)  # type: ignore[arg-type]


def items_of(record: Atomic) -> Iterator[Message | Unknown]:
    """The records inside an Atomic, in order. One level: an Atomic in there is of no writer's making, and carried."""
    for item in record.items:
        yield Unknown(ATOMIC, item.payload) if item.type == ATOMIC else decode(item.type, item.payload)


def placements(record: Record) -> list[Placement]:
    """The offsets that a record gives to messages: what an index must find."""
    if isinstance(record, Joined):
        return [(record.channel_id, record.partition, record.base_offset, record.end_offset)]
    if isinstance(record, Carried):
        record = record[0]
    if isinstance(record, Published):
        base = record.base_offset
        end = end_offset(record) if record.offset_deltas else base + record.count
        return [(record.channel_id, record.partition, base, end)]
    if isinstance(record, DeadLettered):
        return placements(record.published)
    if isinstance(record, Atomic):
        return [place for item in items_of(record) for place in placements(item)]
    return []


def published_in(record: Record) -> Iterator[Published]:
    """Every publish inside a record."""
    if isinstance(record, Published):
        yield record
    elif isinstance(record, DeadLettered):
        yield record.published
    elif isinstance(record, Atomic):
        for item in items_of(record):
            yield from published_in(item)


def end_offset(published: Published) -> int:
    """The offset after the last message; compaction leaves holes, so it is not always base + count."""
    if published.offset_deltas:
        return published.base_offset + published.offset_deltas[-1] + 1
    return published.base_offset + published.count
