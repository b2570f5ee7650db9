"""What leaves the broker has become durable before, and nothing else leaves it."""

import asyncio

import pytest
from handbroker import HandBroker, all_stopped, contents, durable, offsets, publish, receipts, replayed
from hypothesis import given
from hypothesis import strategies as st

from mq.broker import Broker
from mq.command import OS, Ack, CreateChannel, CreateGroup, DescribeChannel, Publish, Pull
from mq.commitqueue import CommitQueue
from mq.errors import ChannelNotFound, MqError, ResourceExhausted, Unavailable
from mq.limits import Limits
from mq.state import State
from wal.memory import MemoryLog
from wal.record import Published

__all__ = ["all_stopped"]


@pytest.fixture
def hand() -> HandBroker:
    hand = HandBroker()
    hand.ask(CreateChannel("a"))
    return hand


def dedup_reply_waits(hand: HandBroker) -> bool:
    hand.ask(publish("a", "x", producer_id="p", sequence=0, crc=1))
    first = hand.send(publish("a", "y", producer_id="p", sequence=1, crc=2))
    retry = hand.send(publish("a", "y", producer_id="p", sequence=1, crc=2))
    waited = not (first.is_answered or retry.is_answered)
    hand.settle()
    assert (retry.answer.base_offset, retry.answer.duplicate) == (1, True)
    return waited


def test_a_retry_is_not_answered_before_the_first_try_is_durable(hand: HandBroker) -> None:
    assert dedup_reply_waits(hand)


def test_planted_a_reply_from_memory_that_does_not_wait_is_caught(
    hand: HandBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at_once(self: CommitQueue, done, reply, durability=0) -> None:  # type: ignore[no-untyped-def]
        if getattr(reply, "duplicate", False):
            done(reply)
        else:
            honest(self, done, reply, durability)

    honest = CommitQueue.answer
    monkeypatch.setattr(CommitQueue, "answer", at_once)
    assert not dedup_reply_waits(hand)


def sees_unsynced(hand: HandBroker) -> bool:
    hand.send(publish("a", "x"))
    pulled = hand.send(Pull("a"))
    hand.settle()
    return bool(pulled.answer.batches)


def test_a_pull_sees_nothing_that_is_not_synced(hand: HandBroker) -> None:
    assert not sees_unsynced(hand)
    assert contents(hand.ask(Pull("a"))) == ["x"]


def test_planted_a_pull_above_the_mark_is_caught(hand: HandBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = State.store

    def eager(self: State, channel, partition, *args) -> None:  # type: ignore[no-untyped-def]
        honest(self, channel, partition, *args)
        partition.visible = partition.next_offset

    monkeypatch.setattr(State, "store", eager)
    assert sees_unsynced(hand)


def test_replies_without_a_record_wait_too(hand: HandBroker) -> None:
    hand.send(publish("a", "x"))
    late = [hand.send(command) for command in (CreateChannel("a"), DescribeChannel("a"), DescribeChannel("none"))]
    assert not any(asked.is_answered for asked in late)
    hand.settle()
    assert late[0].answer.created is False
    assert isinstance(late[2].answer, ChannelNotFound)


def test_durability_os_waits_for_the_write_only(hand: HandBroker) -> None:
    asked = hand.send(publish("a", "x", durability=OS))
    hand.log.written = hand.log.last_sequence
    hand.log._on_marks(hand.log.written, hand.log.synced)
    hand.spin()
    assert asked.answer.durable == OS
    assert hand.state.channels["a"].partitions[0].visible == 0


def test_publishes_of_one_turn_share_a_record_and_nobody_can_tell() -> None:
    states = []
    for merge_messages in (500, 1):
        hand = HandBroker(limits=Limits(merge_messages=merge_messages))
        hand.ask(CreateChannel("a"))
        answers: list = []
        for number in range(10):
            command = publish("a", str(number), producer_id="p", sequence=number, crc=number)
            hand.loop.call_soon(hand.broker.submit, command, answers.append)
        hand.settle()
        assert [reply.base_offset for reply in answers] == list(range(10))
        frames = [record for _, record in hand.log.replay() if isinstance(record, Published)]
        assert len(frames) == (1 if merge_messages > 1 else 10)
        states.append(durable(hand.state))
        assert durable(replayed(hand.log, hand.limits)) == durable(hand.state)
    for state in states:
        del state["a"].partitions[0].marks[:]  # which stand between records
    assert states[0] == states[1]


publishes = st.builds(
    publish,
    st.just("a"),
    st.sampled_from("xyz"),
    partition=st.sampled_from([None, 0, 1, 2]),
    producer_id=st.sampled_from(["", "p", "q"]),
    sequence=st.integers(0, 3),
    crc=st.integers(0, 1),
    ttl_ms=st.sampled_from([0, 0, 5]),
    delay_ms=st.sampled_from([0, 0, 0, 9]),
)
steps = st.one_of(publishes, publishes, st.sampled_from([2_000, "settle"]))  # a number: so many microseconds pass
close_steps = st.one_of(publishes, publishes, st.sampled_from([1, 400, 999, -300, -5_000, "settle"]))


def story(steps: list, *, is_general: bool, partitions: int) -> tuple:
    """What came of some publishes: their answers and the state, which is what a replay of the log gives."""
    with pytest.MonkeyPatch.context() as patch:
        if is_general:
            patch.setattr(Broker, "_publish_plainly", lambda self, command, now: None)
        hand = HandBroker()
        hand.ask(CreateChannel("a", partitions))
        answers: list = []
        for step in steps:
            if isinstance(step, int):
                hand.clock.us += step
            elif step == "settle":
                hand.settle()
            else:
                hand.loop.call_soon(hand.broker.submit, step, answers.append)
                hand.loop.run_until_complete(asyncio.sleep(0))
        hand.settle()
        kept = durable(hand.state)
        assert durable(replayed(hand.log, hand.limits)) == kept
        return [str(each) if isinstance(each, MqError) else each for each in answers], kept


@given(st.lists(steps, max_size=20), st.integers(1, 2))
def test_the_short_way_of_a_publish_leads_to_where_the_general_one_does(steps: list, partitions: int) -> None:
    short, general = (story(steps, is_general=each, partitions=partitions) for each in (False, True))
    assert short == general


@given(st.lists(close_steps, max_size=20), st.integers(1, 2))
def test_publishes_that_share_a_moment_are_replayed_as_they_were_applied(steps: list, partitions: int) -> None:
    answers, _ = story(steps, is_general=False, partitions=partitions)
    assert len(answers) == sum(isinstance(step, Publish) for step in steps)


def test_publishes_right_after_the_epoch_have_their_time(hand: HandBroker) -> None:
    hand.clock.us = 5
    assert hand.ask(publish("a", "x")).timestamp_us == 5
    assert durable(replayed(hand.log, hand.limits)) == durable(hand.state)


def test_publishes_with_other_ttl_or_another_record_between_are_not_merged(hand: HandBroker) -> None:
    commands = [publish("a", "1"), publish("a", "2", ttl_ms=5), publish("a", "3", ttl_ms=5), CreateGroup("a", "g")]
    for command in [*commands, publish("a", "4", ttl_ms=5)]:
        hand.loop.call_soon(hand.broker.submit, command, lambda reply: None)
    hand.settle()
    frames = [record for _, record in hand.log.replay() if isinstance(record, Published)]
    assert [frame.count for frame in frames] == [1, 2, 1]


def test_commands_that_arrive_during_a_sync_go_together(hand: HandBroker) -> None:
    groups: list[int] = []
    honest = hand.log.append

    def counted(records, **options):  # type: ignore[no-untyped-def]
        groups.append(len(records))
        return honest(records, **options)

    hand.log.append = counted
    for _ in range(20):
        hand.send(CreateGroup("a", f"g{len(groups)}-{_}"))
    assert len(groups) == 2  # one at the disk, one behind it; the rest is collected
    hand.settle()
    assert groups == [1, 1, 18]


def test_a_failed_sync_tells_everybody_that_the_outcome_is_unknown_and_stays(hand: HandBroker) -> None:
    waiting = [hand.send(publish("a", "x")), hand.send(Pull("a", max_wait_ms=1000))]
    hand.log.fail(OSError(5, "EIO"))
    hand.spin()
    assert all(isinstance(asked.answer, Unavailable) for asked in waiting)
    assert hand.health == [True, False]
    assert isinstance(hand.send(Pull("a")).answer, Unavailable)
    assert isinstance(hand.broker.failed, Unavailable)
    again = hand.crash()
    assert again.ask(Pull("a")).batches == []


def test_too_much_that_is_not_durable_refuses_publishes_and_passes_acks() -> None:
    hand = HandBroker(limits=Limits(unsynced_bytes=1000))
    hand.ask(CreateChannel("a"))
    hand.ask(publish("a", "x" * 900))
    got = hand.ask(Pull("a", "g", "m"))
    hand.send(publish("a", "y" * 900))
    refused = hand.send(publish("a", "z" * 900))
    acked = hand.send(Ack("a", "g", "m", receipts(got)))
    hand.settle()
    assert isinstance(refused.answer, ResourceExhausted)
    assert "bytes wait to become durable" in str(refused.answer)
    assert acked.answer.acked == 1
    assert hand.ask(publish("a", "z" * 900)).base_offset == 2


def test_a_full_disk_refuses_publishes_and_passes_acks(hand: HandBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    hand.ask(publish("a", "x"))
    got = hand.ask(Pull("a", "g", "m"))
    monkeypatch.setattr(hand.log, "is_short_of_space", True)
    with pytest.raises(ResourceExhausted, match="disk"):
        hand.ask(publish("a", "y"))
    assert hand.ask(Ack("a", "g", "m", receipts(got))).acked == 1


def test_a_long_backlog_refuses_nobody_and_is_read_back() -> None:
    hand = HandBroker(limits=Limits(buffer_bytes=3000, read_bytes=500, fetched_bytes=500))
    hand.ask(CreateChannel("a"))
    for number in range(50):
        hand.ask(publish("a", f"{number}-" + "x" * 200))
    assert hand.state.budget.used <= 3000
    seen: list[int] = []
    while len(seen) < 50:
        got = hand.ask(Pull("a", "g", "m"))
        seen += offsets(got)
        hand.ask(Ack("a", "g", "m", receipts(got)))
    assert seen == list(range(50))
    found: list[str] = []
    positions = ()
    while len(found) < 50:
        reply = hand.ask(Pull("a", max_messages=3, positions=positions))
        found += contents(reply)
        positions = reply.next
    assert [text.split("-")[0] for text in found] == [str(number) for number in range(50)]


def test_an_answer_stays_below_its_limit_and_always_has_a_message() -> None:
    hand = HandBroker(limits=Limits(response_bytes=1000))
    hand.ask(CreateChannel("a"))
    hand.ask(publish("a", *["x" * 300] * 10))
    hand.ask(publish("a", "y" * 3000))
    got = hand.ask(Pull("a"))
    assert sum(len(pulled.batch) for pulled in got.batches) <= 1000
    assert contents(hand.ask(Pull("a", max_bytes=1))) == ["x" * 300]
    assert contents(hand.ask(Pull("a", positions=[(0, 10)]))) == ["y" * 3000]


def test_a_clean_stop_leaves_a_snapshot_that_a_start_restores_from(hand: HandBroker) -> None:
    for number in range(30):
        hand.ask(publish("a", str(number), producer_id="p", sequence=number, crc=number))
    got = hand.ask(Pull("a", "g", "m", max_messages=5))
    hand.ask(Ack("a", "g", "m", receipts(got)))
    before = durable(hand.state)
    again = hand.restart()
    assert again.recovered.records == 3  # begin, the channel, end
    assert durable(again.state) == before
    assert offsets(again.ask(Pull("a", "g", "m")))[0] == 5
    assert again.ask(publish("a", "29", producer_id="p", sequence=29, crc=29)).duplicate


def test_snapshot_runs_come_by_themselves_and_bound_the_replay() -> None:
    hand = HandBroker(limits=Limits(snapshot_bytes=3000))
    for name in "abcdef":
        hand.ask(CreateChannel(name))
    for number in range(200):
        hand.ask(publish("abcdef"[number % 6], "x" * 50))
    again = hand.crash()
    assert again.recovered.records < 80
    assert durable(again.state) == durable(hand.state)
    assert again.recovered.messages == 200


def test_memory_mode_says_so() -> None:
    hand = HandBroker(MemoryLog(), limits=Limits(is_memory=True))
    hand.ask(CreateChannel("a"))
    assert hand.ask(publish("a", "x")).durable == 3


def test_drain_answers_waiting_pulls_and_refuses_the_rest(hand: HandBroker) -> None:
    waiting = hand.send(Pull("a", max_wait_ms=60_000))
    hand.log.is_held = False
    hand.loop.run_until_complete(hand.broker.close())
    assert waiting.answer.batches == []
    assert isinstance(hand.send(Publish("a", b"", 1)).answer, Unavailable)
    assert hand.health == [True, False]


def test_a_stop_waits_for_a_disk_that_takes_nothing_only_so_long(hand: HandBroker) -> None:
    waiting = hand.send(publish("a", "x"))
    assert not waiting.is_answered
    hand.loop.run_until_complete(hand.broker.close(grace_seconds=0.01))
    assert hand.log.is_closed


def test_a_late_word_of_the_log_takes_nothing_back(hand: HandBroker) -> None:
    """What the owner made durable itself is known before the log's thread is heard with what it did earlier."""
    hand.ask(publish("a", "x"))
    synced = hand.broker.state.synced
    assert synced > 1
    hand.broker.owner.queue._on_marks(synced - 1, synced - 1)
    assert hand.broker.state.synced == synced
