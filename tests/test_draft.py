"""Snapshots that are encoded ahead, a bit at a time: what changes meanwhile is in them, and they are of one place."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from handbroker import HandBroker, all_stopped, durable, offsets_of, publish, receipts
from hypothesis import given
from hypothesis import strategies as st

from mq import draft, snapshot, snapshotter
from mq.channel import Channel, Partition, Schedule
from mq.command import (
    Ack,
    CancelSchedule,
    CreateChannel,
    CreateGroup,
    DeleteGroup,
    ListSchedules,
    Nack,
    Pull,
    PurgeChannel,
    Receipt,
    Seek,
    Start,
    UpdateChannel,
    UpdateGroup,
)
from mq.cursor import Cursor
from mq.group import Group
from mq.limits import Limits, default_group
from mq.producer import Answer, Producers
from wal.memory import MemoryLog
from wal.pb.wal_pb2 import ChannelSettings, ChannelSnapshot, GroupSettings
from wal.record import Encoded, SnapshotBegin, plain

__all__ = ["all_stopped"]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few of anything are many steps, and every channel is drafted."""
    monkeypatch.setattr(draft, "STEP", 4)
    monkeypatch.setattr(draft, "CHUNK", 2)
    monkeypatch.setattr(draft, "AGAIN", 1)
    monkeypatch.setattr(snapshotter, "is_large", lambda channel: True)


def joined(records: list[Encoded]) -> ChannelSnapshot:
    whole: ChannelSnapshot | None = None
    for record in records:
        assert whole is None or whole.more
        part = plain(record)
        assert isinstance(part, ChannelSnapshot)
        whole = snapshot.join(whole, part)
    assert whole is not None
    assert not whole.more
    return whole


# ---------------------------------------------------------------- one channel, changed by hand


class Changing:
    """A channel with everything that a snapshot tells, and a hand that changes some of it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.producers = Producers(6, 3, 1_000)
        self.channel = Channel(7, "a", ChannelSettings(), 1, self.producers)
        self.channel.partitions = [Partition(7, number) for number in range(3)]
        self.now = self.schedules = self.groups = 0
        self.sequences: dict[str, int] = {}
        self.add_group()
        self.add_group()

    def change(self, times: int) -> None:
        changes = [self.publish, self.publish, self.note, self.note, self.ack, self.ack, self.retry, self.retry]
        changes += [self.plan, self.plan, self.drop]
        rare = [self.seek, self.trim, self.add_group, self.delete_group, self.add_partition, self.let_time_pass]
        for _ in range(times):
            self.random.choice(rare if self.random.random() < 0.07 else changes)()

    def publish(self) -> None:
        self.now += 1
        partition = self.random.choice(self.channel.partitions)
        partition.ladder.note(partition.next_offset, partition.bytes)
        partition.ladder.reach(self.now, 0)
        partition.next_offset += self.random.randrange(1, 9)
        partition.bytes += 10

    def note(self) -> None:
        name = self.random.choice("pqrstuvwxy")
        sequence = self.sequences[name] = self.sequences.get(name, -1) + 1
        for partition in range(self.random.choice([1, 1, 2])):
            self.producers.note(name, Answer(sequence, 9, partition, self.now, 1, self.now), self.now)

    def cursor(self) -> Cursor:
        return self.random.choice(self.random.choice(list(self.channel.groups.values())).cursors)

    def ack(self) -> None:
        start = self.random.randrange(60)
        self.cursor().ack(start, start + self.random.randrange(1, 4))

    def retry(self) -> None:
        start = self.random.randrange(60)
        self.cursor().retry(start, start + self.random.randrange(1, 4), self.random.randrange(1, 3), self.now, False)

    def seek(self) -> None:
        self.cursor().seek(self.random.randrange(40))

    def trim(self) -> None:
        number = self.random.randrange(len(self.channel.partitions))
        partition = self.channel.partitions[number]
        offset = self.random.randint(partition.start_offset, partition.next_offset)
        partition.trim(offset)
        for group in self.channel.groups.values():
            group.skipped += group.cursors[number].advance(offset)

    def add_group(self) -> None:
        self.groups += 1
        group = Group(self.groups, f"g{self.random.randrange(4)}", default_group(), 7, self.now)
        group.cursors = [Cursor(self.random.randrange(4)) for _ in self.channel.partitions]
        self.channel.add_group(group)

    def delete_group(self) -> None:
        if len(self.channel.groups) > 1:
            group = self.random.choice(list(self.channel.groups.values()))
            del self.channel.groups[group.name], self.channel.groups_by_id[group.group_id]

    def add_partition(self) -> None:
        self.channel.partitions.append(Partition(7, len(self.channel.partitions)))
        for group in self.channel.groups.values():
            group.cursors.append(Cursor(0))

    def let_time_pass(self) -> None:
        self.now += 400

    def plan(self) -> None:
        self.schedules += self.random.randrange(1, 3)
        self.channel.schedules.plan(self.schedules, Schedule(self.random.randrange(99), self.now, 1))

    def drop(self) -> None:
        if self.channel.schedules:
            self.channel.schedules.drop(self.random.choice(list(self.channel.schedules)))


def watchers(channel: Channel) -> list[Any]:
    cursors = [cursor.on_change for group in channel.groups.values() for cursor in group.cursors]
    return [channel.producers.noted, channel.schedules.changed, *cursors]


@given(st.integers(0, 1 << 32), st.integers(0, 200), st.integers(0, 5), st.integers(50, 3_000))
def test_a_draft_tells_the_channel_as_it_is_when_it_is_finished(seed: int, before: int, each: int, most: int) -> None:
    changing = Changing(seed)
    changing.change(before)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(draft, "STEP", 4)
        patch.setattr(draft, "CHUNK", 2)
        patch.setattr(draft, "AGAIN", 1)
        drafted = draft.Draft(changing.channel)
        changing.change(each)
        while drafted.step():
            changing.change(each)
        changing.change(each)
        records = drafted.finish(most)
    told, wanted = joined(records), snapshot.take(changing.channel)
    again = snapshot.restore(told, Producers(6, 3, 1_000))
    assert snapshot.take(again) == wanted
    assert list(again.groups) == list(changing.channel.groups)
    assert len(again.producers) == len(changing.producers)
    check_ranges(told, changing.channel)
    assert not any(each is not None for each in watchers(changing.channel))


def check_ranges(told: ChannelSnapshot, channel: Channel) -> None:
    """No offset is told twice, and none that is done anyway: who adds up what a group has acked relies on that."""
    for group in channel.groups.values():
        for number, cursor in enumerate(group.cursors):
            pieces = [at for of in told.groups if of.group_id == group.group_id for at in of.cursors]
            pieces = [at for at in pieces if at.partition == number]
            assert pieces[0].offset == cursor.offset
            acked = [(each.start, each.end) for at in pieces for each in at.acked]
            assert acked == sorted(acked)
            assert sum(end - start for start, end in acked) == cursor.acked.total()
            retries = [each.end - each.start for at in pieces for each in at.retries]
            assert sum(retries) == cursor.retries.total


def test_a_draft_that_is_given_up_watches_nobody() -> None:
    changing = Changing(1)
    changing.change(100)
    drafted = draft.Draft(changing.channel)
    while drafted.step():
        pass
    assert all(each is not None for each in watchers(changing.channel))
    drafted.give_up()
    assert not any(each is not None for each in watchers(changing.channel))


def test_a_draft_ends_also_where_everything_changes_all_the_time(small: None) -> None:
    changing = Changing(2)
    changing.change(500)
    drafted = draft.Draft(changing.channel)
    steps = 0
    while drafted.step():
        changing.change(50)
        steps += 1
    assert steps < 3 * draft.ROUNDS
    again = snapshot.restore(joined(drafted.finish(500)), Producers(6, 3, 1_000))
    assert snapshot.take(again) == snapshot.take(changing.channel)


# ---------------------------------------------------------------- how much is done at a time


class Counter:
    """What was encoded since it was asked last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        add_answers, add_schedule, cursor_of = snapshot.add_answers, snapshot.add_schedule, snapshot.cursor_of

        def answers(to: Any, name: str, seen_us: int, told: Any) -> None:
            self.count += len(told)
            add_answers(to, name, seen_us, told)

        def schedule(*args: Any) -> None:
            self.count += 1
            add_schedule(*args)

        def cursor(*args: Any) -> Any:
            told = cursor_of(*args)
            self.count += len(told.acked) + len(told.retries)
            return told

        monkeypatch.setattr(snapshot, "add_answers", answers)
        monkeypatch.setattr(snapshot, "add_schedule", schedule)
        monkeypatch.setattr(snapshot, "cursor_of", cursor)

    def take(self) -> int:
        count, self.count = self.count, 0
        return count


def crowded(kind: str) -> Channel:
    """A channel of which one thing is there very often."""
    channel = Channel(1, kind, ChannelSettings(), 1, Producers(1_000, 64, 1 << 60))
    channel.partitions = [Partition(1, 0, 0, 100_000)]
    group = Group(1, "g", default_group(), 1, 1)
    group.cursors = [Cursor(0)]
    channel.add_group(group)
    for number in range(6_400):
        if kind == "producers":
            channel.producers.note(str(number % 100), Answer(number // 100, 1, 0, number, 1, 1), 1)
        elif kind == "schedules":
            channel.schedules.plan(number, Schedule(number, 1, 1))
        elif kind == "acked":
            group.cursors[0].ack(2 * number + 1, 2 * number + 2)
        else:
            group.cursors[0].retry(2 * number + 1, 2 * number + 2, 1, number, False)
    return channel


@pytest.mark.parametrize("kind", ["producers", "schedules", "acked", "retries"])
def test_of_a_large_channel_a_bit_is_encoded_at_a_time_and_in_its_turn_only_what_changed(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = crowded(kind)
    assert draft.is_large(channel)
    counter = Counter(monkeypatch)
    drafted = draft.Draft(channel)
    steps = []
    while drafted.step():
        steps.append(counter.take())
    assert sum(steps) >= 6_400
    assert max(steps) <= draft.STEP + 64
    for number in range(5):
        channel.producers.note("0", Answer(64 + number, 1, 0, 1, 1, 1), 1)
        channel.schedules.plan(10_000 + number, Schedule(number, 1, 1))
        channel.groups["g"].cursors[0].ack(2_000, 2_001 + number)
    counter.take()
    records = drafted.finish(1 << 20)
    assert counter.take() <= 4 * draft.CHUNK
    assert max(record.ByteSize() for record in records) < (1 << 20) + 100
    again = snapshot.restore(joined(records), Producers(1_000, 64, 1 << 60))
    assert snapshot.take(again) == snapshot.take(channel)


# ---------------------------------------------------------------- a broker that goes on meanwhile


class Busy:
    """A broker and what its clients do."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        group = GroupSettings(ack_wait_ms=30_000, max_deliver=4, backoff_ms=[500], session_timeout_ms=10_000)
        limits = Limits(snapshot_bytes=1 << 40, producers=5, producer_window=3, group=group, snapshot_record_bytes=400)
        self.hand = HandBroker(MemoryLog(is_held=True), limits=limits)
        self.sequences: dict[str, int] = {}
        self.hand.ask(CreateChannel("a", partitions=2))
        self.hand.ask(CreateChannel("b"))
        self.hand.ask(CreateGroup("a", "g"))
        self.hand.ask(CreateGroup("a", "h"))

    def work(self, times: int) -> None:
        acts = [self.publish, self.publish, self.publish_delayed, self.cancel, self.settle, self.settle, self.settle]
        rare = [self.seek, self.purge, self.regroup, self.grow, self.update, self.wait]
        for _ in range(times):
            self.random.choice(rare if self.random.random() < 0.1 else acts)()

    def publish(self) -> None:
        name = self.random.choice(["", "p", "q", "r", "s", "t", "u", "v"])
        fields: dict[str, Any] = {"partition": self.random.randrange(2)}
        if name:
            known = dict(self.hand.state.channels["a"].producers.items())
            sequence = known[name].answers[-1].sequence + 1 if name in known else 0
            fields |= {"producer_id": name, "sequence": sequence, "crc": sequence}
        self.hand.ask(publish("a", *"12345"[: self.random.randrange(1, 6)], **fields))

    def publish_delayed(self) -> None:
        self.hand.ask(publish("a", "later", partition=0, delay_ms=self.random.randrange(1, 9_000)))

    def cancel(self) -> None:
        planned = self.hand.ask(ListSchedules("a")).schedules
        if planned:
            self.hand.ask(CancelSchedule("a", self.random.choice(planned).schedule_id))

    def settle(self) -> None:
        name = self.random.choice("gh")
        got = self.hand.ask(Pull("a", name, "m", max_messages=self.random.randrange(1, 12)))
        for pulled in got.batches:
            some = [(at, at + 1) for at in offsets_of(pulled) if self.random.random() < 0.5]
            if some:
                self.hand.ask(Ack("a", name, "m", [Receipt(pulled.receipt, some)]))
            if self.random.random() < 0.7 and len(some) < len(offsets_of(pulled)):
                self.hand.ask(Nack("a", name, "m", [Receipt(pulled.receipt)], delay_ms=self.random.randrange(900)))

    def seek(self) -> None:
        self.hand.ask(Seek("a", self.random.choice("gh"), start=self.random.choice([Start(), Start("latest")])))

    def purge(self) -> None:
        start = self.hand.state.channels["a"].partitions[0].start_offset
        self.hand.ask(PurgeChannel("a", 0, start + 3))

    def regroup(self) -> None:
        self.hand.ask(DeleteGroup("a", "h"))
        self.hand.ask(CreateGroup("a", "h"))

    def grow(self) -> None:
        partitions = len(self.hand.state.channels["a"].partitions)
        self.hand.ask(UpdateChannel("a", partitions=min(partitions + 1, 5)))

    def update(self) -> None:
        settings = GroupSettings(max_deliver=self.random.randrange(3, 6))
        self.hand.ask(UpdateGroup("a", "g", settings))

    def wait(self) -> None:
        self.hand.tick(self.random.randrange(3_000))

    def write_on(self) -> bool:
        """One bit of a snapshot run; false: it has ended."""
        writer = self.hand.broker._snapshotter
        self.hand.loop.call_soon(writer._next)
        self.hand.settle()
        return bool(writer._begin_sequence)


@pytest.mark.parametrize("seed", range(12))
def test_a_snapshot_in_slices_and_the_records_that_follow_it_are_the_state(small: None, seed: int) -> None:
    busy = Busy(seed)
    busy.work(60)
    busy.hand.loop.call_soon(busy.hand.broker._snapshotter._begin)
    turns = 1
    while busy.write_on():
        busy.work(busy.random.randrange(3))
        turns += 1
    assert turns > 15
    busy.work(seed % 4)
    busy.hand.settle()
    before, after = durable(busy.hand.state), busy.hand.crash()
    assert isinstance(next(iter(after.log.replay()))[1], SnapshotBegin)
    assert durable(after.state) == before
    assert list(after.state.schedules) == list(busy.hand.state.schedules)
    assert after.state.set_aside == 0


def test_a_run_under_way_is_written_to_its_end_at_a_clean_stop(small: None) -> None:
    busy = Busy(99)
    busy.work(60)
    busy.hand.loop.call_soon(busy.hand.broker._snapshotter._begin)
    for _ in range(10):
        busy.write_on()
        busy.work(1)
    got = busy.hand.ask(Pull("a", "g", "m"))
    if got.batches:
        busy.hand.ask(Ack("a", "g", "m", receipts(got)))
    before = durable(busy.hand.state)
    again = busy.hand.restart()
    assert isinstance(next(iter(again.log.replay()))[1], SnapshotBegin)
    assert durable(again.state) == before


def test_a_mistake_in_a_draft_ends_the_run_and_leaves_nothing_watched(
    small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = Busy(5)
    busy.work(40)
    busy.hand.loop.call_soon(busy.hand.broker._snapshotter._begin)

    def fail(*args: Any) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(draft, "_records", fail)
    while busy.write_on():
        pass
    for channel in busy.hand.state.channels.values():
        assert not any(each is not None for each in watchers(channel))
    before = durable(busy.hand.state)
    assert durable(busy.hand.crash().state) == before
