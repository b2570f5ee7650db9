"""Which function decides which command: one line per act of the API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mq import admin, command, publication, redrive, settlement, transaction
from mq.decision import Decision
from mq.delivery import decide_lease, decide_read
from mq.state import State

Decider = Callable[[State, Any, int], Decision]


def decide_pull(state: State, pull: command.Pull, now: int) -> Decision:
    return decide_lease(state, pull, now) if pull.group else decide_read(state, pull, now)


DECIDERS: dict[type, Decider] = {
    command.Publish: publication.decide_publish,
    command.Pull: decide_pull,
    command.Ack: settlement.decide_ack,
    command.Nack: settlement.decide_nack,
    command.Reject: settlement.decide_reject,
    command.Extend: settlement.decide_extend,
    command.Commit: settlement.decide_commit,
    command.Leave: settlement.decide_leave,
    command.Seek: admin.decide_seek,
    command.Transact: transaction.decide_transact,
    command.CancelSchedule: publication.decide_cancel,
    command.ListSchedules: admin.decide_list_schedules,
    command.Redrive: redrive.decide_redrive,
    command.CreateChannel: admin.decide_create_channel,
    command.ListChannels: admin.decide_list_channels,
    command.DescribeChannel: admin.decide_describe_channel,
    command.UpdateChannel: admin.decide_update_channel,
    command.DeleteChannel: admin.decide_delete_channel,
    command.PurgeChannel: admin.decide_purge_channel,
    command.CreateGroup: admin.decide_create_group,
    command.UpdateGroup: admin.decide_update_group,
    command.ListGroups: admin.decide_list_groups,
    command.DescribeGroup: admin.decide_describe_group,
    command.DeleteGroup: admin.decide_delete_group,
}


def decide(state: State, asked: command.Command, now: int) -> Decision:
    """The records that a command makes, and its reply. Raises MqError, and Missing where a batch must be read first."""
    return DECIDERS[type(asked)](state, asked, now)
