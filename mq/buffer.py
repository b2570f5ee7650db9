"""The batches of a partition that are in memory, and the budget that all buffers share. Pure: no I/O, no clock.

A buffer holds everything from `floor` on; what lies before has been evicted and is read back from the log. The
budget evicts oldest first, and only what is synced: the log can't give back what it does not have yet.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator

from mq.batch import OVERHEAD_BYTES, Batch


class Buffer:
    """Batches in offset order, dropped only from the front."""

    __slots__ = ("_batches", "_ends", "_head", "floor")

    def __init__(self, floor: int = 0) -> None:
        self.floor = floor  # everything kept at or after this offset is here
        self._batches: list[Batch] = []
        self._ends: list[int] = []
        self._head = 0  # batches before it are gone; the lists are cut now and then, not each time

    def __iter__(self) -> Iterator[Batch]:
        return iter(self._batches[self._head :])

    def __len__(self) -> int:
        return len(self._batches) - self._head

    @property
    def last(self) -> Batch | None:
        return self._batches[-1] if len(self._batches) > self._head else None

    def append(self, batch: Batch) -> None:
        self._batches.append(batch)
        self._ends.append(batch.end)

    def grow_last(self) -> None:
        """The last batch took in another publish."""
        self._ends[-1] = self._batches[-1].end

    def find(self, offset: int) -> Batch | None:
        """The batch that holds the offset, or the next one; `offset` is not below the floor."""
        index = bisect_right(self._ends, offset, lo=self._head)
        return self._batches[index] if index < len(self._batches) else None

    def drop_first(self) -> Batch:
        """Let the oldest batch go."""
        batch = self._batches[self._head]
        batch.is_dropped = True
        self.floor = batch.end
        self._batches[self._head] = None  # type: ignore[call-overload]  # frees the bytes; never looked at again
        self._head += 1
        if self._head > 64 and self._head * 2 > len(self._batches):
            del self._batches[: self._head], self._ends[: self._head]
            self._head = 0
        return batch


class Budget:
    """The bytes of all buffers together."""

    __slots__ = ("_order", "limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._order: deque[Batch] = deque()  # oldest first; dropped ones leave when they come to the front

    def add(self, batch: Batch) -> None:
        self._order.append(batch)
        self.used += batch.size + OVERHEAD_BYTES

    def drop_first(self, buffer: Buffer) -> None:
        """Let the oldest batch of one buffer go, because it was trimmed or its channel deleted."""
        self.used -= buffer.drop_first().size + OVERHEAD_BYTES

    def clear(self, buffer: Buffer) -> None:
        while len(buffer):
            self.drop_first(buffer)

    def evict(self, synced: int) -> None:
        """Back under the limit, if what is synced suffices."""
        while self._order and (self.used > self.limit or self._order[0].is_dropped):
            batch = self._order[0]
            if not batch.is_dropped:
                if batch.sequence > synced:
                    return
                assert isinstance(batch.owner, Buffer)
                self.drop_first(batch.owner)  # the oldest of all is the oldest of its buffer
            self._order.popleft()
