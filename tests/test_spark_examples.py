"""The questions of examples/spark, asked of a log that a real broker wrote."""

from __future__ import annotations

import runpy
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from process import wait_until

import mq
from mq.testing import broker
from wal.frame import Frame
from wal.record import decode, published_in
from wal.spark.read.catalog import catalog_of
from wal.spark.read.listing import visible
from wal.spark.read.scan import read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
HOUR_US = 3_600_000_000


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("questions") / "data"
    with broker(made) as address, mq.Client(address) as client:
        for channel in ("orders", "clicks"):
            client.create_channel(channel)
        for number in range(40):
            client.publish("clicks", str(number))
        for number in range(50):
            client.publish("orders", {"n": number}, key=f"c{number % 2}")
        with client.consumer("orders", group="quick") as consumer:
            consumer.ack(consumer.fetch(50, timeout=10))
        with client.consumer("orders", group="slow") as consumer:
            for message in consumer.fetch(30, timeout=10):
                if message.json()["n"] % 10 == 3:
                    message.reject("no such customer")
                else:
                    message.ack()
        client.rotate_segment()
        wait_until(lambda: any(each.is_sealed for each in visible(str(made))))
        yield made


@pytest.fixture(scope="module")
def answers(spark: SparkSession, root: Path, directory: Path) -> dict[str, Any]:
    given = sys.argv
    sys.argv = ["questions.py", str(directory)]
    try:
        made = runpy.run_path(str(root / "examples" / "spark" / "questions.py"))
    finally:
        sys.argv = given
        for view in ("messages", "batches", "records", "acks"):
            spark.catalog.dropTempView(view)
    return {name: [row.asDict() for row in made[name].collect()] for name in ("busiest", "slowest", "poison")}


def test_the_busiest_channel_of_the_hour_is_found(answers: dict[str, Any], directory: Path) -> None:
    counts: Counter[tuple[int, str]] = Counter()  # by hour, should it have turned while the log was made
    names = catalog_of(str(directory)).names
    for segment in visible(str(directory)):
        for frame in read(segment):
            assert isinstance(frame, Frame)
            for each in published_in(decode(frame.type, frame.payload)):
                counts[each.min_timestamp_us // HOUR_US, names[each.channel_id]] += each.count
    expected = []
    for hour in sorted({hour for hour, _ in counts}):
        messages, name = min((-count, name) for (at, name), count in counts.items() if at == hour)
        expected.append((hour, name, -messages))
    assert sum(counts.values()) == 93
    assert len(expected) > 1 or expected[0][1:] == ("orders", 50)
    found = [(row["hour"].timestamp() / 3600, row["channel"], row["messages"]) for row in answers["busiest"]]
    assert found == expected


def test_every_group_has_its_latencies_and_the_slowest_comes_first(answers: dict[str, Any]) -> None:
    # the slow group began when the quick one was done
    assert [(row["group"], row["acked"]) for row in answers["slowest"]] == [("slow", 27), ("quick", 50)]
    assert [row["channel"] for row in answers["slowest"]] == ["orders", "orders"]
    slow, quick = answers["slowest"]
    assert slow["p99_ms"] > quick["p99_ms"] >= quick["median_ms"] > 0
    assert slow["p99_ms"] >= slow["median_ms"] > 0


def test_poison_messages_are_told_with_their_reason(answers: dict[str, Any]) -> None:
    (row,) = answers["poison"]
    assert row == {
        "channel": "orders",
        "group": "slow",
        "reason": "no such customer",
        "key": "c1",
        "messages": 3,
        "first_one": '{"n":3}',
    }
