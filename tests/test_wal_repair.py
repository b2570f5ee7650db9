"""Repair: an operator's decision. Everything intact stays, what is damaged is put aside, and the log says so."""

from dataclasses import replace

import pytest
from damage import sample
from dictdisk import DictDisk, HandClock
from hypothesis import given, settings
from hypothesis import strategies as st
from logowner import refusing_disk
from loguru import logger
from walsample import DIRECTORY, SMALL, content_of, open_log, published, put

from wal.errors import CorruptSegment, LogLocked
from wal.frame import crc32c
from wal.manifest import MANIFEST
from wal.record import ChannelSnapshot, Damaged, Skipped, SnapshotBegin, SnapshotEnd
from wal.repair import Repaired, repair
from wal.verify import verify


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Small files, and no log lines."""
    monkeypatch.setattr("wal.repair.Options", lambda **fields: replace(SMALL, **fields))
    logger.disable("wal")
    yield
    logger.enable("wal")


def repaired(disk: DictDisk) -> Repaired:
    return repair(DIRECTORY, disk=disk, clock=HandClock())


def replayed(disk):
    """What is left, and the Skipped and Damaged records among it."""
    log = open_log(disk)
    items = list(log.replay())
    log.close()
    kinds = Skipped | Damaged
    return content_of([i for i in items if not isinstance(i[1], kinds)]), [r for _, r in items if isinstance(r, kinds)]


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_repair_of_an_intact_log_changes_nothing_that_is_kept(is_clean):
    good = sample(is_clean=is_clean)
    disk = good.disk()
    done = repaired(disk)
    assert (done.is_manifest_rebuilt, done.skipped, done.rewritten) == (False, [], [])
    assert replayed(disk) == (good.records, [])
    for path in good.segments[:-1]:
        assert disk.files[path] == good.files[path]


def test_every_damaged_frame_is_skipped_and_its_bytes_are_kept():
    good = sample(is_clean=True)
    for frame in good.frames:
        disk = good.disk()
        disk.files[frame.path][frame.end - 1] ^= 0x10
        bad = bytes(disk.files[frame.path][frame.start : frame.end])
        done = repaired(disk)
        (skipped,) = done.skipped
        assert skipped.first_sequence <= frame.sequence <= skipped.last_sequence
        assert (skipped.position, skipped.bytes) == (frame.start, frame.end - frame.start)
        assert skipped.timestamp_us == HandClock().us
        kept, marks = replayed(disk)
        assert kept == {sequence: r for sequence, r in good.records.items() if sequence != frame.sequence}
        assert marks == [skipped], "the log says so, and no longer that it is damaged"
        assert [bytes(data) for path, data in disk.files.items() if "/quarantine/" in path] == [bad]
        if skipped.quarantine:
            assert disk.files[f"{DIRECTORY}/{skipped.quarantine}"] == bad
        assert verify(DIRECTORY, disk=disk).is_intact
        assert repaired(disk).rewritten == [], "a second repair finds nothing to do"


@settings(max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1), st.integers(1, 255)), min_size=1, max_size=6))
def test_whatever_bytes_are_damaged_a_repaired_log_is_intact_and_holds_the_rest(flips):
    good = sample(is_clean=True)
    disk = good.disk()
    hit = set()
    for number, where, mask in flips:
        path = good.segments[number]
        size = good.live_end if path == good.live else len(good.files[path])
        at = int(where * (size - 1))
        disk.files[path][at] ^= mask
        if disk.files[path][at] != good.files[path][at]:
            hit |= good.frames_at(path, at, at + 1)
    repaired(disk)
    kept, marks = replayed(disk)
    assert kept == {sequence: record for sequence, record in good.records.items() if sequence in kept}
    assert set(good.records) - set(kept) <= hit
    assert all(isinstance(mark, Skipped) for mark in marks)
    assert verify(DIRECTORY, disk=disk).is_intact


def test_opening_never_repairs():
    good = sample(is_clean=True)
    for frame in good.frames:
        disk = good.disk()
        disk.files[frame.path][frame.end - 1] ^= 0x10
        for _ in range(3):
            _, marks = replayed(disk)
            assert [type(mark) for mark in marks] == [Damaged]
        if frame.path != good.live:
            assert disk.files[frame.path][frame.start : frame.end] != good.files[frame.path][frame.start : frame.end]


def test_after_a_repair_reads_go_over_the_hole():
    good = sample(is_clean=True)
    frame = good.frames[2]  # offsets 1 and 2 of channel 1
    disk = good.disk()
    disk.files[frame.path][frame.start + 40] ^= 1
    log = open_log(disk)
    with pytest.raises(CorruptSegment) as raised:
        log._reader.read(1, 0, 1, 1 << 20, log.synced)
    assert raised.value.offsets == (1, 3)
    log.close()
    repaired(disk)
    log = open_log(disk)
    assert log._reader.read(1, 0, 1, 1 << 20, log.synced)[0].base_offset == 3
    log.close()


def test_a_missing_segment_is_skipped_whole():
    good = sample(is_clean=True)
    for path in good.segments[:-1]:
        disk = good.disk()
        del disk.files[path]
        (skipped,) = repaired(disk).skipped
        gone = good.frames_at(path, 0, 1 << 40)
        assert skipped.first_sequence <= min(gone) <= max(gone) <= skipped.last_sequence
        assert set(good.records) - set(replayed(disk)[0]) == gone
        assert verify(DIRECTORY, disk=disk).is_intact


def test_a_frame_that_was_cut_out_of_a_rewritten_segment_is_skipped():
    """Its sequences have holes anyway: only the seal tells that one more is gone."""
    good = sample(is_clean=True)
    path = good.segments[1]
    frames = [frame for frame in good.frames if frame.path == path]
    assert len(frames) > 2
    for frame in frames:
        disk = good.disk()
        del disk.files[path][frame.start : frame.end]
        assert not verify(DIRECTORY, disk=disk).is_intact
        (skipped,) = repaired(disk).skipped
        assert skipped.first_sequence <= frame.sequence <= skipped.last_sequence
        kept, marks = replayed(disk)
        assert kept == {sequence: r for sequence, r in good.records.items() if sequence != frame.sequence}
        assert marks == [skipped]
        assert verify(DIRECTORY, disk=disk).is_intact
        assert repaired(disk).rewritten == []


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("change", ["missing", "flipped", "empty"])
def test_a_lost_manifest_is_rebuilt_from_the_segments(is_clean, change):
    good = sample(is_clean=is_clean)
    disk = good.disk()
    path = f"{DIRECTORY}/{MANIFEST}"
    if change == "missing":
        del disk.files[path]
    else:
        disk.files[path][:] = b"" if change == "empty" else b"?" + good.files[path][1:]
    with pytest.raises(CorruptSegment):
        open_log(disk.copy())
    done = repaired(disk)
    assert done.is_manifest_rebuilt
    assert replayed(disk) == (good.records, [])
    assert verify(DIRECTORY, disk=disk).is_intact


def test_a_log_goes_on_after_a_repair():
    good = sample(is_clean=True)
    disk = good.disk()
    disk.files[good.frames[4].path][good.frames[4].start + 40] ^= 1
    del disk.files[f"{DIRECTORY}/{MANIFEST}"]
    repaired(disk)
    log = open_log(disk)
    last = log.last_sequence
    assert last == max(good.records)
    put(log, [published(10)])
    log.close()
    assert max(replayed(disk)[0]) == last + 1


def test_a_log_that_is_in_use_is_not_repaired():
    disk = sample(is_clean=True).disk()
    log = open_log(disk)
    with pytest.raises(LogLocked):
        repaired(disk)
    del disk.files[f"{DIRECTORY}/{MANIFEST}"]
    with pytest.raises(LogLocked):
        repaired(disk)
    log.close()


def test_the_segments_of_two_logs_are_not_mixed():
    disk = sample(is_clean=True).disk()
    del disk.files[f"{DIRECTORY}/{MANIFEST}"]
    header = bytearray(disk.files[sample(is_clean=True).segments[0]])
    header[20] ^= 1
    header[60:64] = crc32c(bytes(header[:60])).to_bytes(4, "little")
    disk.files[f"{DIRECTORY}/00000000000000000099-0.wal"] = header
    with pytest.raises(CorruptSegment, match="2 logs"):
        repaired(disk)


def test_a_rebuilt_manifest_knows_the_snapshot_runs_and_deletes_nothing():
    disk = DictDisk()
    log = open_log(disk)
    for _ in range(3):
        begin = log.append([SnapshotBegin()])
        log.append([ChannelSnapshot(channel_id=1), SnapshotEnd(begin_sequence=begin)])
        put(log, [published(begin, b"x" * 300)])
        log.rotate()
        log.pump()
    runs = log.manifest.snapshots
    log.close()
    before = set(disk.list(DIRECTORY))
    disk.unlink(f"{DIRECTORY}/{MANIFEST}")
    assert repaired(disk).is_manifest_rebuilt
    log = open_log(disk)
    assert log.manifest.snapshots == runs
    assert next(iter(log.replay()))[0] == runs[-1].begin
    log.close()
    assert {name for name in before if name.endswith(".wal")} <= set(disk.list(DIRECTORY))


def test_of_two_files_of_one_range_the_intact_one_is_chosen_and_the_other_kept():
    """A rewritten segment that rots, beside the one it replaced, whose grace time is not over."""
    killed = DictDisk()
    log = open_log(killed)
    put(log, [published(number, b"x" * 100) for number in range(3)])
    good = content_of(log.replay())
    disk = killed.copy()  # as a kill leaves it
    with refusing_disk():
        open_log(disk).close()  # copies forward: generation 1 beside generation 0
    rewritten = next(name for name in disk.list(DIRECTORY) if name.endswith("-1.wal"))
    disk.files[f"{DIRECTORY}/{rewritten}"][120] ^= 1
    disk.unlink(f"{DIRECTORY}/{MANIFEST}")
    repaired(disk)
    assert replayed(disk)[0] == good
    assert rewritten in disk.list(DIRECTORY)
    log.close()
