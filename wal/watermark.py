"""The watermark: how far the log is known to be durable, kept beside it.

Two slots of one sector each, written in turn, so that a torn write of one leaves the other. A slot follows a sync
soon, where no later frame vouches for it by then. The file itself is synced only when a segment is rotated and at a
clean stop: it then outlives a kill of the process at once, and a power cut up to the last rotation. It only ever claims
what was already synced, so an old value is a weaker claim, never a wrong one.

A slot: magic (4), clean (4), counter (8), sequence (8), first sequence (8) and generation (4) of the segment, log
uuid (16), bytes (8), CRC32C of these (4); the rest of the sector is zero. The valid slot with the
higher counter counts.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from uuid import UUID

from wal.disk import Disk, write_all
from wal.frame import crc32c

WATERMARK = "watermark"
SLOT_BYTES = 512

_SLOT = struct.Struct("<4sIQQQI16sQ")
_CRC = struct.Struct("<I")
_MAGIC = b"mqwm"


@dataclass(frozen=True, slots=True)
class Mark:
    """Everything up to `sequence` is durable; that was byte `bytes` of the named segment."""

    sequence: int
    first_sequence: int
    generation: int
    bytes: int
    is_clean: bool = False  # the log was closed in good order, and nothing was written since


class WatermarkFile:
    """The open file; the writer's alone."""

    def __init__(self, disk: Disk, directory: str, log_uuid: UUID) -> None:
        path = os.path.join(directory, WATERMARK)
        self._disk = disk
        self._uuid = log_uuid
        try:
            self._fd = disk.open(path)
        except FileNotFoundError:
            self._fd = disk.create(path)
            write_all(disk, self._fd, [bytes(2 * SLOT_BYTES)], 0)
            disk.sync(self._fd)
            disk.sync_directory(directory)
        self.mark, self._counter = _latest(disk.read(self._fd, 2 * SLOT_BYTES, 0), log_uuid)

    def write(self, mark: Mark) -> None:
        counter = self._counter + 1
        slot = _SLOT.pack(
            _MAGIC, mark.is_clean, counter, mark.sequence, mark.first_sequence,
            mark.generation, self._uuid.bytes, mark.bytes,
        )  # fmt: skip
        write_all(self._disk, self._fd, [slot + _CRC.pack(crc32c(slot))], counter % 2 * SLOT_BYTES)
        self._counter = counter  # only now: a failed write is tried again in the same slot, and spares the other
        self.mark = mark

    def sync(self) -> None:
        self._disk.sync(self._fd)

    def close(self) -> None:
        self._disk.close(self._fd)


def read_mark(disk: Disk, directory: str, log_uuid: UUID) -> Mark | None:
    """The newest intact mark, or None; for those who only look."""
    try:
        fd = disk.open_read_only(os.path.join(directory, WATERMARK))
    except FileNotFoundError:
        return None
    try:
        return _latest(disk.read(fd, 2 * SLOT_BYTES, 0), log_uuid)[0]
    finally:
        disk.close(fd)


def _latest(data: bytes, log_uuid: UUID) -> tuple[Mark | None, int]:
    best: Mark | None = None
    best_counter = 0
    for start in (0, SLOT_BYTES):
        slot = data[start : start + _SLOT.size]
        crc = data[start + _SLOT.size : start + _SLOT.size + 4]
        if len(crc) < 4 or crc != _CRC.pack(crc32c(slot)):
            continue
        magic, clean, counter, sequence, first, generation, uuid, size = _SLOT.unpack(slot)
        if magic == _MAGIC and uuid == log_uuid.bytes and counter > best_counter:
            best_counter = counter
            best = Mark(sequence, first, generation, size, bool(clean))
    return best, best_counter
