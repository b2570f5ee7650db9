"""Verify: every damaged range with file, bytes, sequences and offsets, read-only, also beside a running writer."""

import pytest
from damage import sample
from dictdisk import DictDisk
from hypothesis import given, settings
from hypothesis import strategies as st
from loguru import logger
from walsample import DIRECTORY, SMALL, open_log, published, put

from wal.chain import walk_chain
from wal.manifest import MANIFEST, swap_manifest
from wal.record import Published, placements
from wal.rewrite import Kept, rewrite
from wal.verify import Loss, verify, verify_segment


@pytest.fixture(autouse=True)
def _quiet():
    logger.disable("wal")
    yield
    logger.enable("wal")


@pytest.fixture
def good():
    return sample(is_clean=True)


def losses(good, sequences):
    """The offsets that the records with these sequences held."""
    out = set()
    for sequence in sequences:
        name, payload = good.records[sequence]
        if name == "Published":
            out |= {Loss(*place) for place in placements(Published.FromString(payload))}
        elif name == "Atomic":
            out |= {Loss(1, 0, 6, 7), Loss(2, 0, 1, 2)}
    return out


@pytest.mark.parametrize("is_clean", [True, False])
def test_an_intact_log_is_counted_and_nothing_is_reported(is_clean):
    good = sample(is_clean=is_clean)
    steps = []
    report = verify(DIRECTORY, disk=good.disk(), progress=lambda done, total: steps.append((done, total)))
    assert report.is_intact
    assert (report.segments, report.frames, report.torn_bytes) == (4, len(good.records), 0)
    assert report.messages == 13
    assert steps == sorted(steps)
    assert len(steps) == 4


def test_every_damaged_frame_is_reported_with_its_file_bytes_sequence_and_offsets(good):
    for frame in good.frames:
        disk = good.disk()
        disk.files[frame.path][frame.end - 1] ^= 0x10
        before = {path: bytes(data) for path, data in disk.files.items()}
        report = verify(DIRECTORY, disk=disk)
        (damage,) = report.damage
        assert f"{DIRECTORY}/{damage.segment}" == frame.path
        assert (damage.position, damage.end) == (frame.start, frame.end)
        assert damage.first_sequence <= frame.sequence <= damage.last_sequence
        if "-0." in damage.segment:  # a rewritten one has gaps, and what lay in them nobody knows
            assert damage.first_sequence == damage.last_sequence
        if frame.path != good.live:  # its sidecar was made before the damage
            assert set(damage.offsets) == losses(good, [frame.sequence])
        assert report.frames == len(good.records) - 1
        assert {path: bytes(data) for path, data in disk.files.items()} == before, "verify only reads"


@settings(max_examples=150)
@given(st.sets(st.integers(0, 12), min_size=1, max_size=5), st.booleans())
def test_any_number_of_damaged_frames_are_all_reported_and_no_other(which, has_sidecars):
    good = sample(is_clean=True)
    frames = [good.frames[at % len(good.frames)] for at in which]
    disk = good.disk()
    for frame in frames:
        disk.files[frame.path][(frame.start + frame.end) // 2] ^= 0x10
    if not has_sidecars:
        for path in [path for path in disk.files if path.endswith(".idx")]:
            del disk.files[path]
    report = verify(DIRECTORY, disk=disk)
    told = {
        place.sequence
        for place in good.frames
        for damage in report.damage
        if f"{DIRECTORY}/{damage.segment}" == place.path and damage.position <= place.start < max(damage.end, 1)
    }
    assert told == {frame.sequence for frame in frames}
    lost = losses(good, told)
    for damage in report.damage:
        for loss in damage.offsets:
            held = {(o.channel_id, o.partition, at) for o in lost for at in range(o.start, o.end)}
            assert all((loss.channel_id, loss.partition, at) in held for at in range(loss.start, loss.end))


def test_without_sidecars_what_follows_tells_which_offsets_are_lost(good):
    disk = good.disk()
    for path in [path for path in disk.files if path.endswith(".idx")]:
        del disk.files[path]
    frame = good.frames[2]
    disk.files[frame.path][frame.start + 40] ^= 1
    (damage,) = verify(DIRECTORY, disk=disk).damage
    assert damage.offsets == [Loss(1, 0, 1, 3)]


@pytest.mark.parametrize("change", ["missing", "flipped"])
def test_a_lost_manifest_is_reported_as_such(good, change):
    disk = good.disk()
    if change == "missing":
        del disk.files[f"{DIRECTORY}/{MANIFEST}"]
    else:
        disk.files[f"{DIRECTORY}/{MANIFEST}"][50] ^= 1
    (damage,) = verify(DIRECTORY, disk=disk).damage
    assert damage.segment == MANIFEST


def test_a_torn_tail_is_counted_and_is_no_damage():
    disk = DictDisk()
    log = open_log(disk)
    put(log, [published(0)])
    killed = disk.copy()
    killed.files[f"{DIRECTORY}/00000000000000000001-0.wal"][log._position : log._position + 3] = b"abc"
    report = verify(DIRECTORY, disk=killed)
    assert report.is_intact
    assert (report.frames, report.torn_bytes) == (1, 3)


def test_offsets_that_stand_twice_or_are_missing_without_a_reason_are_reported():
    disk = DictDisk()
    log = open_log(disk)
    put(log, [published(0), published(2), published(1)])
    log.close()
    reasons = [damage.reason for damage in verify(DIRECTORY, disk=disk).damage]
    assert reasons == ["offsets from 1 on are missing", "offsets from 1 on stand here again"]


class BusyDisk(DictDisk):
    """At each read somebody else gets a turn first."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = lambda: None

    def read(self, fd, size, position):
        turn, self.turn = self.turn, lambda: None
        turn()
        self.turn = turn
        return super().read(fd, size, position)


@pytest.mark.parametrize("size", [10, 300])
def test_a_log_that_is_written_and_rotated_meanwhile_is_not_called_damaged(size):
    disk = BusyDisk()
    log = open_log(disk, SMALL)
    put(log, [published(base, b"x" * size) for base in range(3)])
    count, turns = 3, 0

    def turn():
        nonlocal count, turns
        if turns:
            put(log, [published(count, b"x" * size)])
            count, turns = count + 1, turns - 1

    disk.turn = turn
    for more in range(40):
        turns = more % 12
        report = verify(DIRECTORY, disk=disk)
        assert report.damage == []
        assert report.frames >= 3
    assert count > 100


def test_a_frame_that_is_half_written_while_it_is_read_is_not_called_damaged(monkeypatch):
    """Its first half is read, then the rest and later frames that vouch for it come."""
    monkeypatch.setattr("wal.segment.WINDOW_BYTES", 150)
    disk = BusyDisk()
    log = open_log(disk)
    path = f"{DIRECTORY}/00000000000000000001-0.wal"
    put(log, [published(0)])
    at = log._position
    put(log, [published(1)])
    whole = bytes(disk.files[path])
    watermark = bytes(disk.files[f"{DIRECTORY}/watermark"])
    put(log, [published(2), published(3)])
    later = bytes(disk.files[path])
    disk.files[path][at + 50 :] = bytes(len(later) - at - 50)
    reads = [0]

    def turn():
        reads[0] += 1
        if reads[0] == 6:
            disk.files[path][:] = later

    disk.files[f"{DIRECTORY}/watermark"][:] = watermark
    disk.turn = turn
    assert whole != later
    report = verify(DIRECTORY, disk=disk)
    assert report.damage == []


def test_one_segment_is_verified_alone(good):
    disk = good.disk()
    log = open_log(disk)
    for entry in log.manifest.segments[:-1]:
        assert verify_segment(DIRECTORY, log.manifest, entry, disk=disk) == []
    frame = good.frames[0]
    disk.files[frame.path][frame.start] ^= 1
    (damage,) = verify_segment(DIRECTORY, log.manifest, log.manifest.segments[0], disk=disk)
    assert (damage.position, damage.end) == (frame.start, frame.end)


def test_what_a_rewrite_left_out_is_not_called_missing():
    """Whole frames at the beginning, in the middle and at the end of a segment, each side of it live."""
    disk = DictDisk()
    log = open_log(disk)
    for offsets in (range(1), range(1, 7), range(7, 8)):
        put(log, [published(offset) for offset in offsets])
        log.rotate()
    entry = log.manifest.segments[1]
    frames = [item for at, item in walk_chain(disk, DIRECTORY, log.manifest) if at is entry]
    kept = [Kept(frame.type, frame.sequence, frame.payload) for frame in (frames[1], frames[4])]
    made = rewrite(
        disk,
        DIRECTORY,
        log.manifest,
        entry,
        kept,
        salt=b"rewrites",
        take=disk.create,
        last_sequence=entry.last_sequence,
    )
    log.run_between_groups(lambda writer: writer.replace_segments([entry.name(".wal")], [made]))
    log.pump()
    report = verify(DIRECTORY, disk=disk)
    assert report.damage == []
    assert report.messages == 4


def test_what_left_the_chain_while_it_was_read_is_not_called_missing():
    """A cleaner retires a segment, and its grace is over, between the look at the manifest and at the file."""
    disk = DictDisk()
    log = open_log(disk)
    for offset in range(4):
        put(log, [published(offset)])
        log.rotate()
    manifest = log.manifest
    left = manifest.segments[1]

    class Leaving(DictDisk):
        def open_read_only(self, path):
            if path == f"{DIRECTORY}/{left.name('.wal')}" and path in self.files:
                del self.files[path]
                rest = [entry for entry in manifest.segments if entry != left]
                swap_manifest(self, DIRECTORY, manifest.with_segments(rest))
            return super().open_read_only(path)

    report = verify(DIRECTORY, disk=Leaving(disk.files))
    assert report.damage == []
    assert report.segments == 3
