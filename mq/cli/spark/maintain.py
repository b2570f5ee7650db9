"""`mq spark maintain`: rotate, audit, export, compact; one command for cron or a service of its own."""

from __future__ import annotations

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
from mq.cli.spark.history import History
from mq.cli.spark.option import one_data_dir_option, out_option, session_options

if TYPE_CHECKING:
    from wal.spark.read.listing import Segment
    from wal.spark.session import SparkSession

LOCK = "maintaining"  # in the log's staging/
SEALED_SECONDS = 30.0  # until a segment that a broker was asked to seal is sealed


@click.command(short_help="audit, export and compact in one go")
@one_data_dir_option
@out_option("./maintenance", "directory of history.jsonl, audit/ and lake/")
@click.option("--rotate-after", type=DURATION, default="1h", show_default=True, help="seal a segment that is older")
@click.option("--report-every", type=DURATION, default="1d", show_default=True, help="a whole audit, with its report")
@click.option("--pays", type=SIZE, default="64MiB", show_default=True, help="compact only where this much is freed")
@click.option("--no-audit", is_flag=True, help="leave that out")
@click.option("--no-compact", is_flag=True, help="leave that out")
@click.option("--no-export", is_flag=True, help="leave that out")
@click.option("--offline", is_flag=True, help="no broker has the log: do without one")
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
    offline: bool,
    every: int | None,
    server: str | None,
    master: str | None,
    verbose: bool,
    output: str,
) -> None:
    """Keep a log in order: seal the segment that is being written if it is old, check segments that are new, export
    what is new, compact where it pays.

    Two never run at once for one log. Each run adds a line to history.jsonl in --out. A step that fails is told there,
    and the rest is done all the same; but a log is compacted only if it was found intact and is exported.

    \b
    Example:
      mq spark maintain --data-dir ./data --out ./maintenance
      mq spark maintain --data-dir ./data --out ./maintenance --every 15m
    """
    from wal.errors import LogLocked
    from wal.spark.read.storage import folder_of, is_local

    if not is_local(data_dir) or not is_local(out):
        raise click.UsageError("a log is maintained where it lies: give directories of this machine, no URIs")
    run = Run(folder_of(data_dir), Path(folder_of(out)), server, master, verbose, offline)
    while True:
        began = time.monotonic()
        try:
            with run.alone():
                line = run.all_of(
                    {
                        "rotate": lambda: run.rotate(rotate_after),
                        **({} if no_audit else {"audit": lambda: run.audit(report_every)}),
                        **({} if no_export else {"export": run.export}),
                        **({} if no_compact else {"compact": lambda: run.compact(pays)}),
                    }
                )
        except LogLocked as error:
            if every is None:
                raise
            say(f"{error}: this one waits for its next turn")
        else:
            told = {name: _short(value) for name, value in line.items()}
            out_.show_one(told, output, line if output != "table" else None)
            if every is None:
                sys.exit(0 if line["ok"] else FAILED)
        time.sleep(max(0.0, every / 1000 - (time.monotonic() - began)))


class Run:
    """The steps, and what the runs before left behind."""

    def __init__(
        self, root: str, out: Path, server: str | None, master: str | None, verbose: bool, is_offline: bool
    ) -> None:
        self._root = root
        self._out = out
        self._history = History(out)
        self._server = server
        self._master = master
        self._verbose = verbose
        self._is_offline = is_offline
        self._doubts: dict[str, str] = {}  # by step: why nothing may be compacted
        self._exported: int | None = None  # the last sequence; None: nobody asks for an export

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
        self._history.add(line)
        return line

    # ---------------------------------------------------------------- the steps

    def rotate(self, after_ms: int) -> dict[str, Any]:
        """Ask the broker to seal the segment that it writes, if that is old enough."""
        from mq.cli.option import connect
        from wal.spark.read.listing import visible

        age_ms = _age_ms(visible(self._root)[-1])
        if age_ms is None or age_ms < after_ms or self._is_offline:
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
        from wal.spark.read.listing import visible

        self._doubts["audit"] = "the log could not be checked"
        segments = visible(self._root, sealed_only=True)
        known = self._history.checked()
        if self._is_report_due(report_every_ms):
            done, damaged = self._report()
        else:
            done, damaged = self._look_at([each for each in segments if known.get(each.name) != each.size])
        if done["damage"]:
            self._doubts["audit"] = "the log is damaged"
        else:
            del self._doubts["audit"]
        self._history.keep_checked({each.name: each.size for each in segments if each.name not in damaged})
        return done

    def export(self) -> dict[str, Any]:
        from wal.spark.export.job import export

        self._doubts["export"] = "what is new could not be exported"
        done = export(self._spark, self._root, str(self._out / "lake"))
        self._exported = done.through
        del self._doubts["export"]
        told: dict[str, Any] = {
            "messages": done.messages,
            "files": len(done.files),
            "through": done.through,
            "missed": done.missed,
            "rewritten": done.rewritten,
            "damage": done.damage,
        }
        if done.damage:  # told once: the next run goes on behind it
            told["error"] = f"{len(done.damage)} damaged ranges are not in the lake; the first: {done.damage[0]}"
        return told

    def compact(self, pays_bytes: int) -> dict[str, Any]:
        """After the export: what goes is in the lake by then."""
        from mq.cli.spark.compact import run

        if self._doubts:
            return {"skipped": ", ".join(self._doubts.values())}
        done = run(
            self._root, install=True, at_least_bytes=pays_bytes, through=self._exported, is_offline=self._is_offline,
            server=self._server, master=self._master, verbose=self._verbose,
        )  # fmt: skip
        kept = ("segments", "rewritten", "droppable_messages", "droppable_bytes", "freed_bytes", "proposals")
        result = {name: done[name] for name in kept}
        return {**result, "error": f"{done['refused']} proposals are refused"} if done["refused"] else result

    # ---------------------------------------------------------------- inside

    def _spark(self) -> SparkSession:
        from wal.spark.session import session

        return session("mq maintain", master=self._master, verbose=self._verbose)

    def _report(self) -> tuple[dict[str, Any], set[str]]:
        """A whole audit, and the names of the segments that are damaged."""
        from wal.spark.audit.files import write
        from wal.spark.audit.job import audit
        from wal.spark.progress import run

        spark = self._spark()
        found = run(spark, "auditing", lambda: audit(spark, self._root))
        damage = [f"{each.segment}, byte {each.position}: {each.reason}" for each in found.report.damage]
        done = {"segments": found.report.segments, "report": write(found, str(self._out / "audit")), "damage": damage}
        if damage:
            done["error"] = f"{len(damage)} damaged ranges; see the report"
        return done, {each.segment for each in found.report.damage}

    def _look_at(self, segments: list[Segment]) -> tuple[dict[str, Any], set[str]]:
        """The same for some segments, and without a report."""
        from wal.spark.compact.hands import SparkHands

        found = SparkHands(self._spark()).each(segments, _check) if segments else []
        damage = [each for lines in found for each in lines]
        done: dict[str, Any] = {"segments": len(segments), "report": "", "damage": damage}
        if damage:
            done["error"] = f"{len(damage)} damaged ranges; the first: {damage[0]}"
        return done, {segment.name for segment, lines in zip(segments, found, strict=True) if lines}

    def _is_report_due(self, every_ms: int) -> bool:
        """Also where the last one found damage: only a whole audit tells that none is left."""
        last = self._history.last_report()
        if last is None:
            return True
        at, was_intact = last
        return not was_intact or time.time() - at >= every_ms / 1000


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
