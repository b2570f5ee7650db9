"""Frames: every flipped bit is noticed, a scan finds what was written, a search finds the next frame."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.frame import (
    HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    Salt,
    crc32c,
    encode,
    extend_crc32c,
    find_head,
    first_nonzero,
    last_nonzero,
    read_head,
    scan,
)

SALT = Salt.of(b"saltsalt")
sequences = st.integers(1, 2**64 - 1)
frames = st.tuples(st.integers(1, 2**32 - 1), sequences, st.integers(0, 2**64 - 1), st.binary(max_size=80))


def packed(*fields: object, salt: Salt = SALT) -> bytes:
    type_, sequence, durable, payload = fields
    header, _ = encode(salt, type_, sequence, durable, [payload])  # type: ignore[arg-type]
    return header + payload  # type: ignore[operator]


@given(frames, st.integers(0, 80), st.binary(min_size=8, max_size=8))
def test_a_frame_comes_back_as_it_was_written(fields, cut, raw_salt):
    type_, sequence, durable, payload = fields
    salt = Salt.of(raw_salt)
    header, crc = encode(salt, type_, sequence, durable, [payload[:cut], payload[cut:]])
    assert len(header) == HEADER_BYTES
    (frame,) = scan(header + payload, salt, 0, base=1000)
    assert frame == (1000, type_, sequence, durable, crc, payload)
    head = read_head(header + payload, salt, 0, base=1000)
    assert head == (1000, 1000 + HEADER_BYTES + len(payload), type_, sequence, durable)


@given(st.lists(frames, max_size=8), st.binary(max_size=20))
def test_a_scan_is_the_frames_one_after_another(many, before):
    data = b"".join(packed(*fields) for fields in many)
    found = list(scan(before + data + bytes(50), SALT, len(before)))
    assert [(f.type, f.sequence, f.durable, f.payload) for f in found] == many
    position = len(before)
    for frame in found:
        assert frame.position == position
        position += HEADER_BYTES + len(frame.payload)


@given(frames)
def test_every_flipped_bit_of_a_frame_is_noticed(fields):
    data = packed(*fields)
    for bit in range(8 * len(data)):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        assert list(scan(bytes(broken) + data, SALT, 0)) == []


@given(frames, st.data())
def test_every_truncation_and_every_run_of_zeros_is_noticed(fields, data):
    frame = packed(*fields)
    for size in range(len(frame)):
        assert list(scan(frame[:size], SALT, 0)) == []
    start = data.draw(st.integers(0, len(frame) - 1))
    end = data.draw(st.integers(start + 1, len(frame)))
    zeroed = frame[:start] + bytes(end - start) + frame[end:]
    assert zeroed == frame or list(scan(zeroed, SALT, 0)) == []


@given(st.binary(min_size=8, max_size=8), st.integers(0, 500))
def test_zeros_are_never_a_frame_whatever_the_salt(raw_salt, size):
    salt = Salt.of(raw_salt)
    assert list(scan(bytes(size), salt, 0)) == []
    assert read_head(bytes(size), salt, 0) is None
    assert find_head(bytes(size), salt, 0) is None
    # the same with the one CRC that would fit
    body = bytes(HEADER_BYTES - 4)
    assert list(scan(struct.pack("<I", extend_crc32c(salt.crc, body)) + body, salt, 0)) == []


@given(frames, st.binary(min_size=8, max_size=8))
def test_a_frame_of_another_segment_is_no_frame_here(fields, raw_salt):
    frame = packed(*fields, salt=Salt.of(raw_salt))
    if raw_salt != SALT.raw:
        assert list(scan(frame, SALT, 0)) == []
        assert read_head(frame, SALT, 0) is None


@given(st.binary(max_size=200), frames, st.binary(max_size=40))
def test_the_search_finds_exactly_the_next_frame(noise, fields, after):
    frame = packed(*fields)
    data = noise + frame + after
    head = find_head(data, SALT, 0, base=7)
    assert head is not None
    assert head.position == 7 + len(noise)
    assert find_head(data, SALT, len(noise)).position == len(noise)
    assert find_head(data, SALT, len(noise) + 1) is None


@given(st.lists(frames, min_size=1, max_size=5), st.integers(0, 3))
def test_the_search_is_not_led_astray_by_markers_in_a_payload(many, repeats):
    false = SALT.raw[:4] * 10 * repeats
    data = false + b"".join(packed(*fields) for fields in many)
    assert find_head(data, SALT, 0).position == len(false)


@pytest.mark.parametrize("length", [MAX_PAYLOAD_BYTES + 1, 2**31, 2**32 - 1])
def test_a_length_over_the_limit_is_refused_before_anything_is_read(length):
    checked = struct.pack("<IIQQ", length, 20, 1, 0)
    body = struct.pack("<II", SALT.sync, extend_crc32c(SALT.crc, checked)) + checked
    data = struct.pack("<I", extend_crc32c(SALT.crc, body)) + body + bytes(100)
    assert list(scan(data, SALT, 0)) == []
    assert read_head(data, SALT, 0) is None


def test_a_damaged_payload_leaves_the_header_readable():
    data = bytearray(packed(20, 5, 4, b"payload"))
    data[-1] ^= 1
    assert list(scan(bytes(data), SALT, 0)) == []
    assert read_head(bytes(data), SALT, 0).sequence == 5


@given(st.sampled_from([0, 1, 2, 100, 1 << 16, (1 << 16) + 1, 200_000]), st.binary(max_size=3), st.integers(0, 9))
def test_the_first_byte_that_is_not_zero(zeros, tail, start):
    data = bytes(zeros) + tail
    rest = data[start:]
    expected = len(data) - len(rest.lstrip(b"\0"))
    assert first_nonzero(data, start) == max(expected, min(start, len(data)))


def test_a_crc_that_leaves_out_the_length_would_be_caught():
    """The planted bug: the same check as above passes frames whose length was changed, where the CRC skips it."""

    def careless_crc(covered: bytes) -> int:
        return extend_crc32c(SALT.crc, covered[12:])

    def careless_scan(data: bytes) -> list[bytes]:
        crc, _, _, length, *_ = struct.unpack_from("<IIIIIQQ", data)
        covered = data[4 : HEADER_BYTES + length]
        return [covered[32:]] if careless_crc(covered) == crc else []

    two = packed(20, 1, 0, b"") + packed(20, 2, 0, b"")
    frame = bytearray(struct.pack("<I", careless_crc(two[4:HEADER_BYTES])) + two[4:HEADER_BYTES])
    assert careless_scan(bytes(frame)) == [b""]
    caught = []
    for bit in range(8 * HEADER_BYTES):
        broken = bytearray(frame)
        broken[bit // 8] ^= 1 << bit % 8
        if careless_scan(bytes(broken)):
            caught.append(bit // 8)
    assert set(caught) >= {12, 13, 14, 15}, "flips in the length go unnoticed by the careless variant"


def test_the_crc_is_crc32c():
    assert crc32c(b"123456789") == 0xE3069283


@given(st.binary(max_size=50), st.integers(0, 3), st.integers(0, 140_000))
def test_the_last_byte_that_is_not_zero_is_found(start: bytes, ones: int, zeros: int) -> None:
    buffer = start + b"\1" * ones + bytes(zeros)
    assert last_nonzero(buffer) == len(buffer.rstrip(b"\0"))
