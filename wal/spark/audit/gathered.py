"""What `wal.spark.audit.tables` does by shuffles, for a log whose lists fit into one process. Imports no pyspark.

Most do: a gigabyte of batches leaves less than a megabyte of steps. A shuffle costs a second or two whatever it moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from wal.spark.audit.steps import group_latencies

Row: TypeAlias = dict[str, Any]

TOP_KEYS = 20  # of each channel
MOST_PRODUCERS = 10_000


def table(rows: pa.Table, name: str) -> pa.Table:
    """One of the lists in the rows as a table of its own."""
    return pa.Table.from_struct_array(pc.list_flatten(rows[name].combine_chunks()))


def keys(found: pa.Table) -> list[Row]:
    """The most frequent keys of each channel, with how many different ones and how many keyed messages it has."""
    counted = found.group_by(["channel_id", "key"]).aggregate([("messages", "sum")])
    counted = counted.rename_columns(["channel_id", "key", "messages"])
    counted = counted.sort_by([("channel_id", "ascending"), ("messages", "descending"), ("key", "ascending")])
    made: list[Row] = []
    for channel_id in pc.unique(counted["channel_id"]).to_pylist():
        channel = counted.filter(pc.equal(counted["channel_id"], channel_id))
        about = {"distinct_keys": channel.num_rows, "keyed": pc.sum(channel["messages"]).as_py()}
        for rank, row in enumerate(channel.slice(0, TOP_KEYS).to_pylist(), 1):
            made.append({**row, **about, "rank": rank})
    return made


def producers(ranges: pa.Table) -> list[Row]:
    """First and last sequence of each producer, and how many in between are not there; the worst first."""
    made: dict[tuple[int, str], Row] = {}
    for row in ranges.sort_by([("first", "ascending"), ("last", "ascending")]).to_pylist():
        key = (row["channel_id"], row["producer"])
        known = made.get(key)
        if known is None:
            ends = {"first_sequence": row["first"], "last_sequence": row["last"], "gaps": 0, "missing": 0}
            made[key] = {"channel_id": key[0], "producer": key[1], **ends}
            continue
        hole = row["first"] - known["last_sequence"] - 1
        if hole > 0:
            known["gaps"] += 1
            known["missing"] += hole
        known["last_sequence"] = max(known["last_sequence"], row["last"])
    order = sorted(made.values(), key=lambda row: (-row["missing"], row["channel_id"], row["producer"]))
    return order[:MOST_PRODUCERS]


def latencies(steps: pa.Table, more: Sequence[tuple[int, int, int, int, bytes]]) -> list[Row]:
    """Histograms of the time from publish to ack of each group: bucket, messages. `more`: further steps."""
    stretches: dict[tuple[int, int, int], list[tuple[int | None, bytes]]] = {}
    found = zip(
        *(steps[name].to_pylist() for name in ("channel_id", "partition", "stretch", "group_id", "packed")), strict=True
    )
    for channel_id, partition, stretch, group_id, packed in [*found, *more]:
        stretches.setdefault((channel_id, partition, stretch), []).append((group_id, packed))
    total: Counter[tuple[int, int, int]] = Counter()
    for (channel_id, _, _), some in stretches.items():
        for group_id, bucket, messages in group_latencies(some):
            total[channel_id, group_id, bucket] += messages
    told = ("channel_id", "group_id", "bucket", "messages")
    return [dict(zip(told, (*key, messages), strict=True)) for key, messages in total.items()]
