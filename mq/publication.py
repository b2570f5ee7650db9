"""Decides publishes: which partition, which offset, now or later, new or a retry. Pure: no I/O, no clock."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from mq.channel import Channel, Partition
from mq.command import CancelSchedule, Publish
from mq.decision import Decision
from mq.errors import ScheduleNotFound
from mq.producer import Answer
from mq.reply import CancelScheduleReply, Placement, PublishReply
from mq.state import State
from wal.pb.wal_pb2 import Batch, BatchMessage, Part, Published, ScheduleCancelled, Scheduled
from wal.record import Carried, Record, atomic


class Offsets:
    """The offsets that a decision of several records gives out: none of them is applied before all are decided."""

    def __init__(self) -> None:
        self._next: dict[Partition, int] = {}

    def take(self, partition: Partition, messages: int) -> int:
        base = self._next.get(partition, partition.next_offset)
        self._next[partition] = base + messages
        return base


def decide_publish(state: State, command: Publish, now: int) -> Decision:
    """One batch."""
    channel = state.channel(command.channel)
    repeated = repeated_publish(channel, command)
    if repeated is not None:
        return Decision([], repeated)
    due_us = command.deliver_at_us or (now + command.delay_ms * 1000)
    if due_us > now:
        return _schedule(state, channel, command, due_us, now)
    if command.partition is None and len(channel.partitions) > 1:
        return _spread(channel, command, now)
    partition = channel.partition(command.partition or 0)
    base = partition.next_offset
    record = _published(channel, partition, command, base, command.count, now)
    return Decision([Carried(record, [command.batch])], PublishReply(partition.number, base, command.count, now))


def repeated_publish(channel: Channel, command: Publish) -> PublishReply | None:
    """The answer that a retry gets; None where it is none. Raises SequenceRefused."""
    if not command.producer_id:
        return None
    answers = channel.producers.check(command.producer_id, command.sequence, command.crc)
    return _repeated(channel, command, answers) if answers else None


def decide_due(state: State, channel: Channel, scheduled: Scheduled, now: int) -> Decision:
    """A delayed publish whose time has come: it gets its offset now, and is no longer scheduled."""
    if scheduled.schedule_id not in channel.schedules or scheduled.partition >= len(channel.partitions):
        return Decision([], None)
    partition = channel.partitions[scheduled.partition]
    base = partition.next_offset
    record = Published(
        channel_id=channel.channel_id,
        partition=partition.number,
        base_offset=base,
        count=scheduled.count,
        min_timestamp_us=now,
        max_timestamp_us=now,
        ttl_ms=scheduled.ttl_ms,
        schedule_id=scheduled.schedule_id,
        due_us=scheduled.due_us,
        parts=[Part(base_offset=base, count=scheduled.count, timestamp_us=now)],
    )
    return Decision([Carried(record, [scheduled.batch])], None)


def decide_cancel(state: State, command: CancelSchedule, now: int) -> Decision:
    channel = state.channel(command.channel)
    if command.schedule_id not in channel.schedules:
        raise ScheduleNotFound(f"channel {command.channel!r} has no delayed publish {command.schedule_id}")
    record = ScheduleCancelled(channel_id=channel.channel_id, schedule_id=command.schedule_id, timestamp_us=now)
    return Decision([record], CancelScheduleReply())


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key: CRC-32 (as in zlib), which every language has at the speed of C."""
    return zlib.crc32(key) % partitions


def split(batch: bytes, partitions: int, keyless: int) -> list[tuple[int, list[int], bytes]]:
    """A batch by the partitions of its keys: partition, indexes of its messages, their bytes. The slow path."""
    parts: dict[int, tuple[list[int], list[BatchMessage]]] = {}
    for index, message in enumerate(Batch.FromString(batch).messages):
        number = partition_of(message.key, partitions) if message.HasField("key") else keyless
        indexes, messages = parts.setdefault(number, ([], []))
        indexes.append(index)
        messages.append(message)
    return [
        (number, indexes, Batch(messages=messages).SerializeToString()) for number, (indexes, messages) in parts.items()
    ]


def publish_within(channel: Channel, publish: Publish, offsets: Offsets, now: int) -> tuple[list[Record], PublishReply]:
    """One publish of a transaction."""
    if publish.partition is None and len(channel.partitions) > 1:
        parts = split(publish.batch, len(channel.partitions), channel.turn % len(channel.partitions))
    else:
        parts = [(publish.partition or 0, [], publish.batch)]
    records: list[Record] = []
    placements = []
    for number, indexes, batch in parts:
        partition = channel.partition(number)
        messages = len(indexes) or publish.count
        base = offsets.take(partition, messages)
        plain = Publish(publish.channel, batch, messages, ttl_ms=publish.ttl_ms)
        records.append(Carried(_published(channel, partition, plain, base, messages, now), [batch]))
        placements.append(Placement(number, base, indexes))
    first = placements[0]
    reply = PublishReply(first.partition, first.base_offset, publish.count, now)
    reply.placements = placements if len(placements) > 1 else ()
    return records, reply


def _published(
    channel: Channel, partition: Partition, command: Publish, base: int, messages: int, now: int
) -> Published:
    part = Part(base_offset=base, count=messages, timestamp_us=now)
    if command.producer_id:
        part.producer = command.producer_id
        part.sequence = command.sequence
        part.crc = command.crc
    return Published(
        channel_id=channel.channel_id,
        partition=partition.number,
        base_offset=base,
        count=messages,
        min_timestamp_us=now,
        max_timestamp_us=now,
        ttl_ms=command.ttl_ms or channel.settings.ttl_ms,
        parts=[part],
    )


def _spread(channel: Channel, command: Publish, now: int) -> Decision:
    """A batch that names no partition, on a channel with several: by keys, else whole batches in turn."""
    keyless = channel.turn % len(channel.partitions)
    channel.turn += 1
    parts = split(command.batch, len(channel.partitions), keyless)
    records: list[Record] = []
    placements = []
    for number, indexes, batch in parts:
        partition = channel.partitions[number]
        base = partition.next_offset
        content = command.batch if len(parts) == 1 else batch
        records.append(Carried(_published(channel, partition, command, base, len(indexes), now), [content]))
        placements.append(Placement(number, base, indexes))
    first = placements[0]
    reply = PublishReply(first.partition, first.base_offset, command.count, now)
    if len(parts) == 1:
        return Decision(records, reply)
    reply.placements = placements
    return Decision([atomic(records, timestamp_us=now)], reply)


def _schedule(state: State, channel: Channel, command: Publish, due_us: int, now: int) -> Decision:
    parts: Sequence[tuple[int, list[int], bytes]]
    if command.partition is None and len(channel.partitions) > 1:
        parts = split(command.batch, len(channel.partitions), channel.turn % len(channel.partitions))
        channel.turn += 1
    else:
        parts = [(channel.partition(command.partition or 0).number, [], command.batch)]
    records: list[Record] = []
    for index, (number, indexes, batch) in enumerate(parts):
        record = Scheduled(
            channel_id=channel.channel_id,
            partition=number,
            schedule_id=state.next_schedule_id + index,
            due_us=due_us,
            count=len(indexes) or command.count,
            producer=command.producer_id,
            sequence=command.sequence,
            crc=command.crc,
            timestamp_us=now,
            ttl_ms=command.ttl_ms or channel.settings.ttl_ms,
        )
        records.append(Carried(record, [batch]))
    reply = PublishReply(parts[0][0], 0, command.count, now, schedule_id=state.next_schedule_id)
    if len(records) == 1:
        return Decision(records, reply)
    reply.placements = [
        Placement(number, 0, indexes, state.next_schedule_id + index)
        for index, (number, indexes, _) in enumerate(parts)
    ]
    return Decision([atomic(records, timestamp_us=now)], reply)


def _repeated(channel: Channel, command: Publish, answers: list[Answer]) -> PublishReply:
    """What the first try was answered."""
    first = answers[0]
    reply = PublishReply(first.partition, first.base_offset, command.count, first.timestamp_us, duplicate=True)
    reply.schedule_id = first.schedule_id
    if len(answers) > 1:
        indexes = _indexes(command.batch, len(channel.partitions), answers)
        reply.placements = [
            Placement(answer.partition, answer.base_offset, indexes.get(answer.partition, ()), answer.schedule_id)
            for answer in answers
        ]
    return reply


def _indexes(batch: bytes, partitions: int, answers: list[Answer]) -> dict[int, list[int]]:
    """By partition: which messages of a split batch it got. Those without a key went where more went than keys tell."""
    keyed = {number: indexes for number, indexes, _ in split(batch, partitions, -1)}
    keyless = keyed.pop(-1, None)
    if keyless:
        for answer in answers:
            with_key = keyed.get(answer.partition, [])
            if answer.messages > len(with_key):
                keyed[answer.partition] = sorted(with_key + keyless)
    return keyed
