"""What a start makes of a log in which records are lost: everything intact is served, and nothing else is missed."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from damage import Place
from handbroker import HandBroker, all_stopped, batch, contents, durable, new_secret, offsets, publish
from hypothesis import given
from hypothesis import strategies as st
from process import wait_until

from mq import snapshot
from mq.batch import OVERHEAD_BYTES
from mq.command import CreateChannel, Position, Pull, Transact
from mq.errors import DataLoss, MqError
from mq.limits import Limits
from mq.state import State
from mq.transaction import decide_transact
from wal import FileLog, Options
from wal.chain import walk_chain
from wal.disk import DirectDisk
from wal.frame import HEADER_BYTES, Frame
from wal.manifest import read_manifest
from wal.pb.wal_pb2 import (
    Atomic,
    ChannelCreated,
    ChannelDeleted,
    Damaged,
    GroupCreated,
    GroupDeleted,
    Published,
    Skipped,
    SnapshotBegin,
    Trimmed,
)
from wal.record import PUBLISHED, Record, atomic, decode

__all__ = ["all_stopped"]

OPTIONS = Options(segment_bytes=1 << 20, soft_free_bytes=0)
DEADLINE = 30.0
MESSAGES = 200
TOGETHER = 10  # messages of a record
ALL = [f"{number}" * 5 for number in range(MESSAGES)]


# ---------------------------------------------------------------- brokers with files


def ask(hand: HandBroker, command: Any) -> Any:
    asked = hand.send(command)
    end = time.monotonic() + DEADLINE
    while not asked.is_answered:
        assert time.monotonic() < end
        hand.spin()
    if isinstance(asked.answer, MqError):
        raise asked.answer
    return asked.answer


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a broker that was killed: two channels, one sealed segment and the live one, no snapshot."""
    directory = tmp_path_factory.mktemp("log") / "log"
    hand = HandBroker(FileLog.open(directory, OPTIONS))
    for name in "ab":
        ask(hand, CreateChannel(name))
    for start in range(0, MESSAGES, TOGETHER):
        if start == MESSAGES // 2:
            hand.broker.rotate()
        for name in "ab":
            ask(hand, publish(name, *ALL[start : start + TOGETHER]))
    # where nothing comes any more the last record is vouched for soon: before that, it might never have been whole
    wait_until(lambda: hand.spin() or not hand.log._writer.has_news)
    killed = directory.parent / "killed"
    shutil.copytree(directory, killed)
    hand.stop()
    hand.log.close()
    return killed


def published_in(directory: Path) -> list[tuple[Place, Published]]:
    manifest = read_manifest(DirectDisk(), str(directory))
    assert manifest is not None
    found = []
    for entry, item in walk_chain(DirectDisk(), str(directory), manifest):
        if isinstance(item, Frame) and item.type == PUBLISHED:
            record = decode(item.type, item.payload)
            assert isinstance(record, Published)
            end = item.position + HEADER_BYTES + len(item.payload)
            path = str(directory / entry.name(manifest.extension))
            found.append((Place(path, item.position, end, item.sequence), record))
    return found


def flip(place: Place) -> None:
    data = bytearray(Path(place.path).read_bytes())
    data[place.end - 7] ^= 4
    Path(place.path).write_bytes(data)


def read_all(hand: HandBroker, channel: str) -> tuple[dict[int, str], list[tuple[int, int]]]:
    """Everything that a reader gets who goes on behind what is lost, and what he is told is lost."""
    served: dict[int, str] = {}
    lost = []
    at = 0
    while True:
        try:
            reply = ask(hand, Pull(channel, max_messages=70, positions=[Position(0, at)]))
        except DataLoss as loss:
            lost.append((loss.start, loss.end))
            at = loss.end
            continue
        if not reply.batches:
            return served, lost
        served |= zip(offsets(reply), contents(reply), strict=True)
        at = reply.next[0].offset


def check(directory: Path, hurt: list[tuple[Place, Published]], buffer_bytes: int) -> None:
    frames = published_in(directory)
    for place, _ in hurt:
        flip(place)
    gone = {place.sequence for place, _ in hurt}
    used = {"a": MESSAGES, "b": MESSAGES}
    for again in range(2):
        hand = HandBroker(FileLog.open(directory, OPTIONS), limits=Limits(buffer_bytes=buffer_bytes))
        for number, name in enumerate("ab", 1):
            mine = [(place.sequence not in gone, record) for place, record in frames if record.channel_id == number]
            kept = {
                offset: ALL[offset]
                for is_kept, record in mine
                for offset in range(record.base_offset, record.base_offset + TOGETHER)
                if is_kept
            }
            kept |= {offset: "new" for offset in range(MESSAGES, used[name]) if again and offset == used[name] - 1}
            served, lost = read_all(hand, name)
            assert served == kept
            told = {offset for start, end in lost for offset in range(start, end)}
            assert told & set(range(MESSAGES)) == set(range(MESSAGES)) - kept.keys()
            is_last_lost = max(gone, default=0) > max(place.sequence for place, r in frames if r.channel_id == number)
            if mine[-1][0] and not is_last_lost:
                assert told < set(range(MESSAGES)), "what follows the damage tells where it ends"
            new = ask(hand, publish(name, "new")).base_offset
            assert new >= used[name]
            if not again:
                used[name] = new + 1
        if not again:
            copied = directory.parent / f"{directory.name}-again"
            shutil.copytree(directory, copied)
            hand.stop()
            hand.log.close()
            directory = copied
    hand.stop()
    hand.log.close()


@pytest.mark.parametrize("buffer_bytes", [1 << 20, 1])
@pytest.mark.parametrize(
    "which",
    [[0], [1], [7], [18], [19], [20], [27], [37], [38], [39], [3, 4], [3, 29], [2, 9, 31], [5, 7], [36, 38], [37, 39]],
)
def test_a_flipped_bit_costs_the_messages_of_its_own_record_and_no_others(
    killed: Path, tmp_path: Path, which: list[int], buffer_bytes: int
) -> None:
    directory = tmp_path / "log"
    shutil.copytree(killed, directory)
    frames = published_in(directory)
    assert len(frames) == 40
    assert len({place.path for place, _ in frames}) == 2
    check(directory, [frames[number] for number in which], buffer_bytes)


# ---------------------------------------------------------------- the state alone


def replay(log: list[Record]) -> State:
    state = State(Limits(), new_secret())
    state.synced = 1 << 62
    for sequence, record in enumerate(log, 1):
        state.apply(sequence, record)
    return state


def numbers(ranges: Any) -> set[int]:
    return {offset for start, end in ranges for offset in range(start, end)}


steps = st.one_of(
    st.tuples(st.sampled_from(["publish", "damage", "skip"]), st.integers(0, 1), st.integers(1, 5), st.integers(0, 9)),
    st.tuples(st.sampled_from(["restart", "snapshot", "trim"]), st.integers(0, 1), st.integers(0, 9), st.just(0)),
)


@given(st.lists(steps, max_size=25))
def test_whatever_is_lost_and_whenever_a_broker_starts_no_intact_record_is_missed(steps) -> None:
    """`live` is the broker that writes: it learns of damage when it is started again, and only then."""
    log: list[Record] = [ChannelCreated(channel_id=1, name="a", partitions=2)]
    live = replay(log)
    kept: list[set[int]] = [set(), set()]
    lost: list[set[int]] = [set(), set()]
    known = [set[int](), set[int]()]  # of what is lost, to the live broker
    is_exact = True
    for verb, number, amount, spare in steps:
        partition = live.channels["a"].partitions[number]
        if verb in ("publish", "damage", "skip"):
            base = partition.next_offset
            content = batch(*["x"] * amount)
            made = Published(channel_id=1, partition=number, base_offset=base, count=amount, batch=content)
            live.apply(len(log) + 1, made)
            if verb == "publish":
                kept[number] |= set(range(base, base + amount))
                log.append(made)
            elif verb == "damage":
                lost[number] |= set(range(base, base + amount))
                log.append(Damaged(skip=amount + spare))
            else:
                log.append(Skipped(skip=amount + spare))
        elif verb == "restart":
            live = replay(log)
            known = [set(each) for each in lost]
        elif verb == "snapshot":
            log.append(snapshot.take(live.channels["a"]))
            lost = [set(each) for each in known]
        else:
            start = max(partition.start_offset, partition.next_offset - amount)
            log.append(Trimmed(channel_id=1, partition=number, start_offset=start))
            live.apply(len(log), log[-1])
        is_exact = is_exact and verb not in ("restart", "skip", "snapshot")
    state = replay(log)
    assert state.set_aside == 0
    for number, partition in enumerate(state.channels["a"].partitions):
        damaged = numbers(partition.damaged)
        assert not damaged & kept[number]
        wanted = {offset for offset in lost[number] if offset >= partition.start_offset}
        assert wanted <= damaged
        if is_exact:
            assert {offset for offset in damaged if offset < max(kept[number], default=0)} == {
                offset for offset in wanted if offset < max(kept[number], default=0)
            }
        assert partition.visible == partition.next_offset >= live.channels["a"].partitions[number].next_offset
        in_memory = numbers((found.base, found.end) for found in partition.buffer)
        assert {offset for offset in kept[number] if offset >= max(partition.start_offset, partition.buffer.floor)} == {
            offset for offset in in_memory if offset >= partition.start_offset
        }
        assert partition.bytes == 0 or partition.next_offset > partition.start_offset


# ---------------------------------------------------------------- deletions


def created(channel_id: int) -> ChannelCreated:
    return ChannelCreated(channel_id=channel_id, name="a", partitions=1)


def group_created(group_id: int) -> GroupCreated:
    return GroupCreated(channel_id=1, group_id=group_id, name="g")


def test_a_channel_that_was_made_again_has_its_name_alone_though_the_deletion_is_lost() -> None:
    content = batch("x")
    log: list[Record] = [
        created(1),
        Published(channel_id=1, count=1, batch=content),
        Damaged(skip=3),
        created(2),
        Published(channel_id=2, count=1, batch=content),
    ]
    state = replay(log)
    assert state.channels_by_id == {2: state.channels["a"]}
    assert [len(partition.buffer) for partition in state.channels["a"].partitions] == [1]
    assert state.budget.used < 2 * (len(content) + OVERHEAD_BYTES), "what the first one held is let go"
    late = Published(channel_id=1, base_offset=1, count=1, batch=content)
    assert replay([*log, late, ChannelDeleted(channel_id=1)]).channels_by_id.keys() == {2}
    gone = replay([*log, ChannelDeleted(channel_id=2), ChannelDeleted(channel_id=1)])
    assert (gone.channels, gone.channels_by_id) == ({}, {})
    assert replay([*log, ChannelDeleted(channel_id=2), created(9)]).channels_by_id.keys() == {9}


def test_of_two_snapshots_with_one_name_the_channel_that_was_made_later_stays() -> None:
    """Runs write the youngest channel first."""
    older, younger = (snapshot.take(replay([created(number)]).channels["a"]) for number in (1, 2))
    for log in ([younger, older], [older, younger]):
        state = replay([SnapshotBegin(channel_ids=[1, 2]), *log, ChannelDeleted(channel_id=1)])
        assert state.channels_by_id == {2: state.channels["a"]}
        state.apply(9, ChannelDeleted(channel_id=2))
        assert (state.channels, state.channels_by_id) == ({}, {})


def test_a_group_that_was_made_again_has_its_name_alone_though_the_deletion_is_lost() -> None:
    log: list[Record] = [created(1), group_created(1), Damaged(skip=3), group_created(2)]
    channel = replay(log).channels["a"]
    assert channel.groups_by_id == {2: channel.groups["g"]}
    deletions = [GroupDeleted(channel_id=1, group_id=number) for number in (2, 1)]
    channel = replay([*log, *deletions]).channels["a"]
    assert (channel.groups, channel.groups_by_id) == ({}, {})


# ---------------------------------------------------------------- transactions


@pytest.mark.parametrize("order", ["ab", "ba"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_transaction_within_a_snapshot_run_is_remembered_by_its_first_channel_only(order: str, place: int) -> None:
    """`place`: how many channels the run had written before the transaction."""
    hand = HandBroker()
    for name in "ab":
        hand.ask(CreateChannel(name))
    run: list[Record] = [SnapshotBegin(channel_ids=[1, 2])]
    run += [snapshot.take(hand.state.channels[name]) for name in order[:place]]
    command = Transact([publish("a", "x"), publish("b", "y")], producer_id="p", sequence=0, crc=7)
    hand.ask(command)
    *_, (_, record) = hand.log.replay()
    assert isinstance(record, Atomic)
    run.append(record)
    run += [snapshot.take(hand.state.channels[name]) for name in order[place:]]
    state = replay(run)
    assert durable(state) == durable(hand.state)
    for each in (hand.state, state):
        again = decide_transact(each, command, 5)
        assert (again.records, again.reply.duplicate) == ([], True)
        other = Transact([publish("b", "z")], producer_id="p", sequence=0, crc=8)
        assert len(decide_transact(each, other, 5).records) == 1


def test_a_transaction_whose_first_channel_is_lost_is_remembered_by_no_other() -> None:
    content = batch("x")
    items: list[Record] = [Published(channel_id=number, count=1, batch=content) for number in (9, 1)]
    state = replay([created(1), atomic(items, producer="p", sequence=1)])
    assert state.channels["a"].partitions[0].next_offset == 1
    assert not list(state.channels["a"].producers.items())
