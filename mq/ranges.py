"""Sets of offsets kept as disjoint ranges start <= offset < end, so that a million acks in a row cost one entry.

Pure: no I/O, no clock.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class RangeSet:
    """Offsets as sorted, disjoint, non-touching ranges."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in ranges:
            self.add(start, end)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._ends, strict=True)

    def __len__(self) -> int:
        """How many ranges, not how many offsets."""
        return len(self._starts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RangeSet) and (self._starts, self._ends) == (other._starts, other._ends)

    def __hash__(self) -> int:
        raise TypeError("a RangeSet changes")

    def __repr__(self) -> str:
        return f"RangeSet({list(self)})"

    def total(self) -> int:
        """How many offsets."""
        return sum(self._ends) - sum(self._starts)

    def add(self, start: int, end: int) -> int:
        """Put a range in; returns how many offsets were new."""
        if start >= end:
            return 0
        starts, ends = self._starts, self._ends
        low = bisect_left(ends, start)  # the first range that touches or follows
        high = bisect_right(starts, end)  # after the last that touches
        if low == high:
            starts.insert(low, start)
            ends.insert(low, end)
            return end - start
        known = sum(min(ends[i], end) - max(starts[i], start) for i in range(low, high))
        starts[low:high] = [min(start, starts[low])]
        ends[low:high] = [max(end, ends[high - 1])]
        return end - start - known

    def remove(self, start: int, end: int) -> int:
        """Take a range out; returns how many offsets were in."""
        if start >= end:
            return 0
        starts, ends = self._starts, self._ends
        low = bisect_right(ends, start)
        high = bisect_left(starts, end)
        if low >= high:
            return 0
        known = sum(min(ends[i], end) - max(starts[i], start) for i in range(low, high))
        left = [(starts[low], start)] if starts[low] < start else []
        right = [(end, ends[high - 1])] if ends[high - 1] > end else []
        starts[low:high] = [s for s, _ in left + right]
        ends[low:high] = [e for _, e in left + right]
        return known

    def clear(self) -> None:
        self._starts.clear()
        self._ends.clear()

    def covers(self, start: int, end: int) -> bool:
        """Whether every offset of the range is in."""
        index = bisect_right(self._starts, start) - 1
        return start >= end or (index >= 0 and self._ends[index] >= end)

    def end_of(self, offset: int) -> int:
        """The end of the range that holds the offset; the offset itself where none does."""
        index = bisect_right(self._starts, offset) - 1
        return self._ends[index] if index >= 0 and self._ends[index] > offset else offset

    def range_at(self, offset: int) -> tuple[int, int] | None:
        """The range that holds the offset."""
        index = bisect_right(self._starts, offset) - 1
        return (self._starts[index], self._ends[index]) if index >= 0 and self._ends[index] > offset else None

    def next_start(self, offset: int, default: int) -> int:
        """Where the first range at or after the offset starts."""
        index = bisect_left(self._starts, offset)
        return self._starts[index] if index < len(self._starts) else default

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
        low = bisect_right(self._ends, start)
        high = bisect_left(self._starts, end)
        return [(max(self._starts[i], start), min(self._ends[i], end)) for i in range(low, high)]
