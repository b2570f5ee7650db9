"""Records become rows: which of them hold messages, and what each message is told."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.frame import Frame
from wal.pb.wal_pb2 import (
    Acked,
    Batch,
    BatchMessage,
    DeadLettered,
    Header,
    OffsetRange,
    Part,
    Published,
    Scheduled,
)
from wal.record import PUBLISHED, Record, atomic, encode
from wal.segment import Gap
from wal.spark import rows
from wal.spark.catalog import Catalog
from wal.spark.listing import Segment
from wal.spark.rows import MESSAGES, Damage, Selection, messages

SEGMENT = Segment("u-1", "/log", "00000000000000000001-0.wal", 1, 99, 0, b"saltsalt", 1000, True)
NAMES = {1: "orders", 2: "007"}
CATALOG = Catalog("u-1", NAMES)


def frame(sequence: int, record: Record) -> Frame:
    type_, pieces, _ = encode(record)
    return Frame(64 + sequence * 1000, type_, sequence, 0, 0, b"".join(pieces))


def batch(*contents: bytes) -> bytes:
    return Batch(messages=[BatchMessage(content=each, key=each[:1] or None) for each in contents]).SerializeToString()


def published(base: int, *contents: bytes, channel_id: int = 1, **fields: Any) -> Published:
    fields.setdefault("parts", [Part(base_offset=base, count=len(contents), timestamp_us=base * 10)])
    times = [part.timestamp_us for part in fields["parts"]]
    return Published(
        channel_id=channel_id,
        base_offset=base,
        count=len(contents),
        min_timestamp_us=min(times),
        max_timestamp_us=max(times),
        batch=batch(*contents),
        **fields,
    )


def table(
    items: list[Frame | Gap], columns: Sequence[str] = tuple(MESSAGES), selection: Selection | None = None
) -> list[dict[str, Any]]:
    found = messages(items, SEGMENT, columns, CATALOG, selection or Selection())
    return [row for each in found if not isinstance(each, Damage) for row in each.to_pylist()]


def microseconds(row: dict[str, Any]) -> int:
    return round(row["timestamp"].timestamp() * 1_000_000)


def test_a_publish_is_a_row_for_each_message() -> None:
    part = Part(base_offset=5, count=2, timestamp_us=50, producer="p", sequence=9)
    first, second = table(
        [frame(7, published(5, b"a", b"b", parts=[part], partition=3, ttl_ms=100, schedule_id=4, due_us=45))]
    )
    assert first["value"] == b"a"
    assert first["key"] == b"a"
    assert second["offset"] == 6
    assert (first["channel"], first["partition"], first["sequence"], first["position"]) == ("orders", 3, 7, 7064)
    assert (first["producer"], first["producer_sequence"], first["ttl_ms"]) == ("p", 9, 100)
    assert first["deliver_at"] == datetime.fromtimestamp(0.000045, UTC)
    assert (first["segment"], first["log_uuid"]) == (SEGMENT.name, "u-1")


def test_what_a_publish_does_not_have_is_null() -> None:
    (row,) = table([frame(1, published(0, b""))])
    assert [row[name] for name in ("key", "producer", "producer_sequence", "deliver_at", "ttl_ms")] == [None] * 5
    assert (row["value"], row["headers"]) == (b"", [])


def test_dead_letters_and_transactions_hold_messages_and_other_records_do_not() -> None:
    letter = DeadLettered(channel_id=1, published=published(0, b"dead", channel_id=2))
    both = atomic([published(1, b"one"), Acked(channel_id=1, ranges=[OffsetRange(end=1)]), letter])
    items: list[Frame | Gap] = [
        frame(1, letter),
        frame(2, both),
        frame(3, Acked(channel_id=1)),
        frame(4, Scheduled(channel_id=1, count=1, batch=batch(b"later"))),
    ]
    found = [(row["sequence"], row["channel"], row["value"]) for row in table(items)]
    assert found == [(1, "007", b"dead"), (2, "orders", b"one"), (2, "007", b"dead")]


def test_a_channel_that_nobody_can_name_has_its_number_only() -> None:
    (row,) = table([frame(1, published(0, b"x", channel_id=77))])
    assert (row["channel"], row["channel_id"]) == (None, 77)


def test_publishes_that_share_a_record_keep_their_times_and_producers() -> None:
    parts = [
        Part(base_offset=10, count=1, timestamp_us=100, producer="a", sequence=1),
        Part(base_offset=11, count=2, timestamp_us=200),
    ]
    found = table([frame(1, published(10, b"x", b"y", b"z", parts=parts))])
    assert [(row["offset"], microseconds(row), row["producer"]) for row in found] == [
        (10, 100, "a"),
        (11, 200, None),
        (12, 200, None),
    ]


def test_what_compaction_left_keeps_its_offsets_times_and_producers() -> None:
    parts = [
        Part(base_offset=10, count=3, timestamp_us=100, producer="a", sequence=1),
        Part(base_offset=13, count=3, timestamp_us=200, producer="b", sequence=2),
        Part(base_offset=16, count=2, timestamp_us=300),
    ]
    found = table([frame(1, published(11, b"x", b"y", b"z", parts=parts, offset_deltas=[0, 1, 5]))])
    assert [(row["offset"], microseconds(row), row["producer"]) for row in found] == [
        (11, 100, "a"),
        (12, 100, "a"),
        (16, 300, None),
    ]


def test_only_the_chosen_channels_times_and_columns_come() -> None:
    parts = [Part(base_offset=n, count=1, timestamp_us=n) for n in range(4)]
    items: list[Frame | Gap] = [
        frame(1, published(0, b"a", b"b", b"c", b"d", parts=parts)),
        frame(2, published(0, b"other", channel_id=2)),
        frame(3, published(1, b"late")),
    ]
    selection = Selection(frozenset({1}), from_us=1, to_us=3)
    assert table(items, ("value", "offset"), selection) == [
        {"value": b"b", "offset": 1},
        {"value": b"c", "offset": 2},
    ]


def test_gaps_and_unreadable_records_are_told_in_their_place_and_cost_no_neighbour() -> None:
    broken = published(0, b"x")
    broken.batch = b"\xff"
    items: list[Frame | Gap] = [
        Gap(64, 99, 1, 2, "crc"),
        frame(3, published(0, b"before")),
        Frame(500, PUBLISHED, 4, 0, 0, b"\xff"),
        frame(5, broken),
        frame(6, published(1, b"after")),
    ]
    found = list(messages(items, SEGMENT, ("value",), CATALOG))
    assert sorted(each.gap.first_sequence for each in found if isinstance(each, Damage)) == [1, 4, 5]
    assert [row["value"] for row in table(items)] == [b"before", b"after"]


def test_many_messages_come_in_several_record_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "CHUNK_MESSAGES", 4)
    items = [frame(n + 1, published(3 * n, b"a", b"b", b"c")) for n in range(5)]
    made = [each for each in messages(items, SEGMENT, tuple(MESSAGES), CATALOG) if not isinstance(each, Damage)]
    assert [each.num_rows for each in made] == [6, 6, 3]
    assert [offset for each in made for offset in each.column("offset").to_pylist()] == list(range(15))


contents = st.lists(st.binary(max_size=5), min_size=1, max_size=4)


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.lists(contents, min_size=1, max_size=3)), max_size=6))
def test_rows_are_what_a_plain_loop_makes(publishes: list[tuple[int, list[list[bytes]]]]) -> None:
    """Every record has one or more parts; an expected row is written down message by message."""
    items: list[Frame | Gap] = []
    expected = []
    next_offset = {1: 0, 2: 0}
    clock = 0
    for sequence, (channel_id, shares) in enumerate(publishes, 1):
        base = next_offset[channel_id]
        parts: list[Part] = []
        for share in shares:
            clock += 1
            parts.append(Part(base_offset=next_offset[channel_id], count=len(share), timestamp_us=clock))
            for value in share:
                expected.append((NAMES[channel_id], next_offset[channel_id], clock, value, sequence))
                next_offset[channel_id] += 1
        record = published(base, *(value for share in shares for value in share), channel_id=channel_id, parts=parts)
        items.append(frame(sequence, record if sequence % 2 else atomic([record])))
    found = [(row["channel"], row["offset"], microseconds(row), row["value"], row["sequence"]) for row in table(items)]
    assert found == expected


def test_headers_come_as_a_list_of_keys_and_values() -> None:
    message = BatchMessage(content=b"x", headers=[Header(name="a", value=b"1"), Header(name="a", value=b"2")])
    record = published(0, b"x")
    record.batch = Batch(messages=[message]).SerializeToString()
    assert table([frame(1, record)])[0]["headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}]
