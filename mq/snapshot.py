"""A channel's durable state as one record, and back. Pure: no I/O, no clock.

Leases, members and batches in memory are not in it: a restart forgets the first two and reads the third from the log.
"""

from __future__ import annotations

from mq.channel import Channel, Partition, Schedule
from mq.cursor import Cursor
from mq.group import Group
from mq.ladder import LONG_AGO_US, NEVER_US
from mq.producer import Answer, Producers
from wal.pb.wal_pb2 import ChannelSnapshot, OffsetRange, Redelivered


def take(channel: Channel) -> ChannelSnapshot:
    """The whole durable state of a channel."""
    return ChannelSnapshot(
        channel_id=channel.channel_id,
        name=channel.name,
        settings=channel.settings,
        partitions=[_partition(partition) for partition in channel.partitions],
        groups=[_group(group) for group in channel.groups.values()],
        producers=[
            ChannelSnapshot.Producer(
                producer=name,
                seen_us=producer.seen_us,
                window=[_window(answer) for answer in producer.answers],
            )
            for name, producer in channel.producers.items()
        ],
        schedules=[
            ChannelSnapshot.Schedule(schedule_id=number, due_us=due_us, sequence=sequence, count=messages)
            for number, (due_us, sequence, messages) in channel.schedules.items()
        ],
        created_us=channel.created_us,
    )


def restore(snapshot: ChannelSnapshot, producers: Producers) -> Channel:
    """The channel that `take` was given; `producers` is empty."""
    channel = Channel(snapshot.channel_id, snapshot.name, snapshot.settings, snapshot.created_us, producers)
    for number, kept in enumerate(snapshot.partitions):
        partition = Partition(channel.channel_id, number, kept.start_offset, kept.next_offset)
        partition.bytes = kept.bytes
        partition.start_timestamp_us = kept.start_timestamp_us
        partition.ladder.end_us = kept.end_timestamp_us
        partition.ladder.spacing = kept.mark_spacing or 1
        for mark in kept.marks:
            partition.ladder.restore(mark.offset, mark.bytes, mark.timestamp_us, mark.expiry_us or NEVER_US)
        partition.ladder.end_expiry_us = kept.end_expiry_us or NEVER_US
        if LONG_AGO_US < partition.ladder.end_expiry_us < NEVER_US:
            channel.has_ttl = channel.is_limited = True
        for damaged in kept.damaged:
            partition.damaged.add(damaged.start, damaged.end)
        channel.partitions.append(partition)
    for kept_group in snapshot.groups:
        channel.add_group(_restore_group(channel, kept_group))
    for known in snapshot.producers:
        for seen in known.window:
            answer = Answer(
                seen.sequence,
                seen.crc,
                seen.partition,
                seen.base_offset,
                seen.count,
                seen.timestamp_us,
                seen.schedule_id,
            )
            producers.note(known.producer, answer, known.seen_us)
    for planned in snapshot.schedules:
        channel.schedules[planned.schedule_id] = Schedule(planned.due_us, planned.sequence, planned.count)
    return channel


def _partition(partition: Partition) -> ChannelSnapshot.Partition:
    return ChannelSnapshot.Partition(
        start_offset=partition.start_offset,
        next_offset=partition.next_offset,
        bytes=partition.bytes,
        start_timestamp_us=partition.start_timestamp_us,
        damaged=[OffsetRange(start=start, end=end) for start, end in partition.damaged],
        end_timestamp_us=partition.ladder.end_us,
        mark_spacing=partition.ladder.spacing,
        marks=[
            ChannelSnapshot.Mark(offset=offset, bytes=size, timestamp_us=time_us, expiry_us=expiry_us % NEVER_US)
            for offset, size, time_us, expiry_us in partition.ladder
        ],
        end_expiry_us=partition.ladder.end_expiry_us % NEVER_US,
    )


def _group(group: Group) -> ChannelSnapshot.Group:
    return ChannelSnapshot.Group(
        group_id=group.group_id,
        name=group.name,
        settings=group.settings,
        cursors=[_cursor(number, cursor) for number, cursor in enumerate(group.cursors)],
        seen_us=group.seen_us,
        created_us=group.created_us,
        skipped=group.skipped,
    )


def _cursor(number: int, cursor: Cursor) -> ChannelSnapshot.Cursor:
    return ChannelSnapshot.Cursor(
        partition=number,
        offset=cursor.offset,
        acked=[OffsetRange(start=start, end=end) for start, end in cursor.acked],
        retries=[
            Redelivered.Retry(
                start=retry.start, end=retry.end, delivery_count=retry.count, not_before_us=retry.not_before_us
            )
            for retry in cursor.retries.joined()
        ],
    )


def _restore_group(channel: Channel, kept: ChannelSnapshot.Group) -> Group:
    group = Group(kept.group_id, kept.name, kept.settings, channel.channel_id, kept.created_us)
    group.seen_us = kept.seen_us
    group.skipped = kept.skipped
    group.cursors = [Cursor(0) for _ in channel.partitions]
    for at in kept.cursors:
        if at.partition < len(group.cursors):
            cursor = group.cursors[at.partition] = Cursor(at.offset)
            for done in at.acked:
                cursor.ack(done.start, done.end)
            for retry in at.retries:
                is_last = group.is_exhausted(retry.delivery_count) and not channel.is_dead_letter
                cursor.retry(retry.start, retry.end, retry.delivery_count, retry.not_before_us, is_last)
    return group


def _window(answer: Answer) -> ChannelSnapshot.Window:
    return ChannelSnapshot.Window(
        sequence=answer.sequence,
        crc=answer.crc,
        partition=answer.partition,
        base_offset=answer.base_offset,
        count=answer.messages,
        timestamp_us=answer.timestamp_us,
        schedule_id=answer.schedule_id,
    )
