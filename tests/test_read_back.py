"""What has left memory is read back a little at a time, and every command comes to an end all the same."""

from handbroker import HandBroker, all_stopped, contents, publish, receipts

from mq.command import CreateChannel, CreateGroup, Nack, Pull, Redrive, Reject
from mq.limits import Limits
from wal.pb.wal_pb2 import GroupSettings

__all__ = ["all_stopped"]

TINY = Limits(buffer_bytes=1, read_bytes=16, fetched_bytes=16)  # one batch at a time


def with_messages(count: int, **fields: int) -> HandBroker:
    hand = HandBroker(limits=TINY)
    hand.ask(CreateChannel("a"))
    for number in range(count):
        hand.ask(publish("a", str(number), **fields))
    return hand


def read(hand: HandBroker, channel: str) -> list[str]:
    found: list[str] = []
    positions: tuple = ()
    while (reply := hand.ask(Pull(channel, positions=positions))).batches:
        found += contents(reply)
        positions = tuple(reply.next)
    return found


def test_a_reader_gets_past_many_expired_batches() -> None:
    hand = with_messages(20, ttl_ms=1000)
    hand.clock.pass_ms(2000)
    hand.ask(publish("a", "lives"))
    assert read(hand, "a") == ["lives"]
    waiting = hand.send(Pull("a", max_wait_ms=5000))
    hand.settle()
    assert contents(waiting.answer) == ["lives"]


def test_a_group_gets_past_many_expired_batches() -> None:
    hand = with_messages(20, ttl_ms=1000)
    hand.clock.pass_ms(2000)
    hand.ask(publish("a", "lives"))
    assert contents(hand.ask(Pull("a", "g", "m"))) == ["lives"]


def test_messages_of_several_batches_are_rejected_at_once() -> None:
    hand = with_messages(8)
    hand.ask(CreateGroup("a", "g"))
    held = [receipt for _ in range(8) for receipt in receipts(hand.ask(Pull("a", "g", "m", max_messages=1)))]
    assert hand.ask(Reject("a", "g", "m", [held[6], held[0], held[3]])).rejected == 3
    assert sorted(read(hand, "a.dlq")) == ["0", "3", "6"]


def test_a_long_stretch_of_exhausted_messages_is_buried_after_a_restart() -> None:
    hand = with_messages(8)
    hand.ask(CreateGroup("a", "g", GroupSettings(max_deliver=9, backoff_ms=[1])))
    for _ in range(8):
        hand.ask(Nack("a", "g", "m", receipts(hand.ask(Pull("a", "g", "m", max_messages=1))), delay_ms=3_600_000))
    hand.state.channels["a"].groups["g"].settings.max_deliver = 1  # as if they had been too many when it stopped
    hand = hand.restart()
    hand.settle()
    assert read(hand, "a.dlq") == [str(number) for number in range(8)]


def test_dead_letters_behind_expired_ones_are_sent_back() -> None:
    hand = with_messages(6)
    for _ in range(6):
        hand.ask(Reject("a", "g", "m", receipts(hand.ask(Pull("a", "g", "m", max_messages=1)))))
    hand.ask(publish("a.dlq", "x", ttl_ms=1))
    hand.ask(publish("a.dlq", "y", ttl_ms=1))
    hand.clock.pass_ms(10)
    start = moved = 0
    for _ in range(20):
        reply = hand.ask(Redrive("a.dlq", start_offset=start))
        start, moved = reply.next_offset, moved + reply.moved
        if reply.is_done:
            break
    assert (moved, read(hand, "a.dlq")) == (6, [])
