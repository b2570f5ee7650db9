"""Storage that fails: every write, sync, close and name change in turn, on the model disk.

Whatever fails, nobody is told that something is durable which is not; a log that can't know stays failed; and the
next opening holds everything that was ever reported synced, also if the power goes at that moment.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from random import Random
from unittest.mock import patch

import pytest
from logowner import DIRECTORY, SMALL, History, Owner, Violation, content_of
from loguru import logger
from modeldisk import SHORT, ModelDisk, PowerCut
from powercut import Trial, small_world

from wal.errors import LogBusy, LogClosed, LogFailed, WalError
from wal.filelog import FileLog
from wal.record import Published
from wal.recovery import _Opening
from wal.tail import Tail

Start = Callable[[], tuple[ModelDisk, History]]
EVERY = (
    "make_directory", "create", "write", "allocate", "truncate", "sync", "close", "rename", "unlink", "sync_directory"
)  # fmt: skip


@pytest.fixture
def trial() -> Iterator[Trial]:
    logger.disable("wal")
    trial = Trial(Random(5))
    with trial.loop, small_world(), patch("wal.index.MARK_EVERY_BYTES", 1):
        yield trial
    logger.enable("wal")


def life(owner: Owner) -> None:
    """A bit of everything that a log does."""
    log = owner.log
    owner.publish(2, essential=True)
    log.pump()
    owner.publish(3, essential=True, sync=False)
    owner.clock.seconds += 1
    log.pump()
    owner.publish(6, essential=True, size=480)  # rotates on the way
    log.pump()
    owner.snapshot(between=True)
    log.pump()
    log.rotate()
    owner.publish(essential=True)
    owner.clock.seconds += 1
    log.pump()
    log.close()


def new() -> tuple[ModelDisk, History]:
    return ModelDisk(), History()


def killed() -> tuple[ModelDisk, History]:
    """A disk on which a log was killed, so that opening it has to write its end again."""
    disk = ModelDisk()
    owner = Owner(disk, History(), Random(1))
    owner.publish(3)
    owner.log.pump()
    owner.publish(2)
    owner.log.pump()
    disk.kill()
    return disk, owner.history


def torn() -> tuple[ModelDisk, History]:
    """A disk on which the power cut tore a group: some of its sectors are lost, later ones are there."""
    disk = ModelDisk()
    owner = Owner(disk, History(), Random(1))
    owner.publish(2)
    owner.log.pump()
    disk.cut_at(2)
    owner.publish(3, size=480)
    with pytest.raises(PowerCut):
        owner.log.pump()
    for seed in itertools.count():
        state = disk.crashed_at_random(Random(seed))
        if Owner(state.fork(), History(), Random(1)).log.report.torn_bytes:
            return state, owner.history
    raise AssertionError


class Attempt:
    """One life in which one operation fails."""

    def __init__(self, trial: Trial, start: Start, kind: str, nth: int, fault: int) -> None:
        self.disk, self.history = start()
        self.failure: BaseException | None = None
        self.owner: Owner | None = None  # None where it did not even open
        self.pauses = 0
        self.was_hit_opening = False  # and it opened all the same
        self.disk.schedule(kind, nth, fault)
        try:
            self.owner = trial.open(self.disk, self.history)
            self.was_hit_opening = bool(self.disk.failed)
            self.history = self.owner.history
            self.owner.log._writer._pause = self._pause
            life(self.owner)
        except Violation as refusal:
            self.failure = refusal.__cause__
            if self.failure is None:
                raise
        except (OSError, WalError) as error:
            self.failure = error
        self.was_hit = bool(self.disk.failed)

    def _pause(self) -> bool:
        self.pauses += 1
        assert self.pauses < 100, "it waits for ever"
        return True

    @property
    def path(self) -> str:
        """Of the operation that failed."""
        return self.disk.failed[-1]


def attempts(trial: Trial, kind: str, fault: int) -> Iterator[Attempt]:
    """The same lives again and again, with the first, second, third ... operation of a kind failing."""
    hits = 0
    for start in (new, killed, torn):
        nth = 1
        while (attempt := Attempt(trial, start, kind, nth, fault)).was_hit:
            yield attempt
            nth += 1
        assert attempt.failure is None
        hits += nth - 1
    assert hits, f"there was no {kind}"


def check_is_failed_for_good(attempt: Attempt) -> None:
    """No call claims anything any more, and the process lets go of everything."""
    if attempt.owner is None:
        return
    log, floor = attempt.owner.log, attempt.history.floor
    if not log._is_closed:
        for act in (lambda: log.append([]), log.pump, log.rotate):
            with pytest.raises(LogFailed):
                act()
        assert attempt.owner.failures == [attempt.failure]
        log.close()
    with pytest.raises((LogFailed, LogClosed)):
        log.append([])
    assert attempt.history.floor == floor
    assert DIRECTORY + "/LOCK" not in attempt.disk._paths.values() or attempt.path.endswith("LOCK")


def check_was_copied(attempt: Attempt) -> None:
    """What could not be made durable in its place is so in another file, and the old one is nothing to go by."""
    assert attempt.owner is not None
    assert attempt.failure is None
    assert os.path.basename(attempt.path) not in [segment.name for segment in attempt.owner.log.segments()]
    assert attempt.history.floor == len(attempt.history.contents)


def check_next_opening(trial: Trial, attempt: Attempt) -> None:
    """Everything that was ever reported synced is there: after a power cut, after a restart, and after both."""
    for state in attempt.disk.crash_states(trial.rng, 3):
        trial.judge(state, attempt.history)
    attempt.disk.kill()
    served = trial.open(attempt.disk, attempt.history)
    for state in attempt.disk.crash_states(trial.rng, 3):
        trial.judge(state, served.history)
    served.publish()
    served.log.pump()
    for state in attempt.disk.crash_states(trial.rng, 3):
        trial.judge(state, served.history)


@pytest.mark.shows("T4", "each operation of the log's disk fails once, on a model disk; then power cuts")
@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("fault", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_whatever_operation_fails_nothing_is_claimed_that_is_not_durable(
    kind: str, fault: int, trial: Trial, figures: dict[str, int]
) -> None:
    failed = 0
    for attempt in attempts(trial, kind, fault):
        if attempt.failure is not None:
            failed += 1
            assert isinstance(attempt.failure, OSError | LogFailed)
            check_is_failed_for_good(attempt)
        check_next_opening(trial, attempt)
    figures |= {"failures": failed, "states": trial.states}


@pytest.mark.parametrize("fault", [errno.EIO, errno.ENOSPC, errno.EDQUOT], ids=["EIO", "ENOSPC", "EDQUOT"])
def test_a_failed_sync_of_the_log_is_final(fault: int, trial: Trial) -> None:
    """Asking again would be answered with success, and the data would be gone."""
    for attempt in attempts(trial, "sync", fault):
        if attempt.was_hit_opening and attempt.path.endswith(".wal"):
            check_was_copied(attempt)
        elif attempt.path.endswith(".wal") or fault == errno.EIO:
            assert attempt.failure is not None, attempt.path
            check_is_failed_for_good(attempt)


def test_a_failed_close_of_a_segment_is_final(trial: Trial) -> None:
    for attempt in attempts(trial, "close", errno.EIO):
        if attempt.was_hit_opening and attempt.path.endswith("-0.wal"):
            check_was_copied(attempt)
        elif attempt.path.endswith("-0.wal") and attempt.owner is not None:
            assert attempt.failure is not None


@pytest.mark.parametrize("fault", [SHORT, errno.ENOSPC], ids=["short", "ENOSPC"])
def test_a_write_that_does_not_fit_is_tried_again_and_nothing_fails(fault: int, trial: Trial) -> None:
    for attempt in attempts(trial, "write", fault):
        if attempt.owner is not None:
            assert attempt.failure is None, attempt.path
            assert attempt.history.floor == len(attempt.history.contents)
        check_next_opening(trial, attempt)


@pytest.mark.parametrize("start", [killed, torn])
def test_what_is_destroyed_in_the_attempt_to_save_it_is_copied_from_memory(start: Start, trial: Trial) -> None:
    """Frames that were answered, and that nobody vouches for: a power cut took the watermark with it."""
    copied = 0
    for nth in itertools.count(1):
        disk, history = start()
        disk = disk.crashed_at_random(Random(3)) if start is killed else disk
        disk.destroys = True
        disk.schedule("sync", nth, errno.EIO)
        try:
            trial.open(disk, history)
        except Violation:
            assert not disk.failed[-1].endswith(".wal")  # a failed sync of the manifest ends the opening
            continue
        if not disk.failed:
            break
        copied += 1
    assert copied


def test_after_a_failed_write_the_file_is_cut_back_to_the_last_good_byte(trial: Trial) -> None:
    for attempt in attempts(trial, "write", errno.EIO):
        if attempt.owner is not None:
            live = attempt.owner.log._writer._live
            if attempt.path == f"{DIRECTORY}/{live.entry.name('.wal')}":
                assert not any(attempt.disk.names[attempt.path].cache[live.position :])


def test_a_log_with_a_thread_fails_once_and_for_good(trial: Trial) -> None:
    disk = ModelDisk()
    log = FileLog.open(DIRECTORY, SMALL, disk=disk, random=Random(1).randbytes)
    synced, failures, is_over = [0], [], threading.Event()
    log.start(lambda _, mark: synced.append(mark), lambda error: (failures.append(error), is_over.set()))
    disk.schedule("sync", 5, errno.EIO)
    history = History()
    while not is_over.is_set():
        record = Published(channel_id=1, base_offset=len(history.contents), count=1, batch=bytes(300))
        with suppress(LogFailed, LogBusy):
            log.append([record])
            history.contents.append(content_of(record))
    assert len(failures) == 1
    for _ in range(3):
        with pytest.raises(LogFailed):
            log.append([Published()])
    before = list(synced)
    log.close()
    assert synced == before == sorted(before)
    assert not disk.files
    history.floor = synced[-1]
    trial.judge(disk.crashed_at_random(trial.rng), history)
    trial.open(disk, history)


def test_a_log_with_a_thread_that_waits_for_space_can_be_closed(trial: Trial) -> None:
    disk = ModelDisk()
    log = FileLog.open(DIRECTORY, replace(SMALL, queue_bytes=1 << 14), disk=disk, random=Random(1).randbytes)
    failures: list[BaseException] = []
    log.start(lambda *_: None, failures.append)
    log.append([Published(count=1)])
    disk.capacity = 1 << 30
    disk.capacity -= disk.free_bytes("")
    for number in range(1, 200):
        log.append([Published(base_offset=number, count=1, batch=bytes(300))], essential=True)
    log.close()
    assert [str(error) for error in failures] == ["the disk is full and the log is closing"]
    assert log.synced < log.last_sequence


def tail_not_written_again(patch: pytest.MonkeyPatch) -> None:
    """The old file is cut to what is intact, synced, and goes on."""

    def write_again(self: _Opening, path: str, segment: object, entry: object, tail: Tail, end: bytes) -> None:
        fd = self.disk.open(path)
        self.disk.truncate(fd, tail.end)
        self.disk.sync(fd)
        self.disk.close(fd)

    patch.setattr(_Opening, "_write_again", write_again)


def less_written_again_than_nobody_vouches_for(patch: pytest.MonkeyPatch) -> None:
    def vouched_end(self: Tail) -> int:
        return self.end if self.durable >= self.last_sequence else self.index.mark_before(self.durable + 4)[1]

    patch.setattr(Tail, "vouched_end", property(vouched_end))


@pytest.mark.parametrize("plant", [tail_not_written_again, less_written_again_than_nobody_vouches_for])
def test_going_on_in_a_file_whose_sync_failed_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads well, the next sync says that all is well, and a power cut shows that it never was."""
    plant(monkeypatch)

    def reopen_after_failed_syncs() -> None:
        for attempt in attempts(trial, "sync", errno.EIO):
            check_next_opening(trial, attempt)

    with pytest.raises(Violation, match="were safe"):
        reopen_after_failed_syncs()
