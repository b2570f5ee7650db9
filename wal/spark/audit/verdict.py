"""Whether a log is whole, from the rows of its segments. Imports no pyspark.

The rows may have been made anywhere and in any order; the verdict is the one that `wal.verify` comes to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from wal.continuity import Damage, Key, Loss
from wal.errors import CorruptSegment
from wal.manifest import MANIFEST, Manifest
from wal.spark.audit.offsetruns import Continuity, Finding, Run
from wal.spark.audit.summary import summarise
from wal.spark.read.listing import NotALog, manifest_of
from wal.spark.read.storage import storage
from wal.verify import Report

Row: TypeAlias = Mapping[str, Any]

# The columns of a segment's last row that a verdict needs.
COLUMNS = ["number", "segment", "state", "frames", "messages", "bytes", "torn_bytes", "runs", "findings"]


def chain_of(root: str) -> tuple[Manifest | None, Report]:
    """The chain of a log and an empty report on it; no chain where the MANIFEST is damaged or lost.

    Raises NotALog where nothing speaks of a log, UnsupportedVersion, OSError.
    """
    report = Report(root)
    try:
        manifest = manifest_of(root)
        report.log_uuid = manifest.log_uuid
        return manifest, report
    except CorruptSegment as error:
        report.damage.append(Damage(MANIFEST, error.position, 0, 0, 0, error.reason))
    except NotALog:
        disk, folder = storage(root)
        if not any(name.endswith(".wal") for name in disk.list(folder)):
            raise
        report.damage.append(Damage(MANIFEST, 0, 0, 0, 0, "the manifest is missing"))
    return None, report


def again(root: str, manifest: Manifest) -> Callable[[int, Mapping[Key, int]], Row]:
    """How to read a segment once more, knowing what was there before it."""

    def read(number: int, floors: Mapping[Key, int]) -> Row:
        *_, last = summarise(*storage(root), manifest, number, manifest.segments[number], floors=floors)
        return last

    return read


def verdict(
    report: Report, manifest: Manifest, rows: Iterable[Row], reread: Callable[[int, Mapping[Key, int]], Row]
) -> Report:
    """Complete a report by the last rows of all segments."""
    judge = Continuity(report.damage)
    for row in sorted(rows, key=lambda each: int(each["number"])):
        entry = manifest.segments[row["number"]]
        floors = judge.floors(_runs(row))
        if floors:
            row = reread(row["number"], floors)
        findings = [_finding(each) for each in row["findings"]]
        judge.take(entry, row["segment"], _runs(row), findings, has_left=row["state"] == "left")
        report.segments += row["state"] == "read"
        report.frames += row["frames"]
        report.messages += row["messages"]
        report.bytes += row["bytes"]
        report.torn_bytes += row["torn_bytes"]
    return report


def _runs(row: Row) -> list[Run]:
    return [Run(**each) for each in row["runs"]]


def _finding(each: Row) -> Finding:
    losses = [Loss(loss["channel_id"], loss["partition"], loss["start"], loss["end"]) for loss in each["losses"]]
    return Finding(**{**each, "losses": losses})
