"""What the broker publishes by itself: delayed publishes and dead letters. It keeps to the limits of everybody."""

from __future__ import annotations

from dataclasses import replace

import pytest
from handbroker import HandBroker, all_stopped, contents, publish, receipts

from mq.command import CreateChannel, CreateGroup, Pull, Redrive, Reject
from mq.errors import ResourceExhausted
from mq.limits import Limits
from wal.pb.wal_pb2 import GroupSettings

__all__ = ["all_stopped"]

NARROW = Limits(unsynced_bytes=5_000)


def read(hand: HandBroker, channel: str) -> list[str]:
    found: list[str] = []
    positions: tuple = ()
    while (reply := hand.ask(Pull(channel, positions=positions))).batches:
        found += contents(reply)
        positions = tuple(reply.next)
    return found


def run_short(hand: HandBroker, monkeypatch: pytest.MonkeyPatch, is_short: bool = True) -> None:
    """The disk is almost full, or it no longer is."""
    usage = type(hand.log).usage
    monkeypatch.setattr(hand.log, "usage", lambda: replace(usage(hand.log), is_short_of_space=is_short))
    hand.tick(1_001)


def delayed(hand: HandBroker, count: int) -> list[str]:
    hand.ask(CreateChannel("a"))
    texts = [f"{number}".rjust(1000, "-") for number in range(count)]
    for text in texts:
        hand.ask(publish("a", text, delay_ms=10_000))
    return texts


def exhausted(hand: HandBroker, count: int) -> list[str]:
    """Messages out with a member for the last time; the receipts are nacked by `give_up`."""
    hand.ask(CreateChannel("a"))
    hand.ask(CreateGroup("a", "g", GroupSettings(max_deliver=1, ack_wait_ms=10_000)))
    texts = [f"{number}".rjust(1000, "-") for number in range(count)]
    for text in texts:
        hand.ask(publish("a", text))
    for _ in texts:
        hand.ask(Pull("a", "g", "m", max_messages=1))
    return texts


def let_pass(hand: HandBroker, ms: int) -> int:
    """Time passes and nothing becomes durable; returns how much waits for that."""
    hand.clock.pass_ms(ms)
    for _ in range(5):
        hand.loop.call_soon(hand.broker.tick)
        hand.spin()
    return hand.broker.owner.queue.unsynced_bytes


def test_a_backlog_of_delayed_publishes_waits_for_the_disk() -> None:
    hand = HandBroker(limits=NARROW)
    texts = delayed(hand, 30)
    assert 4_000 < let_pass(hand, 20_000) < 7_000
    hand.settle()
    for _ in range(10):
        hand.settle()  # nobody ticks: the marks bring it on
    assert read(hand, "a") == texts


def test_on_a_full_disk_delayed_publishes_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    hand = HandBroker()
    texts = delayed(hand, 5)
    run_short(hand, monkeypatch)
    hand.tick(20_000)
    hand.tick(1_001)
    assert read(hand, "a") == []
    run_short(hand, monkeypatch, is_short=False)
    hand.tick(1_001)
    assert read(hand, "a") == texts


def test_dead_letters_wait_for_the_disk() -> None:
    hand = HandBroker(limits=NARROW)
    texts = exhausted(hand, 30)
    assert 4_000 < let_pass(hand, 20_000) < 9_000
    for _ in range(10):
        hand.settle()
    assert sorted(read(hand, "a.dlq")) == sorted(texts)


def test_on_a_full_disk_dead_letters_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    hand = HandBroker()
    texts = exhausted(hand, 5)
    run_short(hand, monkeypatch)
    hand.tick(20_000)
    assert "a.dlq" not in hand.state.channels
    run_short(hand, monkeypatch, is_short=False)
    hand.tick(1_001)
    assert sorted(read(hand, "a.dlq")) == texts


def test_a_broker_that_waits_for_room_still_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    hand = HandBroker()
    texts = delayed(hand, 5)
    run_short(hand, monkeypatch)
    hand.tick(20_000)
    again = hand.restart()
    again.tick(1)
    assert read(again, "a") == texts


def test_on_a_full_disk_dead_letters_are_not_sent_back(monkeypatch: pytest.MonkeyPatch) -> None:
    hand = HandBroker()
    hand.ask(CreateChannel("a"))
    hand.ask(publish("a", "x"))
    hand.ask(Reject("a", "g", "m", receipts(hand.ask(Pull("a", "g", "m")))))
    run_short(hand, monkeypatch)
    with pytest.raises(ResourceExhausted):
        hand.ask(Redrive("a.dlq"))
    run_short(hand, monkeypatch, is_short=False)
    assert hand.ask(Redrive("a.dlq")).moved == 1
