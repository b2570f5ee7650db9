"""Install: rewritten segments replace others only if every difference is approved, and then all at once."""

import asyncio
from uuid import UUID

import pytest
from damage import Sample, sample
from waiting import Marks
from walsample import DIRECTORY, content_of, open_log, published

from wal import FileLog, Options
from wal.errors import InstallRefused, LogFailed
from wal.frame import Frame, crc32c
from wal.install import STAGING, Proposal
from wal.record import Acked, Published, Unknown, encode
from wal.segment import SEGMENT_HEADER_BYTES, SealedWriter, SegmentFile, SegmentHeader
from wal.verify import verify

FIRST = "00000000000000000001-0.wal"


def approve_all(sequence, before, after):
    return True


def approve_none(sequence, before, after):
    return False


class Rig:
    """A log, and a staging folder to put rewritten segments into."""

    def __init__(self) -> None:
        self.good: Sample = sample(is_clean=True)
        self.disk = self.good.disk()
        self.log = open_log(self.disk)

    def frames(self, name: str) -> list[tuple[int, int, bytes]]:
        entry = next(e for e in self.log.manifest.segments if e.name(".wal") == name)
        with SegmentFile(self.disk, f"{DIRECTORY}/{name}", entry.salt_bytes) as segment:
            items = list(segment.walk(entry.first_sequence, is_dense=False))
        return [(f.type, f.sequence, f.payload) for f in items[:-1] if isinstance(f, Frame)]

    def stage(self, frames, name="new", *, first=1, generation=1, uuid=None) -> str:
        header = SegmentHeader(uuid or self.log.uuid, first, generation, b"freshnew")
        writer = SealedWriter(self.disk, self.disk.create(f"{DIRECTORY}/{STAGING}/{name}"), header)
        for type_, sequence, payload in frames:
            writer.add(type_, sequence, [payload])
        writer.seal()
        self.disk.close(writer.fd)
        return name

    def install(self, *outputs, inputs=(FIRST,), approve=approve_none):
        return self.log.install_now(Proposal(tuple(inputs), tuple(outputs)), approve)

    def records(self):
        return content_of(self.log.replay())

    def refused(self, *outputs, match, **how) -> None:
        """The log is as it was, to the byte."""
        names = [entry.name(".wal") for entry in self.log.manifest.segments]
        before, manifest = self.disk.copy().files, self.log.manifest
        with pytest.raises(InstallRefused, match=match):
            self.install(*outputs, **how)
        assert self.log.manifest == manifest
        assert self.records() == self.good.records
        for name in names:
            assert self.disk.files[f"{DIRECTORY}/{name}"] == before[f"{DIRECTORY}/{name}"]


@pytest.fixture
def rig():
    return Rig()


def test_the_same_frames_are_installed_without_asking(rig):
    assert rig.install(rig.stage(rig.frames(FIRST))) == ["00000000000000000001-1.wal"]
    assert rig.records() == rig.good.records
    assert [retired.name for retired in rig.log.manifest.retired][-1] == FIRST
    assert f"{DIRECTORY}/{FIRST}" in rig.disk.files, "readers may still have it open"
    rig.log.close()
    assert verify(DIRECTORY, disk=rig.disk).is_intact
    log = open_log(rig.disk)
    assert content_of(log.replay()) == rig.good.records


@pytest.mark.parametrize("dropped", [0, 1, 2])
def test_nothing_live_is_dropped(rig, dropped):
    frames = rig.frames(FIRST)
    asked = []

    def approve(sequence, before, after):
        asked.append((sequence, type(before).__name__, after))
        return False

    rig.refused(rig.stage(frames[:dropped] + frames[dropped + 1 :]), approve=approve, match="dropped, and is live")
    assert asked == [(dropped + 1, ["ChannelCreated", "Published", "Published"][dropped], None)]


def test_nothing_live_is_changed(rig):
    frames = rig.frames(FIRST)
    type_, sequence, _ = frames[2]
    changed = published(1, b"two", offset_deltas=[1]).SerializeToString()
    name = rig.stage([*frames[:2], (type_, sequence, changed)])
    rig.refused(name, match="changed, and is live")


def test_a_record_never_becomes_another_kind_of_record(rig):
    frames = rig.frames(FIRST)
    other = encode(Acked(channel_id=1))
    name = rig.stage([*frames[:2], (other[0], 3, other[1][0])])
    rig.refused(name, approve=approve_all, match="changed")


def test_what_is_approved_is_dropped_and_changed_in_one_step(rig):
    frames = rig.frames(FIRST)
    changed = published(1, b"two", offset_deltas=[1])
    asked = {}

    def approve(sequence, before, after):
        asked[sequence] = (before, after)
        return True

    rig.install(rig.stage([frames[0], (frames[2][0], 3, changed.SerializeToString())]), approve=approve)
    assert list(asked) == [2, 3]
    assert isinstance(asked[2][0], Published)
    assert asked[3][1] == changed
    records = rig.records()
    assert set(rig.good.records) - set(records) == {2}
    found = rig.log._reader.read(1, 0, 0, 1 << 20, rig.log.synced)
    assert [record.base_offset for record in found][:2] == [1, 3]


def test_segments_are_dropped_whole_and_merged_if_all_is_approved(rig):
    names = [entry.name(".wal") for entry in rig.log.manifest.segments]
    rig.install(inputs=names[:1], approve=approve_all)
    assert [entry.name(".wal") for entry in rig.log.manifest.segments] == names[1:]
    both = rig.frames(names[1]) + rig.frames(names[2])
    rig.install(rig.stage(both, first=4, generation=2), inputs=names[1:3])
    assert len(rig.log.segments()) == 2
    gone = rig.good.frames_at(f"{DIRECTORY}/{FIRST}", 0, 1 << 40)
    assert set(rig.good.records) - set(rig.records()) == gone


def test_what_the_inputs_do_not_hold_is_refused(rig):
    frames = rig.frames(FIRST)
    extra = encode(published(9))
    rig.refused(rig.stage([*frames, (extra[0], 4, extra[1][0])]), approve=approve_all, match="sequence 4")
    unknown = encode(Unknown(4000, b"?"))
    again = rig.stage([*frames[:1], (unknown[0], 2, unknown[1][0]), *frames[1:]], "again")
    rig.refused(again, approve=approve_all, match=r"damaged|again|changed|seal|byte")


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"first": 2}, "range"),
        ({"generation": 0}, "exists"),
        ({"uuid": UUID(int=1)}, "another log"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(rig, how, match):
    rig.refused(rig.stage(rig.frames(FIRST)[how.get("first", 1) - 1 :], **how), approve=approve_all, match=match)


def test_a_file_of_a_later_format_is_refused_without_telling_where_it_is(rig):
    name = rig.stage(rig.frames(FIRST))
    data = rig.disk.files[f"{DIRECTORY}/{STAGING}/{name}"]
    data[8] += 1  # the version, and then the checksum of the header
    end = SEGMENT_HEADER_BYTES - 4
    data[end:SEGMENT_HEADER_BYTES] = crc32c(bytes(data[:end])).to_bytes(4, "little")
    with pytest.raises(InstallRefused, match=r"^new can't be read: it has format 2") as refused:
        rig.install(name, approve=approve_all)
    assert DIRECTORY not in str(refused.value)


def test_every_damaged_byte_of_an_output_is_refused_or_harmless():
    frames = Rig().frames(FIRST)
    size = None
    for at in range(10_000):
        rig = Rig()
        name = rig.stage(frames)
        data = rig.disk.files[f"{DIRECTORY}/{STAGING}/{name}"]
        size = len(data)
        if at >= size:
            break
        data[at] ^= 0xFF
        with pytest.raises(InstallRefused):
            rig.install(name, approve=approve_all)
        assert rig.records() == rig.good.records
    assert size is not None


def test_every_truncation_of_an_output_is_refused(rig):
    name = rig.stage(rig.frames(FIRST))
    path = f"{DIRECTORY}/{STAGING}/{name}"
    whole = bytes(rig.disk.files[path])
    for size in range(len(whole)):
        rig.disk.files[path][:] = whole[:size]
        with pytest.raises(InstallRefused):
            rig.install(name, approve=approve_all)
    assert rig.records() == rig.good.records


def test_inputs_must_be_sealed_neighbours_of_the_chain(rig):
    names = [entry.name(".wal") for entry in rig.log.manifest.segments]
    for inputs in ([], ["nobody.wal"], [names[0], names[2]], [names[1], names[0]], [names[-1]]):
        rig.refused(inputs=inputs, approve=approve_all, match=r"not|written")


def test_a_damaged_input_is_not_replaced(rig):
    """What can't be read can't be compared; repair comes first."""
    frames = rig.frames(FIRST)
    name = rig.stage(frames[:2])
    rig.disk.files[f"{DIRECTORY}/{FIRST}"][-60] ^= 1
    with pytest.raises(InstallRefused):
        rig.install(name, approve=approve_all)


def test_a_running_log_installs_between_two_groups(tmp_path):
    log = FileLog.open(tmp_path / "log", Options(segment_bytes=4096, snapshot_bytes=4096, soft_free_bytes=0))
    marks = Marks()
    log.start(marks.on_marks, marks.on_failure)
    for base in range(100):
        log.append([published(base, b"x" * 100)])
    marks.wait_synced(100)
    first = log.segments()[0].name
    assert asyncio.run(log.install(Proposal((first,), ()), approve_all)) == []
    assert first not in [segment.name for segment in log.segments()]
    log.append([published(100)])
    marks.wait_synced(101)
    log.close()


def test_of_two_installs_of_one_segment_the_second_finds_it_gone(tmp_path):
    log = FileLog.open(tmp_path / "log", Options(segment_bytes=4096, snapshot_bytes=4096, soft_free_bytes=0))
    marks = Marks()
    log.start(marks.on_marks, marks.on_failure)
    for base in range(100):
        log.append([published(base, b"x" * 100)])
    marks.wait_synced(100)
    proposal = Proposal((log.segments()[0].name,), ())

    async def both():
        return await asyncio.gather(*(log.install(proposal, approve_all) for _ in range(2)), return_exceptions=True)

    first, second = asyncio.run(both())
    assert first == []
    assert isinstance(second, InstallRefused)
    log.close()


def test_an_install_on_a_log_that_fails_meanwhile_ends(tmp_path, monkeypatch):
    log = FileLog.open(tmp_path / "log", Options(segment_bytes=4096, snapshot_bytes=4096, soft_free_bytes=0))
    marks = Marks()
    log.start(marks.on_marks, marks.on_failure)
    for base in range(100):
        log.append([published(base, b"x" * 100)])
    marks.wait_synced(100)
    monkeypatch.setattr("wal.upkeep.place", lambda *args: log._drive._fail(OSError("the disk is gone")))

    async def install():
        async with asyncio.timeout(30):
            await log.install(Proposal((log.segments()[0].name,), ()), approve_all)

    with pytest.raises(LogFailed):
        asyncio.run(install())
    log.close()
