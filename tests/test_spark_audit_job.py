"""`mq spark audit` with a real Spark: on the log of a running broker, and on damaged ones beside `mq wal verify`."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from process import wait_until
from smalllog import make_log

import mq
from mq.cli import main
from mq.testing import Running, broker
from wal.disk import DirectDisk
from wal.manifest import read_manifest, swap_manifest
from wal.spark.audit.files import FORMS
from wal.spark.audit.steps import Steps
from wal.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from wal.spark.audit.job import Audit

pytestmark = pytest.mark.spark

MESSAGES = 300


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with broker(tmp_path_factory.mktemp("audit") / "data") as address, mq.Client(address) as client:
        fill(client)
        yield address


def fill(client: mq.Client) -> None:
    """Two groups over three segments: acks stand in other segments than what they ack."""
    client.create_channel("orders", partitions=2)
    client.create_channel("quiet")
    client.create_group("orders", "billing", max_deliver=5)
    client.create_group("orders", "ledger", ordered=True)
    with client.producer("orders", batch_size=20) as producer:
        for number in range(MESSAGES):
            producer.send(b"x" * (number % 50), key="often" if number % 2 else f"key {number % 10}")
    client.rotate_segment()
    with client.consumer("orders", group="billing") as consumer:
        first = consumer.fetch(50, timeout=10)
        first[0].reject("poison")
        first[1].nack()
        consumer.ack(first[2:])
    client.rotate_segment()
    with client.consumer("orders", group="ledger", ordered=True) as consumer:
        taken = 0
        while taken < 100:
            batch = consumer.fetch(50, timeout=10)
            consumer.ack(batch)
            taken += len(batch)
    client.purge_channel("orders", before_offset=10)
    wait_until(lambda: client.describe_channel("orders.dlq").messages == 1)


@pytest.fixture(scope="module")
def audited(spark: SparkSession, running: Running) -> Audit:
    from wal.spark.audit.job import audit

    return audit(spark, str(running.server.config.wal_dir), is_deep=True)


def test_a_log_too_large_to_be_gathered_is_put_together_by_shuffles_alike(
    spark: SparkSession, running: Running, audited: Audit, monkeypatch: pytest.MonkeyPatch
) -> None:
    from wal.spark.audit import job

    monkeypatch.setattr(job, "MOST_GATHERED_BYTES", 0)
    monkeypatch.setattr(job, "_gathered", None)
    found = job.audit(spark, str(running.server.config.wal_dir), is_deep=True)
    assert found.tables == audited.tables


def by_name(audited: Audit, table: str, name: str, column: str = "channel") -> dict[str, Any]:
    (row,) = [row for row in audited.tables[table] if row[column] == name]
    return row


def test_the_log_of_a_running_broker_is_found_intact_and_counted_as_verify_does(
    audited: Audit, running: Running
) -> None:
    report = verify(str(running.server.config.wal_dir))
    assert audited.is_intact
    assert (audited.report.frames, audited.report.messages) == (report.frames, report.messages)
    assert [row["state"] for row in audited.tables["segments"]] == ["read"] * report.segments
    assert report.segments >= 3


def test_channels_are_measured(audited: Audit) -> None:
    orders = by_name(audited, "channels", "orders")
    assert (orders["messages"], orders["partitions"], orders["sampled_messages"]) == (MESSAGES, 2, MESSAGES)
    assert orders["mean_size"] == pytest.approx(sum(number % 50 for number in range(MESSAGES)) / MESSAGES)
    assert orders["compression"] > 1
    assert orders["distinct_keys"] == 6
    assert orders["top_key_share"] == pytest.approx(0.5)
    assert 0 < orders["dead_bytes"] < orders["bytes"]
    assert by_name(audited, "channels", "orders.dlq")["messages"] == 1
    assert [row["key"] for row in audited.tables["keys"] if row["channel"] == "orders" and row["rank"] == 1] == [
        b"often"
    ]


def test_groups_are_measured_over_the_borders_of_segments(audited: Audit) -> None:
    billing = by_name(audited, "groups", "billing", "group")
    assert (billing["acked"], billing["dead_letters"], billing["redelivered"]) == (48, 1, 1)
    ledger = by_name(audited, "groups", "ledger", "group")
    assert ledger["acked"] >= 100
    for group in (billing, ledger):
        assert 0 < group["ack_p50"] <= group["ack_p99"] < 600e6
        told = sum(row["messages"] for row in audited.tables["latencies"] if row["group_id"] == group["group_id"])
        assert told == group["acked"]
    assert ledger["lag"] == MESSAGES - max(ledger["acked"], 20)
    assert by_name(audited, "reasons", "billing", "group")["reason"] == "poison"


def test_producers_have_no_gaps(audited: Audit) -> None:
    assert audited.tables["producers"]
    assert all(row["missing"] == 0 for row in audited.tables["producers"])


def test_a_missing_sequence_of_a_producer_is_a_gap_also_between_segments(spark: SparkSession) -> None:
    from wal.spark.audit import tables

    ranges = [(1, "p", 0, 4), (1, "p", 7, 9), (1, "p", 5, 5), (1, "q", 3, 3), (1, "p", 9, 12), (2, "p", 0, 0)]
    frame = spark.createDataFrame(ranges, "channel_id long, producer string, first long, last long")
    found = [tuple(row) for row in tables.producers(frame).collect()]
    assert found == [(1, "p", 0, 12, 1, 1), (1, "q", 3, 3, 0, 0), (2, "p", 0, 0, 0, 0)]


def test_latencies_meet_from_different_segments(spark: SparkSession) -> None:
    from wal.spark.audit import tables

    steps: Steps[tuple[int, int, int | None]] = Steps()
    steps.add((1, 0, None), 0, 1 << 19, 1_000)
    steps.add((1, 0, 7), 5, (1 << 18) + 5, 1_010)
    steps.add((1, 0, 8), 0, 4, 1_020)
    steps.add((2, 0, 7), 0, 4, 1_020)
    rows = [
        (channel, partition, stretch, group, packed) for (channel, partition, group), stretch, packed in steps.take()
    ]
    frame = spark.createDataFrame(rows, "channel_id long, partition int, stretch long, group_id long, packed binary")
    found = sorted(tuple(row) for row in tables.latencies(frame).collect())
    assert found == [(1, 7, 10, 1 << 18), (1, 8, 20, 4)]


def test_what_is_written_can_be_read_by_others(audited: Audit, tmp_path: Path) -> None:
    from wal.spark.audit.files import write

    report = write(audited, str(tmp_path / "out"))
    assert "The log is intact." in Path(report).read_text()
    for name in FORMS:
        assert pq.read_table(tmp_path / "out" / f"{name}.parquet").num_rows == len(audited.tables[name])
    rates = pq.read_table(tmp_path / "out" / "rates.parquet")
    assert sum(rates["messages"].to_pylist()) == audited.report.messages
    assert str(rates.schema.field("start").type) == "timestamp[us, tz=UTC]"


# ------------------------------------------------------------ damage, as `mq wal verify` tells it


def flipped(directory: Path, segments: list[Path]) -> None:
    data = bytearray(segments[1].read_bytes())
    data[300] ^= 0x10
    data[-200] ^= 0x10
    segments[1].write_bytes(data)


def missing(directory: Path, segments: list[Path]) -> None:
    segments[2].unlink()


def torn(directory: Path, segments: list[Path]) -> None:
    data = bytearray(segments[-1].read_bytes())
    end = len(bytes(data).rstrip(b"\0"))
    data[end : end + 30] = b"never durable, and no frame..."
    segments[-1].write_bytes(data)


def unlisted(directory: Path, segments: list[Path]) -> None:
    (directory / "MANIFEST").unlink()


@pytest.mark.parametrize(("damage", "code"), [(flipped, 1), (missing, 1), (torn, 0), (unlisted, 1)])
def test_the_command_tells_the_same_as_verify(spark: SparkSession, tmp_path: Path, damage: Any, code: int) -> None:
    directory = make_log(tmp_path / "data")
    damage(directory, sorted(directory.glob("*.wal")))
    out = str(tmp_path / "out")
    runner = CliRunner()
    expected = runner.invoke(main, ["wal", "verify", str(directory), "-o", "json"])
    found = runner.invoke(main, ["spark", "audit", "-d", str(directory), "--out", out, "-o", "json"])
    assert (expected.exit_code, found.exit_code) == (code, code)
    told, wanted = json.loads(found.stdout), json.loads(expected.stdout)
    assert {name: told[name] for name in wanted} == wanted
    assert (Path(out) / "report.html").exists()


def test_the_table_shows_the_verdict_and_where(spark: SparkSession, tmp_path: Path) -> None:
    directory = make_log(tmp_path / "data")
    missing(directory, sorted(directory.glob("*.wal")))
    found = CliRunner().invoke(main, ["spark", "audit", "-d", str(directory), "--out", str(tmp_path / "out")])
    assert found.exit_code == 1
    assert "the segment is missing" in found.stdout
    assert "the log is damaged: 1 range" in found.stderr


@pytest.mark.parametrize(
    ("log", "out", "code", "line"),
    [
        (".", "out", 3, "holds no log"),
        ("nowhere", "out", 3, "nowhere: No such file or directory"),
        ("data", "data/MANIFEST/out", 3, "Not a directory"),
    ],
)
def test_what_is_wrong_with_a_path_is_told_before_a_jvm_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str, out: str, code: int, line: str
) -> None:
    monkeypatch.setattr("wal.spark.session.session", None)
    make_log(tmp_path / "data", 1)
    found = CliRunner().invoke(main, ["spark", "audit", "-d", str(tmp_path / log), "--out", str(tmp_path / out)])
    assert found.exit_code == code
    assert found.stderr.count("\n") == 1
    assert line in found.stderr


def test_a_log_that_is_written_and_rotated_meanwhile_is_intact(spark: SparkSession, tmp_path: Path) -> None:
    from wal.spark.audit.job import audit

    over = threading.Event()

    def publish(client: mq.Client) -> None:
        for number in itertools.count():
            client.publish("orders", "x" * 100)
            if number % 20 == 0:
                client.rotate_segment()
            if over.is_set():
                return

    with broker(tmp_path / "data") as address, mq.Client(address) as client:
        client.create_channel("orders")
        client.publish("orders", "the first")
        with ThreadPoolExecutor() as pool:
            writer = pool.submit(publish, client)
            try:
                found = [audit(spark, str(tmp_path / "data")) for _ in range(3)]
            finally:
                over.set()
            writer.result(60)
    counts = [each.report.messages for each in found]
    assert [each.report.damage for each in found] == [[], [], []]
    assert counts == sorted(set(counts))


def test_a_segment_that_is_retired_while_the_audit_runs_is_no_damage(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is gone, and the MANIFEST goes on without it, between the look at that and the workers' look at the file."""
    from wal.spark.audit import job

    directory = make_log(tmp_path / "data")
    disk = DirectDisk()
    whole = read_manifest(disk, str(directory))
    assert whole is not None
    plan = job.summaries

    def retiring(*args: Any, **options: Any) -> Any:
        left, *rest = whole.segments[1:]
        swap_manifest(disk, str(directory), whole.with_segments([whole.segments[0], *rest]))
        (directory / left.name(".wal")).unlink()
        return plan(*args, **options)

    monkeypatch.setattr(job, "summaries", retiring)
    found = job.audit(spark, str(directory))
    assert found.report.damage == []
    assert found.fields()["retired_meanwhile"] == 1
    assert found.report.segments == len(whole.segments) - 1


def test_a_log_by_its_uri_is_audited_as_by_its_path(spark: SparkSession, tmp_path: Path) -> None:
    from wal.spark.audit.job import audit

    directory = make_log(tmp_path / "data")
    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    flipped(copy, sorted(copy.glob("*.wal")))
    by_path, by_uri = audit(spark, str(copy)), audit(spark, f"file://{copy}")
    assert by_uri.report.damage == by_path.report.damage != []
