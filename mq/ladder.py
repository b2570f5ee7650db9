"""Marks along a partition: how many bytes lie before an offset, and how old they are. Pure: no I/O, no clock.

Retention asks these few numbers instead of reading old batches back. A mark is put only at the start of a record and
tells only of what lies before it, so live state and replayed state have the same marks. There are at most `MOST`
of them, about evenly spaced: when they become too many every second one goes.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

MOST = 64  # retention is as exact as one part in half of this
NEVER_US = 1 << 62  # when a message without a ttl expires
LONG_AGO_US = 1  # when nothing at all does
IN_TIME = 16  # a mark is due, however few messages came, after this part of the time that the marks span


class Ladder:
    __slots__ = ("_bytes", "_expiries", "_offsets", "_times", "end_expiry_us", "end_us", "spacing", "trimmed_bytes")

    def __init__(self) -> None:
        self._offsets = array("Q")
        self._bytes = array("Q")  # published before the offset, counted from when the ladder began
        self._times = array("q")  # of the youngest message before the offset
        self._expiries = array("q")  # when the last of them expires
        self.spacing = 1  # messages between two marks
        self.trimmed_bytes = 0  # published before the partition's start
        self.end_us = 0  # of the youngest message of all
        self.end_expiry_us = LONG_AGO_US

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        """Offset, bytes from the partition's start to there, time, expiry."""
        for offset, size, *times in zip(self._offsets, self._bytes, self._times, self._expiries, strict=True):
            yield offset, size - self.trimmed_bytes, times[0], times[1]

    def restore(self, offset: int, size: int, time_us: int, expiry_us: int) -> None:
        """Put back a mark that was told by `__iter__`, into a ladder in which nothing is trimmed."""
        self._expiries.append(expiry_us)
        self._offsets.append(offset)
        self._bytes.append(size)
        self._times.append(time_us)

    def note(self, offset: int, kept_bytes: int) -> None:
        """A record begins at an offset, and has `kept_bytes` of its partition before it."""
        offsets, times = self._offsets, self._times
        if self.end_us and (
            not offsets
            or offset - offsets[-1] >= self.spacing
            or (self.end_us - times[-1]) * IN_TIME >= self.end_us - times[0] > 0
        ):
            offsets.append(offset)
            times.append(self.end_us)
            self._expiries.append(self.end_expiry_us)
            self._bytes.append(self.trimmed_bytes + kept_bytes)
            if len(offsets) > MOST:
                self._thin()

    def reach(self, time_us: int, ttl_ms: int) -> None:
        """There are messages now that were published at a time and expire after another."""
        if time_us > self.end_us:
            self.end_us = time_us
        expiry_us = time_us + ttl_ms * 1000 if ttl_ms else NEVER_US
        if expiry_us > self.end_expiry_us:
            self.end_expiry_us = expiry_us

    def _thin(self) -> None:
        self._offsets, self._bytes = self._offsets[::2], self._bytes[::2]
        self._times, self._expiries = self._times[::2], self._expiries[::2]
        self.spacing = max(1, (self._offsets[-1] - self._offsets[0]) // (MOST // 2))

    def trim(self, start: int, offset: int, end: int, kept_bytes: int) -> int:
        """Forget what lies before an offset of start <= offset <= end; returns the bytes that are kept then."""
        before = self._bytes_before(start, offset, end, kept_bytes)
        kept_bytes -= before - self.trimmed_bytes
        self.trimmed_bytes = before
        gone = bisect_right(self._offsets, offset)
        del self._offsets[:gone], self._bytes[:gone], self._times[:gone], self._expiries[:gone]
        if offset >= end:
            self.end_expiry_us = LONG_AGO_US
        self.spacing = max(1, min(self.spacing, 2 * (end - offset) // MOST))  # fewer are left, so look closer
        return kept_bytes

    def _bytes_before(self, start: int, offset: int, end: int, kept_bytes: int) -> int:
        """Exact at a mark; between two of them as if all messages were of one size."""
        at = bisect_right(self._offsets, offset)
        low, low_bytes = (self._offsets[at - 1], self._bytes[at - 1]) if at else (start, self.trimmed_bytes)
        is_last = at == len(self._offsets)
        high, high_bytes = (end, self.trimmed_bytes + kept_bytes) if is_last else (self._offsets[at], self._bytes[at])
        if offset >= high:
            return high_bytes
        return low_bytes + (high_bytes - low_bytes) * max(0, offset - low) // (high - low)

    def offset_for(self, kept_bytes: int, most_bytes: int) -> int:
        """Where to start so that at most so many bytes stay; 0: nowhere. The last mark is the furthest."""
        if kept_bytes <= most_bytes or not self._offsets:
            return 0
        at = bisect_left(self._bytes, self.trimmed_bytes + kept_bytes - most_bytes)
        return self._offsets[min(at, len(self._offsets) - 1)]

    def offset_at(self, time_us: int, end: int) -> int:
        """Everything before this offset is no younger than a time."""
        if self.end_us <= time_us:
            return end
        at = bisect_right(self._times, time_us)
        return self._offsets[at - 1] if at else 0

    def expired_at(self, time_us: int, end: int) -> int:
        """Everything before this offset has expired at a time."""
        if self.end_expiry_us <= time_us:
            return end
        at = bisect_right(self._expiries, time_us)
        return self._offsets[at - 1] if at else 0

    def expiry_after(self, offset: int) -> int:
        """When all of the first stretch after an offset will have expired."""
        at = bisect_right(self._offsets, offset)
        return self._expiries[at] if at < len(self._expiries) else self.end_expiry_us

    def time_at(self, offset: int, start: int, start_us: int) -> int:
        """About when the message at an offset was published; `start_us`: the first one, 0 where that is not known."""
        offset = max(offset, start)  # a group may stand before the start; of what was there nothing is known
        at = bisect_right(self._offsets, offset)
        low, low_us = (self._offsets[at - 1], self._times[at - 1]) if at else (start, start_us)
        if at == len(self._offsets):
            return low_us or self.end_us
        high, high_us = self._offsets[at], self._times[at]
        return low_us + (high_us - low_us) * (offset - low) // (high - low) if low_us else high_us

    def age_after(self, offset: int) -> int:
        """When the youngest message of the first stretch after an offset was published; 0: there never was one."""
        at = bisect_right(self._offsets, offset)
        return self._times[at] if at < len(self._times) else self.end_us
