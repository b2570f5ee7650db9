"""Keeps book of what a consumer holds and what it has done with it. Pure: no I/O, no clock, no locks.

Acks are marks on a delivery, gathered until somebody takes them as one request. A message is settled once: what comes
later is ignored, as a second ack of the same message is no mistake.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from mq.client.message import Delivery, Part
from mq.errors import InvalidArgument
from mq.pb import mq_pb2 as pb

ACK, NACK, REJECT, EXTEND = "Ack", "Nack", "Reject", "Extend"
RECEIPTS_PER_REQUEST = 1_000  # a request has at most 256 KiB, and its ranges must fit as well
RANGES_PER_REQUEST = 8_000
ACKED_MESSAGES = 5_000  # then acks gain nothing by waiting for more
ACKED_DELIVERIES = 16  # nor then: each costs the broker a look, and others wait while it looks
_ACKED = re.compile(b"\x01+")
_OPEN, _MARKED, _GONE = 0, 1, 2


class Ledger(Protocol):
    """What a message hands its fate to."""

    def ack_one(self, delivery: Delivery, index: int) -> None: ...

    def ack(self, parts: Sequence[Part]) -> None: ...

    def nack(self, parts: Sequence[Part], delay_ms: int | None) -> None: ...

    def reject(self, parts: Sequence[Part], reason: str) -> None: ...

    def extend(self, delivery: Delivery) -> None: ...


class Settlement(NamedTuple):
    """A request to make: which act, on which receipts, of which deliveries."""

    act: str
    receipts: list[pb.Receipt]
    deliveries: list[Delivery]
    delay_ms: int | None = None
    reason: str = ""

    def request(self, channel: str, group: str, member: str) -> bytes:
        if self.act == NACK:
            nack = pb.NackRequest(channel=channel, group=group, member=member, receipts=self.receipts)
            if self.delay_ms is not None:
                nack.delay_ms = self.delay_ms
            return nack.SerializeToString()
        if self.act == REJECT:
            return pb.RejectRequest(
                channel=channel, group=group, member=member, receipts=self.receipts, reason=self.reason
            ).SerializeToString()
        if self.act == EXTEND:
            return pb.ExtendRequest(
                channel=channel, group=group, member=member, receipts=self.receipts
            ).SerializeToString()
        return pb.AckRequest(channel=channel, group=group, member=member, receipts=self.receipts).SerializeToString()

    def halves(self) -> list[Settlement]:
        """The same in two requests: a receipt that is refused takes all others of its request with it."""
        middle = len(self.receipts) // 2
        return [self._part(0, middle), self._part(middle, len(self.receipts))]

    @property
    def names_a_part(self) -> bool:
        """Of one delivery. That such a part is not held any more says nothing of the rest: it may have been told
        before, by a request whose answer was lost.
        """
        return self.act != EXTEND and len(self.receipts) == 1 and len(self.receipts[0].ranges) > 0

    def of_start(self, start_id: str) -> tuple[Settlement, Settlement]:
        """What was delivered by this start of the broker, and what by an earlier one, of which this knows nothing.

        Not every transport tells a start, and none does while it is not connected: what is not known is not earlier.
        """
        pairs = list(zip(self.receipts, self.deliveries, strict=True))
        if not start_id:
            return self._of(pairs), self._of([])
        new = [pair for pair in pairs if pair[1].start_id in ("", start_id)]
        return self._of(new), self._of([pair for pair in pairs if pair[1].start_id not in ("", start_id)])

    def _part(self, start: int, end: int) -> Settlement:
        return self._replace(receipts=self.receipts[start:end], deliveries=self.deliveries[start:end])

    def _of(self, pairs: list[tuple[pb.Receipt, Delivery]]) -> Settlement:
        return self._replace(receipts=[each for each, _ in pairs], deliveries=[each for _, each in pairs])


class Book:
    """What is held, by receipt, and which acks wait to be sent."""

    def __init__(self) -> None:
        self.held: dict[bytes, Delivery] = {}
        self.acks = 0  # messages whose ack waits
        self._acked: dict[bytes, Delivery] = {}
        self._others: list[Settlement] = []

    @property
    def is_urgent(self) -> bool:
        """Something waits that does not gain by waiting."""
        return bool(self._others) or self.acks >= ACKED_MESSAGES or len(self._acked) >= ACKED_DELIVERIES

    @property
    def held_messages(self) -> int:
        """Of what is held, those that are not settled."""
        return sum(delivery.unsettled for delivery in self.held.values())

    def hold(self, delivery: Delivery) -> None:
        self.held[delivery.receipt] = delivery

    def ack_one(self, delivery: Delivery, index: int) -> None:
        marks = delivery.settled
        if marks is None:
            if not delivery.unsettled:
                return
            marks = delivery.settled = bytearray(delivery.count)
        if marks[index]:
            return
        marks[index] = _MARKED
        self.acks += 1
        self._acked[delivery.receipt] = delivery
        delivery.unsettled -= 1
        if not delivery.unsettled:
            self.held.pop(delivery.receipt, None)

    def ack(self, delivery: Delivery, start: int, end: int) -> None:
        if start == 0 and end == delivery.count and delivery.settled is None:
            if delivery.unsettled:
                self._acked[delivery.receipt] = delivery
                self.acks += delivery.count
                delivery.unsettled = 0
                self.held.pop(delivery.receipt, None)
            return
        for index in range(start, end):
            self.ack_one(delivery, index)

    def hand_back(self, act: str, parts: Sequence[Part], delay_ms: int | None = None, reason: str = "") -> None:
        """Nack or reject what of these parts is not settled yet. Raises InvalidArgument, and then takes nothing."""
        _check_delay(delay_ms)
        reason = _sendable(reason)
        receipts, deliveries = [], []
        for delivery, start, end in parts:
            ranges = self.take(delivery, start, end)
            if ranges:
                receipts.append(_receipt(delivery, ranges))
                deliveries.append(delivery)
        if receipts:
            self._others.append(Settlement(act, receipts, deliveries, delay_ms, reason))

    def take(self, delivery: Delivery, start: int, end: int) -> list[tuple[int, int]]:
        """Settle a part without an ack; returns the indexes that were open, as ranges."""
        if delivery.settled is None:
            if not delivery.unsettled:
                return []
            delivery.settled = bytearray(delivery.count)
        marks = delivery.settled
        ranges = [(start + each.start(), start + each.end()) for each in re.finditer(b"\x00+", marks[start:end])]
        for first, after in ranges:
            marks[first:after] = bytes([_GONE]) * (after - first)
            delivery.unsettled -= after - first
        if not delivery.unsettled:
            self.held.pop(delivery.receipt, None)
        return ranges

    def take_all(self) -> list[Settlement]:
        """Everything that waits to be sent, as requests."""
        found, self._others = self._others, []
        acked, self._acked, self.acks = self._acked, {}, 0
        receipts, deliveries, ranges = [], [], 0
        for delivery in acked.values():
            receipt = None if delivery.is_lost else _acked(delivery)
            if receipt is None:
                continue
            receipts.append(receipt)
            deliveries.append(delivery)
            ranges += len(receipt.ranges)
            if len(receipts) >= RECEIPTS_PER_REQUEST or ranges >= RANGES_PER_REQUEST:
                found.append(Settlement(ACK, receipts, deliveries))
                receipts, deliveries, ranges = [], [], 0
        if receipts:
            found.append(Settlement(ACK, receipts, deliveries))
        return found

    def extensions(self, deliveries: Iterable[Delivery] | None = None) -> list[Settlement]:
        """What keeps the leases; one without receipts, for a sign of life, where nothing is held."""
        held = list(self.held.values() if deliveries is None else deliveries)
        steps = range(0, max(1, len(held)), RECEIPTS_PER_REQUEST)
        parts = [held[start : start + RECEIPTS_PER_REQUEST] for start in steps]
        return [Settlement(EXTEND, [pb.Receipt(receipt=each.receipt) for each in part], part) for part in parts]

    def lose(self, delivery: Delivery) -> None:
        """The lease is gone: what was not acked comes again, to somebody."""
        delivery.is_lost = True
        self.held.pop(delivery.receipt, None)
        self._acked.pop(delivery.receipt, None)

    def lose_all(self) -> int:
        """All that is held was given back. Of what was handed out, how many messages were not surely settled.

        The newest goes first: who is handed out messages meanwhile gets none that follows one that is lost.
        """
        count = 0
        for delivery in reversed(list(self.held.values())):
            count += delivery.given - (delivery.settled or b"").count(_GONE)
            self.lose(delivery)
        return count


def _check_delay(delay_ms: int | None) -> None:
    """Here, where whoever gave it hears of it: the request is made later, by a keeper."""
    try:
        pb.NackRequest(delay_ms=delay_ms)
    except (TypeError, ValueError):
        raise InvalidArgument(f"delay_ms is a whole number and not negative: {delay_ms!r}") from None


def _sendable(reason: str) -> str:
    """A reason may quote what a message holds: what is no UTF-8 in it is written out, not refused."""
    if isinstance(reason, str):
        reason = reason.encode(errors="backslashreplace").decode()
    try:
        return str(pb.RejectRequest(reason=reason).reason)
    except (TypeError, ValueError):
        raise InvalidArgument(f"a reason is text: {reason!r}") from None


def _acked(delivery: Delivery) -> pb.Receipt | None:
    """A receipt for the marks of a delivery, which are then no longer waiting."""
    marks = delivery.settled
    if marks is None or not (_OPEN in marks or _GONE in marks):
        if marks is not None:
            delivery.settled = bytearray([_GONE]) * delivery.count
        return pb.Receipt(receipt=delivery.receipt)
    ranges = [each.span() for each in _ACKED.finditer(marks)]
    if not ranges:
        return None
    for start, end in ranges:
        marks[start:end] = bytes([_GONE]) * (end - start)
    return _receipt(delivery, ranges)


def _receipt(delivery: Delivery, ranges: list[tuple[int, int]]) -> pb.Receipt:
    if ranges == [(0, delivery.count)]:
        return pb.Receipt(receipt=delivery.receipt)
    offset = delivery.offset
    return pb.Receipt(
        receipt=delivery.receipt,
        ranges=[pb.OffsetRange(start=offset(start), end=offset(end - 1) + 1) for start, end in ranges],
    )
