"""Messages out of frames, and channels out of a log: against protobuf, one object at a time. No JVM here."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from walsample import NOW_US, one_of_each, published

from wal.filelog import FileLog
from wal.frame import Frame
from wal.options import Options as LogOptions
from wal.pb.wal_pb2 import Batch, Part
from wal.record import (
    PUBLISHED,
    ChannelCreated,
    ChannelDeleted,
    ChannelSnapshot,
    Published,
    Record,
    SnapshotBegin,
    SnapshotEnd,
    Trimmed,
    encode,
    published_in,
)
from wal.segment import Gap
from wal.spark.read.catalog import Catalog, catalog_of
from wal.spark.read.listing import Segment
from wal.spark.read.options import Options
from wal.spark.read.rows import EVERYTHING, MESSAGES, Filter, LeftOut, messages
from wal.spark.read.views import batches, records

SEGMENT = Segment("uuid", "/data", "00000000000000000001-0.wal", 1, 99, 0, b"saltsalt", 1 << 20, True)
CATALOG = Catalog("uuid", names={1: "orders", 2: "orders.dlq"})
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def frames(given: list[Record]) -> Iterator[Frame]:
    for number, record in enumerate(given, 1):
        type_, pieces, _ = encode(record)
        yield Frame(number * 1000, type_, number, 0, 0, b"".join(pieces))


def rows(given: list[Record], selection: Filter = EVERYTHING, columns: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for made in messages(frames(given), SEGMENT, columns or tuple(MESSAGES), CATALOG, selection):
        assert not isinstance(made, LeftOut), made
        found += made.to_pylist()
    return found


def time(us: int) -> datetime:
    return EPOCH + timedelta(microseconds=us)


def by_hand(given: list[Record]) -> list[dict[str, Any]]:
    """The slow way: an object for every message."""
    expected = []
    for number, record in enumerate(given, 1):
        for one in published_in(record):
            for index, message in enumerate(Batch.FromString(one.batch).messages):
                offset = one.base_offset + (one.offset_deltas[index] if one.offset_deltas else index)
                before = [part for part in one.parts if part.base_offset <= offset]
                part = before[-1] if before else None
                expected.append(
                    {
                        "key": message.key if message.HasField("key") else None,
                        "value": message.content,
                        "channel": CATALOG.names.get(one.channel_id),
                        "partition": one.partition,
                        "offset": offset,
                        "timestamp": time(part.timestamp_us if part else one.min_timestamp_us),
                        "headers": [{"key": header.name, "value": header.value} for header in message.headers],
                        "log_uuid": "uuid",
                        "channel_id": one.channel_id,
                        "sequence": number,
                        "segment": SEGMENT.name,
                        "position": number * 1000,
                        "producer": part.producer if part and part.producer else None,
                        "producer_sequence": part.sequence if part and part.producer else None,
                        "deliver_at": time(one.due_us) if one.due_us else None,
                        "ttl_ms": one.ttl_ms or None,
                    }
                )
    return expected


def test_every_kind_of_record_that_publishes_shows_its_messages() -> None:
    given = one_of_each()
    found = rows(given)
    assert found == by_hand(given)
    # a publish, a due one, holes, a dead letter, two of a transaction
    assert [row["value"] for row in found] == [b"one", b"two", b"three", b"four", b"five", b"two", b"six", b"seven"]
    assert [row["offset"] for row in found if row["value"] in (b"four", b"five")] == [4, 9]


@st.composite
def publishes(draw: st.DrawFn) -> Published:
    """A publish as brokers and compactions leave it: shared by several producers, with holes, or plain."""
    count = draw(st.integers(1, 6))
    base = draw(st.integers(0, 1 << 40))
    deltas = sorted(draw(st.sets(st.integers(0, 40), min_size=count, max_size=count))) if draw(st.booleans()) else []
    end = (deltas[-1] if deltas else count - 1) + 1
    starts = sorted({0, *draw(st.lists(st.integers(0, end - 1), max_size=3))}) if draw(st.booleans()) else []
    parts = [
        Part(
            base_offset=base + at,
            count=1,
            producer=draw(st.sampled_from(["", "p", "q"])),
            sequence=at,
            timestamp_us=NOW_US + at,
        )
        for at in starts
    ]
    return published(
        base, *draw(st.lists(st.binary(max_size=5), min_size=count, max_size=count)), channel=draw(st.integers(1, 3)),
        partition=draw(st.integers(0, 2)), offset_deltas=deltas, parts=parts, ttl_ms=draw(st.sampled_from([0, 7])),
        due_us=draw(st.sampled_from([0, NOW_US])),
    )  # fmt: skip


@given(st.lists(publishes(), max_size=8))
def test_rows_are_what_protobuf_says(given: list[Published]) -> None:
    assert rows(list(given)) == by_hand(list(given))


@given(st.lists(publishes(), max_size=8), st.integers(0, 6), st.integers(0, 6))
def test_a_selection_takes_exactly_what_it_says(given: list[Published], low: int, high: int) -> None:
    selection = Filter(frozenset({1, 3}), NOW_US + low, NOW_US + high)
    expected = [
        row for row in by_hand(list(given))
        if row["channel_id"] in (1, 3) and time(NOW_US + low) <= row["timestamp"] < time(NOW_US + high)
    ]  # fmt: skip
    for one in given:
        one.max_timestamp_us = NOW_US + 50
    assert rows(list(given), selection) == expected


def test_what_a_consumer_would_not_get_is_left_out() -> None:
    kept = published(10, b"a", b"b", b"c")
    given: list[Record] = [published(0, b"trimmed"), kept, published(5, b"of a deleted channel", channel=2)]
    given += [published(20, b"expired", ttl_ms=1), published(30, b"not yet", ttl_ms=60_000)]
    catalog = Catalog("uuid", names={1: "orders", 2: "old"}, starts={(1, 0): 11}, deleted={2})
    selection = Filter(now_us=NOW_US + 1_000)
    found = [
        row["value"]
        for made in messages(frames(given), SEGMENT, ("value",), catalog, selection)
        if not isinstance(made, LeftOut)
        for row in made.to_pylist()
    ]
    assert found == [b"b", b"c", b"not yet"]
    assert len(rows(given)) == 7


def test_what_can_not_be_read_stands_in_its_place() -> None:
    first, last = frames([published(0, b"one"), published(1, b"two")])
    items: list[Frame | Gap] = [first, Gap(1100, 1990, 5, 6, "damaged bytes")]
    items += [Frame(2000, PUBLISHED, 7, 0, 0, b"\xff"), last]
    items.append(next(frames([Published(channel_id=1, count=1, batch=b"\x0a\x05no")])))
    found = list(messages(items, SEGMENT, ("value",), CATALOG))
    told = [str(made) for made in found if isinstance(made, LeftOut)]
    assert told == [
        f"{SEGMENT.name}, bytes 1100 to 1990, sequences 5 to 6: damaged bytes",
        f"{SEGMENT.name}, bytes 2000 to 2000, sequences 7 to 7: the record can't be decoded",
        f"{SEGMENT.name}, bytes 1000 to 1000, sequences 1 to 1: the batch can't be decoded",
    ]
    values = [row["value"] for made in found if not isinstance(made, LeftOut) for row in made.to_pylist()]
    assert values == [b"one", b"two"]


def test_records_and_batches_tell_of_everything_without_the_messages() -> None:
    given = one_of_each()
    columns = ("type", "channel", "fields", "sequence")
    (made,) = records(frames(given), SEGMENT, columns, CATALOG, EVERYTHING)
    assert not isinstance(made, LeftOut)
    found = made.to_pylist()
    assert [row["sequence"] for row in found] == list(range(1, len(given) + 1))
    assert [row["type"] for row in found[:5]] == [
        "CHANNEL_CREATED", "CHANNEL_UPDATED", "GROUP_CREATED", "GROUP_UPDATED", "PUBLISHED",
    ]  # fmt: skip
    assert found[-1]["type"] == "4000"
    assert all("batch" not in (row["fields"] or "") for row in found)
    (made,) = batches(
        frames(given), SEGMENT, ("base_offset", "end_offset", "count", "is_dead_letter"), CATALOG, Filter()
    )
    assert not isinstance(made, LeftOut)
    assert [tuple(row.values()) for row in made.to_pylist()] == [
        (0, 2, 2, False), (2, 3, 1, False), (3, 10, 2, False), (0, 1, 1, True), (10, 11, 1, False), (1, 2, 1, False),
    ]  # fmt: skip


# ---------------------------------------------------------------- channels


def log_with(directory: Path, given: list[Record], size: int = 1 << 20) -> str:
    log = FileLog.open(
        directory, LogOptions(segment_bytes=size, snapshot_bytes=1 << 10, soft_free_bytes=0), is_threaded=False
    )
    for record in given:
        log.append([record])
        log.pump()
    log.close()
    return str(directory)


def created(channel_id: int, name: str) -> ChannelCreated:
    return ChannelCreated(channel_id=channel_id, name=name, partitions=2, timestamp_us=NOW_US)


def test_a_channel_that_was_made_again_is_another(tmp_path: Path) -> None:
    given: list[Record] = [
        created(1, "orders"),
        created(2, "bills"),
        ChannelDeleted(channel_id=1),
        created(3, "orders"),
    ]
    catalog = catalog_of(log_with(tmp_path, given))
    assert catalog.names == {1: "orders", 2: "bills", 3: "orders"}
    assert [catalog.is_live(channel_id) for channel_id in (1, 2, 3, 4)] == [False, True, True, False]
    assert catalog.ids("orders") == {1, 3}


def test_a_snapshot_tells_what_is_left(tmp_path: Path) -> None:
    snapshot = ChannelSnapshot(channel_id=2, name="bills", more=True)
    snapshot.partitions.add(start_offset=5)
    rest = ChannelSnapshot(channel_id=2, name="bills", part=1)
    rest.partitions.add(start_offset=7)
    given: list[Record] = [created(1, "old"), created(2, "bills"), ChannelDeleted(channel_id=1)]
    given += [SnapshotBegin(channel_ids=[2]), snapshot, rest, SnapshotEnd(begin_sequence=4)]
    given += [Trimmed(channel_id=2, partition=0, start_offset=6)]
    catalog = catalog_of(log_with(tmp_path, given))
    assert catalog.names == {2: "bills"}
    assert catalog.starts == {(2, 0): 6, (2, 1): 7}
    assert catalog.is_live(2)
    assert not catalog.is_live(1)


def test_a_channel_whose_creation_is_damaged_is_not_taken_for_deleted(tmp_path: Path) -> None:
    root = log_with(tmp_path, [created(1, "orders"), created(2, "bills"), published(0, channel=1)])
    (path,) = tmp_path.glob("*.wal")
    data = bytearray(path.read_bytes())
    data[data.index(b"orders")] ^= 1
    path.write_bytes(data)
    catalog = catalog_of(root)
    assert catalog.names == {2: "bills"}
    assert catalog.is_live(1)


# ---------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "needs a path"),
        ({"path": "x", "chanels": "a"}, "no option 'chanels'"),
        ({"path": "x", "view": "topics"}, "one of messages, batches, records, segments"),
        ({"path": "x", "mode": "DROPMALFORMED"}, "PERMISSIVE, FAILFAST"),
        ({"path": "x", "fromTs": "yesterday"}, "a time like"),
        ({"path": "x", "fromTs": "1", "view": "records"}, "messages and batches"),
        ({"path": "x", "sealedOnly": "yes"}, "true, false"),
        ({"path": "x", "startingOffsets": "middle"}, "earliest, latest or a sequence"),
        ({"path": "x", "maxSegmentsPerTrigger": "0"}, "a number from 1 on"),
    ],
)
def test_a_wrong_option_is_told_with_what_there_is(given: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Options.parse(given)


def test_options_are_read_whatever_their_case() -> None:
    options = Options.parse(
        {
            "PATH": "file:/a",
            "paths": '["b", "s3://c/d"]',
            "channels": "x, y",
            "fromts": "2026-05-01T12:00",
            "toTs": "1500",
        }
    )
    assert options.roots == ("b", "s3://c/d", "file:///a")
    assert options.channels == ("x", "y")
    assert (options.from_us, options.to_us) == (1_777_636_800_000_000, 1_500_000)
