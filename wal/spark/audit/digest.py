"""The small tables of an audit, put together from the rows of all segments. Imports no pyspark.

A segment contributes a few rows to each of these, however many messages it holds, so one process has room for all. The
tables carry channels and groups by number and by name; times are microseconds inside, timestamps in what is written.

How far a group was behind comes from notes that segments made apart. The head of a partition at a time is the end of
what was published until then. What a group has done by then is told in absolute terms at times, and by acks between.
Until it is told for the first time, nobody knows, and nothing is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from wal.manifest import Manifest
from wal.spark.audit.summary import SCALARS, TABLES
from wal.spark.audit.traffic import WIDTHS_US

Row: TypeAlias = dict[str, Any]

_PARTITION, _GROUP = ("channel_id", "partition"), ("channel_id", "group_id")
_MOST_POINTS = 200  # of a curve: more than a screen shows


@dataclass(slots=True)
class Names:
    """What channels and groups are called, as the newest record says."""

    channels: dict[int, str] = field(default_factory=dict)
    groups: dict[tuple[int, int], str] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)
    keeps_latest: set[int] = field(default_factory=set)

    def channel(self, channel_id: int) -> str:
        return self.channels.get(channel_id, f"#{channel_id}")

    def group(self, channel_id: int, group_id: int) -> str:
        return self.groups.get((channel_id, group_id), f"#{group_id}")


class Digest:
    """The rows of all segments, by table."""

    def __init__(self, rows: pa.Table, manifest: Manifest) -> None:
        """`rows` as `wal.spark.audit.summary.unpacked` gives them."""
        self._rows = rows
        self._manifest = manifest
        self.names = self._names()

    def exploded(self, name: str) -> pa.Table:
        """One of the lists as a table, with the number of its segment, in the order of the log."""
        lists = self._rows[name].combine_chunks()
        structs = pc.list_flatten(lists)
        numbers = self._rows["number"].take(pc.list_parent_indices(lists))
        fields = [each.name for each in TABLES[name].value_type]
        columns = [pc.struct_field(structs, each) for each in fields]
        return pa.table([*columns, numbers], names=[*fields, "segment_number"])

    def segments(self) -> list[Row]:
        found: list[Row] = self._rows.select(list(SCALARS)).to_pylist()
        return found

    def total(self, name: str, by: Sequence[str], *sums: str) -> list[Row]:
        """A table added up."""
        return _grouped(self.exploded(name), by, [(each, "sum") for each in sums])

    def partitions(self) -> list[Row]:
        """Each partition, and how much of it nobody can ask for any more."""
        pieces = self.exploded("partitions")
        sums = [("frames", "sum"), ("messages", "sum"), ("bytes", "sum"), ("first_offset", "min")]
        sums += [("end_offset", "max"), ("max_batch", "max"), ("min_us", "min"), ("max_us", "max")]
        found = _grouped(pieces, _PARTITION, sums)
        starts = self.starts()
        dead = self._dead_bytes(pieces, starts)
        for row in found:
            key = (row["channel_id"], row["partition"])
            row["start_offset"], row["expired"] = starts.get(key, (0, 0))
            row["dead_bytes"] = min(row["bytes"], dead.get(key, 0))
        return self._named(found)

    def starts(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Where each partition begins by now, and how many of its messages were said to have expired."""
        found = _grouped(self.exploded("starts"), _PARTITION, [("start_offset", "max"), ("expired", "sum")])
        return {(row["channel_id"], row["partition"]): (row["start_offset"], row["expired"]) for row in found}

    def rates(self) -> tuple[int, list[Row]]:
        """Messages and bytes of each partition over time, and the width of a time."""
        rates = self.exploded("rates")
        if not rates.num_rows:
            return WIDTHS_US[0], []
        first, last = pc.min(rates["start_us"]).as_py(), pc.max(rates["start_us"]).as_py()
        widths = [width for width in WIDTHS_US if width >= pc.max(rates["width_us"]).as_py()]
        width = width_for(first, last, widths)
        starts = pc.multiply(pc.divide(rates["start_us"], width), width)
        rates = rates.set_column(rates.schema.get_field_index("start_us"), "start_us", starts)
        sums = [("messages", "sum"), ("bytes", "sum"), ("end_offset", "max")]
        return width, self._named(_grouped(rates, (*_PARTITION, "start_us"), sums))

    def lags(self, width_us: int, rates: Iterable[Row]) -> list[Row]:
        progress = self.exploded("progress").to_pylist()
        return self._named(lags(rates, progress, self.exploded("starts").to_pylist(), width_us))

    def open_commits(self) -> list[Row]:
        """Cumulative acks that reach over the border of a segment."""
        return opened(self.exploded("commits").to_pylist())

    def groups(self) -> list[Row]:
        """Each group with what it did."""
        names = [("acked", "sum"), ("acks", "sum"), ("redelivered", "sum"), ("max_deliveries", "max")]
        found = _grouped(self.exploded("groups"), _GROUP, [*names, ("dead_letters", "sum")])
        by_key = {(row["channel_id"], row["group_id"]): row for row in found}
        empty = dict.fromkeys(("acked", "acks", "redelivered", "max_deliveries", "dead_letters"), 0)
        for channel_id, group_id in self.names.groups:  # one that never did anything is a finding too
            by_key.setdefault((channel_id, group_id), {"channel_id": channel_id, "group_id": group_id, **empty})
        for commit in self.open_commits():
            by_key[commit["channel_id"], commit["group_id"]]["acked"] += commit["end"] - commit["start"]
        return self._named(sorted(by_key.values(), key=lambda row: (row["channel_id"], row["group_id"])))

    def savings(self, partitions: Iterable[Row]) -> dict[str, int]:
        """Bytes that a compaction would give back: what is trimmed, expired or deleted, and records no replay needs."""
        messages = sum(row["dead_bytes"] for row in partitions)
        runs = self._manifest.snapshots
        floor = runs[0].begin if len(runs) > 1 else 0
        old = [row for row in self.segments() if row["is_sealed"] and row["last_sequence"] < floor]
        return {"messages": messages, "records": sum(row["other_bytes"] or 0 for row in old)}

    def _dead_bytes(self, pieces: pa.Table, starts: Mapping[tuple[int, int], tuple[int, int]]) -> dict[Any, int]:
        """Of a segment that a partition's start lies in, as much as its offsets say."""
        dead: dict[tuple[int, int], int] = {}
        lived: dict[tuple[int, int], list[int]] = {}
        for row in pieces.to_pylist():
            key = (row["channel_id"], row["partition"])
            start, _ = starts.get(key, (0, 0))
            if row["channel_id"] in self.names.deleted:
                start = row["end_offset"]
            span = max(1, row["end_offset"] - row["first_offset"])
            share = min(1.0, max(0.0, (start - row["first_offset"]) / span))
            dead[key] = dead.get(key, 0) + int(row["bytes"] * share)
            live = lived.setdefault(key, [0, 0])
            live[0] += int(row["bytes"] * (1 - share))
            live[1] += int(row["messages"] * (1 - share))
        for key, (_, expired) in starts.items():
            size, messages = lived.get(key, [0, 0])
            dead[key] = dead.get(key, 0) + (size * min(expired, messages) // messages if messages else 0)
        return dead

    def _names(self) -> Names:
        names = Names()
        for row in self.exploded("names").to_pylist():
            channel_id, group_id = row["channel_id"], row["group_id"]
            if group_id:
                if row["name"]:
                    names.groups[channel_id, group_id] = row["name"]
                if row["is_deleted"]:
                    names.groups.pop((channel_id, group_id), None)
                continue
            if row["name"]:
                names.channels[channel_id] = row["name"]
            if row["keeps_latest"] is not None:
                (names.keeps_latest.add if row["keeps_latest"] else names.keeps_latest.discard)(channel_id)
            if row["is_deleted"]:
                names.deleted.add(channel_id)
        return names

    def _named(self, rows: Iterable[Mapping[str, Any]]) -> list[Row]:
        return named(rows, self.names)


def named(rows: Iterable[Mapping[str, Any]], names: Names) -> list[Row]:
    """The same rows with the names of channel and group before everything else."""
    found = []
    for row in rows:
        told: Row = {"channel": names.channel(row["channel_id"])}
        if "group_id" in row:
            told["group"] = names.group(row["channel_id"], row["group_id"])
        found.append({**told, **row})
    return found


def _grouped(table: pa.Table, by: Sequence[str], sums: Sequence[tuple[str, str]]) -> list[Row]:
    if not table.num_rows:
        return []
    added = table.group_by(list(by)).aggregate([(name, act) for name, act in sums])
    plain = {f"{name}_{act}": name for name, act in sums}
    added = added.rename_columns([plain.get(name, name) for name in added.column_names])
    rows: list[Row] = (
        added.select([*by, *(name for name, _ in sums)]).sort_by([(name, "ascending") for name in by]).to_pylist()
    )
    return rows


def width_for(first_us: int, last_us: int, widths: Iterable[int]) -> int:
    """The narrowest width of buckets that makes no more points than can be shown."""
    choice = sorted(widths)
    for width in choice:
        if (last_us - first_us) // width < _MOST_POINTS:
            return width
    return choice[-1]


def lags(rates: Iterable[Row], progress: Iterable[Row], starts: Iterable[Row], width_us: int) -> list[Row]:
    """Rows of channel_id, group_id, start_us, lag: messages that were not done at the end of that time.

    `progress` comes in the order of the log; `starts` tells what retention has taken, which waits for nobody.
    """
    heads = _highest(rates, "start_us", "end_offset", width_us)
    taken = _highest(starts, "time_us", "start_offset", width_us)
    done = _done(progress, width_us)
    times = sorted({at for series in [*heads.values(), *done.values()] for at in series})
    total: dict[tuple[int, int, int], int] = {}
    for (channel_id, group_id, partition), series in done.items():
        head, gone = heads.get((channel_id, partition), {}), taken.get((channel_id, partition), {})
        reached: int | None = None
        start = end = 0
        for at in times:
            reached = series.get(at, reached)
            start, end = max(start, gone.get(at, 0)), max(end, head.get(at, 0))
            if reached is not None:
                key = (channel_id, group_id, at)
                total[key] = total.get(key, 0) + max(0, end - max(reached, start))
    names = ("channel_id", "group_id", "start_us", "lag")
    return [dict(zip(names, (*key, lag), strict=True)) for key, lag in sorted(total.items())]


def _highest(rows: Iterable[Row], time: str, value: str, width_us: int) -> dict[tuple[int, int], dict[int, int]]:
    found: dict[tuple[int, int], dict[int, int]] = {}
    for row in rows:
        series = found.setdefault((row["channel_id"], row["partition"]), {})
        at = row[time] // width_us * width_us
        series[at] = max(series.get(at, 0), row[value])
    return found


def _done(progress: Iterable[Row], width_us: int) -> dict[tuple[int, int, int], dict[int, int]]:
    """For each group and partition what was done at the end of each time, from where it is known on."""
    now: dict[tuple[int, int, int], int] = {}
    series: dict[tuple[int, int, int], dict[int, int]] = {}
    for row in progress:
        key = (row["channel_id"], row["group_id"], row["partition"])
        if row["reset"] is not None:
            now[key] = row["reset"] + row["done"]
        elif key in now:
            now[key] += row["done"]
        else:
            continue
        series.setdefault(key, {})[row["start_us"] // width_us * width_us] = now[key]
    return series


def opened(commits: Iterable[Row]) -> list[Row]:
    """What cumulative acks covered whose beginning stands in an earlier segment than they do.

    Rows of channel_id, group_id, partition, start, end, time_us; `commits` comes in the order of the log.
    """
    positions: dict[tuple[int, int, int], int] = {}
    found: list[Row] = []
    for row in commits:
        key = (row["channel_id"], row["group_id"], row["partition"])
        before, end = positions.get(key), row["first_offset"]
        if end is not None and before is not None and end > before:
            names = ("channel_id", "group_id", "partition", "start", "end", "time_us")
            found.append(dict(zip(names, (*key, before, end, row["first_us"]), strict=True)))
        positions[key] = row["last_offset"]
    return found
