"""`spark.readStream.format("mqwal")`: every message once, whatever happens to the files, the broker and the driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from process import wait_until
from smalllog import grow, make_log, open_here
from walsample import NOW_US, published

import mq
from mq.testing import broker
from wal.disk import DirectDisk
from wal.frame import Frame
from wal.manifest import read_manifest, swap_manifest
from wal.record import ChannelCreated
from wal.rewrite import Kept, rewrite
from wal.spark.read.listing import visible

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from wal.spark.read.stream import StreamReader

pytestmark = pytest.mark.spark
SECONDS = 120  # for what a JVM does on a busy machine


def reader(path: Path, **options: str) -> StreamReader:
    """The planning half of a stream, without a JVM."""
    from wal.spark.read.source import MqWal

    source = MqWal({"path": str(path), "columns": "offset,sequence", **options})
    return source.streamReader(source.schema())  # type: ignore[return-value]


def everything() -> Any:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    return ReadAllAvailable()


def at_most(count: int) -> Any:
    from pyspark.sql.streaming.datasource import ReadMaxFiles

    return ReadMaxFiles(count)


def offsets(stream: StreamReader, start: dict[str, int], end: dict[str, int]) -> list[int]:
    rows = [batch for task in stream.partitions(start, end) for batch in stream.read(task)]
    return [value for batch in rows for value in batch.column("offset").to_pylist()]


def replace_first(directory: Path, *, keep: bool = True) -> None:
    """Rewrite the first sealed segment, or drop it whole; its old file is gone at once."""
    disk = DirectDisk()
    manifest = read_manifest(disk, str(directory))
    assert manifest is not None
    first = visible(str(directory))[0]
    from wal.spark.read.scan import read

    kept = [Kept(item.type, item.sequence, item.payload) for item in read(first) if isinstance(item, Frame)]
    rest = list(manifest.segments[1:])
    if keep:
        entry = manifest.segments[0]
        rest.insert(0, rewrite(disk, str(directory), manifest, entry, kept, salt=os.urandom(8), take=disk.create))
    swap_manifest(disk, str(directory), manifest.with_segments(rest))
    (directory / first.name).unlink()


def test_a_stream_takes_sealed_segments_and_an_offset_is_a_sequence(tmp_path: Path) -> None:
    directory = make_log(tmp_path / "data")
    sealed = [segment for segment in visible(str(directory)) if segment.is_sealed]
    stream = reader(directory)
    start = stream.initialOffset()
    assert start == {sealed[0].log_uuid: 0}
    end = stream.latestOffset(start, everything())
    assert end == stream.reportLatestOffset() == {sealed[0].log_uuid: sealed[-1].last_sequence}
    assert offsets(stream, start, end) == list(range(sealed[-1].last_sequence - 1))
    assert stream.latestOffset(end, everything()) == end
    assert stream.partitions(end, end) == []


def test_a_trigger_takes_so_many_segments_and_one_of_what_is_there_takes_no_more(tmp_path: Path) -> None:
    directory = make_log(tmp_path / "data")
    (uuid,) = {segment.log_uuid for segment in visible(str(directory))}
    ends = [segment.last_sequence for segment in visible(str(directory)) if segment.is_sealed]
    stream = reader(directory, maxSegmentsPerTrigger="1")
    limit = stream.getDefaultReadLimit()
    assert limit == at_most(1)
    at = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    log = open_here(directory)
    grow(log, 60, base=60)
    log.close()
    reached = []
    while (end := stream.latestOffset(at, limit)) != at:
        reached.append(end[uuid])
        at = end
    assert reached == ends


def test_logs_take_turns_where_a_trigger_takes_few_segments(tmp_path: Path) -> None:
    first, other = (make_log(tmp_path / name) for name in ("a", "b"))
    uuids = {visible(str(path))[0].log_uuid for path in (first, other)}
    for most in (1, 2, 3):
        stream = reader(first, paths=json.dumps([str(other)]))
        at = stream.initialOffset()
        taken = set()
        for _ in range(2):
            end = stream.latestOffset(at, at_most(most))
            taken |= {uuid for uuid in uuids if end[uuid] != at[uuid]}
            at = end
        assert taken == uuids, most
        while (end := stream.latestOffset(at, at_most(most))) != at:
            at = end
        assert at == stream.reportLatestOffset()


def test_what_expires_while_a_stream_runs_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "data"
    log = open_here(directory)
    log.append([ChannelCreated(channel_id=1, name="orders", partitions=1)])
    log.append([published(0, ttl_ms=1000)])
    log.pump()
    log.rotate()
    log.pump()
    log.close()
    monkeypatch.setattr("time.time_ns", lambda: NOW_US * 1000)
    stream = reader(directory)
    start = stream.initialOffset()
    end = stream.latestOffset(start, everything())
    assert offsets(stream, start, end) == [0]
    monkeypatch.setattr("time.time_ns", lambda: (NOW_US + 2_000_000) * 1000)
    assert offsets(stream, start, end) == []


@pytest.mark.parametrize(("starting", "first"), [("earliest", 0), ("latest", 60), ("20", 19)])
def test_a_stream_begins_where_it_is_told_to(tmp_path: Path, starting: str, first: int) -> None:
    directory = make_log(tmp_path / "data")
    stream = reader(directory, startingOffsets=starting)
    start = stream.initialOffset()
    log = open_here(directory)
    grow(log, 60, base=60)
    log.close()
    seen = offsets(stream, start, stream.latestOffset(start, everything()))
    assert seen == list(range(first, first + len(seen)))
    assert seen


def test_what_left_the_log_unseen_fails_a_stream_unless_it_may_go_on(tmp_path: Path) -> None:
    from wal.spark.read.stream import DataLost

    directory = make_log(tmp_path / "data")
    stream, tolerant = reader(directory), reader(directory, failOnDataLoss="false")
    start = stream.initialOffset()
    first = visible(str(directory))[0]
    replace_first(directory)
    end = stream.latestOffset(start, everything())
    everything_there = offsets(stream, start, end)
    replace_first(directory, keep=False)
    with pytest.raises(DataLost, match="records from 1 on left the log"):
        stream.partitions(start, end)
    assert offsets(tolerant, start, end) == everything_there[first.last_sequence - 1 :]


def test_another_log_in_the_place_of_the_first_is_noticed(tmp_path: Path) -> None:
    from wal.spark.read.stream import DataLost

    directory = make_log(tmp_path / "data")
    stream, tolerant = reader(directory), reader(directory, failOnDataLoss="false")
    start = stream.latestOffset(stream.initialOffset(), everything())
    (tmp_path / "data").rename(tmp_path / "before")
    make_log(directory)
    with pytest.raises(DataLost, match="is no longer in"):
        stream.latestOffset(start, everything())
    end = tolerant.latestOffset(start, everything())
    assert offsets(tolerant, start, end)[0] == 0


@settings(max_examples=25)
@given(data=st.data())
def test_every_message_comes_once_whatever_is_rotated_and_replaced(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "data"
        log = open_here(directory)
        log.append([ChannelCreated(channel_id=1, name="orders", partitions=1)])
        count, seen = 0, []
        stream = reader(directory)
        at = stream.initialOffset()
        for step in data.draw(st.lists(st.sampled_from(["grow", "rotate", "replace", "take", "restart"]), max_size=12)):
            if step == "grow":
                more = data.draw(st.integers(1, 30))
                grow(log, more, base=count)
                count += more
            elif step == "rotate":
                log.rotate()
                log.pump()
            elif step == "replace" and visible(str(directory))[0].is_sealed:
                log.close()
                replace_first(directory)
                log = open_here(directory)
            elif step == "restart":
                log.close()
                log = open_here(directory)
            elif step == "take":
                end = stream.latestOffset(at, at_most(data.draw(st.integers(1, 3))))
                planned = stream.partitions(at, end)
                if data.draw(st.booleans()):  # the driver dies here, and plans the same batch again
                    stream = reader(directory)
                    planned = stream.partitions(at, end)
                seen += [v for task in planned for b in stream.read(task) for v in b.column("offset").to_pylist()]
                at = end
        log.append([published(count)])
        log.rotate()
        log.pump()
        log.close()
        seen += offsets(stream, at, stream.latestOffset(at, everything()))
        assert seen == list(range(count + 1))


# ---------------------------------------------------------------- with Spark


def start_query(spark: SparkSession, data: Path, scratch: Path, *, once: bool, **options: str) -> StreamingQuery:
    frame = spark.readStream.format("mqwal").options(columns="value,offset", **options).load(str(data))
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(scratch / "checkpoint"))
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime="0 seconds")
    return writer.start(str(scratch / "out"))


def written(spark: SparkSession, scratch: Path) -> list[int]:
    """What a reader of the sink sees: the files that its log names."""
    if not list((scratch / "out" / "_spark_metadata").glob("[0-9]*")):
        return []
    return sorted(row.offset for row in spark.read.parquet(str(scratch / "out")).collect())


def test_a_query_runs_on_while_the_broker_rotates_restarts_and_cleans(spark: SparkSession, tmp_path: Path) -> None:
    data, running = tmp_path / "data", tmp_path / "running"
    padding = "x" * 4000
    with broker(data) as address, mq.Client(address) as client:
        client.create_channel("kept")
        client.create_channel("scrap")
        publish(client, range(10), padding)
        client.rotate_segment()
        query = start_query(spark, data, running, once=False, channels="kept")
        wait_until(lambda: written(spark, running) == list(range(10)), SECONDS)
        publish(client, range(10, 20), padding)
        client.rotate_segment()
        client.purge_channel("scrap")
    before = {segment.name for segment in visible(str(data), sealed_only=True)}
    for _ in range(2):  # each stop writes a snapshot, and what lies before the older of two may be cleaned
        with broker(data):
            pass
    with broker(data, WAL_RETIRE_GRACE="1ms") as address, mq.Client(address) as client:
        wait_until(lambda: not before & {segment.name for segment in visible(str(data))}, SECONDS)
        publish(client, range(20, 30), "")
        client.rotate_segment()
        wait_until(lambda: len(written(spark, running)) >= 30 or query.exception() is not None, SECONDS)
    assert query.exception() is None
    query.stop()
    assert written(spark, running) == list(range(30))
    # and from the beginning, over what cleaning left, a segment at a time
    again = tmp_path / "again"
    start_query(spark, data, again, once=True, channels="kept", maxSegmentsPerTrigger="1").awaitTermination(120)
    assert written(spark, again) == list(range(30))
    assert len(list((again / "checkpoint" / "commits").glob("[0-9]*"))) > 1


def publish(client: mq.Client, numbers: range, padding: str) -> None:
    for number in numbers:
        client.publish("kept", f"{number}")
        client.publish("scrap", padding)


DRIVER = """
import sys
from pathlib import Path
from test_spark_stream import start_query
from wal.spark.session import session

data, scratch = map(Path, sys.argv[1:])
spark = session("killed", master="local[1]")
start_query(spark, data, scratch, once=False, maxSegmentsPerTrigger="1").awaitTermination()
"""


@pytest.mark.slow
def test_after_a_kill_of_the_driver_every_message_is_there_once(spark: SparkSession, tmp_path: Path) -> None:
    data = make_log(tmp_path / "data", count=400)
    checkpoint = tmp_path / "checkpoint"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(data), str(tmp_path)], env=environ, start_new_session=True
    )
    try:
        # the third batch is planned and not committed
        wait_until(lambda: (checkpoint / "offsets" / "2").exists() or process.poll() is not None, SECONDS)
        assert process.poll() is None
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    done = len(list((checkpoint / "commits").glob("[0-9]*")))
    sealed = [segment for segment in visible(str(data)) if segment.is_sealed]
    assert 0 < done < len(sealed)
    replace_first(data)  # what the checkpoint was made from need not be there any more
    start_query(spark, data, tmp_path, once=True).awaitTermination(120)
    assert written(spark, tmp_path) == list(range(sealed[-1].last_sequence - 1))
    files = list((tmp_path / "out").glob("*.parquet"))
    assert sum(pq.read_metadata(path).num_rows for path in files) >= sealed[-1].last_sequence - 1
