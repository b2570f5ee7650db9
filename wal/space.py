"""Disk space, taken before it is needed.

`spare` is the next segment, preallocated off the hot path. `reserve` is room for one segment and one snapshot run
that nothing uses while there is space: on a full disk it becomes the next segment, or is cut down so that a small
file can be written, and acks, recovery and shutdown go on. Both hold nothing but zeros.

Below the soft mark, or without a whole reserve, the log is short of space: only essential records are taken.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from wal.disk import FULL, Disk

SPARE = "spare"
RESERVE = "reserve"
_SLICE_BYTES = 1 << 16  # of the reserve, given up for a small file

T = TypeVar("T")


class Space:
    """The writer's store of preallocated files."""

    def __init__(
        self, disk: Disk, directory: str, *, segment_bytes: int, reserve_bytes: int, soft_free_bytes: int
    ) -> None:
        self.is_short = False
        self._disk = disk
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._reserve_bytes = reserve_bytes
        self.soft_free_bytes = soft_free_bytes
        names = disk.list(directory)
        self._has_spare = False
        self._has_old_spare = SPARE in names  # of the last owner, who may have begun to use it under another name
        self._reserved = self._size_of(RESERVE) if RESERVE in names else 0

    def free_bytes(self) -> int:
        return self._disk.free_bytes(self._directory)

    def check(self) -> bool:
        """Look at the disk again and refill what is missing; returns whether space is short.

        The reserve comes first, also below the soft mark: without it the next start may find no room.
        """
        has_reserve = self._fill_reserve()
        self.is_short = not (has_reserve and self.free_bytes() > self.soft_free_bytes and self.fill_spare())
        return self.is_short

    def fill_spare(self) -> bool:
        """Preallocate the next segment's file; False where the disk is full."""
        if not self._has_spare:
            try:
                self._drop_old_spare()
            except OSError as error:
                if error.errno not in FULL:
                    raise
                return False
            self._has_spare = self._allocate(self._path(SPARE), self._segment_bytes)
        return self._has_spare

    def take(self, path: str, size: int = 0) -> int:
        """A file of zeros for a segment, under this name: the spare, else a new one, else the reserve.

        `size`: what it has to hold, where that is known and may be more than a segment. Where none of them is whole,
        half of what there is: a manifest has to fit beside it. Raises OSError (disk full) where there is nothing.
        """
        size = max(size, self._segment_bytes)
        if self._has_spare and size == self._segment_bytes:
            self._has_spare = False
            self._disk.rename(self._path(SPARE), path)
            return self._disk.open(path)
        if self._allocate(path, size) or (self._drop_old_spare() and self._allocate(path, size)):
            return self._disk.open(path)
        self.is_short = True
        if self._reserved:
            return self._take_reserve(path, size)
        for part in (self._segment_bytes >> halvings for halvings in range(1, 8)):
            if 2 * part <= self.free_bytes() and self._allocate(path, part):
                return self._disk.open(path)
        raise OSError(errno.ENOSPC, "no space for a segment", path)

    def _drop_old_spare(self) -> bool:
        """Not at once at the start, because to give up that much takes a file system longer than to read a log."""
        if not self._has_old_spare:
            return False
        with suppress(FileNotFoundError):
            self._disk.unlink(self._path(SPARE))
        self._has_old_spare = False  # not before: it must never be taken for a new one
        return True

    def _take_reserve(self, path: str, size: int) -> int:
        """What is more than a segment becomes free, for what has to be written beside it."""
        self._reserved = 0
        self._disk.rename(self._path(RESERVE), path)
        # Should a crash undo the new name, the old one must not lead to what is written next.
        self._disk.sync_directory(self._directory)
        fd = self._disk.open(path)
        if self._disk.size(fd) > size:
            self._disk.truncate(fd, size)
        return fd

    def with_room(self, act: Callable[[], T]) -> T:
        """Run something that writes a small file, giving up slices of the reserve while the disk is full."""
        while True:
            try:
                return act()
            except OSError as error:
                if error.errno in FULL and self._drop_old_spare():
                    continue
                if error.errno not in FULL or not self._reserved:
                    raise
                self.is_short = True
                self._cut_reserve(self._reserved - _SLICE_BYTES)

    def _fill_reserve(self) -> bool:
        missing = self._reserve_bytes - self._reserved
        if 0 < missing <= self.free_bytes() and self._allocate(self._path(RESERVE), self._reserve_bytes):
            self._reserved = self._reserve_bytes
        return self._reserved >= self._reserve_bytes

    def _cut_reserve(self, size: int) -> None:
        if size <= 0:
            self._disk.unlink(self._path(RESERVE))
            self._reserved = 0
            return
        fd = self._disk.open(self._path(RESERVE))
        try:
            self._disk.truncate(fd, size)
        finally:
            self._disk.close(fd)
        self._reserved = size

    def _allocate(self, path: str, size: int) -> bool:
        """Make a file of zeros, or make it larger; False, and no new file, where the disk is full."""
        is_there = os.path.basename(path) in self._disk.list(self._directory)
        fd = -1
        try:
            fd = self._disk.open(path) if is_there else self._disk.create(path)
            self._disk.allocate(fd, size)
        except OSError as error:
            if error.errno not in FULL:
                raise
            if fd >= 0 and not is_there:
                self._disk.unlink(path)
            return False
        finally:
            if fd >= 0:
                self._disk.close(fd)
        return True

    def _size_of(self, name: str) -> int:
        fd = self._disk.open_read_only(self._path(name))
        try:
            return self._disk.size(fd)
        finally:
            self._disk.close(fd)

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)
