"""What the broker publishes by itself: delayed publishes and dead letters. It keeps to the limits of everybody."""

from __future__ import annotations

import pytest
from handbroker import HandBroker, all_stopped, contents, durable, publish, receipts, replayed

from mq.command import CreateChannel, CreateGroup, Nack, Pull, Redrive, Reject
from mq.errors import ResourceExhausted
from mq.limits import Limits
from wal.errors import CorruptSegment, LogBusy
from wal.memory import MemoryLog
from wal.pb.wal_pb2 import GroupSettings, Published

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
    monkeypatch.setattr(hand.log, "is_short_of_space", is_short)
    hand.tick(1_001)


def delayed(hand: HandBroker, count: int) -> list[str]:
    hand.ask(CreateChannel("a"))
    texts = [f"{number}".rjust(1000, "-") for number in range(count)]
    for text in texts:
        hand.ask(publish("a", text, delay_ms=10_000))
    return texts


def exhausted(hand: HandBroker, count: int) -> list[str]:
    """Messages out with a member for the last time, each on a lease of its own."""
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


def forgetful(count: int) -> HandBroker:
    """A broker that has to read back whatever it is to bury: batches of two messages each."""
    hand = HandBroker(limits=Limits(buffer_bytes=1, read_bytes=16, fetched_bytes=16))
    hand.ask(CreateChannel("a"))
    hand.ask(CreateGroup("a", "g", GroupSettings(max_deliver=1, ack_wait_ms=10_000)))
    for number in range(0, count, 2):
        hand.ask(publish("a", str(number), str(number + 1)))
    hand.ask(publish("a", "the last one stays in memory"))
    return hand


def spoil(hand: HandBroker, monkeypatch: pytest.MonkeyPatch, error: Exception, start: int, end: int) -> None:
    honest = hand.log.read

    async def spoiled(channel_id: int, partition: int, offset: int, max_bytes: int) -> list[Published]:
        if channel_id == hand.state.channels["a"].channel_id and start <= offset < end:
            raise error
        return await honest(channel_id, partition, offset, 1)

    monkeypatch.setattr(hand.log, "read", spoiled)


def test_damage_keeps_none_of_its_neighbours_from_the_dead_letter_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    hand = forgetful(12)
    held = [receipt for _ in range(6) for receipt in receipts(hand.ask(Pull("a", "g", "m", max_messages=2)))]
    spoil(hand, monkeypatch, CorruptSegment("s", 0, "flipped bit"), 4, 8)
    hand.ask(Nack("a", "g", "m", held))
    for _ in range(5):
        hand.tick(1_001)
    assert sorted(read(hand, "a.dlq"), key=int) == ["0", "1", "2", "3", "8", "9", "10", "11"]
    cursor = hand.state.channels["a"].groups["g"].cursors[0]
    assert (cursor.offset, [(item.start, item.end) for item in cursor.retries.joined()]) == (4, [(4, 8)])
    assert not hand.state.dying


def test_damage_in_one_long_stretch_keeps_none_of_its_neighbours_from_being_buried() -> None:
    hand = HandBroker()
    hand.ask(CreateChannel("a"))
    hand.ask(CreateGroup("a", "g", GroupSettings(max_deliver=1)))
    hand.ask(publish("a", *"0123456789"))
    held = receipts(hand.ask(Pull("a", "g", "m")))
    partition = hand.state.channels["a"].partitions[0]
    partition.unreadable.add(0, 2)
    partition.unreadable.add(5, 6)
    partition.unreadable.add(9, 10)
    hand.ask(Nack("a", "g", "m", held))
    assert read(hand, "a.dlq") == list("234678")
    assert durable(replayed(hand.log, hand.limits)) == durable(hand.state)


def test_dead_letters_that_can_not_be_read_at_the_moment_are_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    hand = forgetful(8)
    held = [receipt for _ in range(4) for receipt in receipts(hand.ask(Pull("a", "g", "m", max_messages=2)))]
    with monkeypatch.context() as patch:
        spoil(hand, patch, LogBusy("too many files are open"), 0, 8)
        hand.ask(Nack("a", "g", "m", held))
        hand.tick(1_001)
        assert read(hand, "a.dlq") == ["6", "7"]  # which were read last, for the pull
    hand.tick(1_001)
    assert sorted(read(hand, "a.dlq")) == list("01234567")


def test_a_batch_of_very_many_small_messages_is_buried_in_records_that_the_log_takes() -> None:
    hand = HandBroker(MemoryLog(max_record_bytes=200_000, is_held=True))
    hand.ask(CreateChannel("a"))
    hand.ask(CreateGroup("a", "g", GroupSettings(max_deliver=1)))
    hand.ask(publish("a", *[""] * 2_000))
    hand.ask(Nack("a", "g", "m", receipts(hand.ask(Pull("a", "g", "m", max_messages=2_000)))))
    assert hand.broker.failed is None
    assert len(read(hand, "a.dlq")) == 2_000
    hand.ask(publish("a", *[""] * 2_000))
    hand.ask(Reject("a", "g", "m", receipts(hand.ask(Pull("a", "g", "m", max_messages=2_000)))))
    assert len(read(hand, "a.dlq")) == 4_000
    assert durable(replayed(hand.log, hand.limits)) == durable(hand.state)
