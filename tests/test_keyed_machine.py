"""Keyed channels that come and go, against a model of plain data: where each message is, and when; who reads what.

Batches of several keys are split over partitions, at once or delayed, also where they are retried; parts of delayed
ones are cancelled; a reader never takes one channel for another that has its name.
"""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from handbroker import HandBroker, contents, durable, offsets_of, replayed
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from mq import publication
from mq.command import (
    CancelSchedule,
    CreateChannel,
    DeleteChannel,
    DescribeChannel,
    ListSchedules,
    Position,
    Publish,
    Pull,
)
from mq.errors import ChannelNotFound, MqError, ScheduleNotFound
from mq.reply import Placement
from mq.store import Store
from wal.pb.wal_pb2 import Batch, BatchMessage

NAMES, KEYS, PARTITIONS = ["a", "b"], ["k", "l", "m", "n", ""], 3
keys = st.lists(st.sampled_from(KEYS), min_size=1, max_size=6)


class Delayed:
    def __init__(self, due: int, number: int, name: str, partition: int, texts: list[str]) -> None:
        self.due, self.number, self.name, self.partition, self.texts = due, number, name, partition, texts


class Reader:
    def __init__(self, name: str, life: int) -> None:
        self.name, self.life = name, life
        self.positions = [Position(number, 0) for number in range(PARTITIONS)]
        self.channel_id = 0
        self.found: list[list[str]] = [[] for _ in range(PARTITIONS)]


class KeyedMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.hand = HandBroker()
        self.lives: dict[str, int] = {}  # of the channels that there are: each creation is another
        self.stored: dict[str, list[list[str]]] = {}
        self.delayed: list[Delayed] = []
        self.readers: list[Reader] = []
        self.sent: list[tuple[Publish, int, Any]] = []  # by a producer: the command, the life, the answer
        self.number = self.created = 0
        for name in NAMES:
            self.create(name)

    def create(self, name: str) -> None:
        self.hand.ask(CreateChannel(name, partitions=PARTITIONS, fail_if_exists=True))
        self.created += 1
        self.lives[name] = self.created
        self.stored[name] = [[] for _ in range(PARTITIONS)]

    def publish_due(self) -> None:
        for item in sorted(self.delayed, key=lambda item: (item.due, item.number)):
            if item.due <= self.hand.clock.us:
                self.delayed.remove(item)
                self.stored[item.name][item.partition] += item.texts

    # ------------------------------------------------------------ publishing

    @rule(name=st.sampled_from(NAMES), keys=keys, delay=st.sampled_from([0, 0, 500, 2000]), is_producer=st.booleans())
    def publish(self, name: str, keys: list[str], delay: int, is_producer: bool) -> None:
        if name not in self.lives:
            return
        texts = [f"{key}.{self.number + index}" for index, key in enumerate(keys)]
        self.number += len(keys)
        pairs = zip(keys, texts, strict=True)
        messages = [BatchMessage(content=text.encode(), key=key.encode() or None) for key, text in pairs]
        batch = Batch(messages=messages).SerializeToString()
        command = Publish(name, batch, len(keys), delay_ms=delay)
        if is_producer:
            command.producer_id, command.crc = f"p{self.number}", zlib.crc32(batch)
        reply = self.hand.ask(command)
        self.check_placements(reply, keys, texts, delay, name)
        if is_producer:
            self.sent.append((command, self.lives[name], reply))

    def check_placements(self, reply: Any, keys: list[str], texts: list[str], delay: int, name: str) -> None:
        places = reply.placements or [(reply.partition, reply.base_offset, range(len(texts)), reply.schedule_id)]
        assert sorted(index for _, _, indexes, _ in places for index in indexes) == list(range(len(texts)))
        assert reply.schedule_id == places[0][3]
        assert len({partition for partition, _, _, _ in places}) == len(places)
        keyless = {at[0] for at in places for index in at[2] if not keys[index]}
        assert len(keyless) <= 1, "what has no key stays together"
        for partition, base, indexes, number in places:
            assert list(indexes) == sorted(indexes)
            for index in indexes:
                assert not keys[index] or zlib.crc32(keys[index].encode()) % PARTITIONS == partition
            part = [texts[index] for index in indexes]
            if delay:
                assert number
                self.delayed.append(Delayed(self.hand.clock.us + delay * 1000, number, name, partition, part))
            else:
                assert (base, number) == (len(self.stored[name][partition]), 0)
                self.stored[name][partition] += part

    @rule(which=st.integers(0, 5))
    def retry(self, which: int) -> None:
        """The first answer again, part by part."""
        if which < len(self.sent):
            command, life, first = self.sent[-1 - which]
            if self.lives.get(command.channel) == life:
                again = self.hand.ask(command)
                assert again.duplicate
                assert [(*place[:2], list(place[2]), place[3]) for place in again.placements] == [
                    (*place[:2], list(place[2]), place[3]) for place in first.placements
                ]
                assert (again.partition, again.base_offset) == (first.partition, first.base_offset)
                assert again.schedule_id == first.schedule_id

    @rule(which=st.integers(0, 5))
    def cancel(self, which: int) -> None:
        """One part; the others of its batch stay."""
        if which < len(self.delayed):
            item = self.delayed.pop(which)
            self.hand.ask(CancelSchedule(item.name, item.number))
            with pytest.raises(ScheduleNotFound):
                self.hand.ask(CancelSchedule(item.name, item.number))

    # ------------------------------------------------------------ channels come and go

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        if self.lives.pop(name, 0):
            self.hand.ask(DeleteChannel(name))
            self.delayed = [item for item in self.delayed if item.name != name]

    @rule(name=st.sampled_from(NAMES))
    def create_again(self, name: str) -> None:
        if name not in self.lives:
            self.create(name)

    @rule(name=st.sampled_from(NAMES))
    def begin_to_read(self, name: str) -> None:
        if name in self.lives:
            self.readers.append(Reader(name, self.lives[name]))
            self.read(0)

    @rule(which=st.integers(0, 3))
    def read(self, which: int) -> None:
        if which >= len(self.readers):
            return
        reader = self.readers[-1 - which]
        command = Pull(reader.name, positions=reader.positions, max_messages=3, channel_id=reader.channel_id)
        if self.lives.get(reader.name) != reader.life:
            with pytest.raises(ChannelNotFound):
                self.hand.ask(command)
            return
        reply = self.hand.ask(command)
        reader.positions, reader.channel_id = reply.next, reply.channel_id
        for pulled in reply.batches:
            assert offsets_of(pulled)[0] == len(reader.found[pulled.partition])
            reader.found[pulled.partition] += contents(type("One", (), {"batches": [pulled]}))
        for partition, found in enumerate(reader.found):
            assert found == self.stored[reader.name][partition][: len(found)]

    # ------------------------------------------------------------ time and crashes

    @rule(ms=st.sampled_from([100, 1000]))
    def time_passes(self, ms: int) -> None:
        self.hand.tick(ms)
        self.publish_due()

    @rule(is_clean=st.booleans())
    def start_again(self, is_clean: bool) -> None:
        self.hand = self.hand.restart() if is_clean else self.hand.crash()
        self.hand.settle()

    @rule()
    def check(self) -> None:
        assert durable(replayed(self.hand.log, self.hand.limits)) == durable(self.hand.state)
        assert set(self.hand.state.channels) == set(self.lives)
        for name in self.lives:
            ends = [partition.next_offset for partition in self.hand.state.channels[name].partitions]
            assert ends == [len(part) for part in self.stored[name]]
            planned = self.hand.ask(ListSchedules(name)).schedules
            of_name = [item for item in self.delayed if item.name == name]
            assert self.hand.ask(DescribeChannel(name)).scheduled == sum(len(item.texts) for item in of_name)
            assert [(at.due_us, at.schedule_id, at.count) for at in planned] == sorted(
                (item.due, item.number, len(item.texts)) for item in of_name
            )

    def teardown(self) -> None:
        if hasattr(self, "hand"):
            self.hand.stop()


TestKeyedMachine = KeyedMachine.TestCase
TestKeyedMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize(
    ("owner", "name", "broken"),
    [
        (Store, "same_channel", lambda self, name, channel_id: self.channel(name)),
        (publication, "Placement", lambda *fields: Placement(*fields[:3])),
        (publication, "_indexes", lambda batch, partitions, answers: {}),
    ],
    ids=["names are enough", "one id for all parts", "a retry forgets which"],
)
def test_planted_a_broker_without_one_of_its_rules_is_caught(
    owner: Any, name: str, broken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, broken)
    seeded = settings(
        max_examples=200,
        stateful_step_count=40,
        deadline=None,
        derandomize=True,
        phases=[Phase.generate],
        database=None,
    )
    with pytest.raises((AssertionError, pytest.fail.Exception, MqError)):
        run_state_machine_as_test(KeyedMachine, settings=seeded)
