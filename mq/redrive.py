"""Decides the way back from a dead-letter channel: one Atomic record publishes messages and ends them there.

Pure: no I/O, no clock. What was sent back counts as acked by the group `mq-redrive`, and what all lies before the
first letter that stays is trimmed. So a crash leaves each message in exactly one of the two places.
"""

from __future__ import annotations

from mq.channel import REDRIVE_GROUP, Channel, Missing, Partition
from mq.command import Redrive
from mq.decision import Decision
from mq.errors import InvalidArgument
from mq.publication import Offsets, partition_of
from mq.ranges import RangeSet
from mq.reply import RedriveReply
from mq.state import State
from wal.pb.wal_pb2 import (
    Acked,
    Batch,
    BatchMessage,
    GroupCreated,
    OffsetRange,
    Part,
    Position,
    Published,
    Trimmed,
)
from wal.record import Record, atomic

MOST_BYTES = 2 << 20  # of messages in one record
ORIGIN_CHANNEL, ORIGIN_PARTITION, REASON = "mq-origin-channel", "mq-origin-partition", "mq-reason"
NOTES = {ORIGIN_CHANNEL, ORIGIN_PARTITION, REASON, "mq-origin-offset", "mq-origin-group", "mq-delivery-count"}


def decide_redrive(state: State, command: Redrive, now: int) -> Decision:
    """Raises ChannelNotFound, DataLoss, and Missing while nothing is collected yet."""
    channel = state.channel(command.channel)
    if not channel.is_dead_letter:
        raise InvalidArgument(f"{command.channel!r} is no dead-letter channel")
    target = state.channel(command.to) if command.to else None
    if target is channel:
        raise InvalidArgument(f"{command.channel!r} can't be sent back to itself")
    work = _Redrive(state, channel, target, command, now)
    work.run()
    return Decision(work.records(), RedriveReply(work.moved, work.left, work.offset, work.is_done()))


class _Redrive:
    """One slice of a dead-letter channel."""

    def __init__(self, state: State, channel: Channel, target: Channel | None, command: Redrive, now: int) -> None:
        self._state = state
        self._channel = channel
        self._target = target
        self._command = command
        self._now = now
        self._partition: Partition = channel.partitions[0]
        group = channel.groups.get(REDRIVE_GROUP)
        cursor = group.cursors[0] if group else None
        self._acked = cursor.acked if cursor else RangeSet()  # by earlier slices; it may be long, and is only asked
        self._done_before = max(cursor.offset if cursor else 0, self._partition.start_offset)
        self._gone = RangeSet()  # of this slice
        self._letters: dict[tuple[Channel, int], list[BatchMessage]] = {}
        self._bytes = 0
        self.moved = 0
        self.left = 0  # looked at and not sent back
        self.offset = max(command.start_offset, self._partition.start_offset)

    def is_done(self) -> bool:
        return self.offset >= self._partition.visible

    def run(self) -> None:
        most = self._command.max_messages or self._state.limits.pull_messages
        while not self.is_done() and self.moved + self.left < most and self._bytes < MOST_BYTES:
            self.offset = self._done_to(self.offset)
            if self.is_done():
                break
            try:
                self._slice(most - self.moved - self.left)
            except Missing:
                if not (self.moved or self.left or self._gone):
                    raise
                break

    def _done_to(self, offset: int) -> int:
        """The first offset from there on that no earlier slice was done with."""
        return self._acked.end_of(max(offset, self._done_before))

    def _slice(self, most: int) -> None:
        """Messages of one batch."""
        start, stop = self.offset, self._acked.next_start(self.offset, self._partition.readable_end(self.offset))
        batch = self._partition.find(start)
        if batch is None or batch.base >= stop or batch.has_expired(self._now):
            self._pass_over(start, stop if batch is None or batch.base >= stop else min(batch.end, stop))
            return
        cut = batch.cut(start, stop, most, MOST_BYTES, True)
        if cut is None:
            self._pass_over(start, stop)
            return
        age_ms = (self._now - batch.max_timestamp_us) // 1000
        is_of_age = self._command.min_age_ms <= age_ms and age_ms <= (self._command.max_age_ms or age_ms)
        self._pass_over(start, cut.base)
        for index, message in enumerate(Batch.FromString(cut.batch).messages):
            offset = cut.base + (cut.deltas[index] if cut.deltas else index)
            place = self._place(message) if is_of_age else None
            if place is None:
                self.left += 1
            else:
                self._take(message, place)
                self._gone.add(offset, offset + 1)
        self.offset = cut.end

    def _pass_over(self, start: int, end: int) -> None:
        """Nothing is there that could be sent back."""
        self._gone.add(start, end)
        self.offset = end

    def _place(self, message: BatchMessage) -> tuple[Channel, int] | None:
        """Where a message goes; None: it stays, because it is not asked for or its origin is no more."""
        notes = {header.name: header.value.decode(errors="replace") for header in message.headers}
        if self._command.reason and notes.get(REASON) != self._command.reason:
            return None
        target = self._target or self._state.channels.get(notes.get(ORIGIN_CHANNEL, ""))
        if target is None or target is self._channel:
            return None
        partitions = len(target.partitions)
        origin = notes.get(ORIGIN_PARTITION, "")
        if notes.get(ORIGIN_CHANNEL) == target.name and origin.isdecimal() and int(origin) < partitions:
            return target, int(origin)
        return target, partition_of(message.key, partitions) if message.HasField("key") else 0

    def _take(self, message: BatchMessage, place: tuple[Channel, int]) -> None:
        kept = [header for header in message.headers if header.name not in NOTES]
        plain = BatchMessage(content=message.content, headers=kept)
        if message.HasField("key"):
            plain.key = message.key
        self._letters.setdefault(place, []).append(plain)
        self._bytes += plain.ByteSize()
        self.moved += 1

    # ---------------------------------------------------------------- the record

    def records(self) -> list[Record]:
        if not self._gone:
            return []
        offsets = Offsets()
        items: list[Record] = [
            self._published(channel, number, messages, offsets) for (channel, number), messages in self._letters.items()
        ]
        return [atomic([*items, *self._ending()], timestamp_us=self._now)]

    def _published(self, channel: Channel, number: int, messages: list[BatchMessage], offsets: Offsets) -> Published:
        base = offsets.take(channel.partitions[number], len(messages))
        return Published(
            channel_id=channel.channel_id,
            partition=number,
            base_offset=base,
            count=len(messages),
            min_timestamp_us=self._now,
            max_timestamp_us=self._now,
            ttl_ms=channel.settings.ttl_ms,
            parts=[Part(base_offset=base, count=len(messages), timestamp_us=self._now)],
            batch=Batch(messages=messages).SerializeToString(),
        )

    def _ending(self) -> list[Record]:
        """What takes the messages out of the dead-letter channel."""
        channel_id, start = self._channel.channel_id, self._partition.start_offset
        group = self._channel.groups.get(REDRIVE_GROUP)
        group_id = group.group_id if group else self._state.next_group_id
        records: list[Record] = []
        if group is None:
            places = [Position(partition=0, offset=start)]
            created = GroupCreated(channel_id=channel_id, group_id=group_id, name=REDRIVE_GROUP, start=places)
            created.settings.CopyFrom(self._state.limits.group)
            created.timestamp_us = self._now
            records.append(created)
        ranges = [OffsetRange(start=first, end=end) for first, end in self._gone]
        records.append(
            Acked(channel_id=channel_id, group_id=group_id, partition=0, ranges=ranges, timestamp_us=self._now)
        )
        before, reached = -1, start
        while before < reached:
            before, reached = reached, self._gone.end_of(self._done_to(reached))
        if reached > start:
            records.append(
                Trimmed(channel_id=channel_id, start_offset=reached, reason="redriven", timestamp_us=self._now)
            )
        return records
