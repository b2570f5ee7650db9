"""The reserve: room for one segment and one snapshot run that nothing uses while there is space.

It lies in pieces, files of zeros. `reserve-1`, `reserve-2`, … are a segment each, and become one by a rename: at no
moment is anything of it free. `reserve` is the rest, and gives up a slice where a small file has to be written. On a
full disk there are others who write what they can, so what is set free without need is gone.
"""

from __future__ import annotations

import errno
import os

from wal.disk import Disk, allocate_file
from wal.straight import BLOCK_BYTES

RESERVE = "reserve"
SLICE_BYTES = 1 << 16  # given up for a small file


class NoPieceLeft(OSError):
    """The disk is full, and what is left of the reserve is too little to begin a segment in."""


def shares(segment_bytes: int, reserve_bytes: int) -> dict[str, int]:
    """The names and sizes of the pieces of a whole reserve."""
    rest = reserve_bytes - segment_bytes
    segments = max(1, rest // segment_bytes)
    pieces = {RESERVE: reserve_bytes - segments * segment_bytes}
    pieces |= {f"{RESERVE}-{number}": segment_bytes for number in range(1, segments + 1)}
    return {name: size for name, size in pieces.items() if size > 0}


def is_piece(name: str) -> bool:
    return name == RESERVE or (name.startswith(RESERVE + "-") and name.removeprefix(RESERVE + "-").isdigit())


class Reserve:
    """The pieces that there are; what is missing is made again as soon as there is room, however little."""

    def __init__(self, disk: Disk, directory: str, *, segment_bytes: int, reserve_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._shares = shares(segment_bytes, reserve_bytes)
        self._sizes = {name: self._size_of(name) for name in disk.list(directory) if is_piece(name)}

    @property
    def missing_bytes(self) -> int:
        return sum(max(0, share - self._sizes.get(name, 0)) for name, share in self._shares.items())

    def fill(self) -> bool:
        """Make what is missing, as far as there is room; returns whether the reserve is whole."""
        for name, size in list(self._sizes.items()):  # segments had another size when these were made
            if size > self._shares.get(name, 0):
                self._cut(name, self._shares.get(name, 0))
        for name, share in self._shares.items():
            size = self._sizes.get(name, 0)
            if size < share and not self._grow(name, size, share):
                break
        return not self.missing_bytes

    def take(self, path: str, size: int) -> int:
        """The piece that fits best, under another name. The last one is shared: a manifest has to fit beside a segment.

        Raises NoPieceLeft.
        """
        name = self._fitting(size)
        had = self._sizes.get(name, 0)
        least = min(SLICE_BYTES, size // 8)
        size = min(size, had if len(self._sizes) > 1 else had // 2)
        if size < least:
            raise NoPieceLeft(errno.ENOSPC, "no space for a segment", path)
        self._disk.rename(self._path(name), path)
        del self._sizes[name]
        # Should a crash undo the new name, the old one must not lead to what is written next.
        self._disk.sync_directory(self._directory)
        fd = self._disk.open(path)
        if had > size:
            self._disk.truncate(fd, size)
            self.fill()
        return fd

    def give_up_slice(self) -> bool:
        """Let a small file have some of the smallest piece; False where nothing is left."""
        if not self._sizes:
            return False
        name = min(self._sizes, key=lambda name: (self._sizes[name], name))
        self._cut(name, self._sizes[name] - SLICE_BYTES)
        return True

    def _fitting(self, size: int) -> str:
        """The smallest piece that is large enough, else the largest; empty where there is none."""
        large = [name for name, had in self._sizes.items() if had >= size]
        if large:
            return min(large, key=self._sizes.__getitem__)
        return max(self._sizes, key=self._sizes.__getitem__, default="")

    def _grow(self, name: str, size: int, share: int) -> bool:
        """False where there was no room for all of it: then it grows by whole blocks."""
        free = self._disk.free_bytes(self._directory)
        grown = share if free >= share - size else size + free - free % BLOCK_BYTES
        if grown == size or not allocate_file(self._disk, self._path(name), grown):
            return False
        self._sizes[name] = grown
        return grown == share

    def _cut(self, name: str, size: int) -> None:
        if size <= 0:
            self._disk.unlink(self._path(name))
            del self._sizes[name]
            return
        fd = self._disk.open(self._path(name))
        try:
            self._disk.truncate(fd, size)
        finally:
            self._disk.close(fd)
        self._sizes[name] = size

    def _size_of(self, name: str) -> int:
        fd = self._disk.open_read_only(self._path(name))
        try:
            return self._disk.size(fd)
        finally:
            self._disk.close(fd)

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)
