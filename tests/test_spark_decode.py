"""Decoding many messages at once gives what protobuf gives, whatever the bytes are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from wal.pb.wal_pb2 import Batch, BatchMessage, Header
from wal.spark.read.decode import COLUMNS, HEADERS, decode

headers = st.builds(Header, name=st.text(max_size=5), value=st.binary(max_size=200))
messages = st.builds(
    BatchMessage,
    content=st.one_of(st.binary(max_size=20), st.binary(min_size=120, max_size=300)),
    key=st.one_of(st.none(), st.binary(max_size=10)),
    headers=st.lists(headers, max_size=3),
)
batches = st.lists(messages, max_size=8).map(lambda each: Batch(messages=each).SerializeToString())

# Pieces of wire data that a parser accepts and no writer of ours makes.
UNUSUAL = [
    b"\x0a\x02hi\x0a\x03you",  # a content that comes twice: the last one counts
    b"\x12\x01k\x0a\x01c",  # the key before the content
    b"\x1a\x00\x12\x01k",  # a key after the headers
    b"\x0a\x82\x80\x00hi",  # a length that is longer than need be
    b"\x0a\x82\x80\x80\x80\x80\x80\x00hi",
    b"\x8a\x00\x02hi",  # such a tag
    b"\x08\x05",  # content as a number: an unknown field
    b"\x22\x03new\x0a\x01c",  # a field from the future
    b"\x0a\x01c\x23\x24",  # a group
    b"\x1a\x07\x12\x01v\x0a\x02nm",  # a header's value before its name
    b"\x1a\x04\x18\x01\x0a\x00",  # a field from the future in a header
    b"\x1a\x03\x0a\x01\xff",  # no UTF-8: refused
    b"\x0a\x05hi",  # cut off: refused
    b"\x0a",
    b"\x00",
]
unusual = st.sampled_from(UNUSUAL)


def wrapped(body: bytes) -> bytes:
    assert len(body) < 0x80
    return bytes([0x0A, len(body)]) + body


def by_protobuf(batch: bytes) -> list[dict[str, Any]] | None:
    try:
        parsed = Batch.FromString(batch)
    except DecodeError:
        return None
    return [
        {
            "key": message.key if message.HasField("key") else None,
            "value": message.content,
            "headers": [{"key": header.name, "value": header.value} for header in message.headers],
            "size": len(message.content),
        }
        for message in parsed.messages
    ]


def check(given_batches: Sequence[bytes]) -> None:
    decoded = decode(given_batches)
    for name, column in decoded.columns.items():
        assert column.type == COLUMNS[name]
        column.validate(full=True)
    rows = list(zip(*(decoded.columns[name].to_pylist() for name in COLUMNS), strict=True))
    expected = [by_protobuf(batch) for batch in given_batches]
    assert decoded.counts.tolist() == [len(each or []) for each in expected]
    assert decoded.malformed == [index for index, each in enumerate(expected) if each is None]
    assert [dict(zip(COLUMNS, row, strict=True)) for row in rows] == [row for each in expected for row in each or []]


@given(st.lists(batches, max_size=6))
def test_batches_decode_as_protobuf_does(some: list[bytes]) -> None:
    check(some)


@pytest.mark.parametrize("piece", UNUSUAL)
def test_one_unusual_piece_decodes_as_protobuf_does(piece: bytes) -> None:
    plain = Batch(messages=[BatchMessage(content=b"c", headers=[Header(name="n", value=b"v")])]).SerializeToString()
    check([plain, wrapped(piece), plain])
    check([plain, piece, plain])


@given(st.lists(st.one_of(batches, unusual.map(wrapped), unusual), max_size=5))
def test_unusual_wire_data_decodes_as_protobuf_does(some: list[bytes]) -> None:
    check(some)


@given(st.lists(batches, min_size=1, max_size=4), st.data())
def test_mutated_batches_decode_as_protobuf_does(some: list[bytes], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(some) - 1))
    victim = bytearray(some[index])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(victim)))
        change = data.draw(st.sampled_from(["flip", "insert", "cut"]))
        if change == "insert":
            victim[place:place] = data.draw(st.binary(max_size=3))
        elif change == "cut":
            del victim[place : place + data.draw(st.integers(1, 4))]
        elif place < len(victim):
            victim[place] ^= data.draw(st.integers(1, 255))
    some[index] = bytes(victim)
    check(some)


@given(st.lists(st.binary(max_size=30), max_size=4))
@example([b"\x0a\x04\x0a\x02", b"hi"])  # two that are a batch only together
def test_bytes_of_any_kind_decode_as_protobuf_does(some: list[bytes]) -> None:
    check(some)


@pytest.mark.parametrize("count", [31, 32, 33, 100])
def test_a_message_with_many_headers_decodes(count: int) -> None:
    many = BatchMessage(content=b"x", headers=[Header(name=str(n), value=b"v" * n) for n in range(count)])
    few = BatchMessage(key=b"k", headers=[Header(name="one")])
    check([Batch(messages=[few, many, few, many]).SerializeToString()])


def test_two_million_headers_cost_no_round_each() -> None:
    hostile = Batch.FromString(b"")
    hostile.messages.add().content = b"x"
    batch = hostile.SerializeToString()
    body = batch[2:] + b"\x1a\x00" * 2_000_000
    length = len(body)
    varint = b""
    while length > 0x7F:
        varint += bytes([length & 0x7F | 0x80])
        length >>= 7
    decoded = decode([b"\x0a" + varint + bytes([length]) + body])
    assert decoded.counts.tolist() == [1]
    assert len(decoded.columns["headers"][0]) == 2_000_000


def test_long_values_keep_their_lengths() -> None:
    sizes = [0, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152]
    batch = Batch(messages=[BatchMessage(content=b"x" * size, key=b"y" * size) for size in sizes]).SerializeToString()
    decoded = decode([batch])
    assert decoded.columns["size"].to_pylist() == sizes
    assert [len(value) for value in decoded.columns["value"].to_pylist()] == sizes
    assert [len(key) for key in decoded.columns["key"].to_pylist()] == sizes


@given(st.lists(batches, max_size=4), st.sets(st.sampled_from(list(COLUMNS))))
def test_a_choice_of_columns_has_the_same_content(some: list[bytes], names: set[str]) -> None:
    whole, part = decode(some), decode(some, names)
    assert part.columns == {name: whole.columns[name] for name in names}
    assert part.counts.tolist() == whole.counts.tolist()


def test_a_column_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no column of a message"):
        decode([], ("body",))


def test_nothing_decodes_to_empty_columns_of_the_right_types() -> None:
    for some in ([], [b""], [b"", b""]):
        decoded = decode(some)
        assert [column.type for column in decoded.columns.values()] == list(COLUMNS.values())
        assert decoded.columns["headers"].type == HEADERS
        assert decoded.counts.tolist() == [0] * len(some)
