"""Decides transactions: publishes, acks and commits in one Atomic record, all or nothing. Pure: no I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable

from mq.channel import Channel
from mq.command import Ack, Commit, Publish, Transact
from mq.decision import Decision
from mq.errors import InvalidArgument
from mq.publication import Offsets, publish_within
from mq.reply import PublishReply, TransactReply
from mq.settlement import plan_ack, plan_commit
from mq.state import TRANSACTION, State
from wal.record import Record, atomic


def decide_transact(state: State, command: Transact, now: int) -> Decision:
    """Raises LeaseLost, SequenceRefused, ChannelNotFound: then nothing of it takes place."""
    first = _first_channel(state, command)
    if command.producer_id:
        answers = first.producers.check(TRANSACTION + command.producer_id, command.sequence, command.crc)
        if answers:
            replies = [
                PublishReply(answer.partition, answer.base_offset, answer.messages, answer.timestamp_us, duplicate=True)
                for answer in answers
                if answer.messages
            ]
            return Decision([], TransactReply(replies, duplicate=True))
    records: list[Record] = []
    replies = []
    offsets = Offsets()
    for publish in command.publishes:
        made, reply = publish_within(state.channel(publish.channel), publish, offsets, now)
        records += made
        replies.append(reply)
    settlings: list[Callable[[], object]] = []
    for ack in command.acks:
        # A repeated ack would be a repeated transaction: its publishes must not be stored twice.
        made, settling = plan_ack(state, ack, now, again=False)
        records += made
        settlings.append(settling)
    for commit in command.commits:
        # All of them: a transaction is remembered by its record, so it has to have one.
        made, settled = plan_commit(state, commit, now, again=True)
        records += made
        settlings.append(settled)
    for settle in settlings:
        settle()
    fields: dict[str, str | int] = {"timestamp_us": now}
    if command.producer_id:
        fields |= {"producer": command.producer_id, "sequence": command.sequence, "crc": command.crc}
    return Decision([atomic(records, **fields)] if records else [], TransactReply(replies))


def _first_channel(state: State, command: Transact) -> Channel:
    """The channel that remembers the transaction for a retry."""
    items: list[Publish | Ack | Commit] = [*command.publishes, *command.acks, *command.commits]
    if not items:
        raise InvalidArgument("a transaction needs a publish, an ack or a commit")
    return state.channel(items[0].channel)
