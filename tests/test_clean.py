"""Cleaning: what nobody needs leaves the disk, what somebody needs stays, whenever the power is cut."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from handbroker import HandBroker, all_stopped, contents, durable, publish, receipts
from hypothesis import given
from hypothesis import strategies as st
from logowner import HandClock as LogClock
from modeldisk import ModelDisk
from process import wait_until
from waiting import Marks
from walsample import published

from mq.broker import Broker
from mq.command import Ack, CreateChannel, CreateGroup, DeleteChannel, Pull, PurgeChannel
from mq.limits import Limits
from wal import FileLog, MemoryLog, Options
from wal.clean import LOOKS_UNREAD, Cleaner
from wal.clock import SystemClock
from wal.index import SegmentIndex
from wal.pb.wal_pb2 import ChannelSettings
from wal.record import Acked, ChannelSnapshot, Damaged, Published, Scheduled, SnapshotBegin, SnapshotEnd, atomic
from wal.verify import verify

__all__ = ["all_stopped"]

DIRECTORY = "/data/log"
SMALL = Options(segment_bytes=2048, snapshot_bytes=1024, soft_free_bytes=0, retire_grace_us=0)
FAST, SLOW = 1, 2


class Kept:
    """Publishes from an offset on, by channel; of everything else nothing but what is scheduled."""

    def __init__(self, **starts: int) -> None:
        self.starts = {FAST: starts.get("fast", 0), SLOW: starts.get("slow", 0)}
        self.scheduled = starts.get("scheduled", 0)

    def start_of(self, channel_id: int, partition: int) -> int:
        return self.starts[channel_id]

    def needs(self, record: Any) -> bool:
        if isinstance(record, Published):
            return record.base_offset + record.count > self.starts[record.channel_id]
        return isinstance(record, Damaged) or (isinstance(record, Scheduled) and self.scheduled > 0)


def snapshot_run(log: Any) -> None:
    begin = log.append([SnapshotBegin(channel_ids=[FAST, SLOW])])
    log.append([ChannelSnapshot(channel_id=FAST), ChannelSnapshot(channel_id=SLOW), SnapshotEnd(begin_sequence=begin)])


def fill(log: Any, rounds: int = 40) -> None:
    """A fast channel and a slow one in the same segments, with acks between."""
    for base in range(rounds):
        log.append([published(base, b"f" * 300, channel=FAST), Acked(channel_id=FAST, group_id=1)])
        if base % 8 == 0:
            log.append([published(base // 8, b"s" * 20, channel=SLOW)])
    snapshot_run(log)
    snapshot_run(log)
    if isinstance(log, FileLog):
        log.rotate()
        log.pump()


def on_model_disk() -> FileLog:
    log = FileLog.open(
        DIRECTORY, SMALL, disk=ModelDisk(), clock=LogClock(), random=Random(1).randbytes, is_threaded=False
    )
    log.start(lambda written, synced: None, lambda error: None)
    return log


def clean_all(log: Any, keep: Kept) -> int:
    """Rounds until two of them find nothing."""
    freed, idle = 0, 0
    while idle < 2:
        now = log.clean_now(keep, 1 << 20) if isinstance(log, FileLog) else asyncio.run(log.clean(keep, 1 << 20))
        freed += now
        idle = 0 if now else idle + 1
    return freed


def bases(log: Any, channel: int, offset: int = 0) -> list[int]:
    return [found.base_offset for found in asyncio.run(log.read(channel, 0, offset, 1 << 20))]


@pytest.fixture(params=["file", "memory"])
def log(request: pytest.FixtureRequest) -> Any:
    log = on_model_disk() if request.param == "file" else MemoryLog()
    fill(log)
    return log


def test_what_nobody_needs_goes_and_what_somebody_needs_stays(log: Any) -> None:
    before = log.usage().bytes
    freed = clean_all(log, Kept(fast=35))
    assert log.usage().bytes == before - freed < before / 2
    assert bases(log, SLOW) == [0, 1, 2, 3, 4]
    assert bases(log, FAST, 35) == [35, 36, 37, 38, 39]
    assert clean_all(log, Kept(fast=35)) == 0


def test_nothing_is_written_where_everything_is_needed(log: Any) -> None:
    segments = log.segments()
    clean_all(log, Kept())
    assert bases(log, FAST) == list(range(40))
    assert log.segments() == segments


def test_what_a_replay_needs_stays(log: Any) -> None:
    before = list(log.replay())
    clean_all(log, Kept(fast=99, slow=99))
    assert list(log.replay()) == before
    assert bases(log, SLOW) == []


def test_content_that_waits_for_its_time_stays_until_that_has_come() -> None:
    log = on_model_disk()
    late = Scheduled(channel_id=FAST, schedule_id=1, batch=b"x" * 500)
    log.append([late, atomic([late, late])])
    fill(log)
    clean_all(log, Kept(fast=99, slow=99, scheduled=1))
    assert asyncio.run(log.read_sequence(1)) == late
    assert clean_all(log, Kept(fast=99, slow=99, scheduled=1)) == 0, "it is not written again and again"
    for _ in range(LOOKS_UNREAD + 1):
        clean_all(log, Kept(fast=99, slow=99))
    assert asyncio.run(log.read_sequence(1)) is None


def test_before_the_second_snapshot_run_nothing_is_cleaned() -> None:
    log = on_model_disk()
    for base in range(40):
        log.append([published(base, b"f" * 300)])
    snapshot_run(log)
    log.rotate()
    log.pump()
    assert clean_all(log, Kept(fast=99)) == 0
    assert bases(log, FAST) == list(range(40))


def test_segments_in_which_nothing_lives_are_retired_and_small_ones_put_together() -> None:
    log = on_model_disk()
    fill(log, 200)
    many = len(log.segments())
    clean_all(log, Kept(fast=999))
    assert many > 20
    assert len(log.segments()) <= 5
    assert bases(log, SLOW) == list(range(25))
    log.close()
    assert verify(DIRECTORY, disk=log._disk).is_intact


def test_what_dies_after_a_look_is_cleaned_though_new_segments_come_before_each_look() -> None:
    log = on_model_disk()
    sizes = []
    for base in range(0, 1_200, 20):
        for offset in range(base, base + 20):
            log.append([published(offset, b"f" * 300, channel=FAST)])
        snapshot_run(log)
        snapshot_run(log)
        log.pump()
        log.clean_now(Kept(fast=max(0, base - 60)), 1 << 20)  # what is new to the cleaner lives on for a while
        log.pump()
        sizes.append(log.usage().bytes)
    assert max(sizes[30:]) < 1.2 * max(sizes[:30])
    assert bases(log, FAST, 1_140) == list(range(1_140, 1_200))


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(40, 400)), min_size=1, max_size=50),
    st.lists(st.integers(0, 20), min_size=3, max_size=3),
)
def test_a_look_counts_the_bytes_between_what_is_needed_and_the_next_publish(
    frames: list[tuple[int, int]], starts: list[int]
) -> None:
    index, position, offsets, live = SegmentIndex(), 64, [0, 0, 0], 0
    for sequence, (partition, size) in enumerate(frames, 1):
        index.add(position, sequence, [(FAST, partition, offsets[partition], offsets[partition] + 1)])
        live += size if offsets[partition] >= starts[partition] else 0
        offsets[partition] += 1
        position += size
    entry = SimpleNamespace(first_sequence=1, generation=0, size=position)
    cleaner = Cleaner(ModelDisk(), DIRECTORY, SimpleNamespace(index_of=lambda entry: index), 2048)  # type: ignore[arg-type]
    keep = SimpleNamespace(start_of=lambda channel_id, partition: starts[partition])
    assert cleaner._look_at(entry, keep).live_bytes == live  # type: ignore[arg-type]


def test_an_index_is_asked_again_only_where_something_of_its_segment_died(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log may keep very much, and be looked at every second."""
    log = on_model_disk()
    fill(log, 80)
    asked: list[int] = []
    index_of = log._reader.index_of

    def noted(entry: Any) -> Any:
        asked.append(entry.first_sequence)
        return index_of(entry)

    monkeypatch.setattr(log._reader, "index_of", noted)
    assert clean_all(log, Kept()) == 0
    segments = [segment.first_sequence for segment in log.segments()]
    assert set(segments[:-3]) <= set(asked)
    asked.clear()
    assert clean_all(log, Kept()) == 0
    assert asked == []
    assert clean_all(log, Kept(fast=2)) == 0  # too little to be worth it
    assert set(asked) == {segments[0]}
    asked.clear()
    assert clean_all(log, Kept(fast=40)) > 0
    assert len(set(asked) & set(segments)) < len(segments) / 2 + 2


def test_a_damaged_segment_is_left_for_repair(tmp_path: Path) -> None:
    log = FileLog.open(tmp_path / "log", SMALL, is_threaded=False)
    fill(log)
    first = tmp_path / "log" / log.segments()[0].name
    data = bytearray(first.read_bytes())
    data[200] ^= 0xFF
    first.write_bytes(data)

    async def rounds() -> None:
        for _ in range(3):
            await log.clean(Kept(fast=0, slow=0), 1)

    asyncio.run(rounds())
    assert first.read_bytes() == data
    log.close()


def test_a_power_cut_at_any_step_leaves_the_old_or_the_new_and_loses_nothing() -> None:
    log = on_model_disk()
    fill(log)
    disk, keep, rng = log._disk, Kept(fast=35), Random(7)
    assert isinstance(disk, ModelDisk)
    states: list[ModelDisk] = []
    disk.before = lambda kind, path: states.extend(disk.crash_states(rng, 3))
    clean_all(log, keep)
    disk.before = None
    assert len(states) > 100
    for state in states:
        again = FileLog.open(DIRECTORY, SMALL, disk=state, clock=LogClock(), random=rng.randbytes, is_threaded=False)
        again.start(lambda written, synced: None, lambda error: None)
        assert not again.report.damage
        assert bases(again, SLOW) == [0, 1, 2, 3, 4]
        assert bases(again, FAST, 35) == [35, 36, 37, 38, 39]
        assert next(type(record).__name__ for _, record in again.replay()) == "SnapshotBegin"
        clean_all(again, keep)
        assert again.usage().bytes < 4000
        assert bases(again, SLOW) == [0, 1, 2, 3, 4]
        again.append([published(40, channel=FAST)])
        again.pump()
        assert bases(again, FAST, 40) == [40]


def test_a_running_log_is_cleaned_between_its_groups_while_others_read_and_write(tmp_path: Path) -> None:
    log = FileLog.open(tmp_path / "log", SMALL)
    marks = Marks()
    log.start(marks.on_marks, marks.on_failure)
    fill_running(log, range(100))
    marks.wait_synced(log.last_sequence)

    async def everything() -> int:
        freed = 0
        for base in range(100, 160):
            cleaned, slow, _ = await asyncio.gather(
                log.clean(Kept(fast=95), 1 << 14), log.read(SLOW, 0, 0, 1 << 20), log.read(FAST, 0, 95, 1 << 20)
            )
            freed += cleaned
            assert [found.base_offset for found in slow][:13] == list(range(13))
            fill_running(log, [base])
        return freed

    assert asyncio.run(everything()) > 20_000
    marks.wait_synced(log.last_sequence)
    assert bases(log, FAST, 95) == list(range(95, 160))
    log.close()
    assert verify(str(tmp_path / "log")).is_intact


def fill_running(log: FileLog, rounds: Iterable[int]) -> None:
    for base in rounds:
        log.append([published(base, b"f" * 300, channel=FAST)])
        if base % 8 == 0:
            log.append([published(base // 8, b"s", channel=SLOW)])
        if base % 10 == 0:
            snapshot_run(log)


# ---------------------------------------------------------------- with a broker


class ByHand(FileLog):
    """Cleans in the caller's thread, because it has no other."""

    async def clean(self, keep: Any, max_bytes: int) -> int:
        return self.clean_now(keep, max_bytes)


class OnDisk(HandBroker):
    """A broker whose log is in files; a sync takes place when told to."""

    def settle(self) -> None:
        for _ in range(4):
            self.spin()
            self.log.pump()
        self.spin()

    def again(self) -> OnDisk:
        self.loop.run_until_complete(self.broker.drain())
        self.stop()
        self.log.close()
        return OnDisk(open_files(self.log.directory), self.clock, self.limits)


OPTIONS = Options(segment_bytes=64 << 10, snapshot_bytes=16 << 10, soft_free_bytes=0, retire_grace_us=0)
LIMITS = Limits(snapshot_bytes=32 << 10, buffer_bytes=64 << 10)


def open_files(directory: str) -> ByHand:
    log = ByHand.open(directory, OPTIONS, is_threaded=False)
    assert isinstance(log, ByHand)
    return log


def test_a_slow_channel_that_shares_segments_with_a_fast_one_does_not_fill_the_disk(tmp_path: Path) -> None:
    hand = OnDisk(open_files(str(tmp_path / "log")), limits=LIMITS)
    hand.ask(CreateChannel("slow"))
    hand.ask(CreateChannel("fast", settings=ChannelSettings(drop_acked=True)))
    hand.ask(CreateGroup("fast", "g"))
    most, published_bytes = 0, 0
    for number in range(300):
        hand.ask(publish("fast", *[bytes(1000)] * 10))
        published_bytes += 10_000
        hand.ask(Ack("fast", "g", "m", receipts(hand.ask(Pull("fast", "g", "m")))))
        if number % 10 == 0:
            hand.ask(publish("slow", str(number)))
        hand.tick(1000)
        most = max(most, hand.log.usage().bytes)
    assert published_bytes > 2_500_000
    assert most < 600_000, "a few segments and what lies between two snapshot runs"
    assert hand.log.usage().segments < 10
    before = durable(hand.state)
    hand = hand.again()
    assert durable(hand.state) == before
    assert contents(hand.ask(Pull("slow"))) == [str(number) for number in range(0, 300, 10)]


def test_memory_mode_is_bounded_too() -> None:
    hand = HandBroker(MemoryLog(), limits=LIMITS)
    hand.ask(CreateChannel("slow"))
    hand.ask(publish("slow", "kept"))
    for _ in range(200):
        hand.ask(CreateChannel("fast"))
        hand.ask(publish("fast", *[bytes(1000)] * 10))
        hand.ask(PurgeChannel("fast"))
        hand.ask(DeleteChannel("fast"))
        hand.tick(5000)
    assert hand.log.usage().bytes < 300_000
    hand = hand.crash()
    assert contents(hand.ask(Pull("slow"))) == ["kept"]


def test_a_delayed_message_outlives_the_cleaning_of_all_around_it(tmp_path: Path) -> None:
    hand = OnDisk(open_files(str(tmp_path / "log")), limits=LIMITS)
    hand.ask(CreateChannel("a"))
    hand.ask(publish("a", "late", delay_ms=3_600_000))
    for _ in range(60):
        hand.ask(publish("a", *[bytes(1000)] * 10))
        hand.ask(PurgeChannel("a"))
        hand.tick(10_000)
    assert hand.log.segments()[0].generation > 0
    hand = hand.again()
    hand.tick(3_600_000)
    hand.settle()
    assert contents(hand.ask(Pull("a"))) == ["late"]


class Asked(MemoryLog):
    """Has something to clean as often as it is told to, and notes how much it was asked for."""

    def __init__(self, rounds: int, part: float) -> None:
        super().__init__()
        self.rounds = rounds
        self.part = part  # of what a round may free
        self.asked: list[int] = []

    async def clean(self, keep: Any, max_bytes: int) -> int:
        self.asked.append(max_bytes)
        self.rounds -= 1
        return int(max_bytes * self.part) if self.rounds >= 0 else 0


@pytest.mark.parametrize(
    ("part", "asked"),
    [
        (0.3, [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 32_000, 32_000, 32_000]),
        (0.9, [1_000, 4_000, 16_000, 32_000, 32_000, 32_000, 32_000, 32_000, 32_000]),
    ],
    ids=["a little more", "much more"],
)
def test_cleaning_takes_larger_parts_while_it_finds_more_and_small_ones_again_afterwards(
    part: float, asked: list[int]
) -> None:
    log = Asked(8, part)
    hand = HandBroker(log, limits=Limits(clean_bytes=1_000))
    for _ in range(48):
        hand.tick(1000)
    assert log.asked[:9] == asked
    assert log.asked[9:12] == [8_000, 2_000, 1_000], "it calms down"
    assert log.asked[12:], "it goes on looking"
    assert set(log.asked[12:]) == {1_000}


def test_who_is_in_a_hurry_does_not_wait_for_the_next_housekeeping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq.agenda.HOUSEKEEPING_SECONDS", 3_600)

    async def clean() -> list[int]:
        log = Asked(6, part=0.9)
        broker = Broker(log, SystemClock(), Limits(clean_bytes=1_000))
        await broker.start()
        await asyncio.to_thread(wait_until, lambda: log.rounds < 0)
        await broker.close()
        return log.asked

    assert asyncio.run(clean())[:7] == [1_000, 4_000, 16_000, 32_000, 32_000, 32_000, 32_000]


def test_a_log_that_grows_is_looked_at_every_second_and_one_that_does_not_seldom() -> None:
    log = Asked(0, part=0.0)
    hand = HandBroker(log, limits=Limits(clean_bytes=1_000))
    hand.ask(CreateChannel("a"))
    looks = []
    for is_written in (True, False):
        before = len(log.asked)
        for _ in range(20):
            if is_written:
                hand.ask(publish("a", "x"))
            hand.tick(1000)
            hand.settle()
        looks.append(len(log.asked) - before)
    busy, idle = looks
    assert busy > 3 * idle > 0
