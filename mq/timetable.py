"""Delayed publishes in the order in which they are due. Pure: no I/O, no clock.

There may be a million, and any of them may be cancelled: so they are kept in order, in blocks of a bounded length, and
one in the middle goes without a trace. A heap would keep it until it had been due.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice

Entry = tuple[int, int, int]  # due_us, schedule_id, channel_id
BLOCK = 512  # entries; one with twice as many is split


class Timetable:
    """Entries in order, each once."""

    __slots__ = ("_blocks", "_count", "_heads")

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        known = sorted(entries)
        self._blocks = [known[at : at + BLOCK] for at in range(0, len(known), BLOCK)]  # none is empty
        self._heads = [block[0] for block in self._blocks]
        self._count = len(known)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Entry]:
        for block in self._blocks:
            yield from block

    @property
    def first(self) -> Entry:
        """What is due first; there must be something."""
        return self._heads[0]

    def add(self, entry: Entry) -> None:
        if not self._blocks:
            self._blocks.append([entry])
            self._heads.append(entry)
            self._count = 1
            return
        at = max(0, bisect_right(self._heads, entry) - 1)
        block = self._blocks[at]
        if entry > block[-1]:
            block.append(entry)
        else:
            index = bisect_left(block, entry)
            if block[index] == entry:
                return
            block.insert(index, entry)
            self._heads[at] = block[0]
        self._count += 1
        if len(block) >= 2 * BLOCK:
            self._blocks[at : at + 1] = [block[:BLOCK], block[BLOCK:]]
            self._heads.insert(at + 1, block[BLOCK])

    def remove(self, entry: Entry) -> None:
        """One that is not there is no error."""
        at = bisect_right(self._heads, entry) - 1
        if at < 0:
            return
        block = self._blocks[at]
        index = bisect_left(block, entry)
        if index == len(block) or block[index] != entry:
            return
        del block[index]
        self._count -= 1
        if block:
            self._heads[at] = block[0]
        else:
            del self._blocks[at], self._heads[at]

    def after(self, entry: tuple[int, ...], most: int) -> list[Entry]:
        """The next ones, without walking over those before."""
        at = max(0, bisect_right(self._heads, entry) - 1)
        found: list[Entry] = []
        for block in islice(self._blocks, at, None):
            start = 0 if found else bisect_right(block, entry)
            found += block[start : start + most - len(found)]
            if len(found) >= most:
                break
        return found

    def joined(self, other: Timetable) -> Timetable:
        """Both in one: faster than to add many one by one."""
        if 8 * len(other) > len(self):
            return Timetable({*self, *other})
        for entry in other:
            self.add(entry)
        return self

    def without(self, channel_id: int) -> Timetable:
        """All but those of one channel."""
        return Timetable(entry for entry in self if entry[2] != channel_id)
