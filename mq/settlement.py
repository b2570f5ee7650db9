"""Decides what ends or prolongs leases: ack, nack, reject, extend, leave, expiry. Pure: no I/O, no clock.

Everything is checked before anything is changed: a request with one stale receipt changes nothing at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush

from mq.channel import Channel
from mq.command import Ack, Commit, Extend, Leave, Nack, Pull, Receipt, Reject
from mq.deadletter import Burial
from mq.decision import Decision
from mq.errors import InvalidArgument, OffsetOutOfRange
from mq.group import Group, Ranges
from mq.lease import Lease
from mq.ranges import RangeSet
from mq.reply import AckReply, CommitReply, ExtendReply, Leased, LeaveReply, NackReply, RejectReply
from mq.state import State
from wal.pb.wal_pb2 import Acked, Committed, GroupDeleted, OffsetRange, Redelivered
from wal.record import Record

Held = list[tuple[Lease, Ranges]]


def decide_ack(state: State, command: Ack, now: int) -> Decision:
    records, settle = plan_ack(state, command, now, again=True)
    return Decision(records, AckReply(settle()))


class Settling:
    """The half of an ack that changes something: called once everything else was found right."""

    def __init__(self, group: Group, held: Held, messages: int) -> None:
        self._group = group
        self._held = held
        self._messages = messages

    def __call__(self) -> int:
        for lease, ranges in self._held:
            self._group.settle(lease, ranges, acked=True)
        return self._messages


def plan_ack(state: State, command: Ack, now: int, *, again: bool) -> tuple[list[Record], Settling]:
    """The records of an ack, and what to call when it is to take place. Raises LeaseLost; changes nothing.

    `again`: what this holder has acked before may be acked once more, to no effect.
    """
    channel, group = _group(state, command, now)
    held = [group.holding(command.member, receipt, acked_is_fine=again) for receipt in command.receipts]
    done: dict[int, RangeSet] = {}
    for partition, start, end in _joined(held):
        done.setdefault(partition, RangeSet()).add(start, end)
    records: list[Record] = [
        Acked(
            channel_id=channel.channel_id,
            group_id=group.group_id,
            partition=partition,
            ranges=[OffsetRange(start=start, end=end) for start, end in ranges],
            timestamp_us=now,
        )
        for partition, ranges in done.items()
    ]
    return records, Settling(group, held, sum(ranges.total() for ranges in done.values()))


def _joined(held: Held) -> Iterator[tuple[int, int, int]]:
    """Partition, start and end of what is held; neighbours as one, for acks mostly come in the order of the log."""
    at, first, last = -1, 0, 0
    for lease, ranges in held:
        for start, end in ranges:
            if start == last and lease.partition == at:
                last = end
                continue
            if first < last:
                yield at, first, last
            at, first, last = lease.partition, start, end
    if first < last:
        yield at, first, last


def decide_nack(state: State, command: Nack, now: int) -> Decision:
    channel, group = _group(state, command, now)
    held = _held(group, command.member, command.receipts)
    records = _redelivered(channel, group, held, command.delay_ms, now)
    return Decision(records, NackReply())


def decide_reject(state: State, command: Reject, now: int) -> Decision:
    """Raises Missing where the content has left memory: then nothing is changed, and the lease is checked again."""
    channel, group = _group(state, command, now)
    held = _held(group, command.member, command.receipts)
    burial = Burial(state, channel, now)
    moved = 0
    for lease, ranges in held:
        for start, end in ranges:
            partition = channel.partitions[lease.partition]
            moved += burial.add(group, partition, start, end, lease.count, command.reason or "rejected")
    for lease, ranges in held:
        group.settle(lease, ranges, acked=False)
    return Decision(burial.records(), RejectReply(moved))


def decide_extend(state: State, command: Extend, now: int) -> Decision:
    _, group = _group(state, command, now)
    held = [group.holding(command.member, receipt) for receipt in command.receipts]
    until_us = now + (command.ack_wait_ms * 1000 or group.ack_wait_us)
    for lease, _ranges in held:
        lease.until_us = until_us
        heappush(state.alarms, (until_us, next(state.numbers), group, lease))
    return Decision([], ExtendReply(until_us))


def decide_leave(state: State, command: Leave, now: int) -> Decision:
    """What a member that leaves holds goes out again at once, and does not count as delivered."""
    _, group = _group(state, command, now)
    if group.leave(command.member, command.turn) and group.is_ordered:
        group.balance(state.start_id)  # at once: from here on it commits nothing, whoever pulls next and when
    return Decision([], LeaveReply())


def decide_commit(state: State, command: Commit, now: int) -> Decision:
    """Everything before an offset is done: for ordered groups, by the owner of the partition."""
    records, settle = plan_commit(state, command, now, again=False)
    settle()
    return Decision(records, CommitReply())


def plan_commit(state: State, command: Commit, now: int, *, again: bool) -> tuple[list[Record], Callable[[], None]]:
    """The records of a commit, and what to call when it is to take place. Raises LeaseLost; changes nothing.

    `again`: also those that would change nothing, because the group is further already.
    """
    channel, group = _group(state, command, now)
    if not group.is_ordered:
        raise InvalidArgument(f"group {command.group!r} is shared: its members ack by receipt, they do not commit")
    for number, offset in command.positions:
        partition = channel.partition(number)
        group.ownership.check(command.member, number, command.generation)
        if offset > partition.visible:
            text = f"offset {offset} of partition {number} is past {partition.visible}, the last one visible"
            raise OffsetOutOfRange(text, number, partition.start_offset, partition.visible)
    records: list[Record] = [
        Committed(
            channel_id=channel.channel_id, group_id=group.group_id, partition=number, offset=offset, timestamp_us=now
        )
        for number, offset in command.positions
        if again or offset > group.cursors[number].offset
    ]

    def settle() -> None:
        for number, offset in command.positions:
            for lease in [lease for lease in group.leases.values() if lease.partition == number]:
                group.settle(lease, lease.held.within(0, offset), acked=True)

    return records, settle


def decide_absence(state: State, now: int) -> tuple[list[Record], list[Group]]:
    """Members not seen for their session's length are gone; groups without members expire where they are to."""
    records: list[Record] = []
    changed: list[Group] = []
    for channel in state.channels.values():
        for group in channel.groups.values():
            gone = _absent(group, now)
            for member in gone:
                held = [(lease, lease.all_held()) for lease in group.leases.values() if lease.member == member]
                records += _redelivered(channel, group, held, 0, now)
                group.remove(member)
            if gone:
                changed.append(group)
                if group.is_ordered:
                    group.balance(state.start_id)
            wait_us = group.settings.expire_after_ms * 1000
            if wait_us and not group.members and now - group.seen_us >= wait_us:
                records.append(GroupDeleted(channel_id=channel.channel_id, group_id=group.group_id, timestamp_us=now))
    return records, changed


def decide_takeover(state: State, command: Pull, now: int) -> Decision:
    """Somebody else had a member's name: what that holds was delivered to it, and comes again before what follows."""
    channel = state.channel(command.channel)
    group = channel.group(command.group)
    held = [(lease, lease.all_held()) for lease in group.leases.values() if lease.member == command.member]
    return Decision(_redelivered(channel, group, held, 0, now), None)


def _absent(group: Group, now: int) -> list[str]:
    """In shared groups a lease outlives the session: its own end is what counts."""
    before = now - group.settings.session_timeout_ms * 1000
    return [
        member.name
        for member in group.members.values()
        if member.seen_us < before and (group.is_ordered or not member.leased)
    ]


def release(state: State, leased: Leased) -> Group | None:
    """Undo the leases of an answer that was never sent."""
    channel = state.channels.get(leased.channel)
    group = channel.groups.get(leased.group) if channel else None
    if group is None:
        return None
    for receipt in leased.receipts:
        lease = group.leases.get(receipt)
        if lease is not None:
            group.give_back(lease)
    return group


def decide_expiry(state: State, now: int) -> tuple[list[Record], list[Group]]:
    """What ended by the clock: the records for it, and the groups that have something to give out again."""
    records: list[Record] = []
    groups: dict[Group, None] = {}
    while state.alarms and state.alarms[0][0] <= now:
        _, _, group, lease = heappop(state.alarms)
        channel = state.channels_by_id.get(group.channel_id)
        if channel is None or channel.groups_by_id.get(group.group_id) is not group:
            continue
        groups[group] = None
        if lease is not None and group.leases.get(lease.receipt) is lease and lease.until_us <= now:
            records += _redelivered(channel, group, [(lease, lease.all_held())], None, now)
    return records, list(groups)


def _group(state: State, command: Ack | Nack | Reject | Extend | Commit | Leave, now: int) -> tuple[Channel, Group]:
    """The channel and group of a command that names a member, which is a sign of life."""
    channel = state.channel(command.channel)
    group = channel.group(command.group)
    if command.member in group.members:
        group.touch(command.member, now, state.limits.members)
    return channel, group


def _held(group: Group, member: str, receipts: Sequence[Receipt]) -> Held:
    """What receipts stand for, each message once. Raises LeaseLost; changes nothing."""
    found: dict[bytes, tuple[Lease, RangeSet]] = {}
    for receipt in receipts:
        lease, ranges = group.holding(member, receipt)
        _, wanted = found.setdefault(receipt.receipt, (lease, RangeSet()))
        for start, end in ranges:
            wanted.add(start, end)
    return [(lease, list(wanted)) for lease, wanted in found.values()]


def _redelivered(channel: Channel, group: Group, held: Held, delay_ms: int | None, now: int) -> list[Record]:
    """Take what is held off its leases; the records say when it may go out again."""
    by_partition: dict[int, Redelivered] = {}
    for lease, ranges in held:
        group.settle(lease, ranges, acked=False)
        wait_us = group.backoff_us(lease.count) if delay_ms is None else delay_ms * 1000
        record = by_partition.setdefault(
            lease.partition,
            Redelivered(
                channel_id=channel.channel_id, group_id=group.group_id, partition=lease.partition, timestamp_us=now
            ),
        )
        for start, end in ranges:
            record.retries.add(start=start, end=end, delivery_count=lease.count, not_before_us=now + wait_us)
    return [record for record in by_partition.values() if record.retries]
