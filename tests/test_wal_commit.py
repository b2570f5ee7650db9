"""Group commit: who shares a sync with whom, when the marks move, and what may be read meanwhile."""

import asyncio
import os
import threading

import pytest
from dictdisk import DictDisk
from handbroker import HandClock
from waiting import DEADLINE_SECONDS, Marks
from walsample import DIRECTORY, SMALL, open_log, published, put

from wal import FileLog, LogBusy, LogFailed, Options
from wal.disk import DirectDisk
from wal.errors import DiskFull
from wal.record import ChannelSnapshot, Damaged, SnapshotBegin, SnapshotEnd
from wal.writer import LATE_SECONDS, LATEST_SECONDS

OPTIONS = Options(segment_bytes=1 << 20, snapshot_bytes=4096, soft_free_bytes=0)


class GateDisk(DirectDisk):
    """Syncs of segments wait at a gate while it is closed; each is counted."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0
        self.error: OSError | None = None
        self._open = threading.Event()
        self._open.set()
        self._arrived = threading.Semaphore(0)

    def close_gate(self) -> None:
        self._open.clear()

    def open_gate(self) -> None:
        self._open.set()

    def wait_for_a_sync(self) -> None:
        assert self._arrived.acquire(timeout=DEADLINE_SECONDS)

    def sync(self, fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".wal"):
            self.syncs += 1
            self._arrived.release()
            assert self._open.wait(DEADLINE_SECONDS)
            if self.error is not None:
                raise self.error
        super().sync(fd)


@pytest.fixture
def disk():
    return GateDisk()


@pytest.fixture
def marks():
    return Marks()


@pytest.fixture
def open_(tmp_path, disk, marks):
    """Opens the log, started and idle; closes it in the end whatever the gate."""
    logs = []

    def open_one(options=OPTIONS):
        log = FileLog.open(tmp_path / "log", options, disk=disk)
        log.start(marks.on_marks, marks.on_failure)
        log.append([published(0)])
        marks.wait_synced(1)
        marks.seen.clear()
        while disk._arrived.acquire(blocking=False):
            pass
        logs.append(log)
        return log

    yield open_one
    disk.open_gate()
    for log in logs:
        log.close()


def test_what_is_appended_while_a_sync_runs_shares_the_next_one(open_, disk, marks):
    log = open_()
    before = disk.syncs
    disk.close_gate()
    log.append([published(1)])
    disk.wait_for_a_sync()
    for base in range(2, 102):
        log.append([published(base)])
    disk.open_gate()
    marks.wait_synced(102)
    assert disk.syncs - before == 2
    assert marks.seen == [(2, 2), (102, 102)], "one callback for each durable group"


def test_nothing_is_synced_before_the_sync_returns_and_nothing_unsynced_is_read(open_, disk, marks):
    log = open_()
    disk.close_gate()
    log.append([published(1)])
    disk.wait_for_a_sync()
    assert (log.written, log.synced) == (2, 1)
    log.append([published(2)])  # not even written
    assert marks.seen == []
    assert [r.base_offset for r in asyncio.run(log.read(1, 0, 0, 1 << 20))] == [0]
    assert asyncio.run(log.read(1, 0, 1, 1 << 20)) == asyncio.run(log.read(1, 0, 2, 1 << 20)) == []
    assert asyncio.run(log.read_sequence(2)) is None
    disk.open_gate()
    marks.wait_synced(3)
    assert [r.base_offset for r in asyncio.run(log.read(1, 0, 0, 1 << 20))] == [0, 1, 2]


def test_an_idle_writer_syncs_at_once_what_nobody_waits_for(open_, disk, marks):
    log = open_()
    log.append([published(1)], sync=False)
    marks.wait_synced(2)


def test_who_waits_for_written_only_hears_of_it_before_the_sync(open_, disk, marks):
    log = open_()
    disk.close_gate()
    log.append([published(1)], sync=False)
    marks.wait_written(2)
    assert marks.seen == [(2, 1)]
    disk.open_gate()
    marks.wait_synced(2)
    assert marks.seen == [(2, 1), (2, 2)]


def test_no_more_than_so_many_bytes_are_ever_written_and_not_synced(open_, disk, marks):
    """Nobody asks for a sync, and the writer is kept busy; the bound alone makes it sync."""
    log = open_(Options(segment_bytes=1 << 20, snapshot_bytes=4096, soft_free_bytes=0, bytes_per_sync=5000))
    before = disk.syncs
    disk.close_gate()
    log.append([published(1)])
    disk.wait_for_a_sync()
    log.append([published(base, b"x" * 950) for base in range(2, 102)], sync=False)
    disk.open_gate()
    marks.wait_synced(102)
    assert disk.syncs - before - 1 >= 100 * 1000 // 6000
    frame = 1100
    unsynced = [written - synced for written, synced in marks.seen]
    assert max(unsynced) * frame <= 5000 + frame


def test_a_full_queue_refuses_all_but_the_essential(open_, disk, marks):
    log = open_(Options(segment_bytes=1 << 20, snapshot_bytes=4096, soft_free_bytes=0, queue_bytes=1000))
    disk.close_gate()
    log.append([published(1)])
    disk.wait_for_a_sync()
    last = log.append([published(2, b"x" * 2000)])
    assert log.usage().queued_bytes > 2000
    with pytest.raises(LogBusy):
        log.append([published(3)])
    assert log.last_sequence == last
    assert log.append([published(3)], essential=True) == last + 1
    disk.open_gate()
    marks.wait_synced(last + 1)
    assert log.append([published(4)]) == last + 2
    assert log.usage().fsync_count >= 3


def test_a_failed_sync_is_final_and_told_once(open_, disk, marks):
    log = open_()
    disk.close_gate()
    disk.error = OSError(5, "the disk is gone")
    log.append([published(1)])
    disk.wait_for_a_sync()
    disk.open_gate()
    assert isinstance(marks.wait_failure(), LogFailed)
    disk.error = None
    for call in (lambda: log.append([published(2)]), log.rotate):
        with pytest.raises(LogFailed):
            call()
    for call in (log.read(1, 0, 0, 1), log.read_sequence(1)):
        with pytest.raises(LogFailed):
            asyncio.run(call)
    assert (log.synced, marks.seen, len(marks.failures)) == (1, [], 1)


# ---------------------------------------------------------------- without a thread


def test_a_log_short_of_space_takes_only_the_essential():
    disk = DictDisk()
    log = open_log(disk, Options(segment_bytes=1024, snapshot_bytes=1024, soft_free_bytes=1 << 20))
    put(log, [published(0)])
    disk.free = 1000
    log._clock.seconds += 10
    log.pump()
    with pytest.raises(DiskFull):
        log.append([published(1)])
    assert log.usage().is_short_of_space
    assert log.append([published(1)], essential=True) == 2
    disk.free = 1 << 40
    log._clock.seconds += 10
    log.pump()
    assert log.append([published(2)]) == 3, "it resumes by itself"


def test_reads_go_on_when_more_indexes_are_needed_than_are_kept(monkeypatch):
    monkeypatch.setattr("wal.reader._CACHED_INDEXES", 2)
    disk = DictDisk()
    log = open_log(disk)
    put(log, [published(base, b"x" * 300) for base in range(60)])
    assert len(log.segments()) > 10
    for offset in (0, 59, 30, 5):
        found = log._reader.read(1, 0, offset, 1 << 20, log.synced)
        assert [record.base_offset for record in found] == list(range(offset, 60))
    assert len(log._reader._indexes) <= 2
    assert disk.open_files == 3, "lock, live segment and watermark; readers let go of theirs"


def test_holes_that_compaction_left_are_not_blamed_on_damage_elsewhere():
    """The read starts in a later segment than the damage, and only what lies between two frames may hide offsets."""
    disk = DictDisk()
    log = open_log(disk)
    put(log, [published(0, channel=2), published(0)])
    log.rotate()
    put(log, [published(1)])
    log.rotate()
    put(log, [published(5, channel=1)])
    log.rotate()
    log.pump()
    log.close()
    first = sorted(path for path in disk.files if path.endswith(".wal"))[0]
    disk.files[first][70] ^= 1
    del disk.files[first.replace(".wal", ".idx")]
    log = open_log(disk)
    assert [r.base_offset for r in log._reader.read(1, 0, 2, 1 << 20, log.synced)] == [5]


# ---------------------------------------------------------------- snapshot runs and damage


def run_at(log):
    begin = log.append([SnapshotBegin(channel_ids=[1])])
    put(log, [ChannelSnapshot(channel_id=1, name="x" * 40), published(begin)])
    log.append([SnapshotEnd(begin_sequence=begin)])
    log.pump()
    return begin


@pytest.mark.parametrize("is_sealed", [True, False])
@pytest.mark.parametrize("damaged", [0, 1, 2])
def test_replay_falls_back_to_the_older_run_and_then_to_the_start(damaged, is_sealed):
    disk = DictDisk()
    log = open_log(disk, SMALL)
    put(log, [published(0)])
    begins = []
    for _ in range(3):
        begins.append(run_at(log))
        if is_sealed:
            log.rotate()
    log.close()
    wals = sorted(path for path in disk.files if path.startswith(f"{DIRECTORY}/0") and path.endswith(".wal"))
    at = [place for path in wals for place in _places(disk.files[path], b"x" * 40, path)]
    for path, position in at[3 - damaged :]:
        disk.files[path][position] ^= 1
    log = open_log(disk, SMALL)
    sequences = [sequence for sequence, _ in log.replay()]
    expected = {0: begins[2], 1: begins[1], 2: 1}[damaged]
    assert sequences[0] == expected
    lost = [record for _, record in log.replay() if isinstance(record, Damaged)]
    assert [record.first_sequence for record in lost] == [begin + 1 for begin in begins[3 - damaged :]]


def _places(data, needle, path):
    start = data.find(needle)
    while start >= 0:
        yield path, start
        start = data.find(needle, start + len(needle))


def test_a_stream_that_nobody_waits_for_is_synced_before_its_readers_wait_long():
    """Publishes that are answered when they are written follow each other without a pause."""
    clock = HandClock()
    log = FileLog.open(DIRECTORY, OPTIONS, disk=DictDisk(), clock=clock, is_threaded=False)
    log.append([published(0)])
    log.pump()

    def step(base):
        log.append([published(base)], sync=False)
        log._writer.process([log._drive._queue.get_nowait()])
        log._writer.settle(is_idle=False)
        return log.synced

    assert [step(base) for base in (1, 2)] == [1, 1]
    clock.pass_ms(LATE_SECONDS * 1_000 + 0.1)
    assert step(3) == 4
    assert step(4) == 4, "from then on it is counted anew"
    log._writer._last_sync_seconds = 60.0  # and a disk that stood still once is not punished for it
    clock.pass_ms(LATE_SECONDS * 1_000 + 0.1)
    assert step(5) == 4
    clock.pass_ms(LATEST_SECONDS * 1_000)
    assert step(6) == 7
    log.close()
