"""What a broker holds: its channels, their ids, and the batches in memory. Pure: no I/O, no clock.

The records that change it are applied in mq/state.py.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from heapq import heappop
from itertools import count
from typing import NamedTuple

from mq.batch import Batch
from mq.buffer import Budget
from mq.channel import Channel, Fetched, Partition
from mq.errors import ChannelNotFound
from mq.group import Group
from mq.lease import Lease, Receipts
from mq.limits import Limits
from mq.producer import Producers
from mq.timetable import Timetable
from wal.pb import wal_pb2 as pb


class Dying(NamedTuple):
    """Messages that were delivered as often as they may be: to be dead-lettered."""

    channel: Channel
    group: Group
    partition: int
    start: int
    end: int
    delivery_count: int


class Store:
    """Durable but for what is said to be volatile."""

    def __init__(self, limits: Limits, secret: bytes) -> None:
        """`secret` is random and new with each start: receipts are made from it."""
        self.limits = limits
        self.receipts = Receipts(secret)
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
        self.schedules = Timetable()  # of all channels, and when to try those again that could not be read
        self.crowded: dict[int, None] = {}  # limited channels in which something happened: they may hold too much now
        self.aging: list[tuple[int, int]] = []  # heap of (due_us, channel_id): the oldest messages come of age
        self.alarms: list[tuple[int, int, Group, Lease | None]] = []  # heap: a lease ends, or a retry is due
        self.numbers = count(1)  # of alarms
        self._unsynced: deque[tuple[Batch, Partition]] = deque()
        self._fetched: OrderedDict[Fetched, Partition] = OrderedDict()
        self._fetched_bytes = 0
        self._awaited: set[int] = set()  # channels whose records are skipped until their snapshot comes

    def channel(self, name: str) -> Channel:
        """Raises ChannelNotFound."""
        channel = self.channels.get(name)
        if channel is None:
            raise ChannelNotFound(f"there is no channel {name!r}")
        return channel

    @property
    def buffered_bytes(self) -> int:
        """Messages in memory: what was published last, and what was read back."""
        return self.budget.used + self._fetched_bytes

    def same_channel(self, name: str, channel_id: int) -> Channel:
        """The channel of a name, which is to be the one with the id, unless that is 0. Raises ChannelNotFound."""
        channel = self.channel(name)
        if channel_id and channel.channel_id != channel_id:
            raise ChannelNotFound(f"channel {name!r} was deleted; the one that has its name now is another")
        return channel

    def hide(self) -> None:
        """Serve nothing of what is there. It stays, and so does what the groups have still to do."""
        self.dying.clear()
        for channel in self.channels.values():
            for partition in channel.partitions:
                partition.hidden = partition.next_offset
            for group in channel.groups.values():
                for cursor, partition in zip(group.cursors, channel.partitions, strict=True):
                    cursor.next = max(cursor.next, partition.hidden)
                    for retry in list(cursor.retries):
                        cursor.retries.lease(retry.start, retry.end)

    def next_alarm_us(self) -> int:
        """When the first lease that is out ends, or a retry is due; 0: never. Forgets those before it that are over."""
        alarms = self.alarms
        while alarms and (lease := alarms[0][3]) is not None and lease.is_over:
            heappop(alarms)
        return alarms[0][0] if alarms else 0

    def advance(self, synced: int) -> list[Partition]:
        """Everything up to a sequence is durable, or will be before anybody hears of it, or the log has failed.

        Returns the partitions in which more is visible now.
        """
        moved: dict[Partition, None] = {}
        unsynced = self._unsynced
        while unsynced and unsynced[0][0].sequence <= synced:
            batch, partition = unsynced.popleft()
            batch.content()  # joined here, once, rather than in the first pull
            partition.visible = max(partition.visible, batch.end)
            moved[partition] = None
        self.synced = synced
        self.budget.evict(synced)
        return list(moved)

    def fetched(self, partition: Partition, offset: int, published: Sequence[pb.Published], floor: int) -> None:
        """Hand in what the log gave when asked for an offset; kept for a while, oldest goes first.

        `floor`: what lies before it had left memory when the log was asked, so nothing of that was overlooked.
        """
        batches = [Batch.read_back(item) for item in published]
        end = batches[-1].end if batches else floor
        run = Fetched(offset, max(end, offset + 1), batches)
        partition.fetched.append(run)
        self._fetched[run] = partition
        self._fetched_bytes += run.size
        while self._fetched_bytes > self.limits.fetched_bytes and len(self._fetched) > 1:
            oldest, owner = self._fetched.popitem(last=False)
            owner.fetched.remove(oldest)
            self._fetched_bytes -= oldest.size

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
        namesake = self.channels.get(channel.name)
        if namesake is not None:
            # A creation proves that what had its name before was deleted, even where that record is lost.
            if namesake.channel_id > channel.channel_id:
                self.set_aside += 1
                return
            self._drop(namesake)
        self.channels[channel.name] = self.channels_by_id[channel.channel_id] = channel
        self.next_channel_id = max(self.next_channel_id, channel.channel_id + 1)
        self._touch(channel)

    def _touch(self, channel: Channel) -> None:
        """Something happened that may let retention act."""
        if channel.is_limited:
            self.crowded[channel.channel_id] = None

    def _drop(self, channel: Channel) -> None:
        for partition in channel.partitions:
            self.budget.clear(partition.buffer)
            for run in partition.fetched:
                del self._fetched[run]
                self._fetched_bytes -= run.size
        if 8 * len(channel.schedules) > len(self.schedules):
            self.schedules = self.schedules.without(channel.channel_id)
        else:
            for entry in channel.schedules.in_order:
                self.schedules.remove(entry)
        del self.channels_by_id[channel.channel_id]
        if self.channels.get(channel.name) is channel:
            del self.channels[channel.name]

    def _unplan(self, channel: Channel, schedule_id: int) -> None:
        """A delayed publish is out, or cancelled."""
        entry = channel.schedules.drop(schedule_id)
        if entry is not None:
            self.schedules.remove(entry)

    def store(
        self,
        channel: Channel,
        partition: Partition,
        sequence: int,
        base: int,
        count: int,
        content: bytes,
        times: tuple[int, int],
        ttl_ms: int,
        deltas: tuple[int, ...] = (),
    ) -> None:
        """Take in the messages of a publish. One with the sequence of the publish before shares a record with it."""
        buffer, ladder, budget = partition.buffer, partition.ladder, self.budget
        last = buffer.last
        if (
            last is not None
            and last.sequence == sequence
            and last.end == base
            and last.ttl_ms == ttl_ms
            and not (last.deltas or deltas)
        ):
            last.extend(count, content, times)
            buffer.grow_last()
            budget.used += len(content)
            end = last.end
        else:
            batch = Batch(base, count, content, sequence, times, ttl_ms, deltas, buffer)
            ladder.note(base, partition.bytes)
            buffer.append(batch)
            budget.add(batch)
            end = batch.end
            if sequence > self.synced:
                self._unsynced.append((batch, partition))
        ladder.reach(times[1], ttl_ms)
        partition.next_offset = end
        partition.bytes += len(content)
        if not partition.start_timestamp_us:
            partition.start_timestamp_us = times[0]
        if sequence <= self.synced:
            partition.visible = end
        if ttl_ms and not channel.has_ttl:
            channel.has_ttl = channel.is_limited = True
        if channel.is_limited:
            self.crowded[channel.channel_id] = None
        if budget.used > budget.limit:
            budget.evict(self.synced)
