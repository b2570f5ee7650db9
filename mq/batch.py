"""A stored batch in memory: the bytes of one record for one partition, opaque but for where messages begin.

Pure: no I/O, no clock. A batch is the protobuf message `Batch { repeated BatchMessage messages = 1; }`, so message i
is a tag byte, a varint length and that many bytes. Joining two batches joins their bytes; cutting one needs only
the tags and lengths, never the messages.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from mq.pb.raw_pb2 import Batch as Contents
from wal.pb.wal_pb2 import Batch as PlainBatch
from wal.pb.wal_pb2 import Published

OVERHEAD_BYTES = 400  # of the objects around a batch's bytes, for the budget


class Cut(NamedTuple):
    """Messages of a batch for an answer; `end` is where to go on, past holes that follow the last of them."""

    base: int
    end: int
    messages: int
    deltas: Sequence[int]
    batch: bytes


class Batch:
    """Offsets base <= offset < end, all published by one record; `sequence` is that record's place in the log."""

    __slots__ = (
        "_bounds",
        "_pieces",
        "base",
        "count",
        "deltas",
        "end",
        "is_dropped",
        "max_timestamp_us",
        "owner",
        "sequence",
        "size",
        "timestamp_us",
        "ttl_ms",
    )

    def __init__(
        self,
        base: int,
        count: int,
        content: bytes,
        sequence: int,
        times: tuple[int, int],
        ttl_ms: int,
        deltas: tuple[int, ...] = (),
        owner: object = None,
    ) -> None:
        """`times`: of the oldest and the youngest message."""
        self.base = base
        self.count = count
        self.deltas = deltas
        self.end = base + (deltas[-1] + 1 if deltas else count)
        self.timestamp_us, self.max_timestamp_us = times
        self.ttl_ms = ttl_ms
        self.sequence = sequence
        self.owner = owner  # the buffer that holds it
        self.is_dropped = False  # no longer in its buffer
        self._pieces = [content]
        self.size = len(content)
        self._bounds: array[int] | None = None

    @classmethod
    def read_back(cls, published: Published) -> Batch:
        """As the log gives it."""
        times = published.min_timestamp_us, published.max_timestamp_us
        deltas = tuple(published.offset_deltas)
        return cls(published.base_offset, published.count, published.batch, 0, times, published.ttl_ms, deltas)

    def extend(self, count: int, content: bytes, times: tuple[int, int]) -> None:
        """Take in a publish that shares the record."""
        self._pieces.append(content)
        self.size += len(content)
        self.count += count
        self.end += count
        if times[0] < self.timestamp_us:
            self.timestamp_us = times[0]
        if times[1] > self.max_timestamp_us:
            self.max_timestamp_us = times[1]
        self._bounds = None

    def has_expired(self, now: int) -> bool:
        return self.ttl_ms > 0 and now >= self.max_timestamp_us + self.ttl_ms * 1000

    def content(self) -> bytes:
        """All of it, as one piece."""
        if len(self._pieces) > 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0]

    def cut(self, start: int, stop: int, max_messages: int, max_bytes: int, is_first: bool) -> Cut | None:
        """The messages from `start` up to `stop` that fit; the first of an answer always does. None: none."""
        is_whole = start <= self.base and stop >= self.end and max_messages >= self.count > 0
        if is_whole and self.size <= max_bytes:  # as mostly
            return Cut(self.base, self.end, self.count, self.deltas, self.content())
        first = self._index(start)
        last = min(self._index(stop), first + max_messages)
        if first >= last:
            return None
        bounds = self._bounds_of()
        content = self.content()
        fitting = bisect_right(bounds, bounds[first] + max_bytes) - 1
        last = min(last, fitting)
        if first >= last:
            if not is_first:
                return None
            last = first + 1
        piece = content[bounds[first] : bounds[last]]
        end = self.end if last == self.count else self._offset(last)
        base = self._offset(first)
        deltas = [delta - self.deltas[first] for delta in self.deltas[first:last]] if self.deltas else ()
        return Cut(base, end, last - first, deltas, piece)

    def holds_any(self, start: int, stop: int) -> bool:
        """Whether a message lies in a stretch: there are holes where others were dropped."""
        if not self.deltas:
            return start < self.end and stop > self.base and start < stop
        return self._index(start) < self._index(stop)

    def _index(self, offset: int) -> int:
        """Of the first message at or after an offset."""
        if self.deltas:
            return bisect_left(self.deltas, offset - self.base)
        return min(max(offset - self.base, 0), self.count)

    def _offset(self, index: int) -> int:
        return self.base + (self.deltas[index] if self.deltas else index)

    def _bounds_of(self) -> array[int]:
        """Where each message begins, and where the last ends; kept, because who cuts once cuts again."""
        if self._bounds is None:
            bounds = message_bounds(self.content())
            if len(bounds) != self.count + 1:
                # fields that Batch does not have, or an unusual coding of its tag: make it plain
                plain = PlainBatch.FromString(self.content())
                plain.DiscardUnknownFields()
                self._pieces = [plain.SerializeToString()]
                bounds = message_bounds(self.content())
            self._bounds = bounds
        return self._bounds


def message_bounds(batch: bytes) -> array[int]:
    """Positions of the messages in a valid batch's bytes, and its end; fewer where a field is no message."""
    lengths = list(map(len, Contents.FromString(batch).messages))
    sizes = [
        length + (2 if length < 0x80 else 3 if length < 0x4000 else 4 if length < 0x200000 else 5) for length in lengths
    ]
    bounds = array("I", accumulate(sizes, initial=0))
    return bounds if bounds[-1] == len(batch) else array("I")
