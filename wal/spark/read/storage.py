"""Where logs lie: a directory of this machine, or a folder that pyarrow.fs opens by its URI. Read-only.

Both look like a `wal.disk.Disk`, so that the code that reads a log reads it anywhere.
"""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import unquote, urlsplit

from wal.disk import DirectDisk, Disk

READ_AHEAD_BYTES = 8 << 20  # of a remote file: a walk asks for less, and every request has to cross a network


def is_local(root: str) -> bool:
    return "://" not in root or urlsplit(root).scheme == "file"


def folder_of(root: str) -> str:
    """The path of a local root."""
    return (unquote(urlsplit(root).path) if "://" in root else root).rstrip("/") or "/"


def storage(root: str) -> tuple[Disk, str]:
    """The disk to read a root with, and the path of the root on it."""
    if is_local(root):
        return DirectDisk(), folder_of(root)
    from pyarrow import fs

    files, path = fs.FileSystem.from_uri(root)
    return cast(Disk, _RemoteDisk(files)), path.rstrip("/")


class _RemoteDisk:
    """A file system of pyarrow's, for reading only; a read gets more than was asked, for the next one."""

    def __init__(self, files: Any) -> None:
        self._files = files
        self._open: dict[int, tuple[Any, int]] = {}
        self._ahead: dict[int, tuple[int, bytes]] = {}

    def open_read_only(self, path: str) -> int:
        stream = self._files.open_input_file(path)
        fd = max(self._open, default=0) + 1
        self._open[fd] = (stream, stream.size())
        return fd

    def size(self, fd: int) -> int:
        return self._open[fd][1]

    def read(self, fd: int, size: int, position: int) -> bytes:
        stream, end = self._open[fd]
        size = max(0, min(size, end - position))
        start, data = self._ahead.get(fd, (0, b""))
        if not start <= position <= position + size <= start + len(data):
            start, data = position, stream.read_at(min(max(size, READ_AHEAD_BYTES), end - position), position)
            self._ahead[fd] = (start, data)
        return data[position - start : position - start + size]

    def close(self, fd: int) -> None:
        self._open.pop(fd)[0].close()
        self._ahead.pop(fd, None)

    def list(self, path: str) -> list[str]:
        from pyarrow import fs

        return sorted(each.base_name for each in self._files.get_file_info(fs.FileSelector(path)))
