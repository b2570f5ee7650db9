"""The watermark: the newest intact slot counts, and a torn one costs no more than one step back."""

from uuid import UUID

import pytest
from dictdisk import DictDisk
from hypothesis import given
from hypothesis import strategies as st

from wal.watermark import SLOT_BYTES, WATERMARK, Mark, WatermarkFile, read_mark

LOG = UUID(int=5)
PATH = f"/d/{WATERMARK}"
numbers = st.integers(0, 2**64 - 1)
marks = st.builds(Mark, numbers, numbers, st.integers(0, 2**32 - 1), numbers, st.booleans())


def written(*many):
    disk = DictDisk()
    watermark = WatermarkFile(disk, "/d", LOG)
    for mark in many:
        watermark.write(mark)
        assert watermark.mark == mark
    watermark.close()
    return disk


@given(st.lists(marks, max_size=5))
def test_the_last_mark_comes_back(many):
    disk = written(*many)
    last = many[-1] if many else None
    assert read_mark(disk, "/d", LOG) == last
    again = WatermarkFile(disk, "/d", LOG)
    assert again.mark == last
    again.write(Mark(1, 2, 3, 4))
    again.close()
    assert read_mark(disk, "/d", LOG) == Mark(1, 2, 3, 4)
    assert len(disk.files[PATH]) <= 2 * SLOT_BYTES


@given(st.lists(marks, min_size=2, max_size=5, unique=True), st.integers(0, 71), st.integers(1, 255))
def test_a_slot_torn_or_flipped_anywhere_leaves_the_one_before(many, at, mask):
    slot = len(many) % 2 * SLOT_BYTES
    for tear in (False, True):
        disk = written(*many)
        data = disk.files[PATH]
        if tear:
            data[slot + at : slot + SLOT_BYTES] = bytes(SLOT_BYTES - at)
        else:
            data[slot + at] ^= mask
        found = read_mark(disk, "/d", LOG)
        if found != many[-1]:  # beyond the CRC, or zeros over zeros
            assert found == many[-2]
        assert at >= 64 or tear or found == many[-2]


def test_the_slots_are_written_in_turn_each_in_a_sector_of_its_own():
    disk = written(Mark(1, 1, 0, 64))
    first = bytes(disk.files[PATH])
    assert not any(first[:SLOT_BYTES])
    disk = written(Mark(1, 1, 0, 64), Mark(2, 1, 0, 99))
    assert disk.files[PATH][SLOT_BYTES : SLOT_BYTES + 64] == first[SLOT_BYTES : SLOT_BYTES + 64]


def test_both_slots_damaged_is_no_mark_and_no_error():
    disk = written(Mark(1, 1, 0, 64), Mark(2, 1, 0, 99))
    disk.files[PATH][10] ^= 1
    disk.files[PATH][SLOT_BYTES + 10] ^= 1
    assert read_mark(disk, "/d", LOG) is None


def test_a_mark_of_another_log_is_not_believed():
    assert read_mark(written(Mark(1, 1, 0, 64)), "/d", UUID(int=6)) is None


@pytest.mark.parametrize("size", [0, 1, 63, 64, 100, SLOT_BYTES, SLOT_BYTES + 70])
def test_a_short_file_is_no_error(size):
    disk = written(*[Mark(n, 1, 0, 64) for n in range(1, 4)])
    del disk.files[PATH][size:]
    assert read_mark(disk, "/d", LOG) in (None, Mark(2, 1, 0, 64), Mark(3, 1, 0, 64))
    watermark = WatermarkFile(disk, "/d", LOG)
    watermark.write(Mark(9, 9, 0, 64))
    watermark.close()
    assert read_mark(disk, "/d", LOG) == Mark(9, 9, 0, 64)


def test_no_file_is_no_mark():
    assert read_mark(DictDisk(), "/d", LOG) is None
