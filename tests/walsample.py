"""Records of every type, and small logs made of them: what the tests of the log's bytes share."""

from __future__ import annotations

from collections.abc import Sequence

from dictdisk import Counted, DictDisk, HandClock
from google.protobuf.message import Message

from wal.filelog import FileLog
from wal.options import Options
from wal.pb.wal_pb2 import (
    Batch,
    BatchMessage,
    ChannelSettings,
    GroupSettings,
    Header,
    OffsetRange,
    Part,
    Position,
)
from wal.record import (
    Acked,
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
    Record,
    Redelivered,
    ScheduleCancelled,
    Scheduled,
    Skipped,
    SnapshotBegin,
    SnapshotEnd,
    Sought,
    Trimmed,
    Unknown,
    atomic,
    plain,
)

DIRECTORY = "/log"
NOW_US = 1_700_000_000_000_000
SMALL = Options(segment_bytes=1 << 10, snapshot_bytes=1 << 10, soft_free_bytes=0)


def batch(*contents: bytes) -> bytes:
    messages = [BatchMessage(content=content, key=b"k", headers=[Header(name="h", value=b"v")]) for content in contents]
    return Batch(messages=messages).SerializeToString()


def published(base: int = 0, *contents: bytes, channel: int = 1, partition: int = 0, **fields: object) -> Published:
    contents = contents or (b"hello",)
    times = {"min_timestamp_us": NOW_US, "max_timestamp_us": NOW_US}
    return Published(
        channel_id=channel, partition=partition, base_offset=base, count=len(contents), batch=batch(*contents),
        **{**times, **fields},  # type: ignore[arg-type]
    )  # fmt: skip


def one_of_each() -> list[Message | Unknown]:
    """Every record type with every field set that its golden bytes should pin; the last is from the future."""
    channel = ChannelSettings(max_age_ms=1, max_bytes=2, max_messages=3, drop_acked=True, ttl_ms=4, keep=1)
    channel.tombstone_grace_ms = 5
    group = GroupSettings(
        mode=1, ack_wait_ms=1, max_deliver=2, backoff_ms=[3, 4], max_pending=5, max_pending_per_member=6,
        expire_after_ms=7, session_timeout_ms=8, assignment="sticky",
    )  # fmt: skip
    part = Part(base_offset=0, count=2, producer="p", sequence=9, crc=0x12345678, timestamp_us=NOW_US)
    retry = Redelivered.Retry(start=1, end=3, delivery_count=2, not_before_us=NOW_US + 1)
    where = {"channel_id": 1, "group_id": 1}
    first = published(0, b"one", b"two", parts=[part], ttl_ms=60_000)
    return [
        ChannelCreated(channel_id=1, name="orders", partitions=2, settings=channel, timestamp_us=NOW_US),
        ChannelUpdated(channel_id=1, partitions=3, settings=channel, timestamp_us=NOW_US),
        GroupCreated(
            **where, name="billing", settings=group, start=[Position(partition=1, offset=2)], timestamp_us=NOW_US
        ),
        GroupUpdated(**where, settings=group, timestamp_us=NOW_US),
        first,
        published(2, b"three", schedule_id=4),
        published(3, b"four", b"five", offset_deltas=[1, 6]),
        Scheduled(
            channel_id=1,
            partition=1,
            schedule_id=4,
            due_us=NOW_US + 5,
            count=1,
            producer="p",
            sequence=10,
            crc=1,
            timestamp_us=NOW_US,
            ttl_ms=2,
            batch=batch(b"later"),
        ),
        ScheduleCancelled(channel_id=1, schedule_id=4, timestamp_us=NOW_US),
        DeadLettered(
            **where,
            partition=0,
            range=OffsetRange(start=1, end=2),
            delivery_count=5,
            reason="poison",
            published=published(0, b"two", channel=2),
            timestamp_us=NOW_US,
        ),
        Acked(**where, partition=0, ranges=[OffsetRange(start=0, end=1)], timestamp_us=NOW_US),
        Committed(**where, partition=1, offset=7, timestamp_us=NOW_US),
        Sought(**where, positions=[Position(partition=1, offset=3)], timestamp_us=NOW_US),
        Redelivered(**where, partition=0, retries=[retry], timestamp_us=NOW_US),
        Trimmed(channel_id=1, partition=0, start_offset=1, reason="age", timestamp_us=NOW_US),
        Expired(channel_id=1, partition=0, ranges=[OffsetRange(start=1, end=2)], timestamp_us=NOW_US),
        atomic([published(10, b"six"), published(1, b"seven", channel=2), Acked(**where)], producer="p", sequence=11),
        GroupDeleted(**where, timestamp_us=NOW_US),
        SnapshotBegin(channel_ids=[1, 2], next_channel_id=3, next_group_id=2, next_schedule_id=5, timestamp_us=NOW_US),
        _channel_snapshot(channel, group, retry),
        SnapshotEnd(begin_sequence=19),
        ChannelDeleted(channel_id=2, timestamp_us=NOW_US),
        Damaged(first_sequence=1, last_sequence=2, segment="a", position=64, bytes=9, reason="r", skip=4),
        Skipped(first_sequence=1, last_sequence=2, segment="a", position=64, bytes=9, reason="r", quarantine="q"),
        Unknown(4000, b"from the future"),
    ]


def _channel_snapshot(channel: ChannelSettings, group: GroupSettings, retry: Redelivered.Retry) -> ChannelSnapshot:
    snapshot = ChannelSnapshot(channel_id=1, name="orders", settings=channel, created_us=NOW_US)
    damaged = [OffsetRange(start=3, end=4)]
    snapshot.partitions.add(start_offset=1, next_offset=11, bytes=99, start_timestamp_us=NOW_US, damaged=damaged)
    member = snapshot.groups.add(group_id=1, name="billing", settings=group, seen_us=NOW_US, created_us=1, skipped=2)
    member.cursors.add(partition=0, offset=1, acked=[OffsetRange(start=2, end=3)], retries=[retry])
    producer = snapshot.producers.add(producer="p", seen_us=NOW_US)
    producer.window.add(sequence=9, crc=1, partition=0, base_offset=0, count=2, timestamp_us=NOW_US, schedule_id=4)
    snapshot.schedules.add(schedule_id=4, due_us=NOW_US + 5, sequence=8, count=1)
    return snapshot


def open_log(disk: DictDisk, options: Options = SMALL) -> FileLog:
    """A log without a thread: `pump()` makes what was appended durable."""
    return FileLog.open(DIRECTORY, options, disk=disk, clock=HandClock(), random=Counted(), is_threaded=False)


def put(log: FileLog, records: Sequence[Record], *, together: int = 1) -> None:
    """Append in groups of so many, each made durable before the next."""
    for at in range(0, len(records), together):
        log.append(records[at : at + together])
        log.pump()


def content_of(records: Sequence[tuple[int, Record]]) -> dict[int, object]:
    """Sequences and records in a form that compares quickly."""
    return {sequence: _comparable(plain(record)) for sequence, record in records}


def _comparable(record: Message | Unknown) -> object:
    if isinstance(record, Unknown):
        return record
    return type(record).__name__, record.SerializeToString(deterministic=True)
