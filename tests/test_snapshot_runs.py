"""Snapshot runs: when they come, that they end, and that a channel of any size fits into one."""

from __future__ import annotations

import asyncio

from handbroker import HandBroker, all_stopped, publish

from mq.command import CreateChannel
from mq.limits import Limits
from wal.memory import MemoryLog
from wal.record import SnapshotEnd

__all__ = ["all_stopped"]


def runs(log: MemoryLog) -> int:
    """How many complete runs a log has that has forgotten nothing."""
    return sum(isinstance(record, SnapshotEnd) for record in log._records.values())


def crowd(limits: Limits, log: MemoryLog | None = None) -> HandBroker:
    """A broker whose state is larger than what it may let come together between two runs."""
    hand = HandBroker(log, limits=limits)
    for number in range(20):
        hand.ask(CreateChannel(f"channel-{number}"))
    return hand


def test_a_state_larger_than_the_space_between_two_runs_is_written_once_and_then_nothing() -> None:
    hand = crowd(Limits(snapshot_bytes=100))
    hand.settle()
    before = hand.log.last_sequence
    written = runs(hand.log)
    assert written
    for _ in range(20):
        hand.tick(1)
    assert (hand.log.last_sequence, runs(hand.log)) == (before, written)


def test_as_much_log_as_two_runs_take_brings_the_next_one() -> None:
    hand = crowd(Limits(snapshot_bytes=100))
    hand.settle()
    written = runs(hand.log)
    for _ in range(40):
        hand.ask(publish("channel-0", "x" * 100))
    hand.settle()
    assert runs(hand.log) > written


def test_a_broker_with_such_a_state_closes_with_one_last_run() -> None:
    hand = crowd(Limits(snapshot_bytes=100))
    hand.settle()
    written = runs(hand.log)
    hand.send(publish("channel-0", "x"))
    hand.log.release()
    hand.log.is_held = False
    hand.loop.run_until_complete(asyncio.wait_for(hand.broker.close(), 5))
    assert runs(hand.log) == written + 1
    assert isinstance(hand.log._records[hand.log.last_sequence], SnapshotEnd)
