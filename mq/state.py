"""Everything a broker knows, changed by records only: live traffic and replay go through the same `apply`.

But for plain publishes, which live traffic applies without making a message of each (`publish`); tests compare the two.
Pure: no files, no clock, no loop, no logging. `apply` is total: a record whose channel or group is missing is
counted and set aside, it never raises. Deciding what records a command makes is in mq/deciders.py and the
modules that it names.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from typing import Any

from mq import snapshot
from mq.channel import Channel, Partition, Schedule
from mq.cursor import Cursor
from mq.group import Group
from mq.limits import Limits
from mq.producer import Answer
from mq.store import Dying, Store
from wal import record as records
from wal.joined import JoinedPart
from wal.pb import wal_pb2 as pb
from wal.record import Carried, Record

EXPIRED = "expired"  # the reason of a trim that the messages' own ttl made
TRANSACTION = "\0"  # before a producer's name: its transactions are numbered apart from its publishes


class State(Store):
    """One method per kind of record."""

    def __init__(self, limits: Limits, secret: bytes) -> None:
        """`secret` is random and new with each start: receipts are made from it."""
        super().__init__(limits, secret)
        self._told: pb.ChannelSnapshot | None = None  # as much of it as came: the rest is in the records that follow
        self._appliers: dict[type, Callable[[int, Any], None]] = {
            pb.ChannelCreated: self._channel_created,
            pb.ChannelUpdated: self._channel_updated,
            pb.ChannelDeleted: self._channel_deleted,
            pb.Published: lambda sequence, record: self._published(sequence, record, record.batch),
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

    # ---------------------------------------------------------------- what the log does

    def apply(self, sequence: int, record: Record) -> None:
        """Take in a fact; `sequence` is its place in the log."""
        if type(record) is Carried:
            head = record.record
            if isinstance(head, pb.Published):
                self._published(sequence, head, b"".join(record.batch))
            else:
                self._scheduled(sequence, head)
            return
        applier = self._appliers.get(type(record))
        if applier is None:
            self.set_aside += 1
        else:
            applier(sequence, record)

    # ---------------------------------------------------------------- channels

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
        channel.keep(record.settings)
        self._touch(channel)
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

    def publish(
        self,
        sequence: int,
        channel: Channel,
        partition: Partition,
        content: bytes,
        count: int,
        ttl_ms: int,
        part: JoinedPart,
    ) -> None:
        """A publish as it is queued, behind all others of its partition: what `apply` does with its record."""
        base, time_us, producer, number, crc = part
        partition.left_out_from = None
        self.store(channel, partition, sequence, base, count, content, (time_us, time_us), ttl_ms)
        if producer:
            channel.producers.note(producer, Answer(number, crc, partition.number, base, count, time_us), time_us)

    def _published(self, sequence: int, record: pb.Published, content: bytes) -> None:
        partition = self._partition(record.channel_id, record.partition)
        if partition is None:
            return
        if not partition.resume(record.base_offset):
            self.set_aside += 1
            return
        channel = self.channels_by_id[record.channel_id]
        times, deltas = (record.min_timestamp_us, record.max_timestamp_us), tuple(record.offset_deltas)
        self.store(
            channel, partition, sequence, record.base_offset, record.count, content, times, record.ttl_ms, deltas
        )
        for part in record.parts:
            if part.producer:
                answer = Answer(
                    part.sequence, part.crc, record.partition, part.base_offset, part.count, part.timestamp_us
                )
                channel.producers.note(part.producer, answer, part.timestamp_us)
        if record.schedule_id:
            self._unplan(channel, record.schedule_id)

    def _scheduled(self, sequence: int, record: pb.Scheduled) -> None:
        channel = self._known(record.channel_id)
        self.next_schedule_id = max(self.next_schedule_id, record.schedule_id + 1)
        if channel is None:
            return
        planned = Schedule(record.due_us, sequence, record.count)
        self.schedules.add(channel.schedules.plan(record.schedule_id, planned))
        if record.producer:
            answer = Answer(
                record.sequence, record.crc, record.partition, 0, record.count, record.timestamp_us, record.schedule_id
            )
            channel.producers.note(record.producer, answer, record.timestamp_us)

    def _schedule_cancelled(self, sequence: int, record: pb.ScheduleCancelled) -> None:
        channel = self._known(record.channel_id)
        if channel is not None:
            self._unplan(channel, record.schedule_id)

    def _dead_lettered(self, sequence: int, record: pb.DeadLettered) -> None:
        group = self._group(record.channel_id, record.group_id, record.partition)
        if group is not None:
            group.cursors[record.partition].ack(record.range.start, record.range.end)
        self._published(sequence, record.published, record.published.batch)

    def _atomic(self, sequence: int, record: pb.Atomic) -> None:
        channel_ids = []
        answers = []
        for item in records.items_of(record):
            self.apply(sequence, item)
            channel_ids.append(getattr(item, "channel_id", 0))
            if isinstance(item, pb.Published):
                answers.append((item.partition, item.base_offset, item.count))
        if not record.producer or not channel_ids or channel_ids[0] in self._awaited:
            return  # the snapshot that is awaited tells of the transaction
        first = self.channels_by_id.get(channel_ids[0])  # a retry is looked for there, and nowhere else
        if first is not None:
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
        self._touch(channel)
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
            group.keep(record.settings)

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
        gone = record.start_offset - partition.start_offset
        partition.trim(record.start_offset)
        buffer = partition.buffer
        while (
            len(buffer) and (first := next(iter(buffer))).end <= record.start_offset and first.sequence <= self.synced
        ):
            self.budget.drop_first(buffer)
        channel = self.channels_by_id[record.channel_id]
        skips = [0 if channel.groups else gone]
        for group in channel.groups.values():
            skips.append(group.cursors[record.partition].advance(record.start_offset))
            group.skipped += skips[-1]
            group.forget(record.partition, record.start_offset)
        if record.reason == EXPIRED:
            channel.expired += max(skips)

    def _expired(self, sequence: int, record: pb.Expired) -> None:
        channel = self._known(record.channel_id)
        if channel is None or record.partition >= len(channel.partitions):
            return
        self._touch(channel)
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
        self._told = snapshot.join(self._told, record)
        if self._told is None:
            self.set_aside += 1  # a part is lost: what is known without this snapshot stays
            return
        if self._told.more:
            return
        whole, self._told = self._told, None
        self._awaited.discard(whole.channel_id)
        channel = snapshot.restore(whole, self._producers())
        self._install(channel)
        self.schedules = self.schedules.joined(channel.schedules.in_order)
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
        for partition, start in self._leave_out(record.skip):
            partition.damaged.add(start, partition.next_offset)

    def _skip(self, sequence: int, record: pb.Skipped) -> None:
        self._leave_out(record.skip)

    def _leave_out(self, skip: int) -> list[tuple[Partition, int]]:
        """Give no offset and no id that a lost part of the log may have given."""
        self.next_channel_id += skip
        self.next_group_id += skip
        self.next_schedule_id += skip
        partitions = [partition for channel in self.channels_by_id.values() for partition in channel.partitions]
        return [(partition, partition.leave_out(skip)) for partition in partitions]
