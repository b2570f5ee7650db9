"""Verifying a directory: every CRC, every sequence, every offset, read-only, in bounded memory.

Works on a directory that nobody owns and on one that a broker is writing. What a running writer may do meanwhile is
not damage: bytes after the watermark are still being written, and a segment may be sealed or retired under our eyes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

from google.protobuf.message import DecodeError, Message

from wal.chain import missing_gap, open_entry, walk_entry
from wal.disk import DirectDisk, Disk, read_file
from wal.errors import CorruptSegment, WalError
from wal.frame import Frame
from wal.index import INDEXED, SegmentIndex
from wal.manifest import MANIFEST, Manifest, SegmentEntry, read_manifest
from wal.record import DAMAGED, SKIPPED, Damaged, Unknown, decode, end_offset, published_in
from wal.segment import SEGMENT_HEADER_BYTES, Gap, SegmentFile
from wal.tail import kept, survey
from wal.watermark import read_mark

_LOOKS = 3  # at a live segment that seems damaged
Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True, slots=True)
class Loss:
    """Offsets of one partition that can't be read: start <= offset < end."""

    channel_id: int
    partition: int
    start: int
    end: int


@dataclass(slots=True)
class Damage:
    """A range of a file that is not what was written there."""

    segment: str
    position: int
    end: int
    first_sequence: int  # of what is lost; more than last_sequence where no frame is
    last_sequence: int
    reason: str
    offsets: list[Loss] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """What a directory holds, and what is wrong with it."""

    directory: str
    log_uuid: UUID | None = None
    segments: int = 0
    frames: int = 0
    messages: int = 0
    bytes: int = 0
    torn_bytes: int = 0  # at the end of the live segment, never durable: not damage
    damage: list[Damage] = field(default_factory=list)

    @property
    def is_intact(self) -> bool:
        return not self.damage


def verify(directory: str, *, disk: Disk | None = None, progress: Progress | None = None) -> Report:
    """Read everything and report every damaged range. Raises only what reading the directory itself raises."""
    return _Verification(disk or DirectDisk(), directory, progress or (lambda done, total: None)).run()


def verify_segment(
    directory: str, manifest: Manifest, entry: SegmentEntry, *, disk: Disk | None = None
) -> list[Damage]:
    """The damage of one sealed segment: what a scrub looks at in one go."""
    one = _Verification(disk or DirectDisk(), directory, lambda done, total: None)
    one.check_segment(manifest, entry)
    return one.report.damage


class _Verification:
    def __init__(self, disk: Disk, directory: str, progress: Progress) -> None:
        self.disk = disk
        self.directory = directory
        self.progress = progress
        self.report = Report(directory)
        self.offsets = _Offsets(self.report)

    def run(self) -> Report:
        try:
            manifest = read_manifest(self.disk, self.directory)
        except CorruptSegment as error:
            self.report.damage.append(Damage(MANIFEST, error.position, 0, 0, 0, error.reason))
            return self.report
        if manifest is None:
            self.report.damage.append(Damage(MANIFEST, 0, 0, 0, 0, "the manifest is missing"))
            return self.report
        self.report.log_uuid = manifest.log_uuid
        before: SegmentEntry | None = None
        for entry in manifest.segments:
            self._check_link(manifest, before, entry)
            self.check_segment(manifest, entry)
            self.progress(self.report.bytes, sum(each.size for each in manifest.segments))
            before = entry
        return self.report

    def check_segment(self, manifest: Manifest, entry: SegmentEntry) -> None:
        name = entry.name(manifest.extension)
        try:
            segment = open_entry(self.disk, self.directory, manifest, entry)
        except FileNotFoundError:
            if not self._has_left(entry):
                self._add(name, missing_gap(entry, "the segment is missing"))
            return
        self.report.segments += 1
        with segment:
            self.report.bytes += segment.size
            self._check_header(manifest, entry, segment, name)
            index = self._sidecar(entry)
            for item in self._items(manifest, entry, segment):
                if isinstance(item, Frame):
                    self._frame(name, item)
                else:
                    self.offsets.lost(self._add(name, item), index)
        if not entry.is_dense:
            self.offsets.forgive()

    def _items(self, manifest: Manifest, entry: SegmentEntry, segment: SegmentFile) -> Iterator[Frame | Gap]:
        if entry.is_sealed:
            return walk_entry(segment, entry)
        for _ in range(_LOOKS):
            mark = read_mark(self.disk, self.directory, manifest.log_uuid)
            if mark is not None and mark.first_sequence > entry.first_sequence:
                sealed = self._as_sealed(entry)
                if sealed is not None:
                    segment.size = self.disk.size(segment.fd)  # as the seal left it
                    return walk_entry(segment, sealed)
            tail = survey(segment, entry, mark)
            if not tail.corrupt:
                break  # else look again: a frame may have been half written when we read it, and be vouched for by now
        self.report.torn_bytes += tail.torn.size if tail.torn else 0
        return kept(segment, entry, tail)

    def _as_sealed(self, entry: SegmentEntry) -> SegmentEntry | None:
        """The live segment of a moment ago, if it was sealed since we read the manifest."""
        manifest = read_manifest(self.disk, self.directory)
        for now in manifest.segments if manifest is not None else ():
            if (now.first_sequence, now.salt, now.is_sealed) == (entry.first_sequence, entry.salt, True):
                return now
        return None

    def _frame(self, name: str, frame: Frame) -> None:
        self.report.frames += 1
        try:
            if frame.type in INDEXED:
                self.offsets.follow(decode(frame.type, frame.payload), name, frame)
            elif frame.type in (DAMAGED, SKIPPED):
                self.offsets.forgive()
                if frame.type == DAMAGED:
                    lost = Damaged.FromString(frame.payload)
                    reason = f"damage found when the log was opened: {lost.reason}"
                    self._add(name, Gap(frame.position, frame.position, lost.first_sequence, frame.sequence, reason))
        except DecodeError:
            reason = "the record can't be decoded"
            self._add(name, Gap(frame.position, frame.position, frame.sequence, frame.sequence, reason))

    def _check_header(self, manifest: Manifest, entry: SegmentEntry, segment: SegmentFile, name: str) -> None:
        try:
            reason = "" if segment.header() == entry.header(manifest.log_uuid) else "the header is another segment's"
        except WalError as error:
            reason = getattr(error, "reason", str(error))
        if reason:
            first = entry.first_sequence
            self._add(name, Gap(0, SEGMENT_HEADER_BYTES, first, first - 1, reason))

    def _check_link(self, manifest: Manifest, before: SegmentEntry | None, entry: SegmentEntry) -> None:
        if before is None:
            return
        if entry.first_sequence != before.last_sequence + 1:
            self.offsets.forgive()  # what lay between was dropped: a manifest without it is its proof
        elif before.is_dense and entry.is_dense and entry.previous_crc != before.last_crc:
            first = entry.first_sequence
            gap = Gap(0, 0, first, first - 1, "the segment does not continue the one before")
            self._add(entry.name(manifest.extension), gap)

    def _has_left(self, entry: SegmentEntry) -> bool:
        """The segment was retired, or replaced, since we read the manifest."""
        manifest = read_manifest(self.disk, self.directory)
        return manifest is not None and entry not in manifest.segments

    def _sidecar(self, entry: SegmentEntry) -> SegmentIndex | None:
        try:
            data = read_file(self.disk, f"{self.directory}/{entry.name('.idx')}")
        except OSError:
            return None
        return SegmentIndex.unpack(data, entry.salt_bytes, entry.size)

    def _add(self, name: str, gap: Gap) -> Damage:
        damage = Damage(name, gap.position, gap.end, gap.first_sequence, gap.last_sequence, gap.reason)
        self.report.damage.append(damage)
        return damage


class _Offsets:
    """Follows every partition's offsets through the log, and tells which ones a damaged range took."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self._next: dict[tuple[int, int], tuple[int, int, int]] = {}  # next offset, damage and holes known then
        self._holes = 0  # places where offsets may be missing for a good reason

    def forgive(self) -> None:
        self._holes += 1

    def follow(self, record: Message | Unknown, name: str, frame: Frame) -> None:
        for published in published_in(record):
            self.report.messages += published.count
            key = (published.channel_id, published.partition)
            expected, known_damage, holes = self._next.get(key, (published.base_offset, 0, self._holes))
            loss = Loss(*key, expected, published.base_offset)
            if published.base_offset < expected:
                self._complain(name, frame, f"offsets from {published.base_offset} on stand here again", loss)
            elif published.base_offset > expected and len(self.report.damage) > known_damage:
                since = self.report.damage[known_damage:]
                taken = next((damage for damage in since if damage.last_sequence >= damage.first_sequence), since[0])
                taken.offsets.append(loss)
            elif published.base_offset > expected and holes == self._holes:
                self._complain(name, frame, f"offsets from {expected} on are missing", loss)
            end = max(expected, end_offset(published))
            self._next[key] = (end, len(self.report.damage), self._holes)

    def lost(self, damage: Damage, index: SegmentIndex | None) -> None:
        """An index made before the damage knows exactly what was there."""
        if index is None or index.gaps:
            return
        for key, places in index.partitions.items():
            for base, end, position in zip(places.bases, places.ends, places.positions, strict=True):
                if damage.position <= position < max(damage.end, damage.position + 1):
                    damage.offsets.append(Loss(*key, base, end))
                    self._next[key] = (end, len(self.report.damage), self._holes)

    def _complain(self, name: str, frame: Frame, reason: str, loss: Loss) -> None:
        damage = Damage(name, frame.position, frame.position, frame.sequence, frame.sequence, reason, [loss])
        self.report.damage.append(damage)
