"""Segments: one file of the log. Its name, its header, the walk over its frames, and writing a sealed one.

    0        8    10   12      16               32              40              48              56      60      64
    +--------+----+----+-------+----------------+---------------+---------------+---------------+-------+-------+
    | magic  |ver | 0  | gener.|    log uuid    | first sequence|     salt      | previous last | prev. |header |
    |        |    |    |       |                |               |               |   sequence    |  crc  |  crc  |
    +--------+----+----+-------+----------------+---------------+---------------+---------------+-------+-------+

The MANIFEST repeats all of it, so a damaged header costs nothing but a report: frames are checked against the
MANIFEST's salt. Live segments are preallocated: beyond the append position every byte is zero. A sealed one ends
with its seal frame and is immutable.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from wal.disk import Disk, write_all
from wal.errors import CorruptSegment, UnsupportedVersion
from wal.frame import HEADER_BYTES as FRAME_BYTES
from wal.frame import (
    Frame,
    Head,
    Salt,
    crc32c,
    encode,
    extend_crc32c,
    find_head,
    first_nonzero,
    last_nonzero,
    read_head,
    scan,
)
from wal.record import SEAL, Seal

MAGIC = b"mqwal\r\n\0"
FORMAT_VERSION = 1
SEGMENT_HEADER_BYTES = 64
MAX_SEQUENCE = (1 << 63) - 1  # more than a log can hold; what claims more is no frame
_MOST_DISPLACED = 1000  # frames out of place that a walk remembers
WINDOW_BYTES = 1 << 20  # how much of a file a walk holds at a time, unless a frame is larger

_HEADER = struct.Struct("<8sHHI16sQ8sQI")
_CRC = struct.Struct("<I")


def segment_name(first_sequence: int, generation: int, extension: str = ".wal") -> str:
    return f"{first_sequence:020d}-{generation}{extension}"


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """What a segment says of itself."""

    log_uuid: UUID
    first_sequence: int
    generation: int
    salt: bytes
    previous_last: int = 0  # last sequence of the segment before; 0 where there is none
    previous_crc: int = 0  # CRC of its last frame

    def pack(self) -> bytes:
        fields = _HEADER.pack(
            MAGIC, FORMAT_VERSION, 0, self.generation, self.log_uuid.bytes,
            self.first_sequence, self.salt, self.previous_last, self.previous_crc,
        )  # fmt: skip
        return fields + _CRC.pack(crc32c(fields))

    @classmethod
    def unpack(cls, data: bytes, path: str) -> SegmentHeader:
        """Raises CorruptSegment or UnsupportedVersion."""
        if len(data) < SEGMENT_HEADER_BYTES or data[:8] != MAGIC:
            raise CorruptSegment(path, 0, "not a segment of an mq log")
        fields = data[: _HEADER.size]
        _, version, _, generation, uuid, first, salt, previous_last, previous_crc = _HEADER.unpack(fields)
        if data[_HEADER.size : SEGMENT_HEADER_BYTES] != _CRC.pack(crc32c(fields)):
            raise CorruptSegment(path, 0, "the segment's header is damaged")
        if version > FORMAT_VERSION:
            raise UnsupportedVersion(f"{path} has format {version}; this version reads up to {FORMAT_VERSION}")
        return cls(UUID(bytes=uuid), first, generation, salt, previous_last, previous_crc)


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes of a segment that are no intact frame, though frames were there. Positions are file positions."""

    position: int
    end: int
    first_sequence: int  # of what is missing
    last_sequence: int  # the same as first - 1 where no sequence is missing (foreign bytes between frames)
    reason: str

    @property
    def size(self) -> int:
        return self.end - self.position


class SegmentFile:
    """A segment open for reading; a context manager."""

    def __init__(self, disk: Disk, path: str, salt: bytes) -> None:
        self.disk = disk
        self.path = path
        self.salt = Salt.of(salt)
        self.fd = disk.open_read_only(path)
        self.size = disk.size(self.fd)

    def __enter__(self) -> SegmentFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.disk.close(self.fd)

    def header(self) -> SegmentHeader:
        return SegmentHeader.unpack(self.disk.read(self.fd, SEGMENT_HEADER_BYTES, 0), self.path)

    def frame_at(self, position: int) -> Frame:
        """The frame that starts at a position. Raises CorruptSegment."""
        window = self.disk.read(self.fd, FRAME_BYTES, position)
        head = read_head(window, self.salt, 0, position)
        if head is not None and head.end <= self.disk.size(self.fd):
            frame = next(scan(self.disk.read(self.fd, head.end - position, position), self.salt, 0, position), None)
            if frame is not None:
                return frame
        raise CorruptSegment(self.path, position, "the frame here is damaged", "mq wal verify lists what is lost")

    def walk(
        self,
        expected: int,
        *,
        start: int = SEGMENT_HEADER_BYTES,
        end: int | None = None,
        is_dense: bool = True,
        highest: int = MAX_SEQUENCE,
    ) -> Iterator[Frame | Gap]:
        """Every intact frame from sequence `expected` on, and every gap between them, in the order of the file.

        Ends where only zeros, or nothing, follow. `is_dense`: sequences rise by one (a segment written live), so a
        jump is a gap even where no byte is damaged; a frame above `highest` is none of this segment's. Memory is
        bounded by a window or one frame, time by the size.
        """
        window = _Window(self.disk, self.fd, self.size if end is None else min(end, self.size))
        displaced: dict[int, Head] = {}
        position = start
        while position < window.size:
            before = position
            at = window.at(position)
            for frame in scan(window.data, self.salt, at, window.base):
                end_of_frame = frame.position + FRAME_BYTES + len(frame.payload)
                if frame.sequence != expected:
                    if is_dense or not expected <= frame.sequence <= highest:
                        break
                    follower = read_head(window.peek(end_of_frame), self.salt, 0)
                    if follower is not None and follower.sequence <= frame.sequence:
                        break
                if displaced:
                    yield from _never_met(displaced, frame.position, frame.sequence)
                yield frame
                expected = frame.sequence + 1
                position = end_of_frame
            if position > before or window.reload_for(read_head(window.data, self.salt, at, window.base)):
                continue
            nonzero = self._first_nonzero(window, position)
            if nonzero == window.size:
                break
            searched = max(position, nonzero - FRAME_BYTES)
            resumed, told, furthest = self._resume(window, searched, expected, highest, is_dense, displaced)
            if resumed is None:
                end_of_gap = min(window.size, max(furthest, self.last_nonzero(position)))
                yield Gap(position, end_of_gap, expected, told, "no intact frame to the end")
                break
            if resumed.position > position:
                yield Gap(position, resumed.position, expected, resumed.sequence - 1, "damaged bytes")
            elif is_dense and resumed.sequence > expected:
                yield Gap(position, position, expected, resumed.sequence - 1, "frames are missing")
            yield from _never_met(displaced, resumed.position, resumed.sequence)
            yield resumed
            expected = resumed.sequence + 1
            position = resumed.position + FRAME_BYTES + len(resumed.payload)
        yield from _never_met(displaced, position)

    def _resume(
        self,
        window: _Window,
        position: int,
        expected: int,
        highest: int,
        is_dense: bool,
        displaced: dict[int, Head],
    ) -> tuple[Frame | None, int, int]:
        """The next intact frame that is in its right place, and what headers before it tell: sequence and end."""
        told, furthest = expected, position
        while True:
            head = self._find_head(window, position)
            if head is None:
                return None, told, furthest
            position = head.position + FRAME_BYTES
            if not expected <= head.sequence <= highest or head.end > window.size:
                continue
            told, furthest = max(told, head.sequence), max(furthest, head.end)
            if self._is_in_line(window, head, is_dense):
                frame = self._intact(window, head)
                if frame is not None:
                    return frame, told, furthest
            elif not is_dense and len(displaced) < _MOST_DISPLACED:
                displaced[head.sequence] = head
            if window.allowance < 0:
                position = head.end

    def _is_in_line(self, window: _Window, head: Head, is_dense: bool) -> bool:
        """A frame that was copied or moved is intact but out of line: what follows it does not continue it."""
        follower = read_head(window.peek(head.end), self.salt, 0)
        if follower is None:
            return True
        return follower.sequence == head.sequence + 1 if is_dense else follower.sequence > head.sequence

    def _intact(self, window: _Window, head: Head) -> Frame | None:
        window.allowance -= head.end - head.position
        if head.end <= window.base + len(window.data):
            return next(scan(window.data, self.salt, head.position - window.base, window.base), None)
        data = self.disk.read(self.fd, head.end - head.position, head.position)
        return next(scan(data, self.salt, 0, head.position), None)

    def _find_head(self, window: _Window, position: int) -> Head | None:
        while position < window.size:
            at = window.at(position)
            head = find_head(window.data, self.salt, at, window.base)
            end = window.base + len(window.data)
            if head is not None or end >= window.size:
                return head
            position = max(position + 1, end - FRAME_BYTES + 1)  # a header may straddle two windows
        return None

    def _first_nonzero(self, window: _Window, position: int) -> int:
        while position < window.size:
            at = window.at(position)
            found = first_nonzero(window.data, at)
            if found < len(window.data):
                return window.base + found
            position = window.base + len(window.data)
        return window.size

    def last_nonzero(self, position: int) -> int:
        """The end of the bytes after `position` that are not the zeros a preallocated file ends with."""
        size = self.size
        while size > position:
            start = max(position, size - WINDOW_BYTES)
            end = last_nonzero(self.disk.read(self.fd, size - start, start))  # shorter where the file was cut
            if end:
                return start + end
            size = start
        return position


class _Window:
    """The part of a file that a walk looks at. What lies in it is not read again, however often a walk stops there."""

    def __init__(self, disk: Disk, fd: int, size: int) -> None:
        self.size = size  # of the file, or of what of it is walked
        self.base = 0
        self.data = b""
        self.allowance = 8 * size  # for bytes read in vain: what keeps hostile ones from costing quadratic time
        self._disk = disk
        self._fd = fd

    def at(self, position: int) -> int:
        """Have the window hold the header at a position, or all to the end; returns the position in it."""
        at = position - self.base
        if at < 0 or (at + FRAME_BYTES > len(self.data) and self.base + len(self.data) < self.size):
            self._load(position)
            at = 0
        return at

    def reload_for(self, head: Head | None) -> bool:
        """Move the window to a frame that it holds only the beginning of; False where that would not help."""
        if head is None or head.position == self.base or head.end <= self.base + len(self.data):
            return False
        if head.end > min(self.size, head.position + WINDOW_BYTES) or self.allowance < 0:
            return False
        self.allowance -= WINDOW_BYTES
        self._load(head.position)
        return True

    def peek(self, position: int) -> bytes:
        """The bytes of a header at a position, wherever the window is."""
        at = position - self.base
        if at >= 0 and at + FRAME_BYTES <= len(self.data):
            return self.data[at : at + FRAME_BYTES]
        return self._disk.read(self._fd, max(0, min(FRAME_BYTES, self.size - position)), position)

    def _load(self, position: int) -> None:
        self.base = position
        wanted = min(WINDOW_BYTES, self.size - position)
        self.data = self._disk.read(self._fd, wanted, position)
        if len(self.data) < wanted:  # a live segment that was sealed, and so cut, while we read it
            self.size = position + len(self.data)


def _never_met(displaced: dict[int, Head], position: int, before: int | None = None) -> Iterator[Gap]:
    """Frames of a rewritten segment that lay elsewhere, and did not come in their place either: moved, so lost.

    The gap reaches from where one lies to where it should have been.
    """
    for sequence in sorted(displaced):
        if before is None or sequence <= before:
            head = displaced.pop(sequence)
            if sequence != before:
                yield Gap(head.position, max(head.end, position), sequence, sequence, "a frame out of its place")


class SealedWriter:
    """Writes a whole segment at once, seal included: copy-forward, repair, cleaning, compaction, tests."""

    def __init__(self, disk: Disk, fd: int, header: SegmentHeader) -> None:
        self.disk = disk
        self.fd = fd
        self.header = header
        self.salt = Salt.of(header.salt)
        self.frames = 0
        self.last_sequence = header.first_sequence - 1
        self.last_crc = 0
        self._crcs = array("L")
        self._buffers: list[bytes] = [header.pack()]
        self._buffered = SEGMENT_HEADER_BYTES
        self._flushed = 0

    @property
    def position(self) -> int:
        """Where the next frame will start."""
        return self._flushed + self._buffered

    def add(self, type_: int, sequence: int, pieces: Sequence[bytes]) -> None:
        """Frames of a finished segment were durable long ago, so each vouches for all before it."""
        length = sum(map(len, pieces))
        header, crc = encode(self.salt, type_, sequence, sequence - 1, pieces, length)
        self._buffers += [header, *pieces]
        self._buffered += FRAME_BYTES + length
        self.last_crc = crc
        if type_ != SEAL:
            self.frames += 1
            self.last_sequence = sequence
            self._crcs.append(crc)
        if self._buffered >= WINDOW_BYTES:
            self.flush()

    def seal(self) -> int:
        """Write the seal, sync, and return the file's size. The caller makes the name durable."""
        seal = Seal(frames=self.frames, last_sequence=self.last_sequence, rolling_crc=roll(0, self._crcs))
        self.add(SEAL, self.last_sequence + 1, [seal.SerializeToString()])
        self.flush()
        self.disk.truncate(self.fd, self._flushed)
        self.disk.sync(self.fd)
        return self._flushed

    def flush(self) -> None:
        """Write what was added, so that its memory may be used again."""
        write_all(self.disk, self.fd, self._buffers, self._flushed)
        self._flushed += self._buffered
        self._buffers, self._buffered = [], 0


def roll(rolling_crc: int, crcs: Sequence[int]) -> int:
    """The next value of the CRC over a segment's CRCs."""
    return int(extend_crc32c(rolling_crc, struct.pack(f"<{len(crcs)}I", *crcs)))
