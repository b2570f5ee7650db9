"""What a log knows of its channels: names, where each partition starts, which are gone. Imports no pyspark.

Found as the broker finds it at a start: from the newest complete snapshot run, and what follows it. So it costs the
same however much the log holds. Channels that were deleted before that run are not known any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError, Message

from wal.chain import LOST
from wal.frame import Frame
from wal.manifest import SnapshotRun
from wal.pb import wal_pb2 as pb
from wal.record import Atomic, ChannelCreated, ChannelDeleted, ChannelSnapshot, SnapshotBegin, Trimmed, decode
from wal.segment import Gap
from wal.spark.read.listing import Segment, SegmentGone, manifest_of, visible
from wal.spark.read.scan import read

_LOOKS = 3
_TOLD_BY = frozenset(
    {pb.CHANNEL_CREATED, pb.CHANNEL_DELETED, pb.TRIMMED, pb.CHANNEL_SNAPSHOT, pb.SNAPSHOT_BEGIN, pb.ATOMIC}
)


class _Broken(Exception):
    """The snapshot run that reading began with is damaged."""


@dataclass(slots=True)
class Catalog:
    """The channels of one log."""

    log_uuid: str
    names: dict[int, str] = field(default_factory=dict)  # by id; deleted ones too, as far as they are known
    starts: dict[tuple[int, int], int] = field(default_factory=dict)  # channel id, partition: first offset that is kept
    newest: dict[str, int] = field(default_factory=dict)  # by name: the last channel that has, or had, it
    deleted: set[int] = field(default_factory=set)
    is_whole: bool = True  # nothing that may have told of a channel is damaged

    def is_live(self, channel_id: int) -> bool:
        """The channel exists. One that nothing tells of was deleted long ago, unless what told of it is damaged."""
        return channel_id not in self.deleted and (channel_id in self.names or not self.is_whole)

    def ids(self, name: str) -> set[int]:
        """Every channel that has, or had, the name."""
        return {channel_id for channel_id, each in self.names.items() if each == name}

    def take(self, record: Message) -> None:
        if isinstance(record, ChannelCreated | ChannelSnapshot):
            self._name(record.channel_id, record.name)
        elif isinstance(record, ChannelDeleted):
            self.deleted.add(record.channel_id)
        elif isinstance(record, Trimmed):
            self.trim(record.channel_id, record.partition, record.start_offset)
        elif isinstance(record, Atomic):
            for item in record.items:
                if item.type in _TOLD_BY and item.type != pb.ATOMIC:
                    told = decode(item.type, item.payload)
                    if isinstance(told, Message):
                        self.take(told)

    def trim(self, channel_id: int, partition: int, start: int) -> None:
        key = (channel_id, partition)
        self.starts[key] = max(start, self.starts.get(key, 0))

    def _name(self, channel_id: int, name: str) -> None:
        # a name belongs to one channel at a time, so whoever had it before is deleted, told or not
        before = self.newest.get(name, channel_id)
        if before != channel_id:
            self.deleted.add(min(before, channel_id))
        self.newest[name] = max(before, channel_id)
        self.names[channel_id] = name


def catalog_of(root: str) -> Catalog:
    """The channels of the log at a root. Raises NotALog, CorruptSegment, OSError."""
    for look in range(_LOOKS):
        try:
            return _catalog_of(root)
        except SegmentGone:
            if look == _LOOKS - 1:
                raise
    raise AssertionError("unreachable")


def _catalog_of(root: str) -> Catalog:
    manifest = manifest_of(root)
    segments = visible(root)
    for run in reversed(manifest.snapshots):
        try:
            return _read(str(manifest.log_uuid), segments, run)
        except _Broken:
            continue
    catalog = _read(str(manifest.log_uuid), segments, SnapshotRun(0, 0))
    ends = [0, *(segment.last_sequence for segment in segments)]
    if any(segment.first_sequence != end + 1 for segment, end in zip(segments, ends, strict=False)):
        catalog.is_whole = False  # what is no longer there may have told of a channel
    return catalog


def _read(log_uuid: str, segments: list[Segment], run: SnapshotRun) -> Catalog:
    catalog = Catalog(log_uuid)
    partitions: dict[int, int] = {}  # how many of a channel's the parts of its snapshot have told so far
    for item in _items(segments, run.begin):
        if isinstance(item, Gap) or item.type in LOST:
            sequence = item.first_sequence if isinstance(item, Gap) else item.sequence
            if sequence <= run.end:
                raise _Broken
            catalog.is_whole = False
            continue
        try:
            record = decode(item.type, item.payload)
        except DecodeError:
            catalog.is_whole = False
            continue
        if isinstance(record, SnapshotBegin):
            partitions.clear()
        elif isinstance(record, ChannelSnapshot):
            first = partitions.get(record.channel_id, 0) if record.part else 0
            for number, partition in enumerate(record.partitions, first):
                catalog.trim(record.channel_id, number, partition.start_offset)
            partitions[record.channel_id] = first + len(record.partitions)
        if isinstance(record, Message):
            catalog.take(record)
    return catalog


def _items(segments: list[Segment], begin: int) -> Iterator[Frame | Gap]:
    for segment in segments:
        if segment.last_sequence < begin:
            continue
        for item in read(segment):
            if isinstance(item, Gap):
                if item.last_sequence >= begin:
                    yield item
            elif item.sequence >= begin and (item.type in _TOLD_BY or item.type in LOST):
                yield item
