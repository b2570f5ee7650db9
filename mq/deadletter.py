"""Dead letters: messages that nobody could handle go to `<channel>.dlq` with a note of where they come from.

Pure: no I/O, no clock. One record, DeadLettered, is the ack in the origin and the publish to the dead-letter
channel at once, so a crash leaves a message in exactly one of the two places.
"""

from __future__ import annotations

from mq.batch import Cut
from mq.channel import DLQ_SUFFIX, Channel, Missing, Partition
from mq.decision import Decision
from mq.errors import DataLoss, InvalidArgument
from mq.group import Group
from mq.state import State
from mq.store import Dying
from wal.pb.wal_pb2 import Batch, ChannelCreated, DeadLettered, OffsetRange, Part, Published
from wal.record import Record

EXHAUSTED = "max-deliver"  # the reason where no member gave one
MOST_MESSAGES = 500  # in one record: each gets its origin written on it, which may be more than its content
MOST_BYTES = 4 << 20  # of content in one record, unless a single message has more
DECIDED_BYTES = 8 << 20  # by one decision about what is exhausted: the rest waits its turn


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
        self.bytes = 0  # of the messages moved

    def add(self, group: Group, partition: Partition, start: int, end: int, delivery_count: int, reason: str) -> int:
        """Move a range; returns how many messages. Raises Missing and DataLoss."""
        moved = 0
        while start < end:
            messages, start = self.add_some(group, partition, start, end, delivery_count, reason)
            moved += messages
        return moved

    def add_some(
        self, group: Group, partition: Partition, start: int, end: int, delivery_count: int, reason: str
    ) -> tuple[int, int]:
        """Move the first of a range; returns how many, and where the rest starts. Raises Missing and DataLoss."""
        stop = min(end, partition.readable_end(start))
        batch = partition.find(start)
        cut = (
            batch.cut(start, stop, MOST_MESSAGES, MOST_BYTES, True) if batch is not None and batch.base < stop else None
        )
        if cut is None:
            return 0, stop if start < stop else end
        letter = DeadLettered(
            channel_id=self._channel.channel_id,
            group_id=group.group_id,
            partition=partition.number,
            range=OffsetRange(start=start, end=min(cut.end, stop)),
            delivery_count=delivery_count,
            reason=reason,
            published=self._published(cut, self._labels(group, partition, delivery_count, reason)),
            timestamp_us=self._now,
        )
        self._letters.append(letter)
        self.bytes += len(letter.published.batch)
        return cut.messages, min(cut.end, stop)

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


def decide_burial(state: State, dying: Dying, now: int) -> tuple[Decision, list[DataLoss]]:
    """Dead-letter what is exhausted, if it still is; also says what of it is lost, and stays. Raises Missing."""
    channel = state.channels_by_id.get(dying.channel.channel_id)
    group = channel.groups_by_id.get(dying.group.group_id) if channel else None
    lost: list[DataLoss] = []
    if channel is None or group is None:
        return Decision([], None), lost
    burial = Burial(state, channel, now)
    partition, cursor = channel.partitions[dying.partition], group.cursors[dying.partition]
    for start, end in cursor.retries.within(dying.start, dying.end):
        retry = cursor.retries.at(start)
        if retry is None or retry.count != dying.delivery_count:
            continue
        while start < end:
            if burial.bytes >= DECIDED_BYTES:
                state.dying.append(dying._replace(start=start))
                return Decision(burial.records(), None), lost
            try:
                _, start = burial.add_some(group, partition, start, end, retry.count, EXHAUSTED)
            except DataLoss as loss:
                lost.append(loss)
                start = max(start + 1, loss.end)
            except Missing:
                if not burial.bytes and not lost:
                    raise
                state.dying.append(dying._replace(start=start))  # what was found goes first
                return Decision(burial.records(), None), lost
    return Decision(burial.records(), None), lost
