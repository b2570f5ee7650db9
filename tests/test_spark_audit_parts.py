"""What workers note of a segment, and what is made of the notes: no JVM here."""

from __future__ import annotations

import random
from collections import Counter
from html.parser import HTMLParser

import numpy as np
import pytest
from dictdisk import DictDisk
from hypothesis import given, settings
from hypothesis import strategies as st
from walsample import DIRECTORY, NOW_US, batch, open_log, put

from wal.continuity import Damage, Loss
from wal.manifest import SegmentEntry, read_manifest
from wal.pb.wal_pb2 import ChannelSettings, OffsetRange, Part, Position
from wal.record import (
    Acked,
    ChannelCreated,
    ChannelDeleted,
    ChannelSnapshot,
    Committed,
    DeadLettered,
    Expired,
    GroupCreated,
    Published,
    Redelivered,
    Scheduled,
    Sought,
    Trimmed,
    atomic,
)
from wal.spark.audit import sample, traffic
from wal.spark.audit.digest import Digest, Names, lags, opened
from wal.spark.audit.files import FORMS
from wal.spark.audit.html import size, span
from wal.spark.audit.job import Audit, _channels, damage_row
from wal.spark.audit.report import page
from wal.spark.audit.source import grouped
from wal.spark.audit.steps import Steps, buckets_of, latencies, middle_of, pack, percentile, unpack
from wal.spark.audit.summary import packed, summarise, unpacked
from wal.verify import Report

MINUTE_US = 60_000_000
ME = {"channel_id": 1, "group_id": 1, "partition": 0}


def digest_of(*segments: list, is_deep: bool = False) -> tuple[Digest, list[dict]]:
    """A log with these records, read as an audit reads it; the large lists as they came."""
    disk = DictDisk()
    log = open_log(disk)
    for records in segments:
        put(log, records)
        log.rotate()
    log.close()
    manifest = read_manifest(disk, DIRECTORY)
    rows = [
        row
        for number, entry in reversed(list(enumerate(manifest.segments)))
        for row in summarise(disk, DIRECTORY, manifest, number, entry, is_deep=is_deep)
    ]
    return Digest(unpacked(packed(row) for row in rows if row["state"]), manifest), rows


def publish(base: int, *contents: bytes, time_us: int = NOW_US, producer: str = "", sequence: int = 0, **where):
    contents = contents or (b"hello",)
    part = Part(base_offset=base, count=len(contents), timestamp_us=time_us, producer=producer, sequence=sequence)
    return Published(
        **{"channel_id": 1, "partition": 0, **where}, base_offset=base, count=len(contents), parts=[part],
        min_timestamp_us=time_us, max_timestamp_us=time_us, batch=batch(*contents),
    )  # fmt: skip


# ------------------------------------------------------------ latencies


@settings(max_examples=100)
@given(st.integers(0, 2**32), st.integers(1, 300))
def test_latencies_from_pieces_are_those_of_every_message(seed, count):
    """Publishes and acks in any number of segments, in any order, over the borders of stretches."""
    rng = random.Random(seed)
    first = (1 << 18) - count // 2
    published, ranges, at = {}, [], first
    while at < first + count:
        end = min(first + count, at + rng.randrange(1, 20))
        time_us = rng.randrange(1_000_000)
        published.update(dict.fromkeys(range(at, end), time_us))
        ranges.append((at, end, time_us))
        at = end
    acked = []
    for _ in range(rng.randrange(1, 30)):
        start = rng.randrange(first - 10, first + count)
        acked.append((start, start + rng.randrange(1, 40), rng.randrange(1_000_000, 90_000_000)))
    expected: Counter[int] = Counter()
    for start, end, time_us in acked:
        for offset in range(start, end):
            if offset in published:
                expected[int(buckets_of(np.array([time_us - published[offset]]))[0])] += 1

    def pieces(steps):
        rng.shuffle(steps)
        cut = rng.randrange(len(steps) + 1)
        found: dict[int, list[bytes]] = {}
        for some in (steps[:cut], steps[cut:]):
            made: Steps[str] = Steps()
            for step in some:
                made.add("key", *step)
            for _, stretch, blob in made.take():
                found.setdefault(stretch, []).append(blob)
        return found

    publishes, acks = pieces(ranges), pieces(acked)
    told: Counter[int] = Counter()
    for stretch, blobs in acks.items():
        told.update(latencies(publishes.get(stretch, []), blobs))
    assert told == expected


@given(st.lists(st.tuples(st.integers(0, 2**40), st.integers(1, 2**20), st.integers(0, 2**52))))
def test_packed_steps_come_back(steps):
    array = np.array([(start, start + size, time_us) for start, size, time_us in steps], np.int64).reshape(-1, 3)
    assert unpack(pack(array)).tolist() == array.tolist()


@given(st.integers(0, 2**50))
def test_a_bucket_is_right_within_two_per_cent(value):
    bucket = int(buckets_of(np.array([value], np.int64))[0])
    assert abs(middle_of(bucket) - value) <= 0.02 * value
    assert int(buckets_of(np.array([value + 1], np.int64))[0]) - bucket in (0, 1)


def test_percentiles_of_a_histogram():
    histogram = {int(buckets_of(np.array([value]))[0]): 1 for value in (1, 2, 3, 4)}
    assert [percentile(histogram, share) for share in (0.25, 0.5, 1.0)] == [1, 2, 4]
    assert percentile({}, 0.5) == 0


def test_an_ack_of_everything_there_ever_was_is_not_cut_into_pieces_for_ever():
    steps: Steps[str] = Steps()
    steps.add("key", 0, 1 << 62, 1)
    assert list(steps.take()) == []


# ------------------------------------------------------------ publishing


def test_partitions_rates_and_batches_are_counted_over_segments():
    later = NOW_US + MINUTE_US
    digest, _ = digest_of(
        [ChannelCreated(channel_id=1, name="orders", partitions=2), publish(0, b"a", b"b", b"c")],
        [publish(3, b"d", time_us=later), publish(0, b"e", partition=1, time_us=later)],
    )
    first, second = digest.partitions()
    assert (first["channel"], first["partition"], first["messages"], first["frames"]) == ("orders", 0, 4, 2)
    assert (first["first_offset"], first["end_offset"], first["max_batch"]) == (0, 4, 3)
    assert (first["min_us"], first["max_us"]) == (NOW_US, later)
    assert (second["partition"], second["messages"]) == (1, 1)
    width, rates = digest.rates()
    start = NOW_US // MINUTE_US * MINUTE_US
    assert width == MINUTE_US
    assert [(row["partition"], row["start_us"], row["messages"]) for row in rates] == [
        (0, start, 3), (0, start + MINUTE_US, 1), (1, start + MINUTE_US, 1),
    ]  # fmt: skip
    assert digest.total("batches", ("channel_id", "bits"), "frames") == [
        {"channel_id": 1, "bits": 1, "frames": 2}, {"channel_id": 1, "bits": 2, "frames": 1},
    ]  # fmt: skip


def test_times_become_wider_where_there_would_be_too_many(monkeypatch):
    monkeypatch.setattr(traffic, "_MOST_BUCKETS", 8)
    digest, rows = digest_of([publish(at, time_us=NOW_US + at * 20 * MINUTE_US) for at in range(60)])
    width, rates = digest.rates()
    assert width > MINUTE_US
    assert max(len(row["rates"]) for row in rows) <= 8
    assert sum(row["messages"] for row in rates) == 60


def test_every_way_to_publish_as_a_producer_counts():
    inside = atomic([publish(1)], producer="p", sequence=2)
    late = Scheduled(channel_id=1, producer="p", sequence=1, count=1, batch=batch(b"x"))
    _, rows = digest_of([publish(0, producer="p"), late, inside, publish(2, producer="p", sequence=5)])
    (found,) = [row["producers"] for row in rows if row["producers"]]
    assert [(each["first"], each["last"]) for each in found] == [(0, 2), (5, 5)]


def test_a_segment_with_very_many_keys_and_acks_has_several_rows_that_add_up(monkeypatch):
    for module, name, value in ((sample, "_MOST_KEYS", 1), (traffic, "_MOST_PRODUCERS", 1)):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr("wal.spark.audit.summary._LOOK_EVERY", 1)
    records = [publish(at, b"x" * at, producer=f"p{at}") for at in range(15)]
    _, rows = digest_of(records, is_deep=True)
    assert len([row for row in rows if row["state"] is None]) >= 2
    assert sorted(each["producer"] for row in rows for each in row["producers"]) == sorted(f"p{at}" for at in range(15))
    assert sum(each["messages"] for row in rows for each in row["keys"]) == 15


def test_a_deep_look_sees_every_message_and_a_sample_at_least_one_frame_of_each_channel():
    records = [publish(at, bytes(at % 5), channel_id=1 + at % 2) for at in range(30)]
    deep, _ = digest_of(records, is_deep=True)
    fields = ("messages", "value_bytes", "frames", "keyed")
    total = [{name: row[name] for name in fields} for row in deep.total("samples", ("channel_id",), *fields)]
    assert total == [{"messages": 15, "value_bytes": 30, "frames": 15, "keyed": 15}] * 2
    sizes = deep.total("sizes", ("channel_id", "bits"), "messages")
    assert [(row["bits"], row["messages"]) for row in sizes if row["channel_id"] == 1] == [
        (0, 3),
        (1, 3),
        (2, 6),
        (3, 3),
    ]
    shallow, _ = digest_of(records)
    assert all(0 < row["frames"] < 15 for row in shallow.total("samples", ("channel_id",), "frames"))


def test_a_very_long_key_is_told_by_its_digest():
    assert sample._short(b"k" * 64) == b"k" * 64
    one, other = (sample._short(b"k" * 1000 + last) for last in (b"1", b"2"))
    assert one != other
    assert len(one) <= 64


# ------------------------------------------------------------ groups


def test_groups_are_counted_and_those_that_never_did_anything_are_shown():
    digest, _ = digest_of(
        [
            ChannelCreated(channel_id=1, name="orders", partitions=1),
            GroupCreated(channel_id=1, group_id=1, name="billing", start=[Position(offset=0)], timestamp_us=NOW_US),
            GroupCreated(channel_id=1, group_id=2, name="idle", start=[Position(offset=0)], timestamp_us=NOW_US),
            publish(0, *[b"m"] * 9),
            Acked(**ME, ranges=[OffsetRange(start=0, end=2), OffsetRange(start=4, end=5)], timestamp_us=NOW_US),
        ],
        [
            Redelivered(**ME, retries=[Redelivered.Retry(start=2, end=4, delivery_count=3)], timestamp_us=NOW_US),
            DeadLettered(
                **ME, range=OffsetRange(start=2, end=3), delivery_count=4, reason="poison", timestamp_us=NOW_US,
                published=publish(0, channel_id=2),
            ),
        ],
    )  # fmt: skip
    billing, idle = digest.groups()
    assert (billing["group"], billing["acked"], billing["acks"]) == ("billing", 3, 1)
    assert (billing["redelivered"], billing["max_deliveries"], billing["dead_letters"]) == (2, 4, 1)
    assert (idle["group"], idle["acked"]) == ("idle", 0)
    (reason,) = digest.total("reasons", ("channel_id", "group_id", "reason"), "messages")
    assert (reason["reason"], reason["messages"]) == ("poison", 1)
    width, rates = digest.rates()
    assert [(row["group"], row["lag"]) for row in digest.lags(width, rates)] == [("billing", 5), ("idle", 9)]


def test_a_commit_whose_beginning_stands_in_another_segment_is_completed():
    digest, rows = digest_of(
        [publish(0, *[b"m"] * 30), Committed(**ME, offset=10, timestamp_us=NOW_US)],
        [Committed(**ME, offset=15, timestamp_us=NOW_US), Committed(**ME, offset=20, timestamp_us=NOW_US)],
        [Sought(channel_id=1, group_id=1, positions=[Position(offset=0)], timestamp_us=NOW_US)],
        [Committed(**ME, offset=3, timestamp_us=NOW_US + 7)],
    )
    assert [(each["start"], each["end"]) for each in digest.open_commits()] == [(10, 15), (0, 3)]
    inside = [unpack(each["packed"]).tolist() for row in rows for each in row["steps"] if each["group_id"]]
    assert inside == [[[15, 20, NOW_US]]]
    (group,) = digest.groups()
    assert group["acked"] == 5 + 5 + 3
    assert opened([]) == []


def test_the_lag_is_not_shown_before_it_is_known_and_trimming_shortens_it():
    def at(minute):
        return {"start_us": minute * MINUTE_US}

    rates = [{"channel_id": 1, "partition": 0, **at(minute), "end_offset": 10 * minute} for minute in (1, 2, 3, 4)]
    progress = [
        {**ME, **at(1), "reset": None, "done": 5},
        {**ME, **at(2), "reset": 8, "done": 0},
        {**ME, **at(3), "reset": None, "done": 4},
    ]
    found = lags(rates, progress, [], MINUTE_US)
    assert [(row["start_us"] // MINUTE_US, row["lag"]) for row in found] == [(2, 12), (3, 18), (4, 28)]
    starts = [{"channel_id": 1, "partition": 0, "time_us": 4 * MINUTE_US, "start_offset": 35}]
    assert [row["lag"] for row in lags(rates, progress, starts, MINUTE_US)] == [12, 18, 5]


def test_a_snapshot_in_parts_tells_positions_names_and_starts():
    first = ChannelSnapshot(channel_id=1, name="orders", part=0, more=True)
    first.partitions.add(start_offset=4, next_offset=20)
    first.groups.add(group_id=1, name="billing").cursors.add(
        partition=0, offset=6, acked=[OffsetRange(start=8, end=10)]
    )
    second = ChannelSnapshot(channel_id=1, part=1)
    second.partitions.add(start_offset=7, next_offset=8)
    second.groups.add(group_id=1).cursors.add(partition=0, offset=6, acked=[OffsetRange(start=12, end=13)])
    digest, _ = digest_of([publish(6, *[b"m"] * 14), first, second])
    assert digest.names.group(1, 1) == "billing"
    assert digest.starts() == {(1, 0): (4, 0), (1, 1): (7, 0)}
    width, rates = digest.rates()
    (row,) = digest.lags(width, rates)
    assert row["lag"] == 20 - (6 + 2 + 1)


# ------------------------------------------------------------ what compaction would free


def test_what_is_trimmed_expired_or_deleted_is_counted_as_free():
    settings_ = ChannelSettings(keep=ChannelSettings.KEEP_LATEST_PER_KEY)
    digest, _ = digest_of(
        [
            ChannelCreated(channel_id=1, name="trimmed", partitions=1),
            ChannelCreated(channel_id=2, name="gone", partitions=1),
            ChannelCreated(channel_id=3, name="expired", partitions=1, settings=settings_),
            *[publish(at, b"x" * 10) for at in range(10)],
            *[publish(at, b"x" * 10, channel_id=2) for at in range(10)],
            *[publish(at, b"x" * 10, channel_id=3) for at in range(10)],
        ],
        [
            Trimmed(channel_id=1, partition=0, start_offset=5, timestamp_us=NOW_US),
            Expired(channel_id=3, partition=0, ranges=[OffsetRange(start=2, end=4)], timestamp_us=NOW_US),
            ChannelDeleted(channel_id=2, timestamp_us=NOW_US),
        ],
    )
    found = {row["channel"]: row for row in digest.partitions()}
    assert found["trimmed"]["dead_bytes"] == pytest.approx(found["trimmed"]["bytes"] / 2, rel=0.02)
    assert found["gone"]["dead_bytes"] == found["gone"]["bytes"]
    assert found["expired"]["dead_bytes"] == pytest.approx(found["expired"]["bytes"] / 5, rel=0.02)
    assert digest.names.keeps_latest == {3}
    assert digest.savings(found.values())["messages"] == sum(row["dead_bytes"] for row in found.values())


# ------------------------------------------------------------ for human eyes


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (5.0, "5 µs"), (1500.0, "1.5 ms"), (61e6, "1.02 min"), (90e6 * 3600, "3.75 d")]
)
def test_a_duration_for_human_eyes(value, text):
    assert span(value) == text


def test_a_size_for_human_eyes():
    assert [size(value) for value in (0, 1023, 1 << 20, 3 << 40)] == ["0 B", "1023 B", "1.0 MiB", "3.0 TiB"]


class Page(HTMLParser):
    """Refuses what was opened and never closed, and whatever would ask the network for something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: Counter[str] = Counter()

    def handle_starttag(self, tag, attrs):
        self.seen[tag] += 1
        assert tag not in ("script", "link", "img", "iframe")
        assert not [name for name, _ in attrs if name in ("src", "href", "srcset")]
        if tag not in ("meta", "html"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen[tag] += 1

    def handle_endtag(self, tag):
        if tag != "html":
            assert self.open.pop() == tag


def told(**tables: list) -> Audit:
    damage = [Damage("<b>.wal", 64, 90, 1, 2, "damaged bytes", [Loss(1, 0, 4, 6)])]
    tables["damage"] = [damage_row(each) for each in damage]
    tables["segments"] = [{"segment": "a", "state": "left", "is_sealed": True, "first_sequence": 1, "last_sequence": 2,
                           "frames": None, "messages": None, "bytes": None}]  # fmt: skip
    tables["rates"] = [
        {"channel": "<script>", "start_us": NOW_US + at * MINUTE_US, "messages": at, "bytes": 9} for at in (0, 2)
    ]
    return Audit(Report("<dir>", damage=damage, torn_bytes=3), NOW_US, width_us=MINUTE_US, tables=tables)


def test_the_report_is_one_well_formed_file_that_asks_the_network_for_nothing():
    text = page(told())
    parsed = Page()
    parsed.feed(text)
    parsed.close()
    assert parsed.open == []
    assert parsed.seen["svg"] == 2
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text
    assert "http" not in text


def test_what_comes_from_the_log_is_text_in_the_report_and_nothing_else():
    text = page(told())
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "&lt;b&gt;.wal" in text


def test_the_report_says_what_is_damage_and_what_is_not():
    text = page(told())
    assert "The log is damaged: 1 range can't" in text
    assert "3 bytes at the end of the live segment were never durable: not damage" in text
    assert "1 segment left the log while the audit ran" in text
    assert "1/0: 4 to 5" in text
    assert "The log is intact." in page(Audit(Report("dir"), NOW_US))


# ------------------------------------------------------------ tasks


def test_tiny_segments_share_a_task_and_the_live_one_has_its_own():
    mib = 1 << 20
    sizes = [mib] * 40 + [64 * mib, mib, 70 * mib, mib]
    entries = [SegmentEntry(at + 1, at + 1, 0, "00" * 8, is_sealed=True, size=size) for at, size in enumerate(sizes)]
    entries.append(SegmentEntry(99, 0, 0, "00" * 8, is_sealed=False))
    groups = grouped(entries)
    assert [[number for number, _ in group] for group in groups] == [list(range(40)), [40], [41], [42], [43], [44]]
    assert grouped([]) == []


def test_every_file_and_every_column_is_documented(root):
    text = (root / "docs" / "spark.md").read_text().split("## Audit: ")[1].split("\n## ")[0]
    renamed = {"min_us": "first", "max_us": "last", "start_us": "start"}
    for name, form in FORMS.items():
        (line,) = [line for line in text.splitlines() if line.startswith("| `") and f"`{name}`" in line.split("|")[1]]
        for column in form:
            assert f"`{renamed.get(column, column)}`" in line, (name, column)


@pytest.mark.parametrize(("is_deep", "replaced"), [(True, 7), (False, None)])
def test_only_a_deep_look_tells_how_much_later_messages_replaced(is_deep, replaced):
    times = {"min_us": NOW_US, "max_us": NOW_US}
    partition = {"channel_id": 1, "messages": 10, "bytes": 100, "frames": 2, "dead_bytes": 0, "max_batch": 5, **times}
    key = {"channel_id": 1, "rank": 1, "messages": 6, "keyed": 10, "distinct_keys": 3}
    names = Names(channels={1: "state"}, keeps_latest={1})
    (channel,) = _channels([partition], [], [key], names, is_deep=is_deep)
    assert (channel["channel"], channel["replaced"]) == ("state", replaced)
