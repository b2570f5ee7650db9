"""Segments: names, headers, and the walk over frames that tells every gap, at a cost that no bytes can drive up."""

import struct
from uuid import UUID

import pytest
from dictdisk import DictDisk
from hypothesis import given
from hypothesis import strategies as st

from wal import segment as module
from wal.errors import CorruptSegment, UnsupportedVersion
from wal.frame import HEADER_BYTES, Frame, Salt, crc32c, encode, extend_crc32c
from wal.record import SEAL, Seal
from wal.segment import (
    FORMAT_VERSION,
    MAGIC,
    SEGMENT_HEADER_BYTES,
    Gap,
    SealedWriter,
    SegmentFile,
    SegmentHeader,
    roll,
    segment_name,
)

SALT = b"saltsalt"
headers = st.builds(
    SegmentHeader, st.uuids(), st.integers(1, 2**64 - 1), st.integers(0, 2**32 - 1),
    st.binary(min_size=8, max_size=8), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1),
)  # fmt: skip


def frame(sequence, payload=b"", type_=20, durable=0):
    header, _ = encode(Salt.of(SALT), type_, sequence, durable, [payload])
    return header + payload


def walked(data, expected=1, *, is_dense=True, end=None):
    """The walk over a file with these bytes after its header: frames as their sequence, gaps as they are."""
    disk = DictDisk({"/s": bytes(SEGMENT_HEADER_BYTES) + data})
    with SegmentFile(disk, "/s", SALT) as segment:
        items = list(segment.walk(expected, is_dense=is_dense, end=end))
    return [item.sequence if isinstance(item, Frame) else item for item in items], disk


def gaps_of(items):
    return [
        (g.position - SEGMENT_HEADER_BYTES, g.end - SEGMENT_HEADER_BYTES, g.first_sequence, g.last_sequence)
        for g in items
        if isinstance(g, Gap)
    ]


def frames_of(items):
    return [item for item in items if not isinstance(item, Gap)]


@given(headers)
def test_a_header_comes_back_and_every_flipped_bit_of_it_is_noticed(header):
    data = header.pack()
    assert len(data) == SEGMENT_HEADER_BYTES
    assert SegmentHeader.unpack(data, "x") == header
    for bit in range(8 * len(data)):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptSegment, match="x, byte 0"):
            SegmentHeader.unpack(bytes(broken), "x")


def test_a_header_from_a_future_version_is_refused_as_such():
    fields = struct.pack("<8sHHI16sQ8sQI", MAGIC, FORMAT_VERSION + 1, 0, 0, bytes(16), 1, SALT, 0, 0)
    with pytest.raises(UnsupportedVersion, match="format 2"):
        SegmentHeader.unpack(fields + struct.pack("<I", crc32c(fields)), "x")


@given(st.integers(1, 2**64 - 1), st.integers(1, 2**64 - 1), st.integers(0, 9))
def test_names_sort_as_sequences_do(a, b, generation):
    assert (segment_name(a, generation) < segment_name(b, generation)) == (a < b)


@given(st.lists(st.binary(max_size=60), max_size=12), st.integers(40, 200))
def test_a_walk_over_intact_frames_is_the_frames(payloads, window_bytes):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WINDOW_BYTES", window_bytes)
        data = b"".join(frame(1 + at, payload) for at, payload in enumerate(payloads))
        items, _ = walked(data + bytes(100))
    assert items == [1 + at for at in range(len(payloads))]


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=10), st.data(), st.integers(40, 300), st.booleans())
def test_damage_costs_the_frames_it_touches_and_no_other(payloads, data, window_bytes, is_dense):
    step = 1 if is_dense else 3
    frames = [frame(1 + step * at, payload) for at, payload in enumerate(payloads)]
    whole = b"".join(frames)
    start = data.draw(st.integers(0, len(whole) - 1))
    end = data.draw(st.integers(start + 1, min(len(whole), start + 100)))
    noise = data.draw(st.binary(min_size=end - start, max_size=end - start))
    broken = whole[:start] + noise + whole[end:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WINDOW_BYTES", window_bytes)
        items, _ = walked(broken + bytes(20), is_dense=is_dense)
    positions = [sum(map(len, frames[:at])) for at in range(len(frames))]
    hit = [at for at, p in enumerate(positions) if broken[p : p + len(frames[at])] != frames[at]]
    assert frames_of(items) == [1 + step * at for at in range(len(frames)) if at not in hit]
    if hit and len(hit) < len(frames) - hit[0]:  # something follows: the gap is exactly what was hit
        first, last = hit[0], hit[-1]
        low = 1 + step * (first - 1) + 1 if first else 1
        assert gaps_of(items) == [(positions[first], positions[last + 1], low, step * (last + 1))]


def test_a_deleted_frame_is_a_gap_without_bytes():
    items, _ = walked(frame(1) + frame(2) + frame(4))
    assert frames_of(items) == [1, 2, 4]
    assert gaps_of(items) == [(2 * HEADER_BYTES, 2 * HEADER_BYTES, 3, 3)]


def test_a_frame_written_twice_is_a_gap_without_sequences():
    items, _ = walked(frame(1) + frame(2) + frame(2) + frame(3))
    assert frames_of(items) == [1, 2, 3]
    assert gaps_of(items) == [(2 * HEADER_BYTES, 3 * HEADER_BYTES, 3, 2)]


def test_two_frames_in_the_wrong_order_are_both_lost_and_told():
    items, _ = walked(frame(1) + frame(3) + frame(2) + frame(4) + frame(5))
    assert frames_of(items) == [1, 4, 5]
    assert gaps_of(items) == [(HEADER_BYTES, 3 * HEADER_BYTES, 2, 3)]


def test_a_frame_that_was_moved_in_a_rewritten_segment_is_told():
    items, _ = walked(frame(1) + frame(5) + frame(3) + frame(7) + frame(9), is_dense=False)
    assert frames_of(items) == [1, 3, 7, 9]
    assert [(first, last) for _, _, first, last in gaps_of(items)] == [(2, 2), (5, 5)]


def test_a_later_frame_copied_forward_in_a_rewritten_segment_costs_nothing_else():
    items, _ = walked(frame(1) + frame(7) + frame(3) + frame(5) + frame(7) + frame(9), is_dense=False)
    assert frames_of(items) == [1, 3, 5, 7, 9]
    assert gaps_of(items) == [(HEADER_BYTES, 2 * HEADER_BYTES, 2, 2)]


def test_gaps_in_the_sequence_of_a_rewritten_segment_are_no_damage():
    assert walked(frame(2) + frame(7) + frame(30), is_dense=False)[0] == [2, 7, 30]


def test_a_frame_larger_than_the_window_is_read_whole(monkeypatch):
    monkeypatch.setattr(module, "WINDOW_BYTES", 100)
    items, _ = walked(frame(1) + frame(2, b"x" * 1000) + frame(3) + frame(4, b"y" * 90) + frame(5))
    assert items == [1, 2, 3, 4, 5]


def test_a_walk_ends_before_a_cut():
    data = frame(1) + frame(2) + frame(3)
    assert walked(data, end=SEGMENT_HEADER_BYTES + 2 * HEADER_BYTES)[0] == [1, 2]


def test_a_file_that_shrinks_under_a_walk_ends_it(monkeypatch):
    monkeypatch.setattr(module, "WINDOW_BYTES", 50)
    disk = DictDisk({"/s": bytes(SEGMENT_HEADER_BYTES) + b"".join(frame(n) for n in range(1, 6)) + bytes(5000)})
    with SegmentFile(disk, "/s", SALT) as segment:
        walk = segment.walk(1)
        assert next(walk).sequence == 1
        del disk.files["/s"][SEGMENT_HEADER_BYTES + 5 * HEADER_BYTES :]
        assert [item.sequence for item in walk] == [2, 3, 4, 5]


def test_one_frame_is_read_by_its_position():
    disk = DictDisk({"/s": bytes(SEGMENT_HEADER_BYTES) + frame(1) + frame(2, b"two")[:-1] + b"!"})
    with SegmentFile(disk, "/s", SALT) as segment:
        assert segment.frame_at(SEGMENT_HEADER_BYTES).sequence == 1
        for position in (SEGMENT_HEADER_BYTES + 1, SEGMENT_HEADER_BYTES + HEADER_BYTES, 10_000):
            with pytest.raises(CorruptSegment) as raised:
                segment.frame_at(position)
            assert (raised.value.path, raised.value.position) == ("/s", position)


@given(st.lists(st.tuples(st.integers(1, 3), st.binary(max_size=30)), max_size=8))
def test_a_sealed_segment_ends_with_a_seal_that_vouches_for_all_of_it(steps):
    disk = DictDisk()
    header = SegmentHeader(UUID(int=7), 10, 1, SALT, 9, 99)
    writer = SealedWriter(disk, disk.create("/s"), header)
    sequence, rolling = 9, 0
    for step, payload in steps:
        sequence += step
        writer.add(20, sequence, [payload])
        rolling = roll(rolling, [writer.last_crc])
    size = writer.seal()
    assert size == len(disk.files["/s"])
    with SegmentFile(disk, "/s", SALT) as segment:
        assert segment.header() == header
        *frames, seal = segment.walk(10, is_dense=False)
    assert [f.payload for f in frames] == [payload for _, payload in steps]
    assert all(f.durable == f.sequence - 1 for f in frames)
    assert (seal.type, seal.sequence, seal.crc) == (SEAL, sequence + 1, writer.last_crc)
    assert Seal.FromString(seal.payload) == Seal(frames=len(steps), last_sequence=sequence, rolling_crc=rolling)


# ---------------------------------------------------------------- cost


def fake_head(sequence, length, durable=0):
    """A header with a good check of its own, whose payload was never there."""
    salt = Salt.of(SALT)
    checked = struct.pack("<IIQQ", length, 20, sequence, durable)
    return struct.pack("<III", 0xBAD, salt.sync, extend_crc32c(salt.crc, checked)) + checked


@pytest.mark.parametrize("count", [200_000, pytest.param(2_000_000, marks=pytest.mark.torture)])
def test_very_many_tiny_frames_are_read_once(count):
    disk = DictDisk({"/s": bytes(SEGMENT_HEADER_BYTES) + b"".join(frame(n) for n in range(1, count + 1))})
    with SegmentFile(disk, "/s", SALT) as segment:
        assert sum(item.type == 20 for item in segment.walk(1)) == count
    assert disk.bytes_read <= 1.01 * segment.size


HOSTILE = {
    "headers that promise all of the rest": lambda n: b"".join(fake_head(1, 36 * (n - at - 1)) for at in range(n)),
    "headers that promise nothing": lambda n: b"".join(fake_head(1, 0) for _ in range(n)),
    "headers out of line": lambda n: b"".join(fake_head(2 + at % 7, 0) for at in range(n)),
    "headers of the past": lambda n: frame(1) + b"".join(fake_head(1, 0) for _ in range(n)),
    "a good frame after each bad one": lambda n: b"".join(
        fake_head(2 * at + 1, 72 * (n - at - 1)) + frame(2 * at + 2) for at in range(n)
    ),
    "every second frame damaged": lambda n: b"".join(
        frame(2 * at + 1) + frame(2 * at + 2)[:-1] + b"!" for at in range(n)
    ),
    "nothing but markers": lambda n: SALT[:4] * 9 * n,
    "zeros, then one byte": lambda n: bytes(36 * n) + b"!",
    "frames and zeros in turn": lambda n: b"".join(frame(at + 1) + bytes(at % 50) for at in range(n)),
}


@pytest.mark.parametrize("window_bytes", [300, 1 << 20])
@pytest.mark.parametrize("is_dense", [True, False])
@pytest.mark.parametrize("case", HOSTILE)
def test_no_bytes_make_a_walk_read_more_than_a_multiple_of_the_file(case, is_dense, window_bytes, monkeypatch):
    monkeypatch.setattr(module, "WINDOW_BYTES", window_bytes)
    data = HOSTILE[case](2000)
    _, disk = walked(data, is_dense=is_dense)
    assert disk.bytes_read <= 24 * len(data) + 4 * window_bytes
