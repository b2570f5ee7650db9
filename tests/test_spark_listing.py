"""Which segments Spark sees, and that its walk comes to the verdicts of `mq wal verify`. No JVM here."""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from smalllog import grow, make_log, open_here
from walsample import published

from wal.disk import DirectDisk, Disk
from wal.errors import CorruptSegment
from wal.frame import Frame, Salt, encode
from wal.manifest import read_manifest, swap_manifest
from wal.record import encode as encode_record
from wal.segment import SEGMENT_HEADER_BYTES, Gap, SegmentFile
from wal.spark.read.listing import NotALog, Segment, SegmentGone, replacements, visible
from wal.spark.read.scan import read, read_all
from wal.verify import verify


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_log(tmp_path_factory.mktemp("log") / "data")


@pytest.fixture
def directory(sample: Path, tmp_path: Path) -> Path:
    """A copy of its own, for tests that change it."""
    return Path(shutil.copytree(sample, tmp_path / "data"))


def items(segments: list[Segment]) -> Iterator[tuple[str, Frame | Gap]]:
    for segment in segments:
        for item in read(segment):
            yield segment.name, item


def sequences(segments: list[Segment]) -> list[int]:
    return [item.sequence for _, item in items(segments) if isinstance(item, Frame)]


def damage(segments: list[Segment]) -> list[tuple[str, int, int, int, int, str]]:
    gaps = [(name, item) for name, item in items(segments) if isinstance(item, Gap)]
    return [(name, g.position, g.end, g.first_sequence, g.last_sequence, g.reason) for name, g in gaps]


def test_every_segment_of_the_manifest_is_seen_and_no_other_file(directory: Path) -> None:
    segments = visible(str(directory))
    assert [segment.is_sealed for segment in segments] == [True] * (len(segments) - 1) + [False]
    shutil.copy(directory / segments[0].name, directory / "00000000000000009999-0.wal")
    assert visible(str(directory)) == segments
    assert visible(str(directory), sealed_only=True) == segments[:-1]
    assert sequences(segments) == list(range(1, 62))


def test_a_listing_may_travel_and_a_uri_of_a_directory_is_the_directory(sample: Path) -> None:
    segments = visible(f"file://{sample}")
    assert pickle.loads(pickle.dumps(segments)) == segments
    assert sequences(segments) == sequences(visible(str(sample)))


def test_a_log_elsewhere_is_read_through_pyarrow(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyarrow import fs

    def from_uri(uri: str) -> tuple[fs.FileSystem, str]:
        return fs.LocalFileSystem(), uri.removeprefix("bucket://")

    local = visible(str(sample))
    monkeypatch.setattr("pyarrow.fs.FileSystem", type("FileSystem", (), {"from_uri": staticmethod(from_uri)}))
    monkeypatch.setattr("wal.spark.read.storage.READ_AHEAD_BYTES", 1000)
    there = visible(f"bucket://{sample}")
    assert [replace(segment, root=str(sample)) for segment in there] == local
    for mine, other in zip(local, there, strict=True):
        assert list(read(other)) == list(read(mine))
    with pytest.raises(NotALog):
        visible(f"bucket://{sample.parent}")
    with pytest.raises(FileNotFoundError):
        visible(f"bucket://{sample}/missing")


def test_a_directory_of_a_running_broker_is_only_looked_at(tmp_path: Path) -> None:
    log = open_here(tmp_path)
    grow(log, 5)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert sequences(visible(str(tmp_path))) == [1, 2, 3, 4, 5]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    log.close()


def test_what_was_written_and_not_synced_is_not_seen_until_it_is(tmp_path: Path) -> None:
    log = open_here(tmp_path)
    grow(log, 3)
    (active,) = visible(str(tmp_path))
    type_, pieces, _ = encode_record(published(3))
    header, _ = encode(Salt.of(active.salt), type_, 4, 2, pieces)
    with open(tmp_path / active.name, "r+b") as file:  # as the writer would, before its sync
        file.seek(active.size)
        file.write(header + b"".join(pieces))
    assert visible(str(tmp_path)) == [active]
    assert sequences([active]) == [1, 2, 3]
    grow(log, 2, base=3)
    assert sequences(visible(str(tmp_path))) == [1, 2, 3, 4, 5]
    log.close()


def test_where_the_watermark_is_old_frames_vouch_for_those_before_them(directory: Path) -> None:
    whole = visible(str(directory))
    os.unlink(directory / "watermark")
    without = visible(str(directory))
    # nobody vouches for the last frame now
    assert without[-1].last_sequence == whole[-1].last_sequence - 1
    assert sequences(without) == sequences(whole)[:-1]


def test_an_active_segment_without_a_durable_frame_is_empty(tmp_path: Path) -> None:
    open_here(tmp_path).close()
    (segment,) = visible(str(tmp_path))
    assert (segment.size, segment.last_sequence) == (SEGMENT_HEADER_BYTES, 0)
    assert sequences([segment]) == []


def test_a_place_without_a_log_is_told_apart_from_one_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotALog, match="holds no log"):
        visible(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        visible(str(tmp_path / "missing"))
    (tmp_path / "MANIFEST").write_text("nonsense")
    with pytest.raises(CorruptSegment):
        visible(str(tmp_path))


def test_a_segment_that_left_the_log_is_gone_and_one_that_it_still_names_is_missing(directory: Path) -> None:
    first, second, *rest = visible(str(directory))
    os.unlink(directory / first.name)
    assert damage([first]) == [
        (first.name, 0, first.size, first.first_sequence, first.last_sequence, "the segment is missing")
    ]
    manifest = read_manifest(DirectDisk(), str(directory))
    assert manifest is not None
    swap_manifest(DirectDisk(), str(directory), manifest.with_segments(manifest.segments[1:]))
    with pytest.raises(SegmentGone, match="no longer part"):
        list(read(first))
    assert replacements(first) == []
    assert replacements(second) == [second]
    assert rest == visible(str(directory))[1:]


def test_a_damaged_header_is_told_and_costs_nothing(directory: Path) -> None:
    segment = visible(str(directory))[1]
    path = directory / segment.name
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)
    (expected,) = verify(str(directory)).damage
    first, *rest = read_all(segment)
    assert isinstance(first, Gap)
    assert (first.position, first.end, first.reason) == (expected.position, expected.end, expected.reason)
    assert rest == list(read(segment))
    assert all(isinstance(item, Frame) for item in rest)


def test_a_segment_is_opened_once_so_that_it_may_leave_while_it_is_read(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = visible(str(directory))[1]
    expected = list(read_all(segment))

    class LeavesOnceItIsOpen(SegmentFile):
        def __init__(self, disk: Disk, path: str, salt: bytes) -> None:
            super().__init__(disk, path, salt)
            os.unlink(path)

    monkeypatch.setattr("wal.spark.read.scan.SegmentFile", LeavesOnceItIsOpen)
    assert list(read_all(segment)) == expected


@settings(max_examples=60)
@given(data=st.data())
def test_a_walk_comes_to_the_verdict_of_verify_whatever_is_damaged(sample: Path, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(shutil.copytree(sample, Path(scratch) / "data"))
        segments = visible(str(directory))
        for _ in range(data.draw(st.integers(1, 3))):
            segment = data.draw(st.sampled_from(segments))
            path = directory / segment.name
            content = bytearray(path.read_bytes())
            end = min(len(content), segment.size)
            if end <= SEGMENT_HEADER_BYTES:
                continue
            at = data.draw(st.integers(SEGMENT_HEADER_BYTES, end - 1))
            kind = data.draw(st.sampled_from(["flip", "zeros", "cut", "remove"]))
            if kind == "flip":
                content[at] ^= 1 << data.draw(st.integers(0, 7))
            elif kind == "zeros":
                stop = min(end, at + data.draw(st.integers(1, 400)))
                content[at:stop] = bytes(stop - at)
            elif kind == "cut":
                del content[at:]
            else:
                del content[at : min(end, at + data.draw(st.integers(1, 400)))]
            path.write_bytes(content)
        report = verify(str(directory))
        expected = [
            (each.segment, each.position, each.end, each.first_sequence, each.last_sequence, each.reason)
            for each in report.damage
            if not each.reason.startswith("offsets from")
        ]
        assert damage(segments) == expected
        assert len(sequences(segments)) == report.frames
