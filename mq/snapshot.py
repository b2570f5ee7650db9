"""A channel's durable state as one record or several, and back. Pure: no I/O, no clock.

Leases, members and batches in memory are not in it: a restart forgets the first two and reads the third from the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mq.channel import Channel, Partition, Schedule
from mq.cursor import Cursor
from mq.group import Group
from mq.ladder import LONG_AGO_US, NEVER_US
from mq.producer import Answer, Producers
from mq.ranges import END
from wal.pb.wal_pb2 import ChannelSnapshot, OffsetRange, Redelivered


def take(channel: Channel) -> ChannelSnapshot:
    """The whole durable state of a channel. Of a large one it takes long: see mq/draft.py."""
    whole = ChannelSnapshot(
        channel_id=channel.channel_id,
        name=channel.name,
        settings=channel.settings,
        created_us=channel.created_us,
    )
    for partition in channel.partitions:
        add_partition(whole, partition)
    for group in channel.groups.values():
        cursors = [cursor_of(number, cursor, 0, END) for number, cursor in enumerate(group.cursors)]
        add_group(whole, group).cursors.extend(cursors)
    for name, producer in channel.producers.items():
        add_answers(whole, name, producer.seen_us, producer.answers)
    for number, planned in channel.schedules.items():
        add_schedule(whole, number, planned)
    return whole


def split(whole: ChannelSnapshot, most_bytes: int) -> list[ChannelSnapshot]:
    """A snapshot in parts of about so many bytes; `join` makes of them what `restore` takes."""
    if whole.ByteSize() <= most_bytes:
        return [whole]
    parts = [
        ChannelSnapshot(
            channel_id=whole.channel_id, name=whole.name, settings=whole.settings, created_us=whole.created_us
        )
    ]
    size = parts[0].ByteSize()
    few = max(1, most_bytes // 256)  # of the smallest pieces, each of which has far fewer bytes
    for piece in _pieces(whole, most_bytes // 4, few):
        more = piece.ByteSize()
        if size + more > most_bytes and size:
            parts[-1].more = True
            parts.append(ChannelSnapshot(channel_id=whole.channel_id, part=len(parts)))
            size = 0
        parts[-1].MergeFrom(piece)
        size += more
    return parts


def join(before: ChannelSnapshot | None, part: ChannelSnapshot) -> ChannelSnapshot | None:
    """What all parts so far tell; None where one between them is missing. `before` is used up, `part` is not."""
    if not part.part:
        if not part.more:
            return part
        before = ChannelSnapshot()
    elif before is None or (before.channel_id, before.part + 1) != (part.channel_id, part.part):
        return None
    before.MergeFrom(part)
    before.more = part.more
    return before


def _pieces(whole: ChannelSnapshot, most_bytes: int, few: int) -> Iterator[ChannelSnapshot]:
    """All that is repeated, in order: what has more than `most_bytes` in pieces, else as it is."""
    for partition in whole.partitions:
        yield ChannelSnapshot(partitions=[partition])
    for group in whole.groups:
        if group.ByteSize() <= most_bytes:
            yield ChannelSnapshot(groups=[group])
            continue
        head = _group_head(group)
        yield ChannelSnapshot(groups=[head])
        for cursor in group.cursors:
            for at in range(0, max(1, len(cursor.acked), len(cursor.retries)), few):
                acked, retries = cursor.acked[at : at + few], cursor.retries[at : at + few]
                piece = ChannelSnapshot.Cursor(
                    partition=cursor.partition, offset=cursor.offset, acked=acked, retries=retries
                )
                yield ChannelSnapshot(groups=[ChannelSnapshot.Group(group_id=group.group_id, cursors=[piece])])
    for known in whole.producers:
        if len(known.window) <= few:
            yield ChannelSnapshot(producers=[known])
            continue
        for at in range(0, max(1, len(known.window)), few):
            window = known.window[at : at + few]
            producer = ChannelSnapshot.Producer(producer=known.producer, seen_us=known.seen_us, window=window)
            yield ChannelSnapshot(producers=[producer])
    for at in range(0, len(whole.schedules), few):
        yield ChannelSnapshot(schedules=whole.schedules[at : at + few])


def _group_head(group: ChannelSnapshot.Group) -> ChannelSnapshot.Group:
    return ChannelSnapshot.Group(
        group_id=group.group_id,
        name=group.name,
        settings=group.settings,
        seen_us=group.seen_us,
        created_us=group.created_us,
        skipped=group.skipped,
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
    begun: set[tuple[int, int]] = set()  # cursors by group and partition: what comes again goes on
    for kept_group in snapshot.groups:
        _restore_group(channel, kept_group, begun)
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
    channel.schedules.restore(
        (planned.schedule_id, Schedule(planned.due_us, planned.sequence, planned.count))
        for planned in snapshot.schedules
    )
    return channel


def _restore_group(channel: Channel, kept: ChannelSnapshot.Group, begun: set[tuple[int, int]]) -> None:
    group = channel.groups_by_id.get(kept.group_id)
    if group is None:
        group = Group(kept.group_id, kept.name, kept.settings, channel.channel_id, kept.created_us)
        group.seen_us = kept.seen_us
        group.skipped = kept.skipped
        group.cursors = [Cursor(0) for _ in channel.partitions]
        channel.add_group(group)
    for at in kept.cursors:
        if at.partition < len(group.cursors):
            if (group.group_id, at.partition) not in begun:
                begun.add((group.group_id, at.partition))
                group.cursors[at.partition] = Cursor(at.offset)
            cursor = group.cursors[at.partition]
            for done in at.acked:
                cursor.ack(done.start, done.end)
            for retry in at.retries:
                is_last = group.is_exhausted(retry.delivery_count) and not channel.is_dead_letter
                cursor.retry(retry.start, retry.end, retry.delivery_count, retry.not_before_us, is_last)


# ---------------------------------------------------------------- what a snapshot tells, piece by piece


def add_partition(to: ChannelSnapshot, partition: Partition) -> None:
    to.partitions.add(
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


def add_group(to: ChannelSnapshot, group: Group) -> ChannelSnapshot.Group:
    """Without its cursors."""
    return to.groups.add(
        group_id=group.group_id,
        name=group.name,
        settings=group.settings,
        seen_us=group.seen_us,
        created_us=group.created_us,
        skipped=group.skipped,
    )


def cursor_of(number: int, cursor: Cursor, start: int, end: int) -> ChannelSnapshot.Cursor:
    """What is known of start <= offset < end; the first piece of a cursor, from 0 on, tells where it is."""
    return ChannelSnapshot.Cursor(
        partition=number,
        offset=0 if start else cursor.offset,
        acked=[OffsetRange(start=left, end=right) for left, right in cursor.acked.within(start, end)],
        retries=[
            Redelivered.Retry(
                start=retry.start, end=retry.end, delivery_count=retry.count, not_before_us=retry.not_before_us
            )
            for retry in cursor.retries.joined(start, end)
        ],
    )


def add_answers(to: ChannelSnapshot, name: str, seen_us: int, answers: Iterable[Answer]) -> None:
    """Made in their place: there may be a million, and to make each apart takes twice as long."""
    window = to.producers.add(producer=name, seen_us=seen_us).window
    for sequence, crc, partition, base_offset, messages, timestamp_us, schedule_id in answers:
        window.add(
            sequence=sequence,
            crc=crc,
            partition=partition,
            base_offset=base_offset,
            count=messages,
            timestamp_us=timestamp_us,
            schedule_id=schedule_id,
        )


def add_schedule(to: ChannelSnapshot, number: int, planned: Schedule) -> None:
    due_us, sequence, messages = planned
    to.schedules.add(schedule_id=number, due_us=due_us, sequence=sequence, count=messages)
