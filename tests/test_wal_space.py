"""A full disk: publishers are told, acks go on, nothing is lost or reset, and it ends by itself when space is back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from logowner import DIRECTORY, SMALL, History, Owner, Violation
from loguru import logger
from modeldisk import ModelDisk
from powercut import Trial

import wal.reserve
from wal.errors import DiskFull, LogBusy, LogFailed
from wal.recovery import _Opening
from wal.reserve import RESERVE, Reserve, is_piece
from wal.space import SPARE

# What a manifest needs is little beside the reserve, as in life.
ROOMY = replace(SMALL, snapshot_bytes=8192)
SLICE_BYTES = 1024
BLOCK_BYTES = 16


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Iterator[Trial]:
    monkeypatch.setattr(wal.reserve, "SLICE_BYTES", SLICE_BYTES)
    monkeypatch.setattr(wal.reserve, "BLOCK_BYTES", BLOCK_BYTES)
    logger.disable("wal")
    trial = Trial(Random(6), ROOMY)
    with trial.loop:
        yield trial
    logger.enable("wal")


def fill(disk: ModelDisk) -> None:
    """Somebody else takes every free byte."""
    disk.capacity = 1 << 30
    disk.capacity -= disk.free_bytes("")


def open_on(disk: ModelDisk, history: History | None = None) -> Owner:
    owner = Owner(disk, history or History(), Random(3), ROOMY)
    owner.log._writer._pause = _never
    return owner


def _never() -> bool:
    raise AssertionError("the log waits for space")


def turn(owner: Owner) -> None:
    owner.clock.seconds += 1
    owner.log.pump()


def test_below_the_soft_mark_only_essential_records_are_taken(trial: Trial) -> None:
    owner = open_on(ModelDisk())
    owner.publish()
    turn(owner)
    fill(owner.disk)
    turn(owner)
    with pytest.raises(DiskFull, match="0 bytes are free"):
        owner.publish()
    assert owner.log.usage().is_short_of_space
    owner.publish(essential=True)
    turn(owner)
    assert owner.history.floor == owner.log.last_sequence == 2


def test_on_a_full_disk_essential_records_fill_a_segment_and_a_snapshot_from_the_reserve(trial: Trial) -> None:
    """Also past a rotation, a snapshot run and a clean stop."""
    owner = open_on(ModelDisk())
    owner.publish()
    turn(owner)
    fill(owner.disk)
    for _ in range(2 * SMALL.segment_bytes // 150):
        owner.append([owner._published(50)], essential=True)
        turn(owner)
    assert len(owner.log.segments()) > 1
    owner.snapshot(between=False)
    turn(owner)
    owner.log.close()
    assert owner.history.floor == len(owner.history.contents)
    served = trial.open(owner.disk, owner.history)
    assert served.log.report.was_clean


def test_what_others_take_while_a_segment_is_taken_from_the_reserve_costs_nothing_of_it(trial: Trial) -> None:
    """Whatever is free for a moment is gone: the reserve must not give up more than is needed."""
    owner = open_on(ModelDisk())
    owner.publish()
    turn(owner)
    fill(owner.disk)
    while len(owner.log.segments()) < ROOMY.snapshot_bytes // ROOMY.segment_bytes:
        owner.append([owner._published(100)], essential=True)
        turn(owner)
        fill(owner.disk)
    assert owner.history.floor == owner.log.last_sequence
    owner.disk.kill()
    trial.open(owner.disk, owner.history)


def test_starts_on_a_full_disk_do_not_use_up_the_reserve(trial: Trial) -> None:
    owner = open_on(ModelDisk())
    owner.publish()
    turn(owner)
    before = reserved(owner.disk)
    fill(owner.disk)
    for _ in range(2 * before // SLICE_BYTES):
        owner.disk.kill()
        owner = trial.open(owner.disk, owner.history)
        fill(owner.disk)
    assert before > 0
    assert reserved(owner.disk) > before - 2 * SLICE_BYTES


def reserved(disk: ModelDisk) -> int:
    return sum(len(disk.names[f"{DIRECTORY}/{name}"].cache) for name in disk.list(DIRECTORY) if is_piece(name))


def test_a_log_that_starts_on_a_full_disk_takes_no_publishes_from_the_first_moment_on(trial: Trial) -> None:
    """What it takes before it has looked at the disk goes into the reserve, a bit more with each start."""
    owner = open_on(ModelDisk())
    owner.publish()
    turn(owner)
    assert not owner.log.is_short_of_space
    fill(owner.disk)
    owner.disk.kill()
    owner = trial.open(owner.disk, owner.history)
    with pytest.raises(DiskFull):
        owner.publish()


def test_a_log_that_starts_with_space_takes_publishes_from_the_first_moment_on(trial: Trial) -> None:
    owner = open_on(ModelDisk())
    assert not owner.log.is_short_of_space
    owner.publish()


def test_who_fills_the_disk_by_publishing_is_refused_from_the_next_segment_on(trial: Trial) -> None:
    """Not at the next look at the disk: much can be published until then."""
    owner = Owner(ModelDisk(), History(), Random(3), replace(ROOMY, soft_free_bytes=3 * ROOMY.segment_bytes))
    turn(owner)
    fill(owner.disk)
    owner.disk.capacity += 5 * ROOMY.segment_bytes
    while not owner.log.is_short_of_space:  # the clock stands still
        owner.publish(size=100)
        owner.log.pump()
    assert owner.disk.free_bytes("") > ROOMY.segment_bytes
    assert reserved(owner.disk) == ROOMY.segment_bytes + ROOMY.snapshot_bytes


@pytest.mark.parametrize("segment_bytes", [1024, 3000, 8192, 16384])
def test_a_reserve_that_was_made_for_other_segments_is_made_anew_and_no_larger(
    segment_bytes: int, trial: Trial
) -> None:
    """As is the single file that older versions left."""
    owner = open_on(ModelDisk())
    turn(owner)
    owner.log.close()
    other = Owner(owner.disk, owner.history, Random(3), replace(ROOMY, segment_bytes=segment_bytes))
    turn(other)
    assert reserved(other.disk) == segment_bytes + ROOMY.snapshot_bytes
    other.log.close()
    for name in filter(is_piece, owner.disk.list(DIRECTORY)):
        owner.disk.unlink(f"{DIRECTORY}/{name}")
    fd = owner.disk.create(f"{DIRECTORY}/{RESERVE}")
    owner.disk.allocate(fd, ROOMY.segment_bytes + ROOMY.snapshot_bytes)
    owner.disk.close(fd)
    owner = trial.open(owner.disk, owner.history)
    turn(owner)
    assert reserved(owner.disk) == ROOMY.segment_bytes + ROOMY.snapshot_bytes


def test_a_new_log_starts_with_less_room_than_a_segment(trial: Trial) -> None:
    disk = ModelDisk()
    disk.capacity = 4 * SLICE_BYTES
    owner = open_on(disk)
    assert owner.log.is_short_of_space
    owner.publish(essential=True)
    turn(owner)
    assert owner.history.floor == 1


def test_when_even_the_reserve_is_used_up_the_group_waits_and_goes_on_by_itself(trial: Trial) -> None:
    owner = open_on(ModelDisk())
    owner.publish()
    turn(owner)
    fill(owner.disk)
    waits = 0

    def pause() -> bool:
        nonlocal waits
        waits += 1
        if waits == 3:
            owner.disk.capacity += 1 << 20
        return True

    owner.log._writer._pause = pause
    while not waits:
        owner.append([owner._published(300)], essential=True)
        turn(owner)
    assert waits == 3
    assert owner.history.floor == owner.log.last_sequence
    turn(owner)
    assert not owner.log.usage().is_short_of_space
    owner.publish()  # and everybody is welcome again
    turn(owner)
    assert {SPARE, RESERVE} <= set(owner.disk.list(DIRECTORY))
    trial.judge(owner.disk.crashed_at_random(trial.rng), owner.history)


def test_a_log_that_closes_while_it_waits_for_space_claims_nothing(trial: Trial) -> None:
    owner = open_on(ModelDisk())
    owner.publish()
    turn(owner)
    fill(owner.disk)
    owner.log._writer._pause = lambda: False

    def publish_on_and_on() -> None:
        while True:
            owner.append([owner._published(300)], essential=True)
            turn(owner)

    with pytest.raises(LogFailed, match="full"):
        publish_on_and_on()
    floor = owner.history.floor
    assert floor < owner.log.last_sequence
    owner.log.close()
    assert owner.history.floor == floor
    owner.disk.capacity += 1 << 20
    trial.open(owner.disk, owner.history)


@pytest.mark.parametrize("records", range(1, 60, 3))
def test_starting_on_a_full_disk_works_again_and_again(records: int, trial: Trial) -> None:
    """With the live segment empty, half full, full, and just rotated; killed each time: its end is written again."""
    owner = open_on(ModelDisk())
    turn(owner)
    for _ in range(records):
        owner.append([owner._published(40)])
        turn(owner)
    fill(owner.disk)
    for _ in range(4):
        owner.disk.kill()
        owner = trial.open(owner.disk, owner.history)
        owner.log._writer._pause = _never
        owner.append([owner._published(10)], essential=True)
        turn(owner)
        assert owner.history.floor == owner.log.last_sequence


def test_a_power_cut_on_a_full_disk_loses_nothing_and_the_reserve_is_all_zeros(trial: Trial) -> None:
    print(cut_on_a_full_disk(trial), "states")


def test_a_segment_that_is_written_again_in_place_without_a_sync_is_caught(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _Opening._write_again

    def write_again(self: _Opening, *arguments: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self.disk, "sync", lambda fd: None)
            whole(self, *arguments)

    monkeypatch.setattr(_Opening, "_write_again", write_again)
    with pytest.raises(Violation):
        cut_on_a_full_disk(trial)


def test_a_reserve_that_is_used_before_its_new_name_is_durable_is_caught(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Reserve.take

    def take(self: Reserve, path: str, size: int) -> int:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(self._disk, "sync_directory", lambda path: None)
            return whole(self, path, size)

    monkeypatch.setattr(Reserve, "take", take)
    with pytest.raises(AssertionError, match="the reserve holds something"):
        cut_on_a_full_disk(trial)


def cut_on_a_full_disk(trial: Trial) -> int:
    """Fill the disk, go on, be killed and open it again and again; cut the power before every operation."""
    owner = open_on(ModelDisk())
    owner.publish(2)
    turn(owner)
    fill(owner.disk)
    history, count = owner.history, 0

    def cut(kind: str, path: str) -> None:
        nonlocal count
        for state in owner.disk.crash_states(trial.rng, 4):
            count += 1
            # It is renamed when it is used: should the new name be lost, the old one must not lead to frames.
            pieces = [file for path, file in state.names.items() if path.startswith(f"{DIRECTORY}/{RESERVE}")]
            assert not any(any(piece.cache) for piece in pieces), "the reserve holds something"
            trial.open(state, history)

    for _ in range(6):
        owner.disk.before = cut
        owner.log._writer._pause = lambda: False  # the reserve is used up: that is an end, too
        with suppress(LogFailed):
            for _ in range(8):
                owner.append([owner._published(200)], essential=True)
                turn(owner)
            owner.publish(2, essential=True, sync=False)
            owner.log._writer.process(list(_queued(owner)))  # written, not synced
        owner.disk.kill()
        owner.disk.before = cut
        owner = trial.open(owner.disk, history)
        history = owner.history
    return count


def _queued(owner: Owner) -> Iterator[Any]:
    while not owner.log._drive._queue.empty():
        yield owner.log._drive._queue.get_nowait()


def test_the_queue_is_bounded_and_essential_records_pass_it(trial: Trial) -> None:
    owner = Owner(ModelDisk(), History(), Random(1), replace(SMALL, queue_bytes=1000))
    while owner.log.usage().queued_bytes <= 1000:
        owner.publish(size=300)
    with pytest.raises(LogBusy):
        owner.log.append([owner._published(1)])
    owner.publish(essential=True)
    owner.log.pump()
    assert owner.history.floor == owner.log.last_sequence
    assert owner.log.usage().queued_bytes == 0
    owner.publish()


def test_a_slow_sync_is_told_and_measured() -> None:
    owner = Owner(ModelDisk(), History(), Random(1))
    told: list[str] = []
    sink = logger.add(lambda message: told.append(message.record["message"]), level="WARNING")
    owner.disk.before = lambda kind, path: _advance(owner, 1.5 if kind == "sync" and path.endswith(".wal") else 0)
    try:
        owner.publish()
        owner.log.pump()
    finally:
        logger.remove(sink)
    assert told == ["a sync of the log took 1.5 s; the disk is slow or overloaded"]
    assert owner.log.usage().fsync_seconds >= 1.5
    assert owner.log.usage().fsync_count == 1


def _advance(owner: Owner, seconds: float) -> None:
    owner.clock.seconds += seconds
