"""The index: look-ups as a search over all frames would do them, and bytes that are believed only where they fit."""

import errno

import pytest
from dictdisk import DictDisk
from hypothesis import given
from hypothesis import strategies as st
from walsample import DIRECTORY, one_of_each, open_log, published, put

from wal import index as module
from wal.errors import CorruptSegment, WalError
from wal.frame import Frame
from wal.index import SegmentIndex, Summary, build_index, summary_bytes, unpack_summary
from wal.record import DAMAGED, PUBLISHED, Damaged, atomic, encode
from wal.segment import SEGMENT_HEADER_BYTES, Gap

SALT = b"saltsalt"
SIZE = 123_456


@st.composite
def entries(draw):
    """Frames as a writer makes them: (position, sequence, placements), offsets rising in each partition."""
    position, sequence, out = SEGMENT_HEADER_BYTES, 0, []
    ends: dict[tuple[int, int], int] = {}
    for _ in range(draw(st.integers(0, 25))):
        sequence += draw(st.integers(1, 3))
        places = []
        for _ in range(draw(st.integers(0, 2))):
            key = draw(st.tuples(st.integers(1, 3), st.integers(0, 1)))
            base = ends.get(key, draw(st.integers(0, 5))) + draw(st.sampled_from([0, 0, 0, 4]))
            ends[key] = base + draw(st.integers(1, 5))
            places.append((*key, base, ends[key]))
        out.append((position, sequence, places))
        position += draw(st.integers(36, 400))
    return out


def index_of(frames, gaps=()):
    index = SegmentIndex()
    for position, sequence, places in frames:
        index.add(position, sequence, places)
    index.gaps.extend(gaps)
    return index


gaps = st.lists(
    st.builds(Gap, *[st.integers(0, 2**40)] * 4, st.just("damaged bytes")), max_size=3
)  # the reason is not kept


def contents(index):
    places = {key: (list(p.bases), list(p.ends), list(p.positions)) for key, p in index.partitions.items()}
    return places, index.gaps, list(index._mark_sequences), list(index._mark_positions)


@given(entries(), st.integers(0, 60))
def test_a_look_up_finds_what_a_search_over_all_frames_finds(frames, offset):
    index = index_of(frames)
    for channel in range(1, 4):
        for partition in range(2):
            here = [
                (place[2], place[3], position)
                for position, _, places in frames
                for place in places
                if place[:2] == (channel, partition)
            ]
            brute = next((entry for entry in here if entry[1] > offset), None)
            found = index.partitions.get((channel, partition))
            at = found.first_after(offset) if found else 0
            if found is None or at == len(found.ends):
                assert brute is None
            else:
                assert (found.bases[at], found.ends[at], found.positions[at]) == brute


@given(entries(), st.integers(0, 80), st.integers(1, 2000))
def test_a_mark_is_at_or_before_the_sequence_and_not_far(frames, sequence, every):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MARK_EVERY_BYTES", every)
        index = index_of(frames)
        marked, position = index.mark_before(sequence)
    before = [(s, p) for p, s, _ in frames if s <= sequence]
    if not before:
        assert (marked, position) == (0, SEGMENT_HEADER_BYTES)
    else:
        assert (marked, position) in before
        assert before[-1][1] - position < every


@given(entries(), gaps)
def test_an_index_comes_back_as_it_was_packed(frames, holes):
    index = index_of(frames, holes)
    data = index.pack(SALT, SIZE)
    again = SegmentIndex.unpack(data, SALT, SIZE)
    assert again is not None
    assert contents(again) == contents(index)
    size = summary_bytes(data[:100])
    ends = {key: places.ends[-1] for key, places in index.partitions.items()}
    summary = Summary(ends, [place for gap in holes for place in (gap.position, gap.end)])
    assert unpack_summary(data[:size], SALT, SIZE) == summary == index.summary()


@given(entries(), gaps)
def test_an_index_of_another_file_is_not_believed(frames, holes):
    data = index_of(frames, holes).pack(SALT, SIZE)
    for salt, size in ((b"other---", SIZE), (SALT, SIZE + 1)):
        assert SegmentIndex.unpack(data, salt, size) is None
        assert unpack_summary(data[: summary_bytes(data)], salt, size) is None


@given(entries(), gaps, st.data())
def test_a_damaged_index_is_not_believed(frames, holes, data):
    packed = index_of(frames, holes).pack(SALT, SIZE)
    for size in range(len(packed)):
        assert SegmentIndex.unpack(packed[:size], SALT, SIZE) is None
    bit = data.draw(st.integers(0, 8 * len(packed) - 1))
    broken = bytearray(packed)
    broken[bit // 8] ^= 1 << bit % 8
    assert SegmentIndex.unpack(bytes(broken), SALT, SIZE) is None
    assert SegmentIndex.unpack(packed + b"more", SALT, SIZE) is None


def test_every_record_that_places_messages_is_found_again():
    records = [*one_of_each(), published(11)]
    index = build_index(Frame(64 + 1000 * at, *encoded(record)) for at, record in enumerate(records))
    assert list(index.partitions) == [(1, 0), (2, 0)]
    places = index.partitions[1, 0]
    assert list(zip(places.bases, places.ends, strict=True)) == [(0, 2), (2, 3), (3, 10), (10, 11), (11, 12)]
    assert list(index.partitions[2, 0].ends) == [1, 2]


def encoded(record):
    type_, pieces, *_ = encode(record)
    return type_, 1, 0, 0, b"".join(pieces)


def test_what_a_walk_found_missing_is_kept_in_the_index():
    gap = Gap(100, 200, 3, 4, "damaged bytes")
    lost = Damaged(first_sequence=7, last_sequence=8, reason="damaged bytes")
    index = build_index([gap, Frame(300, DAMAGED, 8, 0, 0, lost.SerializeToString())])
    assert index.gaps == [gap, Gap(300, 300, 7, 8, "damaged bytes")]


@pytest.mark.parametrize("type_", [DAMAGED, PUBLISHED, encode(atomic([]))[0]])
def test_a_payload_that_is_not_what_its_type_says_places_nothing(type_):
    index = build_index([Frame(64, type_, 1, 0, 0, b"\xff\xff")])
    assert index.partitions == {}


# ---------------------------------------------------------------- in a log


@pytest.fixture
def disk():
    """Two sealed segments with their sidecars, and a live one."""
    disk = DictDisk()
    log = open_log(disk)
    put(log, [published(base, b"x" * 200) for base in range(8)])
    log.close()
    assert len([path for path in disk.files if path.endswith(".idx")]) >= 2
    return disk


def offsets_read(disk):
    log = open_log(disk)
    found = log._reader.read(1, 0, 0, 1 << 20, log.synced)
    log.close()
    return [record.base_offset for record in found]


@pytest.mark.parametrize("damage", ["missing", "empty", "foreign", "torn", "counts"])
def test_a_sidecar_that_does_not_fit_is_rebuilt_from_the_log(disk, damage):
    path, other = sorted(path for path in disk.files if path.endswith(".idx"))[:2]
    good = bytes(disk.files[path])
    if damage == "missing":
        del disk.files[path]
    else:
        bad = {"empty": b"", "foreign": bytes(disk.files[other]), "torn": good[:-3]}
        disk.files[path][:] = bad.get(damage, good[:24] + b"\xff" * 12 + good[36:])  # "counts": four billion of each
    assert offsets_read(disk) == list(range(8))
    assert disk.files[path] == good


def test_an_index_of_an_older_generation_is_not_believed(disk):
    """The planted bug: believed by its name alone, the sidecar of a replaced segment leads to the wrong bytes."""
    path, other = sorted(path for path in disk.files if path.endswith(".idx"))[:2]
    disk.files[path] = bytearray(disk.files[other])
    assert offsets_read(disk) == list(range(8))
    disk.files[path] = bytearray(disk.files[other])

    def careless(data):
        return SegmentIndex.unpack(data, bytes(data[8:16]), int.from_bytes(data[16:24], "little"))

    log = open_log(disk)
    log._reader._load = lambda entry: careless(bytes(disk.files[f"{DIRECTORY}/{entry.name('.idx')}"]))
    log._reader._renew = lambda *_: False
    try:
        found = [record.base_offset for record in log._reader.read(1, 0, 0, 1 << 20, log.synced)]
    except WalError:
        found = []
    assert found != list(range(8)), "the careless variant reads something else"


def by_segment(log):
    """The sealed segments' paths, and the offsets that each holds."""
    reader = log._reader
    sealed = [entry for entry in log._writer.manifest.segments if entry.is_sealed]
    paths = [f"{DIRECTORY}/{entry.name('.wal')}" for entry in sealed]
    return list(zip(paths, [list(reader.index_of(entry).partitions[1, 0].bases) for entry in sealed], strict=True))


def test_damage_that_comes_to_light_with_a_new_index_hides_nothing_silently(disk):
    """Also once the segment is gone, and its index knows of nothing at the offset or after it."""
    log = open_log(disk)
    reader = log._reader
    assert len(reader.read(1, 0, 0, 1 << 20, log.synced)) == 8
    (path, bases), (_, after) = by_segment(log)[:2]
    lost = bases[-1]
    last = log._reader.index_of(log._writer.manifest.segments[0]).partitions[1, 0].positions[-1]
    disk.files[path][last + 100] ^= 1
    disk.files[path.replace(".wal", ".idx")][-5] ^= 1
    reader._indexes.clear()
    assert [record.base_offset for record in reader.read(1, 0, 0, 1 << 20, log.synced)] == bases[:-1]
    for is_missing in (False, True):
        if is_missing:
            del disk.files[path]
        with pytest.raises(CorruptSegment) as told:
            reader.read(1, 0, lost, 1 << 20, log.synced)
        assert told.value.offsets == (lost, after[0])
        assert reader.read(1, 0, after[0], 1 << 20, log.synced)[0].base_offset == after[0]
    log.close()


@pytest.mark.parametrize("suffix", [".wal", ".idx"])
def test_too_many_open_files_are_no_damage(disk, suffix, monkeypatch):
    def refuse(path):
        if path.endswith(suffix):
            raise OSError(errno.EMFILE, "too many open files", path)
        return honest(path)

    for path in [path for path in disk.files if path.endswith(".idx") and suffix == ".wal"]:
        del disk.files[path]
    log = open_log(disk)
    log._reader._indexes.clear()
    before = {path: bytes(data) for path, data in disk.files.items()}
    honest = disk.open_read_only
    monkeypatch.setattr(disk, "open_read_only", refuse)
    with pytest.raises(OSError, match="too many"):
        log._reader.read(1, 0, 0, 1 << 20, log.synced)
    assert disk.files == before
    monkeypatch.undo()
    assert [record.base_offset for record in log._reader.read(1, 0, 0, 1 << 20, log.synced)] == list(range(8))
    log.close()
