"""Verifying a directory: every CRC, every sequence, every offset, read-only, in bounded memory.

Works on a directory that nobody owns and on one that a broker is writing. What a running writer may do meanwhile is
not damage: bytes after the watermark are still being written, and a segment may be sealed or retired under our eyes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from google.protobuf.message import DecodeError

from wal.check import SegmentCheck, damage_told_by, link_gap, undecodable
from wal.continuity import Damage, Loss, Offsets
from wal.disk import DirectDisk, Disk
from wal.errors import CorruptSegment
from wal.frame import Frame
from wal.index import INDEXED
from wal.manifest import MANIFEST, Manifest, SegmentEntry, read_manifest
from wal.record import DAMAGED, SKIPPED, decode, end_offset, published_in
from wal.segment import Gap

__all__ = ["Damage", "Loss", "Progress", "Report", "verify", "verify_segment"]

Progress = Callable[[int, int], None]  # bytes done, bytes in all


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
        self.offsets = Offsets(self.report.damage)

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
        check = SegmentCheck(self.disk, self.directory, manifest, entry)
        for item in check.items():
            if isinstance(item, Frame):
                self._frame(name, item, entry.is_dense)
            else:
                self.offsets.lose(self._add(name, item), check.losses(item))
        self.report.segments += check.is_read
        self.report.bytes += check.bytes
        self.report.torn_bytes += check.torn_bytes
        if check.has_left or not entry.is_dense:
            self.offsets.forgive()

    def _frame(self, name: str, frame: Frame, is_dense: bool) -> None:
        self.report.frames += 1
        try:
            if frame.type in INDEXED:
                self._follow(name, frame, is_dense)
            elif frame.type in (DAMAGED, SKIPPED):
                self.offsets.forgive()
                if frame.type == DAMAGED:
                    self._add(name, damage_told_by(frame))
        except DecodeError:
            self._add(name, undecodable(frame))

    def _follow(self, name: str, frame: Frame, is_dense: bool) -> None:
        for published in published_in(decode(frame.type, frame.payload)):
            self.report.messages += published.count
            key = (published.channel_id, published.partition)
            self.offsets.meet(key, published.base_offset, name, frame.position, frame.sequence, is_dense=is_dense)
            self.offsets.reach(key, end_offset(published))

    def _check_link(self, manifest: Manifest, before: SegmentEntry | None, entry: SegmentEntry) -> None:
        if before is not None and entry.first_sequence != before.last_sequence + 1:
            self.offsets.forgive()  # what lay between was dropped: a manifest without it is its proof
        gap = link_gap(before, entry)
        if gap is not None:
            self._add(entry.name(manifest.extension), gap)

    def _add(self, name: str, gap: Gap) -> Damage:
        damage = Damage(name, gap.position, gap.end, gap.first_sequence, gap.last_sequence, gap.reason)
        self.report.damage.append(damage)
        return damage
