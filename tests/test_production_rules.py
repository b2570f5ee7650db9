"""Rules to rely on: commits in transactions, a start without old messages, lag, pending, channels made anew."""

from __future__ import annotations

import pytest
from handbroker import HandBroker, all_stopped, contents, durable, offsets, publish, receipts, replayed

from mq.command import (
    Ack,
    Commit,
    CreateChannel,
    CreateGroup,
    DeleteChannel,
    DescribeChannel,
    DescribeGroup,
    Nack,
    Position,
    Pull,
    Seek,
    Start,
    Transact,
)
from mq.config import Config
from mq.errors import ChannelNotFound, GroupNotFound, LeaseLost, MqError, OffsetOutOfRange, SequenceRefused
from mq.limits import Limits
from mq.server import limits
from wal.memory import MemoryLog
from wal.pb.wal_pb2 import GroupSettings

__all__ = ["all_stopped"]

ORDERED = GroupSettings(mode=GroupSettings.ORDERED, ack_wait_ms=30_000)


@pytest.fixture
def hand() -> HandBroker:
    hand = HandBroker()
    for name in "ab":
        hand.ask(CreateChannel(name))
    hand.ask(publish("a", *"0123456789"))
    return hand


# ---------------------------------------------------------------- commits in transactions


def take(hand: HandBroker, member: str = "m") -> int:
    """A pull of an ordered member; the generation."""
    return hand.ask(Pull("a", "o", member, max_messages=4)).generation


def moved(generation: int, to: int, member: str = "m", **fields: object) -> Transact:
    commits = [Commit("a", "o", member, generation, [Position(0, to)])]
    return Transact([publish("b", f"after {to}")], commits=commits, **fields)  # type: ignore[arg-type]


def read(hand: HandBroker, channel: str) -> list[str]:
    return contents(hand.ask(Pull(channel)))


def test_a_transaction_publishes_and_commits_in_one_step(hand: HandBroker) -> None:
    hand.ask(CreateGroup("a", "o", ORDERED))
    generation = take(hand)
    hand.ask(moved(generation, 4))
    assert hand.ask(DescribeGroup("a", "o")).positions[0].offset == 4
    assert hand.ask(DescribeGroup("a", "o")).pending == 0
    assert read(hand, "b") == ["after 4"]
    assert durable(replayed(hand.log, hand.limits)) == durable(hand.state)
    hand = hand.crash()
    assert hand.ask(DescribeGroup("a", "o")).positions[0].offset == 4
    assert offsets(hand.ask(Pull("a", "o", "m"))) == [4, 5, 6, 7, 8, 9]


def test_a_stale_commit_undoes_the_whole_transaction(hand: HandBroker) -> None:
    hand.ask(CreateGroup("a", "o", ORDERED))
    generation = take(hand)
    for stale in (moved(generation - 1, 4), moved(generation, 4, "n")):
        with pytest.raises(LeaseLost):
            hand.ask(stale)
    with pytest.raises(OffsetOutOfRange):
        hand.ask(moved(generation, 11))
    assert read(hand, "b") == []
    assert hand.ask(DescribeGroup("a", "o")).positions[0].offset == 0
    assert hand.ask(DescribeGroup("a", "o")).pending == 4


def test_a_retried_transaction_has_its_effect_once(hand: HandBroker) -> None:
    hand.ask(CreateGroup("a", "o", ORDERED))
    generation = take(hand)
    hand.ask(moved(generation, 4, producer_id="p", sequence=0))
    assert hand.ask(moved(generation, 4, producer_id="p", sequence=0)).duplicate
    hand = hand.crash()
    assert hand.ask(moved(generation, 4, producer_id="p", sequence=0)).duplicate
    assert read(hand, "b") == ["after 4"]
    with pytest.raises(SequenceRefused):
        hand.ask(moved(generation, 4, producer_id="p", sequence=2))


def test_a_transaction_of_commits_alone_is_remembered_too(hand: HandBroker) -> None:
    hand.ask(CreateGroup("a", "o", ORDERED))
    generation = take(hand)
    for sequence in range(2):
        commits = [Commit("a", "o", "m", generation, [Position(0, 4)])]
        again = Transact([], commits=commits, producer_id="p", sequence=sequence)
        assert not hand.ask(again).duplicate
        assert hand.ask(again).duplicate


# ---------------------------------------------------------------- a start without old messages


def without_old(hand: HandBroker) -> HandBroker:
    hand.settle()
    hand.stop()
    return HandBroker(hand.log.crash(), hand.clock, Limits(serves_old=False))


def test_a_start_may_leave_old_messages_unserved_and_deletes_none(hand: HandBroker) -> None:
    hand.ask(CreateGroup("a", "g"))
    hand.ask(Nack("a", "g", "m", receipts(hand.ask(Pull("a", "g", "m", max_messages=2))), delay_ms=0))
    hand = without_old(hand)
    assert read(hand, "a") == []
    assert hand.ask(Pull("a", "g", "m")).batches == []
    hand.ask(publish("a", "new"))
    assert read(hand, "a") == ["new"]
    got = hand.ask(Pull("a", "g", "m"))
    assert contents(got) == ["new"]
    hand.ask(Ack("a", "g", "m", receipts(got)))
    hand.ask(CreateGroup("a", "h"))
    assert contents(hand.ask(Pull("a", "h", "m"))) == ["new"]
    assert hand.ask(Seek("a", "h", start=Start("offset", 3))).positions == [Position(0, 10)]
    with pytest.raises(OffsetOutOfRange, match="between 10 and 11"):
        hand.ask(Pull("a", positions=[Position(0, 3)]))
    hand.settle()
    hand.stop()
    again = HandBroker(hand.log.crash(), hand.clock)
    assert read(again, "a") == [*"0123456789", "new"]
    again.tick(60_000)
    left = again.ask(Pull("a", "g", "m"))
    left = contents(left) + contents(again.ask(Pull("a", "g", "m")))
    assert sorted(left) == list("0123456789")


def test_such_a_start_shows_where_it_begins(hand: HandBroker) -> None:
    hand = without_old(hand)
    (partition,) = hand.ask(DescribeChannel("a")).partitions
    assert (partition.start_offset, partition.next_offset) == (10, 10)
    assert contents(hand.ask(Pull("a", start=Start("time", 0)))) == []
    assert contents(hand.ask(Pull("a", start=Start("last", 5)))) == []


def test_the_variables_reach_the_broker() -> None:
    made = limits(Config.from_env({"STORAGE_SYNC_ON_STARTUP": "false", "CHANNEL_DROP_ACKED": "true"}))
    assert (made.serves_old, made.channel.drop_acked) == (False, True)


# ---------------------------------------------------------------- lag and pending


@pytest.mark.parametrize("buffer_bytes", [1, 1 << 20])
def test_lag_is_the_age_of_the_oldest_message_that_is_not_acked(buffer_bytes: int) -> None:
    hand = HandBroker(MemoryLog(is_held=True), limits=Limits(buffer_bytes=buffer_bytes))
    hand.ask(CreateChannel("a"))
    hand.ask(CreateGroup("a", "g"))
    for number in range(10):
        hand.ask(publish("a", str(number)))
        hand.clock.pass_ms(1000)
    assert hand.ask(DescribeGroup("a", "g")).lag_us == pytest.approx(10_000_000, abs=1_000_000)
    for expected in range(9, 5, -1):
        hand.ask(Ack("a", "g", "m", receipts(hand.ask(Pull("a", "g", "m", max_messages=1)))))
        info = hand.ask(DescribeGroup("a", "g"))
        assert info.lag == expected
        assert info.lag_us == pytest.approx(expected * 1_000_000, abs=1_000_000)
    while (got := hand.ask(Pull("a", "g", "m"))).batches:
        hand.ask(Ack("a", "g", "m", receipts(got)))
    assert (hand.ask(DescribeGroup("a", "g")).lag, hand.ask(DescribeGroup("a", "g")).lag_us) == (0, 0)


def test_pending_tells_who_holds_what_since_when_and_how_often(hand: HandBroker) -> None:
    hand.ask(CreateGroup("a", "g", GroupSettings(ack_wait_ms=30_000, backoff_ms=[1000], max_deliver=5)))
    began = hand.clock.us
    held = hand.ask(Pull("a", "g", "m", max_messages=3))
    hand.ask(Ack("a", "g", "m", [receipts(held)[0].__class__(held.batches[0].receipt, [(1, 2)])]))
    hand.clock.pass_ms(500)
    hand.ask(Nack("a", "g", "n", receipts(hand.ask(Pull("a", "g", "n", max_messages=2)))))
    info = hand.ask(DescribeGroup("a", "g", pending=True))
    assert info.pending == 4
    assert [tuple(each) for each in info.pending_ranges] == [
        (0, 0, 1, "m", 1, began + 30_000_000, began),
        (0, 2, 3, "m", 1, began + 30_000_000, began),
        (0, 3, 5, "", 1, began + 1_500_000, 0),
    ]


# ---------------------------------------------------------------- channels made anew


def test_a_channel_made_anew_knows_nobody_of_the_old_one(hand: HandBroker) -> None:
    hand.ask(CreateGroup("a", "o", ORDERED))
    generation = take(hand)
    held = hand.ask(Pull("a", "g", "m", max_messages=3))
    waiting = [
        hand.send(Pull("a", max_wait_ms=5000, positions=[Position(0, 10)])),
        hand.send(Pull("a", "o", "n", max_wait_ms=5000)),
    ]
    hand.ask(DeleteChannel("a"))
    assert all(isinstance(asked.answer, ChannelNotFound) for asked in waiting)
    hand.ask(CreateChannel("a"))
    stale: list[tuple[type[MqError], object]] = [
        (GroupNotFound, Ack("a", "g", "m", receipts(held))),
        (OffsetOutOfRange, Pull("a", positions=[Position(0, 10)])),
    ]
    for error, command in stale:
        with pytest.raises(error):
            hand.ask(command)  # type: ignore[arg-type]
    hand.ask(publish("a", *"0123456789"))
    hand.ask(Pull("a", "g", "m"))
    hand.ask(CreateGroup("a", "o", ORDERED))
    take(hand)
    for command in (Ack("a", "g", "m", receipts(held)), Commit("a", "o", "m", generation, [Position(0, 4)])):
        with pytest.raises(LeaseLost):
            hand.ask(command)
    hand = hand.crash()
    assert read(hand, "a") == list("0123456789")
