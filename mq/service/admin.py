"""Requests of AdminService: from bytes to commands, with every rule of the edge checked. Pure; no transport."""

from __future__ import annotations

from mq import command
from mq.errors import InvalidArgument
from mq.pb import mq_pb2 as pb
from mq.service import checks
from mq.service.checks import parse
from mq.service.convert import channel_settings, group_settings
from mq.service.edge import Edge
from wal.proposal import is_id

MOST_ITEMS = 10_000  # in one answer, or looked at in one call


def list_channels(request: bytes, edge: Edge) -> command.ListChannels:
    prefix = parse(pb.ListChannelsRequest, request).prefix
    if len(prefix) > checks.NAME_LENGTH:
        raise InvalidArgument("prefix is longer than any name")
    return command.ListChannels(prefix)


def describe_channel(request: bytes, edge: Edge) -> command.DescribeChannel:
    return command.DescribeChannel(checks.channel(parse(pb.DescribeChannelRequest, request).channel))


def update_channel(request: bytes, edge: Edge) -> command.UpdateChannel:
    message = parse(pb.UpdateChannelRequest, request)
    settings = channel_settings(message.settings) if message.HasField("settings") else None
    return command.UpdateChannel(checks.channel(message.channel), settings, message.partitions)


def delete_channel(request: bytes, edge: Edge) -> command.DeleteChannel:
    return command.DeleteChannel(checks.channel(parse(pb.DeleteChannelRequest, request).channel))


def purge_channel(request: bytes, edge: Edge) -> command.PurgeChannel:
    message = parse(pb.PurgeChannelRequest, request)
    partition = message.partition if message.HasField("partition") else None
    return command.PurgeChannel(checks.channel(message.channel), partition, message.before_offset)


def redrive(request: bytes, edge: Edge) -> command.Redrive:
    message = parse(pb.RedriveRequest, request)
    if len(message.reason) > checks.LONGEST_REASON:
        raise InvalidArgument(f"reason has more than {checks.LONGEST_REASON} characters")
    return command.Redrive(
        checks.channel(message.channel),
        checks.channel(message.to) if message.to else "",
        message.reason,
        checks.milliseconds("min_age_ms", message.min_age_ms),
        checks.milliseconds("max_age_ms", message.max_age_ms),
        min(message.max_messages, MOST_ITEMS),
        message.start_offset,
    )


def list_schedules(request: bytes, edge: Edge) -> command.ListSchedules:
    message = parse(pb.ListSchedulesRequest, request)
    after = (message.after_due_us, message.after_schedule_id)
    return command.ListSchedules(checks.channel(message.channel), min(message.max_schedules, MOST_ITEMS), after)


def cancel_schedule(request: bytes, edge: Edge) -> command.CancelSchedule:
    message = parse(pb.CancelScheduleRequest, request)
    return command.CancelSchedule(checks.channel(message.channel), message.schedule_id)


def proposal(request: bytes) -> str:
    proposal = parse(pb.InstallSegmentsRequest, request).proposal
    if not is_id(proposal):
        raise InvalidArgument("proposal is no id: sixteen hex digits")
    return proposal


def create_group(request: bytes, edge: Edge) -> command.CreateGroup:
    message = parse(pb.CreateGroupRequest, request)
    return command.CreateGroup(
        checks.channel(message.channel),
        checks.group(message.group),
        group_settings(message.settings) if message.HasField("settings") else None,
        checks.start(message.start) if message.HasField("start") else None,
    )


def update_group(request: bytes, edge: Edge) -> command.UpdateGroup:
    message = parse(pb.UpdateGroupRequest, request)
    if not message.HasField("settings"):
        raise InvalidArgument("settings is missing")
    return command.UpdateGroup(
        checks.channel(message.channel), checks.group(message.group), group_settings(message.settings)
    )


def list_groups(request: bytes, edge: Edge) -> command.ListGroups:
    channel = parse(pb.ListGroupsRequest, request).channel
    return command.ListGroups(checks.channel(channel) if channel else "")


def describe_group(request: bytes, edge: Edge) -> command.DescribeGroup:
    message = parse(pb.DescribeGroupRequest, request)
    return command.DescribeGroup(checks.channel(message.channel), checks.group(message.group), message.pending)


def delete_group(request: bytes, edge: Edge) -> command.DeleteGroup:
    message = parse(pb.DeleteGroupRequest, request)
    return command.DeleteGroup(checks.channel(message.channel), checks.group(message.group))
