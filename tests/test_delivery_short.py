"""What a group waits for is leased in one step where nothing stands against it: to the same end as in general."""

from typing import Any

import handbroker
import pytest
from handbroker import HandBroker, all_stopped, batch, durable, offsets_of, publish, receipts
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mq import delivery
from mq.command import (
    Ack,
    CreateChannel,
    CreateGroup,
    Nack,
    Publish,
    Pull,
    PurgeChannel,
    Receipt,
    Seek,
    Start,
    UpdateGroup,
)
from mq.errors import MqError
from mq.limits import Limits
from wal.pb.wal_pb2 import GroupSettings, Published

__all__ = ["all_stopped"]

GROUP, MEMBERS = "g", ("m", "n")

publishes = st.builds(
    publish, st.just("a"), st.sampled_from(["x", "yy"]), st.just("z" * 40), ttl_ms=st.sampled_from([0, 0, 3])
)
pulls = st.builds(
    lambda member, **fields: Pull("a", GROUP, member, **fields),
    st.sampled_from(MEMBERS),
    max_messages=st.sampled_from([0, 0, 0, 0, 1, 3]),
    max_bytes=st.sampled_from([0, 0, 0, 30, 120]),
    max_wait_ms=st.sampled_from([0, 50]),
    partition=st.sampled_from([None, None, None, 0]),
)
changes = st.builds(
    lambda **fields: UpdateGroup("a", GROUP, GroupSettings(**fields)),
    max_pending=st.sampled_from([0, 0, 0, 3]),
    max_pending_per_member=st.sampled_from([0, 0, 0, 2]),
)
settlements = st.tuples(st.sampled_from(["ack", "ack last", "nack", "release"]), st.integers(0, 3))
odd = st.sampled_from(
    [
        Seek("a", GROUP, start=Start("offset", 1), force=True),
        PurgeChannel("a", before_offset=2),
        ("holes", 0),
        ("damaged", 0),
        ("unreadable", 0),
        ("restart", 0),
        5,  # milliseconds that pass
    ]
)
KINDS = [publishes, pulls, settlements, changes, odd]
steps = st.tuples(  # and whether all becomes durable after it
    st.sampled_from([0] * 8 + [1] * 14 + [2] * 8 + [3] + [4] * 2).flatmap(KINDS.__getitem__),
    st.sampled_from([True] * 9 + [False]),
)


class Story:
    """One broker, and what it is asked for."""

    def __init__(self, partitions: int, mode: int) -> None:
        self.hand = HandBroker(limits=Limits(buffer_bytes=600))  # so that some is read back from the log
        self.hand.ask(CreateChannel("a", partitions))
        self.hand.ask(CreateGroup("a", GROUP, GroupSettings(mode=mode, backoff_ms=[1])))  # type: ignore[arg-type]
        self.asked: list[Any] = []

    def step(self, step: Any, is_settled: bool) -> None:
        if isinstance(step, int):
            self.hand.tick(step)
        elif isinstance(step, Publish):
            self.asked.append(self.hand.send(step))
        elif step[0] in ("ack", "ack last", "nack", "release"):
            self.settle(*step)
        elif step[0] == "restart":
            self.hand = self.hand.crash()
        elif step[0] == "holes":  # as compaction leaves a record
            self.note(2, [0, 3], batch("h", "i"))
        elif step[0] == "empty":  # as nobody writes it
            self.note(0, [], b"")
        elif step[0] in ("damaged", "unreadable"):  # as a reading of the log finds it
            partition = self.hand.state.channels["a"].partitions[0]
            getattr(partition, step[0]).add(partition.next_offset, partition.next_offset + 1)
        else:
            self.asked.append(self.hand.send(step))
        if is_settled:
            self.hand.settle()

    def settle(self, how: str, which: int) -> None:
        """Answer one of the last deliveries, as the member that got it."""
        out = [each.answer for each in self.asked if each.is_answered and getattr(each.answer, "batches", None)]
        if which >= len(out):
            return
        reply = out[-1 - which]
        holders = {each.receipt: each.member for each in self.group.leases.values()}
        member = holders.get(reply.batches[0].receipt, "m")
        if how == "release":
            self.hand.loop.call_soon(self.hand.broker.release, reply.leased())
            self.hand.spin()
        elif how == "ack last":
            last = reply.batches[-1]
            end = offsets_of(last)[-1] + 1
            part = Receipt(last.receipt, [(end - 1, end)])
            self.asked.append(self.hand.send(Ack("a", GROUP, member, [part])))
        else:
            command = {"ack": Ack, "nack": Nack}[how]
            self.asked.append(self.hand.send(command("a", GROUP, member, receipts(reply))))

    def note(self, count: int, deltas: list[int], content: bytes) -> None:
        """A record that no publish makes."""
        channel = self.hand.state.channels["a"]
        base, now = channel.partitions[0].next_offset, self.hand.clock.us
        record = Published(channel_id=channel.channel_id, base_offset=base, count=count, offset_deltas=deltas)
        record.parts.add(base_offset=base, count=count, timestamp_us=now)
        record.min_timestamp_us = record.max_timestamp_us = now
        record.batch = content
        self.hand.loop.call_soon(self.hand.broker.owner.note, record)
        self.hand.spin()

    @property
    def group(self) -> Any:
        return self.hand.state.channels["a"].groups[GROUP]

    def end(self) -> Any:
        """All that can be told apart from outside, and what the next pull depends on."""
        self.step(Pull("a", GROUP, "m"), True)
        group = self.group
        leases = [
            (each.receipt, each.member, each.start, each.end, each.count, each.until_us)
            for each in group.leases.values()
        ]
        cursors = [(each.next, list(each.returned)) for each in group.cursors]
        members = {each.name: (each.leased, each.seen_us) for each in group.members.values()}
        alarms = [(due, number) for due, number, _, _ in self.hand.state.alarms]
        answers = [each.answers[0] if each.is_answered else None for each in self.asked]
        told = [str(each) if isinstance(each, MqError) else each for each in answers]
        return told, leases, cursors, members, group.pending(), group.turn, alarms, durable(self.hand.state)


def told(steps: list, partitions: int, mode: int, *, is_general: bool) -> tuple[Any, int]:
    """What came of it, and how often the short way was taken."""
    taken = 0
    short = delivery._lease_plainly

    def noted(*args: Any) -> Any:
        nonlocal taken
        pulled = None if is_general else short(*args)
        taken += pulled is not None
        return pulled

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handbroker, "new_secret", lambda: bytes(32))
        patch.setattr(delivery, "_lease_plainly", noted)
        story = Story(partitions, mode)
        for step in steps:
            story.step(*step)
        return story.end(), taken


PULL, TWO = Pull("a", GROUP, "m"), publish("a", "x", "y")


def durably(*steps: Any) -> list:
    return [(step, True) for step in steps]


@settings(max_examples=400)
@example(durably(publish("a", "x", ttl_ms=3), 5, PULL), 1, 0)
@example(durably(TWO, PULL, ("nack", 0), 5, TWO, PULL), 1, 0)
@example(durably(TWO, PULL, ("release", 0), TWO, PULL), 1, 0)
@example(durably(TWO, PULL, ("ack last", 0), ("restart", 0), PULL), 1, 0)
@example(durably(("damaged", 0), TWO, PULL), 1, 0)
@example(durably(("empty", 0), PULL), 1, 0)
@given(
    st.lists(steps, min_size=6, max_size=30), st.sampled_from([1, 1, 2]), st.sampled_from([0, 0, GroupSettings.ORDERED])
)
def test_the_short_way_of_a_delivery_leads_to_where_the_general_one_does(
    steps: list, partitions: int, mode: int
) -> None:
    short, _ = told(steps, partitions, mode, is_general=False)
    general, _ = told(steps, partitions, mode, is_general=True)
    assert short == general


def test_who_waits_for_the_next_message_gets_it_the_short_way() -> None:
    waiting = Pull("a", GROUP, "m", max_wait_ms=50)
    steps = [(waiting, True), (publish("a", "x"), True), (("ack", 0), True)] * 3
    (answers, *_), taken = told(steps, 1, 0, is_general=False)
    assert taken == 3
    assert [each.batches[0].base_offset for each in answers[:9:3]] == [0, 1, 2]
