"""What compaction may drop, as the state was at one moment. Pure: no I/O, no clock; asked from another thread.

Beside what nobody can ask for any more (`mq.horizon`) two things may go, once every group is past them: what has
expired, and, where a channel keeps the latest message of each key, what a later one replaced. That groups have acked
something is never a reason by itself, and unlike the horizon this may be taken back: a group seeks, a new one begins
at the earliest message, settings change. So whoever drops by these rules asks again at the last moment.
"""

from __future__ import annotations

from google.protobuf.message import Message

from mq.channel import REDRIVE_GROUP, Channel
from mq.group import Group
from mq.horizon import Horizon
from mq.state import State
from wal.pb.wal_pb2 import ChannelSettings, Published
from wal.proposal import Ground
from wal.record import Unknown, end_offset

TOMBSTONE_GRACE_MS = 24 * 3_600_000  # where a channel does not say: a day, for whoever follows without a group
Key = tuple[int, int]  # channel id and partition


class Rules(Horizon):
    """May be acted upon once everything decided before it was taken is durable."""

    def __init__(self, state: State, now: int) -> None:
        super().__init__(state)
        self.now = now
        self.names: dict[int, str] = {}
        self._passed: dict[Key, int] = {}
        self._latest: dict[Key, int] = {}
        for channel_id, channel in state.channels_by_id.items():
            self.names[channel_id] = channel.name
            for partition in channel.partitions:
                key = (channel_id, partition.number)
                self._passed[key] = passed(channel, partition.number)
                if keeps_latest(channel) and not partition.damaged and not state.damaged:
                    self._latest[key] = now - grace_ms(channel) * 1000

    def needs(self, record: Message | Unknown) -> bool:
        if isinstance(record, Published) and self.has_expired(record):
            return False
        return super().needs(record)

    def has_expired(self, record: Published) -> bool:
        """Nobody gets it any more, and no group has still to be told so."""
        if not record.ttl_ms or self.now < record.max_timestamp_us + record.ttl_ms * 1000:
            return False
        return end_offset(record) <= self.passed(record.channel_id, record.partition)

    def passed(self, channel_id: int, partition: int) -> int:
        """Every group is done with all that lies before this offset."""
        return self._passed.get((channel_id, partition), 0)

    def tombstones_before(self, channel_id: int, partition: int) -> int | None:
        """Of a partition that keeps the latest of each key: tombstones from before this time may go. None: of others.

        Where messages were lost to damage none is dropped for another's sake: who reads could not tell what is missing.
        """
        return self._latest.get((channel_id, partition))

    @property
    def latest(self) -> list[Key]:
        """The partitions that keep the latest of each key."""
        return list(self._latest)


def passed(channel: Channel, partition: int) -> int:
    cursors = [group.cursors[partition].offset for group in readers(channel).values()]
    return min(cursors, default=channel.partitions[partition].next_offset)


def readers(channel: Channel) -> dict[str, Group]:
    return {name: group for name, group in channel.groups.items() if name != REDRIVE_GROUP}


def keeps_latest(channel: Channel) -> bool:
    return channel.settings.keep == ChannelSettings.KEEP_LATEST_PER_KEY


def grace_ms(channel: Channel) -> int:
    return channel.settings.tombstone_grace_ms or TOMBSTONE_GRACE_MS


def grounds(state: State, keys: set[Key]) -> tuple[Ground, ...]:
    """What a proposal that drops something of these partitions relies on."""
    found = []
    for channel_id, number in sorted(keys):
        channel = state.channels_by_id.get(channel_id)
        if channel is None or number >= len(channel.partitions):
            continue
        found.append(
            Ground(
                channel_id,
                channel.name,
                number,
                channel.partitions[number].start_offset,
                keeps_latest(channel),
                grace_ms(channel),
                {name: group.cursors[number].offset for name, group in readers(channel).items()},
            )
        )
    return tuple(found)
