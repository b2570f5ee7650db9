"""Writing a segment anew, as the next generation of itself: copy-forward, repair, cleaning.

The file grows under another name and gets its own only when it is whole and durable. It is part of the log only when
a manifest says so; a crash before that leaves at most a second copy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from wal.chain import path_of
from wal.disk import Disk
from wal.manifest import Manifest, SegmentEntry
from wal.segment import SealedWriter

REWRITING = "rewriting"  # the name of an unfinished one


class Kept(NamedTuple):
    """A frame of the new file."""

    type: int
    sequence: int
    payload: bytes


def rewrite(
    disk: Disk,
    directory: str,
    manifest: Manifest,
    entry: SegmentEntry,
    frames: Iterable[Kept],
    *,
    salt: bytes,
    take: Callable[[str], int],
    last_sequence: int | None = None,
) -> SegmentEntry:
    """Write the frames that stay of a segment; returns its next generation, durable under its own name.

    `last_sequence`: the end of the covered range, where it is not the last frame's.
    """
    header = replace(entry.header(manifest.log_uuid), generation=entry.generation + 1, salt=salt)
    path = os.path.join(directory, REWRITING)
    fd = take(path)
    try:
        copy = SealedWriter(disk, fd, header)
        for kept in frames:
            copy.add(kept.type, kept.sequence, [kept.payload])
        size = copy.seal()
    finally:
        disk.close(fd)
    last = copy.last_sequence if last_sequence is None else last_sequence
    made = SegmentEntry.of(header, last_sequence=last, is_sealed=True, size=size, last_crc=copy.last_crc)
    disk.rename(path, path_of(directory, manifest, made))
    disk.sync_directory(directory)
    return made
