"""What every log does, files or not: one suite for all that implement `wal.log.Log`."""

import asyncio
from collections.abc import Callable

import pytest
from waiting import Marks
from walsample import content_of, one_of_each, published

from wal import FileLog, MemoryLog, Options, RecordTooLarge
from wal.errors import LogClosed
from wal.log import Log
from wal.record import (
    Acked,
    Atomic,
    Carried,
    ChannelCreated,
    ChannelSnapshot,
    DeadLettered,
    Published,
    SnapshotBegin,
    SnapshotEnd,
    Unknown,
    atomic,
)

MAX_RECORD_BYTES = 10_000
OPTIONS = Options(
    segment_bytes=4096, snapshot_bytes=4096, soft_free_bytes=0, max_record_bytes=MAX_RECORD_BYTES, queue_bytes=1 << 20
)


class Rig:
    """A log that was started, its marks, and how to find it again after a stop."""

    def __init__(self, open_: Callable[[], Log], reopen: Callable[[Log], Log]) -> None:
        self._reopen = reopen
        self._start(open_())

    def _start(self, log: Log) -> None:
        self.log, self.marks = log, Marks()
        log.start(self.marks.on_marks, self.marks.on_failure)

    def put(self, *records, **how) -> int:
        """Append, each by itself, and wait until all are durable."""
        for record in records:
            last = self.log.append([record], **how)
        self.marks.wait_synced(last)
        return last

    def read(self, channel=1, partition=0, offset=0, max_bytes=1 << 20):
        found = asyncio.run(self.log.read(channel, partition, offset, max_bytes))
        return [record.base_offset for record in found]

    def reopen(self) -> None:
        self.log.close()
        self._start(self._reopen(self.log))


@pytest.fixture(params=["file", "memory"])
def rig(request, tmp_path):
    if request.param == "file":
        rig = Rig(lambda: FileLog.open(tmp_path / "log", OPTIONS), lambda log: FileLog.open(tmp_path / "log", OPTIONS))
    else:
        rig = Rig(lambda: MemoryLog(max_record_bytes=MAX_RECORD_BYTES), lambda log: log.crash())
    yield rig
    rig.log.close()


def replayed(rig):
    return content_of(rig.log.replay())


def test_a_new_log_is_empty(rig):
    assert (rig.log.last_sequence, rig.log.written, rig.log.synced) == (0, 0, 0)
    assert list(rig.log.replay()) == []
    assert rig.read() == []


def test_append_gives_each_record_the_next_sequence_and_returns_the_last(rig):
    assert rig.log.append([]) == 0
    assert rig.log.append([published(0)]) == 1
    assert rig.log.append([published(1), published(2), published(3)]) == 4
    rig.marks.wait_synced(4)
    assert (rig.log.last_sequence, rig.log.written, rig.log.synced) == (4, 4, 4)


def test_marks_only_rise_and_written_leads(rig):
    rig.put(*[published(base) for base in range(50)])
    assert rig.marks.seen == sorted(rig.marks.seen)
    assert all(written >= synced for written, synced in rig.marks.seen)


def test_records_of_every_type_come_back_in_order_also_after_a_restart(rig):
    records = [r for r in one_of_each() if not isinstance(r, SnapshotBegin | ChannelSnapshot | SnapshotEnd)]
    rig.put(*records)
    expected = content_of(enumerate(records, 1))
    assert replayed(rig) == expected
    rig.reopen()
    assert replayed(rig) == expected
    assert rig.log.last_sequence == rig.log.synced == len(records)
    assert rig.put(published(11)) == len(records) + 1


def test_the_uuid_outlives_a_restart(rig):
    before = rig.log.uuid
    rig.reopen()
    assert rig.log.uuid == before


def test_a_carried_batch_comes_back_as_a_plain_record(rig):
    whole = published(0, b"one", b"two")
    head = Published.FromString(whole.SerializeToString())
    head.ClearField("batch")
    rig.put(Carried(head, [whole.batch[:3], whole.batch[3:]]))
    assert replayed(rig) == content_of([(1, whole)])


def test_reads_go_over_many_segments_from_any_offset(rig):
    rig.put(*[published(base, b"x" * 200, partition=base % 2) for base in range(200)])
    for offset in (0, 1, 57, 198, 199):
        assert rig.read(offset=offset) == [base for base in range(200) if base >= offset and base % 2 == 0]
        assert rig.read(offset=offset, partition=1) == [base for base in range(200) if base >= offset and base % 2]
    assert rig.read(offset=200) == rig.read(channel=9) == rig.read(partition=2) == []
    rig.reopen()
    assert rig.read(offset=57) == [base for base in range(57, 200) if base % 2 == 0]


def test_a_read_starts_with_the_batch_that_holds_the_offset(rig):
    rig.put(published(0, b"a", b"b", b"c"), published(3, b"d", offset_deltas=[4]), published(20, b"e"))
    assert rig.read(offset=2) == [0, 3, 20]
    assert rig.read(offset=3) == rig.read(offset=7) == [3, 20]
    assert rig.read(offset=8) == rig.read(offset=20) == [20]
    assert rig.read(offset=21) == []


def test_a_read_returns_at_least_one_batch_and_no_more_than_fit(rig):
    rig.put(*[published(base, b"x" * 100) for base in range(10)])
    size = len(published(0, b"x" * 100).SerializeToString())
    assert rig.read(max_bytes=1) == [0]
    assert len(rig.read(max_bytes=3 * size + 10)) == 3


def test_publishes_inside_other_records_are_found(rig):
    dead = DeadLettered(channel_id=1, published=published(1, channel=2))
    both = atomic([published(1), published(0, channel=2), Acked(channel_id=1), published(2), Unknown(4000, b"?")])
    rig.put(published(0), both, dead, published(3))
    assert rig.read() == [0, 1, 2, 3]
    assert rig.read(channel=2) == [0, 1]
    assert rig.read(offset=2) == [2, 3]


def test_a_record_is_found_by_its_sequence(rig):
    rig.put(*[published(base, b"x" * 300) for base in range(60)])
    for sequence in (1, 2, 30, 60):
        assert asyncio.run(rig.log.read_sequence(sequence)).base_offset == sequence - 1
    assert asyncio.run(rig.log.read_sequence(0)) is asyncio.run(rig.log.read_sequence(61)) is None


def test_rotating_changes_nothing_that_is_read(rig):
    rig.put(published(0))
    rig.log.rotate()
    rig.log.rotate()
    rig.put(published(1))
    rig.log.rotate()
    assert rig.read() == [0, 1]
    rig.put(published(2))
    assert rig.read() == [0, 1, 2]
    rig.reopen()
    assert rig.read() == [0, 1, 2]
    assert [sequence for sequence, _ in rig.log.replay()] == [1, 2, 3]


def test_replay_starts_at_the_last_complete_snapshot_run(rig):
    rig.put(ChannelCreated(channel_id=1), published(0))
    first = rig.put(SnapshotBegin(channel_ids=[1]))
    rig.put(published(1), ChannelSnapshot(channel_id=1), SnapshotEnd(begin_sequence=first), published(2))
    assert [sequence for sequence, _ in rig.log.replay()] == [3, 4, 5, 6, 7]
    second = rig.put(SnapshotBegin())
    rig.put(published(3))
    rig.reopen()
    assert [sequence for sequence, _ in rig.log.replay()] == [3, 4, 5, 6, 7, 8, 9], "the second run is not complete"
    rig.put(SnapshotEnd(begin_sequence=second))  # its begin was before a stop: whoever wrote it is gone
    third = rig.put(SnapshotBegin())
    rig.put(SnapshotEnd(begin_sequence=third))
    rig.reopen()
    assert next(sequence for sequence, _ in rig.log.replay()) == third
    assert rig.read() == [0, 1, 2, 3], "what replay leaves out can still be read"


def test_usage_tells_what_is_kept_and_what_a_restart_would_read(rig):
    rig.put(published(0, b"x" * 1000))
    before = rig.log.usage()
    assert before.bytes > 1000
    assert before.replay_bytes > 1000
    assert (before.last_sequence, before.written, before.synced) == (1, 1, 1)
    assert before.queued_bytes == 0
    assert before.queue_limit_bytes > 0
    assert not before.is_short_of_space
    begin = rig.put(SnapshotBegin())
    rig.put(SnapshotEnd(begin_sequence=begin))
    after = rig.log.usage()
    assert after.replay_bytes < 300
    assert after.bytes > before.bytes
    rig.reopen()
    assert rig.log.usage().last_sequence == 3


def test_a_record_that_is_too_large_is_refused_and_nothing_of_its_group_is_kept(rig):
    rig.put(published(0))
    with pytest.raises(RecordTooLarge):
        rig.log.append([published(1), published(2, b"x" * MAX_RECORD_BYTES)])
    with pytest.raises(RecordTooLarge):
        rig.log.append([Carried(published(1), [b"x" * MAX_RECORD_BYTES])], essential=True)
    assert rig.log.last_sequence == 1
    rig.put(published(1))
    assert rig.read() == [0, 1]


def test_closing_makes_everything_durable_and_then_every_call_is_refused(rig):
    log = rig.log
    log.append([published(0)], sync=False)
    log.close()
    log.close()
    assert (log.written, log.synced) == (1, 1)
    for call in (lambda: log.append([published(1)]), log.rotate):
        with pytest.raises(LogClosed):
            call()
    for call in (lambda: log.read(1, 0, 0, 1), lambda: log.read_sequence(1)):
        with pytest.raises(LogClosed):
            asyncio.run(call())
    rig.reopen()
    assert rig.read() == [0]


def test_a_log_verifies_itself_while_it_goes_on(rig):
    rig.put(*[published(base, b"x" * 300) for base in range(60)])
    report = asyncio.run(rig.log.verify())
    assert report.is_intact
    assert (report.frames, report.log_uuid) == (60, rig.log.uuid)
    assert [asyncio.run(rig.log.scrub()) for _ in range(20)] == [[]] * 20


def test_what_the_log_writes_itself_can_not_be_appended(rig):
    with pytest.raises(ValueError, match="type"):
        rig.log.append([Unknown(1, b"")])
    assert rig.log.last_sequence == 0
    assert isinstance(atomic([]), Atomic)
