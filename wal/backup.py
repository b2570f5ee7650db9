"""A backup: a directory that holds a log as it was at one moment, taken while the log goes on.

It is laid out like a log in which everything is sealed. Sealed segments never change, so they are hard links to the
log's own files, or copies where the file system is another one. The live segment is written anew up to where it was
durable, under a generation that no log ever reaches, so that no later segment has its name. The MANIFEST is swapped
last: whatever ends a backup before that leaves the one before it whole, because no file of that one is touched.

The next backup into the same directory takes only what is new. The file BACKUP says whose log it is, and keeps
brokers from writing there: `wal.restore` makes a log of it, in another directory.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from uuid import UUID

from loguru import logger

from wal.chain import path_of
from wal.disk import LOCK, Disk, read_file, write_all, write_file
from wal.errors import BackupRefused, CorruptSegment, WalError
from wal.frame import Frame
from wal.manifest import MANIFEST, Manifest, SegmentEntry, read_manifest, swap_manifest
from wal.reader import damaged
from wal.record import DAMAGED
from wal.rewrite import REWRITING, Kept, rewrite
from wal.segment import WINDOW_BYTES, Gap, SegmentFile, SegmentHeader
from wal.verify import Progress

MARKER = "BACKUP"
TAIL_GENERATION = 1 << 31  # of the first copy of a live segment; each further one of it has the next
UNFINISHED = ".new"

# No link across file systems, on one without links, to a file with too many, or to one of another owner.
_NO_LINK = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES})


@dataclass(frozen=True, slots=True)
class Moment:
    """What a log held when its backup began."""

    manifest: Manifest
    last_sequence: int  # durable
    tail: Callable[[SegmentFile, SegmentEntry], Iterable[Frame | Gap]]  # of the live segment, what is durable
    tail_bytes: int  # about


@dataclass(slots=True)
class Backup:
    """What a backup holds, and what it took to make it."""

    directory: str
    log_uuid: UUID
    last_sequence: int
    segments: int = 0
    bytes: int = 0
    linked: int = 0  # segments whose file is the log's own
    copied: int = 0  # segments that were written, the live one included
    copied_bytes: int = 0
    kept: int = 0  # segments that an earlier backup had taken
    removed: int = 0  # files that only an earlier backup needed
    missing: int = 0  # segments whose file the log has lost: the backup names them and lacks them too


def moment_of(manifest: Manifest, last_sequence: int, position: int) -> Moment:
    """A log that is being written; what lies behind a position in its live segment may be half written."""
    return Moment(
        manifest, last_sequence, lambda segment, live: segment.walk(live.first_sequence, end=position), position
    )


def back_up(
    disk: Disk,
    directory: str,
    moment: Moment,
    target: str,
    *,
    random: Callable[[int], bytes],
    progress: Progress,
    taken: Callable[[str], None],
    leave_bytes: int = 0,
) -> Backup:
    """Bring the backup in `target` to a moment of the log in `directory`.

    `taken` is told of each segment that it needs no more; what `progress` raises ends the backup. Of the file system
    that the log is in, `leave_bytes` stay free: the log goes on, and without them it would take nothing more. Raises
    BackupRefused where the target is no place for it, LogLocked where another backup into it is running, and OSError:
    then the backup that was there before is as it was.
    """
    check_apart(directory, target)
    uuid = moment.manifest.log_uuid
    _check_owner(disk, target, uuid)
    disk.make_directory(target)
    lock = disk.lock(os.path.join(target, LOCK))
    try:
        _check_owner(disk, target, uuid)
        if MARKER not in disk.list(target):
            write_file(disk, os.path.join(target, MARKER + UNFINISHED), f"mq backup of log {uuid}\n".encode())
            disk.rename(os.path.join(target, MARKER + UNFINISHED), os.path.join(target, MARKER))
            disk.sync_directory(target)
        return _Backup(disk, directory, moment, target, random, progress, taken, leave_bytes).run()
    finally:
        disk.close(lock)


class _Backup:
    """One backup on its way."""

    def __init__(
        self, disk: Disk, directory: str, moment: Moment, target: str, random: Callable[[int], bytes],
        progress: Progress, taken: Callable[[str], None], leave_bytes: int,
    ) -> None:  # fmt: skip
        self.disk = disk
        self.directory = directory
        self.moment = moment
        self.manifest = moment.manifest
        self.target = target
        self.random = random
        self.progress = progress
        self.taken = taken
        self.leave_bytes = leave_bytes
        self.before = read_backup(disk, target) if MANIFEST in disk.list(target) else None
        self.done = Backup(target, self.manifest.log_uuid, moment.last_sequence)
        self.total_bytes = 0
        self.is_apart = False  # on another file system than the log
        segment = rf"[0-9]{{20}}-[0-9]+{re.escape(self.manifest.extension)}"
        self._ours = re.compile(rf"({segment}|{MANIFEST}|{MARKER})({re.escape(UNFINISHED)})?|{REWRITING}")

    def run(self) -> Backup:
        sealed = [entry for entry in self.manifest.segments if entry.is_sealed]
        names = {entry.name(self.manifest.extension) for entry in sealed}
        self._clear(names)
        try:
            chain = [*sealed, *self._take(sealed)]
        except OSError:
            self._clear(set())  # on a full disk what was copied so far only takes room
            raise
        except BaseException:
            self._clear(names)  # what is whole need not be copied again next time
            raise
        self.disk.sync_directory(self.target)
        edition = self.before.edition if self.before is not None else 0
        made = replace(self.manifest, edition=edition, segments=tuple(chain), retired=())
        swap_manifest(self.disk, self.target, made)
        self.done.removed = self._clear({entry.name(made.extension) for entry in chain}, is_over=True)
        self.done.segments, self.done.bytes = len(chain), sum(entry.size for entry in chain)
        return self.done

    def _take(self, sealed: list[SegmentEntry]) -> list[SegmentEntry]:
        """Have all segments in the target; returns the one that stands for the live segment, if there is any."""
        to_copy = [entry for entry in sealed if not self._has(entry) and not self._link(entry)]
        live = self.manifest.segments[-1] if len(sealed) < len(self.manifest.segments) else None
        if live is not None and self.moment.last_sequence < live.first_sequence:
            live = None  # nothing in it is durable
        known = self._tail_before(live) if live is not None else []
        self._make_room(to_copy, 0 if live is None or known else self.moment.tail_bytes)
        for entry in to_copy:
            self._copy(entry)
        if live is None or known:
            self.done.kept += len(known)
            return known
        return [self._rewrite(live)]

    # ------------------------------------------------------------ sealed segments

    def _has(self, entry: SegmentEntry) -> bool:
        """The segment is here already, whole: an unfinished file never has its name.

        A salt is drawn anew for every file that is written, so a header names one content.
        """
        name = entry.name(self.manifest.extension)
        path = os.path.join(self.target, name)
        is_known = self.before is not None and entry in self.before.segments
        try:
            with SegmentFile(self.disk, path, entry.salt_bytes) as segment:
                is_same = segment.size == entry.size and (
                    is_known or segment.header() == entry.header(self.manifest.log_uuid)
                )
        except FileNotFoundError:
            return False
        except WalError:
            is_same = False
        if not is_same:
            if name in self._names_before():
                raise BackupRefused(f"{self.target} has another {name}: begin a backup in a new directory")
            self.disk.unlink(path)
            return False
        self.taken(name)
        self.done.kept += 1
        return True

    def _link(self, entry: SegmentEntry) -> bool:
        """True where nothing is left to do for the segment."""
        if self.is_apart:
            return False
        name = entry.name(self.manifest.extension)
        try:
            self.disk.link(path_of(self.directory, self.manifest, entry), os.path.join(self.target, name))
        except FileNotFoundError:
            self._miss(name)
            return True
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            self.is_apart = error.errno == errno.EXDEV
            return False
        self.taken(name)
        self.done.linked += 1
        return True

    def _make_room(self, to_copy: list[SegmentEntry], tail_bytes: int) -> None:
        """Better no copy than one that fills the disk first and fails then."""
        size = sum(entry.size for entry in to_copy) + tail_bytes
        free = self.disk.free_bytes(self.target)
        if self.disk.device(self.target) == self.disk.device(self.directory):  # also where it allows no links
            free = max(0, free - self.leave_bytes)
        if size > free:
            raise OSError(errno.ENOSPC, f"{size} bytes are to be copied, {free} may be used", self.target)
        self.total_bytes = size
        self.progress(0, size)

    def _copy(self, entry: SegmentEntry) -> None:
        name = entry.name(self.manifest.extension)
        source = path_of(self.directory, self.manifest, entry)
        try:
            copy_file(self.disk, source, os.path.join(self.target, name), self._advance)
        except FileNotFoundError:
            self._miss(name)
            return
        self.taken(name)
        self.done.copied += 1

    def _miss(self, name: str) -> None:
        """The log is damaged. Its backup is too, then, and holds everything else."""
        logger.error("{} is missing in the log, and so in its backup", name)
        self.done.missing += 1

    def _advance(self, count: int) -> None:
        self.done.copied_bytes += count
        self.progress(self.done.copied_bytes, max(self.total_bytes, self.done.copied_bytes))

    # ------------------------------------------------------------ the live segment

    def _tail_before(self, live: SegmentEntry) -> list[SegmentEntry]:
        """The copy of the live segment in the backup before, if nothing has become durable since."""
        last = self.before.segments[-1] if self.before is not None and self.before.segments else None
        if last is None or last.generation < TAIL_GENERATION:
            return []
        if (last.first_sequence, last.last_sequence) != (live.first_sequence, self.moment.last_sequence):
            return []
        try:
            with SegmentFile(self.disk, path_of(self.target, self.manifest, last), last.salt_bytes) as segment:
                return [last] if segment.size == last.size else []
        except (FileNotFoundError, WalError):
            return []  # somebody removed or cut it: another one is written

    def _rewrite(self, live: SegmentEntry) -> SegmentEntry:
        """The live segment as a sealed one."""
        path = path_of(self.directory, self.manifest, live)
        with SegmentFile(self.disk, path, live.salt_bytes) as segment:
            made = rewrite(
                self.disk,
                self.target,
                self.manifest,
                replace(live, generation=self._free_generation(live) - 1),
                self._kept(segment, live),
                salt=self.random(8),
                take=self.disk.create,
                last_sequence=self.moment.last_sequence,
            )
        self.done.copied += 1
        return made

    def _kept(self, segment: SegmentFile, live: SegmentEntry) -> Iterator[Kept]:
        for item in self.moment.tail(segment, live):
            if isinstance(item, Frame):
                yield Kept(item.type, item.sequence, item.payload)
                self._advance(len(item.payload))
            elif item.last_sequence >= item.first_sequence:
                name = live.name(self.manifest.extension)
                logger.error("{}: bytes {} to {} are damaged: {}", name, item.position, item.end, item.reason)
                yield Kept(DAMAGED, item.last_sequence, damaged(item, name).SerializeToString())

    def _free_generation(self, live: SegmentEntry) -> int:
        stem = f"{live.first_sequence:020d}-"
        found = [name.removeprefix(stem) for name in self._names_before() if name.startswith(stem)]
        return max([TAIL_GENERATION, *(int(name.removesuffix(self.manifest.extension)) + 1 for name in found)])

    # ------------------------------------------------------------ what is not needed

    def _names_before(self) -> set[str]:
        if self.before is None:
            return set()
        return {entry.name(self.before.extension) for entry in self.before.segments}

    def _clear(self, wanted: set[str], *, is_over: bool = False) -> int:
        """Remove what an interrupted backup left, or, when this one is over, what only the one before needed.

        Only files with names that a backup makes: whatever else lies here is somebody else's.
        """
        needed = {MANIFEST, MARKER, *wanted} | (set() if is_over else self._names_before())
        over = [name for name in self.disk.list(self.target) if self._ours.fullmatch(name) and name not in needed]
        for name in over:
            self.disk.unlink(os.path.join(self.target, name))
        if over:
            self.disk.sync_directory(self.target)
        return len(over)


def read_backup(disk: Disk, directory: str) -> Manifest:
    """The manifest of a backup. Raises BackupRefused where the directory holds none that is complete."""
    names = disk.list(directory)
    if MARKER not in names:
        raise BackupRefused(f"{directory} holds no backup")
    try:
        manifest = read_manifest(disk, directory)
    except CorruptSegment as error:
        raise BackupRefused(f"the backup in {directory} can't be used: {error.reason}") from error
    if manifest is None:
        raise BackupRefused(f"{directory} holds no complete backup: the first one was interrupted")
    return manifest


def check_unmarked(disk: Disk, directory: str) -> None:
    """Nobody writes to a backup but the next one. Raises BackupRefused."""
    if MARKER in disk.list(directory):
        raise BackupRefused(
            f"{directory} is a backup, or the unfinished restore of one; mq backup restore makes a log of it"
        )


def check_apart(directory: str, target: str) -> None:
    """A log and its backup are not in each other. Raises BackupRefused."""
    one, other = os.path.realpath(directory), os.path.realpath(target)
    if os.path.commonpath([one, other]) in {one, other}:
        raise BackupRefused(f"{target} is the directory of the log, or one is in the other")


def _check_owner(disk: Disk, target: str, uuid: UUID) -> None:
    """Only a new directory, an empty one, or one with backups of the same log is written to."""
    try:
        names = disk.list(target)
    except FileNotFoundError:
        return
    if MARKER not in names:
        if set(names) - {LOCK, MARKER + UNFINISHED, "lost+found"}:
            raise BackupRefused(f"{target} is not empty and holds no backup")
    elif str(uuid) not in read_file(disk, os.path.join(target, MARKER)).decode("ascii", "replace"):
        raise BackupRefused(f"{target} holds the backup of another log")


def copy_file(
    disk: Disk, source: str, target: str, advance: Callable[[int], None], header: SegmentHeader | None = None
) -> None:
    """Copy a segment, durable but for its name, which it gets when it is whole; `header` replaces its own."""
    unfinished = target + UNFINISHED
    reading = disk.open_read_only(source)
    try:
        writing = disk.create(unfinished)
        try:
            position = 0
            while window := disk.read(reading, WINDOW_BYTES, position):
                if header is not None and position == 0:
                    packed = header.pack()
                    window = packed + window[len(packed) :]
                write_all(disk, writing, [window], position)
                position += len(window)
                advance(len(window))
            disk.sync(writing)
        except BaseException:
            with suppress(OSError):
                disk.unlink(unfinished)
            raise
        finally:
            disk.close(writing)
        disk.rename(unfinished, target)
    finally:
        disk.close(reading)
