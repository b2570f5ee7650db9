"""A group that waits for more: for as many as came together lately, for a moment, and only while all are in a hurry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from handbroker import Asked, HandBroker, all_stopped, publish
from hypothesis import given
from hypothesis import strategies as st

from mq.command import OS, CreateChannel
from mq.commitqueue import Leisure
from mq.company import FRESH_SECONDS, LONGEST_SECONDS, LOOKS, Company
from wal import FileLog, Options

__all__ = ["all_stopped"]


class Loop:
    """Of one broker: groups of requests that come and are answered, one after the other."""

    def __init__(self) -> None:
        self.now = 1.0
        self.company = Company(lambda: self.now)

    def group(self, requests: int) -> int:
        """One that nobody joins; returns how many turns it waited."""
        turns = 0
        while not self.company.is_complete(requests):
            turns += 1
            assert turns < 1_000, "it never goes"
        self.company.answered()
        return turns


def test_who_is_always_alone_never_waits() -> None:
    loop = Loop()
    assert [loop.group(1) for _ in range(100)] == [0] * 100


def test_a_group_waits_for_those_who_came_with_the_last_one() -> None:
    loop = Loop()
    loop.group(4)
    assert not loop.company.is_complete(1)
    assert not loop.company.is_complete(3)
    assert loop.company.is_complete(4)
    assert not loop.company.is_complete(2), "each group looks for itself"


def test_it_goes_after_some_turns_whoever_is_missing() -> None:
    loop = Loop()
    loop.group(4)
    assert loop.group(3) == LOOKS
    assert loop.group(3) == LOOKS


def test_those_who_never_come_again_are_forgotten() -> None:
    loop = Loop()
    loop.group(4)
    waited = [loop.group(1) for _ in range(100)]
    assert sum(map(bool, waited)) == 30  # about a tenth of a request for each group
    assert waited[50:] == [0] * 50


def test_a_burst_of_many_is_forgotten_before_long() -> None:
    loop = Loop()
    loop.group(10_000)
    waited = [loop.group(1) for _ in range(400)]
    assert 100 < sum(map(bool, waited)) < 400
    assert waited[-1] == 0


def test_who_comes_long_after_the_last_answers_does_not_wait() -> None:
    loop = Loop()
    loop.group(2)
    loop.now += 1.1 * FRESH_SECONDS
    assert loop.group(1) == 0


def test_a_wait_that_has_begun_goes_on_where_the_last_answers_are_long_ago_by_then() -> None:
    loop = Loop()
    loop.group(2)
    loop.now += 0.9 * FRESH_SECONDS
    assert not loop.company.is_complete(1)
    loop.now += 0.9 * LONGEST_SECONDS
    assert not loop.company.is_complete(1)
    assert loop.company.is_complete(2)


def test_a_wait_ends_where_the_turns_of_the_loop_are_long() -> None:
    loop = Loop()
    loop.group(2)
    assert not loop.company.is_complete(1)
    loop.now += 1.1 * LONGEST_SECONDS
    assert loop.company.is_complete(1)


@given(st.lists(st.tuples(st.integers(0, 1_000), st.floats(0, 2 * FRESH_SECONDS)), max_size=50))
def test_no_group_waits_for_longer_than_that(groups: list[tuple[int, float]]) -> None:
    loop = Loop()
    for requests, seconds in groups:
        loop.now += seconds
        assert loop.group(requests) in (0, LOOKS)


# ---------------------------------------------------------------- in a broker


@pytest.fixture
def hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HandBroker]:
    """It waits for the disk itself, and everything happens at one moment."""
    monkeypatch.setattr(Leisure, "patience", lambda self: 10.0)
    log = FileLog.open(tmp_path / "log", Options(soft_free_bytes=0), is_threaded=False)
    hand = HandBroker(log)
    hand.ask(CreateChannel("c"))
    hand.broker.owner.queue._company = Company(lambda: 1.0)
    yield hand
    hand.settle()


def turns(hand: HandBroker, number: int) -> None:
    """Of the loop."""
    for _ in range(number):
        hand.loop.call_soon(hand.loop.stop)
        hand.loop.run_forever()


def come(hand: HandBroker, number: int = 1, durability: int = 0) -> list[Asked]:
    """So many publish in one turn."""
    come = [Asked() for _ in range(number)]
    for asked in come:
        hand.loop.call_soon(hand.broker.submit, publish("c", b"x", durability=durability), asked)
    turns(hand, 1)
    return come


def test_two_who_came_together_share_a_sync_again_where_one_is_a_little_late(hand: HandBroker) -> None:
    come(hand, 2)
    turns(hand, 2)
    before = hand.log.usage().fsync_count
    late = come(hand)
    turns(hand, 3)
    assert not late[0].is_answered
    late += come(hand)
    turns(hand, 2)
    assert [asked.is_answered for asked in late] == [True, True]
    assert hand.log.usage().fsync_count == before + 1


def test_who_is_alone_after_all_is_answered_nevertheless(hand: HandBroker) -> None:
    come(hand, 2)
    turns(hand, 2)
    (alone,) = come(hand)
    turns(hand, LOOKS)
    assert not alone.is_answered
    turns(hand, 2)
    assert alone.is_answered


def test_who_does_not_wait_for_the_sync_waits_for_nobody(hand: HandBroker) -> None:
    come(hand, 2)
    turns(hand, 2)
    (quick,) = come(hand, durability=OS)
    turns(hand, 2)
    assert quick.is_answered
