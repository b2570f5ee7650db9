"""A channel and its partitions. Pure: no I/O, no clock.

Durable: settings, offsets, damaged ranges, groups, producers, schedules; changed by records only. Volatile: what is
visible to pulls, and the batches in memory, which the log can give back.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from mq.batch import Batch
from mq.buffer import Buffer
from mq.errors import DataLoss, GroupNotFound, InvalidArgument
from mq.group import Group
from mq.ladder import Ladder
from mq.producer import Producers
from mq.ranges import RangeSet
from mq.timetable import Entry, Timetable
from wal.pb.wal_pb2 import ChannelSettings

DLQ_SUFFIX = ".dlq"
REDRIVE_GROUP = "mq-redrive"  # of a dead-letter channel: what was sent back counts as acked by it


class Missing(Exception):
    """The batch at an offset is not in memory: read it from the log, hand it in with `fetched`, decide again."""

    def __init__(self, partition: Partition, offset: int) -> None:
        super().__init__(f"partition {partition.number} at {offset}")
        self.partition = partition
        self.offset = offset
        self.reached: dict[int, int] = {}  # a reader's positions, behind what it need not look at again


class Fetched:
    """Batches read back from the log: everything that is kept of start <= offset < end."""

    __slots__ = ("batches", "end", "ends", "size", "start")

    def __init__(self, start: int, end: int, batches: list[Batch]) -> None:
        self.start = start
        self.end = end
        self.batches = batches
        self.ends = [batch.end for batch in batches]
        self.size = sum(batch.size for batch in batches)


class Partition:
    def __init__(self, channel_id: int, number: int, start_offset: int = 0, next_offset: int = 0) -> None:
        self.channel_id = channel_id
        self.number = number
        self.start_offset = start_offset
        self.next_offset = next_offset
        self.bytes = 0
        self.start_timestamp_us = 0
        self.ladder = Ladder()
        self.damaged = RangeSet()

        self.left_out_from: int | None = None  # see `leave_out`; volatile, as is all below
        self.hidden = 0  # what lies before is there, and not served
        self.visible = next_offset  # pulls see nothing at or after it: it is not synced yet
        self.buffer = Buffer(next_offset)
        self.fetched: list[Fetched] = []  # several, because readers are at several places
        self.unreadable = RangeSet()  # found damaged by reading, since the start of the process
        self.is_in_doubt = False  # damage was found in the log: what is not there may be lost to it

    @property
    def first(self) -> int:
        """The first offset that is served."""
        return max(self.start_offset, self.hidden)

    def find(self, offset: int) -> Batch | None:
        """The visible batch that holds the offset, or the next one. Raises Missing."""
        if offset < self.buffer.floor:
            fetched = next((run for run in self.fetched if run.start <= offset < run.end), None)
            if fetched is None:
                if offset < self.visible:
                    raise Missing(self, offset)
                return None
            index = bisect_right(fetched.ends, offset)
            if index < len(fetched.batches):
                return fetched.batches[index]
            return self.find(fetched.end)
        batch = self.buffer.find(offset)
        return batch if batch is not None and batch.end <= self.visible else None

    def readable_end(self, offset: int) -> int:
        """How far pulls may go from an offset: to the next damage, or to what is not synced yet. Raises DataLoss."""
        end = self.visible
        if self.damaged or self.unreadable:
            self._check_readable(offset)
            end = min(end, self.damaged.next_start(offset, end), self.unreadable.next_start(offset, end))
        return end

    def _check_readable(self, offset: int) -> None:
        """Raises DataLoss where the offset lies in a damaged range."""
        for ranges in (self.damaged, self.unreadable):
            found = ranges.range_at(offset)
            if found:
                start, end = found
                text = f"offsets {start} to {end - 1} of partition {self.number} are lost to damage"
                raise DataLoss(text, self.number, start, end)

    def leave_out(self, most: int) -> int:
        """Records are lost that may have held so many offsets; returns the first that is left out.

        It stands where nothing of the partition follows in the log: then the next publish comes behind it. A record
        that does follow tells how much was lost in truth, see `resume`. A snapshot need not know: whatever was written
        before it is replayed when it is taken, so what follows it comes behind what is left out.
        """
        if self.left_out_from is None:
            self.left_out_from = self.next_offset
        self.next_offset = self.visible = self.next_offset + most
        return self.left_out_from

    def resume(self, base: int) -> bool:
        """Whether a record may begin at an offset: one that has a content never gets a second.

        Within what is left out it may, and then nothing from there on was lost.
        """
        if base < self.next_offset:
            if self.left_out_from is None or base < self.left_out_from:
                return False
            self.damaged.remove(base, self.next_offset)
            self.next_offset = self.visible = base
        self.left_out_from = None
        return True

    def trim(self, start_offset: int) -> None:
        """Everything before the offset is gone."""
        end = self.next_offset
        if self.left_out_from is not None:
            end = self.left_out_from  # all bytes that are known lie before it
            self.left_out_from = max(end, start_offset)
        self.bytes = self.ladder.trim(self.start_offset, start_offset, end, self.bytes)
        self.start_offset = start_offset
        self.start_timestamp_us = 0
        self.damaged.remove(0, start_offset)
        self.unreadable.remove(0, start_offset)
        if start_offset > self.buffer.floor and not len(self.buffer):
            self.buffer.floor = start_offset


class Schedule(NamedTuple):
    """A delayed publish: its content is in the log, in the record with that sequence."""

    due_us: int
    sequence: int
    messages: int


class Schedules(dict[int, Schedule]):
    """The delayed publishes of a channel, by their ids. There may be a million: nobody is to walk over all of them."""

    __slots__ = ("_channel_id", "changed", "in_order", "messages")

    def __init__(self, channel_id: int) -> None:
        super().__init__()
        self._channel_id = channel_id
        self.in_order = Timetable()
        self.messages = 0  # in all of them
        self.changed: set[int] | None = None  # since somebody wanted to know: what was planned, and what is no more

    def plan(self, schedule_id: int, schedule: Schedule) -> Entry:
        self.drop(schedule_id)
        self[schedule_id] = schedule
        self.messages += schedule.messages
        if self.changed is not None:
            self.changed.add(schedule_id)
        entry = (schedule.due_us, schedule_id, self._channel_id)
        self.in_order.add(entry)
        return entry

    def restore(self, known: Iterable[tuple[int, Schedule]]) -> None:
        """What a snapshot tells, into an empty one."""
        self.update(known)
        self.messages = sum(planned.messages for planned in self.values())
        self.in_order = Timetable((planned.due_us, number, self._channel_id) for number, planned in self.items())

    def drop(self, schedule_id: int) -> Entry | None:
        """It is out, or cancelled; one that is not there is no error."""
        planned = self.pop(schedule_id, None)
        if planned is None:
            return None
        self.messages -= planned.messages
        if self.changed is not None:
            self.changed.add(schedule_id)
        entry = (planned.due_us, schedule_id, self._channel_id)
        self.in_order.remove(entry)
        return entry


class Channel:
    def __init__(
        self, channel_id: int, name: str, settings: ChannelSettings, created_us: int, producers: Producers
    ) -> None:
        self.channel_id = channel_id
        self.name = name
        self.has_ttl = False  # there are, or were, messages that expire
        self.keep(settings)
        self.created_us = created_us
        self.partitions: list[Partition] = []
        self.groups: dict[str, Group] = {}
        self.groups_by_id: dict[int, Group] = {}
        self.producers = producers
        self.schedules = Schedules(channel_id)
        self.expired = 0  # messages, since the start of the process
        self.turn = 0  # of batches that may go to any partition
        self.aging_us = 0  # when its oldest messages come of age, as far as somebody waits for that

    def keep(self, settings: ChannelSettings) -> None:
        """How much is kept, from now on."""
        self.settings = settings
        self.is_limited = bool(
            settings.max_age_ms or settings.max_bytes or settings.max_messages or settings.drop_acked or self.has_ttl
        )

    @property
    def is_dead_letter(self) -> bool:
        return self.name.endswith(DLQ_SUFFIX)

    def partition(self, number: int) -> Partition:
        """Raises InvalidArgument."""
        if not 0 <= number < len(self.partitions):
            raise InvalidArgument(f"channel {self.name!r} has {len(self.partitions)} partitions, {number} is not one")
        return self.partitions[number]

    def group(self, name: str) -> Group:
        """Raises GroupNotFound."""
        group = self.groups.get(name)
        if group is None:
            raise GroupNotFound(f"channel {self.name!r} has no group {name!r}")
        return group

    def same_group(self, name: str, group_id: int) -> Group:
        """The group of a name, which is to be the one with the id, unless that is 0. Raises GroupNotFound."""
        group = self.group(name)
        if group_id and group.group_id != group_id:
            raise GroupNotFound(f"group {name!r} was deleted; the one that has its name now is another")
        return group

    def add_group(self, group: Group) -> None:
        namesake = self.groups.get(group.name)
        if namesake is not None:  # it was deleted, even where that record is lost
            self.groups_by_id.pop(namesake.group_id, None)
        self.groups[group.name] = self.groups_by_id[group.group_id] = group
