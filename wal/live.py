"""The live segment: the one that is being written, and how a new one begins."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from wal.disk import Disk, write_all
from wal.frame import Salt
from wal.index import SegmentIndex
from wal.manifest import SegmentEntry
from wal.segment import SEGMENT_HEADER_BYTES, SegmentHeader
from wal.space import Space

T = TypeVar("T")


@dataclass(slots=True)
class Live:
    """The segment being written."""

    fd: int
    entry: SegmentEntry
    salt: Salt
    index: SegmentIndex
    position: int
    frames: int = 0
    last_sequence: int = 0
    rolling_crc: int = 0
    zeroed: int = 0  # the file is zeros, written and not only allocated, from `position` to here


class Patience(Protocol):
    """Do something that needs space, in the caller's way of dealing with a full disk."""

    def __call__(self, act: Callable[[], T], /) -> T: ...


def start_segment(
    disk: Disk,
    directory: str,
    header: SegmentHeader,
    extension: str,
    index: SegmentIndex,
    *,
    space: Space,
    patiently: Patience,
    sync: Callable[[int], None],
) -> Live:
    """A new live segment, durable with its name. It is part of the log only when a manifest says so."""
    entry = SegmentEntry.of(header)
    fd = patiently(lambda: space.take(os.path.join(directory, entry.name(extension))))
    patiently(lambda: write_all(disk, fd, [header.pack()], 0))
    sync(fd)
    disk.sync_directory(directory)
    return Live(fd, entry, Salt.of(header.salt), index, SEGMENT_HEADER_BYTES, last_sequence=header.first_sequence - 1)
