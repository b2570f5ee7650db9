"""The manifest: comes back as it was, and any change to its bytes is noticed."""

import json
from dataclasses import replace
from uuid import UUID

import pytest
from dictdisk import DictDisk
from hypothesis import given
from hypothesis import strategies as st

from wal.errors import CorruptSegment, UnsupportedVersion, WalError
from wal.frame import crc32c
from wal.manifest import MANIFEST, Manifest, Retired, SegmentEntry, SnapshotRun, read_manifest, swap_manifest
from wal.segment import SegmentHeader

numbers = st.integers(0, 2**64 - 1)
segment_entries = st.builds(
    SegmentEntry,
    first_sequence=numbers, last_sequence=numbers, generation=st.integers(0, 2**32 - 1),
    salt=st.binary(min_size=8, max_size=8).map(bytes.hex), is_sealed=st.booleans(), size=numbers,
    last_crc=st.integers(0, 2**32 - 1), previous_last=numbers, previous_crc=st.integers(0, 2**32 - 1),
)  # fmt: skip
manifests = st.builds(
    Manifest,
    log_uuid=st.uuids(), edition=numbers, extension=st.sampled_from([".wal", ".log"]),
    segments=st.lists(segment_entries, max_size=4).map(tuple),
    retired=st.lists(st.builds(Retired, st.just("00000000000000000001-0.wal"), numbers), max_size=2).map(tuple),
    snapshots=st.lists(st.builds(SnapshotRun, numbers, numbers), max_size=2).map(tuple),
)  # fmt: skip


def packed(fields):
    body = fields if isinstance(fields, bytes) else json.dumps(fields).encode()
    return f"mq-wal-manifest 1 {crc32c(body):08x}\n".encode() + body


@given(manifests)
def test_a_manifest_comes_back_as_it_was_packed(manifest):
    assert Manifest.unpack(manifest.pack(), "x") == manifest


@given(manifests, st.data())
def test_any_change_to_its_bytes_is_noticed(manifest, data):
    good = manifest.pack()
    bit = data.draw(st.integers(0, 8 * len(good) - 1))
    broken = bytearray(good)
    broken[bit // 8] ^= 1 << bit % 8
    cut = data.draw(st.integers(0, len(good) - 1))
    for bad in (bytes(broken), good[:cut], good[cut + 1 :], good + b" ", bytes(len(good))):
        with pytest.raises(WalError, match="x"):
            Manifest.unpack(bad, "x")


def test_a_manifest_from_a_future_version_is_refused_as_such():
    good = Manifest(UUID(int=1)).pack()
    with pytest.raises(UnsupportedVersion, match="format 2"):
        Manifest.unpack(good.replace(b"manifest 1 ", b"manifest 2 "), "x")


FIELDS = json.loads(Manifest(UUID(int=1), segments=(SegmentEntry(1, 2, 0, "00" * 8, True),)).pack().split(b"\n", 1)[1])


@pytest.mark.parametrize(
    "fields",
    [
        b"", b"{", b"null", b"[]", b"7", b"\xff", b"[" * 100_000, {},
        {**FIELDS, "log_uuid": "not one"}, {**FIELDS, "log_uuid": 3}, {**FIELDS, "segments": [{"salt": 1}]},
        {**FIELDS, "segments": [7]}, {**FIELDS, "retired": None}, {**FIELDS, "snapshots": [{"begin": 1}]},
        {**FIELDS, "segments": [{**FIELDS["segments"][0], "salt": "zz"}]},
        {**FIELDS, "segments": [{**FIELDS["segments"][0], "salt": "00"}]},
        {**FIELDS, "segments": [{**FIELDS["segments"][0], "first_sequence": "1"}]},
        {**FIELDS, "extension": "/../../etc"},
    ],
)  # fmt: skip
def test_what_no_writer_of_ours_made_is_refused_even_with_the_right_crc(fields):
    with pytest.raises(CorruptSegment, match="manifest"):
        Manifest.unpack(packed(fields), "x")


@given(manifests)
def test_a_swap_replaces_the_whole_and_counts(manifest):
    disk = DictDisk()
    first = swap_manifest(disk, "/d", manifest)
    assert first == replace(manifest, edition=manifest.edition + 1)
    second = swap_manifest(disk, "/d", first.with_snapshot(SnapshotRun(5, 6)))
    assert read_manifest(disk, "/d") == second
    assert disk.list("/d") == [MANIFEST]


def test_what_an_earlier_swap_left_unfinished_is_replaced():
    disk = DictDisk({f"/d/{MANIFEST}.new": b"half a manif"})
    swap_manifest(disk, "/d", Manifest(UUID(int=1)))
    assert read_manifest(disk, "/d") == Manifest(UUID(int=1), edition=1)


def test_no_manifest_is_none_and_not_an_error():
    assert read_manifest(DictDisk(), "/d") is None


def test_the_last_two_snapshot_runs_are_kept():
    manifest = Manifest(UUID(int=1))
    for begin in (1, 10, 20):
        manifest = manifest.with_snapshot(SnapshotRun(begin, begin + 2))
    assert manifest.snapshots == (SnapshotRun(10, 12), SnapshotRun(20, 22))


@given(st.builds(SegmentHeader, st.uuids(), numbers, st.integers(0, 9), st.binary(min_size=8, max_size=8), numbers))
def test_an_entry_repeats_the_header(header):
    entry = SegmentEntry.of(header)
    assert entry.header(header.log_uuid) == header
    assert entry.is_dense == (header.generation == 0)
    assert not entry.is_sealed
