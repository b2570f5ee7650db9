"""The end of the live segment after a stop: what was never durable is a tear, what was is corruption, and no other.

A frame vouches with its `durable` for all that was synced when it was written; the watermark for all that was synced.
"""

import pytest
from dictdisk import DictDisk
from hypothesis import given, settings
from hypothesis import strategies as st
from loguru import logger
from walsample import DIRECTORY, content_of, open_log, published, put

from wal.options import Options
from wal.record import Damaged
from wal.segment import SEGMENT_HEADER_BYTES, SegmentFile
from wal.watermark import SLOT_BYTES, WATERMARK

ONE_SEGMENT = Options(segment_bytes=1 << 13, snapshot_bytes=1 << 10, soft_free_bytes=0)
LIVE = f"{DIRECTORY}/00000000000000000001-0.wal"


@pytest.fixture(autouse=True)
def _quiet():
    logger.disable("wal")
    yield
    logger.enable("wal")


class Killed:
    """A log that was killed: some groups synced, and then one that was written and never synced."""

    def __init__(self, synced=(1, 1), unsynced=3, has_watermark=True):
        disk = DictDisk()
        log = open_log(disk, ONE_SEGMENT)
        base = 0
        for count in synced:
            put(log, [published(base + n, b"synced") for n in range(count)], together=count)
            base += count
        self.watermark = bytes(disk.files[f"{DIRECTORY}/{WATERMARK}"])
        self.synced = log.synced
        self.end_of_synced = log._position
        put(log, [published(base + n, b"unsynced") for n in range(unsynced)], together=unsynced)
        self.disk = disk.copy()
        self.disk.files[f"{DIRECTORY}/{WATERMARK}"][:] = self.watermark if has_watermark else bytes(2 * SLOT_BYTES)
        with SegmentFile(disk, LIVE, log.manifest.segments[0].salt_bytes) as segment:
            self.frames = list(segment.walk(1))
        self.ends = [*(frame.position for frame in self.frames[1:]), log._position]
        self.records = content_of(log.replay())

    def open(self):
        log = open_log(self.disk, ONE_SEGMENT)
        items = list(log.replay())
        kept = [sequence for sequence, record in items if not isinstance(record, Damaged)]
        lost = [(r.first_sequence, r.last_sequence) for _, r in items if isinstance(r, Damaged)]
        assert content_of([item for item in items if not isinstance(item[1], Damaged)]) == {
            sequence: self.records[sequence] for sequence in kept
        }
        report, last = log.report, log.last_sequence
        log.close()
        return kept, lost, report, last

    def torn(self):
        return {path: bytes(data) for path, data in self.disk.files.items() if ".torn-" in path}


@pytest.mark.parametrize("has_watermark", [True, False])
def test_a_torn_tail_is_cut_and_its_bytes_are_kept_exactly(has_watermark):
    """Every way to lose a part of the last write: bytes from anywhere in it on never reached the disk."""
    for cut in range(Killed().end_of_synced, Killed().ends[-1]):
        killed = Killed(has_watermark=has_watermark)
        data = killed.disk.files[LIVE]
        data[cut : killed.ends[-1]] = bytes(killed.ends[-1] - cut)
        whole = [f.sequence for f, end in zip(killed.frames, killed.ends, strict=True) if end <= cut]
        start = killed.ends[len(whole) - 1]
        expected = bytes(data[start:]).rstrip(b"\0")
        kept, lost, report, last = killed.open()
        assert (kept, lost) == (whole, [])
        assert last == len(whole), "the sequence of what was cut is given out again: nobody was told of it"
        assert report.torn_bytes == len(expected)
        assert list(killed.torn().values()) == ([expected] if expected else [])


def test_a_tear_with_whole_frames_behind_it_is_cut_from_its_first_byte():
    """Sectors reach the disk in any order: the first frame of the last write is torn, the others are intact."""
    killed = Killed()
    first = killed.frames[2]
    killed.disk.files[LIVE][first.position : first.position + 20] = bytes(20)
    expected = bytes(killed.disk.files[LIVE][first.position : killed.ends[-1]])
    kept, lost, report, last = killed.open()
    assert (kept, lost, last) == ([1, 2], [], 2)
    assert report.torn_bytes == len(expected)
    assert killed.torn() == {f"{LIVE}.torn-1": expected}


def test_damage_before_a_valid_frame_is_corruption_never_a_tear():
    """A later frame says that the damaged one was durable, so even without a watermark nothing after it is cut."""
    killed = Killed(has_watermark=False)
    killed.disk.files[LIVE][killed.frames[0].position + 40] ^= 1
    kept, lost, report, last = killed.open()
    assert kept == [2, 3, 4, 5]
    assert lost == [(1, 1)]
    assert (report.torn_bytes, last, killed.torn()) == (0, 5, {})


def test_damage_below_the_watermark_is_corruption_even_where_nothing_follows():
    killed = Killed(unsynced=1)
    del killed.disk.files[LIVE][killed.end_of_synced :]
    killed.disk.files[LIVE][killed.frames[1].position + 40] ^= 1
    kept, lost, report, last = killed.open()
    assert (kept, lost, last) == ([1], [(2, 2)], 2)
    assert report.torn_bytes == 0
    assert [bytes(d) for p, d in killed.disk.files.items() if "/quarantine/" in p], "the bytes are kept"


def test_an_end_that_the_watermark_saw_and_that_is_gone_is_corruption():
    killed = Killed()
    del killed.disk.files[LIVE][killed.frames[1].position :]
    kept, lost, report, last = killed.open()
    assert (kept, lost, last) == ([1], [(2, 2)], 2), "sequence 2 was synced, so it is not given out again"
    assert "watermark" in report.damage[0][1].reason


def test_corruption_and_a_tear_in_one_segment_are_told_apart():
    killed = Killed()
    data = killed.disk.files[LIVE]
    data[killed.frames[0].position + 40] ^= 1
    data[killed.frames[3].position + 40] ^= 1
    kept, lost, report, last = killed.open()
    assert (kept, lost, last) == ([2, 3], [(1, 1)], 3)
    assert report.torn_bytes == killed.ends[-1] - killed.frames[3].position


def test_a_log_that_is_torn_again_keeps_both_tails():
    killed = Killed()
    killed.disk.files[f"{LIVE}.torn-1"] = bytearray(b"an earlier one")
    killed.disk.files[LIVE][killed.frames[3].position + 40] ^= 1
    killed.open()
    assert killed.torn()[f"{LIVE}.torn-1"] == b"an earlier one"
    assert len(killed.torn()) == 2


def test_a_segment_in_which_nothing_was_ever_durable_starts_over():
    killed = Killed(synced=(), unsynced=3)
    killed.disk.files[LIVE][SEGMENT_HEADER_BYTES + 3] ^= 1
    kept, lost, _, last = killed.open()
    assert (kept, lost, last) == ([], [], 0)
    log = open_log(killed.disk)
    put(log, [published(0, b"new")])
    log.close()
    assert [r.base_offset for _, r in open_log(killed.disk).replay()] == [0]


@settings(max_examples=300)
@given(
    st.lists(st.integers(1, 3), max_size=3), st.integers(1, 4), st.booleans(),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 120)), max_size=3),
)  # fmt: skip
def test_whatever_part_of_the_last_write_is_missing_nothing_synced_is_lost_and_nothing_is_called_corrupt(
    synced, unsynced, has_watermark, holes
):
    killed = Killed(synced, unsynced, has_watermark)
    data = killed.disk.files[LIVE]
    for at, size in holes:
        start = killed.end_of_synced + at % (killed.ends[-1] - killed.end_of_synced)
        end = min(start + size, killed.ends[-1])
        data[start:end] = bytes(end - start)
    kept, lost, _, last = killed.open()
    assert lost == []
    assert kept == list(range(1, last + 1))
    assert last >= killed.synced


def test_a_reader_that_takes_every_gap_for_a_tear_would_be_caught(monkeypatch):
    """The planted bug: without the durable marks and the watermark, corruption cuts off what was acknowledged."""
    monkeypatch.setattr("wal.tail.Frame.durable", 0)
    killed = Killed(has_watermark=False)
    killed.disk.files[LIVE][killed.frames[0].position + 40] ^= 1
    kept, lost, *_ = killed.open()
    assert (kept, lost) == ([], [])
