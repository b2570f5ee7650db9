"""One segment, read once and boiled down to rows: what an audit needs of it, in a size that does not follow its bytes.

Imports no pyspark: a worker calls this, and so may any process. A row describes a segment by lists, one for each table;
a segment with very many keys, producers or acks has several rows, whose lists add up. What grows with the messages is
handed on as it comes, so that memory is bounded for a segment of any size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa
from google.protobuf.message import DecodeError, Message

from wal.check import SegmentCheck, damage_told_by, undecodable
from wal.continuity import Key
from wal.disk import Disk
from wal.frame import HEADER_BYTES as FRAME_BYTES
from wal.frame import Frame
from wal.index import INDEXED
from wal.manifest import Manifest, SegmentEntry
from wal.pb import wal_pb2 as pb
from wal.record import DAMAGED, PUBLISHED, SKIPPED, Published, Unknown, decode, end_offset, items_of
from wal.spark.audit.consumption import Consumption
from wal.spark.audit.offsetruns import Runs
from wal.spark.audit.sample import Sample
from wal.spark.audit.traffic import Traffic

_LOOK_EVERY = 256  # frames, before it is asked again whether lists have grown large


def _rows(**columns: pa.DataType) -> pa.DataType:
    return pa.list_(pa.struct(list(columns.items())))


_I64, _I32 = pa.int64(), pa.int32()
_CHANNEL, _PARTITION = {"channel_id": _I64}, {"channel_id": _I64, "partition": _I32}
_GROUP = {"channel_id": _I64, "group_id": _I64}
_LOSS = pa.list_(pa.struct([("channel_id", _I64), ("partition", _I32), ("start", _I64), ("end", _I64)]))

# The columns that are one value each, and zero or null in all but the last row of a segment.
SCALARS = {
    "number": _I32,  # of the segment in the chain, from 0
    "segment": pa.string(),
    "generation": _I32,
    "is_sealed": pa.bool_(),
    "state": pa.string(),  # read, missing, left (retired while the audit ran); null: more rows follow
    "first_sequence": _I64,
    "last_sequence": _I64,
    "bytes": _I64,
    "torn_bytes": _I64,
    "frames": _I64,
    "messages": _I64,
    "other_bytes": _I64,  # of frames that hold no messages
}
# The columns that are lists: each is a table, once the segments are put together.
TABLES: dict[str, pa.DataType] = {
    "runs": _rows(**_PARTITION, opened=_I64, closed=_I64, base=_I64, end=_I64, position=_I64, sequence=_I64,
                  is_first=pa.bool_()),
    "findings": _rows(number=_I64, position=_I64, end=_I64, first_sequence=_I64, last_sequence=_I64,
                      reason=pa.string(), losses=_LOSS),
    "partitions": _rows(**_PARTITION, frames=_I64, messages=_I64, bytes=_I64, first_offset=_I64, end_offset=_I64,
                        max_batch=_I64, min_us=_I64, max_us=_I64),
    "batches": _rows(**_CHANNEL, bits=_I32, frames=_I64),
    "rates": _rows(**_PARTITION, start_us=_I64, width_us=_I64, messages=_I64, bytes=_I64, end_offset=_I64),
    "producers": _rows(**_CHANNEL, producer=pa.string(), first=_I64, last=_I64),
    # when offsets were published (group_id is null) and acked: see wal.spark.audit.steps
    "steps": _rows(**_PARTITION, stretch=_I64, group_id=_I64, packed=pa.binary()),
    "groups": _rows(**_GROUP, partition=_I32, acked=_I64, acks=_I64, redelivered=_I64, max_deliveries=_I64,
                    dead_letters=_I64),
    "reasons": _rows(**_GROUP, reason=pa.string(), messages=_I64),
    "commits": _rows(**_GROUP, partition=_I32, first_offset=_I64, first_us=_I64, last_offset=_I64),
    "progress": _rows(**_GROUP, partition=_I32, start_us=_I64, reset=_I64, done=_I64),
    "starts": _rows(**_PARTITION, time_us=_I64, start_offset=_I64, expired=_I64),
    "names": _rows(**_GROUP, name=pa.string(), keeps_latest=pa.bool_(), is_deleted=pa.bool_()),
    "samples": _rows(**_CHANNEL, frames=_I64, messages=_I64, keyed=_I64, value_bytes=_I64, batch_bytes=_I64,
                     compressed_bytes=_I64, malformed=_I64),
    "sizes": _rows(**_CHANNEL, bits=_I32, messages=_I64),
    "keys": _rows(**_CHANNEL, key=pa.binary(), messages=_I64),
}  # fmt: skip
LARGE = ("steps", "keys", "producers")  # the lists that grow with the messages: for Spark to put together
SMALL = pa.schema([*SCALARS.items(), *((name, kind) for name, kind in TABLES.items() if name not in LARGE)])
# A row as it travels: all that is small is one value, which Spark need not understand; null: more rows follow.
_OWN = [("number", _I32), ("small", pa.binary()), ("weight", _I64)]  # `weight`: about the bytes of the lists
SCHEMA = pa.schema([*_OWN, *((name, TABLES[name]) for name in LARGE)])
_ROW_BYTES = 64
_LOSS_FIELDS = ("channel_id", "partition", "start", "end")
_FIELDS = {name: [field.name for field in kind.value_type] for name, kind in TABLES.items()}


def summarise(
    disk: Disk,
    directory: str,
    manifest: Manifest,
    number: int,
    entry: SegmentEntry,
    *,
    is_deep: bool = False,
    floors: Mapping[Key, int] | None = None,
) -> Iterator[dict[str, Any]]:
    """The rows of one segment, the chain's so-and-so-manyth; the last of them is complete.

    `is_deep`: look into every message, not into a sample. `floors`: see `wal.spark.audit.offsetruns`.
    """
    check = SegmentCheck(disk, directory, manifest, entry)
    summary = Summary(entry, is_deep, floors)
    for item in check.items():
        if isinstance(item, Frame):
            summary.frame(item)
            if summary.frames % _LOOK_EVERY == 0 and summary.is_large():
                yield _row(number, summary.take_large())
        else:
            summary.runs.damage(item, check.losses(item))
    state = "read" if check.is_read else "left" if check.has_left else "missing"
    row = _row(number, summary.take())
    row.update(
        segment=entry.name(manifest.extension), generation=entry.generation, is_sealed=entry.is_sealed, state=state,
        first_sequence=entry.first_sequence, last_sequence=max(entry.last_sequence, summary.last_sequence),
        bytes=check.bytes, torn_bytes=check.torn_bytes, frames=summary.frames, messages=summary.traffic.messages,
        other_bytes=summary.other_bytes,
    )  # fmt: skip
    yield row


def record_batch(row: dict[str, Any]) -> pa.RecordBatch:
    """A row in the form that Spark takes."""
    small = packed(row) if row["state"] is not None else None
    weight = sum(_ROW_BYTES * len(row[name]) for name in LARGE) + sum(len(each["packed"]) for each in row["steps"])
    told = {"number": row["number"], "small": small, "weight": weight, **{name: row[name] for name in LARGE}}
    return pa.RecordBatch.from_pylist([told], schema=SCHEMA)


def packed(row: dict[str, Any]) -> bytes:
    """All that is small about a segment."""
    batch = pa.RecordBatch.from_pylist([{name: row[name] for name in SMALL.names}], schema=SMALL)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SMALL) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


def unpacked(rows: Iterable[bytes]) -> pa.Table:
    """What `packed` made of all segments, as one table in the order of the log."""
    made = [pa.ipc.open_stream(each).read_all() for each in rows]
    return pa.concat_tables([SMALL.empty_table(), *made]).sort_by("number")


class Summary:
    """Grows frame by frame."""

    def __init__(self, entry: SegmentEntry, is_deep: bool, floors: Mapping[Key, int] | None = None) -> None:
        self.runs = Runs(entry.is_dense, floors)
        self.traffic = Traffic()
        self.consumption = Consumption()
        self.sample = Sample(is_deep)
        self.frames = 0
        self.other_bytes = 0
        self.last_sequence = 0
        self._now = 0  # about when the last record was written; snapshots tell no time of their own
        self._starts: dict[Key, tuple[int, int]] = {}  # when it was told, and the offset
        self._expired: Counter[Key] = Counter()
        self._names: dict[tuple[int, int], tuple[str | None, bool | None, bool]] = {}
        self._partitions_told = 0  # by the parts of a snapshot so far

    def frame(self, frame: Frame) -> None:
        self.frames += 1
        self.last_sequence = frame.sequence
        if frame.type == PUBLISHED:
            try:
                record = Published.FromString(frame.payload)
            except DecodeError:
                self.runs.damage(undecodable(frame))
            else:
                self._publish(frame, record, FRAME_BYTES + len(frame.payload))
        elif frame.type in INDEXED:
            self._judged(self._nested, frame)
        elif frame.type in (DAMAGED, SKIPPED):
            self._judged(self._lost, frame)
        else:
            self.other_bytes += FRAME_BYTES + len(frame.payload)
            with suppress(DecodeError):  # nobody's offsets depend on it
                self._act(decode(frame.type, frame.payload))

    def is_large(self) -> bool:
        return self.traffic.is_large() or self.consumption.is_large() or self.sample.is_large()

    def take_large(self) -> dict[str, list[Any]]:
        return {**self.traffic.take_large(), **self.sample.take_large(), "steps": self._steps()}

    def take(self) -> dict[str, list[Any]]:
        keys = self._starts.keys() | self._expired.keys()
        return {
            **self.traffic.take(),
            **self.consumption.take(),
            **self.sample.take(),
            "steps": self._steps(),
            "runs": self.runs.runs(),
            "findings": [
                (*finding[:-1], [(loss.channel_id, loss.partition, loss.start, loss.end) for loss in finding.losses])
                for finding in self.runs.findings
            ],
            "starts": [(*key, *self._starts.get(key, (0, 0)), self._expired[key]) for key in keys],
            "names": [(*where, *what) for where, what in self._names.items()],
        }

    def _steps(self) -> list[tuple[Any, ...]]:
        published = [(*key, stretch, None, packed) for key, stretch, packed in self.traffic.times.take()]
        acked = [
            (channel_id, partition, stretch, group_id, packed)
            for (channel_id, group_id, partition), stretch, packed in self.consumption.acks.take()
        ]
        return published + acked

    # ------------------------------------------------------------ what gives offsets to messages

    def _judged(self, read: Callable[[Frame], None], frame: Frame) -> None:
        try:
            read(frame)
        except DecodeError:
            self.runs.damage(undecodable(frame))

    def _publish(self, frame: Frame, record: Published, size: int) -> None:
        channel_id = record.channel_id
        key = (channel_id, record.partition)
        end = end_offset(record)
        self.runs.publish(key, record.base_offset, end, frame.position, frame.sequence)
        self.traffic.published(key, record, end, size)
        if self.sample.wants(channel_id, frame.sequence):
            self.sample.add(channel_id, record.batch)
        self._now = record.max_timestamp_us

    def _nested(self, frame: Frame) -> None:
        """Dead letters, and transactions of several records."""
        record = decode(frame.type, frame.payload)
        inside: Iterable[Message | Unknown] = items_of(record) if isinstance(record, pb.Atomic) else [record]
        rest = FRAME_BYTES + len(frame.payload)
        first: int | None = None
        for item in inside:
            published = item.published if isinstance(item, pb.DeadLettered) else item
            if isinstance(published, Published):
                size = published.ByteSize()
                rest -= size
                self._publish(frame, published, size)
            if published is not item or not isinstance(item, Published):
                self._act(item)
            if first is None:
                first = getattr(item, "channel_id", None)
        self.other_bytes += max(0, rest)
        if isinstance(record, pb.Atomic) and record.producer and first is not None:
            self.traffic.produced(first, record.producer, record.sequence)

    def _lost(self, frame: Frame) -> None:
        self.other_bytes += FRAME_BYTES + len(frame.payload)
        self.runs.forgive()
        if frame.type == DAMAGED:
            self.runs.damage(damage_told_by(frame))

    # ------------------------------------------------------------ everything else

    def _act(self, record: Message | Unknown) -> None:
        act = _ACTS.get(type(record))
        if act is not None:
            act(self, record)

    def _named(self, record: pb.ChannelCreated) -> None:
        self._names[record.channel_id, 0] = (record.name, record.settings.keep == _LATEST, False)

    def _updated(self, record: pb.ChannelUpdated) -> None:
        name, _, is_deleted = self._names.get((record.channel_id, 0), (None, None, False))
        self._names[record.channel_id, 0] = (name, record.settings.keep == _LATEST, is_deleted)

    def _deleted(self, record: pb.ChannelDeleted | pb.GroupDeleted) -> None:
        where = (record.channel_id, getattr(record, "group_id", 0))
        name, keeps_latest, _ = self._names.get(where, (None, None, False))
        self._names[where] = (name, keeps_latest, True)

    def _group_created(self, record: pb.GroupCreated) -> None:
        self._names[record.channel_id, record.group_id] = (record.name, None, False)
        self.consumption.placed(record.channel_id, record.group_id, record.start, record.timestamp_us)

    def _sought(self, record: pb.Sought) -> None:
        self.consumption.placed(record.channel_id, record.group_id, record.positions, record.timestamp_us)

    def _trimmed(self, record: pb.Trimmed) -> None:
        self._start((record.channel_id, record.partition), record.timestamp_us, record.start_offset)

    def _start(self, key: Key, time_us: int, offset: int) -> None:
        if key not in self._starts or offset > self._starts[key][1]:
            self._starts[key] = (time_us, offset)

    def _expire(self, record: pb.Expired) -> None:
        lost = sum(each.end - each.start for each in record.ranges)
        self._expired[record.channel_id, record.partition] += lost

    def _snapshot_began(self, record: pb.SnapshotBegin) -> None:
        self._now = record.timestamp_us

    def _snapshot(self, record: pb.ChannelSnapshot) -> None:
        channel_id = record.channel_id
        if not record.part:
            self._partitions_told = 0
            self._names[channel_id, 0] = (record.name, record.settings.keep == _LATEST, False)
        for partition in record.partitions:
            self._start((channel_id, self._partitions_told), self._now, partition.start_offset)
            self._partitions_told += 1
        for group in record.groups:
            if group.name:
                self._names[channel_id, group.group_id] = (group.name, None, False)
        if self._now:
            self.consumption.snapshot(record, self._now)


_LATEST = pb.ChannelSettings.KEEP_LATEST_PER_KEY
_ACTS: dict[type[Any], Callable[[Summary, Any], None]] = {
    pb.ChannelCreated: Summary._named,
    pb.ChannelUpdated: Summary._updated,
    pb.ChannelDeleted: Summary._deleted,
    pb.GroupCreated: Summary._group_created,
    pb.GroupDeleted: Summary._deleted,
    pb.Sought: Summary._sought,
    pb.Trimmed: Summary._trimmed,
    pb.Expired: Summary._expire,
    pb.SnapshotBegin: Summary._snapshot_began,
    pb.ChannelSnapshot: Summary._snapshot,
    pb.Acked: lambda self, record: self.consumption.acked(record),
    pb.Committed: lambda self, record: self.consumption.committed(record),
    pb.Redelivered: lambda self, record: self.consumption.redelivered(record),
    pb.DeadLettered: lambda self, record: self.consumption.dead_lettered(record),
    pb.Scheduled: lambda self, record: self.traffic.scheduled(record),
}


def _row(number: int, lists: dict[str, list[Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {"number": number, **dict.fromkeys(SCALARS.keys() - {"number"})}
    for name, fields in _FIELDS.items():
        row[name] = [dict(zip(fields, values, strict=True)) for values in lists.get(name, ())]
    for finding in row["findings"]:
        finding["losses"] = [dict(zip(_LOSS_FIELDS, loss, strict=True)) for loss in finding["losses"]]
    return row
