"""Retention, rule by rule, with a clock that moves when told to; and the marks that it goes by."""

import pytest
from handbroker import HandBroker, all_stopped, contents, durable, offsets, publish, receipts, replayed
from hypothesis import given
from hypothesis import strategies as st

from mq.command import (
    Ack,
    CreateChannel,
    CreateGroup,
    DescribeChannel,
    DescribeGroup,
    Nack,
    Position,
    Pull,
    Start,
    UpdateChannel,
)
from mq.errors import OffsetOutOfRange
from mq.ladder import MOST, NEVER_US, Ladder
from mq.limits import Limits
from mq.retention import decide_retention
from wal.pb.wal_pb2 import ChannelSettings, GroupSettings, Trimmed

__all__ = ["all_stopped"]

HOUR_MS = 3_600_000


def keeping(**settings: int) -> HandBroker:
    hand = HandBroker()
    hand.ask(CreateChannel("a", settings=ChannelSettings(**settings)))
    return hand


def kept(hand: HandBroker) -> range:
    (partition,) = hand.ask(DescribeChannel("a")).partitions
    return range(partition.start_offset, partition.next_offset)


def test_messages_go_when_they_are_old_and_not_before() -> None:
    hand = keeping(max_age_ms=HOUR_MS)
    for hour in range(3):
        hand.ask(publish("a", f"{hour}.0", f"{hour}.1"))
        hand.clock.pass_ms(HOUR_MS / 4)
    hand.tick(HOUR_MS / 4 - 1)
    assert kept(hand) == range(6)
    hand.tick(1)
    hand.tick(1000)
    assert kept(hand) == range(2, 6)
    hand.tick(HOUR_MS / 4)
    assert kept(hand) == range(4, 6)
    hand.tick(HOUR_MS)
    assert kept(hand) == range(6, 6)
    hand.ask(publish("a", "again"))
    hand.tick(1000)
    assert kept(hand) == range(6, 7)


def test_the_newest_so_many_messages_are_kept() -> None:
    hand = keeping(max_messages=5)
    hand.ask(publish("a", *"0123456789"))
    hand.tick(1000)
    assert kept(hand) == range(5, 10)
    assert contents(hand.ask(Pull("a"))) == list("56789")


def test_the_newest_so_many_bytes_are_kept_and_the_last_record_always() -> None:
    hand = keeping(max_bytes=1000)
    for _ in range(20):
        hand.ask(publish("a", bytes(98)))  # 102 with the tags and lengths around it
        hand.tick(1000)
        assert hand.ask(DescribeChannel("a")).bytes <= 1020
    assert len(kept(hand)) == 9
    hand.ask(publish("a", bytes(5000)))
    hand.tick(1000)
    assert kept(hand) == range(20, 21)


def test_what_every_group_acked_goes_and_without_a_group_nothing_does() -> None:
    hand = keeping(drop_acked=1)
    hand.ask(publish("a", *"0123456789"))
    hand.tick(1000)
    assert kept(hand) == range(10)
    for name in "gh":
        hand.ask(CreateGroup("a", name))
    got = hand.ask(Pull("a", "g", "m", max_messages=6))
    hand.ask(Ack("a", "g", "m", receipts(got)))
    hand.tick(1000)
    assert kept(hand) == range(10)
    got = hand.ask(Pull("a", "h", "m", max_messages=4))
    hand.ask(Ack("a", "h", "m", receipts(got)))
    hand.tick(1000)
    assert kept(hand) == range(4, 10)
    assert hand.ask(DescribeGroup("a", "h")).skipped == 0
    assert offsets(hand.ask(Pull("a", "h", "m"))) == [4, 5, 6, 7, 8, 9]


def test_a_group_that_was_overtaken_goes_on_at_the_start_and_says_how_much_it_missed() -> None:
    hand = keeping(max_messages=4)
    hand.ask(CreateGroup("a", "g"))
    hand.ask(publish("a", *"0123"))
    out = hand.ask(Pull("a", "g", "m", max_messages=2))
    hand.ask(Ack("a", "g", "m", receipts(out)))
    hand.ask(publish("a", *"456789"))
    hand.tick(1000)
    assert hand.ask(DescribeGroup("a", "g")).skipped == 4
    hand = hand.crash()
    assert hand.ask(DescribeGroup("a", "g")).skipped == 4
    assert offsets(hand.ask(Pull("a", "g", "m"))) == [6, 7, 8, 9]


def test_a_reader_before_the_start_is_told_the_valid_range() -> None:
    hand = keeping(max_messages=4)
    hand.ask(publish("a", *"0123456789"))
    hand.tick(1000)
    with pytest.raises(OffsetOutOfRange, match="not between 6 and 10") as refused:
        hand.ask(Pull("a", positions=[Position(0, 3)]))
    assert (refused.value.start_offset, refused.value.next_offset) == (6, 10)
    with pytest.raises(OffsetOutOfRange):
        hand.ask(Pull("a", partition=0, start=Start("offset", 5)))


def test_an_ordered_group_held_up_by_a_message_goes_on_when_that_is_trimmed() -> None:
    hand = keeping(max_messages=2)
    hand.ask(CreateGroup("a", "g", GroupSettings(mode=GroupSettings.ORDERED, backoff_ms=[HOUR_MS])))
    hand.ask(publish("a", "0", "1"))
    out = hand.ask(Pull("a", "g", "m", max_messages=1))
    hand.ask(Nack("a", "g", "m", receipts(out)))
    waiting = hand.send(Pull("a", "g", "m", max_messages=1, max_wait_ms=5000))
    assert not waiting.is_answered
    hand.ask(publish("a", "2"))
    hand.tick(1000)
    assert offsets(waiting.answer) == [1]


def test_settings_changed_on_a_live_channel_count_from_then_on() -> None:
    hand = HandBroker()
    hand.ask(CreateChannel("a"))
    for number in range(300):
        hand.ask(publish("a", str(number)))
        hand.clock.pass_ms(1000)
    hand.tick(HOUR_MS)
    assert kept(hand) == range(300)
    hand.ask(UpdateChannel("a", ChannelSettings(max_age_ms=HOUR_MS + 100_000)))
    hand.tick(1000)
    start = kept(hand).start
    assert 201 - 300 * 2 / MOST <= start <= 201
    hand.ask(UpdateChannel("a", ChannelSettings()))
    hand.tick(HOUR_MS)
    assert kept(hand).start == start


@pytest.mark.parametrize("end", ["crash", "restart"])
def test_retention_goes_on_after_a_restart_with_nothing_in_memory(end: str) -> None:
    hand = keeping(max_age_ms=HOUR_MS)
    for _ in range(10):
        hand.ask(publish("a", "x", "y"))
        hand.tick(60_000)
    before = durable(hand.state)
    hand = hand.crash() if end == "crash" else hand.restart()
    assert durable(hand.state) == before
    hand.tick(HOUR_MS - 5 * 60_000)
    assert kept(hand) == range(12, 20)
    hand.tick(HOUR_MS)
    assert kept(hand) == range(20, 20)


def test_a_trim_is_a_record_that_names_its_reason() -> None:
    hand = keeping(max_messages=1)
    hand.ask(publish("a", "0", "1"))
    hand.tick(1000)
    (trim,) = [record for _, record in hand.log.replay() if isinstance(record, Trimmed)]
    assert (trim.start_offset, trim.reason) == (1, "max-messages")
    assert durable(replayed(hand.log, hand.limits)) == durable(hand.state)


def test_a_clock_that_jumps_backwards_trims_nothing_early() -> None:
    hand = keeping(max_age_ms=HOUR_MS)
    hand.ask(publish("a", "first"))
    hand.clock.pass_ms(-10 * HOUR_MS)
    hand.ask(publish("a", "second"))
    hand.tick(1000)
    hand.clock.pass_ms(10 * HOUR_MS)
    hand.tick()
    assert kept(hand) == range(2)  # what follows a younger message stays as long as that does
    hand.tick(HOUR_MS)
    assert kept(hand) == range(2, 2)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_expired_messages_are_trimmed_up_to_the_first_that_is_not(is_restarted: bool) -> None:
    hand = HandBroker()
    hand.ask(CreateChannel("a"))
    hand.ask(CreateGroup("a", "g"))
    hand.ask(publish("a", "0", "1", ttl_ms=1000))
    hand.ask(publish("a", "2", ttl_ms=60_000))
    hand.ask(publish("a", "3", ttl_ms=1000))
    hand = hand.restart() if is_restarted else hand
    hand.tick(999)
    assert kept(hand) == range(4)
    hand.tick(1001)
    assert kept(hand) == range(2, 4)
    hand.tick(60_000)
    assert kept(hand) == range(4, 4)
    info = hand.ask(DescribeChannel("a"))
    assert (info.expired, hand.ask(DescribeGroup("a", "g")).skipped) == (4, 4)
    hand.ask(publish("a", "for ever"))
    hand.ask(publish("a", "5", ttl_ms=1000))
    hand.tick(60_000)
    assert kept(hand) == range(4, 6)


def test_only_channels_that_may_be_due_are_looked_at() -> None:
    """The cost of a look does not grow with the channels that are quiet."""
    hand = HandBroker(limits=Limits(channel=ChannelSettings(max_age_ms=HOUR_MS)))
    for number in range(50):
        hand.ask(CreateChannel(f"c{number}"))
        hand.ask(publish(f"c{number}", "x"))
    hand.tick(1000)
    hand.tick(1000)
    assert not hand.state.crowded
    assert len(hand.state.aging) == 50
    hand.ask(publish("c7", "y"))
    assert list(hand.state.crowded) == [hand.state.channels["c7"].channel_id]
    hand.tick(1000)
    assert decide_retention(hand.state, hand.clock.us) == ([], [])
    assert len(hand.state.aging) == 50, "nobody waits twice"
    hand.tick(HOUR_MS)
    assert all(at.partitions[0].start_offset == at.partitions[0].next_offset for at in hand.state.channels.values())
    assert not hand.state.aging


sizes = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 500), st.integers(0, 50)), min_size=1, max_size=200)


@given(sizes, st.lists(st.integers(0, 10_000), max_size=5))
def test_marks_are_few_and_tell_no_lie(records: list[tuple[int, int, int]], trims: list[int]) -> None:
    ladder = Ladder()
    start = end = kept_bytes = now = 0
    before: list[tuple[int, int]] = []  # of each message: bytes before it, time
    total = latest = 0
    expiries: list[int] = []  # of each message: the last of those up to it
    for count, size, pause in records:
        now += pause + 1
        ladder.note(end, kept_bytes)
        ladder.reach(now, pause)
        latest = max(latest, now + pause * 1000 if pause else NEVER_US)
        expiries += [latest] * count
        before += [(total + size * index // count, now) for index in range(count)]
        kept_bytes, total, end = kept_bytes + size, total + size, end + count
    for trim in trims:
        if start < trim <= end:
            kept_bytes = ladder.trim(start, trim, end, kept_bytes)
            start = trim
    marks = list(ladder)
    assert len(marks) <= MOST
    assert 0 <= kept_bytes <= total
    for offset, size, time_us, expiry_us in marks:
        assert expiry_us == expiries[offset - 1]
        assert start < offset < end
        assert kept_bytes - size == total - before[offset][0]
        assert max(at for _, at in before[:offset]) == time_us
    for probe in range(0, now + 2, 7):
        reached = ladder.offset_at(probe, end)
        assert all(at <= probe for _, at in before[start:reached])
