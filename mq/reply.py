"""What a broker answers: one value per act of mq/command.py. No behaviour; fields are named as in proto/mq.proto.

Tuples like the commands, but for those that have a `count`, or to which something is added later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mq.command import FSYNC, Position
from wal.pb.wal_pb2 import ChannelSettings, GroupSettings


@dataclass(slots=True)
class Done:
    """There is nothing to tell. Not a tuple: an empty one counts as false."""


class CreateChannelReply(NamedTuple):
    created: bool  # false: it was there already


class DeleteChannelReply(Done):
    pass


class PurgeChannelReply(NamedTuple):
    purged: int


class PartitionInfo(NamedTuple):
    partition: int
    start_offset: int
    next_offset: int
    bytes: int
    damaged: Sequence[tuple[int, int]]


class ChannelInfo(NamedTuple):
    """Answer of DescribeChannel and UpdateChannel."""

    channel: str
    settings: ChannelSettings
    partitions: list[PartitionInfo]
    messages: int
    bytes: int
    groups: int
    created_us: int
    scheduled: int
    expired: int
    channel_id: int


class ListChannelsReply(NamedTuple):
    channels: list[ChannelInfo]


class Placement(NamedTuple):
    """Messages of a split batch that went to one partition: their indexes in the request's batch, in order."""

    partition: int
    base_offset: int
    indexes: Sequence[int]
    schedule_id: int = 0  # of a delayed batch: its parts are cancelled one by one


@dataclass(slots=True)
class PublishReply:
    partition: int
    base_offset: int
    count: int
    timestamp_us: int
    durable: int = FSYNC  # what the answer waited for
    schedule_id: int = 0  # of a delayed publish, which has no offset yet; of its first part where it was split
    duplicate: bool = False
    placements: Sequence[Placement] = ()  # where a keyed batch was split; partition and base_offset are the first's


class CancelScheduleReply(Done):
    pass


@dataclass(slots=True)
class ScheduleInfo:
    schedule_id: int
    due_us: int
    count: int  # messages


class ListSchedulesReply(NamedTuple):
    schedules: list[ScheduleInfo]


class RedriveReply(NamedTuple):
    moved: int
    left: int  # looked at and not asked for, or their origin is no more
    next_offset: int  # where to go on
    is_done: bool  # there is nothing beyond it


@dataclass(slots=True)
class PulledBatch:
    partition: int
    base_offset: int
    count: int
    timestamp_us: int
    offset_deltas: Sequence[int]  # empty: message i has offset base_offset + i
    batch: bytes
    receipt: bytes = b""
    delivery_count: int = 0
    lease_until_us: int = 0


class Leased(NamedTuple):
    """What an answer leases, for whoever gives it back: without the messages, which nobody is to keep for that."""

    channel: str
    group: str
    receipts: list[bytes]


@dataclass(slots=True)
class PullReply:
    batches: list[PulledBatch]
    next: list[Position] = field(default_factory=list)  # without a group: where to go on, one per partition asked for
    generation: int = 0
    assigned: Sequence[int] = ()
    channel_id: int = 0
    group_id: int = 0
    channel: str = ""  # these two: of what is leased
    group: str = ""

    def leased(self) -> Leased:
        return Leased(self.channel, self.group, [pulled.receipt for pulled in self.batches])


class AckReply(NamedTuple):
    acked: int  # messages


class NackReply(Done):
    pass


class RejectReply(NamedTuple):
    rejected: int


class ExtendReply(NamedTuple):
    lease_until_us: int


class CommitReply(Done):
    pass


class SeekReply(NamedTuple):
    positions: list[Position]
    before: list[Position]


class LeaveReply(Done):
    pass


class TransactReply(NamedTuple):
    publishes: list[PublishReply]
    duplicate: bool = False


class DeleteGroupReply(Done):
    pass


class GroupPosition(NamedTuple):
    partition: int
    offset: int  # everything before it is acked
    next_offset: int  # of the partition
    lag: int
    owner: str = ""


class MemberInfo(NamedTuple):
    member: str
    seen_us: int
    leased: int
    partitions: Sequence[int] = ()


class PendingRange(NamedTuple):
    partition: int
    start: int
    end: int
    member: str  # empty: waits for redelivery
    delivery_count: int
    until_us: int
    since_us: int


class GroupInfo(NamedTuple):
    channel: str
    group: str
    settings: GroupSettings
    positions: list[GroupPosition]
    members: list[MemberInfo]
    lag: int
    lag_us: int
    pending: int
    skipped: int
    pending_ranges: list[PendingRange]
    generation: int
    created_us: int


class ListGroupsReply(NamedTuple):
    groups: list[GroupInfo]


class InstallReply(NamedTuple):
    """Rewritten segments are part of the log."""

    segments: Sequence[str] = ()
    bytes_before: int = 0
    bytes_after: int = 0
    dropped_records: int = 0
    dropped_messages: int = 0


Reply = (
    CreateChannelReply
    | ListChannelsReply
    | ChannelInfo
    | DeleteChannelReply
    | PurgeChannelReply
    | PublishReply
    | CancelScheduleReply
    | ListSchedulesReply
    | RedriveReply
    | PullReply
    | AckReply
    | NackReply
    | RejectReply
    | ExtendReply
    | CommitReply
    | SeekReply
    | LeaveReply
    | TransactReply
    | GroupInfo
    | ListGroupsReply
    | DeleteGroupReply
    | InstallReply
)
