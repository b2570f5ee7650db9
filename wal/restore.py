"""Backups of a log that nobody runs, and the way back: a log from a backup.

A restored log is a log of its own, with a new uuid. Between the backup and the loss of its log more was published,
served and read by others up to some place; the restored log gives the same offsets and sequences to other contents. A
reader that remembers `uuid, sequence`, or a message by its id, must see that this is not the log it knew. Reading
something twice is allowed, taking one thing for another is not. So is a backup of the restored log into the directory
of the old one.

The files are copied, never linked: the backup stays what it is, whatever happens to the restored log.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from uuid import UUID

from wal.backup import MARKER, Backup, Moment, back_up, check_apart, copy_file, read_backup
from wal.chain import path_of
from wal.disk import LOCK, DirectDisk, Disk, write_file
from wal.errors import BackupRefused
from wal.manifest import MANIFEST, Manifest, read_manifest, swap_manifest
from wal.segment import SegmentFile
from wal.tail import Tail, kept, survey
from wal.verify import Progress, Report, verify
from wal.watermark import read_mark


def back_up_stopped(
    directory: str,
    target: str,
    *,
    disk: Disk | None = None,
    random: Callable[[int], bytes] = os.urandom,
    progress: Progress | None = None,
) -> Backup:
    """The backup of a log whose broker does not run. Raises LogLocked where it does, and as `wal.backup.back_up`."""
    disk = disk or DirectDisk()
    manifest = read_manifest(disk, directory)
    if manifest is None or MARKER in disk.list(directory):
        raise BackupRefused(f"{directory} holds no log")
    lock = disk.lock(os.path.join(directory, LOCK))
    try:
        moment = _moment(disk, directory, manifest)
        advance = progress or (lambda done, total: None)
        return back_up(disk, directory, moment, target, random=random, progress=advance, taken=lambda name: None)
    finally:
        disk.close(lock)


def _moment(disk: Disk, directory: str, manifest: Manifest) -> Moment:
    """What the next start would find: everything but a torn tail."""
    if not manifest.segments:
        return Moment(manifest, 0, lambda segment, live: (), 0)
    live = manifest.segments[-1]
    tail = Tail(last_sequence=live.last_sequence)
    if not live.is_sealed:
        with SegmentFile(disk, path_of(directory, manifest, live), live.salt_bytes) as segment:
            tail = survey(segment, live, read_mark(disk, directory, manifest.log_uuid))
    return Moment(manifest, tail.last_sequence, lambda segment, live: kept(segment, live, tail), tail.end)


def restore(
    backup: str,
    directory: str,
    *,
    disk: Disk | None = None,
    random: Callable[[int], bytes] = os.urandom,
    progress: Progress | None = None,
    accept_damage: bool = False,
) -> Report:
    """Make a log of a backup, in a new or empty directory; returns what reading all of it found.

    Where something is damaged the directory is left empty again, unless that is accepted: then everything intact is
    served. Raises BackupRefused, LogLocked, OSError. A restore that is killed leaves a directory that no broker takes.
    """
    disk = disk or DirectDisk()
    read_backup(disk, backup)  # what is none is refused before anything is made, the lock included
    check_apart(backup, directory)
    disk.make_directory(directory)
    strange = set(disk.list(directory)) - {"lost+found"}
    if strange:
        raise BackupRefused(f"{directory} is not empty: {min(strange)} is in it")
    with ExitStack() as stack:
        with suppress(OSError):  # a backup that can only be read is not written to by others either
            stack.callback(disk.close, disk.lock(os.path.join(backup, LOCK)))
        manifest = read_backup(disk, backup)  # until now another one might have been made, over the one above
        stack.callback(disk.close, disk.lock(os.path.join(directory, LOCK)))
        write_file(disk, os.path.join(directory, MARKER), b"mq log, not yet restored\n")
        disk.sync_directory(directory)
        restored = replace(manifest, log_uuid=UUID(bytes=random(16), version=4), edition=0)
        try:
            _copy(disk, backup, directory, restored, progress or (lambda done, total: None))
            report = verify(directory, disk=disk, progress=progress)
        except BaseException:
            with suppress(OSError):
                _empty(disk, directory)
            raise
        if not report.is_intact and not accept_damage:
            _empty(disk, directory)
            return report
        disk.unlink(os.path.join(directory, MARKER))
        disk.sync_directory(directory)
        return report


def _copy(disk: Disk, backup: str, directory: str, manifest: Manifest, progress: Progress) -> None:
    total = sum(entry.size for entry in manifest.segments)
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress(done, total)

    for entry in manifest.segments:
        path = path_of(directory, manifest, entry)
        with suppress(FileNotFoundError):  # the report names what is missing
            copy_file(disk, path_of(backup, manifest, entry), path, advance, entry.header(manifest.log_uuid))
    disk.sync_directory(directory)
    swap_manifest(disk, directory, manifest)


def _empty(disk: Disk, directory: str) -> None:
    """Take back what was restored. The marker goes last: until then no broker takes the directory."""
    names = [name for name in disk.list(directory) if name != "lost+found"]
    for name in sorted(names, key=lambda name: (name == MARKER, name != MANIFEST)):
        disk.unlink(os.path.join(directory, name))
    disk.sync_directory(directory)
