"""What of the log is still needed, as the state was at one moment. Pure: no I/O, no clock; asked from another thread.

A frozen view: starts only move forward, deleted channels and finished schedules never come back, so what is not
needed here is not needed later either. It may be acted upon once everything decided before it was taken is durable.
"""

from __future__ import annotations

from bisect import bisect_left

from google.protobuf.message import Message

from mq.state import State
from wal.pb.wal_pb2 import Atomic, Damaged, DeadLettered, Published, Scheduled, Skipped
from wal.record import Unknown, end_offset, items_of

EVERYTHING = 1 << 63  # before the start of a channel that is gone


class Horizon:
    """Implements what `Log.clean` asks for."""

    def __init__(self, state: State) -> None:
        self._next_channel_id = state.next_channel_id
        self._starts: dict[tuple[int, int], int] = {}
        self._schedules: dict[int, list[int]] = {}
        self._in_order: set[int] = set()  # channels whose schedules are sorted: later, and not on the loop
        for channel_id, channel in state.channels_by_id.items():
            for partition in channel.partitions:
                self._starts[channel_id, partition.number] = partition.start_offset
            if channel.schedules:
                self._schedules[channel_id] = list(channel.schedules)

    def start_of(self, channel_id: int, partition: int) -> int:
        """Publishes that end at or before this offset are not needed."""
        start = self._starts.get((channel_id, partition))
        if start is None:
            return EVERYTHING if channel_id < self._next_channel_id else 0
        return start

    def needs(self, record: Message | Unknown) -> bool:
        """Of records that no replay will see: content that can still be asked for, and the notes of damage."""
        if isinstance(record, Published):
            return end_offset(record) > self.start_of(record.channel_id, record.partition)
        if isinstance(record, DeadLettered):
            return self.needs(record.published)
        if isinstance(record, Scheduled):
            return self._is_scheduled(record.channel_id, record.schedule_id)
        if isinstance(record, Atomic):
            return any(self.needs(item) for item in items_of(record))
        return isinstance(record, (Damaged, Skipped, Unknown))

    def _is_scheduled(self, channel_id: int, schedule_id: int) -> bool:
        known = self._schedules.get(channel_id)
        if known is None:
            return channel_id >= self._next_channel_id
        if channel_id not in self._in_order:
            known.sort()
            self._in_order.add(channel_id)
        at = bisect_left(known, schedule_id)
        return at < len(known) and known[at] == schedule_id
