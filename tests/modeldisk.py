"""A disk in memory that behaves as badly as a real one may, and no worse.

What was written is readable at once and durable only after `sync`; a name is durable only after `sync_directory`.
`crash_states` gives the disks that a restart after a power cut may find: of what was not synced, nothing, everything,
or any part (512-byte sectors, sizes and names each on their own; the changes of one name keep their order, and a
rename happens whole or not at all). After a failed sync the data is still readable, never becomes durable, and the
next sync says that all is well, as Linux does it.

`schedule` makes chosen operations fail; `cut_at` cuts the power; `before` is called ahead of every operation that
changes something, which is where a test forks off crash states without running anything twice.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from modelfile import SECTOR_BYTES, Choose, Inode, chance

from wal.disk import Disk
from wal.errors import LogLocked

UNLIMITED = 1 << 40
SHORT = -1  # a fault: the write takes only a part


class PowerCut(BaseException):
    """The machine is off. No handler of ordinary errors may catch it."""


Names = dict[str, Inode]
Change = dict[str, Inode | None]  # names that change together: two of them in a rename


class ModelDisk:
    """Implements `wal.disk.Disk`."""

    def __init__(self, capacity: int = UNLIMITED) -> None:
        root = Inode(is_directory=True)
        self.names: Names = {"/": root}
        self.durable_names: Names = {"/": root}
        self.pending: list[Change] = []
        self.capacity = capacity
        self.files: dict[int, Inode] = {}  # open descriptors
        self.counts: Counter[str] = Counter()  # operations so far, by kind
        self.operations = 0
        self.destroys = False  # where a sync fails, what was on its way is neither there nor in the cache
        self.failed: list[str] = []  # paths of the operations that failed as scheduled
        self.before: Callable[[str, str], None] | None = None
        self.is_off = False
        self._locks: dict[int, str] = {}
        self._paths: dict[int, str] = {}
        self._next_fd = 100
        self._cut_at = 0
        self._faults: dict[tuple[str, int], int] = {}

    # ------------------------------------------------------------ what a test does to it

    def schedule(self, kind: str, nth: int, fault: int) -> None:
        """Fail the nth operation of a kind from now on with an errno, or SHORT."""
        self._faults[kind, self.counts[kind] + nth] = fault

    def cut_at(self, nth: int) -> None:
        """Cut the power in the nth operation from now on; 0: never."""
        self._cut_at = self.operations + nth if nth else 0

    def kill(self) -> None:
        """The process dies, the machine goes on: all that was written is there, locks and descriptors are not."""
        self.files.clear()
        self._locks.clear()
        self._paths.clear()
        self.before = None

    def fork(self) -> ModelDisk:
        """The same disk in the same state, with what is not synced, for a process that starts anew."""
        copies: dict[int, Inode] = {}

        def copy(inode: Inode) -> Inode:
            if id(inode) not in copies:
                copies[id(inode)] = inode.copy()
            return copies[id(inode)]

        other = type(self)(self.capacity)
        other.names = {path: copy(inode) for path, inode in self.names.items()}
        other.durable_names = {path: copy(inode) for path, inode in self.durable_names.items()}
        other.pending = [{path: inode and copy(inode) for path, inode in change.items()} for change in self.pending]
        return other

    def crash_states(self, rng: Random, count: int) -> Iterator[ModelDisk]:
        """Disks that a restart after a power cut may find: nothing unsynced, all of it, then random parts."""
        yield self.crashed(lambda versions: 0)
        if count > 1:
            yield self.crashed(lambda versions: versions)
        for _ in range(count - 2):
            yield self.crashed_at_random(rng)

    def crashed_at_random(self, rng: Random) -> ModelDisk:
        return self.crashed(chance(rng, rng.choice((0.1, 0.5, 0.5, 0.9))))

    def crashed(self, choose: Choose) -> ModelDisk:
        """The disk after a power cut; `choose` says of each unsynced thing whether it reached the platter."""
        names = dict(self.durable_names)
        stuck: set[str] = set()  # a change of theirs is lost, so are those after it
        for change in self.pending:
            if stuck.isdisjoint(change) and choose(1):
                _apply(change, names)
            else:
                stuck.update(change)
        other = type(self)(self.capacity)
        survivors: dict[int, Inode] = {}
        other.names = {}
        for path in sorted(names):
            parent = other.names.get(os.path.dirname(path))
            if path != "/" and (parent is None or not parent.is_directory):
                continue  # it is in a directory whose own name is lost
            inode = names[path]
            if id(inode) not in survivors:
                survivors[id(inode)] = inode.after_crash(choose)
            other.names[path] = survivors[id(inode)]
        other.durable_names = dict(other.names)
        return other

    # ------------------------------------------------------------ the disk

    def make_directory(self, path: str) -> None:
        missing = []
        while path not in self.names:
            missing.append(path)
            path = os.path.dirname(path)
        if path != "/":
            self.sync_directory(os.path.dirname(path))
        for made in reversed(missing):
            self._raise(self._step("make_directory", made))
            self._change({made: Inode(is_directory=True)})
            try:
                self.sync_directory(os.path.dirname(made))
            except OSError:
                self._change({made: None})
                raise

    def lock(self, path: str) -> int:
        if path in self._locks.values():
            raise LogLocked(f"{os.path.dirname(path)} is in use by another process")
        fd = self.open(path) if path in self.names else self.create(path)
        self._locks[fd] = path
        return fd

    def create(self, path: str) -> int:
        self._raise(self._step("create", path))
        if path in self.names:
            raise FileExistsError(errno.EEXIST, "it exists", path)
        if os.path.dirname(path) not in self.names:
            raise FileNotFoundError(errno.ENOENT, "no such directory", path)
        self._change({path: Inode()})
        return self._opened(path)

    def open(self, path: str) -> int:
        if self.is_off:
            raise PowerCut
        return self._opened(path)

    def open_read_only(self, path: str) -> int:
        return self.open(path)

    def write(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        inode = self._inode(fd)
        data = b"".join(buffers)
        fault = self._step("write", self._paths[fd], lambda: inode.put(data, position))
        if fault == SHORT or fault == errno.EIO:
            data = data[: len(data) // 2]
        room = max(0, self.free_bytes("") + len(inode.cache) - position)
        if fault == errno.ENOSPC or (data and not room):
            raise _error(errno.ENOSPC)
        inode.put(data[:room], position)
        if fault == errno.EIO:
            raise _error(fault)
        return len(data[:room])

    def write_past_cache(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        """In whole sectors, as a device takes them: with what lies before, and zeros behind."""
        cache, data = self._inode(fd).cache, b"".join(buffers)
        start = position - position % SECTOR_BYTES
        padding = -(position + len(data)) % SECTOR_BYTES
        if position + len(data) + padding > len(cache):
            return self.write(fd, buffers, position)
        before = bytes(cache[start:position])
        return min(max(0, self.write(fd, [before, data, bytes(padding)], start) - len(before)), len(data))

    def hasten(self, fd: int, position: int, size: int) -> None:
        """Nothing: what is not synced may be on the disk at a cut, or not, however that came."""

    def read(self, fd: int, size: int, position: int) -> bytes:
        return bytes(self._inode(fd).cache[position : position + size])

    def size(self, fd: int) -> int:
        return len(self._inode(fd).cache)

    def allocate(self, fd: int, size: int) -> None:
        inode = self._inode(fd)
        self._raise(self._step("allocate", self._paths[fd]))
        if size - len(inode.cache) > self.free_bytes(""):
            raise _error(errno.ENOSPC)
        inode.resize(max(size, len(inode.cache)))

    def truncate(self, fd: int, size: int) -> None:
        inode = self._inode(fd)
        self._raise(self._step("truncate", self._paths[fd]))
        inode.resize(size)

    def sync(self, fd: int) -> None:
        inode = self._inode(fd)
        fault = self._step("sync", self._paths[fd])
        if fault:
            if self.destroys:
                inode.destroy()
            inode.forget()
            raise _error(fault)
        inode.flush()

    def close(self, fd: int) -> None:
        self._inode(fd)
        fault = self._step("close", self._paths[fd])
        del self.files[fd], self._paths[fd]
        self._locks.pop(fd, None)
        self._raise(fault)

    def rename(self, old: str, new: str) -> None:
        self._raise(self._step("rename", new))
        if old not in self.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        self._change({old: None, new: self.names[old]})

    def link(self, old: str, new: str) -> None:
        self._raise(self._step("link", new))
        if old not in self.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        if new in self.names:
            raise FileExistsError(errno.EEXIST, "it exists", new)
        self._change({new: self.names[old]})

    def unlink(self, path: str) -> None:
        self._raise(self._step("unlink", path))
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        self._change({path: None})

    def list(self, path: str) -> list[str]:
        prefix = path + "/"
        cut = len(prefix)
        return sorted(name[cut:] for name in self.names if name.startswith(prefix) and "/" not in name[cut:])

    def sync_directory(self, path: str) -> None:
        fault = self._step("sync_directory", path)
        wanted: set[str] = set()
        flushed: list[Change] = []
        for change in reversed(self.pending):  # with all that happened before to the same names
            if not wanted.isdisjoint(change) or any(os.path.dirname(name) == path for name in change):
                wanted.update(change)
                flushed.append(change)
        self.pending = [change for change in self.pending if not any(change is other for other in flushed)]
        self._raise(fault)
        for change in reversed(flushed):
            _apply(change, self.durable_names)

    def device(self, path: str) -> int:
        return 1

    def free_bytes(self, path: str) -> int:
        if self.capacity == UNLIMITED:
            return UNLIMITED
        inodes = {id(inode): inode for inode in (*self.names.values(), *self.files.values())}
        return max(0, self.capacity - sum(len(inode.cache) for inode in inodes.values()))

    # ------------------------------------------------------------ inside

    def _step(self, kind: str, path: str, halfway: Callable[[], None] | None = None) -> int:
        """Every operation that changes something starts here; returns the fault that it has to suffer, or 0."""
        if self.is_off:
            raise PowerCut
        if self.before is not None:
            self.before(kind, path)
        self.counts[kind] += 1
        self.operations += 1
        if self.operations == self._cut_at:
            if halfway is not None:
                halfway()
            self.is_off = True
            raise PowerCut
        fault = self._faults.pop((kind, self.counts[kind]), 0) if self._faults else 0
        if fault:
            self.failed.append(path)
        return fault

    def _raise(self, fault: int) -> None:
        if fault:
            raise _error(fault)

    def _change(self, change: Change) -> None:
        _apply(change, self.names)
        self.pending.append(change)

    def _opened(self, path: str) -> int:
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        self._next_fd += 1
        self.files[self._next_fd] = self.names[path]
        self._paths[self._next_fd] = path
        return self._next_fd

    def _inode(self, fd: int) -> Inode:
        if self.is_off:
            raise PowerCut
        if fd not in self.files:
            raise _error(errno.EBADF)
        return self.files[fd]


class Unsynced:
    """A disk as a careless program uses it: it never syncs."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def sync(self, fd: int) -> None:
        pass

    def sync_directory(self, path: str) -> None:
        pass


def _apply(change: Change, names: Names) -> None:
    for path, inode in change.items():
        if inode is None:
            names.pop(path, None)
        else:
            names[path] = inode


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
