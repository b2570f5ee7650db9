"""A segment as the MANIFEST describes it: opened with the manifest's salt, walked up to its seal.

A walk yields every intact frame but the seal, and a `Gap` for everything that should be there and is not: damaged
bytes, frames that are missing, a file that ends early or does not exist.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator
from typing import Protocol

from google.protobuf.message import DecodeError
from loguru import logger

from wal.disk import Disk
from wal.errors import WalError
from wal.frame import HEADER_BYTES as FRAME_BYTES
from wal.frame import Frame
from wal.manifest import Manifest, SegmentEntry
from wal.record import DAMAGED, SEAL, SKIPPED, Seal
from wal.segment import MAX_SEQUENCE, SEGMENT_HEADER_BYTES, Gap, SegmentFile, roll


class Marks(Protocol):
    """What a walk wants of a segment's index."""

    def mark_before(self, sequence: int, /) -> tuple[int, int]:
        """Sequence and position of a frame from which a walk soon meets `sequence`; (0, ...): the first frame."""
        ...


IndexOf = Callable[[SegmentEntry], Marks]
LOST = frozenset({DAMAGED, SKIPPED})  # what stands in the place of records that are gone


def path_of(directory: str, manifest: Manifest, entry: SegmentEntry) -> str:
    return os.path.join(directory, entry.name(manifest.extension))


def open_entry(disk: Disk, directory: str, manifest: Manifest, entry: SegmentEntry) -> SegmentFile:
    return SegmentFile(disk, path_of(directory, manifest, entry), entry.salt_bytes)


def walk_entry(
    segment: SegmentFile,
    entry: SegmentEntry,
    *,
    start: int = SEGMENT_HEADER_BYTES,
    expected: int = 0,
    end: int | None = None,
) -> Iterator[Frame | Gap]:
    """The frames and gaps of one segment; `start` and `expected` let a walk begin at a known frame in its middle."""
    crcs, has_gap = array("L"), start != SEGMENT_HEADER_BYTES
    expected = expected or entry.first_sequence
    position = start
    seal: Seal | None = None
    highest = entry.last_sequence + 1 if entry.is_sealed else MAX_SEQUENCE
    for item in segment.walk(expected, start=start, end=end, is_dense=entry.is_dense, highest=highest):
        if isinstance(item, Gap):
            has_gap = True
            yield _whole(item, entry)
            expected, position = item.last_sequence + 1, item.end
        elif item.type == SEAL:
            seal = _seal_in(item)
            position = item.position + FRAME_BYTES + len(item.payload)
            break
        else:
            crcs.append(item.crc)
            expected = item.sequence + 1
            position = item.position + FRAME_BYTES + len(item.payload)
            yield item
    if not entry.is_sealed:
        return
    if seal is None:
        if expected <= entry.last_sequence or not has_gap:
            last = max(entry.last_sequence, expected - 1)
            yield Gap(position, max(entry.size, position), expected, last, "the segment ends before its seal")
    elif not has_gap and (seal.frames, seal.rolling_crc) != (len(crcs), roll(0, crcs)):
        reason = f"the seal speaks of {seal.frames} frames, and not of the {len(crcs)} that are here"
        # whole frames are gone or doubled, and that may be anywhere
        yield Gap(SEGMENT_HEADER_BYTES, position, entry.first_sequence, entry.last_sequence, reason)


def missing_gap(entry: SegmentEntry, reason: str) -> Gap:
    """A whole segment that can't be opened."""
    return Gap(0, entry.size, entry.first_sequence, entry.last_sequence, reason)


def walk_chain(
    disk: Disk,
    directory: str,
    manifest: Manifest,
    first_sequence: int = 0,
    live_end: int | None = None,
    index_of: IndexOf | None = None,
) -> Iterator[tuple[SegmentEntry, Frame | Gap]]:
    """Every frame from a sequence on, over all segments; a segment that can't be opened is one gap.

    `live_end`: where the live segment is known to end, so that nobody need look through the zeros behind it.
    `index_of`: tells where to begin in the segment that the sequence lies in the middle of.
    """
    for entry in manifest.segments:
        if entry.is_sealed and entry.last_sequence < first_sequence:
            continue
        try:
            segment = open_entry(disk, directory, manifest, entry)
        except (OSError, WalError) as error:
            yield entry, missing_gap(entry, f"the segment can't be opened: {error}")
            continue
        with segment:
            start, expected = SEGMENT_HEADER_BYTES, entry.first_sequence
            if index_of is not None and entry.first_sequence < first_sequence:
                start, expected = _place_before(segment, entry, first_sequence, index_of)
            end = None if entry.is_sealed else live_end
            for item in walk_entry(segment, entry, start=start, expected=expected, end=end):
                if item.sequence >= first_sequence if isinstance(item, Frame) else item.last_sequence >= first_sequence:
                    yield entry, item


def _place_before(segment: SegmentFile, entry: SegmentEntry, sequence: int, index_of: IndexOf) -> tuple[int, int]:
    """Where a walk may begin that is to meet a sequence, and the sequence there.

    An index is not trusted: the frame has to be where it says. In a segment with holes only its whole walk, up to the
    seal, tells that nothing is missing.
    """
    if entry.is_dense:
        try:
            expected, position = index_of(entry).mark_before(sequence)
            if expected and segment.frame_at(position).sequence == expected:
                return position, expected
        except (OSError, WalError):
            pass
    return SEGMENT_HEADER_BYTES, entry.first_sequence


def _whole(gap: Gap, entry: SegmentEntry) -> Gap:
    """A gap that reaches the end of a sealed segment hides everything up to the segment's last sequence."""
    if entry.is_sealed and (gap.end >= entry.size or gap.last_sequence > entry.last_sequence):
        end = max(gap.end, entry.size)
        return Gap(gap.position, end, gap.first_sequence, entry.last_sequence, gap.reason)
    return gap


def _seal_in(frame: Frame) -> Seal:
    """The seal; one that can't be decoded vouches for nothing."""
    try:
        return Seal.FromString(frame.payload)
    except DecodeError:
        return Seal()


def replay_start(disk: Disk, directory: str, manifest: Manifest, index_of: IndexOf | None = None) -> int:
    """The begin of the newest snapshot run without damage, else 0; a damaged one would restore half a state."""
    for run in reversed(manifest.snapshots):
        for _, item in walk_chain(disk, directory, manifest, run.begin, index_of=index_of):
            if not isinstance(item, Frame) or item.type in LOST:
                break
            if item.sequence >= run.end:
                return run.begin
        logger.error("the snapshot run at {} is damaged; going back to an older one", run.begin)
    return 0
