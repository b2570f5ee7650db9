"""How far one group is in one partition. Pure: no I/O, no clock.

Durable: `offset`, `acked`, `retries`. Volatile: `next` and `returned`, because leases do not outlive the process.
"""

from __future__ import annotations

from collections.abc import Callable

from mq.ranges import END, RangeSet
from mq.retry import Retries


class Cursor:
    __slots__ = ("acked", "next", "offset", "on_change", "retries", "returned")

    def __init__(self, offset: int) -> None:
        self.offset = offset  # everything before it is done
        self.acked = RangeSet()  # done ahead of it
        self.retries = Retries()
        self.next = offset  # everything before it was given out since the start of the process, or is known above
        self.returned = RangeSet()  # below `next`, given out and handed back as if it never had been
        self.on_change: Callable[[int, int], None] | None = None  # told of offsets whose durable state changed

    def ack(self, start: int, end: int) -> int:
        """Note that a range is done; returns how many messages were not done before."""
        start = max(start, self.offset)
        if start >= end:
            return 0
        self.retries.carve(start, end)
        self.returned.remove(start, end)
        before = self.offset
        if start == self.offset and not self.acked:
            self.offset = end
            new = end - start
        else:
            new = self.acked.add(start, end)
            self._compact()
        self.next = max(self.next, self.offset)
        if self.on_change is not None:
            self.on_change(start if before == self.offset else before, max(end, self.offset))
        return new

    def advance(self, offset: int) -> int:
        """Everything before the offset is done; returns how many messages were not done before."""
        return self.ack(self.offset, offset)

    def seek(self, offset: int) -> None:
        """Start over at an offset, in either direction."""
        self.offset = self.next = offset
        self.acked.clear()
        self.retries.clear()
        self.returned.clear()
        if self.on_change is not None:
            self.on_change(0, END)

    def retry(self, start: int, end: int, count: int, not_before_us: int, is_last: bool) -> list[tuple[int, int]]:
        """Note that a delivery ended without an ack; returns what of it is not acked meanwhile.

        `is_last`: it is not to go out again, so it counts as out until it is dead-lettered.
        """
        kept = self.acked.missing(max(start, self.offset), end)
        for left, right in kept:
            self.retries.put(left, right, count, not_before_us, is_leased=is_last)
            self.returned.remove(left, right)
        if self.on_change is not None and kept:
            self.on_change(start, end)
        return kept

    def give_back(self, start: int, end: int) -> None:
        """Undo giving out a range, where it is not acked."""
        for left, right in self.acked.missing(max(start, self.offset), end):
            self.retries.release(left, right)
            self.returned.add(left, right)
            for known in self.retries.within(left, right):
                self.returned.remove(*known)

    def is_done(self, offset: int) -> bool:
        return offset < self.offset or self.acked.end_of(offset) > offset

    def fresh(self, end: int) -> tuple[int, int]:
        """The next stretch below `end` that was never given out; empty where start == end."""
        if self.returned:
            start, stop = next(iter(self.returned))
            return start, max(start, min(stop, end))
        start = self.next
        if not (self.acked or self.retries):  # as mostly
            return start, max(start, end)
        while start < end:
            after = self.acked.end_of(start)
            known = self.retries.at(after)
            if known is not None:
                after = known.end
            if after == start:
                break
            start = after
        self.next = start = max(self.next, start)
        stop = self.retries.next_start(start, end)
        return start, max(start, min(end, stop, self.acked.next_start(start, end)))

    def has_given(self, end: int) -> bool:
        """Is it plain that `fresh` finds nothing below `end`? As it is for whoever waits for what comes next."""
        return self.next >= end and not self.returned

    def take(self, start: int, end: int) -> None:
        """Note that a stretch from `fresh` is given out."""
        self.returned.remove(start, end)
        self.next = max(self.next, end)

    def lag(self, next_offset: int) -> int:
        """Messages that are not acked yet."""
        return max(0, next_offset - self.offset - self.acked.total())

    def _compact(self) -> None:
        end = self.acked.end_of(self.offset)
        if end > self.offset:
            self.acked.remove(self.offset, end)
            self.offset = end
