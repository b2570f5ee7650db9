"""Decides pulls: what a reader sees, what a member gets leased. Pure: no I/O, no clock.

Only the batch at the edge of an answer is cut. Where a batch has left memory, `Missing` says which one to read;
it is raised only while nothing has been given out yet, so deciding again starts from the same state.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappush

from mq.batch import Batch
from mq.channel import Channel, Missing, Partition
from mq.command import EARLIEST, Position, Pull, Start
from mq.cursor import Cursor
from mq.decision import Decision
from mq.errors import DataLoss, InvalidArgument, LeaseLost, OffsetOutOfRange
from mq.group import UNLIMITED, Group, Member
from mq.lease import Lease
from mq.reply import PulledBatch, PullReply
from mq.state import State
from wal.pb.wal_pb2 import Acked, Expired
from wal.record import Record

BATCH_OVERHEAD_BYTES = 96  # of the fields around a batch in an answer
_FIRST = (0,)  # the partitions of a channel that has one


class Answer:
    """A pull's answer while it fills up."""

    def __init__(self, command: Pull, state: State, room: int = UNLIMITED, fresh_room: int = UNLIMITED) -> None:
        limits = state.limits
        self.messages = min(command.max_messages or limits.pull_messages, room)
        self.fresh = fresh_room  # so many messages that were never out, at most
        self.bytes = min(command.max_bytes or limits.response_bytes, limits.response_bytes)
        self.batches: list[PulledBatch] = []
        self.records: list[Record] = []
        self.loss: DataLoss | None = None

    def add(self, pulled: PulledBatch) -> None:
        self.batches.append(pulled)
        self.messages -= pulled.count
        self.fresh -= pulled.count if pulled.delivery_count == 1 else 0
        self.bytes -= len(pulled.batch) + BATCH_OVERHEAD_BYTES

    def expire(self, partition: Partition, start: int, end: int, now: int) -> None:
        """Put a stretch that nobody will get any more on record."""
        last = self.records[-1] if self.records else None
        if not isinstance(last, Expired) or last.partition != partition.number:
            last = Expired(channel_id=partition.channel_id, partition=partition.number, timestamp_us=now)
            self.records.append(last)
        if last.ranges and last.ranges[-1].end == start:
            last.ranges[-1].end = end
        else:
            last.ranges.add(start=start, end=end)

    def pass_over(self, group: Group, partition: Partition, start: int, end: int, now: int) -> None:
        """Put on record that a group is done with a stretch in which nothing is left: else it would stay before it."""
        done = Acked(
            channel_id=partition.channel_id, group_id=group.group_id, partition=partition.number, timestamp_us=now
        )
        done.ranges.add(start=start, end=end)
        self.records.append(done)

    @property
    def is_full(self) -> bool:
        return self.messages <= 0 or (self.bytes <= 0 and bool(self.batches))


# ---------------------------------------------------------------- without a group


def resolve(channel: Channel, command: Pull) -> list[Position]:
    """Where a pull without a group begins. Raises OffsetOutOfRange; a time has been looked up before."""
    if command.positions:
        places = list(command.positions)
    else:
        numbers = range(len(channel.partitions)) if command.partition is None else [command.partition]
        start = command.start or EARLIEST
        places = [Position(number, place(channel.partition(number), start)) for number in numbers]
    for number, offset in places:
        partition = channel.partition(number)
        low, high = partition.first, partition.next_offset
        if not low <= offset <= high:
            text = f"offset {offset} of partition {number} is not between {low} and {high}"
            raise OffsetOutOfRange(text, number, low, high)
    return places


def place(partition: Partition, start: Start) -> int:
    """A start position as an offset."""
    if start.at == "earliest":
        return partition.first
    if start.at == "latest":
        return partition.next_offset
    if start.at == "offset":
        return start.value
    if start.at == "last":
        return max(partition.first, partition.next_offset - start.value)
    raise InvalidArgument(f"unknown start {start.at!r}")


def decide_read(state: State, command: Pull, now: int) -> Decision:
    """A pull without a group: leaves no trace. Raises Missing, DataLoss."""
    channel = state.same_channel(command.channel, command.channel_id)
    places = resolve(channel, command)
    answer = Answer(command, state)
    following = dict(places)
    turn = channel.turn % len(places)
    for number, offset in places[turn:] + places[:turn]:
        if answer.is_full:
            break
        try:
            _read_partition(channel.partitions[number], offset, answer, following, now)
        except DataLoss as loss:
            answer.loss = answer.loss or loss
        except Missing as missing:
            if not answer.batches:
                missing.reached = following
                raise
            break
    if answer.batches:
        channel.turn += 1
    elif answer.loss:
        raise answer.loss
    reached = [Position(number, following[number]) for number, _ in places]
    return Decision([], PullReply(answer.batches, reached, channel_id=channel.channel_id))


def _read_partition(partition: Partition, offset: int, answer: Answer, following: dict[int, int], now: int) -> None:
    while not answer.is_full:
        stop = partition.readable_end(offset)
        batch = partition.find(offset) if offset < stop else None
        if batch is None:
            return
        if batch.base >= stop or batch.has_expired(now):
            offset = following[partition.number] = min(batch.end, stop)
            continue
        cut = batch.cut(offset, stop, answer.messages, answer.bytes, not answer.batches)
        if cut is None:
            return
        answer.add(PulledBatch(partition.number, cut.base, cut.messages, batch.timestamp_us, cut.deltas, cut.batch))
        offset = following[partition.number] = min(cut.end, stop)


# ---------------------------------------------------------------- with a group


def decide_lease(state: State, command: Pull, now: int) -> Decision:
    """A pull of a member. Raises Missing, DataLoss."""
    channel = state.same_channel(command.channel, command.channel_id)
    group = channel.same_group(command.group, command.group_id)
    member = group.touch(command.member, now, state.limits.members)
    if command.turn and command.turn < member.turn:
        raise LeaseLost(f"a later pull of member {command.member!r} came while this one was under way")
    of_what = channel.channel_id, group.group_id, channel.name, group.name
    if pulled := _lease_plainly(state, command, channel, group, member, now):
        return Decision([], PullReply([pulled], [], 0, (), *of_what))
    answer = _Leasing(command, state, group, member, now)
    for number in _partitions_for(state, channel, group, member, command):
        if answer.is_full:
            break
        try:
            answer.fill(channel.partitions[number])
        except DataLoss as loss:
            answer.loss = answer.loss or loss
        except Missing:
            if not (answer.batches or answer.records):
                raise
            break
    if answer.batches:
        group.turn += 1
    elif answer.loss and not answer.records:
        raise answer.loss
    reply = PullReply(answer.batches, [], 0, (), *of_what)
    if group.is_ordered:
        reply.generation = group.ownership.generation
        reply.assigned = group.ownership.owned_by(member.name)
    return Decision(answer.records, reply)


def _lease_plainly(
    state: State, command: Pull, channel: Channel, group: Group, member: Member, now: int
) -> PulledBatch | None:
    """Lease what was published last where a group has nothing else to get, as when it waited for that, in one step.

    To decide it in general gives the same, by way of everything else that there may be.
    """
    if not group.is_plain or command.partition is not None or len(channel.partitions) > 1:
        return None
    partition, cursor, limits = channel.partitions[0], group.cursors[0], state.limits
    batch = partition.buffer.last
    if (
        batch is None
        or not batch.count
        or batch.base != cursor.next
        or batch.end != partition.visible
        or batch.deltas
        or batch.ttl_ms
        or batch.count > (command.max_messages or limits.pull_messages)
        or batch.size > min(command.max_bytes or limits.response_bytes, limits.response_bytes)
        or cursor.retries.total
        or cursor.returned
        or cursor.acked
        or partition.damaged
        or partition.unreadable
    ):
        return None
    group.turn += 1
    start, cursor.next = batch.base, batch.end
    lease = _put_out(state, group, member, 0, start, batch.end, 1, now)
    return PulledBatch(0, start, batch.count, batch.timestamp_us, (), batch.content(), lease.receipt, 1, lease.until_us)


def _put_out(
    state: State, group: Group, member: Member, partition: int, start: int, end: int, count: int, now: int
) -> Lease:
    """Lease a stretch; the cursor is told by the caller."""
    lease = Lease(state.receipts.take(), member.name, partition, start, end, count)
    lease.since_us = now
    lease.until_us = now + group.ack_wait_us
    group.grant(lease, member)
    heappush(state.alarms, (lease.until_us, next(state.numbers), group, lease))
    return lease


def _partitions_for(state: State, channel: Channel, group: Group, member: Member, command: Pull) -> Sequence[int]:
    if group.is_ordered:
        group.balance(state.start_id)
        owned = group.ownership.pulled_by(member.name)
        return [number for number in owned if command.partition in (None, number)]
    if command.partition is not None:
        return [channel.partition(command.partition).number]
    if len(channel.partitions) == 1:
        return _FIRST
    turn = group.turn % len(channel.partitions)
    return [*range(turn, len(channel.partitions)), *range(turn)]


class _Leasing(Answer):
    """A member's answer. In each partition, what is due again comes first, then what was never out."""

    def __init__(self, command: Pull, state: State, group: Group, member: Member, now: int) -> None:
        super().__init__(command, state, group.room(member), group.fresh_room())
        self.state = state
        self.group = group
        self.member = member
        self.now = now
        self.partition: Partition
        self.cursor: Cursor

    def fill(self, partition: Partition) -> None:
        """Lease what one partition has, as far as it fits. Raises Missing, DataLoss."""
        self.partition = partition
        self.cursor = cursor = self.group.cursors[partition.number]
        if self.group.is_ordered:
            while not self.is_full and self._next():
                pass
            return
        if cursor.retries.total:
            while not self.is_full and self._again():
                pass
        while not self.is_full and self._fresh():
            pass

    def _next(self) -> bool:
        """In an ordered group: whatever has the lowest offset. What waits for redelivery holds up what follows it.

        What precedes it goes out first: a restart forgets what was out, and remembers only what came back.
        """
        waiting = self.cursor.retries.first_waiting()
        if waiting is not None and waiting.start < self.cursor.fresh(self.partition.visible)[0]:
            return self._again()
        return self._fresh()

    def _again(self) -> bool:
        """Lease what is due for redelivery; false: nothing is, or nothing more fits."""
        retries = self.cursor.retries
        retry = retries.first_waiting() if self.group.is_ordered else retries.first_due(self.now)
        if retry is None or retry.not_before_us > self.now:
            return False
        start, count = retry.start, retry.count + 1
        stop = min(retry.end, self.partition.readable_end(start))
        batch = self.partition.find(start)
        end = self._skip(batch, start, stop) or self._give(batch, start, stop, count, self.messages)
        if end:
            self.cursor.retries.lease(start, end)
        return end > 0

    def _fresh(self) -> bool:
        """Lease what was never out; false: there is nothing, or nothing more fits."""
        cursor, partition = self.cursor, self.partition
        if self.fresh <= 0 or cursor.has_given(partition.visible):
            return False
        start, stop = cursor.fresh(partition.visible)
        stop = min(stop, partition.readable_end(start))
        if start >= stop:
            return False
        batch = partition.find(start)
        end = self._skip(batch, start, stop) or self._give(batch, start, stop, 1, min(self.messages, self.fresh))
        if end:
            cursor.take(start, end)
        return end > 0

    def _skip(self, batch: Batch | None, start: int, stop: int) -> int:
        """Pass over a stretch in which nothing is kept, or that has expired; returns its end, or 0."""
        if batch is None or not batch.holds_any(start, stop):
            # What compaction dropped is done. What damage may hide is not: only this process goes on.
            if not (self.state.damaged or self.partition.is_in_doubt or self.partition.unreadable):
                self.pass_over(self.group, self.partition, start, stop, self.now)
            return stop
        if not batch.has_expired(self.now):
            return 0
        end = min(batch.end, stop)
        self.expire(self.partition, start, end, self.now)
        return end

    def _give(self, batch: Batch | None, start: int, stop: int, count: int, most: int) -> int:
        """Lease a stretch as far as it fits; returns its end, or 0."""
        assert batch is not None
        cut = batch.cut(start, stop, most, self.bytes, not self.batches)
        if cut is None:
            return 0
        base, end, messages, deltas, content = cut
        end = min(end, stop)
        place = self.partition.number
        lease = _put_out(self.state, self.group, self.member, place, start, end, count, self.now)
        if deltas or base != start:
            lease.lay_out(base, deltas)
        receipt, until_us = lease.receipt, lease.until_us
        self.add(PulledBatch(place, base, messages, batch.timestamp_us, deltas, content, receipt, count, until_us))
        return end
