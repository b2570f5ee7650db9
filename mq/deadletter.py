"""Dead letters: messages that nobody could handle go to `<channel>.dlq` with a note of where they come from.

Pure: no I/O, no clock. One record, DeadLettered, is the ack in the origin and the publish to the dead-letter
channel at once, so a crash leaves a message in exactly one of the two places.
"""

from __future__ import annotations

from mq.batch import Cut
from mq.channel import DLQ_SUFFIX, Channel, Missing, Partition
from mq.decision import Decision
from mq.errors import InvalidArgument
from mq.group import Group
from mq.state import State
from mq.store import Dying
from wal.pb.wal_pb2 import Batch, ChannelCreated, DeadLettered, OffsetRange, Part, Published
from wal.record import Record

EXHAUSTED = "max-deliver"  # the reason where no member gave one


class Burial:
    """Collects the records that move messages of one channel; raises Missing before anything is changed."""

    def __init__(self, state: State, channel: Channel, now: int) -> None:
        if channel.is_dead_letter:
            raise InvalidArgument(f"{channel.name!r} is a dead-letter channel and has none of its own")
        self._channel = channel
        self._now = now
        self._dlq = state.channels.get(channel.name + DLQ_SUFFIX)
        self._next = self._dlq.partitions[0].next_offset if self._dlq else 0
        self._settings = state.limits.channel
        self._dlq_id = self._dlq.channel_id if self._dlq else state.next_channel_id
        self._letters: list[DeadLettered] = []

    def add(self, group: Group, partition: Partition, start: int, end: int, delivery_count: int, reason: str) -> int:
        """Move a range; returns how many messages. Raises Missing and DataLoss."""
        moved = 0
        while start < end:
            partition.check_readable(start)
            batch = partition.find(start)
            cut = batch.cut(start, end, 1 << 62, 1 << 62, True) if batch is not None and batch.base < end else None
            if cut is None:
                break
            letter = DeadLettered(
                channel_id=self._channel.channel_id,
                group_id=group.group_id,
                partition=partition.number,
                range=OffsetRange(start=start, end=min(cut.end, end)),
                delivery_count=delivery_count,
                reason=reason,
                published=self._published(cut, self._labels(group, partition, delivery_count, reason)),
                timestamp_us=self._now,
            )
            self._letters.append(letter)
            moved += cut.messages
            start = cut.end
        return moved

    def records(self) -> list[Record]:
        if not self._letters:
            return []
        created = ChannelCreated(
            channel_id=self._dlq_id,
            name=self._channel.name + DLQ_SUFFIX,
            partitions=1,
            settings=self._settings,
            timestamp_us=self._now,
        )
        return [*([] if self._dlq else [created]), *self._letters]

    def _labels(self, group: Group, partition: Partition, delivery_count: int, reason: str) -> list[tuple[str, bytes]]:
        values = {
            "mq-origin-channel": self._channel.name,
            "mq-origin-partition": str(partition.number),
            "mq-origin-group": group.name,
            "mq-delivery-count": str(delivery_count),
            "mq-reason": reason,
        }
        return [(name, value.encode()) for name, value in values.items()]

    def _published(self, cut: Cut, labels: list[tuple[str, bytes]]) -> Published:
        batch = Batch.FromString(cut.batch)
        for index, message in enumerate(batch.messages):
            for name, value in labels:
                message.headers.add(name=name, value=value)
            offset = cut.base + (cut.deltas[index] if cut.deltas else index)
            message.headers.add(name="mq-origin-offset", value=str(offset).encode())
        base, self._next = self._next, self._next + cut.messages
        return Published(
            channel_id=self._dlq_id,
            partition=0,
            base_offset=base,
            count=cut.messages,
            min_timestamp_us=self._now,
            max_timestamp_us=self._now,
            parts=[Part(base_offset=base, count=cut.messages, timestamp_us=self._now)],
            batch=batch.SerializeToString(),
        )


def decide_burial(state: State, dying: Dying, now: int) -> Decision:
    """Dead-letter what is exhausted, if it still is. Raises Missing and DataLoss."""
    channel = state.channels_by_id.get(dying.channel.channel_id)
    group = channel.groups_by_id.get(dying.group.group_id) if channel else None
    if channel is None or group is None:
        return Decision([], None)
    burial = Burial(state, channel, now)
    cursor = group.cursors[dying.partition]
    for start, end in cursor.retries.within(dying.start, dying.end):
        retry = cursor.retries.at(start)
        if retry is None or retry.count != dying.delivery_count:
            continue
        try:
            burial.add(group, channel.partitions[dying.partition], start, end, retry.count, EXHAUSTED)
        except Missing:
            if not burial.records():
                raise
            state.dying.append(dying)  # what was found goes first, and is not needed again for the rest
            break
    return Decision(burial.records(), None)
