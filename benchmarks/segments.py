"""Sealed segments in quantity, as a broker would have left them: what the Spark benchmarks read.

Written directly, without a broker, so that gigabytes take seconds. Each publish is one frame; a group acks what came
two frames before, with a spread of latencies. Batches are all the same unless messages have keys.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

from wal.disk import DirectDisk
from wal.manifest import Manifest, SegmentEntry, swap_manifest
from wal.pb.wal_pb2 import Batch, BatchMessage, ChannelSettings, OffsetRange, Position
from wal.record import Acked, ChannelCreated, GroupCreated, Published, Record, encode
from wal.segment import SealedWriter, SegmentHeader, segment_name

START_US = 1_700_000_000_000_000
CHANNEL, SCRAP, GROUP = 1, 2, 1


@dataclass(frozen=True, slots=True)
class Shape:
    """What a generated log looks like."""

    segments: int = 8
    segment_bytes: int = 64 << 20
    messages_per_frame: int = 500
    message_bytes: int = 100
    keys: int = 0  # how many different ones; 0: messages have none
    acks: bool = True
    keep_latest: bool = False  # the channel asks for it
    scrap: bool = False  # every second publish is to another channel, for a compaction to drop
    channel: str = "orders"


def generate(directory: str, shape: Shape) -> int:
    """Write a log into an empty directory; returns its number of messages."""
    disk = DirectDisk()
    disk.make_directory(directory)
    uuid = uuid4()
    entries: list[SegmentEntry] = []
    records = _Records(shape)
    sequence, previous = 1, (0, 0)
    for _ in range(shape.segments):
        header = SegmentHeader(uuid, sequence, 0, os.urandom(8), *previous)
        entry = _segment(disk, directory, header, shape, records)
        entries.append(entry)
        sequence, previous = entry.last_sequence + 1, (entry.last_sequence, entry.last_crc)
    swap_manifest(disk, directory, Manifest(uuid, segments=tuple(entries)))
    return records.messages


def _segment(disk: DirectDisk, directory: str, header: SegmentHeader, shape: Shape, records: _Records) -> SegmentEntry:
    fd = disk.create(os.path.join(directory, segment_name(header.first_sequence, header.generation)))
    try:
        writer = SealedWriter(disk, fd, header)
        sequence = header.first_sequence
        while writer.position < shape.segment_bytes:
            type_, pieces, _ = encode(next(records))
            writer.add(type_, sequence, pieces)
            sequence += 1
        size = writer.seal()
    finally:
        disk.close(fd)
    return SegmentEntry.of(
        header, last_sequence=writer.last_sequence, is_sealed=True, size=size, last_crc=writer.last_crc
    )


class _Records(Iterator[Record]):
    """The records of one channel and one group."""

    def __init__(self, shape: Shape) -> None:
        self.messages = 0
        self._shape = shape
        self._random = random.Random(1)
        self._all = self._make()

    def __next__(self) -> Record:
        return next(self._all)

    def _make(self) -> Iterator[Record]:
        shape, now, count = self._shape, START_US, self._shape.messages_per_frame
        keep = ChannelSettings.KEEP_LATEST_PER_KEY if shape.keep_latest else ChannelSettings.KEEP_ALL
        settings = ChannelSettings(keep=keep)
        yield ChannelCreated(channel_id=CHANNEL, name=shape.channel, partitions=1, settings=settings, timestamp_us=now)
        yield GroupCreated(
            channel_id=CHANNEL, group_id=GROUP, name="billing", start=[Position(partition=0)], timestamp_us=now
        )
        if shape.scrap:
            yield ChannelCreated(channel_id=SCRAP, name="scrap", partitions=1, timestamp_us=now)
        same = b"" if shape.keys else self._batch()
        while True:
            base = self.messages
            batch = same or self._batch()
            now += 1_000
            yield Published(
                channel_id=CHANNEL,
                base_offset=base,
                count=count,
                min_timestamp_us=now,
                max_timestamp_us=now,
                batch=batch,
            )
            self.messages += count
            if shape.scrap:
                yield Published(
                    channel_id=SCRAP,
                    base_offset=base,
                    count=count,
                    min_timestamp_us=now,
                    max_timestamp_us=now,
                    batch=batch,
                )
            if shape.acks and base >= 2 * count:
                start = base - 2 * count
                yield Acked(
                    channel_id=CHANNEL,
                    group_id=GROUP,
                    ranges=[OffsetRange(start=start, end=start + count)],
                    timestamp_us=now + self._random.randrange(100_000),
                )

    def _batch(self) -> bytes:
        shape, draw = self._shape, self._random
        content = draw.randbytes(shape.message_bytes)
        messages = [BatchMessage(content=content) for _ in range(shape.messages_per_frame)]
        if shape.keys:
            for message in messages:
                message.key = b"%d" % draw.randrange(shape.keys)
        return Batch(messages=messages).SerializeToString()
