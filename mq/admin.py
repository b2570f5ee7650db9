"""Decides the making, changing and describing of channels and groups. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence

from mq.assignment import ASSIGNMENTS
from mq.channel import DLQ_SUFFIX, Channel
from mq.command import (
    EARLIEST,
    CreateChannel,
    CreateGroup,
    DeleteChannel,
    DeleteGroup,
    DescribeChannel,
    DescribeGroup,
    ListChannels,
    ListGroups,
    ListSchedules,
    Position,
    PurgeChannel,
    Seek,
    Start,
    UpdateChannel,
    UpdateGroup,
)
from mq.decision import Decision
from mq.delivery import place
from mq.description import describe_channel, describe_group
from mq.errors import ChannelExists, GroupExists, GroupInUse, InvalidArgument, ResourceExhausted
from mq.group import Group
from mq.reply import (
    CreateChannelReply,
    DeleteChannelReply,
    DeleteGroupReply,
    ListChannelsReply,
    ListGroupsReply,
    ListSchedulesReply,
    PurgeChannelReply,
    ScheduleInfo,
    SeekReply,
)
from mq.state import State
from wal.pb import wal_pb2 as pb
from wal.record import Record


def decide_create_channel(state: State, command: CreateChannel, now: int) -> Decision:
    if command.channel in state.channels:
        if command.fail_if_exists:
            raise ChannelExists(f"there is a channel {command.channel!r} already")
        return Decision([], CreateChannelReply(False))
    limits = state.limits
    if len(state.channels) >= limits.channels:
        raise ResourceExhausted(f"there are {limits.channels} channels, the most allowed")
    partitions = command.partitions or 1
    if partitions > limits.partitions:
        raise InvalidArgument(f"a channel has at most {limits.partitions} partitions, not {partitions}")
    settings = limits.channel if command.settings is None else command.settings
    _check_settings(settings)
    record = pb.ChannelCreated(
        channel_id=state.next_channel_id,
        name=command.channel,
        partitions=1 if command.channel.endswith(DLQ_SUFFIX) else partitions,
        settings=settings,
        timestamp_us=now,
    )
    return Decision([record], CreateChannelReply(True))


def _check_settings(settings: pb.ChannelSettings) -> None:
    """Raises InvalidArgument. What compaction drops still counts, so a size would take latest values from the start."""
    if settings.keep == pb.ChannelSettings.KEEP_LATEST_PER_KEY and (settings.max_bytes or settings.max_messages):
        text = "a channel that keeps the latest message of each key has no max_bytes and no max_messages"
        raise InvalidArgument(f"{text}: they would drop latest messages")


def decide_list_channels(state: State, command: ListChannels, now: int) -> Decision:
    found = [channel for name, channel in sorted(state.channels.items()) if name.startswith(command.prefix)]
    return Decision([], ListChannelsReply([describe_channel(channel) for channel in found]))


def decide_describe_channel(state: State, command: DescribeChannel, now: int) -> Decision:
    return Decision([], describe_channel(state.channel(command.channel)))


def decide_update_channel(state: State, command: UpdateChannel, now: int) -> Decision:
    channel = state.channel(command.channel)
    before = len(channel.partitions)
    partitions = command.partitions or before
    if not before <= partitions <= state.limits.partitions:
        raise InvalidArgument(f"{partitions} partitions are fewer than {before} or more than {state.limits.partitions}")
    if command.settings is not None:
        _check_settings(command.settings)
    record = pb.ChannelUpdated(
        channel_id=channel.channel_id,
        partitions=partitions,
        settings=channel.settings if command.settings is None else command.settings,
        timestamp_us=now,
    )
    return Decision([record], lambda: describe_channel(channel))


def decide_delete_channel(state: State, command: DeleteChannel, now: int) -> Decision:
    channel = state.channel(command.channel)
    return Decision([pb.ChannelDeleted(channel_id=channel.channel_id, timestamp_us=now)], DeleteChannelReply())


def decide_purge_channel(state: State, command: PurgeChannel, now: int) -> Decision:
    channel = state.channel(command.channel)
    numbers = range(len(channel.partitions)) if command.partition is None else [command.partition]
    records: list[Record] = []
    purged = 0
    for partition in map(channel.partition, numbers):
        before = min(command.before_offset or partition.next_offset, partition.next_offset)
        if before > partition.start_offset:
            purged += before - partition.start_offset
            records.append(
                pb.Trimmed(
                    channel_id=channel.channel_id,
                    partition=partition.number,
                    start_offset=before,
                    reason="purged",
                    timestamp_us=now,
                )
            )
    return Decision(records, PurgeChannelReply(purged))


def decide_list_schedules(state: State, command: ListSchedules, now: int) -> Decision:
    channel = state.channel(command.channel)
    most = command.most or state.limits.pull_messages
    soonest = channel.schedules.in_order.after((*command.after, channel.channel_id), most)
    found = [ScheduleInfo(number, due_us, channel.schedules[number].messages) for due_us, number, _ in soonest]
    return Decision([], ListSchedulesReply(found))


# ---------------------------------------------------------------- groups


def decide_create_group(state: State, command: CreateGroup, now: int) -> Decision:
    """Making a group again is no error if it would have the same settings."""
    channel = state.channel(command.channel)
    settings = complete(command.settings, state.limits.group)
    known = channel.groups.get(command.group)
    if known is not None:
        if command.settings is not None and settings != known.settings:
            raise GroupExists(f"channel {command.channel!r} has a group {command.group!r} with other settings")
        return Decision([], describe_group(channel, known, now))
    if len(channel.groups) >= state.limits.groups:
        raise ResourceExhausted(f"channel {command.channel!r} has {state.limits.groups} groups, the most allowed")
    places = command.positions or _places(channel, range(len(channel.partitions)), command.start or EARLIEST)
    record = pb.GroupCreated(
        channel_id=channel.channel_id,
        group_id=state.next_group_id,
        name=command.group,
        settings=settings,
        start=[pb.Position(partition=number, offset=offset) for number, offset in places],
        timestamp_us=now,
    )
    return Decision([record], lambda: describe_group(channel, channel.groups[command.group], now))


def decide_update_group(state: State, command: UpdateGroup, now: int) -> Decision:
    channel = state.channel(command.channel)
    group = channel.group(command.group)
    settings = complete(command.settings, group.settings)
    if settings.mode != group.settings.mode:
        raise InvalidArgument(f"group {command.group!r} keeps the mode that it was made with")
    record = pb.GroupUpdated(
        channel_id=channel.channel_id, group_id=group.group_id, settings=settings, timestamp_us=now
    )
    return Decision([record], lambda: describe_group(channel, group, now))


def decide_list_groups(state: State, command: ListGroups, now: int) -> Decision:
    channels = [state.channel(command.channel)] if command.channel else list(state.channels.values())
    found = [describe_group(channel, group, now) for channel in channels for group in channel.groups.values()]
    return Decision([], ListGroupsReply(sorted(found, key=lambda info: (info.channel, info.group))))


def decide_describe_group(state: State, command: DescribeGroup, now: int) -> Decision:
    channel = state.channel(command.channel)
    return Decision([], describe_group(channel, channel.group(command.group), now, command.pending))


def decide_delete_group(state: State, command: DeleteGroup, now: int) -> Decision:
    channel = state.channel(command.channel)
    group = channel.group(command.group)
    record = pb.GroupDeleted(channel_id=channel.channel_id, group_id=group.group_id, timestamp_us=now)
    return Decision([record], DeleteGroupReply())


def decide_seek(state: State, command: Seek, now: int) -> Decision:
    channel = state.channel(command.channel)
    group = channel.group(command.group)
    numbers = range(len(channel.partitions)) if command.partition is None else [command.partition]
    before = [Position(number, _offset(channel, group, number)) for number in numbers]
    if command.positions:
        after = list(command.positions)
    elif command.shift is not None:
        after = [Position(number, offset + command.shift) for number, offset in before]
    else:
        after = _places(channel, numbers, command.start or EARLIEST)
    after = [_clamp(channel, position) for position in after]
    if command.dry_run:
        return Decision([], SeekReply(after, before))
    if group.is_ordered and group.members and not command.force:
        raise GroupInUse(f"group {command.group!r} has {len(group.members)} live members; force moves it all the same")
    record = pb.Sought(
        channel_id=channel.channel_id,
        group_id=group.group_id,
        positions=[pb.Position(partition=number, offset=offset) for number, offset in after],
        timestamp_us=now,
    )
    return Decision([record], SeekReply(after, before))


def complete(settings: pb.GroupSettings | None, defaults: pb.GroupSettings) -> pb.GroupSettings:
    """Settings with the defaults where they say nothing. Raises InvalidArgument."""
    made = pb.GroupSettings()
    made.CopyFrom(defaults)
    if settings is None:
        return made
    if settings.backoff_ms:
        del made.backoff_ms[:]
    made.MergeFrom(settings)  # fields that are 0 or empty are not set, and so change nothing
    if made.assignment and made.assignment not in ASSIGNMENTS:
        raise InvalidArgument(f"unknown assignment {made.assignment!r}; there are {', '.join(ASSIGNMENTS)}")
    return made


def _places(channel: Channel, numbers: Sequence[int], start: Start) -> list[Position]:
    return [_clamp(channel, Position(number, place(channel.partition(number), start))) for number in numbers]


def _clamp(channel: Channel, position: Position) -> Position:
    """Within what the partition holds: a group that is moved past an end waits there."""
    partition = channel.partition(position.partition)
    return Position(position.partition, min(max(position.offset, partition.first), partition.next_offset))


def _offset(channel: Channel, group: Group, number: int) -> int:
    return group.cursors[channel.partition(number).number].offset
