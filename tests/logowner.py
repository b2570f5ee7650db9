"""A process that owns a log on the model disk and remembers what it appended and what it was told."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from unittest.mock import patch

from modeldisk import ModelDisk, Unsynced

from wal.chain import open_entry, walk_entry
from wal.filelog import FileLog
from wal.frame import Frame
from wal.install import STAGING, Proposal
from wal.manifest import SegmentEntry
from wal.options import Options
from wal.record import PUBLISHED, ChannelSnapshot, Published, Record, SnapshotBegin, SnapshotEnd, encode
from wal.recovery import _Opening
from wal.segment import SealedWriter, SegmentFile
from wal.tail import Tail

DIRECTORY = "/data/log"
SMALL = Options(
    segment_bytes=2048,
    bytes_per_sync=1500,
    queue_bytes=1 << 20,
    max_record_bytes=8192,
    snapshot_bytes=1024,
    soft_free_bytes=0,
    retire_grace_us=0,
)


class Violation(AssertionError):
    """A promise was broken."""


def content_of(record: Record) -> tuple[int, bytes]:
    type_, pieces, *_ = encode(record)
    return type_, b"".join(pieces)


class HandClock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now_us(self) -> int:
        return int(self.seconds * 1e6)

    def monotonic(self) -> float:
        return self.seconds


@dataclass
class History:
    """What was appended, and how much of it nobody may lose."""

    contents: list[tuple[int, bytes]] = field(default_factory=list)  # type and payload; item i has sequence i + 1
    offsets: list[int] = field(default_factory=lambda: [0, 0])  # next one of each partition
    floor: int = 0  # sequence up to which it was reported synced, or served after an opening

    def up_to(self, last: int) -> History:
        """The history as a process knows it that found `last` records and served them."""
        kept = self.contents[:last]
        offsets = [0, 0]
        for type_, payload in kept:
            if type_ == PUBLISHED:
                published = Published.FromString(payload)
                offsets[published.partition] = published.base_offset + published.count
        return History(kept, offsets, last)


@contextmanager
def refusing_disk() -> Iterator[None]:
    """No frame can be written where it was: an opening after a kill has to copy the live segment."""
    whole = _Opening._write_again

    def write_again(
        self: _Opening, path: str, segment: SegmentFile, entry: SegmentEntry, tail: Tail, end: bytes
    ) -> None:
        if tail.frames:
            raise OSError(errno.EIO, "a bad sector")
        whole(self, path, segment, entry, tail, end)

    with patch.object(_Opening, "_write_again", write_again):
        yield


class Owner:
    """A process that owns a log, and writes down what it appended and what it was told."""

    def __init__(self, disk: ModelDisk, history: History, rng: Random, options: Options = SMALL) -> None:
        self.disk, self.history, self.rng = disk, history, rng
        self.clock = HandClock()
        self.log = FileLog.open(
            DIRECTORY, options, disk=disk, clock=self.clock, random=rng.randbytes, is_threaded=False
        )
        self.failures: list[BaseException] = []
        self.log.start(self._on_marks, self.failures.append)

    def _on_marks(self, written: int, synced: int) -> None:
        if not synced <= written <= len(self.history.contents):
            raise Violation(f"marks {written}, {synced} after {len(self.history.contents)} records")
        self.history.floor = max(self.history.floor, synced)

    def append(self, records: list[Record], *, sync: bool = True, essential: bool = False) -> None:
        last = self.log.append(records, sync=sync, essential=essential)
        for record in records:
            type_, pieces, _ = encode(record)
            self.history.contents.append((type_, b"".join(pieces)))
        if last != len(self.history.contents):
            raise Violation(f"append gave {last} to record {len(self.history.contents)}")

    def publish(self, count: int = 1, *, sync: bool = True, size: int = 0, essential: bool = False) -> None:
        self.append([self._published(size) for _ in range(count)], sync=sync, essential=essential)

    def _published(self, size: int) -> Published:
        partition = self.rng.randrange(2)
        base, count = self.history.offsets[partition], self.rng.randint(1, 3)
        self.history.offsets[partition] += count
        batch = self.rng.randbytes(size or self.rng.choice((1, 20, 90, 200, 480)))
        return Published(channel_id=1, partition=partition, base_offset=base, count=count, batch=batch)

    def snapshot(self, *, between: bool) -> None:
        """A run of snapshot records, with other records between them or not."""
        self.append([SnapshotBegin(channel_ids=[1])], sync=False, essential=True)
        begin = self.log.last_sequence
        if between:
            self.publish(2, sync=False, essential=True)
            self.log.pump()
        self.append([ChannelSnapshot(channel_id=1, name="x" * self.rng.randint(1, 300))], essential=True)
        self.append([SnapshotEnd(begin_sequence=begin)], essential=True)

    def install(self) -> None:
        """Replace some sealed segments by one that holds the same frames, as a compaction that found nothing would."""
        disk, manifest = self.disk, self.log.manifest
        sealed = [entry for entry in manifest.segments if entry.is_sealed]
        if not sealed:
            return
        first = self.rng.randrange(len(sealed))
        inputs = sealed[first : first + self.rng.randint(1, 3)]
        staging = f"{DIRECTORY}/{STAGING}"
        disk.make_directory(staging)
        fd = disk.create(f"{staging}/{self.log.manifest.edition}")
        header = replace(
            inputs[0].header(manifest.log_uuid), generation=inputs[0].generation + 1, salt=self.rng.randbytes(8)
        )
        output = SealedWriter(Unsynced(disk), fd, header)  # other programs do not sync what they write
        for entry in inputs:
            with open_entry(disk, DIRECTORY, manifest, entry) as segment:
                for frame in walk_entry(segment, entry):
                    assert isinstance(frame, Frame)
                    output.add(frame.type, frame.sequence, [frame.payload])
        output.seal()
        disk.close(fd)
        names = tuple(entry.name(manifest.extension) for entry in inputs)
        proposal = Proposal(names, (str(manifest.edition),))
        self.log.install_now(proposal, lambda *_: False)
