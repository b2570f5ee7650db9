"""An audit of a log: is it whole, and what is in it. `audit` is the whole job; it only reads.

Spark's workers read every segment once (`auditsource`). The verdict is then a matter of the driver (`verdict`), as are
the small tables (`digest`); keys, producers and latencies are put together by Spark (`tables`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from wal.continuity import Damage
from wal.manifest import Manifest
from wal.spark.audit import gathered, tables
from wal.spark.audit.digest import Digest, Names, Row, named
from wal.spark.audit.source import summaries
from wal.spark.audit.steps import Steps, middle_of, percentile
from wal.spark.audit.summary import LARGE, unpacked
from wal.spark.audit.verdict import COLUMNS, again, chain_of, verdict
from wal.verify import Report

# of the microseconds from publish to ack
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
MOST_GATHERED_BYTES = 32 << 20  # beyond this, what grows with the messages is put together by shuffles
_STEPS = "channel_id long, partition int, stretch long, group_id long, packed binary"

Step: TypeAlias = tuple[int, int, int, int, bytes]


@dataclass(slots=True)
class Audit:
    """What was found. The tables are lists of rows, by name."""

    report: Report
    made_us: int
    seconds: float = 0.0
    is_deep: bool = False
    width_us: int = 0  # of the times in rates and lags
    savings: dict[str, int] = field(default_factory=dict)  # bytes that a compaction would give back, by what they are
    tables: dict[str, list[Row]] = field(default_factory=dict)

    @property
    def is_intact(self) -> bool:
        return self.report.is_intact

    def fields(self) -> dict[str, Any]:
        """Everything, as plain values."""
        report = self.report
        return {
            "log": str(report.log_uuid),
            "segments": report.segments,
            "frames": report.frames,
            "messages": report.messages,
            "bytes": report.bytes,
            "torn_bytes": report.torn_bytes,
            "intact": report.is_intact,
            "retired_meanwhile": sum(row["state"] == "left" for row in self.tables.get("segments", ())),
            "seconds": round(self.seconds, 3),
            "deep": self.is_deep,
            "savings": self.savings,
            "damage": [damage_row(each) for each in report.damage],
            **{name: self.tables.get(name, []) for name in ("channels", "groups", "producers")},
        }


def audit(spark: SparkSession, root: str, *, is_deep: bool = False) -> Audit:
    """Read a whole log and tell what is in it and what is wrong with it.

    `is_deep`: look into every message, not into one frame of a hundred. Raises NotALog, UnsupportedVersion, OSError.
    """
    began = time.perf_counter()
    manifest, report = chain_of(root)
    found = Audit(report, time.time_ns() // 1000, is_deep=is_deep)
    if manifest is not None:
        rows = summaries(spark, root, manifest, is_deep=is_deep).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            _fill(root, manifest, rows, found)
        finally:
            rows.unpersist()
    found.seconds = time.perf_counter() - began
    return found


def _fill(root: str, manifest: Manifest, rows: DataFrame, found: Audit) -> None:
    read = rows.select("small", "weight").toArrow()
    small = unpacked(each for each in read["small"].to_pylist() if each is not None)
    digest = Digest(small, manifest)
    names = digest.names
    verdict(found.report, manifest, small.select(COLUMNS).to_pylist(), again(root, manifest))
    partitions = digest.partitions()
    found.width_us, rates = digest.rates()
    found.savings = digest.savings(partitions)
    lags = digest.lags(found.width_us, rates)
    groups = digest.groups()
    fits = sum(read["weight"].to_pylist()) <= MOST_GATHERED_BYTES
    keys, producers, latencies = (_gathered if fits else _shuffled)(rows, _open_steps(digest))
    for row in latencies:
        row["microseconds"] = middle_of(row["bucket"])
    samples = digest.total("samples", ("channel_id",), *_SAMPLED)
    channels = _channels(partitions, samples, keys, names, is_deep=found.is_deep)
    found.savings["replaced"] = sum(
        (row["bytes"] - row["dead_bytes"]) * (row["replaced"] or 0) // max(1, row["messages"]) for row in channels
    )
    found.tables = {
        "segments": digest.segments(),
        "damage": [damage_row(each) for each in found.report.damage],
        "channels": channels,
        "partitions": partitions,
        "rates": rates,
        "batches": named(digest.total("batches", ("channel_id", "bits"), "frames"), names),
        "sizes": named(digest.total("sizes", ("channel_id", "bits"), "messages"), names),
        "keys": named(keys, names),
        "groups": _groups(groups, lags, latencies),
        "lags": lags,
        "latencies": named(latencies, names),
        "reasons": named(digest.total("reasons", ("channel_id", "group_id", "reason"), "messages"), names),
        "producers": named(producers, names),
    }


_SAMPLED = ("frames", "messages", "keyed", "value_bytes", "batch_bytes", "compressed_bytes", "malformed")


def damage_row(damage: Damage) -> Row:
    """A damaged range as `mq wal verify` shows it."""
    offsets = [{name: getattr(loss, name) for name in loss.__slots__} for loss in damage.offsets]
    return {name: getattr(damage, name) for name in damage.__slots__ if name != "offsets"} | {"offsets": offsets}


def _gathered(rows: DataFrame, opened: list[Step]) -> tuple[list[Row], list[Row], list[Row]]:
    lists = rows.select(*LARGE).toArrow()
    steps, keys, producers = (gathered.table(lists, name) for name in LARGE)
    return gathered.keys(keys), gathered.producers(producers), _in_order(gathered.latencies(steps, opened))


def _shuffled(rows: DataFrame, opened: list[Step]) -> tuple[list[Row], list[Row], list[Row]]:
    steps, keys, producers = (tables.table(rows, name) for name in LARGE)
    if opened:
        steps = steps.union(rows.sparkSession.createDataFrame(opened, _STEPS))
    return (
        _collect(tables.keys(keys)),
        _collect(tables.producers(producers)),
        _in_order(_collect(tables.latencies(steps))),
    )


def _open_steps(digest: Digest) -> list[Step]:
    """The acks that no segment could tell alone."""
    opened: Steps[tuple[int, int, int]] = Steps()
    for each in digest.open_commits():
        key = (each["channel_id"], each["partition"], each["group_id"])
        opened.add(key, each["start"], each["end"], each["time_us"])
    return [(*key[:2], stretch, key[2], packed) for key, stretch, packed in opened.take()]


def _in_order(latencies: list[Row]) -> list[Row]:
    return sorted(latencies, key=lambda row: (row["channel_id"], row["group_id"], row["bucket"]))


def _collect(frame: DataFrame) -> list[Row]:
    found: list[Row] = frame.toArrow().to_pylist()
    return found


def _groups(groups: list[Row], lags: list[Row], latencies: list[Row]) -> list[Row]:
    """What there is to say about each group as a whole."""
    behind: dict[tuple[int, int], list[int]] = {}
    for row in lags:
        behind.setdefault((row["channel_id"], row["group_id"]), []).append(row["lag"])
    histograms: dict[tuple[int, int], dict[int, int]] = {}
    for row in latencies:
        histograms.setdefault((row["channel_id"], row["group_id"]), {})[row["bucket"]] = row["messages"]
    made = []
    for row in groups:
        where = (row["channel_id"], row["group_id"])
        series, histogram = behind.get(where), histograms.get(where)
        lag = {"lag": series[-1] if series else None, "max_lag": max(series) if series else None}
        waits = {
            f"ack_{name}": percentile(histogram, share) if histogram else None for name, share in PERCENTILES.items()
        }
        made.append({**row, **lag, **waits})
    return made


def _channels(partitions: list[Row], samples: list[Row], keys: list[Row], names: Names, *, is_deep: bool) -> list[Row]:
    """What there is to say about each channel as a whole."""
    sampled = {row["channel_id"]: row for row in samples}
    top = {row["channel_id"]: row for row in keys if row["rank"] == 1}
    channels: dict[int, Row] = {}
    for row in partitions:
        channel_id = row["channel_id"]
        empty = {"partitions": 0, "messages": 0, "bytes": 0, "frames": 0, "dead_bytes": 0, "max_batch": 0}
        times = {"min_us": row["min_us"], "max_us": row["max_us"]}
        channel = channels.setdefault(channel_id, {"channel_id": channel_id, **empty, **times})
        channel["partitions"] += 1
        for name in ("messages", "bytes", "frames", "dead_bytes"):
            channel[name] += row[name]
        channel["max_batch"] = max(channel["max_batch"], row["max_batch"])
        channel["min_us"] = min(channel["min_us"], row["min_us"])
        channel["max_us"] = max(channel["max_us"], row["max_us"])
    for channel_id, channel in channels.items():
        looked, key = sampled.get(channel_id), top.get(channel_id)
        channel["is_deleted"] = channel_id in names.deleted
        channel["sampled_messages"] = looked["messages"] if looked else 0
        channel["mean_size"] = looked["value_bytes"] / looked["messages"] if looked and looked["messages"] else None
        channel["compression"] = (
            looked["batch_bytes"] / looked["compressed_bytes"] if looked and looked["compressed_bytes"] else None
        )
        channel["keyed"] = looked["keyed"] / looked["messages"] if looked and looked["messages"] else None
        channel["distinct_keys"] = key["distinct_keys"] if key else 0
        channel["top_key_share"] = key["messages"] / key["keyed"] if key else None
        is_replacing = is_deep and channel_id in names.keeps_latest  # a sample knows few of the messages of a key
        channel["replaced"] = key["keyed"] - key["distinct_keys"] if is_replacing and key else None
    return named(channels.values(), names)
