"""A group: its position in every partition of a channel, its members and what is out with them.

Pure: no I/O, no clock. Durable: settings and cursors, changed by records only. Volatile: members and leases.
"""

from __future__ import annotations

from collections import OrderedDict

from mq.command import Receipt
from mq.cursor import Cursor
from mq.errors import LeaseLost, ResourceExhausted
from mq.lease import Lease
from mq.ownership import Ownership
from wal.pb.wal_pb2 import GroupSettings

Ranges = list[tuple[int, int]]

UNLIMITED = 1 << 62
REMEMBERED_LEASES = 1024  # fully acked ones, so that a repeated ack is no error
REMEMBERED_TURNS = 1024  # of members that have left, so that a late pull does not bring them back


class Member:
    """One consumer. `leased` counts the messages that are out with it."""

    __slots__ = ("leased", "name", "seen_us", "since", "turn")

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen_us = 0
        self.leased = 0
        self.turn = self.since = 0  # of the last pull that numbers itself, and of its consumer's first


class Group:
    def __init__(self, group_id: int, name: str, settings: GroupSettings, channel_id: int, created_us: int) -> None:
        self.group_id = group_id
        self.name = name
        self.channel_id = channel_id
        self.keep(settings)
        self.created_us = created_us
        self.cursors: list[Cursor] = []
        self.skipped = 0  # messages trimmed or expired before this group saw them

        self.seen_us = created_us
        self.members: dict[str, Member] = {}
        self.leases: dict[bytes, Lease] = {}
        self.turn = 0  # the partition to look at first, so that none starves
        self.ownership = Ownership(0)  # of ordered groups
        self._acked: OrderedDict[bytes, Lease] = OrderedDict()
        self._turns: OrderedDict[str, int] = OrderedDict()  # of members that have left, by name
        self._fresh_out = 0  # messages out for the first time; the others are among the retries

    def keep(self, settings: GroupSettings) -> None:
        """How it delivers, from now on. What every pull asks for is kept apart: a message is slow to read."""
        self.settings = settings
        self.is_ordered = settings.mode == GroupSettings.ORDERED
        self.ack_wait_us = settings.ack_wait_ms * 1000
        self.max_pending = settings.max_pending
        self.max_pending_per_member = settings.max_pending_per_member
        # anybody may get anything, and any number
        self.is_plain = not (self.is_ordered or self.max_pending or self.max_pending_per_member)

    def pending(self) -> int:
        """Messages out with members or waiting for redelivery."""
        return self._fresh_out + sum(cursor.retries.total for cursor in self.cursors)

    def room(self, member: Member) -> int:
        """How many more messages the member may get."""
        most = self.max_pending_per_member
        return max(0, most - member.leased) if most else UNLIMITED

    def fresh_room(self) -> int:
        """How many of them may be new ones: what waits for redelivery is pending already, and may always go out."""
        most = self.max_pending
        return max(0, most - self.pending()) if most else UNLIMITED

    def is_exhausted(self, count: int) -> bool:
        """Whether a message that was delivered so often is not delivered again."""
        return 0 < self.settings.max_deliver <= count

    def backoff_us(self, count: int) -> int:
        """How long a message waits after its count-th delivery failed."""
        steps = self.settings.backoff_ms
        return 1000 * steps[min(count, len(steps)) - 1] if steps else 0

    def touch(self, name: str, now: int, limit: int) -> Member:
        """A sign of life of a member, known or new."""
        member = self.members.get(name)
        if member is None:
            if len(self.members) >= limit:
                raise ResourceExhausted(f"group {self.name!r} has {limit} members, the most allowed")
            member = self.members[name] = Member(name)
        member.seen_us = self.seen_us = max(now, self.seen_us)
        return member

    def take_turn(self, name: str, turn: int, since: int, now: int, limit: int) -> bool:
        """A pull that numbers itself begins; returns whether somebody else had the name of its member.

        Raises LeaseLost where it is late: another came, or the member has left.
        """
        known = self.members.get(name)
        if turn <= (self._turns.get(name, 0) if known is None else known.turn):
            raise LeaseLost(f"a later pull of member {name!r} came before this one, or another goes by its name")
        member = self.touch(name, now, limit)
        is_another = known is not None and known.since != since
        member.turn, member.since = turn, since
        return is_another

    def leave(self, name: str, turn: int) -> bool:
        """A member goes, and what it holds is given back; false: there is none, or another goes by the name by now."""
        member = self.members.get(name)
        if member is not None and 0 < turn < member.turn:
            return False
        self.give_back_all(name)
        self.remove(name, turn)
        return member is not None

    def remove(self, name: str, turn: int = 0) -> None:
        """A member is gone. Its turns are remembered, so that a late pull does not bring it back."""
        member = self.members.pop(name, None)
        last = max(turn, member.turn if member else 0)
        if last:
            self._turns[name] = max(last, self._turns.pop(name, 0))
            if len(self._turns) > REMEMBERED_TURNS:
                self._turns.popitem(last=False)

    def balance(self, start_id: int) -> None:
        """Ordered groups: partitions follow the members. `start_id` keeps the generations of two starts apart."""
        if not self.ownership.generation:
            # a group of the same name on a channel that is made anew has generations of its own
            self.ownership.generation = start_id + (self.group_id << 20)
        partitions, assignment = len(self.cursors), self.settings.assignment
        self.ownership.settle(self.members, partitions, assignment, self._is_busy)

    def _is_busy(self, member: str, partition: int) -> bool:
        return any(lease.partition == partition and lease.member == member for lease in self.leases.values())

    def grant(self, lease: Lease, member: Member) -> None:
        """Put a lease out with its member; the cursor is told by the caller."""
        self.leases[lease.receipt] = lease
        messages = lease.end - lease.start
        member.leased += messages
        if lease.count == 1:
            self._fresh_out += messages

    def holding(self, member: str, receipt: Receipt, *, acked_is_fine: bool = False) -> tuple[Lease, Ranges]:
        """The lease behind a receipt and the parts of it that are meant. Raises LeaseLost; changes nothing."""
        lease = self.leases.get(receipt.receipt)
        if lease is None and acked_is_fine:
            lease = self._acked.get(receipt.receipt)
        if lease is None or lease.member != member:
            raise LeaseLost("the receipt is not of a lease that this member holds")
        if not receipt.ranges:
            return lease, lease.all_held()
        wanted = []
        for start, end in receipt.ranges:
            left, right = lease.widen(start, end)
            if start >= end or left < lease.start or right > lease.end:
                raise LeaseLost(f"offsets {start} to {end} are not of this lease")
            if not lease.held.covers(left, right) and (lease.is_torn or not acked_is_fine):
                raise LeaseLost(f"offsets {start} to {end} are no longer held by this lease")
            wanted += lease.held.within(left, right)
        return lease, wanted

    def settle(self, lease: Lease, ranges: Ranges, *, acked: bool) -> None:
        """Take ranges off a lease; one with nothing left ends."""
        for start, end in ranges:
            self._count(lease, -lease.let_go(start, end))
        lease.is_torn = lease.is_torn or not acked
        if lease.is_over and lease.receipt in self.leases:
            del self.leases[lease.receipt]
            if lease.is_torn:
                return
            self._acked[lease.receipt] = lease
            if len(self._acked) > REMEMBERED_LEASES:
                self._acked.popitem(last=False)

    def give_back(self, lease: Lease) -> None:
        """End a lease as if it had never been given."""
        ranges = lease.all_held()
        self.settle(lease, ranges, acked=False)
        for start, end in ranges:
            self.cursors[lease.partition].give_back(start, end)

    def give_back_all(self, member: str) -> None:
        """End everything that a member holds as if it had never been given."""
        for lease in [lease for lease in self.leases.values() if lease.member == member]:
            self.give_back(lease)

    def forget(self, partition: int, before: int) -> None:
        """End what is out below an offset: it was trimmed, or the group was moved."""
        for receipt in [receipt for receipt, lease in self._acked.items() if lease.partition == partition]:
            del self._acked[receipt]
        for lease in [lease for lease in self.leases.values() if lease.partition == partition and lease.start < before]:
            self.settle(lease, lease.held.within(0, before), acked=False)

    def _count(self, lease: Lease, messages: int) -> None:
        if lease.count == 1:
            self._fresh_out += messages
        member = self.members.get(lease.member)
        if member is not None:
            member.leased += messages
