"""Ordered groups against a model of plain data: one owner per partition, all in order, stale ones fenced."""

from __future__ import annotations

from typing import Any

import pytest
from handbroker import HandBroker, durable, offsets_of, publish, receipts, replayed
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from mq.command import Ack, Commit, CreateChannel, CreateGroup, Leave, Nack, Position, Pull
from mq.deciders import DECIDERS
from mq.decision import Decision
from mq.errors import LeaseLost
from mq.group import Group
from mq.ownership import Ownership
from mq.reply import LeaveReply
from mq.state import State
from wal.pb.wal_pb2 import GroupSettings

PARTITIONS = 3
MEMBERS = ["m", "n", "o"]
SESSION_MS = 10_000
BACKOFF_MS = 1000
SETTINGS = GroupSettings(
    mode=GroupSettings.ORDERED,
    session_timeout_ms=SESSION_MS,
    ack_wait_ms=60_000,
    backoff_ms=[BACKOFF_MS],
    max_deliver=1_000_000,  # the model knows no dead letters
)


class Held:
    """What a pull gave: one stretch of one partition."""

    def __init__(self, member: str, generation: int, pulled: Any) -> None:
        self.member = member
        self.generation = generation
        self.partition = pulled.partition
        self.offsets = offsets_of(pulled)
        self.receipts = receipts(type("Reply", (), {"batches": [pulled]}))
        self.is_over = False


class OrderedMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.hand = HandBroker()
        self.hand.ask(CreateChannel("a", partitions=PARTITIONS))
        self.hand.ask(CreateGroup("a", "g", SETTINGS))
        self.published = [0] * PARTITIONS
        self.done = [0] * PARTITIONS  # everything before it is acked
        # a nack holds its partition up, until somebody commits past it
        self.not_before: dict[tuple[int, int], int] = {}  # by partition and offset
        self.held: list[Held] = []
        self.seen: dict[str, int] = {}
        self.owners: dict[int, str] = {}  # of this start: who got something of a partition last
        self.turns: dict[str, int] = {}  # of the last pull of each member, as far as the broker knows it
        self.last_turn = 0
        self.astray: set[str] = set()  # an answer to these was lost
        for partition in range(PARTITIONS):
            self.publish(partition, 8)

    # ------------------------------------------------------------ the model's side

    def out(self, partition: int) -> list[Held]:
        return [held for held in self.held if held.partition == partition and not held.is_over]

    def drop(self, member: str) -> None:
        """A member is gone: what it held goes out again."""
        for held in self.held:
            held.is_over = held.is_over or held.member == member
        self.seen.pop(member, None)
        self.owners = {partition: owner for partition, owner in self.owners.items() if owner != member}

    def pass_ms(self, ms: int) -> None:
        self.hand.tick(ms)
        for member, seen in list(self.seen.items()):
            if seen < self.hand.clock.us - SESSION_MS * 1000:
                self.drop(member)

    # ------------------------------------------------------------ what happens

    @rule(partition=st.integers(0, PARTITIONS - 1), size=st.integers(1, 4))
    def publish(self, partition: int, size: int) -> None:
        texts = [f"{partition}.{self.published[partition] + index}" for index in range(size)]
        self.hand.ask(publish("a", *texts, partition=partition))
        self.published[partition] += size

    def ask_for(self, member: str, most: int, *, afresh: bool) -> Any:
        self.last_turn += 1
        self.turns[member] = self.last_turn
        reply = self.hand.ask(Pull("a", "g", member, max_messages=most, turn=self.last_turn, afresh=afresh))
        self.seen[member] = self.hand.clock.us
        return reply

    @rule(member=st.sampled_from(MEMBERS), most=st.integers(1, 6), afresh=st.booleans())
    def pull(self, member: str, most: int, afresh: bool) -> None:
        if afresh := afresh or member in self.astray:
            self.astray.discard(member)
            for held in self.held:
                held.is_over = held.is_over or held.member == member
        reply = self.ask_for(member, most, afresh=afresh)
        for pulled in reply.batches:
            held = Held(member, reply.generation, pulled)
            assert pulled.partition in reply.assigned
            others = self.out(pulled.partition)
            assert all(other.member == member for other in others), "two members in one partition"
            following = max([self.done[pulled.partition], *(other.offsets[-1] + 1 for other in others)])
            assert held.offsets == list(range(following, following + len(held.offsets))), "out of order"
            assert following + len(held.offsets) <= self.published[pulled.partition]
            waits = [self.not_before.get((pulled.partition, offset), 0) for offset in held.offsets]
            assert max(waits) <= self.hand.clock.us, "before its backoff is over"
            self.held.append(held)
            self.owners[pulled.partition] = member

    @rule(member=st.sampled_from(MEMBERS), most=st.integers(1, 6))
    def pull_and_lose_the_answer(self, member: str, most: int) -> None:
        self.ask_for(member, most, afresh=False)
        self.astray.add(member)

    @rule(member=st.sampled_from(MEMBERS), before=st.integers(0, 2))
    def pull_late(self, member: str, before: int) -> None:
        turn = self.turns.get(member, 0) - before
        if turn > 0:
            asked = self.hand.send(Pull("a", "g", member, turn=turn, afresh=bool(before)))
            self.hand.settle()
            assert isinstance(asked.answer, LeaseLost), "a pull that was on its way for too long"

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 5))
    def ack(self, which: int) -> None:
        """In order: the oldest that is out of a partition, or a stale one, which is refused."""
        held = self.held[-1 - which % len(self.held)]
        if not held.is_over and self.out(held.partition)[0] is not held:
            return
        asked = self.hand.send(Ack("a", "g", held.member, held.receipts))
        self.hand.settle()
        if held.is_over:
            assert isinstance(asked.answer, LeaseLost) or asked.answer.acked == 0
            return
        assert asked.answer.acked == len(held.offsets)
        self.seen[held.member] = self.hand.clock.us
        self.done[held.partition] = held.offsets[-1] + 1
        held.is_over = True

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 5))
    def commit(self, which: int) -> None:
        held = self.held[-1 - which % len(self.held)]
        to = held.offsets[-1] + 1
        asked = self.hand.send(Commit("a", "g", held.member, held.generation, [Position(held.partition, to)]))
        self.hand.settle()
        if isinstance(asked.answer, LeaseLost):
            assert held.is_over, "its owner was fenced"
            return
        assert self.owners.get(held.partition) == held.member, "who lost a partition, or a broker, committed"
        self.seen[held.member] = self.hand.clock.us
        for other in self.out(held.partition):
            assert other.member == held.member, "a stale owner committed"
            other.is_over = other.offsets[-1] < to or other.is_over
        self.done[held.partition] = max(self.done[held.partition], to)

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0, 5))
    def nack(self, which: int) -> None:
        """The last that is out of a partition, so that nothing behind it is out."""
        chosen = self.held[-1 - which % len(self.held)]
        if chosen.is_over:
            return
        held = self.out(chosen.partition)[-1]
        self.hand.ask(Nack("a", "g", held.member, held.receipts))
        self.seen[held.member] = self.hand.clock.us
        for offset in held.offsets:
            self.not_before[held.partition, offset] = self.hand.clock.us + BACKOFF_MS * 1000
        held.is_over = True

    @rule(member=st.sampled_from(MEMBERS))
    def leave(self, member: str) -> None:
        self.hand.ask(Leave("a", "g", member, self.turns.get(member, 0)))
        self.drop(member)
        self.astray.discard(member)

    @rule(ms=st.sampled_from([100, 1000, 6000, 11_000]))
    def time_passes(self, ms: int) -> None:
        self.pass_ms(ms)

    @rule()
    def crash(self) -> None:
        self.hand = self.hand.crash()
        self.owners = {}
        self.turns = {}
        for member in MEMBERS:
            self.drop(member)

    @rule()
    def replay_equals_live(self) -> None:
        assert durable(replayed(self.hand.log, self.hand.limits)) == durable(self.hand.state)

    @invariant()
    def positions_are_those_of_the_model(self) -> None:
        if hasattr(self, "hand"):
            group = self.hand.state.channels["a"].groups["g"]
            assert [cursor.offset for cursor in group.cursors] == self.done

    def teardown(self) -> None:
        if hasattr(self, "hand"):
            self.hand.stop()


TestOrderedMachine = OrderedMachine.TestCase
TestOrderedMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (Ownership, "check", lambda *_: None),
        (Ownership, "pulled_by", lambda self, member: list(range(PARTITIONS))),
        (Group, "_is_busy", lambda *_: False),
        (Group, "take_turn", lambda self, name, turn, since, now, limit: self.touch(name, now, limit) is None),
        (Group, "give_back_all", lambda *_: None),
    ],
    ids=["no fencing", "no ownership", "moves while it is busy", "no turns", "gives nothing back"],
)
def test_planted_a_group_without_one_of_its_rules_is_caught(
    owner: type, name: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, broken)
    expect_to_be_caught()


def leave_and_stay(state: State, command: Leave, now: int) -> Decision:
    """Gives back what it holds, and can commit until somebody else pulls."""
    group = state.channel(command.channel).group(command.group)
    for lease in [lease for lease in group.leases.values() if lease.member == command.member]:
        group.give_back(lease)
    group.members.pop(command.member, None)
    return Decision([], LeaveReply())


def test_planted_a_member_that_owns_on_after_it_left_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DECIDERS, Leave, leave_and_stay)
    expect_to_be_caught()


def expect_to_be_caught() -> None:
    seeded = settings(
        max_examples=2_000,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        database=None,
    )
    with pytest.raises(AssertionError):
        run_state_machine_as_test(OrderedMachine, settings=seeded)
