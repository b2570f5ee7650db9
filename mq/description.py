"""Describes channels and groups: numbers for people and dashboards. Pure: no I/O, no clock."""

from __future__ import annotations

from mq.channel import Channel, Partition
from mq.group import Group
from mq.reply import ChannelInfo, GroupInfo, GroupPosition, MemberInfo, PartitionInfo, PendingRange


def describe_channel(channel: Channel) -> ChannelInfo:
    partitions = [
        PartitionInfo(at.number, at.first, at.next_offset, at.bytes, list(at.damaged)) for at in channel.partitions
    ]
    return ChannelInfo(
        channel=channel.name,
        settings=channel.settings,
        partitions=partitions,
        messages=sum(at.next_offset - at.start_offset for at in partitions),
        bytes=sum(at.bytes for at in partitions),
        groups=len(channel.groups),
        created_us=channel.created_us,
        scheduled=channel.schedules.messages,
        expired=channel.expired,
        channel_id=channel.channel_id,
    )


def describe_group(channel: Channel, group: Group, now: int, with_pending: bool = False) -> GroupInfo:
    positions = [
        GroupPosition(
            number,
            cursor.offset,
            partition.next_offset,
            cursor.lag(partition.next_offset),
            group.ownership.owner_of(number),
        )
        for number, (cursor, partition) in enumerate(zip(group.cursors, channel.partitions, strict=True))
    ]
    return GroupInfo(
        channel=channel.name,
        group=group.name,
        settings=group.settings,
        positions=positions,
        members=[
            MemberInfo(member.name, member.seen_us, member.leased, group.ownership.owned_by(member.name))
            for member in group.members.values()
        ],
        lag=sum(position.lag for position in positions),
        lag_us=_lag_us(channel, group, now),
        pending=group.pending(),
        skipped=group.skipped,
        pending_ranges=_pending(group) if with_pending else [],
        generation=group.ownership.generation,
        created_us=group.created_us,
    )


def _lag_us(channel: Channel, group: Group, now: int) -> int:
    """Age of the oldest message that is not acked."""
    oldest = now
    for cursor, partition in zip(group.cursors, channel.partitions, strict=True):
        if cursor.offset >= partition.visible:
            continue
        if cursor.offset >= partition.buffer.floor:
            batch = partition.buffer.find(cursor.offset)
            oldest = min(oldest, batch.timestamp_us if batch else now)
        else:
            oldest = min(oldest, _time_of(partition, cursor.offset) or now)
    return max(0, now - oldest)


def _time_of(partition: Partition, offset: int) -> int:
    """When a message that has left memory was published: between what the marks around it say."""
    first = next(iter(partition.buffer), None)
    until = first.timestamp_us if first else partition.ladder.end_us
    return min(until, partition.ladder.time_at(offset, partition.start_offset, partition.start_timestamp_us))


def _pending(group: Group) -> list[PendingRange]:
    found = [
        PendingRange(lease.partition, start, end, lease.member, lease.count, lease.until_us, lease.since_us)
        for lease in group.leases.values()
        for start, end in lease.all_held()
    ]
    for number, cursor in enumerate(group.cursors):
        found += [
            PendingRange(number, retry.start, retry.end, "", retry.count, retry.not_before_us, 0)
            for retry in cursor.retries
            if not retry.is_leased
        ]
    return sorted(found)
