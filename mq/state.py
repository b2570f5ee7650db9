"""Everything a broker knows, changed by records only: live traffic and replay go through the same `apply`.

Pure: no files, no clock, no loop, no logging. `apply` is total: a record whose channel or group is missing is
counted and set aside, it never raises. Deciding what records a command makes is in mq/decision.py and the
modules that it names.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from heapq import heappush
from itertools import count
from typing import Any, NamedTuple

from mq import snapshot
from mq.batch import Batch
from mq.buffer import Budget
from mq.channel import Channel, Fetched, Partition, Schedule
from mq.cursor import Cursor
from mq.errors import ChannelNotFound
from mq.group import Group
from mq.lease import Lease
from mq.limits import Limits
from mq.producer import Answer, Producers
from wal import record as records
from wal.pb import wal_pb2 as pb
from wal.record import Carried, Record

TRANSACTION = "\0"  # before a producer's name: its transactions are numbered apart from its publishes


class Dying(NamedTuple):
    """Messages that were delivered as often as they may be: to be dead-lettered."""

    channel: Channel
    group: Group
    partition: int
    start: int
    end: int
    delivery_count: int


class State:
    """Channels and what is in them. Durable but for what is said to be volatile."""

    def __init__(self, limits: Limits, secret: bytes) -> None:
        """`secret` is random and new with each start: receipts are made from it."""
        self.limits = limits
        self.secret = secret
        self.start_id = (int.from_bytes(secret[:5], "big") | 1) << 20  # generations of this start count on from here
        self.channels: dict[str, Channel] = {}
        self.channels_by_id: dict[int, Channel] = {}
        self.next_channel_id = 1
        self.next_group_id = 1
        self.next_schedule_id = 1

        self.synced = 0  # volatile, like everything below: records up to here are visible to pulls
        self.budget = Budget(limits.buffer_bytes)
        self.set_aside = 0  # records that could not be applied
        self.damaged: list[pb.Damaged] = []
        self.dying: deque[Dying] = deque()
        self.schedules: list[tuple[int, int, int]] = []  # heap of (due_us, schedule_id, channel_id)
        self.alarms: list[tuple[int, int, Group, Lease | None]] = []  # heap: a lease ends, or a retry is due
        self.numbers = count(1)  # of leases and alarms
        self._unsynced: deque[tuple[Batch, Partition]] = deque()
        self._fetched: OrderedDict[Partition, Fetched] = OrderedDict()
        self._fetched_bytes = 0
        self._awaited: set[int] = set()  # channels whose records are skipped until their snapshot comes
        self._appliers: dict[type, Callable[[int, Any], None]] = {
            pb.ChannelCreated: self._channel_created,
            pb.ChannelUpdated: self._channel_updated,
            pb.ChannelDeleted: self._channel_deleted,
            pb.Published: lambda sequence, record: self._published(sequence, record, [record.batch]),
            pb.Scheduled: self._scheduled,
            pb.ScheduleCancelled: self._schedule_cancelled,
            pb.DeadLettered: self._dead_lettered,
            pb.GroupCreated: self._group_created,
            pb.GroupUpdated: self._group_updated,
            pb.GroupDeleted: self._group_deleted,
            pb.Acked: self._acked,
            pb.Committed: self._committed,
            pb.Sought: self._sought,
            pb.Redelivered: self._redelivered,
            pb.Trimmed: self._trimmed,
            pb.Expired: self._expired,
            pb.Atomic: self._atomic,
            pb.SnapshotBegin: self._snapshot_begin,
            pb.ChannelSnapshot: self._channel_snapshot,
            pb.SnapshotEnd: lambda sequence, record: None,
            pb.Damaged: self._damaged,
            pb.Skipped: self._skip,
        }

    def channel(self, name: str) -> Channel:
        """Raises ChannelNotFound."""
        channel = self.channels.get(name)
        if channel is None:
            raise ChannelNotFound(f"there is no channel {name!r}")
        return channel

    # ---------------------------------------------------------------- what the log does

    def apply(self, sequence: int, record: Record) -> None:
        """Take in a fact; `sequence` is its place in the log."""
        if type(record) is Carried:
            head = record.record
            if isinstance(head, pb.Published):
                self._published(sequence, head, record.batch)
            else:
                self._scheduled(sequence, head)
            return
        applier = self._appliers.get(type(record))
        if applier is None:
            self.set_aside += 1
        else:
            applier(sequence, record)

    def advance(self, synced: int) -> list[Partition]:
        """Everything up to a sequence is durable: returns the partitions in which more is visible now."""
        self.synced = synced
        moved: dict[Partition, None] = {}
        unsynced = self._unsynced
        while unsynced and unsynced[0][0].sequence <= synced:
            batch, partition = unsynced.popleft()
            batch.content()  # joined here, once, rather than in the first pull
            partition.visible = max(partition.visible, batch.end)
            moved[partition] = None
        self.budget.evict(synced)
        return list(moved)

    def fetched(self, partition: Partition, offset: int, published: Sequence[pb.Published]) -> None:
        """Hand in what the log gave when asked for an offset; kept for a while, oldest goes first."""
        batches = [Batch(item, [item.batch], 0) for item in published]
        end = batches[-1].end if batches else partition.buffer.floor
        run = Fetched(offset, max(end, offset + 1), batches)
        old = self._fetched.pop(partition, None)
        self._fetched_bytes += run.size - (old.size if old else 0)
        partition.fetched = self._fetched[partition] = run
        while self._fetched_bytes > self.limits.fetched_bytes and len(self._fetched) > 1:
            oldest, gone = self._fetched.popitem(last=False)
            oldest.fetched = None
            self._fetched_bytes -= gone.size

    # ---------------------------------------------------------------- channels

    def _known(self, channel_id: int) -> Channel | None:
        channel = self.channels_by_id.get(channel_id)
        if channel is None:
            self.set_aside += channel_id not in self._awaited
            return None
        return None if channel_id in self._awaited else channel

    def _partition(self, channel_id: int, number: int) -> Partition | None:
        channel = self._known(channel_id)
        if channel is None:
            return None
        if number >= len(channel.partitions):
            self.set_aside += 1
            return None
        return channel.partitions[number]

    def _producers(self) -> Producers:
        limits = self.limits
        return Producers(limits.producers, limits.producer_window, limits.producer_expiry_us)

    def _install(self, channel: Channel) -> None:
        old = self.channels_by_id.get(channel.channel_id)
        if old is not None:
            self._drop(old)
        self.channels[channel.name] = self.channels_by_id[channel.channel_id] = channel
        self.next_channel_id = max(self.next_channel_id, channel.channel_id + 1)

    def _drop(self, channel: Channel) -> None:
        for partition in channel.partitions:
            self.budget.clear(partition.buffer)
            run = self._fetched.pop(partition, None)
            self._fetched_bytes -= run.size if run else 0
        del self.channels[channel.name], self.channels_by_id[channel.channel_id]

    def _channel_created(self, sequence: int, record: pb.ChannelCreated) -> None:
        if record.channel_id in self._awaited:
            return
        channel_id = record.channel_id
        channel = Channel(channel_id, record.name, record.settings, record.timestamp_us, self._producers())
        channel.partitions = [Partition(channel_id, number) for number in range(record.partitions)]
        self._install(channel)

    def _channel_updated(self, sequence: int, record: pb.ChannelUpdated) -> None:
        channel = self._known(record.channel_id)
        if channel is None:
            return
        channel.settings = record.settings
        for number in range(len(channel.partitions), record.partitions):
            channel.partitions.append(Partition(channel.channel_id, number))
            for group in channel.groups.values():
                group.cursors.append(Cursor(0))

    def _channel_deleted(self, sequence: int, record: pb.ChannelDeleted) -> None:
        self._awaited.discard(record.channel_id)
        channel = self.channels_by_id.get(record.channel_id)
        if channel is not None:
            self._drop(channel)

    # ---------------------------------------------------------------- publishing

    def _published(self, sequence: int, record: pb.Published, pieces: Sequence[bytes]) -> None:
        partition = self._partition(record.channel_id, record.partition)
        if partition is None:
            return
        if record.base_offset < partition.next_offset:
            self.set_aside += 1  # an offset never gets a second content
            return
        self._store(sequence, record, list(pieces), partition)
        channel = self.channels_by_id[record.channel_id]
        for part in record.parts:
            if part.producer:
                answer = Answer(
                    part.sequence, part.crc, record.partition, part.base_offset, part.count, part.timestamp_us
                )
                channel.producers.note(part.producer, answer, part.timestamp_us)
        if record.schedule_id:
            channel.schedules.pop(record.schedule_id, None)

    def _store(self, sequence: int, record: pb.Published, pieces: list[bytes], partition: Partition) -> None:
        last = partition.buffer.last
        if (
            last is not None
            and last.sequence == sequence
            and last.end == record.base_offset
            and last.ttl_ms == record.ttl_ms
            and not (last.deltas or record.offset_deltas)
        ):
            size = last.extend(record, pieces)
            partition.buffer.grow_last()
            self.budget.grow(size)
            batch = last
        else:
            batch = Batch(record, pieces, sequence, partition.buffer)
            size = batch.size
            partition.buffer.append(batch)
            self.budget.add(batch)
            if sequence > self.synced:
                self._unsynced.append((batch, partition))
        partition.next_offset = batch.end
        partition.bytes += size
        if not partition.start_timestamp_us:
            partition.start_timestamp_us = record.min_timestamp_us
        if sequence <= self.synced:
            partition.visible = batch.end
        if self.budget.used > self.budget.limit:
            self.budget.evict(self.synced)

    def share(self, partition: Partition, piece: bytes, count: int, sequence: int, timestamp_us: int) -> None:
        """More messages of the record applied last: what `apply` does with a plain publish that joins its batch."""
        last = partition.buffer.last
        assert last is not None
        assert last.sequence == sequence
        size = last.share(piece, count, timestamp_us)
        partition.buffer.grow_last()
        partition.next_offset = last.end
        partition.bytes += size
        self.budget.grow(size)
        if self.budget.used > self.budget.limit:
            self.budget.evict(self.synced)

    def _scheduled(self, sequence: int, record: pb.Scheduled) -> None:
        channel = self._known(record.channel_id)
        self.next_schedule_id = max(self.next_schedule_id, record.schedule_id + 1)
        if channel is None:
            return
        channel.schedules[record.schedule_id] = Schedule(record.due_us, sequence, record.count)
        heappush(self.schedules, (record.due_us, record.schedule_id, record.channel_id))
        if record.producer:
            answer = Answer(
                record.sequence, record.crc, record.partition, 0, record.count, record.timestamp_us, record.schedule_id
            )
            channel.producers.note(record.producer, answer, record.timestamp_us)

    def _schedule_cancelled(self, sequence: int, record: pb.ScheduleCancelled) -> None:
        channel = self._known(record.channel_id)
        if channel is not None:
            channel.schedules.pop(record.schedule_id, None)

    def _dead_lettered(self, sequence: int, record: pb.DeadLettered) -> None:
        group = self._group(record.channel_id, record.group_id, record.partition)
        if group is not None:
            group.cursors[record.partition].ack(record.range.start, record.range.end)
        self._published(sequence, record.published, [record.published.batch])

    def _atomic(self, sequence: int, record: pb.Atomic) -> None:
        first: Channel | None = None
        answers = []
        for item in records.items_of(record):
            self.apply(sequence, item)
            channel_id = getattr(item, "channel_id", 0)
            first = first or self.channels_by_id.get(channel_id)
            if isinstance(item, pb.Published):
                answers.append((item.partition, item.base_offset, item.count))
        if record.producer and first is not None and first.channel_id not in self._awaited:
            for partition, base, messages in answers or [(0, 0, 0)]:
                answer = Answer(record.sequence, record.crc, partition, base, messages, record.timestamp_us)
                first.producers.note(TRANSACTION + record.producer, answer, record.timestamp_us)

    # ---------------------------------------------------------------- groups

    def _group(self, channel_id: int, group_id: int, partition: int = 0) -> Group | None:
        channel = self._known(channel_id)
        if channel is None:
            return None
        group = channel.groups_by_id.get(group_id)
        if group is None or partition >= len(group.cursors):
            self.set_aside += 1
            return None
        return group

    def _group_created(self, sequence: int, record: pb.GroupCreated) -> None:
        self.next_group_id = max(self.next_group_id, record.group_id + 1)
        channel = self._known(record.channel_id)
        if channel is None:
            return
        group = Group(record.group_id, record.name, record.settings, record.channel_id, record.timestamp_us)
        group.cursors = [Cursor(0) for _ in channel.partitions]
        for at in record.start:
            if at.partition < len(group.cursors):
                group.cursors[at.partition] = Cursor(at.offset)
        channel.add_group(group)

    def _group_updated(self, sequence: int, record: pb.GroupUpdated) -> None:
        group = self._group(record.channel_id, record.group_id)
        if group is not None:
            group.settings = record.settings

    def _group_deleted(self, sequence: int, record: pb.GroupDeleted) -> None:
        group = self._group(record.channel_id, record.group_id)
        if group is not None:
            channel = self.channels_by_id[record.channel_id]
            del channel.groups[group.name], channel.groups_by_id[group.group_id]

    def _acked(self, sequence: int, record: pb.Acked) -> None:
        group = self._group(record.channel_id, record.group_id, record.partition)
        if group is not None:
            for done in record.ranges:
                group.cursors[record.partition].ack(done.start, done.end)

    def _committed(self, sequence: int, record: pb.Committed) -> None:
        group = self._group(record.channel_id, record.group_id, record.partition)
        if group is not None:
            group.cursors[record.partition].advance(record.offset)

    def _sought(self, sequence: int, record: pb.Sought) -> None:
        for at in record.positions:
            group = self._group(record.channel_id, record.group_id, at.partition)
            if group is not None:
                group.forget(at.partition, 1 << 63)
                group.cursors[at.partition].seek(at.offset)

    def _redelivered(self, sequence: int, record: pb.Redelivered) -> None:
        group = self._group(record.channel_id, record.group_id, record.partition)
        if group is None:
            return
        channel = self.channels_by_id[record.channel_id]
        for item in record.retries:
            is_last = group.is_exhausted(item.delivery_count) and not channel.is_dead_letter
            cursor = group.cursors[record.partition]
            kept = cursor.retry(item.start, item.end, item.delivery_count, item.not_before_us, is_last)
            for start, end in kept if is_last else ():
                self.dying.append(Dying(channel, group, record.partition, start, end, item.delivery_count))
            if not is_last:
                heappush(self.alarms, (item.not_before_us, next(self.numbers), group, None))

    # ---------------------------------------------------------------- retention

    def _trimmed(self, sequence: int, record: pb.Trimmed) -> None:
        partition = self._partition(record.channel_id, record.partition)
        if partition is None or record.start_offset <= partition.start_offset:
            return
        partition.trim(record.start_offset)
        buffer = partition.buffer
        while (
            len(buffer) and (first := next(iter(buffer))).end <= record.start_offset and first.sequence <= self.synced
        ):
            self.budget.drop_first(buffer)
        for group in self.channels_by_id[record.channel_id].groups.values():
            group.skipped += group.cursors[record.partition].advance(record.start_offset)
            group.forget(record.partition, record.start_offset)

    def _expired(self, sequence: int, record: pb.Expired) -> None:
        channel = self._known(record.channel_id)
        if channel is None or record.partition >= len(channel.partitions):
            return
        for gone in record.ranges:
            channel.expired += gone.end - gone.start
            for group in channel.groups.values():
                group.skipped += group.cursors[record.partition].ack(gone.start, gone.end)

    # ---------------------------------------------------------------- snapshots and damage

    def _snapshot_begin(self, sequence: int, record: pb.SnapshotBegin) -> None:
        # A run that was cut short follows the state it describes: nothing of it has to be awaited.
        self._awaited.update(number for number in record.channel_ids if number not in self.channels_by_id)
        self.next_channel_id = max(self.next_channel_id, record.next_channel_id)
        self.next_group_id = max(self.next_group_id, record.next_group_id)
        self.next_schedule_id = max(self.next_schedule_id, record.next_schedule_id)

    def _channel_snapshot(self, sequence: int, record: pb.ChannelSnapshot) -> None:
        self._awaited.discard(record.channel_id)
        channel = snapshot.restore(record, self._producers())
        self._install(channel)
        for number, planned in channel.schedules.items():
            heappush(self.schedules, (planned.due_us, number, channel.channel_id))
        for group in channel.groups.values():
            self.next_group_id = max(self.next_group_id, group.group_id + 1)
            for partition, cursor in enumerate(group.cursors):
                for retry in cursor.retries:
                    if retry.is_leased:
                        self.dying.append(Dying(channel, group, partition, retry.start, retry.end, retry.count))
                    else:
                        heappush(self.alarms, (retry.not_before_us, next(self.numbers), group, None))

    def _damaged(self, sequence: int, record: pb.Damaged) -> None:
        self.damaged.append(record)
        for partition, start, end in self._leave_out(record.skip):
            partition.damaged.add(start, end)

    def _skip(self, sequence: int, record: pb.Skipped) -> None:
        self._leave_out(record.skip)

    def _leave_out(self, skip: int) -> list[tuple[Partition, int, int]]:
        """Give no offset and no id that a damaged range of the log may have given."""
        self.next_channel_id += skip
        self.next_group_id += skip
        self.next_schedule_id += skip
        left_out = []
        for channel in self.channels_by_id.values():
            for partition in channel.partitions:
                start = partition.next_offset
                partition.next_offset = partition.visible = start + skip
                left_out.append((partition, start, start + skip))
        return left_out
