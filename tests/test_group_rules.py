"""Groups, rule by rule: leases, redelivery, dead letters, limits, order."""

import asyncio
import weakref

import pytest
from handbroker import Asked, HandBroker, all_stopped, contents, offsets, publish, receipts

from mq.command import (
    Ack,
    Commit,
    CreateChannel,
    CreateGroup,
    DeleteChannel,
    DeleteGroup,
    DescribeGroup,
    Extend,
    Leave,
    ListGroups,
    Nack,
    Position,
    Pull,
    PurgeChannel,
    Receipt,
    Reject,
    Seek,
    Start,
    UpdateGroup,
)
from mq.errors import ChannelNotFound, GroupExists, GroupInUse, GroupNotFound, InvalidArgument, LeaseLost
from mq.group import REMEMBERED_TURNS, Group
from mq.limits import Limits
from wal.pb.wal_pb2 import Batch, GroupSettings

__all__ = ["all_stopped"]


@pytest.fixture
def hand() -> HandBroker:
    hand = HandBroker()
    hand.ask(CreateChannel("a"))
    hand.ask(publish("a", *"0123456789"))
    return hand


def pull(hand: HandBroker, most: int = 0, member: str = "m", **fields):  # type: ignore[no-untyped-def]
    return hand.ask(Pull("a", "g", member, max_messages=most, **fields))


def test_two_members_never_hold_the_same_message(hand: HandBroker) -> None:
    first, second = pull(hand, 4), pull(hand, 4, "n")
    assert (offsets(first), offsets(second)) == ([0, 1, 2, 3], [4, 5, 6, 7])
    assert first.batches[0].receipt != second.batches[0].receipt


def test_only_a_lease_that_is_out_has_an_alarm(hand: HandBroker) -> None:
    acked = pull(hand, 4)
    hand.clock.pass_ms(10)
    kept = pull(hand, 4)
    assert hand.state.next_alarm_us() == acked.batches[0].lease_until_us
    hand.ask(Ack("a", "g", "m", receipts(acked)))
    assert hand.state.next_alarm_us() == kept.batches[0].lease_until_us
    assert len(hand.state.alarms) == 1
    hand.ask(Ack("a", "g", "m", receipts(kept)))
    assert hand.state.next_alarm_us() == 0
    assert hand.state.alarms == []


def test_a_lease_of_which_part_is_acked_still_ends_by_the_clock(hand: HandBroker) -> None:
    pulled = pull(hand, 4)
    hand.ask(Ack("a", "g", "m", [Receipt(pulled.batches[0].receipt, [(0, 2)])]))
    assert hand.state.next_alarm_us() == pulled.batches[0].lease_until_us
    hand.clock.pass_ms(40_000)
    hand.broker.tick()
    hand.settle()
    hand.clock.pass_ms(40_000)
    assert offsets(pull(hand, 2, "n")) == [2, 3]


def test_acks_out_of_order_become_one_position(hand: HandBroker) -> None:
    one, two = pull(hand, 5), pull(hand, 5)
    hand.ask(Ack("a", "g", "m", receipts(two)))
    cursor = hand.state.channels["a"].groups["g"].cursors[0]
    assert (cursor.offset, list(cursor.acked)) == (0, [(5, 10)])
    hand.ask(Ack("a", "g", "m", [Receipt(one.batches[0].receipt, [(3, 5), (0, 2)])]))
    hand.ask(Ack("a", "g", "m", [Receipt(one.batches[0].receipt, [(2, 3)])]))
    assert (cursor.offset, list(cursor.acked)) == (10, [])


def test_a_lease_ends_by_the_clock_and_the_message_comes_again_after_the_backoff(hand: HandBroker) -> None:
    late = pull(hand)
    hand.tick(29_999)
    assert pull(hand, member="n").batches == []
    hand.tick(2)
    assert pull(hand, member="n").batches == []  # the backoff of one second
    hand.tick(1000)
    again = pull(hand, member="n")
    assert (offsets(again), again.batches[0].delivery_count) == (list(range(10)), 2)
    with pytest.raises(LeaseLost):
        hand.ask(Ack("a", "g", "m", receipts(late)))
    assert hand.ask(Ack("a", "g", "n", receipts(again))).acked == 10


def stale_ack_is_refused(hand: HandBroker) -> bool:
    late = pull(hand)
    hand.tick(31_000)
    hand.tick(1000)
    pull(hand, member="n")
    asked = hand.send(Ack("a", "g", "m", receipts(late)))
    hand.settle()
    return isinstance(asked.answer, LeaseLost) and hand.state.channels["a"].groups["g"].cursors[0].offset == 0


def test_planted_a_stale_receipt_that_is_accepted_is_caught(hand: HandBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    assert stale_ack_is_refused(hand)
    other = HandBroker()
    other.ask(CreateChannel("a"))
    other.ask(publish("a", *"0123456789"))
    known = {}
    honest = Group.grant

    def remembering(self: Group, lease, member) -> None:  # type: ignore[no-untyped-def]
        known[lease.receipt] = lease
        honest(self, lease, member)

    monkeypatch.setattr(Group, "grant", remembering)
    monkeypatch.setattr(Group, "holding", lambda self, member, receipt, **_: (known[receipt.receipt], [(0, 10)]))
    assert not stale_ack_is_refused(other)


@pytest.mark.parametrize("forgery", ["other member", "made up", "outside", "other group"])
def test_a_foreign_receipt_is_refused_and_changes_nothing(hand: HandBroker, forgery: str) -> None:
    hand.ask(CreateGroup("a", "h"))
    got = pull(hand, 5)
    receipt, member, group = got.batches[0].receipt, "m", "g"
    ranges = [(0, 6)] if forgery == "outside" else []
    member = "n" if forgery == "other member" else "m"
    group = "h" if forgery == "other group" else "g"
    receipt = b"0" * 16 if forgery == "made up" else receipt
    good = Receipt(got.batches[0].receipt, [(0, 1)])
    for command in (
        Ack("a", group, member, [good, Receipt(receipt, ranges)]),
        Nack("a", group, member, [good, Receipt(receipt, ranges)]),
        Reject("a", group, member, [good, Receipt(receipt, ranges)]),
        Extend("a", group, member, [good, Receipt(receipt, ranges)]),
    ):
        with pytest.raises(LeaseLost):
            hand.ask(command)
    assert hand.state.channels["a"].groups["g"].cursors[0].offset == 0
    assert hand.ask(Ack("a", "g", "m", receipts(got))).acked == 5


def test_a_receipt_of_another_start_is_refused(hand: HandBroker) -> None:
    got = pull(hand)
    hand.settle()
    again = hand.crash()
    again.ask(Pull("a", "g", "m"))
    with pytest.raises(LeaseLost):
        again.ask(Ack("a", "g", "m", receipts(got)))


def test_a_repeated_ack_is_no_error(hand: HandBroker) -> None:
    got = pull(hand)
    assert hand.ask(Ack("a", "g", "m", receipts(got))).acked == 10
    assert hand.ask(Ack("a", "g", "m", receipts(got))).acked == 0


def test_confirmed_acks_counts_and_delays_survive_a_crash(hand: HandBroker) -> None:
    got = pull(hand)
    receipt = got.batches[0].receipt
    hand.ask(Ack("a", "g", "m", [Receipt(receipt, [(0, 3)])]))
    hand.ask(Nack("a", "g", "m", [Receipt(receipt, [(3, 5)])], delay_ms=5000))
    again = hand.crash()
    first = again.ask(Pull("a", "g", "m"))
    assert offsets(first) == [5, 6, 7, 8, 9]
    again.tick(5000)
    second = again.ask(Pull("a", "g", "m"))
    assert (offsets(second), second.batches[0].delivery_count) == ([3, 4], 2)


def test_after_max_deliver_a_message_is_in_the_dead_letter_channel_with_its_origin(hand: HandBroker) -> None:
    settings = GroupSettings(max_deliver=2, backoff_ms=[10])
    hand.ask(CreateGroup("a", "g", settings))
    for _ in range(2):
        got = pull(hand, 1)
        hand.ask(Nack("a", "g", "m", receipts(got), delay_ms=0))
    hand = hand.crash()
    dead = hand.ask(Pull("a.dlq"))
    (message,) = Batch.FromString(dead.batches[0].batch).messages
    headers = {header.name: header.value for header in message.headers}
    assert (message.content, headers["mq-origin-offset"], headers["mq-delivery-count"]) == (b"0", b"0", b"2")
    assert (headers["mq-origin-channel"], headers["mq-origin-group"], headers["mq-origin-partition"]) == (
        b"a",
        b"g",
        b"0",
    )
    assert headers["mq-reason"] == b"max-deliver"
    assert offsets(pull(hand, 1)) == [1]
    assert hand.ask(DescribeGroup("a", "g")).positions[0].offset == 1


def test_a_crash_between_the_last_delivery_and_the_dead_letter_loses_and_doubles_nothing(hand: HandBroker) -> None:
    hand.ask(CreateGroup("a", "g", GroupSettings(max_deliver=1)))
    got = pull(hand, 1)
    hand.send(Nack("a", "g", "m", receipts(got)))
    redelivered = next(seq for seq, record in hand.log._records.items() if "Redelivered" in type(record).__name__)
    hand.log.release(redelivered)
    assert "a.dlq" in hand.state.channels  # decided, but not durable
    again = hand.crash()
    again.settle()
    assert contents(again.ask(Pull("a.dlq"))) == ["0"]
    third = again.crash()
    assert contents(third.ask(Pull("a.dlq"))) == ["0"]
    assert 0 not in offsets(third.ask(Pull("a", "g", "m")))


def test_reject_moves_to_the_dead_letter_channel_with_the_reason_also_from_disk() -> None:
    from mq.limits import Limits

    hand = HandBroker(limits=Limits(buffer_bytes=500))
    hand.ask(CreateChannel("a"))
    hand.ask(publish("a", *"012"))
    got = pull(hand)
    for _ in range(5):
        hand.ask(publish("a", "x" * 400))
    assert hand.state.channels["a"].partitions[0].buffer.floor > 0
    assert hand.ask(Reject("a", "g", "m", receipts(got), reason="no such order")).rejected == 3
    dead = hand.ask(Pull("a.dlq"))
    assert contents(dead) == ["0", "1", "2"]
    assert b"no such order" in dead.batches[0].batch
    letters = hand.ask(Pull("a.dlq", "g", "m"))
    with pytest.raises(InvalidArgument, match="has none of its own"):
        hand.ask(Reject("a.dlq", "g", "m", receipts(letters)))


def test_extend_keeps_a_lease(hand: HandBroker) -> None:
    got = pull(hand)
    hand.tick(29_000)
    until = hand.ask(Extend("a", "g", "m", receipts(got), ack_wait_ms=60_000)).lease_until_us
    assert until == hand.clock.us + 60_000_000
    hand.tick(59_000)
    assert hand.ask(Ack("a", "g", "m", receipts(got))).acked == 10


def test_a_pull_whose_answer_was_not_sent_gives_its_lease_back(hand: HandBroker) -> None:
    got = pull(hand, 4)
    waiting = hand.send(Pull("a", "g", "n", max_messages=6))
    hand.settle()
    waiting = hand.send(Pull("a", "g", "n", max_messages=4, max_wait_ms=1000))
    assert not waiting.is_answered
    hand.loop.call_soon(hand.broker.release, got.leased())
    hand.settle()
    assert offsets(waiting.answer) == [0, 1, 2, 3]
    assert waiting.answer.batches[0].delivery_count == 1


def test_leave_gives_everything_back_at_once(hand: HandBroker) -> None:
    pull(hand)
    hand.ask(Leave("a", "g", "m"))
    assert offsets(pull(hand, member="n")) == list(range(10))


def test_a_member_that_leaves_stays_away_though_it_still_waits_for_messages(ordered: HandBroker) -> None:
    pull(ordered, 100)
    waiting = ordered.send(Pull("a", "g", "m", max_wait_ms=60_000))
    other = ordered.send(Pull("a", "g", "n", max_wait_ms=60_000))
    ordered.ask(Leave("a", "g", "m"))
    group = ordered.state.channels["a"].groups["g"]
    assert waiting.answer.batches == []
    assert set(group.members) == {"n"}
    assert {group.ownership.owner_of(number) for number in range(len(group.cursors))} == {"n"}
    assert len(other.answer.batches) > 0


@pytest.mark.parametrize("mode", [GroupSettings.SHARED, GroupSettings.ORDERED])
def test_what_waits_for_redelivery_goes_out_again_however_much_is_pending(
    hand: HandBroker, mode: GroupSettings.Mode
) -> None:
    hand.ask(CreateGroup("a", "h", GroupSettings(mode=mode, max_pending=4)))
    first = hand.ask(Pull("a", "h", "m"))
    assert offsets(first) == [0, 1, 2, 3]
    hand.ask(Nack("a", "h", "m", receipts(first), delay_ms=0))
    again = hand.ask(Pull("a", "h", "m"))
    assert (offsets(again), again.batches[0].delivery_count) == ([0, 1, 2, 3], 2)
    assert hand.ask(Pull("a", "h", "m")).batches == []
    hand.ask(Ack("a", "h", "m", [Receipt(again.batches[0].receipt, [(0, 3)])]))
    assert offsets(hand.ask(Pull("a", "h", "m"))) == [4, 5, 6]


def test_max_pending_counts_what_is_out_and_what_waits(hand: HandBroker) -> None:
    hand.ask(CreateGroup("a", "g", GroupSettings(max_pending=4, max_pending_per_member=3)))
    first = pull(hand)
    assert offsets(first) == [0, 1, 2]
    assert offsets(pull(hand, member="n")) == [3]
    hand.ask(Nack("a", "g", "m", receipts(first), delay_ms=60_000))
    assert pull(hand, member="o").batches == []
    assert hand.ask(DescribeGroup("a", "g")).pending == 4


@pytest.mark.parametrize("limit", ["max_pending", "max_pending_per_member"])
def test_who_waits_for_room_is_woken_when_a_purge_makes_it(hand: HandBroker, limit: str) -> None:
    hand.ask(CreateGroup("a", "g", GroupSettings(**{limit: 4})))
    assert offsets(pull(hand)) == [0, 1, 2, 3]
    waiting = hand.send(Pull("a", "g", "m", max_wait_ms=60_000))
    assert not waiting.is_answered
    hand.ask(PurgeChannel("a", before_offset=4))
    assert offsets(waiting.answer) == [4, 5, 6, 7]


def test_a_pull_that_was_answered_is_forgotten_though_another_waits_longer(hand: HandBroker) -> None:
    """What was answered holds messages, and their deadlines lie in one heap."""
    hand.ask(CreateChannel("b"))
    first = hand.send(Pull("b", max_wait_ms=30_000))
    asked = hand.send(Pull("a", "g", "m", start=Start("latest"), max_wait_ms=60_000))
    hand.ask(publish("a", "x"))
    assert contents(asked.answer) == ["x"]
    told = weakref.ref(asked)
    del asked
    assert told() is None
    assert not first.is_answered


def test_long_polls_wake_when_a_message_becomes_durable(hand: HandBroker) -> None:
    hand.ask(CreateGroup("a", "g", start=Start("latest")))
    polls = [hand.send(Pull("a", "g", name, max_messages=1, max_wait_ms=5000)) for name in "mno"]
    reader = hand.send(Pull("a", start=Start("latest"), max_wait_ms=5000))
    hand.send(publish("a", "x", "y"))
    assert not any(asked.is_answered for asked in [*polls, reader])
    hand.settle()
    assert [asked.is_answered for asked in polls] == [True, True, False]
    assert contents(reader.answer) == ["x", "y"]
    hand.tick(5000)
    assert polls[2].answer.batches == []


def test_a_cancelled_long_poll_leases_nothing(hand: HandBroker) -> None:
    hand.ask(CreateGroup("a", "g", start=Start("latest")))
    poll = hand.send(Pull("a", "g", "m", max_wait_ms=5000))
    poll.waiter.cancel()
    hand.ask(publish("a", "x"))
    assert not poll.is_answered
    assert offsets(pull(hand, member="n")) == [10]


def test_a_long_poll_on_what_is_deleted_gets_a_clear_error(hand: HandBroker) -> None:
    hand.ask(CreateGroup("a", "g", start=Start("latest")))
    in_group = hand.send(Pull("a", "g", "m", max_wait_ms=5000))
    hand.ask(DeleteGroup("a", "g"))
    assert isinstance(in_group.answer, GroupNotFound)
    reader = hand.send(Pull("a", start=Start("latest"), max_wait_ms=5000))
    hand.ask(DeleteChannel("a"))
    assert isinstance(reader.answer, ChannelNotFound)


@pytest.mark.parametrize(
    ("start", "first"),
    [
        (Start("earliest"), 0),
        (Start("latest"), 13),
        (Start("offset", 4), 4),
        (Start("last", 3), 10),
        (Start("time", 1_700_000_000_000_000), 0),
        (Start("time", 1_700_000_000_000_001), 10),
        (Start("time", 1_700_000_010_000_001), 13),
    ],
)
@pytest.mark.parametrize("is_small", [False, True])
def test_a_group_starts_where_it_is_told(start: Start, first: int, is_small: bool) -> None:
    from mq.limits import Limits

    hand = HandBroker(limits=Limits(buffer_bytes=1 if is_small else 1 << 20))
    hand.ask(CreateChannel("a"))
    hand.ask(publish("a", *"0123456789"))
    hand.clock.pass_ms(10_000)
    hand.ask(publish("a", *"abc"))
    info = hand.ask(CreateGroup("a", "g", start=start))
    assert info.positions[0].offset == first
    reader = hand.ask(Pull("a", start=start))
    assert offsets(reader) == list(range(first, 13))[: len(offsets(reader))]
    assert hand.ask(Pull("a", "h", "m", start=start, max_messages=1)).batches == [] or first < 13
    assert hand.ask(Seek("a", "g", start=start)).positions == [Position(0, first)]


def test_making_a_group_again_is_fine_unless_the_settings_differ(hand: HandBroker) -> None:
    hand.ask(CreateGroup("a", "g", GroupSettings(ack_wait_ms=5)))
    assert hand.ask(CreateGroup("a", "g", GroupSettings(ack_wait_ms=5))).settings.max_deliver == 5
    with pytest.raises(GroupExists):
        hand.ask(CreateGroup("a", "g", GroupSettings(ack_wait_ms=6)))
    assert hand.ask(UpdateGroup("a", "g", GroupSettings(ack_wait_ms=7))).settings.ack_wait_ms == 7
    assert [info.group for info in hand.ask(ListGroups()).groups] == ["g"]


def test_a_group_nobody_uses_expires_if_it_is_to(hand: HandBroker) -> None:
    hand.ask(CreateGroup("a", "g", GroupSettings(expire_after_ms=60_000)))
    hand.ask(CreateGroup("a", "h"))
    pull(hand, 1)
    hand.tick(50_000)
    pull(hand, 1)
    hand.tick(50_000)
    assert "g" in hand.state.channels["a"].groups
    for _ in range(5):
        hand.tick(40_000)
    assert list(hand.state.channels["a"].groups) == ["h"]


# ---------------------------------------------------------------- ordered groups


@pytest.fixture
def ordered() -> HandBroker:
    hand = HandBroker()
    hand.ask(CreateChannel("a", partitions=4))
    hand.ask(CreateGroup("a", "g", GroupSettings(mode=GroupSettings.ORDERED)))
    for number in range(4):
        hand.ask(publish("a", *"012", partition=number))
    return hand


def test_an_ordered_group_gives_each_partition_to_one_member_and_a_new_one_gets_its_share(ordered: HandBroker) -> None:
    first = pull(ordered, 100)
    assert list(first.assigned) == [0, 1, 2, 3]
    assert len(offsets(first)) == 12
    second = pull(ordered, 100, "n")
    assert list(second.assigned) == []  # everything is still out at a live owner
    ordered.ask(
        Ack("a", "g", "m", [r for r, b in zip(receipts(first), first.batches, strict=True) if b.partition != 0])
    )
    assert len(pull(ordered, 100, "n").assigned) == 2
    assert len(pull(ordered, 100).assigned) == 2
    for number in range(4):
        ordered.ask(publish("a", "x", partition=number))
    mine, yours = pull(ordered, 100), pull(ordered, 100, "n")
    assert {b.partition for b in mine.batches}.isdisjoint({b.partition for b in yours.batches})


def test_a_member_that_lost_a_partition_can_not_commit_on_it(ordered: HandBroker) -> None:
    old = pull(ordered, 100)
    ordered.ask(Commit("a", "g", "m", old.generation, [Position(0, 2)]))
    ordered.tick(11_000)  # the session is over
    taken = pull(ordered, 100, "n")
    assert list(taken.assigned) == [0, 1, 2, 3]
    for generation in (old.generation, taken.generation):
        with pytest.raises(LeaseLost):
            ordered.ask(Commit("a", "g", "m", generation, [Position(0, 3)]))
    with pytest.raises(LeaseLost):
        ordered.ask(Ack("a", "g", "m", receipts(old)))
    back = pull(ordered, 100)
    with pytest.raises(LeaseLost):
        ordered.ask(Commit("a", "g", "m", old.generation, [Position(0, 3)]))
    assert back.generation > old.generation
    assert ordered.ask(DescribeGroup("a", "g")).positions[0].offset == 2


def test_a_pull_that_comes_after_a_later_one_comes_in_vain(ordered: HandBroker) -> None:
    first = pull(ordered, 2, turn=7)
    for late in (7, 6, 1):
        with pytest.raises(LeaseLost, match="a later pull of member 'm' came before"):
            pull(ordered, 2, turn=late)
    assert len(offsets(first) + offsets(pull(ordered, 100, turn=8))) == 12


def test_a_pull_ends_those_of_its_member_that_wait(ordered: HandBroker) -> None:
    pull(ordered, 100)
    other = ordered.send(Pull("a", "g", "n", max_wait_ms=60_000, turn=1))
    before = ordered.send(Pull("a", "g", "m", max_wait_ms=60_000, turn=1))
    after = ordered.send(Pull("a", "g", "m", max_wait_ms=60_000, turn=2))
    ordered.settle()
    assert before.answer.batches == []
    ordered.ask(publish("a", "x", partition=0))
    assert offsets(after.answer) == [3]
    assert not other.is_answered


def test_who_begins_afresh_gets_all_that_it_held_in_its_order(ordered: HandBroker) -> None:
    kept = pull(ordered, 5, turn=1)
    pull(ordered, 3, turn=2)  # the answer is lost
    again = pull(ordered, 100, turn=3, afresh=True)
    seen: dict[int, list[int]] = {number: [] for number in range(4)}
    for batch in again.batches:
        seen[batch.partition] += range(batch.base_offset, batch.base_offset + batch.count)
    assert all(each == [0, 1, 2] for each in seen.values())
    assert {batch.delivery_count for batch in again.batches} == {1}
    with pytest.raises(LeaseLost):
        ordered.ask(Ack("a", "g", "m", receipts(kept)))
    with pytest.raises(LeaseLost):
        pull(ordered, 3, turn=2)
    assert ordered.ask(DescribeGroup("a", "g")).pending == 12


def test_who_begins_afresh_leaves_to_others_what_is_theirs(hand: HandBroker) -> None:
    mine, yours = pull(hand, 4, turn=1), pull(hand, 4, "n")
    waiting = hand.send(Pull("a", "g", "o", max_wait_ms=60_000, max_messages=10))
    hand.settle()
    assert offsets(waiting.answer) == [8, 9]
    assert offsets(pull(hand, turn=2, afresh=True)) == offsets(mine)
    hand.ask(Ack("a", "g", "n", receipts(yours)))


def test_who_takes_over_a_name_gets_what_was_out_in_its_order_and_it_counts(ordered: HandBroker) -> None:
    kept = pull(ordered, 5, turn=11, since=10)
    waiting = ordered.send(Pull("a", "g", "m", partition=3, max_wait_ms=60_000, turn=12, since=10))
    again = pull(ordered, 100, turn=21, since=20)
    seen: dict[int, list[int]] = {number: [] for number in range(4)}
    counts: dict[tuple[int, int], int] = {}
    for batch in again.batches:
        here = range(batch.base_offset, batch.base_offset + batch.count)
        seen[batch.partition] += here
        counts |= {(batch.partition, offset): batch.delivery_count for offset in here}
    assert all(each == [0, 1, 2] for each in seen.values())
    out = {(batch.partition, offset) for each in (kept, waiting.answer) for batch in each.batches for offset in [0]}
    assert all(counts[place] == 2 for place in out)
    assert sorted(counts.values()).count(1) == 12 - len(offsets(kept)) - len(offsets(waiting.answer))
    with pytest.raises(LeaseLost):
        ordered.ask(Ack("a", "g", "m", receipts(kept)))


def test_who_lost_its_name_takes_nothing_from_whoever_has_it_when_it_leaves(ordered: HandBroker) -> None:
    pull(ordered, 2, turn=11, since=10)
    mine = pull(ordered, 100, turn=21, since=20)
    waiting = ordered.send(Pull("a", "g", "m", max_wait_ms=60_000, turn=22, since=20))
    ordered.ask(Leave("a", "g", "m", turn=12))
    assert not waiting.is_answered
    assert ordered.ask(Ack("a", "g", "m", receipts(mine))).acked == 12


def test_a_late_pull_does_not_bring_back_a_member_that_is_gone(ordered: HandBroker) -> None:
    pull(ordered, 2, turn=5)
    ordered.tick(11_000)
    with pytest.raises(LeaseLost):
        pull(ordered, 2, turn=5)
    assert not ordered.state.channels["a"].groups["g"].members


def test_a_late_pull_does_not_bring_back_a_member_that_left(ordered: HandBroker) -> None:
    pull(ordered, 2, turn=5)
    ordered.ask(Leave("a", "g", "m", turn=7))
    for late in (6, 7):
        with pytest.raises(LeaseLost):
            pull(ordered, 2, turn=late)
    assert not ordered.state.channels["a"].groups["g"].members
    assert len(offsets(pull(ordered, 100, turn=8))) == 12


def test_turns_of_members_that_left_are_forgotten_the_oldest_first(hand: HandBroker) -> None:
    for number in range(REMEMBERED_TURNS + 1):
        hand.ask(Leave("a", "g", f"m{number}", turn=5) if number else CreateGroup("a", "g"))
    hand.ask(Leave("a", "g", "m1", turn=6))
    hand.ask(Leave("a", "g", "one more", turn=5))
    assert offsets(pull(hand, 1, "m2", turn=4)) == [0]
    with pytest.raises(LeaseLost):
        pull(hand, 1, "m1", turn=6)


def test_a_pull_that_reads_the_log_when_a_later_one_comes_leases_nothing() -> None:
    hand = HandBroker(limits=Limits(buffer_bytes=1))
    hand.ask(CreateChannel("a"))
    for number in range(6):
        hand.ask(publish("a", str(number)))
    gate = asyncio.Event()
    read = hand.log.read

    async def slow(*args: object) -> object:
        await gate.wait()
        return await read(*args)

    hand.log.read = slow
    early, late = Asked(), Asked()

    async def both() -> None:
        hand.broker.submit(Pull("a", "g", "m", max_messages=2, turn=1), hand.done(early))
        await asyncio.sleep(0)
        hand.broker.submit(Pull("a", "g", "m", max_messages=2, turn=2), hand.done(late))
        gate.set()

    hand.loop.run_until_complete(both())
    hand.settle()
    assert isinstance(early.answer, LeaseLost)
    assert offsets(late.answer) == [0, 1]


def test_a_deleted_group_is_not_made_again_by_whoever_pulled_from_it(hand: HandBroker) -> None:
    before = pull(hand, 2)
    assert before.group_id
    hand.ask(DeleteGroup("a", "g"))
    with pytest.raises(GroupNotFound, match="no group 'g'"):
        pull(hand, 2, group_id=before.group_id)
    assert "g" not in hand.state.channels["a"].groups
    after = pull(hand, 2)
    assert after.group_id > before.group_id
    with pytest.raises(GroupNotFound, match="was deleted"):
        pull(hand, 2, group_id=before.group_id)
    assert offsets(pull(hand, 2, group_id=after.group_id)) == [2, 3]


def test_a_late_pull_without_a_turn_of_a_member_that_left_takes_nothing_out_of_its_place(ordered: HandBroker) -> None:
    """Its client goes on under another name, and gets everything in order, some of it when the session is over."""
    seen: dict[int, list[int]] = {number: [] for number in range(4)}

    def go_on() -> None:
        for batch in pull(ordered, 100, "n").batches:
            seen[batch.partition] += range(batch.base_offset, batch.base_offset + batch.count)

    pull(ordered, 2)
    ordered.ask(Leave("a", "g", "m"))
    late = pull(ordered, 5)
    assert len(offsets(late)) == 5
    go_on()
    assert not any(seen[batch.partition] for batch in late.batches)
    for milliseconds in (6_000, 5_000):
        ordered.tick(milliseconds)
        go_on()
    assert all(each == [0, 1, 2] for each in seen.values())


def test_a_nacked_message_holds_up_its_partition_only_and_goes_first(ordered: HandBroker) -> None:
    got = pull(ordered, 100)
    zero = next(b for b in got.batches if b.partition == 0)
    ordered.ask(Nack("a", "g", "m", [Receipt(zero.receipt, [(1, 3)])], delay_ms=1000))
    for number in range(2):
        ordered.ask(publish("a", "x", partition=number))
    assert [b.partition for b in pull(ordered, 100).batches] == [1]
    ordered.tick(1000)
    again = pull(ordered, 100)
    assert [(b.base_offset, b.count, b.delivery_count) for b in again.batches] == [(1, 2, 2), (3, 1, 1)]


def test_seek_is_refused_while_ordered_members_live(ordered: HandBroker) -> None:
    pull(ordered, 1)
    with pytest.raises(GroupInUse):
        ordered.ask(Seek("a", "g", start=Start("latest")))
    assert ordered.ask(Seek("a", "g", start=Start("latest"), dry_run=True)).positions[0].offset == 3
    ordered.ask(Seek("a", "g", start=Start("latest"), force=True))
    assert pull(ordered, 100).batches == []


def test_what_was_redelivered_and_given_back_keeps_its_count(hand: HandBroker) -> None:
    hand.ask(Nack("a", "g", "m", receipts(pull(hand, 3)), delay_ms=0))
    again = pull(hand, 3)
    assert again.batches[0].delivery_count == 2
    hand.ask(Leave("a", "g", "m"))
    third = pull(hand, 3, "n")
    assert (offsets(third), third.batches[0].delivery_count) == ([0, 1, 2], 2)


def test_after_a_restart_an_ordered_group_gets_what_precedes_a_nacked_message_first(ordered: HandBroker) -> None:
    """A restart forgets what was out: the message before the nacked one was out too, and must not be overtaken."""
    first = ordered.ask(Pull("a", "g", "m", max_messages=1, partition=0))
    second = ordered.ask(Pull("a", "g", "m", max_messages=1, partition=0))
    assert (contents(first), contents(second)) == (["0"], ["1"])
    ordered.ask(Nack("a", "g", "m", receipts(second), delay_ms=0))
    again = ordered.crash()
    again.tick(60_000)
    assert contents(again.ask(Pull("a", "g", "m", partition=0))) == ["0", "1", "2"]
