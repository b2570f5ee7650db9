"""The way back from a dead-letter channel, and the list of what is delayed."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from handbroker import HandBroker, all_stopped, contents, durable, offsets, publish, receipts, replayed

from mq.command import (
    CancelSchedule,
    CreateChannel,
    DeleteChannel,
    DescribeChannel,
    ListSchedules,
    Pull,
    PurgeChannel,
    Redrive,
    Reject,
    UpdateChannel,
)
from mq.errors import ChannelNotFound, InvalidArgument, ScheduleNotFound
from mq.horizon import Horizon
from mq.limits import Limits
from mq.ranges import RangeSet
from wal.pb.wal_pb2 import Batch, ChannelSettings, Scheduled

__all__ = ["all_stopped"]


def reject(hand: HandBroker, count: int, reason: str = "bad") -> None:
    got = hand.ask(Pull("a", "g", "m", max_messages=count))
    hand.ask(Reject("a", "g", "m", receipts(got), reason=reason))


def read(hand: HandBroker, channel: str) -> list[str]:
    """Everything that is there, by a reader without a group."""
    found: list[str] = []
    positions: tuple = ()
    while True:
        reply = hand.ask(Pull(channel, positions=positions))
        if not reply.batches:
            return found
        found += contents(reply)
        positions = tuple(reply.next)


@pytest.fixture
def hand() -> HandBroker:
    hand = HandBroker()
    hand.ask(CreateChannel("a"))
    hand.ask(publish("a", *"0123456789"))
    return hand


def test_letters_go_back_to_where_they_came_from_and_are_no_longer_dead(hand: HandBroker) -> None:
    reject(hand, 4)
    reply = hand.ask(Redrive("a.dlq"))
    assert (reply.moved, reply.left, reply.next_offset, reply.is_done) == (4, 0, 4, True)
    assert read(hand, "a") == list("0123456789") + list("0123")
    assert read(hand, "a.dlq") == []
    assert hand.ask(Redrive("a.dlq")).moved == 0
    again = hand.ask(Pull("a", "g", "m"))
    assert contents(again) == list("456789") + list("0123")


def test_the_notes_of_the_way_there_are_taken_off_and_the_rest_stays(hand: HandBroker) -> None:
    reject(hand, 1)
    (dead,) = Batch.FromString(hand.ask(Pull("a.dlq")).batches[0].batch).messages
    assert {header.name for header in dead.headers} >= {"mq-origin-channel", "mq-reason"}
    hand.ask(Redrive("a.dlq"))
    back = Batch.FromString(hand.ask(Pull("a", positions=[(0, 10)])).batches[0].batch).messages[0]
    assert (back.content, list(back.headers)) == (b"0", [])


def test_a_filter_by_reason_leaves_the_others_where_they_are(hand: HandBroker) -> None:
    for reason in ("slow", "odd", "slow"):
        reject(hand, 2, reason)
    reply = hand.ask(Redrive("a.dlq", reason="slow"))
    assert (reply.moved, reply.left) == (4, 2)
    assert read(hand, "a")[10:] == list("0145")
    assert hand.ask(Redrive("a.dlq", reason="slow")).moved == 0
    assert hand.ask(DescribeChannel("a.dlq")).partitions[0].start_offset == 2
    assert hand.ask(Redrive("a.dlq")).moved == 2
    assert read(hand, "a")[14:] == list("23")
    assert read(hand, "a.dlq") == []


def test_a_filter_by_age_goes_by_the_time_of_death(hand: HandBroker) -> None:
    reject(hand, 2)
    hand.tick(60_000)
    reject(hand, 2)
    assert hand.ask(Redrive("a.dlq", min_age_ms=60_000)).moved == 2
    hand.tick(60_000)
    assert hand.ask(Redrive("a.dlq", max_age_ms=59_000)).moved == 0
    assert hand.ask(Redrive("a.dlq", max_age_ms=61_000)).moved == 2
    assert read(hand, "a")[10:] == list("0123")


def test_a_slice_at_a_time_with_filtered_letters_between(hand: HandBroker) -> None:
    for number in range(10):
        reject(hand, 1, "even" if number % 2 == 0 else "odd")
    start, moved = 0, []
    while True:
        reply = hand.ask(Redrive("a.dlq", reason="odd", max_messages=3, start_offset=start))
        moved.append(reply.moved)
        start = reply.next_offset
        if reply.is_done:
            break
    assert sum(moved) == 5
    assert max(moved) <= 3
    assert sorted(read(hand, "a")[10:]) == list("13579")


class Unwalkable(RangeSet):
    """May be asked, and is not to be walked over: there may be a hundred thousand ranges."""

    __slots__ = ()

    def __iter__(self) -> Iterator[tuple[int, int]]:
        raise AssertionError("somebody walks over all ranges")


def test_a_slice_does_not_walk_over_what_earlier_ones_sent_back(hand: HandBroker) -> None:
    for number in range(10):
        reject(hand, 1, "even" if number % 2 == 0 else "odd")
    assert hand.ask(Redrive("a.dlq", reason="odd")).moved == 5
    dead = hand.state.channels["a.dlq"]
    cursor = dead.groups["mq-redrive"].cursors[0]
    assert len(cursor.acked) == 5
    cursor.acked = Unwalkable(cursor.acked)
    starts = []
    while not hand.ask(Redrive("a.dlq", max_messages=2)).is_done:
        starts.append(dead.partitions[0].start_offset)
    assert starts == [4, 8]
    assert cursor.offset == dead.partitions[0].start_offset == 10
    assert read(hand, "a")[10:] == list("1357902468")


def test_letters_whose_origin_is_gone_stay_until_somebody_names_a_place(hand: HandBroker) -> None:
    reject(hand, 3)
    hand.ask(DeleteChannel("a"))
    reply = hand.ask(Redrive("a.dlq"))
    assert (reply.moved, reply.left) == (0, 3)
    with pytest.raises(ChannelNotFound):
        hand.ask(Redrive("a.dlq", to="nowhere"))
    hand.ask(CreateChannel("b", partitions=4))
    assert hand.ask(Redrive("a.dlq", to="b")).moved == 3
    assert read(hand, "b") == list("012")


def test_only_a_dead_letter_channel_is_sent_back_and_not_to_itself(hand: HandBroker) -> None:
    with pytest.raises(InvalidArgument, match="no dead-letter channel"):
        hand.ask(Redrive("a"))
    reject(hand, 1)
    with pytest.raises(InvalidArgument, match="itself"):
        hand.ask(Redrive("a.dlq", to="a.dlq"))


def test_a_message_goes_back_to_its_partition() -> None:
    hand = HandBroker()
    hand.ask(CreateChannel("a", partitions=3))
    hand.ask(publish("a", "x", partition=2))
    reject(hand, 1)
    hand.ask(Redrive("a.dlq"))
    assert hand.state.channels["a"].partitions[2].next_offset == 2


def test_letters_that_left_memory_are_read_back() -> None:
    hand = HandBroker(limits=Limits(buffer_bytes=1, read_bytes=64, fetched_bytes=64))
    hand.ask(CreateChannel("a"))
    for number in range(10):
        hand.ask(publish("a", str(number)))
        reject(hand, 1)
    start, moved = 0, 0
    while True:
        reply = hand.ask(Redrive("a.dlq", start_offset=start))
        moved, start = moved + reply.moved, reply.next_offset
        if reply.is_done:
            break
    assert moved == 10
    assert read(hand, "a.dlq") == []


def test_a_crash_at_any_record_leaves_each_message_in_exactly_one_place(hand: HandBroker) -> None:
    reject(hand, 6)
    rng = Random(3)
    start = 0
    for _ in range(20):
        asked = hand.send(Redrive("a.dlq", max_messages=2, start_offset=0))
        if rng.random() < 0.5:
            hand.settle()
            start += asked.answer.moved
        hand = hand.crash()
        back, dead = read(hand, "a")[10:], read(hand, "a.dlq")
        assert sorted(back + dead) == list("012345")
        assert durable(replayed(hand.log, hand.limits)) == durable(hand.state)
    assert start == 6


def test_a_redrive_pins_nothing_for_those_who_drop_what_is_acked(hand: HandBroker) -> None:
    reject(hand, 4)
    hand.ask(UpdateChannel("a.dlq", ChannelSettings(drop_acked=True)))
    assert hand.ask(Redrive("a.dlq", max_messages=1)).moved == 1
    hand.tick(1000)
    assert read(hand, "a.dlq") == list("123")
    assert hand.ask(PurgeChannel("a.dlq")).purged == 3
    assert hand.ask(Redrive("a.dlq")).moved == 0


def test_the_log_is_asked_to_keep_what_is_delayed_and_nothing_that_was_cancelled(hand: HandBroker) -> None:
    """Whatever the order in which they are known."""
    numbers = [hand.ask(publish("a", "later", delay_ms=60_000)).schedule_id for _ in range(6)]
    hand.ask(CancelSchedule("a", numbers[2]))
    channel = hand.state.channels["a"]
    for number, planned in reversed(list(channel.schedules.items())):
        channel.schedules.drop(number)
        channel.schedules.plan(number, planned)
    assert list(channel.schedules) != sorted(channel.schedules)
    horizon = Horizon(hand.state)
    hand.ask(CancelSchedule("a", numbers[4]))
    kept = [number for number in numbers if horizon.needs(Scheduled(channel_id=channel.channel_id, schedule_id=number))]
    assert kept == [number for number in numbers if number != numbers[2]], "as it was when it was taken"


def test_nothing_is_left_of_what_is_cancelled_or_deleted_before_it_is_due(hand: HandBroker) -> None:
    hand.ask(CreateChannel("b"))
    for number in range(20):
        hand.ask(publish("a", str(number), delay_ms=60_000 + number))
        hand.ask(publish("b" if number < 12 else "a", str(number), delay_ms=70_000 - number))
    for planned in hand.ask(ListSchedules("a")).schedules[:24]:
        hand.ask(CancelSchedule("a", planned.schedule_id))
    assert len(hand.state.schedules) == 16
    hand.ask(DeleteChannel("b"))
    assert len(hand.state.schedules) == len(hand.ask(ListSchedules("a")).schedules) == 4
    hand.ask(publish("a", "last", delay_ms=1))
    hand.ask(CreateChannel("b"))
    hand.ask(publish("b", "few", delay_ms=60_000))
    hand.ask(DeleteChannel("b"))
    assert len(hand.state.schedules) == 5
    hand = hand.restart()
    assert len(hand.state.schedules) == 5
    hand.tick(100_000)
    assert list(hand.state.schedules) == []


def test_delayed_messages_are_listed_by_their_time_and_can_be_cancelled(hand: HandBroker) -> None:
    late = hand.ask(publish("a", "late", "later", delay_ms=60_000)).schedule_id
    soon = hand.ask(publish("a", "soon", delay_ms=1000)).schedule_id
    found = hand.ask(ListSchedules("a")).schedules
    assert [(at.schedule_id, at.count) for at in found] == [(soon, 1), (late, 2)]
    (first,) = hand.ask(ListSchedules("a", most=1)).schedules
    (second,) = hand.ask(ListSchedules("a", most=1, after=(first.due_us, first.schedule_id))).schedules
    assert (first.schedule_id, second.schedule_id) == (soon, late)
    hand = hand.restart()
    assert len(hand.ask(ListSchedules("a")).schedules) == 2
    hand.ask(CancelSchedule("a", late))
    with pytest.raises(ScheduleNotFound):
        hand.ask(CancelSchedule("a", late))
    hand.tick(120_000)
    hand.settle()
    assert read(hand, "a")[10:] == ["soon"]
    assert offsets(hand.ask(Pull("a", positions=[(0, 10)]))) == [10]
