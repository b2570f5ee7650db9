"""The verdict over segments that are read apart, in any order, is the one of `mq wal verify`: no JVM here."""

import random

import pytest
from damage import sample
from dictdisk import DictDisk
from hypothesis import given, settings
from hypothesis import strategies as st
from loguru import logger
from walsample import DIRECTORY, open_log, published, put

from wal.chain import walk_chain
from wal.frame import Frame
from wal.manifest import read_manifest
from wal.record import Damaged, Skipped, Unknown, atomic
from wal.rewrite import Kept, rewrite
from wal.spark.audit.summary import packed, summarise, unpacked
from wal.spark.audit.verdict import verdict
from wal.verify import Report, verify


@pytest.fixture(autouse=True)
def _quiet():
    logger.disable("wal")
    yield
    logger.enable("wal")


def audited(disk: DictDisk, seed: int = 0) -> Report:
    """Every segment read alone, in an order of its own, its row sent through Arrow as Spark would."""
    manifest = read_manifest(disk, DIRECTORY)
    numbers = list(range(len(manifest.segments)))
    random.Random(seed).shuffle(numbers)

    def read(number, floors=None):
        *_, last = summarise(disk, DIRECTORY, manifest, number, manifest.segments[number], floors=floors)
        return unpacked([packed(last)]).to_pylist()[0]

    return verdict(Report(DIRECTORY, manifest.log_uuid), manifest, map(read, numbers), read)


def assert_same(disk: DictDisk) -> Report:
    expected = verify(DIRECTORY, disk=disk)
    assert audited(disk) == expected
    return expected


@pytest.mark.parametrize("is_clean", [True, False])
def test_an_intact_log_is_intact_to_both(is_clean):
    assert assert_same(sample(is_clean=is_clean).disk()).is_intact


def test_every_changed_byte_of_every_frame_is_told_alike():
    good = sample(is_clean=True)
    for frame in good.frames:
        for position in {frame.start, frame.start + 14, frame.start + 20, frame.end - 1}:
            disk = good.disk()
            disk.files[frame.path][position] ^= 0x10
            assert not assert_same(disk).is_intact


def test_a_missing_segment_is_told_alike():
    good = sample(is_clean=True)
    for path in good.segments:
        disk = good.disk()
        del disk.files[path]
        report = assert_same(disk)
        assert any(each.reason == "the segment is missing" for each in report.damage)


DAMAGE = st.lists(
    st.tuples(
        st.integers(0, 3),  # segment
        st.floats(0, 1, exclude_max=True),  # where
        st.sampled_from(["flip", "zero", "cut", "insert", "delete", "copy"]),
        st.integers(1, 300),  # how much
    ),
    min_size=1,
    max_size=4,
)


def damaged(disk: DictDisk, segments: list[str], damage) -> None:
    for number, where, act, size in damage:
        data = disk.files[segments[number]]
        at = int(where * len(data))
        if act == "flip":
            data[at : at + 1] = bytes([data[at] ^ 0x41]) if at < len(data) else b""
        elif act == "zero":
            data[at : at + size] = bytes(len(data[at : at + size]))
        elif act == "cut":
            del data[at:]
        elif act == "insert":
            data[at:at] = bytes(range(256))[:size]
        elif act == "delete":
            del data[at : at + size]
        else:
            data[at:at] = data[max(0, at - size) : at]


@settings(max_examples=200)
@given(DAMAGE, st.booleans(), st.booleans())
def test_whatever_is_damaged_is_told_alike(damage, is_clean, has_sidecars):
    good = sample(is_clean=is_clean)
    disk = good.disk()
    if not has_sidecars:
        for path in [path for path in disk.files if path.endswith(".idx")]:
            del disk.files[path]
    damaged(disk, good.segments, damage)
    assert_same(disk)


# A log of any publishes at all: offsets that jump, come again, share a frame, with damage told between them.
RECORDS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(0, 12), st.integers(1, 3), st.integers(1, 2)),
        st.tuples(st.just("next"), st.integers(1, 3), st.integers(1, 3), st.integers(1, 2)),
        st.sampled_from([("rotate",), ("damaged",), ("skipped",), ("both",), ("garbage",)]),
    ),
    max_size=25,
)


def made(steps, rewritten: list[int]) -> DictDisk:
    disk = DictDisk()
    log = open_log(disk)
    ends = {1: 0, 2: 0}
    put(log, [published(0, channel=3)])
    for step in steps:
        if step[0] == "publish" or step[0] == "next":
            base = step[1] if step[0] == "publish" else ends[step[3]]
            put(log, [published(base, *[b"m"] * step[2], channel=step[3])])
            ends[step[3]] = max(ends[step[3]], base + step[2])
        elif step[0] == "rotate":
            log.rotate()
        elif step[0] == "damaged":
            put(log, [Damaged(first_sequence=1, last_sequence=1, reason="test", skip=3)])
        elif step[0] == "skipped":
            put(log, [Skipped(first_sequence=1, last_sequence=1, reason="test", skip=3)])
        elif step[0] == "garbage":
            put(log, [Unknown(20, b"\xff\xff\xff")])
        elif step[0] == "both":
            put(log, [atomic([published(ends[1]), published(ends[2] + 1, channel=2)])])
            ends = {1: ends[1] + 1, 2: ends[2] + 2}
    log.rotate()
    put(log, [published(ends[1])])
    for number in rewritten:
        leave_out(disk, log, number % (len(log.manifest.segments) - 1), keep_every=number % 3 + 1)
    log.close()
    return disk


def leave_out(disk: DictDisk, log, number: int, keep_every: int) -> None:
    manifest = log.manifest
    entry = manifest.segments[number]
    if entry.generation:
        return
    frames = [item for at, item in walk_chain(disk, DIRECTORY, manifest) if at is entry and isinstance(item, Frame)]
    kept = [Kept(frame.type, frame.sequence, frame.payload) for frame in frames[::keep_every]]
    made = rewrite(
        disk, DIRECTORY, manifest, entry, kept, salt=b"rewrit%02d" % number, take=disk.create,
        last_sequence=entry.last_sequence,
    )  # fmt: skip
    log.run_between_groups(lambda writer: writer.replace_segments([entry.name(".wal")], [made]))
    log.pump()


@settings(max_examples=200)
@given(RECORDS, st.lists(st.integers(0, 9), max_size=2))
def test_whatever_offsets_do_is_told_alike(steps, rewritten):
    assert_same(made(steps, rewritten))


def test_offsets_that_stand_again_two_segments_later_are_told_frame_by_frame():
    """Only who knows the segments before can tell: the segment is read again, with that knowledge."""
    steps = [("publish", base, 1, 1) for base in range(6)]
    steps += [("rotate",), *[("publish", base, 1, 1) for base in range(2, 5)], ("publish", 9, 1, 2), ("next", 1, 1, 1)]
    report = assert_same(made(steps, []))
    assert [each.reason for each in report.damage] == [f"offsets from {base} on stand here again" for base in (2, 3, 4)]
