"""A disk in a dictionary for tests of what bytes mean: quick to copy, quick to damage, and it counts what is read.

It never fails and forgets nothing; power cuts and faults are the business of other disks.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from wal.errors import LogLocked

MOST_AT_ONCE = 1 << 20  # what one read may ask for beyond the size of the file: a length that nobody checked asks more


class DictDisk:
    """Implements `wal.disk.Disk`."""

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.files = {path: bytearray(data) for path, data in (files or {}).items()}
        self.free = 1 << 40
        self.bytes_read = 0
        self._open: dict[int, tuple[str, bytearray]] = {}
        self._locked: set[str] = set()
        self._next = 3

    def copy(self) -> DictDisk:
        """The files as they are now: what a process that is killed leaves."""
        return DictDisk({path: bytes(data) for path, data in self.files.items()})

    def make_directory(self, path: str) -> None:
        pass

    def lock(self, path: str) -> int:
        if path in self._locked:
            raise LogLocked(path)
        self._locked.add(path)
        return self._descriptor(path, self.files.setdefault(path, bytearray()))

    def create(self, path: str) -> int:
        if path in self.files:
            raise FileExistsError(errno.EEXIST, "exists", path)
        self.files[path] = bytearray()
        return self.open(path)

    def open(self, path: str) -> int:
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return self._descriptor(path, self.files[path])

    def open_read_only(self, path: str) -> int:
        return self.open(path)

    def _descriptor(self, path: str, data: bytearray) -> int:
        self._next += 1
        self._open[self._next] = (path, data)
        return self._next

    def write(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        data = self._open[fd][1]
        joined = b"".join(buffers)
        if len(data) < position:
            data.extend(bytes(position - len(data)))
        data[position : position + len(joined)] = joined
        return len(joined)

    def write_past_cache(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        return self.write(fd, buffers, position)

    def hasten(self, fd: int, position: int, size: int) -> None:
        pass

    def read(self, fd: int, size: int, position: int) -> bytes:
        data = self._open[fd][1]
        assert size <= len(data) + MOST_AT_ONCE, f"{size} bytes asked of a file of {len(data)}"
        found = bytes(data[position : position + size])
        self.bytes_read += len(found)
        return found

    def size(self, fd: int) -> int:
        return len(self._open[fd][1])

    def allocate(self, fd: int, size: int) -> None:
        data = self._open[fd][1]
        data.extend(bytes(max(0, size - len(data))))

    def truncate(self, fd: int, size: int) -> None:
        data = self._open[fd][1]
        del data[size:]
        data.extend(bytes(size - len(data)))

    def sync(self, fd: int) -> None:
        assert fd in self._open

    def close(self, fd: int) -> None:
        path, _ = self._open.pop(fd)
        self._locked.discard(path)

    def rename(self, old: str, new: str) -> None:
        self.files[new] = self.files.pop(old)

    def link(self, old: str, new: str) -> None:
        self.files[new] = self.files[old]

    def unlink(self, path: str) -> None:
        if path not in self.files:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        del self.files[path]

    def list(self, path: str) -> list[str]:
        return sorted(os.path.basename(name) for name in self.files if os.path.dirname(name) == path)

    def sync_directory(self, path: str) -> None:
        pass

    def free_bytes(self, path: str) -> int:
        return self.free

    def device(self, path: str) -> int:
        return 1

    @property
    def open_files(self) -> int:
        return len(self._open)


class HandClock:
    """Time that moves when a test says so."""

    def __init__(self, now_us: int = 1_700_000_000_000_000) -> None:
        self.us = now_us
        self.seconds = 0.0

    def now_us(self) -> int:
        return self.us

    def monotonic(self) -> float:
        return self.seconds


class Counted:
    """Random bytes that are the same in every run: a number, repeated, with no zero in it."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, size: int) -> bytes:
        self.calls += 1
        return (self.calls.to_bytes(4, "big") * size)[:size].replace(b"\0", b"\xa5")
