"""The live segment after a stop: which of its bytes were durable, which never were, which are damaged.

A crash may leave any part of the last, unsynced writes: whole frames, torn ones, and intact frames behind torn ones.
So damage alone proves nothing. It is corruption when something vouches that the damaged place was durable once: the
watermark, or a later frame whose `durable` covers it. What nobody vouches for was never acknowledged to anyone, and
is cut off from the first such place on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from wal.frame import HEADER_BYTES as FRAME_BYTES
from wal.frame import Frame
from wal.index import SegmentIndex
from wal.manifest import SegmentEntry
from wal.record import SEAL
from wal.segment import SEGMENT_HEADER_BYTES, Gap, SegmentFile, roll
from wal.watermark import Mark


@dataclass(slots=True)
class Tail:
    """What a survey of the live segment found."""

    index: SegmentIndex = field(default_factory=SegmentIndex)
    end: int = SEGMENT_HEADER_BYTES  # after the last frame that is kept
    frames: int = 0
    last_sequence: int = 0  # of what is kept or known to be lost; the log goes on after it
    rolling_crc: int = 0
    durable: int = 0  # the highest sequence that something vouches for
    corrupt: list[Gap] = field(default_factory=list)
    torn: Gap | None = None
    has_seal: bool = False

    def add(self, frame: Frame) -> None:
        self.index.add_frame(frame)
        self.frames += 1
        self.last_sequence = frame.sequence
        self.durable = frame.durable  # it only rises
        self.rolling_crc = roll(self.rolling_crc, [frame.crc])
        self.end = frame.position + FRAME_BYTES + len(frame.payload)

    @property
    def vouched_end(self) -> int:
        """Where the bytes end, about, of which it is known that they are on disk."""
        if self.durable >= self.last_sequence:
            return self.end
        return self.index.mark_before(self.durable + 1)[1]

    def agrees_with(self, entry: SegmentEntry, mark: Mark | None) -> bool:
        """The log was closed in good order, and what is here is exactly what was there then."""
        if mark is None or not mark.is_clean or self.corrupt or self.torn or self.has_seal:
            return False
        here = (self.last_sequence, entry.first_sequence, entry.generation, self.end)
        return here == (mark.sequence, mark.first_sequence, mark.generation, mark.bytes)


def survey(segment: SegmentFile, entry: SegmentEntry, mark: Mark | None) -> Tail:
    """Read the whole live segment and judge it."""
    tail = Tail(last_sequence=entry.first_sequence - 1)
    gaps: list[Gap] = []
    vouched: list[int] = []  # for each gap, the highest durable mark in a frame after it
    for item in segment.walk(entry.first_sequence):
        if isinstance(item, Gap):
            gaps.append(item)
            vouched.append(0)
            continue
        if gaps:
            vouched[-1] = max(vouched[-1], item.durable)
        if item.type == SEAL:
            tail.has_seal = True
            break
        if not gaps:
            tail.add(item)
    synced = mark.sequence if mark else 0
    for at in reversed(range(len(gaps) - 1)):
        vouched[at] = max(vouched[at], vouched[at + 1])
    for gap, by_frames in zip(gaps, vouched, strict=True):
        if max(by_frames, synced) < gap.first_sequence:
            tail.torn = Gap(gap.position, segment.last_nonzero(gap.position), gap.first_sequence, 0, "never durable")
            break
        tail.corrupt.append(gap)
    if tail.corrupt:
        _add_frames_after_damage(segment, entry, tail)
    _add_missing_end(tail, entry, mark)
    tail.durable = max(tail.durable, synced)
    return tail


def _add_frames_after_damage(segment: SegmentFile, entry: SegmentEntry, tail: Tail) -> None:
    before = tail.frames
    cut = tail.torn.position if tail.torn else None
    for number, frame in enumerate(_frames(segment, entry, cut)):
        if number >= before:
            tail.add(frame)
    last = tail.corrupt[-1]
    if last.first_sequence > tail.last_sequence:
        tail.last_sequence, tail.end = last.last_sequence, last.end


def _add_missing_end(tail: Tail, entry: SegmentEntry, mark: Mark | None) -> None:
    """Less is here than the watermark saw: an end that was durable is gone."""
    if mark is None or mark.sequence <= tail.last_sequence:
        return
    is_same = (mark.first_sequence, mark.generation) == (entry.first_sequence, entry.generation)
    if tail.corrupt and tail.corrupt[-1].last_sequence == tail.last_sequence:
        last = tail.corrupt.pop()
        tail.corrupt.append(Gap(last.position, last.end, last.first_sequence, mark.sequence, last.reason))
    else:
        end = max(tail.end, mark.bytes) if is_same else tail.end
        reason = "the segment ends before its watermark"
        tail.corrupt.append(Gap(tail.end, end, tail.last_sequence + 1, mark.sequence, reason))
    tail.last_sequence = mark.sequence


def kept(segment: SegmentFile | None, entry: SegmentEntry, tail: Tail) -> Iterator[Frame | Gap]:
    """What a copy takes over: the frames that stay, and each damaged range in its place between them."""
    gaps = iter(tail.corrupt)
    gap = next(gaps, None)
    cut = tail.torn.position if tail.torn else None
    for frame in _frames(segment, entry, cut) if segment else ():
        while gap is not None and gap.first_sequence <= frame.sequence:
            yield gap
            gap = next(gaps, None)
        yield frame
    if gap is not None:
        yield gap
        yield from gaps


def _frames(segment: SegmentFile, entry: SegmentEntry, cut: int | None) -> Iterator[Frame]:
    for item in segment.walk(entry.first_sequence, end=cut):
        if isinstance(item, Frame):
            if item.type == SEAL:
                return
            yield item
