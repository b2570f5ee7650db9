"""Damage: every byte of every file flipped or zeroed, every truncation, frames and files lost, doubled, swapped.

Each change is either told, with a range that contains it, or changes nothing. Nothing outside that range is lost,
nothing is invented, and the torn tail, the corrupt middle and the missing file are told apart.
"""

import pytest
from damage import Outcome, Sample, opened, sample
from dictdisk import DictDisk
from loguru import logger
from walsample import DIRECTORY

from wal.errors import CorruptSegment, WalError
from wal.manifest import MANIFEST
from wal.segment import SEGMENT_HEADER_BYTES
from wal.watermark import WATERMARK

STOPS = [pytest.param(True, id="clean"), pytest.param(False, id="killed")]
pytestmark = pytest.mark.parametrize("is_clean", STOPS)


@pytest.fixture(autouse=True)
def _quiet():
    logger.disable("wal")
    yield
    logger.enable("wal")


def judge(outcome: Outcome, good: Sample, hit: set[int]) -> None:
    """Exactly the frames that were hit are gone, and each is told."""
    missing = set(good.records) - set(outcome.records)
    assert missing <= hit, "something outside the damage is lost"
    for sequence, record in outcome.records.items():
        assert good.records[sequence] == record, "something was invented"
    assert all(outcome.is_lost(sequence) for sequence in missing), "a loss was not told"
    assert outcome.files_left_open == 0


def contains(outcome: Outcome, path: str, start: int, end: int) -> bool:
    """What opening and replay told, and what verify told, covers a changed range."""
    ranges = [(p, a, b) for p, a, b in outcome.reported if p == path]
    verified = [(d.position, d.end) for d in outcome.report.damage if f"{DIRECTORY}/{d.segment}" == path]
    return any(a <= start and end <= max(b, a + 1) for _, a, b in ranges) and any(
        a <= start and end <= max(b, a + 1) for a, b in verified
    )


def changes(data: bytes, at: int):
    """A byte with all its bits flipped, and zeroed or with one bit flipped."""
    return {data[at] ^ 0xFF, 0 if at % 2 else data[at] ^ (1 << at // 2 % 8)} - {data[at]}


@pytest.mark.shows("T3", "every byte of every segment changed in two ways")
def test_every_changed_byte_of_every_segment_costs_its_own_frame_and_is_told(is_clean, figures):
    good = sample(is_clean=is_clean)
    count = 0
    for path in good.segments:
        data = good.files[path]
        end = good.live_end + 40 if path == good.live else len(data)
        for at in range(end):
            hit = good.frames_at(path, at, at + 1)
            for value in changes(data, at):
                disk = good.disk()
                disk.files[path][at] = value
                outcome = opened(disk, good, is_read=value == data[at] ^ 0xFF and at % 3 == 0)
                judge(outcome, good, hit)
                assert set(good.records) - set(outcome.records) == hit
                if hit:
                    assert contains(outcome, path, at, at + 1)
                    assert not outcome.torn_bytes, "it was durable once, so it is no tear"
                elif at < SEGMENT_HEADER_BYTES:
                    assert not outcome.reported, "the manifest repeats the header"
                    assert [(d.position, d.end) for d in outcome.report.damage] == [(0, SEGMENT_HEADER_BYTES)]
                elif path != good.live:
                    assert contains(outcome, path, at, at + 1), "the seal is part of a sealed segment"
                else:
                    assert (outcome.torn_bytes > 0) == (value != 0)
                count += 1
    figures["changes"] = count
    assert count > 2000


@pytest.mark.shows("T3", "every byte of manifest, watermark, indexes and retired segments changed in two ways")
@pytest.mark.parametrize("name", [MANIFEST, WATERMARK, ".idx", "retired"])
def test_every_changed_byte_of_every_other_file_is_refused_or_harmless(is_clean, name, figures):
    good = sample(is_clean=is_clean)
    figures["changes"] = 0
    paths = [path for path in good.files if path.endswith(name)]
    if name == "retired":
        paths = [path for path in good.files if path.endswith(".wal") and path not in good.segments]
    assert paths
    for path in paths:
        data = good.files[path]
        for at in range(len(data)):
            for value in changes(data, at):
                figures["changes"] += 1
                disk = good.disk()
                disk.files[path][at] = value
                if name == MANIFEST:
                    with pytest.raises(WalError, match=MANIFEST):
                        opened(disk, good)
                    assert disk.files.keys() == good.files.keys()
                else:
                    outcome = opened(disk, good, is_read=name == ".idx" and at % 3 == 0)
                    assert outcome.records == good.records
                    assert not outcome.reported


@pytest.mark.parametrize("size", [16, 64, 512])
def test_zeroed_sectors_cost_what_they_cover(is_clean, size):
    good = sample(is_clean=is_clean)
    for path in good.segments:
        data = good.files[path]
        for start in range(0, len(data), size):
            end = min(start + size, len(data))
            if not any(data[start:end]):
                continue
            disk = good.disk()
            disk.files[path][start:end] = bytes(end - start)
            outcome = opened(disk, good)
            hit = good.frames_at(path, start, end)
            judge(outcome, good, hit)
            assert set(outcome.records) == set(good.records) - hit
            if hit:
                assert outcome.reported
                assert not outcome.torn_bytes
            assert outcome.report.damage


@pytest.mark.shows("T3", "every file cut at every length")
def test_every_truncation_of_every_file_is_told_or_harmless(is_clean, figures):
    good = sample(is_clean=is_clean)
    figures["cuts"] = 0
    for path, data in good.files.items():
        for size in range(0, len(data), 1 if any(data) else 100):  # spare and reserve are all zeros
            figures["cuts"] += 1
            disk = good.disk()
            del disk.files[path][size:]
            if path.endswith(MANIFEST):
                with pytest.raises(CorruptSegment, match=MANIFEST):
                    opened(disk, good)
                continue
            outcome = opened(disk, good, is_read=size % 7 == 0)
            hit = good.frames_at(path, size, len(data)) if path in good.segments else set()
            judge(outcome, good, hit)
            assert set(outcome.records) == set(good.records) - hit
            if hit or (path in good.segments and path != good.live):
                assert outcome.reported
                assert outcome.report.damage
            assert not outcome.torn_bytes


def test_a_missing_file_is_told_as_missing_and_costs_nothing_else(is_clean):
    good = sample(is_clean=is_clean)
    for path in good.files:
        for has_sidecar in (True, False):
            disk = good.disk()
            del disk.files[path]
            if not has_sidecar:
                disk.files.pop(path.replace(".wal", ".idx"), None)
            if path.endswith(MANIFEST):
                with pytest.raises(CorruptSegment, match="missing"):
                    opened(disk, good)
                continue
            outcome = opened(disk, good)
            hit = good.frames_at(path, 0, 1 << 40) if path in good.segments else set()
            judge(outcome, good, hit)
            assert set(outcome.records) == set(good.records) - hit
            if hit:
                assert any("missing" in lost.reason or "opened" in lost.reason for lost in outcome.lost)
                assert any("missing" in found.reason for found in outcome.report.damage)
                assert not outcome.torn_bytes


def frames_of(good: Sample, path: str) -> list[bytes]:
    return [good.files[path][f.start : f.end] for f in good.frames if f.path == path]


def with_frames(good: Sample, path: str, frames: list[bytes]) -> DictDisk:
    """The file with other frames; what follows them (a seal, zeros) stays behind them."""
    disk = good.disk()
    last = max(f.end for f in good.frames if f.path == path)
    disk.files[path][SEGMENT_HEADER_BYTES:last] = b"".join(frames)
    return disk


@pytest.mark.shows("T3", "every frame deleted, doubled, swapped with another")
def test_every_frame_deleted_doubled_or_swapped_with_another_is_told(is_clean):
    good = sample(is_clean=is_clean)
    for path in good.segments:
        frames = frames_of(good, path)
        sequences = [f.sequence for f in good.frames if f.path == path]
        for a in range(len(frames)):
            cases = [([*frames[:a], *frames[a + 1 :]], {sequences[a]})]
            for b in range(len(frames)):
                cases.append(([*frames[:b], frames[a], *frames[b:]], set()))
                swapped = list(frames)
                swapped[a], swapped[b] = swapped[b], swapped[a]
                low, high = min(a, b), max(a, b)
                cases.append((swapped, set(sequences[low : high + 1]) if a != b else set()))
            for changed, may_go in cases:
                outcome = opened(with_frames(good, path, changed), good)
                judge(outcome, good, may_go)
                if changed != frames:
                    is_last_doubled = path == good.live and changed[:-1] == frames
                    assert outcome.reported or (is_last_doubled and outcome.torn_bytes)
                    assert outcome.report.damage or (is_last_doubled and outcome.report.torn_bytes)


def test_two_files_swapped_cost_both_and_nothing_else(is_clean):
    good = sample(is_clean=is_clean)
    for a in good.segments:
        for b in good.segments:
            if a < b:
                disk = good.disk()
                disk.files[a], disk.files[b] = disk.files[b], disk.files[a]
                outcome = opened(disk, good)
                judge(outcome, good, good.frames_at(a, 0, 1 << 40) | good.frames_at(b, 0, 1 << 40))
                assert outcome.report.damage
                assert outcome.lost


def test_a_file_of_an_older_generation_under_the_new_name_is_told(is_clean):
    good = sample(is_clean=is_clean)
    (retired,) = (p for p in good.files if p.endswith(".wal") and p not in good.segments)
    rewritten = good.segments[1]
    disk = good.disk()
    disk.files[rewritten] = bytearray(good.files[retired])
    outcome = opened(disk, good)
    judge(outcome, good, good.frames_at(rewritten, 0, 1 << 40))
    assert outcome.lost


def test_a_segment_that_nobody_knows_is_put_aside_and_never_deleted(is_clean):
    good = sample(is_clean=is_clean)
    disk = good.disk()
    disk.files[f"{DIRECTORY}/00000000000000000099-0.wal"] = bytearray(b"whose?")
    outcome = opened(disk, good)
    assert outcome.records == good.records
    assert disk.files[f"{DIRECTORY}/orphans/00000000000000000099-0.wal-1"] == b"whose?"


def test_what_opening_found_is_the_same_at_the_next_opening(is_clean):
    good = sample(is_clean=is_clean)
    for path in good.segments:
        for frame in (f for f in good.frames if f.path == path):
            disk = good.disk()
            disk.files[path][frame.end - 1] ^= 1
            first = opened(disk, good)
            again = opened(disk, good)
            assert again.records == first.records
            assert [d.SerializeToString() for d in again.lost] == [d.SerializeToString() for d in first.lost]
            assert not again.report.is_intact, "damage is told until somebody decides to go on without"


def test_an_index_that_is_trusted_over_the_log_would_be_caught(is_clean, monkeypatch):
    """The planted bug: a sidecar is believed without its CRC, so flips in it change what a read returns."""
    good = sample(is_clean=is_clean)
    monkeypatch.setattr("wal.index._has_good_crc", lambda data: True)
    (path,) = (p for p in good.files if p.endswith(".idx") and p.startswith(good.segments[0][:-4]))
    caught = 0
    for at in range(36, len(good.files[path])):
        disk = good.disk()
        disk.files[path][at] ^= 0xFF
        try:
            opened(disk, good)
        except (AssertionError, WalError, IndexError, OverflowError):
            caught += 1
    assert caught > 10
