"""`mq spark maintain`: rotate, audit, compact, export; one command for cron or a service of its own."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mq.cli import output as out_
from mq.cli.failure import FAILED, say
from mq.cli.option import DURATION, SIZE, output_option, server_option
from mq.cli.spark.option import one_data_dir_option, out_option, session_options

if TYPE_CHECKING:
    from wal.spark.read.listing import Segment
    from wal.spark.session import SparkSession

HISTORY = "history.jsonl"
LOCK = "maintaining"  # in the log's staging/
SEALED_SECONDS = 30.0  # until a segment that a broker was asked to seal is sealed


@click.command(short_help="audit, compact and export in one go")
@one_data_dir_option
@out_option("./maintenance", "directory of history.jsonl, audit/ and lake/")
@click.option("--rotate-after", type=DURATION, default="1h", show_default=True, help="seal a segment that is older")
@click.option("--report-every", type=DURATION, default="1d", show_default=True, help="a whole audit, with its report")
@click.option("--pays", type=SIZE, default="64MiB", show_default=True, help="compact only where this much is freed")
@click.option("--no-audit", is_flag=True, help="leave that out")
@click.option("--no-compact", is_flag=True, help="leave that out")
@click.option("--no-export", is_flag=True, help="leave that out")
@click.option("--every", type=DURATION, metavar="DURATION", help="go on, a run each time so much has passed")
@server_option
@session_options
@output_option
def maintain(
    data_dir: str,
    out: str,
    rotate_after: int,
    report_every: int,
    pays: int,
    no_audit: bool,
    no_compact: bool,
    no_export: bool,
    every: int | None,
    server: str | None,
    master: str | None,
    verbose: bool,
    output: str,
) -> None:
    """Keep a log in order: seal the segment that is being written if it is old, check segments that are new, compact
    where it pays, export what is new.

    Two never run at once for one log. Each run adds a line to history.jsonl in --out. A step that fails is told there,
    and the rest is done all the same; but a damaged log is not compacted.

    \b
    Example:
      mq spark maintain --data-dir ./data --out ./maintenance
      mq spark maintain --data-dir ./data --out ./maintenance --every 15m
    """
    from wal.spark.read.storage import folder_of, is_local

    if not is_local(data_dir) or not is_local(out):
        raise click.UsageError("a log is maintained where it lies: give directories of this machine, no URIs")
    run = Run(folder_of(data_dir), Path(folder_of(out)), server, master, verbose)
    while True:
        began = time.monotonic()
        with run.alone():
            line = run.all_of(
                {
                    "rotate": lambda: run.rotate(rotate_after),
                    **({} if no_audit else {"audit": lambda: run.audit(report_every)}),
                    **({} if no_compact else {"compact": lambda: run.compact(pays)}),
                    **({} if no_export else {"export": run.export}),
                }
            )
        out_.show_one(
            {name: _short(value) for name, value in line.items()}, output, line if output != "table" else None
        )
        if every is None:
            sys.exit(0 if line["ok"] else FAILED)
        time.sleep(max(0.0, every / 1000 - (time.monotonic() - began)))


class Run:
    """The steps, and what the runs before left behind."""

    def __init__(self, root: str, out: Path, server: str | None, master: str | None, verbose: bool) -> None:
        self._root = root
        self._out = out
        self._server = server
        self._master = master
        self._verbose = verbose
        self._is_damaged = False

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Raises LogLocked where another run is under way."""
        from wal.disk import DirectDisk
        from wal.errors import LogLocked
        from wal.proposal import STAGING, path_in_staging
        from wal.spark.read.listing import manifest_of

        manifest_of(self._root)  # what is no log gets no folder from us
        disk = DirectDisk()
        disk.make_directory(os.path.join(self._root, STAGING))
        try:
            lock = disk.lock(path_in_staging(self._root, LOCK))
        except LogLocked:
            raise LogLocked(f"another maintenance of {self._root} is running") from None
        try:
            yield
        finally:
            disk.close(lock)

    def all_of(self, steps: dict[str, Callable[[], dict[str, Any]]]) -> dict[str, Any]:
        """One after the other, whatever becomes of each; returns the line of the history."""
        began = time.time()
        line: dict[str, Any] = {"at": datetime.fromtimestamp(began, UTC).isoformat(timespec="seconds"), "ok": True}
        for name, step in steps.items():
            try:
                line[name] = step()
            except Exception as error:
                line[name] = {"error": _reason(error)}
                if self._verbose:
                    raise
            if "error" in line[name]:
                line["ok"] = False
                say(f"{name}: {line[name]['error']}")
        line["seconds"] = round(time.time() - began, 1)
        self._out.mkdir(parents=True, exist_ok=True)
        with (self._out / HISTORY).open("a") as history:
            history.write(json.dumps(line) + "\n")
        return line

    # ---------------------------------------------------------------- the steps

    def rotate(self, after_ms: int) -> dict[str, Any]:
        """Ask the broker to seal the segment that it writes, if that is old enough."""
        from mq.cli.install import is_owned
        from mq.cli.option import connect
        from wal.spark.read.listing import visible

        age_ms = _age_ms(visible(self._root)[-1])
        if age_ms is None or age_ms < after_ms or not is_owned(self._root):
            return {"rotated": False}
        before = len(visible(self._root, sealed_only=True))
        with connect(self._server) as client:
            client.rotate_segment()
        end = time.monotonic() + SEALED_SECONDS
        while len(visible(self._root, sealed_only=True)) == before:
            if time.monotonic() > end:
                return {"rotated": False, "error": "the broker has not sealed its segment; is it another one's log?"}
            time.sleep(0.05)
        return {"rotated": True}

    def audit(self, report_every_ms: int) -> dict[str, Any]:
        """Check the segments that no run has checked; from time to time all of them, with a report."""
        from wal.spark.compact.hands import SparkHands
        from wal.spark.read.listing import visible

        segments = visible(self._root, sealed_only=True)
        known = self._last("audit", "checked") or {}
        checked = {segment.name: segment.size for segment in segments}
        if self._is_report_due(report_every_ms):
            return {**self._report(), "checked": checked}
        new = [segment for segment in segments if known.get(segment.name) != segment.size]
        found = SparkHands(self._spark()).each(new, _check) if new else []
        damage = [each for segment in found for each in segment]
        self._is_damaged = bool(damage)
        done: dict[str, Any] = {"segments": len(new), "report": "", "damage": damage}
        if damage:
            return {**done, "error": f"{len(damage)} damaged ranges; the first: {damage[0]}"}
        return {**done, "checked": checked}

    def compact(self, pays_bytes: int) -> dict[str, Any]:
        from mq.cli.spark.compact import run

        if self._is_damaged:
            return {"skipped": "the log is damaged"}
        done = run(
            self._root, install=True, at_least_bytes=pays_bytes,
            server=self._server, master=self._master, verbose=self._verbose,
        )  # fmt: skip
        kept = ("segments", "rewritten", "droppable_messages", "droppable_bytes", "freed_bytes", "proposals")
        result = {name: done[name] for name in kept}
        return {**result, "error": f"{done['refused']} proposals are refused"} if done["refused"] else result

    def export(self) -> dict[str, Any]:
        from wal.spark.export.job import export

        done = export(self._spark, self._root, str(self._out / "lake"))
        return {
            "messages": done.messages,
            "files": len(done.files),
            "through": done.through,
            "missed": done.missed,
        }

    # ---------------------------------------------------------------- inside

    def _spark(self) -> SparkSession:
        from wal.spark.session import session

        return session("mq maintain", master=self._master, verbose=self._verbose)

    def _report(self) -> dict[str, Any]:
        from wal.spark.audit.files import write
        from wal.spark.audit.job import audit
        from wal.spark.progress import run

        spark = self._spark()
        found = run(spark, "auditing", lambda: audit(spark, self._root))
        damage = [f"{each.segment}, byte {each.position}: {each.reason}" for each in found.report.damage]
        self._is_damaged = bool(damage)
        done = {"segments": found.report.segments, "report": write(found, str(self._out / "audit")), "damage": damage}
        return {**done, "error": f"{len(damage)} damaged ranges; see the report"} if damage else done

    def _is_report_due(self, every_ms: int) -> bool:
        for line in self._lines():
            if line.get("audit", {}).get("report"):
                return time.time() - datetime.fromisoformat(line["at"]).timestamp() >= every_ms / 1000
        return True

    def _last(self, step: str, field: str) -> Any:
        """What the newest run that knows a field says of it."""
        return next((line[step][field] for line in self._lines() if field in line.get(step, {})), None)

    def _lines(self) -> Iterator[dict[str, Any]]:
        """The history, newest first; a line that was cut short by a full disk is passed over."""
        try:
            lines = (self._out / HISTORY).read_text().splitlines()
        except FileNotFoundError:
            return
        for text in reversed(lines):
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict):
                yield line


def _check(segment: Segment) -> list[str]:
    """What is damaged in one segment, a line for each range."""
    from wal.spark.read.listing import manifest_of
    from wal.verify import verify_segment

    manifest = manifest_of(segment.root)
    entry = next((each for each in manifest.segments if each.name(manifest.extension) == segment.name), None)
    if entry is None:
        return []  # it was replaced since it was listed, and whoever did that has read it
    found = verify_segment(segment.root, manifest, entry)
    return [f"{each.segment}, byte {each.position}: {each.reason}" for each in found]


def _age_ms(segment: Segment) -> float | None:
    """How long ago the first record with a time was written; None: there is none."""
    from wal.frame import Frame
    from wal.record import decode
    from wal.spark.read.scan import read

    if segment.is_sealed:
        return None
    for item in read(segment):
        if isinstance(item, Frame):
            record = decode(item.type, item.payload)
            written_us = getattr(record, "timestamp_us", 0) or getattr(record, "min_timestamp_us", 0)
            if written_us:
                return time.time() * 1000 - written_us / 1000
    return None


def _reason(error: Exception) -> str:
    from wal.spark.failure import reason

    return reason(error) or f"{type(error).__name__}: {error}"


def _short(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    told = {name: each for name, each in value.items() if not isinstance(each, dict | list) and each != ""}
    return ", ".join(f"{name} {each}" for name, each in told.items())
