"""A group that the owner makes durable itself, in its own thread: when it may, and what holds then as ever."""

import errno
import os
import threading
from random import Random

import pytest
from dictdisk import DictDisk
from handbroker import HandClock
from modeldisk import ModelDisk
from process import wait_until
from waiting import DEADLINE_SECONDS, Marks
from walsample import published

from wal import FileLog, LogFailed, Options
from wal.disk import DirectDisk
from wal.record import Carried, Published
from wal.writer import SMALL_BYTES

OPTIONS = Options(segment_bytes=1 << 20, snapshot_bytes=4096, soft_free_bytes=0)
PATIENCE = 10.0  # longer than any sync takes here


class NotingDisk(DirectDisk):
    """Notes which thread syncs segments; their syncs and writes can be made to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.syncing: list[int] = []
        self.sync_error: OSError | None = None
        self.write_errors: list[OSError] = []

    def sync(self, fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".wal"):
            self.syncing.append(threading.get_ident())
            if self.sync_error is not None:
                raise self.sync_error
        super().sync(fd)

    def write(self, fd, buffers, position):
        if self.write_errors and os.readlink(f"/proc/self/fd/{fd}").endswith(".wal"):
            raise self.write_errors.pop()
        return super().write(fd, buffers, position)


class SlowDisk(DictDisk):
    """Each sync takes as long as it is told, by the clock of the test."""

    def __init__(self, clock: HandClock) -> None:
        super().__init__()
        self.ms = 0.1
        self._clock = clock

    def sync(self, fd: int) -> None:
        self._clock.pass_ms(self.ms)
        super().sync(fd)


@pytest.fixture
def disk():
    return NotingDisk()


@pytest.fixture
def marks():
    return Marks()


@pytest.fixture
def log(tmp_path, disk, marks):
    """Started, with one sync behind it, so that it knows how quick the disk is."""
    log = FileLog.open(tmp_path / "log", OPTIONS, disk=disk)
    log.start(marks.on_marks, marks.on_failure)
    log.append([published(0)])
    marks.wait_synced(1)
    _settled(log)
    marks.seen.clear()
    disk.syncing.clear()
    yield log
    log.close()


def _settled(log):
    """The writer's thread has nothing in its hands."""
    done = threading.Event()
    log.run_between_groups(lambda writer: done.set())
    assert done.wait(DEADLINE_SECONDS)
    with log._drive._baton:
        pass


def test_a_small_group_is_durable_at_the_return_and_nobody_is_called(log, disk, marks):
    for base in range(1, 1_000):
        marks.seen.clear()
        last = log.append([published(base)], patience=PATIENCE)
        if log.synced == last and disk.syncing[-1] == threading.get_ident():
            break  # else its thread was just looking after the disk
        marks.wait_synced(last)
    else:
        pytest.fail("it never did")
    assert (log.written, log.synced) == (last, last)
    assert marks.seen == []


def test_without_patience_the_thread_does_it(log, disk, marks):
    last = log.append([published(1)])
    marks.wait_synced(last)
    assert threading.get_ident() not in disk.syncing


def test_a_disk_that_was_slower_than_the_owners_patience_is_left_to_the_thread(log, disk, marks):
    last = log.append([published(1)], patience=1e-9)
    marks.wait_synced(last)
    assert threading.get_ident() not in disk.syncing


def test_a_disk_that_was_slow_once_is_not_waited_for_until_that_is_forgotten():
    clock = HandClock()
    disk = SlowDisk(clock)
    log = FileLog.open("/log", OPTIONS, disk=disk, clock=clock, is_threaded=False)
    log.append([published(0)])
    log.pump()

    def is_done_here(base):
        last = log.append([published(base)], patience=0.001)
        is_done = log.synced == last
        log.pump()
        return is_done

    assert is_done_here(1)
    disk.ms = 100
    assert is_done_here(2), "who knows before"
    disk.ms = 0.1
    assert not any(is_done_here(base) for base in range(3, 20))
    assert any(is_done_here(base) for base in range(20, 60))
    log.close()


def test_a_group_of_more_pieces_than_one_call_takes_is_done_here(log, marks):
    pieces = [b"\x0a\x01\x0a"] * 5_000
    record = Published(channel_id=1, base_offset=1, count=len(pieces))
    last = log.append([Carried(record, pieces)], patience=PATIENCE)
    if log.synced < last:
        marks.wait_synced(last)
    assert not marks.failures
    assert [found.count for _, found in log.replay()] == [1, len(pieces)]


def test_a_large_group_is_left_to_the_thread(log, disk, marks):
    last = log.append([published(1, b"x" * SMALL_BYTES)], patience=PATIENCE)
    marks.wait_synced(last)
    assert threading.get_ident() not in disk.syncing


def test_nothing_overtakes_what_the_thread_has_not_done_yet(log, disk, marks):
    hold, held = threading.Event(), threading.Event()

    def act(writer):
        held.set()
        assert hold.wait(DEADLINE_SECONDS)

    log.run_between_groups(act)
    assert held.wait(DEADLINE_SECONDS)
    log.append([published(1)])
    last = log.append([published(2)], patience=PATIENCE)
    assert log.synced < last
    hold.set()
    marks.wait_synced(last)
    assert [record.base_offset for _, record in log.replay()] == [0, 1, 2]


def test_both_ways_mixed_leave_one_log_in_order(log, marks):
    for base in range(1, 400):
        last = log.append([published(base)], patience=PATIENCE if base % 3 else 0.0)
    if log.synced < last:
        marks.wait_synced(last)
    assert [record.base_offset for _, record in log.replay()] == list(range(400))


def test_the_segment_is_changed_by_the_thread_and_then_it_goes_on_here(tmp_path, disk, marks):
    small = Options(segment_bytes=16 << 10, snapshot_bytes=4096, soft_free_bytes=0)
    log = FileLog.open(tmp_path / "log", small, disk=disk)
    log.start(marks.on_marks, marks.on_failure)
    for base in range(100):
        last = log.append([published(base, b"x" * 1000)], patience=PATIENCE)
        if log.synced < last:
            marks.wait_synced(last)
    assert len(log.segments()) > 4
    assert threading.get_ident() in disk.syncing
    log.close()
    with_thread = FileLog.open(tmp_path / "log", small)
    assert [record.base_offset for _, record in with_thread.replay()] == list(range(100))
    with_thread.close()


def test_a_sync_that_fails_here_is_final_and_told(log, disk, marks):
    disk.sync_error = OSError(errno.EIO, "planted")
    before = log.synced
    log.append([published(1)], patience=PATIENCE)
    assert "planted" in str(marks.wait_failure())
    assert log.synced == before
    disk.sync_error = None
    with pytest.raises(LogFailed):
        log.append([published(2)], patience=PATIENCE)
    log.rest(PATIENCE)  # and no watermark tells of what is not known to be durable
    assert marks.seen == []


def test_nobody_gets_the_baton_before_the_failure_is_known(log, disk, monkeypatch):
    """Else the thread would sync once more, and the kernel would say that all is well."""
    drive, seen = log._drive, []

    class Watched:
        def __init__(self, lock):
            self._lock = lock
            self.acquire = lock.acquire

        def release(self):
            seen.append(drive.failure)
            self._lock.release()

        def __enter__(self):
            self._lock.acquire()

        def __exit__(self, *_):
            self.release()

    monkeypatch.setattr(drive, "_baton", Watched(drive._baton))
    disk.sync_error = OSError(errno.EIO, "planted")
    log.append([published(1)], patience=PATIENCE)
    wait_until(lambda: drive.failure is not None)
    assert seen[-1] is not None


def test_what_does_not_fit_on_the_disk_waits_for_space_in_the_thread(log, disk, marks):
    disk.write_errors = [OSError(errno.ENOSPC, "planted")]
    last = log.append([published(1)], patience=PATIENCE)
    marks.wait_synced(last)
    assert threading.get_ident() not in disk.syncing
    assert [record.base_offset for _, record in log.replay()] == [0, 1]


def test_the_watermark_tells_what_is_durable_before_a_wait_for_space(log, disk, marks, monkeypatch):
    """No later frame vouches for it as long as that takes."""
    waits = []

    def pause():
        waits.append(log._writer.has_news)
        disk.write_errors.clear()
        return True

    monkeypatch.setattr(log._writer, "_pause", pause)
    for base in range(1, 1_000):
        last = log.append([published(base)], patience=PATIENCE)
        wait_until(lambda: log.synced >= last)  # noqa: B023
        if log._writer.has_news:
            break  # else its thread did it
    disk.write_errors = [OSError(errno.ENOSPC, "planted") for _ in range(10_000)]  # more than the reserve has slices
    marks.wait_synced(log.append([published(base + 1)], patience=PATIENCE))
    assert waits == [False]


@pytest.mark.parametrize("is_rested", [False, True])
def test_what_was_durable_at_the_return_survives_a_power_cut(is_rested):
    disk = ModelDisk()
    log = FileLog.open("/log", OPTIONS, disk=disk, is_threaded=False)
    log.start(lambda written, synced: None, lambda error: None)
    log.append([published(0)])
    log.pump()
    for base in range(1, 20):
        last = log.append([published(base)], patience=PATIENCE)
        assert log.synced == last
        if is_rested:
            log.rest(PATIENCE)
    for crashed in disk.crash_states(Random(1), 50):
        again = FileLog.open("/log", OPTIONS, disk=crashed, is_threaded=False)
        again.start(lambda written, synced: None, lambda error: None)
        assert [record.base_offset for _, record in again.replay()] == list(range(20))


def test_the_watermark_follows_when_the_owner_rests():
    disk = DictDisk()
    log = FileLog.open("/log", OPTIONS, disk=disk, is_threaded=False)
    log.start(lambda written, synced: None, lambda error: None)
    log.append([published(0)])
    log.pump()
    log.append([published(1)], patience=PATIENCE)
    assert log._writer.has_news
    log.rest(PATIENCE)
    assert not log._writer.has_news
    log.close()


# ---------------------------------------------------------------- what nobody waits for


@pytest.fixture
def quick():
    """A log without a thread, on a disk whose syncs take a tenth of a millisecond by the clock of the test."""
    clock = HandClock()
    log = FileLog.open("/log", OPTIONS, disk=SlowDisk(clock), clock=clock, is_threaded=False)
    log.start(lambda written, synced: None, lambda error: None)
    log.append([published(0)])
    log.pump()
    yield log
    log.close()


def test_what_nobody_waits_for_is_written_at_the_return_and_synced_when_the_owner_rests(quick):
    before, told = quick.synced, []
    last = quick.append([published(1)], sync=False, patience=PATIENCE, meanwhile=lambda: told.append("too early"))
    assert (quick.written, quick.synced) == (last, before)
    quick.rest(PATIENCE, lambda: told.append((quick.written, quick.synced)))
    assert told == [(last, before)]
    assert quick.synced == last


def test_who_waits_for_a_sync_brings_it_to_what_was_only_written(quick):
    quick.append([published(1)], sync=False, patience=PATIENCE)
    last = quick.append([published(2)], patience=PATIENCE)
    assert quick.synced == last


def test_what_nobody_waits_for_does_not_wait_for_long(quick):
    quick.append([published(1)], sync=False, patience=PATIENCE)
    quick._clock.pass_ms(1)
    last = quick.append([published(2)], sync=False, patience=PATIENCE)
    assert quick.synced < last
    quick._clock.pass_ms(1.5)
    last = quick.append([published(3)], sync=False, patience=PATIENCE)
    assert quick.synced == last


def test_no_more_than_a_little_is_left_to_a_sync_in_the_owners_thread(quick):
    for base in range(1, 100):
        last = quick.append([published(base, b"x" * 1000)], sync=False, patience=PATIENCE)
        if quick.written < last:
            break
    assert SMALL_BYTES - 4_000 < quick._writer._unsynced_bytes < SMALL_BYTES
    quick.pump()
    assert quick.synced == last


def test_where_the_disk_is_slow_the_thread_syncs_what_is_left(log, marks):
    last = log.append([published(1)], sync=False, patience=PATIENCE)
    log.rest(1e-9)
    marks.wait_synced(last)
    assert [record.base_offset for _, record in log.replay()] == [0, 1]


def test_a_sync_that_fails_when_the_owner_rests_is_final_and_told(log, disk, marks):
    log.append([published(1)], sync=False, patience=PATIENCE)
    disk.sync_error = OSError(errno.EIO, "planted")
    log.rest(PATIENCE)
    assert "planted" in str(marks.wait_failure())
    disk.sync_error = None
    with pytest.raises(LogFailed):
        log.append([published(2)], patience=PATIENCE)


def test_what_was_synced_when_the_owner_rested_survives_a_power_cut():
    disk = ModelDisk()
    log = FileLog.open("/log", OPTIONS, disk=disk, is_threaded=False)
    log.start(lambda written, synced: None, lambda error: None)
    log.append([published(0)])
    log.pump()
    for base in range(1, 20):
        log.append([published(base)], sync=False, patience=PATIENCE)
        if base == 15:
            log.rest(PATIENCE)
    for crashed in disk.crash_states(Random(1), 50):
        again = FileLog.open("/log", OPTIONS, disk=crashed, is_threaded=False)
        again.start(lambda written, synced: None, lambda error: None)
        found = [record.base_offset for _, record in again.replay()]
        assert len(found) >= 16
        assert found == list(range(len(found)))
