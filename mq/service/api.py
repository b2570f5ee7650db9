"""The whole API in one table: each method, how its request is read and how its answer is written. No behaviour.

A method that is not here does not exist, on any door. A new one needs a line here and nothing in a door.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

from mq.command import Command
from mq.service import admin, request, response
from mq.service.edge import Edge
from mq.service.response import Pieces


class Kind(Enum):
    UNARY = "one request, one answer"
    SUBSCRIBE = "one request, a stream of answers"
    PUBLISH_STREAM = "a stream of requests, a stream of answers in the same order"
    LOCAL = "one request, one answer that the service gives without the broker"


class Method(NamedTuple):
    name: str  # service and method, as in a gRPC path without the first slash
    kind: Kind
    decode: Callable[[bytes, Edge], Command]
    encode: Callable[[Any], Pieces]
    # Publishes check their own size. Everything else is small: the parse of nested messages is paid per message.
    is_publish: bool = False
    # The first broker's calls answer FAILED_PRECONDITION where the channel is unknown; its clients look for that.
    is_compatible: bool = False
    # May hold its answer back, so a door must say whose it is.
    can_wait: bool = False


def _none(request: bytes, edge: Edge) -> Command:
    raise NotImplementedError


_ALL = [
    Method("mq.MQService/CreateChannel", Kind.UNARY, request.create_channel, response.create_channel),
    Method("mq.MQService/Publish", Kind.UNARY, request.publish, response.publish, True, True),
    Method("mq.MQService/Subscribe", Kind.SUBSCRIBE, _none, response.empty, False, True, True),
    Method("mq.MQService/PublishBatch", Kind.UNARY, request.publish_batch, response.publish_batch, True),
    Method(
        "mq.MQService/PublishStream",
        Kind.PUBLISH_STREAM,
        request.publish_batch,
        response.publish_batch,
        True,
        False,
        True,
    ),
    Method("mq.MQService/Pull", Kind.UNARY, request.pull, response.pull, False, False, True),
    Method("mq.MQService/Ack", Kind.UNARY, request.ack, response.ack),
    Method("mq.MQService/Nack", Kind.UNARY, request.nack, response.empty),
    Method("mq.MQService/Reject", Kind.UNARY, request.reject, response.reject),
    Method("mq.MQService/Extend", Kind.UNARY, request.extend, response.extend),
    Method("mq.MQService/Commit", Kind.UNARY, request.commit, response.empty),
    Method("mq.MQService/Seek", Kind.UNARY, request.seek, response.seek),
    Method("mq.MQService/Leave", Kind.UNARY, request.leave, response.empty),
    Method("mq.MQService/Transact", Kind.UNARY, request.transact, response.transact, True),
    Method("mq.AdminService/ListChannels", Kind.UNARY, admin.list_channels, response.list_channels),
    Method("mq.AdminService/DescribeChannel", Kind.UNARY, admin.describe_channel, response.channel_info),
    Method("mq.AdminService/UpdateChannel", Kind.UNARY, admin.update_channel, response.channel_info),
    Method("mq.AdminService/DeleteChannel", Kind.UNARY, admin.delete_channel, response.empty),
    Method("mq.AdminService/PurgeChannel", Kind.UNARY, admin.purge_channel, response.purge_channel),
    Method("mq.AdminService/Redrive", Kind.UNARY, admin.redrive, response.redrive),
    Method("mq.AdminService/ListSchedules", Kind.UNARY, admin.list_schedules, response.list_schedules),
    Method("mq.AdminService/CancelSchedule", Kind.UNARY, admin.cancel_schedule, response.empty),
    Method("mq.AdminService/CreateGroup", Kind.UNARY, admin.create_group, response.group_info),
    Method("mq.AdminService/UpdateGroup", Kind.UNARY, admin.update_group, response.group_info),
    Method("mq.AdminService/ListGroups", Kind.UNARY, admin.list_groups, response.list_groups),
    Method("mq.AdminService/DescribeGroup", Kind.UNARY, admin.describe_group, response.group_info),
    Method("mq.AdminService/DeleteGroup", Kind.UNARY, admin.delete_group, response.empty),
    Method("mq.AdminService/ListSegments", Kind.LOCAL, _none, response.empty),
    Method("mq.AdminService/RotateSegment", Kind.LOCAL, _none, response.empty),
    Method("mq.AdminService/InstallSegments", Kind.LOCAL, _none, response.install_segments),
    Method("mq.AdminService/CreateBackup", Kind.LOCAL, _none, response.empty),
    Method("mq.AdminService/DescribeBackup", Kind.LOCAL, _none, response.empty),
    Method("mq.AdminService/ServerInfo", Kind.LOCAL, _none, response.empty),
]
METHODS: dict[str, Method] = {method.name: method for method in _ALL}
