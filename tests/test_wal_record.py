"""Records: into a payload and back, what is unknown included; which offsets they give to messages."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from walsample import batch, one_of_each, published

from wal.joined import Joined
from wal.pb import wal_pb2 as pb
from wal.record import (
    CLASS_OF,
    PUBLISHED,
    SEAL,
    TYPE_OF,
    Atomic,
    Carried,
    DeadLettered,
    Encoded,
    Published,
    Scheduled,
    Unknown,
    atomic,
    decode,
    encode,
    end_offset,
    head_of,
    items_of,
    placements,
    plain,
    published_in,
)
from wal.varint import number, varint

numbers = st.integers(0, 2**32 - 1)
pieces = st.lists(st.binary(max_size=300), max_size=4)
publishes = st.builds(
    Published,
    channel_id=st.integers(1, 2**64 - 1), partition=numbers, base_offset=st.integers(0, 2**63),
    count=st.integers(1, 2**32 - 1), ttl_ms=numbers, schedule_id=numbers, min_timestamp_us=st.integers(0, 2**62),
)  # fmt: skip


def payload_of(record):
    type_, parts, _ = encode(record)
    return type_, b"".join(parts)


def test_every_type_of_the_definition_has_a_class_and_a_sample():
    assert set(CLASS_OF) == set(pb.RecordType.values()) - {0}
    assert all(CLASS_OF[number].__name__.upper() == pb.RecordType.Name(number).replace("_", "") for number in CLASS_OF)
    assert {type(record) for record in one_of_each()} >= set(CLASS_OF.values()) - {CLASS_OF[SEAL]}


@pytest.mark.parametrize("record", one_of_each(), ids=lambda record: type(record).__name__)
def test_a_record_comes_back_as_it_was(record):
    assert decode(*payload_of(record)) == record
    assert plain(record) is record


def test_what_was_encoded_ahead_in_pieces_is_the_same_record():
    record = pb.ChannelSnapshot(channel_id=3, name="a", created_us=7, part=2, more=True)
    parts = [pb.ChannelSnapshot(channel_id=3, name="a"), pb.ChannelSnapshot(created_us=7, part=2, more=True)]
    ahead = Encoded(pb.CHANNEL_SNAPSHOT, 3, [part.SerializeToString() for part in parts])
    assert payload_of(ahead) == payload_of(record)
    assert encode(ahead)[2] == ahead.ByteSize() == record.ByteSize()
    assert plain(ahead) == record


@given(publishes, pieces)
def test_a_carried_batch_is_encoded_as_the_plain_record(record, parts):
    whole = Published.FromString(record.SerializeToString())
    whole.batch = b"".join(parts)
    type_, payload = payload_of(Carried(record, parts))
    assert decode(type_, payload) == whole == plain(Carried(record, parts))
    if whole.batch:
        assert payload == whole.SerializeToString()
    assert not record.batch, "the batch is never copied into the message"


numbers = st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1))
joined_parts = st.lists(
    st.tuples(
        st.integers(1, 300),
        numbers.filter(bool),
        st.sampled_from(["", "p", "é" * 80]),
        numbers,
        st.integers(0, 2**32 - 1),
    ),
    min_size=1,
    max_size=4,
)


@given(st.tuples(numbers, st.integers(0, 2**32 - 1), st.integers(0, 2**62), numbers), joined_parts, pieces)
def test_publishes_that_joined_are_encoded_as_the_plain_record(place, counts_and_parts, parts):
    channel_id, partition, base, ttl_ms = place
    joined = Joined(channel_id, partition, base, ttl_ms)
    whole = Published(channel_id=channel_id, partition=partition, base_offset=base, ttl_ms=ttl_ms)
    for count, time, producer, sequence, crc in counts_and_parts:
        sequence, crc = (sequence, crc) if producer else (0, 0)
        at = joined.end_offset
        joined.parts.append((at, time, producer, sequence, crc))
        joined.end_offset += count
        whole.parts.add(base_offset=at, count=count, timestamp_us=time, producer=producer, sequence=sequence, crc=crc)
    whole.count = joined.end_offset - base
    times = [part.timestamp_us for part in whole.parts]
    whole.min_timestamp_us, whole.max_timestamp_us = min(times), max(times)
    assert joined.head() == whole.SerializeToString()
    joined.pieces = parts
    joined.size = sum(map(len, parts))
    whole.batch = b"".join(parts)
    type_, payload = payload_of(joined)
    assert decode(type_, payload) == whole == plain(joined)
    assert encode(joined)[2] == len(payload)
    assert placements(joined) == placements(whole)


@given(numbers)
def test_a_number_is_written_as_protobuf_writes_it(value):
    assert number(b"\x40", value) == Published(ttl_ms=value).SerializeToString()
    assert varint(value) == (number(b"", value) or b"\0")


@given(pieces, st.integers(1, 2**40))
def test_a_carried_schedule_is_encoded_as_the_plain_record(parts, due):
    head = Scheduled(channel_id=1, schedule_id=2, due_us=due)
    found = decode(*payload_of(Carried(head, parts)))
    assert found == Scheduled(channel_id=1, schedule_id=2, due_us=due, batch=b"".join(parts))


@given(st.lists(st.lists(st.binary(max_size=20), min_size=1, max_size=3), min_size=1, max_size=4))
def test_batches_one_after_another_are_one_batch(batches):
    merged = pb.Batch.FromString(b"".join(batch(*contents) for contents in batches))
    assert [message.content for message in merged.messages] == [content for each in batches for content in each]


def test_the_batch_is_the_last_field_of_the_records_that_have_it():
    for cls in (Published, Scheduled):
        assert max(cls.DESCRIPTOR.fields_by_number) == cls.DESCRIPTOR.fields_by_name["batch"].number == 15


@given(st.integers(2, 2**32 - 1).filter(lambda number: number not in CLASS_OF), st.binary(max_size=50))
def test_a_type_from_the_future_survives_reading_and_writing(type_, payload):
    record = decode(type_, payload)
    assert record == Unknown(type_, payload)
    assert payload_of(record) == (type_, payload)
    (inside,) = items_of(decode(*payload_of(atomic([record]))))
    assert inside == record


@pytest.mark.parametrize("record", one_of_each()[:-1], ids=lambda record: type(record).__name__)
def test_a_field_from_the_future_survives_reading_and_writing(record):
    extra = bytes([0xFA, 0x3F, 3]) + b"new"  # field 1023, length-delimited
    type_, payload = payload_of(record)
    again = payload_of(decode(type_, payload + extra))
    assert again[0] == type_
    assert sorted(again[1]) == sorted(payload + extra)
    assert extra in again[1]


@pytest.mark.parametrize("type_", [0, SEAL])
def test_nobody_can_append_a_seal_or_a_zero_type(type_):
    with pytest.raises(ValueError, match="type"):
        encode(Unknown(type_, b""))
    with pytest.raises(ValueError, match="type"):
        atomic([Unknown(type_, b"")])


def test_nobody_can_append_a_seal_record():
    with pytest.raises((KeyError, ValueError)):
        encode(CLASS_OF[SEAL]())
    assert CLASS_OF[SEAL] not in TYPE_OF


def test_bytes_that_no_writer_made_are_refused():
    with pytest.raises(DecodeError):
        decode(pb.PUBLISHED, b"\xff")


@given(publishes, st.lists(st.integers(0, 2**32 - 1), max_size=5, unique=True).map(sorted))
def test_the_end_offset_follows_the_last_delta(record, deltas):
    record.offset_deltas.extend(deltas)
    expected = record.base_offset + (deltas[-1] + 1 if deltas else record.count)
    assert end_offset(record) == expected
    place = (record.channel_id, record.partition, record.base_offset, expected)
    assert placements(record) == [place]
    assert placements(Carried(record, [b"x"])) == [place]
    assert placements(DeadLettered(channel_id=9, published=record)) == [place]


@given(st.lists(publishes, max_size=4))
def test_the_placements_of_an_atomic_are_those_of_its_items(many):
    dead = DeadLettered(channel_id=1, published=published(7, channel=3))
    both = atomic([*many, dead, Unknown(4000, b"?"), pb.Acked(channel_id=1)])
    assert placements(both) == [place for record in [*many, dead] for place in placements(record)]
    assert list(published_in(both)) == [*many, dead.published]


def test_records_without_messages_place_nothing():
    rest = [r for r in one_of_each() if not isinstance(r, Published | DeadLettered | Atomic)]
    assert [placements(record) for record in rest] == [[]] * len(rest)
    assert [list(published_in(record)) for record in rest] == [[]] * len(rest)


def test_an_atomic_inside_an_atomic_is_carried_and_not_followed():
    """No writer makes one; followed, a few kilobytes of them would be deeper than any stack."""
    nested: Atomic = atomic([published(0)])
    for _ in range(5000):
        nested = Atomic(items=[Atomic.Item(type=pb.ATOMIC, payload=nested.SerializeToString())])
    assert placements(nested) == []
    (inside,) = items_of(nested)
    assert isinstance(inside, Unknown)
    with pytest.raises(ValueError, match="inside another"):
        atomic([nested])


@given(publishes, st.lists(st.binary(max_size=200), min_size=1, max_size=3), st.integers(0, 300))
def test_the_head_of_a_record_is_the_record_without_its_batch(record, names, seen):
    """Also where a producer's name looks like the beginning of a batch, and where only the first bytes are there."""
    record.parts.extend(pb.Part(producer=name.hex() + "z\x05z\x01z") for name in names)
    type_, payload = payload_of(Carried(record, [b"z\x01zz\x00", b"b" * 300]))
    assert head_of(type_, payload) == record
    assert head_of(type_, payload[:seen], len(payload)) in (None, record)


@given(
    st.one_of(
        st.binary(max_size=40), st.lists(st.sampled_from([b"z", b"\x08", b"\x01", b"\x02\x02", b"*"])).map(b"".join)
    )
)
def test_whatever_the_bytes_are_a_head_is_what_decoding_all_of_them_gives(payload):
    head = head_of(PUBLISHED, payload)
    if head is not None:
        whole = decode(PUBLISHED, payload)
        assert isinstance(whole, Published)
        whole.ClearField("batch")
        assert head == whole


def test_a_record_that_has_no_batch_has_no_head():
    assert all(head_of(*payload_of(record)) is None for record in one_of_each() if not hasattr(record, "batch"))
