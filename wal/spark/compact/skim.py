"""A quick look at a segment: its records without their batches. Imports no pyspark.

A frame's head has a CRC of its own. Where heads lead from one to the next up to the seal, and that knows as many, they
tell what the segment holds, and most of its bytes need not be read. What lies behind a head is believed, so this is
good for an estimate: damage there is found by whoever reads the segment.
"""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.message import DecodeError, Message

from wal.errors import CorruptSegment, WalError
from wal.frame import HEADER_BYTES as FRAME_BYTES
from wal.frame import Head, read_head
from wal.record import SEAL, Seal, Unknown, decode, head_of
from wal.segment import SEGMENT_HEADER_BYTES, SegmentFile
from wal.spark.read.listing import Segment, explained
from wal.spark.read.storage import storage

LOOK_BYTES = 1 << 10  # read at a time: many small frames, or the beginning of a large one


class NotClear(WalError):
    """The heads do not tell: only reading all of the segment does."""


def skim(segment: Segment) -> Iterator[tuple[Message | Unknown, int]]:
    """Every record of a sealed segment, publishes without their batch, and the bytes of its frame.

    Raises NotClear, and that may be after some records; SegmentGone; FileNotFoundError where the file is lost.
    """
    disk, folder = storage(segment.root)
    with explained(segment):
        file = SegmentFile(disk, f"{folder}/{segment.name}", segment.salt)
    with file:
        frames, expected, is_dense = 0, segment.first_sequence, segment.entry.is_dense
        position = base = SEGMENT_HEADER_BYTES
        window = b""
        while True:
            at = position - base
            if at + FRAME_BYTES > len(window):
                base, at, window = position, 0, disk.read(file.fd, LOOK_BYTES, position)
            head = read_head(window, file.salt, at, base)
            if head is None or head.sequence < expected or (is_dense and head.sequence > expected):
                raise NotClear(f"{segment.name}, byte {position}: no frame that continues those before")
            if head.type == SEAL:
                break
            yield _record(file, head, window[at + FRAME_BYTES : head.end - base]), head.end - position
            frames, expected, position = frames + 1, head.sequence + 1, head.end
        if _frames_sealed(file, position) != frames:
            raise NotClear(f"{segment.name}, byte {position}: the seal does not speak of {frames} frames")


def _record(file: SegmentFile, head: Head, start: bytes) -> Message | Unknown:
    length = head.end - head.position - FRAME_BYTES
    record = head_of(head.type, start, length)
    if record is not None:
        return record
    payload = start if len(start) == length else file.disk.read(file.fd, length, head.position + FRAME_BYTES)
    try:
        return decode(head.type, payload)
    except DecodeError as error:
        raise NotClear(f"{file.path}, byte {head.position}: no record") from error


def _frames_sealed(file: SegmentFile, position: int) -> int:
    try:
        return Seal.FromString(file.frame_at(position).payload).frames
    except (CorruptSegment, DecodeError):
        return -1
