"""Snapshot runs: when they come, that they end, and that a channel of any size fits into one."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from handbroker import HandBroker, all_stopped, durable, offsets_of, publish
from hypothesis import given
from hypothesis import strategies as st

from mq import draft, snapshot
from mq.command import Ack, CancelSchedule, CreateChannel, DeleteChannel, ListSchedules, Nack, Pull, Receipt
from mq.limits import Limits
from mq.producer import Producers
from wal.memory import MemoryLog
from wal.record import ChannelSnapshot, SnapshotBegin, SnapshotEnd

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


@pytest.mark.parametrize("seed", range(8))
def test_delayed_messages_that_change_while_a_snapshot_is_drafted_are_told_as_they_are_in_the_end(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafted four at a time; before each turn of the run some are planned, some cancelled, and some come out."""
    monkeypatch.setattr(draft, "STEP", 8)
    monkeypatch.setattr(draft, "CHUNK", 4)
    random = Random(seed)
    hand = HandBroker(limits=Limits(snapshot_bytes=1 << 40))
    for channel in "abc":
        hand.ask(CreateChannel(channel))

    def change(times: int, cancelled: float = 0.4) -> None:
        for _ in range(times):
            channel = random.choice("abc" if "b" in hand.state.channels else "ac")
            planned = hand.ask(ListSchedules(channel)).schedules
            if planned and random.random() < cancelled:
                hand.ask(CancelSchedule(channel, random.choice(planned).schedule_id))
            elif random.random() < 0.1:
                hand.tick(random.randrange(2_000))
            else:
                hand.ask(publish(channel, "later", delay_ms=random.randrange(1, 90_000)))

    change(150, cancelled=0.1)
    snapshotter = hand.broker._snapshotter
    hand.loop.call_soon(snapshotter._begin)
    hand.settle()
    turns = 0
    while snapshotter._begin_sequence:
        change(random.randrange(3))
        if turns == 12 and seed % 4 == 0:
            hand.ask(DeleteChannel("b"))
        hand.loop.call_soon(snapshotter._next)
        hand.settle()
        turns += 1
    assert turns > 8
    change(3)
    assert [channel.schedules.changed for channel in hand.state.channels.values()] == [None] * len(hand.state.channels)
    before = durable(hand.state)
    again = hand.crash()
    assert isinstance(next(iter(again.log.replay()))[1], SnapshotBegin)
    assert durable(again.state) == before
    assert list(again.state.schedules) == list(hand.state.schedules)
    assert again.state.set_aside == 0


def large(limits: Limits, log: MemoryLog) -> HandBroker:
    """A broker with one channel of which everything is there that can become much."""
    hand = HandBroker(log, limits=limits)
    hand.ask(CreateChannel("a", partitions=3))
    hand.ask(CreateChannel("b"))
    for number in range(60):
        fields = {"producer_id": f"producer-{number % 7}", "sequence": number // 7, "crc": number}
        hand.ask(publish("a", *"0123456789", partition=number % 3, **fields))
        hand.ask(publish("a", "later", partition=0, delay_ms=60_000 + number))
    for name in ("g", "h"):
        for _ in range(6):
            got = hand.ask(Pull("a", name, "m", max_messages=70))
            for pulled in got.batches:
                odd, even = ([(at, at + 1) for at in offsets_of(pulled) if at % 2 == rest] for rest in (1, 0))
                hand.ask(Ack("a", name, "m", [Receipt(pulled.receipt, odd)]))
                hand.ask(Nack("a", name, "m", [Receipt(pulled.receipt, even)], delay_ms=9_000 + pulled.base_offset))
    return hand


def test_a_channel_larger_than_a_record_is_told_in_several_and_comes_back_whole() -> None:
    limits = Limits(snapshot_record_bytes=300)
    hand = large(limits, MemoryLog(max_record_bytes=1000, is_held=True))
    before = durable(hand.state)
    again = hand.restart()
    parts = [record for _, record in again.log.replay() if isinstance(record, ChannelSnapshot)]
    assert len(parts) > 10
    assert max(part.ByteSize() for part in parts) <= 700  # a partition with its marks is in one piece
    assert again.broker.failed is None
    assert durable(again.state) == before
    assert again.state.set_aside == 0
    assert len(again.state.schedules) == 60
    assert durable(again.restart().state) == before  # and the log was not changed by reading it


@pytest.fixture(scope="module")
def whole() -> ChannelSnapshot:
    hand = large(Limits(), MemoryLog(is_held=True))
    try:
        return snapshot.take(hand.state.channels["a"])
    finally:
        hand.stop()


@given(st.integers(100, 5000))
def test_parts_of_any_size_are_one_snapshot_again(whole: ChannelSnapshot, most_bytes: int) -> None:
    joined: ChannelSnapshot | None = None
    for part in snapshot.split(whole, most_bytes):
        assert joined is None or joined.more
        joined = snapshot.join(joined, part)
    assert joined is not None
    assert not joined.more
    producers = Producers(100, 64, 1 << 60)
    assert snapshot.take(snapshot.restore(joined, producers)) == whole


def test_a_snapshot_of_which_a_part_is_lost_changes_nothing() -> None:
    hand = large(Limits(), MemoryLog(is_held=True))
    before = durable(hand.state)
    channel = hand.state.channels["a"]
    parts = snapshot.split(snapshot.take(channel), 300)
    for kept in (parts[:-1], parts[:3] + parts[4:], parts[1:]):
        hand.state.apply(0, SnapshotBegin(channel_ids=[channel.channel_id]))
        for part in kept:
            hand.state.apply(0, part)
        assert hand.state.channels["a"] is channel
    assert durable(hand.state) == before
    for part in parts:
        hand.state.apply(0, part)
    assert hand.state.channels["a"] is not channel
    assert durable(hand.state) == before


def test_a_snapshot_that_the_log_does_not_take_is_given_up_and_nothing_else() -> None:
    hand = large(Limits(), MemoryLog(max_record_bytes=1000, is_held=True))
    before = durable(hand.state)
    again = hand.restart()
    assert hand.broker.failed is None
    assert runs(hand.log) == 0
    assert durable(again.state) == before
    again.ask(publish("a", "on", partition=1))


def test_a_snapshot_that_the_log_does_not_take_holds_up_no_publish() -> None:
    hand = large(Limits(snapshot_bytes=2000), MemoryLog(max_record_bytes=1000, is_held=True))
    for number in range(50):
        hand.ask(publish("b", str(number) * 50))
    assert hand.broker.failed is None
    assert durable(hand.crash().state) == durable(hand.state)
