"""A small log with one of everything, ways to damage it, and the judge of what opening it then tells.

Segments: 1 sealed as written; 2 rewritten (generation 1, gaps in the sequence, offset deltas); 3 sealed; the last one
live. A stop is either clean or not (killed: everything synced, nothing said).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from dictdisk import DictDisk
from walsample import DIRECTORY, SMALL, content_of, open_log, published, put

from wal.chain import walk_chain
from wal.errors import CorruptSegment
from wal.frame import HEADER_BYTES, Frame
from wal.manifest import read_manifest
from wal.record import PUBLISHED, Acked, ChannelCreated, Damaged, Published, atomic, decode, end_offset
from wal.rewrite import Kept, rewrite
from wal.verify import Report, verify


@dataclass(frozen=True)
class Place:
    """Where a frame lies."""

    path: str
    start: int
    end: int
    sequence: int


@dataclass(frozen=True)
class Sample:
    """The files of a log that stopped, and what they mean."""

    files: dict[str, bytes]
    records: dict[int, object]
    frames: tuple[Place, ...]
    live: str  # path of the live segment
    live_end: int

    def disk(self) -> DictDisk:
        return DictDisk(self.files)

    def frames_at(self, path: str, start: int, end: int) -> set[int]:
        """Sequences of the frames that a range of a file touches."""
        return {f.sequence for f in self.frames if f.path == path and f.start < end and start < f.end}

    @property
    def segments(self) -> list[str]:
        """Paths of the chain, in order."""
        return list(dict.fromkeys(frame.path for frame in self.frames))


@cache
def sample(*, is_clean: bool) -> Sample:
    disk = DictDisk()
    log = open_log(disk)
    put(log, [ChannelCreated(channel_id=1, name="orders", partitions=1), published(0), published(1, b"one", b"two")])
    log.rotate()
    put(log, [published(3, b"three", b"four"), published(0, channel=2), Acked(channel_id=1), published(5)], together=2)
    log.rotate()
    both = atomic([published(6), published(1, channel=2), Acked(channel_id=1)])
    put(log, [both, published(7), published(2, channel=2)])
    log.rotate()
    put(log, [published(8), Acked(channel_id=2), published(9, b"x" * 70), published(3, channel=2)])
    _rewrite_second(disk, log)
    if is_clean:
        log.close()
    return _described(disk)


def _rewrite_second(disk: DictDisk, log) -> None:  # type: ignore[no-untyped-def]
    """What a compaction would leave of the second segment: one record less, and one message less in another."""
    manifest = log.manifest
    entry = manifest.segments[1]

    def kept() -> Iterator[Kept]:
        for at, item in walk_chain(disk, DIRECTORY, manifest):
            if at is entry and isinstance(item, Frame) and item.type == PUBLISHED:
                record = Published.FromString(item.payload)
                if record.count == 2:
                    record = published(3, b"four", offset_deltas=[1])
                yield Kept(item.type, item.sequence, record.SerializeToString())

    made = rewrite(
        disk, DIRECTORY, manifest, entry, kept(), salt=b"rewrites", take=disk.create,
        last_sequence=entry.last_sequence,
    )  # fmt: skip
    log.run_between_groups(lambda writer: writer.replace_segments([entry.name(".wal")], [made]))
    log.pump()
    log._reader.read(1, 0, 0, 1 << 20, log.synced)  # the rewritten segment has its sidecar too


def _described(disk: DictDisk) -> Sample:
    manifest = read_manifest(disk, DIRECTORY)
    assert manifest is not None
    frames, records = [], []
    for entry, item in walk_chain(disk, DIRECTORY, manifest):
        assert isinstance(item, Frame)
        path = f"{DIRECTORY}/{entry.name(manifest.extension)}"
        frames.append(Place(path, item.position, item.position + HEADER_BYTES + len(item.payload), item.sequence))
        records.append((item.sequence, decode(item.type, item.payload)))
    files = {path: bytes(data) for path, data in disk.files.items()}
    return Sample(files, content_of(records), tuple(frames), frames[-1].path, frames[-1].end)


@dataclass
class Outcome:
    """What opening a damaged directory gave."""

    records: dict[int, object]
    lost: list[Damaged]
    reported: list[tuple[str, int, int]]  # file and byte range, of what opening or replay found
    torn: dict[str, bytes]
    torn_bytes: int
    report: Report
    files_left_open: int

    def is_lost(self, sequence: int) -> bool:
        return any(each.first_sequence <= sequence <= each.last_sequence for each in self.lost)


def opened(disk: DictDisk, sample_: Sample, *, is_read: bool = True) -> Outcome:
    """Verify, open, replay, read every partition and stop; any exception but those of the log is a failure."""
    report = verify(DIRECTORY, disk=disk)
    log = open_log(disk, SMALL)
    items = list(log.replay())
    lost = [record for _, record in items if isinstance(record, Damaged)]
    reported = [(f"{DIRECTORY}/{d.segment}", d.position, d.position + d.bytes) for d in lost]
    reported += [(f"{DIRECTORY}/{name}", gap.position, gap.end) for name, gap in log.report.damage]
    records = content_of([(sequence, record) for sequence, record in items if not isinstance(record, Damaged)])
    if is_read:
        judge_reads(log, sample_, records)
    torn = {path: bytes(data) for path, data in disk.files.items() if ".torn-" in path}
    torn_bytes = log.report.torn_bytes
    log.close()
    return Outcome(records, lost, reported, torn, torn_bytes, report, disk.open_files)


def judge_reads(log, sample_: Sample, kept: dict[int, object]) -> None:  # type: ignore[no-untyped-def]
    """By offset everything is found that replay finds; what is not there is told, unless nothing follows it."""
    for channel in (1, 2):
        found, told, offset = [], [], 0
        while True:
            try:
                batch = log._reader.read(channel, 0, offset, 200, log.synced)
            except CorruptSegment as error:
                start, end = error.offsets or (0, 0)
                if end <= offset:
                    raise AssertionError("a reader that skips what is lost does not get on") from error
                told.append((start, end))
                offset = end
                continue
            if not batch:
                break
            found += [record.base_offset for record in batch]
            offset = end_offset(batch[-1])
        expected = _bases(sample_.records, channel)
        here = _bases(kept, channel)
        assert [base for base in found if base in here] == found, "nothing invented, nothing twice"
        assert sorted(here) == found, f"nothing outside the damage is lost: {told}"
        for base in expected:
            if base not in here and any(other > base for other in here):
                assert any(start <= base < end for start, end in told), f"{base} is missing without a word"


def _bases(records: dict[int, object], channel: int) -> list[int]:
    bases = []
    for value in records.values():
        name, payload = value  # type: ignore[misc]
        if name == "Published":
            record = Published.FromString(payload)
            bases += [record.base_offset] if record.channel_id == channel else []
        elif name == "Atomic":
            bases += {1: [6], 2: [1]}[channel]
    return sorted(bases)
