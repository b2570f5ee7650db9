"""`spark.read.format("mqwal")` on the directory of a running broker, and on damaged ones."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from process import wait_until
from smalllog import make_log

import mq
from mq.testing import Running, broker
from wal.spark.failure import reason
from wal.spark.read.listing import visible
from wal.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

CHANNELS = ("orders", "orders.dlq", "wide", "again", "late")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = tmp_path_factory.mktemp("source") / "data"
    with broker(directory) as address, mq.Client(address) as client:
        fill(client)
        yield address


@pytest.fixture(scope="module")
def data(running: Running) -> str:
    return str(running.server.config.wal_dir)


def fill(client: mq.Client) -> None:
    """Messages by every way that there is to publish one; some of them are gone again."""
    for name, partitions in (("orders", 1), ("wide", 3), ("again", 1), ("late", 1)):
        client.create_channel(name, partitions=partitions)
    for number in range(20):
        client.publish("orders", f"order {number}", key=f"c{number % 3}", headers={"source": "web", "n": str(number)})
    client.publish("again", "of the channel that was deleted")
    client.delete_channel("again")
    client.rotate_segment()
    with client.producer("wide", batch_size=50) as producer:
        for number in range(700):
            producer.send(f"wide {number}", key=f"k{number}")
    client.create_channel("again")
    with client.consumer("orders", group="billing") as consumer:
        (message,) = consumer.fetch(1, timeout=10)
        message.reject("poison")
        with client.transaction() as tx:
            tx.publish("again", "in a transaction", key="t")
            tx.publish("wide", "in a transaction", partition=2)
            tx.ack(consumer.fetch(1, timeout=10)[0])
    client.publish("late", "comes later", delay_ms=1)
    client.publish("late", "lives long", ttl_ms=3_600_000)
    client.publish("late", "lives short", ttl_ms=1)
    client.rotate_segment()
    client.purge_channel("orders", before_offset=5)
    client.publish("orders", "the last")
    wait_until(lambda: any(m.text() == "comes later" for m in client.read("late", follow=False)))
    wait_until(lambda: client.describe_channel("orders.dlq").messages == 1)


def load(spark: SparkSession, path: str, **options: str) -> DataFrame:
    return spark.read.format("mqwal").options(**options).load(path)


def seen_by_spark(frame: DataFrame) -> list[tuple[Any, ...]]:
    rows = frame.select("channel", "partition", "offset", "key", "value", "headers").collect()
    return sorted(
        (r.channel, r.partition, r.offset, r.key, bytes(r.value), [(h.key, bytes(h.value)) for h in r.headers])
        for r in rows
    )  # fmt: skip


def seen_by_a_consumer(client: mq.Client, *channels: str) -> list[tuple[Any, ...]]:
    return sorted(
        (name, m.partition, m.offset, m.key, m.content, m.raw_headers)
        for name in channels
        for m in client.read(name, follow=False)
    )


def test_spark_sees_what_a_consumer_sees(spark: SparkSession, running: Running, data: str) -> None:
    with mq.Client(running) as client:
        expected = seen_by_a_consumer(client, *CHANNELS)
    assert len(expected) == 700 + 16 + 1 + 2 + 2  # wide, orders, dead letter, transaction, late
    assert seen_by_spark(load(spark, data)) == expected


def test_spark_finds_the_format_without_registration(spark: SparkSession, data: str, root: Path) -> None:
    from pyspark.sql import SparkSession

    import pyspark_mqwal

    assert pyspark_mqwal.DefaultSource.name() == "mqwal"
    # another session of the same JVM: nobody registered anything there
    other = spark.newSession()
    assert isinstance(other, SparkSession)
    assert other.read.format("mqwal").option("channels", "orders").load(data).count() == 16


def test_what_the_log_knows_of_a_message(spark: SparkSession, running: Running, data: str) -> None:
    rows = {bytes(row.value).decode(): row for row in load(spark, data).collect()}
    late, plain, sent = rows["comes later"], rows["order 7"], rows["wide 3"]
    assert late.deliver_at is not None
    assert late.timestamp >= late.deliver_at
    assert plain.deliver_at is None
    assert rows["lives long"].ttl_ms == 3_600_000
    assert sent.producer
    assert sent.producer_sequence is not None
    assert rows["order 0"].channel == "orders.dlq"
    assert rows["order 0"].producer is None
    names = {segment.name for segment in visible(data)}
    assert {row.segment for row in rows.values()} <= names
    assert len({row.log_uuid for row in rows.values()}) == 1
    with mq.Client(running) as client:
        told = {m.text(): m.timestamp for m in client.read("orders", follow=False)}
    assert plain.timestamp.timestamp() == told["order 7"].timestamp()


def test_options_select_channels_columns_and_times(spark: SparkSession, data: str) -> None:
    frame = load(spark, data, channels="orders, again", columns="offset,channel")
    assert frame.columns == ["offset", "channel"]
    assert {row.channel for row in frame.collect()} == {"orders", "again"}
    times = sorted(row.timestamp for row in load(spark, data, channels="orders").collect())
    middle = times[8]
    early, later = load(spark, data, toTs=_text(middle)), load(spark, data, fromTs=_text(middle))
    assert early.count() + later.count() == load(spark, data).count()
    assert all(row.timestamp >= middle for row in later.collect())


def test_a_schema_of_the_users_own_says_the_same_as_columns(spark: SparkSession, data: str) -> None:
    frame = spark.read.format("mqwal").schema("offset BIGINT, value BINARY").option("channels", "again").load(data)
    assert [(row.offset, bytes(row.value)) for row in frame.collect()] == [(0, b"in a transaction")]
    with pytest.raises(Exception, match="no column") as caught:
        load(spark, data, columns="offset,topic").collect()
    assert (reason(caught.value) or "").startswith("'topic' is no column here; there are key, value, channel")


def _text(when: Any) -> str:
    """Spark's times have no zone here; Python takes them for local ones."""
    from datetime import UTC

    return str(when.astimezone(UTC).isoformat())


def test_a_count_after_a_filtered_one_is_whole(spark: SparkSession, data: str) -> None:
    frame = load(spark, data, channels="wide")
    assert frame.where("partition = 1").count() < 701
    assert frame.count() == 701


def test_without_live_only_the_past_is_there_too(spark: SparkSession, data: str) -> None:
    rows = load(spark, data, liveOnly="false").collect()
    values = [bytes(row.value).decode() for row in rows]
    assert {"order 0", "lives short", "of the channel that was deleted"} <= set(values)
    assert len([row for row in rows if row.channel == "again"]) == 2


def test_the_active_segment_is_shown_unless_only_sealed_ones_are_asked_for(spark: SparkSession, data: str) -> None:
    values = {bytes(row.value) for row in load(spark, data, channels="orders", sealedOnly="true").collect()}
    assert b"the last" not in values
    assert b"order 7" in values
    assert b"the last" in {bytes(row.value) for row in load(spark, data, channels="orders").collect()}


def test_several_logs_are_told_apart(spark: SparkSession, data: str, tmp_path: Path) -> None:
    with broker(tmp_path / "data") as address, mq.Client(address) as client:
        client.create_channel("orders")
        client.publish("orders", "elsewhere")
    frame = spark.read.format("mqwal").option("channels", "orders").load([data, f"file://{tmp_path}/data"])
    counts = {row["count"] for row in frame.groupBy("log_uuid").count().collect()}
    assert counts == {16, 1}


def test_batches_and_records_and_segments_are_views_of_the_same(spark: SparkSession, data: str) -> None:
    messages = load(spark, data, liveOnly="false").count()
    batches = load(spark, data, view="batches", liveOnly="false")
    assert batches.selectExpr("sum(count)").first()[0] == messages  # type: ignore[index]
    segments = load(spark, data, view="segments").collect()
    assert sum(row.messages for row in segments) == messages
    assert [row.segment for row in segments] == [segment.name for segment in visible(data)]
    records = load(spark, data, view="records")
    assert records.count() == sum(row.frames for row in segments) == verify(data).frames
    made = records.where("type = 'CHANNEL_CREATED'").selectExpr("get_json_object(fields, '$.name') AS name").collect()
    assert sorted(row.name for row in made) == ["again", "again", "late", "orders", "orders.dlq", "wide"]


def test_an_unknown_channel_and_a_place_without_a_log_are_one_line(
    spark: SparkSession, data: str, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match="no channel") as caught:
        load(spark, data, channels="order").collect()
    assert (reason(caught.value) or "").startswith("there is no channel 'order' in")
    with pytest.raises(Exception, match="log") as caught:
        load(spark, str(tmp_path)).collect()
    assert (reason(caught.value) or "").endswith("holds no log: there is no MANIFEST in it")


@pytest.fixture
def damaged(data: str, tmp_path: Path) -> tuple[str, str]:
    """A copy with a flipped byte in the batch of one publish; the directory and the segment's name."""
    copy = Path(shutil.copytree(data, tmp_path / "copy"))
    segment = visible(data)[0]
    content = bytearray((copy / segment.name).read_bytes())
    content[content.index(b"order 7")] ^= 0xFF
    (copy / segment.name).write_bytes(content)
    return str(copy), segment.name


def test_damage_is_counted_and_its_place_is_told(spark: SparkSession, damaged: tuple[str, str]) -> None:
    path, name = damaged
    report = verify(path)
    (expected,) = report.damage
    rows = load(spark, path, view="segments").where("damaged_ranges > 0").collect()
    assert [(row.segment, row.damaged_ranges, row.damaged_bytes) for row in rows] == [
        (name, 1, expected.end - expected.position)
    ]
    (range_,) = rows[0].damage
    assert (range_.position, range_.end) == (expected.position, expected.end)
    assert (range_.first_sequence, range_.last_sequence) == (expected.first_sequence, expected.last_sequence)
    shown = load(spark, path, columns="value,segment,position,_corrupt_record").where("_corrupt_record IS NOT NULL")
    (row,) = shown.collect()
    assert (row.value, row.segment, row.position) == (None, name, expected.position)
    assert expected.reason in row._corrupt_record


def test_damage_fails_a_query_that_asks_for_it_and_no_other(spark: SparkSession, damaged: tuple[str, str]) -> None:
    path, name = damaged
    values = {bytes(row.value).decode() for row in load(spark, path, channels="orders").collect()}
    assert {"order 6", "order 8", "the last"} <= values
    assert "order 7" not in values
    for view in ("messages", "batches", "records", "segments"):
        with pytest.raises(Exception, match=name) as caught:
            load(spark, path, mode="FAILFAST", view=view).collect()
        assert name in (reason(caught.value) or "")


def test_a_reader_that_travels_takes_the_segments_of_others_not_along(tmp_path: Path) -> None:
    from wal.spark.read.source import MqWal, Reader

    directory = make_log(tmp_path / "data")
    source = MqWal({"path": str(directory), "columns": "offset"})
    reader = source.reader(source.schema())
    assert isinstance(reader, Reader)
    tasks = reader.partitions()
    packed = pickle.dumps(reader)
    assert not any(segment.name.encode() in packed for segment in visible(str(directory)))
    there = pickle.loads(packed)
    found = [offset for task in tasks for batch in there.read(task) for offset in batch.column("offset").to_pylist()]
    assert found == list(range(60))


def test_a_segment_that_is_replaced_after_the_listing_is_read_from_its_replacement(tmp_path: Path) -> None:
    from wal.disk import DirectDisk
    from wal.frame import Frame
    from wal.manifest import read_manifest, swap_manifest
    from wal.rewrite import Kept, rewrite
    from wal.spark.read.source import Slice, present

    directory = str(make_log(tmp_path / "data"))
    disk = DirectDisk()
    first, second, *_ = visible(directory)
    before = [item for _, items in present(Slice.whole(first)) for item in items]
    manifest = read_manifest(disk, directory)
    assert manifest is not None
    kept = (Kept(item.type, item.sequence, item.payload) for item in before[1:] if isinstance(item, Frame))
    sealed = rewrite(disk, directory, manifest, manifest.segments[0], kept, salt=b"12345678", take=disk.create)
    swap_manifest(disk, directory, manifest.with_segments([sealed, *manifest.segments[1:]]))
    (tmp_path / "data" / first.name).unlink()
    after = [
        (part.name, item.sequence)
        for part, items in present(Slice.whole(first))
        for item in items
        if isinstance(item, Frame)
    ]
    assert after == [(sealed.name(".wal"), item.sequence) for item in before[1:] if isinstance(item, Frame)]
    middle = Slice(first, 5, 7)
    assert [item.sequence for _, items in present(middle) for item in items if isinstance(item, Frame)] == [5, 6, 7]
    assert second in visible(directory)
