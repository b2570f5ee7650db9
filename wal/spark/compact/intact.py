"""The frames of a segment that is intact, and no copy of what they hold. Imports no pyspark.

The walk of `wal.chain` goes on behind damage, and tells what it hid. Who gives up a damaged segment anyway needs none
of that: here every CRC is checked, up to the seal's, and the first that is wrong ends it.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator
from typing import cast

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from wal.errors import WalError
from wal.frame import HEADER_BYTES as FRAME_BYTES
from wal.frame import Frame, read_head, scan
from wal.record import SEAL, Seal
from wal.segment import SEGMENT_HEADER_BYTES, SegmentFile, roll
from wal.spark.read.listing import Segment, explained
from wal.spark.read.storage import storage

WINDOW_BYTES = 1 << 20  # read at a time, unless a frame is larger


class NotClear(WalError):
    """Something is not as it should be; what that is, only the walk of `wal.chain` tells."""


def open_segment(segment: Segment) -> SegmentFile:
    """Raises SegmentGone; FileNotFoundError where the file is lost."""
    disk, folder = storage(segment.root)
    with explained(segment):
        return SegmentFile(disk, f"{folder}/{segment.name}", segment.salt)


def intact_frames(segment: Segment, let_go: Callable[[], None]) -> Iterator[Frame]:
    """Every frame of a sealed segment but its seal. Raises as `open_segment`, and NotClear, maybe after some frames.

    Payloads are views of a window, in place of bytes: to be written, or made bytes of where they are looked into. The
    next window is read into the same memory, so `let_go` is called before.
    """
    with open_segment(segment) as file:
        crcs, expected, is_dense = array("L"), segment.first_sequence, segment.entry.is_dense
        position, buffer = SEGMENT_HEADER_BYTES, np.empty(WINDOW_BYTES, np.uint8)
        while True:
            let_go()
            window = buffer[: _read_into(file, buffer, position)]
            base = position
            for frame in scan(cast(bytes, window), file.salt, 0, base):
                _, type_, sequence, _, crc, payload = frame
                if sequence != expected and (is_dense or sequence < expected):
                    raise NotClear(f"{segment.name}, byte {position}: not the frame that should be here")
                if type_ == SEAL:
                    if _sealed(frame) != (len(crcs), roll(0, crcs)):
                        raise NotClear(f"{segment.name}, byte {position}: not the seal of these frames")
                    return
                crcs.append(crc)
                expected = sequence + 1
                position += FRAME_BYTES + len(payload)
                yield frame
            if position == base:
                head = read_head(cast(bytes, window), file.salt, 0)
                if head is None or head.end <= len(buffer):
                    raise NotClear(f"{segment.name}, byte {position}: no intact frame")
                buffer = np.empty(head.end, np.uint8)


def _read_into(file: SegmentFile, buffer: NDArray[np.uint8], position: int) -> int:
    try:
        return os.preadv(file.fd, [buffer.data], position)
    except OSError as error:
        raise NotClear(f"{file.path}, byte {position}: {error.strerror}") from error


def _sealed(frame: Frame) -> tuple[int, int]:
    try:
        seal = Seal.FromString(bytes(frame.payload))
    except DecodeError:
        return -1, 0
    return seal.frames, seal.rolling_crc
