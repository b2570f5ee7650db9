"""Decides transactions: publishes and acks in one Atomic record, all or nothing. Pure: no I/O, no clock."""

from __future__ import annotations

from mq.channel import Channel
from mq.command import Transact
from mq.decision import Decision
from mq.errors import InvalidArgument
from mq.publication import Offsets, publish_within
from mq.reply import PublishReply, TransactReply
from mq.settlement import Settling, plan_ack
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
    if command.commits:
        raise InvalidArgument("a transaction takes acks, not commits")
    records: list[Record] = []
    replies = []
    offsets = Offsets()
    for publish in command.publishes:
        made, reply = publish_within(state.channel(publish.channel), publish, offsets, now)
        records += made
        replies.append(reply)
    settlings: list[Settling] = []
    for ack in command.acks:
        # A repeated ack would be a repeated transaction: its publishes must not be stored twice.
        made, settling = plan_ack(state, ack, now, again=False)
        records += made
        settlings.append(settling)
    for settling in settlings:
        settling()
    fields: dict[str, str | int] = {"timestamp_us": now}
    if command.producer_id:
        fields |= {"producer": command.producer_id, "sequence": command.sequence, "crc": command.crc}
    return Decision([atomic(records, **fields)] if records else [], TransactReply(replies))


def _first_channel(state: State, command: Transact) -> Channel:
    """The channel that remembers the transaction for a retry."""
    if not (command.publishes or command.acks):
        raise InvalidArgument("a transaction needs a publish or an ack")
    return state.channel((command.publishes[0] if command.publishes else command.acks[0]).channel)
