"""Sets of offsets kept as disjoint ranges start <= offset < end, so that a million acks in a row cost one entry.

The ranges are in order, in blocks of a bounded length: a range in the middle of a hundred thousand others is put in
without moving half of them. Pure: no I/O, no clock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain

END = 1 << 63  # behind every offset
BLOCK = 512  # ranges; one with twice as many is split


class RangeSet:
    """Offsets as sorted, disjoint, non-touching ranges."""

    __slots__ = ("_blocks", "_heads")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._blocks: list[tuple[list[int], list[int]]] = []  # the starts and the ends of ranges; none is empty
        self._heads: list[int] = []  # the first start of each block
        for start, end in ranges:
            self.add(start, end)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return chain.from_iterable([zip(starts, ends, strict=True) for starts, ends in self._blocks])

    def __len__(self) -> int:
        """How many ranges, not how many offsets."""
        return sum(len(starts) for starts, _ in self._blocks)

    def __bool__(self) -> bool:
        return bool(self._heads)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RangeSet) and list(self) == list(other)

    def __hash__(self) -> int:
        raise TypeError("a RangeSet changes")

    def __repr__(self) -> str:
        return f"RangeSet({list(self)})"

    def total(self) -> int:
        """How many offsets."""
        count = 0
        for starts, ends in self._blocks:
            count += sum(ends) - sum(starts)
        return count

    def add(self, start: int, end: int) -> int:
        """Put a range in; returns how many offsets were new."""
        if start >= end:
            return 0
        if not self._heads:
            self._heads.append(start)
            self._blocks.append(([start], [end]))
            return end - start
        at = self._one_block(start, bisect_right(self._heads, end) - 1)
        starts, ends = self._blocks[at]
        low = bisect_left(ends, start)  # the first range that touches or follows
        high = bisect_right(starts, end)  # after the last that touches
        if low == high:
            starts.insert(low, start)
            ends.insert(low, end)
            self._tidy(at)
            return end - start
        known = sum(min(ends[i], end) - max(starts[i], start) for i in range(low, high))
        starts[low:high] = [min(start, starts[low])]
        ends[low:high] = [max(end, ends[high - 1])]
        self._tidy(at)
        return end - start - known

    def remove(self, start: int, end: int) -> int:
        """Take a range out; returns how many offsets were in."""
        if start >= end or not self._heads:
            return 0
        if start <= self._heads[0] and end >= self._blocks[-1][1][-1]:  # all of it, as mostly
            known = self.total()
            self.clear()
            return known
        at = self._one_block(start, bisect_left(self._heads, end) - 1)
        starts, ends = self._blocks[at]
        low = bisect_right(ends, start)
        high = bisect_left(starts, end)
        if low >= high:
            return 0
        known = sum(min(ends[i], end) - max(starts[i], start) for i in range(low, high))
        left = [(starts[low], start)] if starts[low] < start else []
        right = [(end, ends[high - 1])] if ends[high - 1] > end else []
        starts[low:high] = [s for s, _ in left + right]
        ends[low:high] = [e for _, e in left + right]
        self._tidy(at)
        return known

    def clear(self) -> None:
        self._blocks.clear()
        self._heads.clear()

    def covers(self, start: int, end: int) -> bool:
        """Whether every offset of the range is in."""
        found = self.range_at(start)
        return start >= end or (found is not None and found[1] >= end)

    def end_of(self, offset: int) -> int:
        """The end of the range that holds the offset; the offset itself where none does."""
        found = self.range_at(offset)
        return found[1] if found else offset

    def range_at(self, offset: int) -> tuple[int, int] | None:
        """The range that holds the offset."""
        at = bisect_right(self._heads, offset) - 1
        if at < 0:
            return None
        starts, ends = self._blocks[at]
        index = bisect_right(starts, offset) - 1
        return (starts[index], ends[index]) if ends[index] > offset else None

    def next_start(self, offset: int, default: int) -> int:
        """Where the first range at or after the offset starts."""
        at = bisect_left(self._heads, offset)
        if at:
            starts = self._blocks[at - 1][0]
            index = bisect_left(starts, offset)
            if index < len(starts):
                return starts[index]
        return self._heads[at] if at < len(self._heads) else default

    def start_of(self, offset: int, index: int, default: int) -> int:
        """Where that many ranges after the first that starts at or after an offset, another one does."""
        at = max(0, bisect_right(self._heads, offset) - 1)
        while at < len(self._blocks):
            starts = self._blocks[at][0]
            first = bisect_left(starts, offset)
            if first + index < len(starts):
                return starts[first + index]
            index -= len(starts) - first
            at += 1
        return default

    def missing(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of a range that are not in."""
        gaps = []
        while start < end:
            start = self.end_of(start)
            stop = min(end, self.next_start(start, end))
            if start < stop:
                gaps.append((start, stop))
            start = max(stop, start)
            if stop >= end:
                break
        return gaps

    def within(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of a range that are in."""
        found = []
        first = max(0, bisect_right(self._heads, start) - 1)
        for starts, ends in self._blocks[first : bisect_left(self._heads, end)]:
            low = bisect_right(ends, start)
            high = bisect_left(starts, end)
            found += [(max(starts[i], start), min(ends[i], end)) for i in range(low, high)]
        return found

    # ---------------------------------------------------------------- blocks

    def _one_block(self, start: int, last: int) -> int:
        """The block in which everything from `start` to the end of block `last` is; several become one."""
        first = max(0, bisect_right(self._heads, start) - 1)
        if first < last:
            for starts, ends in self._blocks[first + 1 : last + 1]:
                self._blocks[first][0].extend(starts)
                self._blocks[first][1].extend(ends)
            del self._blocks[first + 1 : last + 1], self._heads[first + 1 : last + 1]
        return first

    def _tidy(self, at: int) -> None:
        """After a change of a block: none is empty, none too long."""
        starts, ends = self._blocks[at]
        if not starts:
            del self._blocks[at], self._heads[at]
            return
        self._heads[at] = starts[0]
        if len(starts) > 2 * BLOCK:
            cuts = range(0, len(starts), BLOCK)
            self._blocks[at : at + 1] = [(starts[cut : cut + BLOCK], ends[cut : cut + BLOCK]) for cut in cuts]
            self._heads[at : at + 1] = [starts[cut] for cut in cuts]
