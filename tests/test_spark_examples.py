"""The questions of examples/spark, asked of a log that a real broker wrote."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from process import wait_until

import mq
from mq.testing import broker
from wal.spark.read.listing import visible

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


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


def test_the_busiest_channel_of_the_hour_is_found(answers: dict[str, Any]) -> None:
    found = [(row["channel"], row["messages"]) for row in answers["busiest"]]
    assert found == [("orders", 50)] or len(found) == 2, "unless the hour turned while the log was made"
    assert all(row["hour"].minute == 0 for row in answers["busiest"])


def test_every_group_has_its_latencies_and_the_slowest_comes_first(answers: dict[str, Any]) -> None:
    groups = {row["group"]: row for row in answers["slowest"]}
    assert {name: row["acked"] for name, row in groups.items()} == {"quick": 50, "slow": 27}
    assert groups["slow"]["median_ms"] >= 0
    tails = [row["p99_ms"] for row in answers["slowest"]]
    assert tails == sorted(tails, reverse=True)


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
