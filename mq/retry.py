"""Deliveries that ended without an ack and wait to go out again. Pure: no I/O, no clock.

A Retry is durable but for `is_leased`, which says that it is out again at the moment: it stays here, with the count
so far, until it is acked or comes back once more.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from heapq import heappop, heappush

from mq.ranges import END


class Retry:
    """Offsets start <= offset < end that were delivered `count` times and may go out again at `not_before_us`."""

    __slots__ = ("count", "end", "is_leased", "not_before_us", "start")

    def __init__(self, start: int, end: int, count: int, not_before_us: int, is_leased: bool = False) -> None:
        self.start = start
        self.end = end
        self.count = count
        self.not_before_us = not_before_us
        self.is_leased = is_leased


class Retries:
    """The retries of one group in one partition: disjoint, in offset order."""

    __slots__ = ("_due", "_items", "_starts", "total")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._items: list[Retry] = []
        self._due: list[tuple[int, int]] = []  # heap of (not_before_us, start); stale entries are dropped when met
        self.total = 0  # messages

    def __iter__(self) -> Iterator[Retry]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def joined(self, start: int = 0, end: int = END) -> list[Retry]:
        """Those of a range, as few as possible: leasing cuts them up, and that is nobody's business later."""
        found: list[Retry] = []
        for index in range(self._index(start), len(self._items)):
            item = self._items[index]
            if item.start >= end:
                break
            left, right = max(item.start, start), min(item.end, end)
            last = found[-1] if found else None
            if last and (last.end, last.count, last.not_before_us) == (left, item.count, item.not_before_us):
                last.end = right
            else:
                found.append(Retry(left, right, item.count, item.not_before_us))
        return found

    def put(self, start: int, end: int, count: int, not_before_us: int, is_leased: bool = False) -> None:
        """Enter a range, in place of whatever was known about its offsets."""
        self.carve(start, end)
        if start < end:
            self._insert(Retry(start, end, count, not_before_us, is_leased))

    def carve(self, start: int, end: int) -> int:
        """Forget the offsets of a range; returns how many were known."""
        if start >= end or not self._items:
            return 0
        low = self._index(start)
        high = low
        pieces = []
        known = 0
        while high < len(self._items) and self._items[high].start < end:
            item = self._items[high]
            known += min(item.end, end) - max(item.start, start)
            for left, right in ((item.start, start), (end, item.end)):
                if left < right:
                    pieces.append(Retry(left, right, item.count, item.not_before_us, item.is_leased))
            self.total -= item.end - item.start
            high += 1
        del self._items[low:high], self._starts[low:high]
        for piece in pieces:
            self._insert(piece)
        return known

    def clear(self) -> None:
        self._starts.clear()
        self._items.clear()
        self._due.clear()
        self.total = 0

    def at(self, offset: int) -> Retry | None:
        """The retry that holds the offset."""
        index = self._index(offset)
        if index < len(self._items) and self._items[index].start <= offset:
            return self._items[index]
        return None

    def within(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of a range that are known here."""
        found = []
        for index in range(self._index(start), len(self._items)):
            item = self._items[index]
            if item.start >= end or start >= end:
                break
            found.append((max(item.start, start), min(item.end, end)))
        return found

    def next_start(self, offset: int, default: int) -> int:
        """Where the first retry at or after the offset starts."""
        index = bisect_right(self._starts, offset - 1)
        return self._starts[index] if index < len(self._starts) else default

    def start_of(self, offset: int, index: int, default: int) -> int:
        """Where that many retries after the first that starts at or after an offset, another one does."""
        at = bisect_left(self._starts, offset) + index
        return self._starts[at] if at < len(self._starts) else default

    def first_due(self, now: int) -> Retry | None:
        """A retry that may go out now: the one due longest."""
        while self._due and self._due[0][0] <= now:
            not_before_us, start = self._due[0]
            item = self.at(start)
            if item and item.start == start and item.not_before_us == not_before_us and not item.is_leased:
                return item
            heappop(self._due)
        return None

    def first_waiting(self) -> Retry | None:
        """The lowest retry that is not out: what blocks an ordered partition."""
        return next((item for item in self._items if not item.is_leased), None)

    def lease(self, start: int, end: int) -> None:
        """Note that a range is out; `start` and `end` lie within one retry."""
        item = self.at(start)
        if item is None:
            return
        count, not_before_us = item.count, item.not_before_us
        self.carve(start, end)
        self._insert(Retry(start, end, count, not_before_us, is_leased=True))

    def release(self, start: int, end: int) -> None:
        """Note that what is out of a range came back as it was."""
        for index in range(self._index(start), len(self._items)):
            item = self._items[index]
            if item.start >= end or start >= end:
                break
            if item.is_leased:
                item.is_leased = False
                heappush(self._due, (item.not_before_us, item.start))

    def _index(self, offset: int) -> int:
        """Of the first item that ends after the offset."""
        index = bisect_right(self._starts, offset) - 1
        return index if index >= 0 and self._items[index].end > offset else index + 1

    def _insert(self, item: Retry) -> None:
        index = bisect_right(self._starts, item.start)
        self._starts.insert(index, item.start)
        self._items.insert(index, item)
        self.total += item.end - item.start
        if not item.is_leased:
            heappush(self._due, (item.not_before_us, item.start))
