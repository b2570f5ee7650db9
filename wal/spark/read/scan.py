"""The frames of a segment, and what is damaged between them. Imports no pyspark.

The walk is the one of `mq wal verify`, so both come to the same verdict about the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from wal.chain import missing_gap, walk_entry
from wal.errors import WalError
from wal.frame import HEADER_BYTES as FRAME_BYTES
from wal.frame import Frame
from wal.record import SEAL
from wal.segment import SEGMENT_HEADER_BYTES, Gap, SegmentFile
from wal.spark.read.listing import Segment, explained
from wal.spark.read.storage import storage


def read(segment: Segment) -> Iterator[Frame | Gap]:
    """Every intact frame of a segment but its seal, and a Gap for whatever should be there and is not.

    A segment whose file is missing is one Gap. Raises SegmentGone where it left the log since it was listed. Holds a
    window of the file at a time, and a sector that can't be read is a Gap.
    """
    yield from _read(segment, is_header_told=False)


def read_all(segment: Segment) -> Iterator[Frame | Gap]:
    """The same, and before the first frame a Gap for a header that is damaged: that costs nothing but a report."""
    yield from _read(segment, is_header_told=True)


def _read(segment: Segment, *, is_header_told: bool) -> Iterator[Frame | Gap]:
    disk, folder = storage(segment.root)
    try:
        with explained(segment):
            file = SegmentFile(disk, f"{folder}/{segment.name}", segment.salt)
    except FileNotFoundError:
        yield missing_gap(segment.entry, "the segment is missing")
        return
    with file:
        items = _items(file, segment)
        first = next(items, None)
        if first is None:
            return
        is_told = isinstance(first, Gap) and first.position == 0
        if is_header_told and not is_told and (gap := _header_gap(file, segment)) is not None:
            yield gap
        yield first
        yield from items


def _header_gap(file: SegmentFile, segment: Segment) -> Gap | None:
    try:
        header = file.header()
        told = (str(header.log_uuid), header.first_sequence, header.generation, header.salt)
        is_its_own = told == (segment.log_uuid, segment.first_sequence, segment.generation, segment.salt)
        reason = "" if is_its_own else "the header is another segment's"
    except WalError as error:
        reason = getattr(error, "reason", str(error))
    first = segment.first_sequence
    return Gap(0, SEGMENT_HEADER_BYTES, first, first - 1, reason) if reason else None


def _items(file: SegmentFile, segment: Segment) -> Iterator[Frame | Gap]:
    if segment.is_sealed:
        yield from walk_entry(file, segment.entry)
    else:
        yield from _active(file, segment)


def _active(file: SegmentFile, segment: Segment) -> Iterator[Frame | Gap]:
    """All up to the durable mark was safe once, so whatever is not intact there is damaged."""
    file.size = min(file.size, segment.size)
    expected, position = segment.first_sequence, SEGMENT_HEADER_BYTES
    last: Gap | None = None
    for item in file.walk(expected, end=segment.size):
        if last is not None:
            yield last
            last = None
        if isinstance(item, Gap):
            last = item
            expected, position = item.last_sequence + 1, item.end
        elif item.type == SEAL:
            break
        else:
            yield item
            expected, position = item.sequence + 1, item.position + FRAME_BYTES + len(item.payload)
    if last is not None:  # it reaches the end, so it hides everything up to the mark
        yield replace(last, last_sequence=max(last.last_sequence, segment.last_sequence))
    elif expected <= segment.last_sequence:
        reason = "the segment ends before its watermark"
        yield Gap(position, max(position, segment.size), expected, segment.last_sequence, reason)
