"""The parts of records, side by side as one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wal.pb.wal_pb2 import Part, Published
from wal.spark.read import parts as module
from wal.spark.read.parts import Parts, parts_of

part = st.builds(
    Part,
    base_offset=st.integers(0, 1 << 62),
    count=st.integers(0, 1 << 31),
    producer=st.text(max_size=4),
    sequence=st.integers(0, 1 << 62),
    crc=st.integers(0, (1 << 32) - 1),
    timestamp_us=st.integers(-5, 1 << 62),
)
# a part with a field from the future, and one whose fields stand in another order
odd = st.sampled_from([b"\x38\x05", b"\x30\x07\x08\x09"]).map(Part.FromString)
record = st.builds(Published, parts=st.lists(part, max_size=5), min_timestamp_us=st.integers(0, 99), batch=st.binary())


def by_hand(records: list[Published]) -> list[tuple[int, int, str | None, int | None]]:
    made = []
    for each in records:
        for one in each.parts or [Part(base_offset=each.base_offset, timestamp_us=each.min_timestamp_us)]:
            made.append(
                (one.base_offset, one.timestamp_us, one.producer or None, one.sequence if one.producer else None)
            )
    return made


def rows_of(parts: Parts) -> list[tuple[int, int, str | None, int | None]]:
    columns = parts.base_offsets.tolist(), parts.timestamps_us.tolist(), parts.producers.to_pylist()
    return list(zip(*columns, parts.sequences.to_pylist(), strict=True))


@given(st.lists(record, max_size=4))
def test_parts_are_what_protobuf_says(records: list[Published]) -> None:
    found = parts_of(records)
    assert found.counts.tolist() == [max(1, len(each.parts)) for each in records]
    assert rows_of(found) == by_hand(records)


@given(st.lists(part | odd, min_size=module.MANY, max_size=3 * module.MANY), st.lists(part, min_size=20, max_size=30))
def test_many_parts_are_what_protobuf_says(some: list[Part], more: list[Part]) -> None:
    records = [Published(channel_id=1, base_offset=7, parts=some, batch=b"x" * 99), Published(parts=more)]
    found = parts_of(records)
    assert found.counts.tolist() == [len(some), len(more)]
    assert rows_of(found) == by_hand(records)
    found.producers.validate(full=True)


@given(st.lists(part, min_size=module.MANY, max_size=20))
def test_many_parts_of_a_usual_form_are_decoded_side_by_side(some: list[Part]) -> None:
    records = [Published(parts=some)]
    found = module._in_step(records, parts_of(records).counts)
    assert rows_of(found) == by_hand(records)
