"""A lease: a delivery that is out with a member. Pure: no I/O, no clock. Never logged; a restart forgets it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from hashlib import blake2b

from mq.ranges import RangeSet

RECEIPT_BYTES = 16

_NOTHING = RangeSet()  # one for all leases that are over: from what they hold, something is only ever taken


class Lease:
    """Offsets start <= offset < end, `count`-th delivery. Held is what of it is neither acked nor handed back."""

    __slots__ = (
        "_base",
        "_deltas",
        "_held",
        "count",
        "end",
        "is_torn",
        "member",
        "partition",
        "receipt",
        "since_us",
        "start",
        "until_us",
    )

    def __init__(self, receipt: bytes, member: str, partition: int, start: int, end: int, count: int) -> None:
        self.receipt = receipt
        self.member = member
        self.partition = partition
        self.start = start
        self.end = end
        self.count = count
        self.since_us = self.until_us = 0
        self._held: RangeSet | None = None  # None: all of it, as for most until they end
        self.is_torn = False  # part of it was handed back: only what is held may still be acked
        self._base = start
        self._deltas: Sequence[int] = ()

    @property
    def held(self) -> RangeSet:
        if self._held is None:
            self._held = RangeSet([(self.start, self.end)])
        return self._held

    def all_held(self) -> list[tuple[int, int]]:
        """What is held, as ranges."""
        return [(self.start, self.end)] if self._held is None else list(self._held)

    def let_go(self, start: int, end: int) -> int:
        """Take a range off what is held; returns how many offsets were."""
        if self._held is None and start <= self.start and self.end <= end:
            self._held = _NOTHING
            return self.end - self.start
        return self.held.remove(start, end)

    @property
    def is_over(self) -> bool:
        """Nothing is held any more."""
        return self._held is not None and not self._held

    def lay_out(self, base: int, deltas: Sequence[int]) -> None:
        """Where the messages really are; the holes before and between belong to the lease as well."""
        self._base = base
        self._deltas = deltas

    def widen(self, start: int, end: int) -> tuple[int, int]:
        """A range of messages with the holes around them, so that acking every message acks every offset."""
        if start <= self._base:
            start = min(start, self.start)
        if self._deltas:
            index = bisect_left(self._deltas, end - self._base)
            end = self.end if index == len(self._deltas) else max(end, self._base + self._deltas[index])
        return start, end


class Receipts:
    """Unguessable without the secret, which is new with each start of the broker; no two are the same.

    One hash gives four, so that only every fourth delivery waits for one.
    """

    __slots__ = ("_made", "_ready", "_secret")

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._made = 0
        self._ready: list[bytes] = []

    def take(self) -> bytes:
        ready = self._ready
        if not ready:
            self._made += 1
            digest = blake2b(self._made.to_bytes(8, "big"), key=self._secret).digest()
            ready += [digest[at : at + RECEIPT_BYTES] for at in range(0, len(digest), RECEIPT_BYTES)]
        return ready.pop()
