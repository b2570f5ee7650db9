"""The index of one segment: which frame holds which offsets, and roughly where a sequence is.

Kept in memory while a segment is written, put beside it as `.idx` when it is sealed. It is derived: never synced,
never trusted over the log, and rebuilt from the frames when it is missing, damaged, or made for another file of
the same name (it carries the segment's salt).
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from wal.frame import Frame, crc32c
from wal.record import ATOMIC, DAMAGED, DEAD_LETTERED, PUBLISHED, Damaged, Placement, decode, placements
from wal.segment import SEGMENT_HEADER_BYTES, Gap

INDEXED = frozenset({PUBLISHED, DEAD_LETTERED, ATOMIC})  # the types that give offsets to messages
MARK_EVERY_BYTES = 1 << 18  # how far a scan for one sequence may have to go

_MAGIC = b"mqidx\r\n\1"
_HEADER = struct.Struct("<8s8sQIII")  # magic, salt, segment bytes, partitions, marks, gaps
_PARTITION = struct.Struct("<QIIQ")  # channel id, partition, frames, end offset of the last
_GAP = struct.Struct("<QQQQ")
_CRC = struct.Struct("<I")


@dataclass(slots=True)
class Places:
    """The frames of one partition in a segment, in offset order."""

    bases: array[int] = field(default_factory=lambda: array("Q"))
    ends: array[int] = field(default_factory=lambda: array("Q"))
    positions: array[int] = field(default_factory=lambda: array("Q"))

    def first_after(self, offset: int) -> int:
        """The number of the first frame that holds `offset` or something after it."""
        return bisect_right(self.ends, offset)


class SegmentIndex:
    """Grows with a segment; what other threads read from it is only ever appended to."""

    def __init__(self) -> None:
        self.partitions: dict[tuple[int, int], Places] = {}
        self.gaps: list[Gap] = []  # found while it was rebuilt: offsets may be missing around them
        self._mark_sequences = array("Q")
        self._mark_positions = array("Q")
        self._next_mark = 0

    def add(self, position: int, sequence: int, places: Sequence[Placement]) -> None:
        if position >= self._next_mark:
            self._mark_positions.append(position)
            self._mark_sequences.append(sequence)
            self._next_mark = position + MARK_EVERY_BYTES
        for channel_id, partition, base, end in places:
            entry = self.partitions.get((channel_id, partition))
            if entry is None:
                entry = self.partitions[channel_id, partition] = Places()
            entry.positions.append(position)
            entry.bases.append(base)
            entry.ends.append(end)  # last: a reader that sees it sees the other two

    def add_frame(self, frame: Frame) -> None:
        if frame.type == DAMAGED:
            self.gaps.append(_damage_in(frame))
        self.add(frame.position, frame.sequence, places_in(frame))

    def mark_before(self, sequence: int) -> tuple[int, int]:
        """Sequence and position of a frame from which a walk soon meets `sequence`; (0, ...): the first frame."""
        at = bisect_right(self._mark_sequences, sequence) - 1
        return (self._mark_sequences[at], self._mark_positions[at]) if at >= 0 else (0, SEGMENT_HEADER_BYTES)

    def places(self) -> set[tuple[tuple[int, int], int, int]]:
        """Partition, base offset and position of every frame."""
        return {
            (key, base, position)
            for key, places in self.partitions.items()
            for base, position in zip(places.bases, places.positions, strict=True)
        }

    def summary(self) -> Summary:
        last_ends = {key: places.ends[-1] for key, places in self.partitions.items()}
        return Summary(last_ends, [place for gap in self.gaps for place in (gap.position, gap.end)])

    def pack(self, salt: bytes, segment_bytes: int) -> bytes:
        """A summary with its own CRC, then the arrays with theirs: a look-up over many segments reads the first."""
        counts = (len(self.partitions), len(self._mark_sequences), len(self.gaps))
        out = [_HEADER.pack(_MAGIC, salt, segment_bytes, *counts)]
        for (channel_id, partition), places in self.partitions.items():
            out.append(_PARTITION.pack(channel_id, partition, len(places.ends), places.ends[-1]))
        for gap in self.gaps:
            out.append(_GAP.pack(gap.position, gap.end, gap.first_sequence, gap.last_sequence))
        arrays = []
        for places in self.partitions.values():
            arrays += [_little(places.bases), _little(places.ends), _little(places.positions)]
        arrays += [_little(self._mark_sequences), _little(self._mark_positions)]
        return _with_crc(b"".join(out)) + _with_crc(b"".join(arrays))

    @classmethod
    def unpack(cls, data: bytes, salt: bytes, segment_bytes: int) -> SegmentIndex | None:
        """None where the bytes are damaged or speak of another file."""
        size = summary_bytes(data)
        if unpack_summary(data[:size], salt, segment_bytes) is None or not _has_good_crc(data[size:]):
            return None
        _, _, _, partitions, marks, gaps = _HEADER.unpack_from(data)
        index = cls()
        position = _HEADER.size
        counts = []
        for _ in range(partitions):
            channel_id, partition, frames, _ = _PARTITION.unpack_from(data, position)
            index.partitions[channel_id, partition] = Places()
            counts.append(frames)
            position += _PARTITION.size
        for _ in range(gaps):
            first, end, first_sequence, last_sequence = _GAP.unpack_from(data, position)
            index.gaps.append(Gap(first, end, first_sequence, last_sequence, "damaged bytes"))
            position += _GAP.size
        if len(index.partitions) != partitions or len(data) != size + 8 * (3 * sum(counts) + 2 * marks) + 4:
            return None  # torn: the CRC of no bytes at all is zero, and fits the zeros of an offset
        take = _Arrays(data, size)
        for places, count in zip(index.partitions.values(), counts, strict=True):
            places.bases, places.ends, places.positions = take(count), take(count), take(count)
        index._mark_sequences, index._mark_positions = take(marks), take(marks)
        return index


@dataclass(frozen=True, slots=True)
class Summary:
    """What a search over many segments needs to know of one."""

    last_ends: dict[tuple[int, int], int]  # the end offset of each partition's last frame
    gaps: list[int]  # where each starts and ends


def summary_bytes(prefix: bytes) -> int:
    """How many bytes the summary takes, from its header; 0 where that is no header."""
    if len(prefix) < _HEADER.size:
        return 0
    magic, _, _, partitions, _, gaps = _HEADER.unpack_from(prefix)
    return _HEADER.size + partitions * _PARTITION.size + gaps * _GAP.size + 4 if magic == _MAGIC else 0


def unpack_summary(data: bytes, salt: bytes, segment_bytes: int) -> Summary | None:
    """None where the bytes are damaged or speak of another file."""
    if not data or len(data) != summary_bytes(data) or not _has_good_crc(data):
        return None
    _, its_salt, its_bytes, partitions, _, gaps = _HEADER.unpack_from(data)
    if (its_salt, its_bytes) != (salt, segment_bytes):
        return None
    position = _HEADER.size
    last_ends = {}
    for _ in range(partitions):
        channel_id, partition, _, last_end = _PARTITION.unpack_from(data, position)
        last_ends[channel_id, partition] = last_end
        position += _PARTITION.size
    places = [_GAP.unpack_from(data, position + at * _GAP.size)[:2] for at in range(gaps)]
    return Summary(last_ends, [place for both in places for place in both])


def build_index(items: Iterable[Frame | Gap]) -> SegmentIndex:
    """The index as a walk over the frames tells it."""
    index = SegmentIndex()
    for item in items:
        if isinstance(item, Gap):
            index.gaps.append(item)
        else:
            index.add_frame(item)
    return index


class _Arrays:
    """Takes one array after another from the bytes of a sidecar."""

    def __init__(self, data: bytes, position: int) -> None:
        self._data, self._position = data, position

    def __call__(self, count: int) -> array[int]:
        out = array("Q", self._data[self._position : self._position + 8 * count])
        self._position += 8 * count
        if sys.byteorder == "big":
            out.byteswap()
        return out


def places_in(frame: Frame) -> list[Placement]:
    """The offsets that a frame holds; none where its payload is not what its type says."""
    if frame.type not in INDEXED:
        return []
    try:
        return placements(decode(frame.type, frame.payload))
    except DecodeError:
        return []


def _damage_in(frame: Frame) -> Gap:
    try:
        lost = Damaged.FromString(frame.payload)
    except DecodeError:
        return Gap(frame.position, frame.position, frame.sequence, frame.sequence, "the record can't be decoded")
    return Gap(frame.position, frame.position, lost.first_sequence, lost.last_sequence, lost.reason)


def _with_crc(data: bytes) -> bytes:
    return data + _CRC.pack(crc32c(data))


def _has_good_crc(data: bytes) -> bool:
    return len(data) >= 4 and data[-4:] == _CRC.pack(crc32c(data[:-4]))


def _little(numbers: array[int]) -> bytes:
    if sys.byteorder == "big":
        numbers = array("Q", numbers)
        numbers.byteswap()
    return numbers.tobytes()
