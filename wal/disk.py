"""What the log asks of a disk, and nothing more, so that a model of one can stand in.

What we assume of it: a write is durable only after `sync` returned on the descriptor that wrote it; a name only
after `sync_directory`; a rename is atomic; 512-byte sectors are written whole or not at all, in any order; a
failed sync says nothing about what is on disk, and asking again proves nothing. `DirectDisk` is the real thing.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from wal.errors import LogLocked
from wal.straight import BLOCK_BYTES, Straight

LOCK = "LOCK"  # the name of the file that the owner of a directory has locked
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
IOV_MAX = 1024  # buffers that one writev takes
_CAN_ADVISE = hasattr(os, "posix_fadvise")


class Disk(Protocol):
    """Paths are whole paths; descriptors are plain numbers; errors are OSError."""

    def make_directory(self, path: str) -> None:
        """Create it with its parents where missing, and make their names durable."""
        ...

    def lock(self, path: str) -> int:
        """Take the exclusive lock on a file. Raises LogLocked."""
        ...

    def create(self, path: str) -> int:
        """A new file, open for reading and writing; an old one of that name is an error."""
        ...

    def open(self, path: str) -> int: ...

    def open_read_only(self, path: str) -> int: ...

    def write(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        """Write some of the buffers at a position; returns how many bytes."""
        ...

    def write_past_cache(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        """The same, for much at the end of a file that goes on with zeros, and that nobody reads soon."""
        ...

    def hasten(self, fd: int, position: int, size: int) -> None:
        """Begin to bring a little that was just written to the device, and do not wait: the sync takes less long then.

        It promises nothing, does nothing where it is more than a little, and never fails.
        """
        ...

    def read(self, fd: int, size: int, position: int) -> bytes:
        """Up to `size` bytes; fewer only at the end. Blocks that can't be read come back as zeros."""
        ...

    def size(self, fd: int) -> int: ...

    def allocate(self, fd: int, size: int) -> None:
        """Reserve space so that the file has at least `size` bytes, the new ones zero."""
        ...

    def truncate(self, fd: int, size: int) -> None: ...

    def sync(self, fd: int) -> None: ...

    def close(self, fd: int) -> None: ...

    def rename(self, old: str, new: str) -> None: ...

    def link(self, old: str, new: str) -> None:
        """A second name for a file."""
        ...

    def unlink(self, path: str) -> None: ...

    def list(self, path: str) -> list[str]: ...

    def sync_directory(self, path: str) -> None: ...

    def free_bytes(self, path: str) -> int: ...

    def device(self, path: str) -> int:
        """Whose space a path takes: the same number, the same free bytes."""
        ...


class DirectDisk:
    """The operating system's files."""

    def __init__(self) -> None:
        self._straight = Straight()

    def make_directory(self, path: str) -> None:
        missing = []
        here = os.path.abspath(path)
        while not os.path.isdir(here):
            missing.append(here)
            here = os.path.dirname(here)
        # Whoever made the last one (an operator, a process that was killed) may not have synced its name.
        with suppress(OSError):  # its parent need not be ours to open
            self.sync_directory(os.path.dirname(here))
        for made in reversed(missing):
            try:
                os.mkdir(made, 0o700)
            except FileExistsError:
                if not os.path.isdir(made):
                    raise
            try:
                self.sync_directory(os.path.dirname(made))
            except OSError:
                os.rmdir(made)  # the next try makes it anew: a name whose sync failed can't be made durable
                raise

    def lock(self, path: str) -> int:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            raise LogLocked(f"{os.path.dirname(path)} is in use by another process") from error
        return fd

    def create(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def open(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def open_read_only(self, path: str) -> int:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def write(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        self._straight.forget(fd)
        return os.pwritev(fd, buffers, position)

    def write_past_cache(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        written = self._straight.write(fd, buffers, position)
        return self.write(fd, buffers, position) if written is None else written

    def hasten(self, fd: int, position: int, size: int) -> None:
        # Said of pages that are not written yet, this has Linux begin to write them. A whole page it would also try to
        # drop, which takes long while the page is being written.
        if size < BLOCK_BYTES and _CAN_ADVISE:
            with suppress(OSError):
                os.posix_fadvise(fd, position, size, os.POSIX_FADV_DONTNEED)

    def read(self, fd: int, size: int, position: int) -> bytes:
        try:
            data = os.pread(fd, size, position)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return self._read_blocks(fd, size, position)
        if len(data) < size and position + len(data) < self.size(fd):
            data += self.read(fd, size - len(data), position + len(data))
        return data

    def _read_blocks(self, fd: int, size: int, position: int) -> bytes:
        """A bad block must not cost its neighbours: it reads as zeros, which are never a valid frame."""
        end = min(position + size, self.size(fd))
        blocks = []
        while position < end:
            step = min(BLOCK_BYTES - position % BLOCK_BYTES, end - position)
            try:
                blocks.append(os.pread(fd, step, position))
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                blocks.append(bytes(step))
            position += step
        return b"".join(blocks)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def allocate(self, fd: int, size: int) -> None:
        os.posix_fallocate(fd, 0, size)

    def truncate(self, fd: int, size: int) -> None:
        self._straight.forget(fd)
        os.ftruncate(fd, size)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def close(self, fd: int) -> None:
        self._straight.forget(fd)
        os.close(fd)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def link(self, old: str, new: str) -> None:
        os.link(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def list(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, path: str) -> int:
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize

    def device(self, path: str) -> int:
        return os.stat(path).st_dev


def write_all(disk: Disk, fd: int, buffers: Sequence[bytes], position: int) -> None:
    """Write every byte, going on after short writes."""
    first, cut = 0, 0  # the first buffer not written whole, and how much of it is
    while first < len(buffers):
        some = list(buffers[first : first + IOV_MAX])
        some[0] = some[0][cut:]
        count = disk.write(fd, some, position)
        position += count
        for buffer in some:
            if count < len(buffer):
                break
            count -= len(buffer)
            first, cut = first + 1, 0
        cut += count


def write_file(disk: Disk, path: str, data: bytes) -> None:
    """Put a whole new file on disk, durable but for its name. What an earlier try left there is replaced."""
    try:
        fd = disk.create(path)
    except FileExistsError:
        disk.unlink(path)
        fd = disk.create(path)
    try:
        write_all(disk, fd, [data], 0)
        disk.sync(fd)
    finally:
        disk.close(fd)


def allocate_file(disk: Disk, path: str, size: int) -> bool:
    """Make a file of zeros, or make it larger; False, and no new file, where the disk is full."""
    is_new = False
    fd = -1
    try:
        try:
            fd = disk.open(path)
        except FileNotFoundError:
            fd = disk.create(path)
            is_new = True
        disk.allocate(fd, size)
    except OSError as error:
        if error.errno not in FULL:
            raise
        if is_new:
            disk.unlink(path)
        return False
    finally:
        if fd >= 0:
            disk.close(fd)
    return True


def read_file(disk: Disk, path: str) -> bytes:
    fd = disk.open_read_only(path)
    try:
        return disk.read(fd, disk.size(fd), 0)
    finally:
        disk.close(fd)
