"""Opening a directory: find out what the last owner left, make it whole, and only then let anybody in.

Three outcomes, told apart:

* clean: the watermark says that the log was closed in good order and the frames agree. The live segment goes on.
* torn: bytes at the end of the live segment that nobody was ever told were durable. They are kept as `*.torn-n` and
  left out.
* corrupt: bytes that were durable once and can't be read. They are copied to `quarantine/`, a Damaged record stands
  in their place, everything around them stays. Damage in sealed segments is left for `verify` and `repair`.

After anything but a clean stop, what nobody vouches for is not believed to be on disk, though it can be read: the page
cache may show what a sync failed to write, and a later sync would not tell. So those bytes are written again, in their
place, and synced before anything is served. Where something is corrupt, or the disk refuses the bytes there, all
of the segment is copied forward into a new file instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast
from uuid import UUID

from loguru import logger

from wal.backup import check_unmarked
from wal.chain import path_of
from wal.clock import Clock
from wal.disk import FULL, Disk, write_all, write_file
from wal.errors import CorruptSegment, WalError
from wal.frame import HEADER_BYTES as FRAME_BYTES
from wal.frame import Frame, Salt, scan
from wal.index import SegmentIndex
from wal.live import Live, start_segment
from wal.manifest import MANIFEST, Manifest, SegmentEntry, read_manifest, swap_manifest
from wal.reader import damaged
from wal.record import DAMAGED
from wal.rewrite import REWRITING, Kept, rewrite
from wal.segment import Gap, SegmentFile, SegmentHeader
from wal.space import Space
from wal.straight import BLOCK_BYTES
from wal.tail import Tail, kept, survey
from wal.watermark import WATERMARK, Mark, WatermarkFile

QUARANTINE = "quarantine"
ORPHANS = "orphans"
MOST_REWRITTEN_BYTES = 64 << 20  # in their place: they are held in memory meanwhile
_SEAL_ROOM_BYTES = 1 << 10


@dataclass(slots=True)
class Recovery:
    """What opening found, for the start-up report."""

    is_new: bool = False
    was_clean: bool = False
    torn_bytes: int = 0
    rewritten_bytes: int = 0  # of frames that were written again, in their place or in another file
    damage: list[tuple[str, Gap]] = field(default_factory=list)  # segment and range
    orphans: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Opened:
    """A directory ready to be written."""

    manifest: Manifest
    live: Live
    space: Space
    watermark: WatermarkFile
    report: Recovery


def recover(
    disk: Disk,
    directory: str,
    clock: Clock,
    random: Callable[[int], bytes],
    *,
    extension: str,
    make_space: Callable[[], Space],
) -> Opened:
    """Make the directory whole and say what was found. The caller holds its lock."""
    report = Recovery()
    check_unmarked(disk, directory)
    manifest = read_manifest(disk, directory)
    if manifest is None:
        manifest = _create(disk, directory, random, extension)
        report.is_new = True
    _clear(disk, directory, manifest, report)
    space = make_space()
    watermark = space.with_room(lambda: WatermarkFile(disk, directory, manifest.log_uuid))
    mark = watermark.mark
    if mark is not None and mark.is_clean:
        not_clean = replace(mark, is_clean=False)
        space.with_room(lambda: watermark.write(not_clean))  # a crash from here on is not a clean stop
        watermark.sync()
    opening = _Opening(disk, directory, clock, random, manifest, space, report)
    live = opening.live_segment(mark)
    return Opened(opening.manifest, live, space, watermark, report)


def _create(disk: Disk, directory: str, random: Callable[[int], bytes], extension: str) -> Manifest:
    """A manifest without segments comes first, so that segments without a manifest always mean loss."""
    left = [name for name in disk.list(directory) if name.endswith((extension, ".idx")) or name == WATERMARK]
    if left:
        path = os.path.join(directory, MANIFEST)
        raise CorruptSegment(path, 0, f"missing, though {left[0]} is here", "mq wal repair rebuilds it")
    return swap_manifest(disk, directory, Manifest(UUID(bytes=random(16), version=4), extension=extension))


def _clear(disk: Disk, directory: str, manifest: Manifest, report: Recovery) -> None:
    """Unfinished copies go; segments that no manifest names are put aside, never deleted."""
    names = disk.list(directory)
    if REWRITING in names:
        disk.unlink(os.path.join(directory, REWRITING))
    known = {entry.name(manifest.extension) for entry in manifest.segments}
    known |= {retired.name for retired in manifest.retired}
    for name in names:
        if name.endswith(manifest.extension) and name not in known:
            disk.make_directory(os.path.join(directory, ORPHANS))
            disk.rename(os.path.join(directory, name), _free_name(disk, os.path.join(directory, ORPHANS), name))
            report.orphans.append(name)
    if report.orphans:
        disk.sync_directory(os.path.join(directory, ORPHANS))
        disk.sync_directory(directory)
        logger.warning("{} files that the manifest does not name were moved to {}/", len(report.orphans), ORPHANS)


class _Opening:
    """One opening of a directory."""

    def __init__(
        self, disk: Disk, directory: str, clock: Clock, random: Callable[[int], bytes],
        manifest: Manifest, space: Space, report: Recovery,
    ) -> None:  # fmt: skip
        self.disk = disk
        self.directory = directory
        self.clock = clock
        self.random = random
        self.manifest = manifest
        self.space = space
        self.report = report

    def live_segment(self, mark: Mark | None) -> Live:
        segments = self.manifest.segments
        if not segments or segments[-1].is_sealed:
            self.report.was_clean = True  # nothing was being written
            live = self._start(segments[-1] if segments else None)
            self._swap(self.manifest.with_segments([*segments, live.entry]))
            return live
        entry = segments[-1]
        path = path_of(self.directory, self.manifest, entry)
        try:
            segment = SegmentFile(self.disk, path, entry.salt_bytes)
        except FileNotFoundError:
            tail = _lost_whole(entry, mark)
            return self._copy_forward(None, entry, tail)
        with segment:
            tail = survey(segment, entry, mark)
            if tail.agrees_with(entry, mark) and self._has_its_header(segment, entry):
                self.report.was_clean = True
                return self._go_on(path, entry, tail)
            if tail.torn is not None:
                self._keep_torn(segment, tail.torn)
            if not tail.corrupt and tail.end - tail.vouched_end <= MOST_REWRITTEN_BYTES:
                end = _Remembered(segment, tail)
                try:
                    self._write_again(path, segment, entry, tail, end.unvouched)
                except OSError as error:
                    if not tail.frames:
                        raise  # there is nothing to copy, and a new segment would have the same name
                    logger.warning("{} can't be written where it is, and is copied: {}", path, error)
                    end.stand_in()
                else:
                    self._renew_names()
                    return self._go_on(path, entry, tail)
            return self._copy_forward(segment, entry, tail)

    def _has_its_header(self, segment: SegmentFile, entry: SegmentEntry) -> bool:
        """A damaged header costs nothing while there is a manifest; it is written anew."""
        try:
            return segment.header() == entry.header(self.manifest.log_uuid)
        except WalError:
            return False

    # ------------------------------------------------------------ outcomes

    def _go_on(self, path: str, entry: SegmentEntry, tail: Tail) -> Live:
        return Live(
            self.disk.open(path), entry, Salt.of(entry.salt_bytes), tail.index, tail.end,
            tail.frames, tail.last_sequence, tail.rolling_crc,
        )  # fmt: skip

    def _write_again(self, path: str, segment: SegmentFile, entry: SegmentEntry, tail: Tail, data: bytes) -> None:
        """Put the same bytes where they are, and zeros behind them, so that a sync vouches for each.

        Only those that nobody vouches for yet: it takes no longer, however large the segment is. And it needs no room,
        so it is done on a full disk, too.
        """
        end = segment.last_nonzero(tail.end)
        fd = self.disk.open(path)
        try:
            if not self._has_its_header(segment, entry):
                write_all(self.disk, fd, [entry.header(self.manifest.log_uuid).pack()], 0)
            write_all(self.disk, fd, [data, bytes(end - tail.end)], tail.vouched_end)
            self.disk.sync(fd)
        finally:
            self.disk.close(fd)
        self.report.rewritten_bytes = len(data)

    def _renew_names(self) -> None:
        """The last owner may have died between the manifest's rename and the sync of the directory, or that failed."""
        try:
            self._swap(self.manifest)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self.disk.sync_directory(self.directory)

    def _copy_forward(self, segment: SegmentFile | None, entry: SegmentEntry, tail: Tail) -> Live:
        name = entry.name(self.manifest.extension)
        sealed = rewrite(
            self.disk,
            self.directory,
            self.manifest,
            entry,
            self._kept(segment, entry, tail),
            salt=self.random(8),
            take=lambda path: self.space.take(path, tail.end + _SEAL_ROOM_BYTES),
        )
        if sealed.last_sequence < tail.last_sequence:
            path = path_of(self.directory, self.manifest, entry)
            raise CorruptSegment(path, tail.end, "it reads differently each time", "save the disk's content first")
        live = self._start(sealed)
        chain = [*self.manifest.segments[:-1], sealed, live.entry]
        self._swap(self.manifest.with_segments(chain).with_retired([name], self.clock.now_us()))
        return live

    def _kept(self, segment: SegmentFile | None, entry: SegmentEntry, tail: Tail) -> Iterator[Kept]:
        name = entry.name(self.manifest.extension)
        for item in kept(segment, entry, tail):
            if isinstance(item, Frame):
                self.report.rewritten_bytes += FRAME_BYTES + len(item.payload)
                yield Kept(item.type, item.sequence, item.payload)
            else:
                self._quarantine(segment, name, item)
                if item.last_sequence >= item.first_sequence:  # foreign bytes between two frames cost no frame
                    yield Kept(DAMAGED, item.last_sequence, damaged(item, name).SerializeToString())

    # ------------------------------------------------------------ pieces

    def _start(self, before: SegmentEntry | None) -> Live:
        header = SegmentHeader(
            self.manifest.log_uuid,
            first_sequence=before.last_sequence + 1 if before else 1,
            generation=0,
            salt=self.random(8),
            previous_last=before.last_sequence if before else 0,
            previous_crc=before.last_crc if before else 0,
        )
        return start_segment(
            self.disk, self.directory, header, self.manifest.extension, SegmentIndex(),
            space=self.space, patiently=self.space.with_room, sync=self.disk.sync,
        )  # fmt: skip

    def _swap(self, manifest: Manifest) -> None:
        self.manifest = self.space.with_room(lambda: swap_manifest(self.disk, self.directory, manifest))

    def _keep_torn(self, segment: SegmentFile, torn: Gap) -> None:
        self.report.torn_bytes = torn.size
        path = _free_name(self.disk, self.directory, os.path.basename(segment.path) + ".torn")
        data = self.disk.read(segment.fd, torn.size, torn.position)
        try:
            self.space.with_room(lambda: write_file(self.disk, path, data))
            self.disk.sync_directory(self.directory)
        except OSError as error:
            if error.errno not in FULL:
                raise
            if os.path.basename(path) in self.disk.list(self.directory):
                self.disk.unlink(path)
            path = "nothing: the disk is full"
        logger.warning(
            "{}: {} bytes at {} were never durable; kept as {}", segment.path, torn.size, torn.position, path
        )

    def _quarantine(self, segment: SegmentFile | None, name: str, gap: Gap) -> None:
        self.report.damage.append((name, gap))
        logger.error("{}: bytes {} to {} are damaged: {}", name, gap.position, gap.end, gap.reason)
        if segment is not None:
            self.space.with_room(lambda: quarantine(self.disk, self.directory, segment, gap))


class _Remembered:
    """What nobody vouches for, as it was when it was read last: the attempt to save it may be what destroys it.

    And with it what lies in the same block before it.
    """

    def __init__(self, segment: SegmentFile, tail: Tail) -> None:
        """Raises CorruptSegment where it does not read as it did when it was judged."""
        self._segment, self._disk = segment, segment.disk
        self._start = tail.vouched_end - tail.vouched_end % BLOCK_BYTES
        self._data = self._disk.read(segment.fd, tail.end - self._start, self._start)
        self.unvouched = self._data[tail.vouched_end - self._start :]
        end, found = tail.vouched_end, tail.last_sequence
        for frame in scan(self.unvouched, segment.salt, 0, end):
            end, found = frame.position + FRAME_BYTES + len(frame.payload), frame.sequence
        if (end, found) != (tail.end, tail.last_sequence):
            raise CorruptSegment(segment.path, end, "it reads differently each time", "save the disk's content first")

    def stand_in(self) -> None:
        """From now on reads of the segment find it, whatever became of the file."""
        self._segment.disk = cast(Disk, self)

    def read(self, fd: int, size: int, position: int) -> bytes:
        before = self._disk.read(fd, max(0, min(size, self._start - position)), position)
        at = max(0, position - self._start)
        found = before + self._data[at : at + size - len(before)]
        return found + self._disk.read(fd, size - len(found), position + len(found))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


def quarantine(disk: Disk, directory: str, segment: SegmentFile, gap: Gap) -> str:
    """Keep damaged bytes in a file of their own, durable; returns its name, or nothing for no bytes."""
    data = disk.read(segment.fd, gap.size, gap.position)
    if not data:
        return ""
    folder = os.path.join(directory, QUARANTINE)
    disk.make_directory(folder)
    path = _free_name(disk, folder, f"{os.path.basename(segment.path)}.{gap.position}")
    write_file(disk, path, data)
    disk.sync_directory(folder)
    return os.path.join(QUARANTINE, os.path.basename(path))


def _lost_whole(entry: SegmentEntry, mark: Mark | None) -> Tail:
    """The live segment's file is gone. Its name was durable before the manifest named it, so this is damage."""
    last = max(mark.sequence if mark else 0, entry.first_sequence)
    gap = Gap(0, mark.bytes if mark else 0, entry.first_sequence, last, "the segment is missing")
    return Tail(corrupt=[gap], last_sequence=last)


def _free_name(disk: Disk, folder: str, stem: str) -> str:
    """`stem-1`, `stem-2`, …: nothing that was put aside is ever overwritten."""
    taken = set(disk.list(folder))
    number = 1
    while f"{stem}-{number}" in taken:
        number += 1
    return os.path.join(folder, f"{stem}-{number}")
