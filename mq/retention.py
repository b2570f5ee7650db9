"""Decides what a channel lets go: by age, bytes, count, ttl, and once all groups acked it. Pure: no I/O, no clock.

Only channels that may be due are looked at: those in which something happened since the last look, and those whose
oldest messages have come of age. So thousands of quiet channels cost nothing.
"""

from __future__ import annotations

from heapq import heappop, heappush

from mq.channel import REDRIVE_GROUP, Channel, Partition
from mq.ladder import NEVER_US
from mq.state import EXPIRED, State
from wal.pb.wal_pb2 import Trimmed
from wal.record import Record


def decide_retention(state: State, now: int) -> tuple[list[Record], list[Channel]]:
    """The trims that are due, and the channels that they change."""
    looked, state.crowded = state.crowded, {}
    while state.aging and state.aging[0][0] <= now:
        looked[heappop(state.aging)[1]] = None
    records: list[Record] = []
    changed: list[Channel] = []
    for channel_id in looked:
        channel = state.channels_by_id.get(channel_id)
        if channel is None or not channel.is_limited:
            continue
        trims = [record for partition in channel.partitions if (record := _trim(channel, partition, now)) is not None]
        if trims:
            records += trims
            changed.append(channel)
        _look_again(state, channel, now)
    return records, changed


def _trim(channel: Channel, partition: Partition, now: int) -> Trimmed | None:
    reason, start = "", partition.start_offset
    for why, offset in _wishes(channel, partition, now):
        offset = min(offset, partition.visible)
        if offset > start:
            reason, start = why, offset
    if not reason:
        return None
    return Trimmed(
        channel_id=channel.channel_id, partition=partition.number, start_offset=start, reason=reason, timestamp_us=now
    )


def _wishes(channel: Channel, partition: Partition, now: int) -> list[tuple[str, int]]:
    """Where each of the settings would have the partition start."""
    settings, ladder, end = channel.settings, partition.ladder, partition.next_offset
    wishes = [(EXPIRED, ladder.expired_at(now, end))] if channel.has_ttl else []
    if settings.max_age_ms:
        wishes.append(("max-age", ladder.offset_at(now - settings.max_age_ms * 1000, end)))
    if settings.max_bytes:
        wishes.append(("max-bytes", ladder.offset_for(partition.bytes, settings.max_bytes)))
    if settings.max_messages:
        wishes.append(("max-messages", end - settings.max_messages))
    readers = [group for group in channel.groups.values() if group.name != REDRIVE_GROUP]
    if settings.drop_acked and readers:
        wishes.append(("acked", min(group.cursors[partition.number].offset for group in readers)))
    return wishes


def _look_again(state: State, channel: Channel, now: int) -> None:
    """Remember when to look at a channel next, where that is known."""
    max_age_us = channel.settings.max_age_ms * 1000
    due_us = 0
    for partition in channel.partitions:
        last = partition.buffer.last
        if last is not None and last.sequence > state.synced:
            state.crowded[channel.channel_id] = (
                None  # no trim goes beyond what is visible, and nobody tells when that moves
            )
        if max_age_us and partition.next_offset > partition.start_offset:
            reached = partition.ladder.offset_at(now - max_age_us, partition.next_offset)
            if reached < partition.next_offset:
                due = partition.ladder.age_after(reached) + max_age_us
                due_us = min(due, due_us or due)
        if channel.has_ttl and partition.next_offset > partition.start_offset:
            reached = partition.ladder.expired_at(now, partition.next_offset)
            due = partition.ladder.expiry_after(reached)
            if reached < partition.next_offset and due < NEVER_US:
                due_us = min(due, due_us or due)
    if due_us and not now < channel.aging_us <= due_us:
        channel.aging_us = due_us
        heappush(state.aging, (due_us, channel.channel_id))
