"""A quick look at a segment: its records without their batches. Imports no pyspark.

A frame's head has a CRC of its own. Where heads lead from one to the next up to the seal, and that knows as many, they
tell what the segment holds, and most of its bytes need not be read. What lies behind a head is believed, so this is
good for an estimate: damage there is found by whoever reads the segment.
"""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.message import DecodeError, Message

from wal.errors import CorruptSegment
from wal.frame import HEADER_BYTES as FRAME_BYTES
from wal.frame import Head, read_head
from wal.record import SEAL, Seal, Unknown, decode, head_of
from wal.segment import SEGMENT_HEADER_BYTES, SegmentFile
from wal.spark.compact.intact import NotClear, open_segment
from wal.spark.read.listing import Segment

LOOK_BYTES = 1 << 10  # read at a time: many small frames, or the beginning of a large one


def skim(segment: Segment) -> Iterator[tuple[Message | Unknown, int]]:
    """Every record of a sealed segment, publishes without their batch, and the bytes of its frame.

    Raises NotClear, and that may be after some records; SegmentGone; FileNotFoundError where the file is lost.
    """
    with open_segment(segment) as file:
        frames, expected, is_dense = 0, segment.first_sequence, segment.entry.is_dense
        position = base = SEGMENT_HEADER_BYTES
        window = b""
        read, fd, salt = file.disk.read, file.fd, file.salt
        while True:
            at = position - base
            if at + FRAME_BYTES > len(window):
                base, at, window = position, 0, read(fd, LOOK_BYTES, position)
            head = read_head(window, salt, at, base)
            if head is None:
                raise NotClear(f"{segment.name}, byte {position}: no head of a frame")
            _, end, type_, sequence, _ = head
            if sequence != expected and (is_dense or sequence < expected):
                raise NotClear(f"{segment.name}, byte {position}: not the frame that should be here")
            if type_ == SEAL:
                break
            start = window[at + FRAME_BYTES : end - base]
            yield head_of(type_, start, end - position - FRAME_BYTES) or _decoded(file, head, start), end - position
            frames, expected, position = frames + 1, sequence + 1, end
        if _frames_sealed(file, position) != frames:
            raise NotClear(f"{segment.name}, byte {position}: the seal does not speak of {frames} frames")


def _decoded(file: SegmentFile, head: Head, start: bytes) -> Message | Unknown:
    length = head.end - head.position - FRAME_BYTES
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
