"""A lease: a delivery that is out with a member. Pure: no I/O, no clock. Never logged; a restart forgets it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from hashlib import blake2b

from mq.ranges import RangeSet


class Lease:
    """Offsets start <= offset < end, `count`-th delivery; `held` is what of it is neither acked nor handed back."""

    __slots__ = (
        "_base",
        "_deltas",
        "count",
        "end",
        "held",
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
        self.held = RangeSet([(start, end)])
        self.is_torn = False  # part of it was handed back: only what is held may still be acked
        self._base = start
        self._deltas: Sequence[int] = ()

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


def make_receipt(secret: bytes, number: int) -> bytes:
    """Unguessable without the secret, which is new with each start of the broker; unique by the number."""
    return blake2b(number.to_bytes(8, "big"), key=secret, digest_size=16).digest()
