"""Repairing a directory by hand: everything intact stays, what is damaged is put aside, and the log says so.

Never automatic. Opening a log lives with damage and reports it; this is the operator's decision to go on without
what is lost. Damaged bytes go to `quarantine/`, a Skipped record takes their place, and a lost manifest is rebuilt
from the segments themselves.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

from google.protobuf.message import DecodeError

from wal.backup import check_unmarked
from wal.chain import missing_gap, open_entry, walk_entry
from wal.clock import Clock, SystemClock
from wal.disk import LOCK, DirectDisk, Disk
from wal.errors import CorruptSegment, WalError
from wal.filelog import FileLog
from wal.frame import Frame
from wal.manifest import MANIFEST, Manifest, Retired, SegmentEntry, SnapshotRun, read_manifest, swap_manifest
from wal.options import Options
from wal.reader import damaged
from wal.record import DAMAGED, SEAL, SKIPPED, SNAPSHOT_END, Damaged, Skipped, SnapshotEnd
from wal.recovery import quarantine
from wal.rewrite import Kept, rewrite
from wal.segment import SEGMENT_HEADER_BYTES, Gap, SegmentFile, SegmentHeader
from wal.verify import Progress


@dataclass(slots=True)
class Repaired:
    """What a repair did."""

    is_manifest_rebuilt: bool = False
    skipped: list[Skipped] = field(default_factory=list)
    rewritten: list[str] = field(default_factory=list)


def repair(
    directory: str,
    *,
    disk: Disk | None = None,
    clock: Clock | None = None,
    extension: str = ".wal",
    progress: Progress | None = None,
) -> Repaired:
    """Make a stopped log whole again without its damaged ranges. Raises LogLocked, BackupRefused."""
    disk = disk or DirectDisk()
    clock = clock or SystemClock()
    done = Repaired()
    check_unmarked(disk, directory)  # a manifest would make an interrupted backup look like a whole one
    _ensure_manifest(disk, directory, extension, clock.now_us(), done)
    log = FileLog.open(directory, Options(extension=extension), disk=disk, clock=clock, is_threaded=False)
    try:
        manifest = log.manifest
        sealed = [entry for entry in manifest.segments if entry.is_sealed]
        for number, entry in enumerate(sealed):
            _Repair(disk, directory, manifest, entry, clock, done).run(log)
            if progress is not None:
                progress(number + 1, len(sealed))
        log.pump()
    finally:
        log.close()
    return done


class _Repair:
    """The repair of one sealed segment."""

    def __init__(
        self, disk: Disk, directory: str, manifest: Manifest, entry: SegmentEntry, clock: Clock, done: Repaired
    ) -> None:
        self.disk, self.directory, self.manifest, self.entry = disk, directory, manifest, entry
        self.clock, self.done = clock, done
        self.name = entry.name(manifest.extension)

    def run(self, log: FileLog) -> None:
        try:
            segment = open_entry(self.disk, self.directory, self.manifest, self.entry)
        except FileNotFoundError:
            self._rewrite(log, iter([self._skip(missing_gap(self.entry, "the segment is missing"), "")]))
            return
        with segment:
            if self._is_whole(segment):
                return
            self._rewrite(log, self._kept(segment))

    def _is_whole(self, segment: SegmentFile) -> bool:
        try:
            if segment.header() != self.entry.header(self.manifest.log_uuid):
                return False
        except WalError:
            return False
        return all(isinstance(item, Frame) and item.type != DAMAGED for item in walk_entry(segment, self.entry))

    def _kept(self, segment: SegmentFile) -> Iterator[Kept]:
        last = 0
        told, free = self._told_by_the_seal(segment)
        for item in walk_entry(segment, self.entry):
            if told is not None and isinstance(item, Frame) and item.sequence > free:
                yield self._accept(damaged(told, self.name), free, quarantine(self.disk, self.directory, segment, told))
                told = None
            if isinstance(item, Gap):
                if item.last_sequence > last:  # foreign bytes between two frames cost no frame
                    yield self._skip(item, quarantine(self.disk, self.directory, segment, item))
                    last = item.last_sequence
            elif item.type == DAMAGED:
                yield self._accept(Damaged.FromString(item.payload), item.sequence)
                last = item.sequence
            else:
                yield Kept(item.type, item.sequence, item.payload)
                last = item.sequence

    def _told_by_the_seal(self, segment: SegmentFile) -> tuple[Gap | None, int]:
        """The loss of whole frames of a rewritten segment, and a sequence for the record of it.

        The walk tells of it at the end, when the frame with the last sequence is past. But what is gone had one too.
        """
        last, free = self.entry.first_sequence - 1, 0
        for item in walk_entry(segment, self.entry):
            if isinstance(item, Gap):
                is_past = free > 0 and item.first_sequence <= item.last_sequence <= last
                return (item, free) if is_past else (None, 0)
            if item.sequence > last + 1:
                free = item.sequence - 1
            last = item.sequence
        return None, 0

    def _skip(self, gap: Gap, kept_as: str) -> Kept:
        return self._accept(damaged(gap, self.name), gap.last_sequence, kept_as)

    def _accept(self, lost: Damaged, sequence: int, kept_as: str = "") -> Kept:
        skipped = Skipped.FromString(lost.SerializeToString())  # the same fields under the same numbers
        skipped.timestamp_us = self.clock.now_us()
        skipped.quarantine = kept_as
        self.done.skipped.append(skipped)
        return Kept(SKIPPED, sequence, skipped.SerializeToString())

    def _rewrite(self, log: FileLog, frames: Iterator[Kept]) -> None:
        made = rewrite(
            self.disk,
            self.directory,
            self.manifest,
            self.entry,
            frames,
            salt=os.urandom(8),
            take=self.disk.create,
            last_sequence=self.entry.last_sequence,
        )
        log.run_between_groups(lambda writer: writer.replace_segments([self.name], [made]))
        log.pump()
        self.done.rewritten.append(self.name)


def _ensure_manifest(disk: Disk, directory: str, extension: str, now_us: int, done: Repaired) -> None:
    try:
        if read_manifest(disk, directory) is not None:
            return
    except CorruptSegment:
        pass
    lock = disk.lock(os.path.join(directory, LOCK))
    try:
        swap_manifest(disk, directory, _rebuilt(disk, directory, extension, now_us))
    finally:
        disk.close(lock)
    done.is_manifest_rebuilt = True


def _rebuilt(disk: Disk, directory: str, extension: str, now_us: int) -> Manifest:
    """The chain as the segments' own headers and seals tell it; of two with one range, the intact or newer."""
    found: list[_Described] = []
    for name in disk.list(directory):
        if name.endswith(extension):
            with suppress(WalError):  # without its header nothing vouches for it; opening puts it into orphans/
                found.append(_describe(disk, os.path.join(directory, name)))
    uuids = {each.log_uuid for each in found}
    if len(uuids) != 1:
        reason = f"can't be rebuilt: the segments here belong to {len(uuids)} logs"
        raise CorruptSegment(os.path.join(directory, MANIFEST), 0, reason)
    chain: list[SegmentEntry] = []
    retired: list[Retired] = []
    runs: list[SnapshotRun] = []
    for each in sorted(found, key=lambda each: (each.entry.first_sequence, each.has_gap, -each.entry.generation)):
        entry = each.entry
        if chain and entry.first_sequence <= max(chain[-1].last_sequence, chain[-1].first_sequence):
            retired.append(Retired(entry.name(extension), now_us))
        else:
            chain.append(entry)
            runs += each.runs
    chain[:-1] = [replace(entry, is_sealed=True) for entry in chain[:-1]]
    if chain and not chain[-1].is_sealed:
        chain[-1] = replace(chain[-1], last_sequence=0, last_crc=0, size=0)  # as a manifest names a live one
    runs = [run for run in runs if run.begin >= chain[0].first_sequence]
    return Manifest(
        uuids.pop(),
        extension=extension,
        segments=tuple(chain),
        retired=tuple(retired),
        snapshots=tuple(sorted(runs, key=lambda run: run.begin)[-2:]),
    )


class _Described(NamedTuple):
    """A segment as it tells of itself."""

    log_uuid: UUID
    entry: SegmentEntry
    has_gap: bool
    runs: list[SnapshotRun]  # that end in it


def _describe(disk: Disk, path: str) -> _Described:
    fd = disk.open_read_only(path)
    try:
        header = SegmentHeader.unpack(disk.read(fd, SEGMENT_HEADER_BYTES, 0), path)
    finally:
        disk.close(fd)
    last, last_crc, is_sealed, has_gap = header.first_sequence - 1, 0, False, False
    runs: list[SnapshotRun] = []
    with SegmentFile(disk, path, header.salt) as segment:
        for item in segment.walk(header.first_sequence, is_dense=header.generation == 0):
            if isinstance(item, Gap):
                has_gap = True
                continue
            last_crc, is_sealed = item.crc, item.type == SEAL
            last = item.sequence - 1 if is_sealed else item.sequence
            if item.type == SNAPSHOT_END:
                with suppress(DecodeError):
                    runs.append(SnapshotRun(SnapshotEnd.FromString(item.payload).begin_sequence, item.sequence))
        size = segment.size
    is_sealed = is_sealed or header.generation > 0  # a rewritten one is never written to again
    entry = SegmentEntry.of(header, last_sequence=last, last_crc=last_crc, size=size, is_sealed=is_sealed)
    return _Described(header.log_uuid, entry, has_gap, runs)
