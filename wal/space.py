"""Disk space, taken before it is needed.

`spare` is the next segment, preallocated off the hot path. The reserve is for a full disk: its pieces become the next
segments, or make room for small files, and acks, recovery and shutdown go on.

Below the soft mark, or without a whole reserve, the log is short of space: only essential records are taken.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from wal.disk import FULL, Disk, allocate_file
from wal.reserve import NoPieceLeft, Reserve

SPARE = "spare"

T = TypeVar("T")


class Space:
    """The writer's store of preallocated files."""

    def __init__(
        self, disk: Disk, directory: str, *, segment_bytes: int, reserve_bytes: int, soft_free_bytes: int
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._reserve = Reserve(disk, directory, segment_bytes=segment_bytes, reserve_bytes=reserve_bytes)
        self.soft_free_bytes = soft_free_bytes
        self._has_spare = False
        # Of the last owner, who may have begun to use it under another name.
        self._has_old_spare = SPARE in disk.list(directory)
        # Before the first check: what is taken until then would be written into the reserve.
        self.is_short = self._is_below_soft_mark(self._reserve.missing_bytes)

    def free_bytes(self) -> int:
        return self._disk.free_bytes(self._directory)

    def check(self) -> bool:
        """Look at the disk again and refill what is missing; returns whether space is short.

        The reserve comes first, also below the soft mark: without it the next start may find no room.
        """
        has_reserve = self._reserve.fill()
        self.is_short = not has_reserve or self._is_below_soft_mark() or not self.fill_spare()
        return self.is_short

    def _is_below_soft_mark(self, wanted_bytes: int = 0) -> bool:
        return self.free_bytes() - wanted_bytes <= self.soft_free_bytes

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
        """A file of zeros for a segment, under this name: the spare, else a new one, else a piece of the reserve.

        `size`: what it has to hold, where that is known and may be more than a segment. Where nothing is whole it is
        less than a segment. Raises NoPieceLeft where there is nothing.
        """
        size = max(size, self._segment_bytes)
        if self._has_spare and size == self._segment_bytes:
            self._has_spare = False
            self._disk.rename(self._path(SPARE), path)
        elif not (self._allocate(path, size) or (self._drop_old_spare() and self._allocate(path, size))):
            return self._take_reserve(path, size)
        # Who publishes much fills a disk between two checks.
        self.is_short = self.is_short or self._is_below_soft_mark()
        return self._disk.open(path)

    def _take_reserve(self, path: str, size: int) -> int:
        """Where there is none, of what little is free."""
        self.is_short = True
        self._reserve.fill()
        fd = self._reserve.take(path, size)
        try:
            if size > self._segment_bytes:
                self.with_room(lambda: self._disk.allocate(fd, size))
        except OSError:
            self._disk.close(fd)
            raise
        return fd

    def _allocate(self, path: str, size: int) -> bool:
        return allocate_file(self._disk, path, size)

    def _drop_old_spare(self) -> bool:
        """Not at once at the start, because to give up that much takes a file system longer than to read a log."""
        if not self._has_old_spare:
            return False
        with suppress(FileNotFoundError):
            self._disk.unlink(self._path(SPARE))
        self._has_old_spare = False  # not before: it must never be taken for a new one
        return True

    def with_room(self, act: Callable[[], T]) -> T:
        """Run something that writes a small file, giving up slices of the reserve while the disk is full.

        Not for a segment that found no piece: it takes what there is, and slices are of no use to it. What is left of
        them, as by a manifest that replaces another, is put aside again before others take it.
        """
        is_cut = False
        while True:
            try:
                done = act()
                break
            except OSError as error:
                if error.errno in FULL and self._drop_old_spare():
                    continue
                if error.errno not in FULL or isinstance(error, NoPieceLeft) or not self._reserve.give_up_slice():
                    raise
                self.is_short = is_cut = True
        if is_cut:
            self._reserve.fill()
        return done

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)
