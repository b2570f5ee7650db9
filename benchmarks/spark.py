"""What Spark makes of the log, on generated segments, in one run on one machine.

    make bench-spark [ARGS='--only decode --mib 512']

Ratios compare things measured a few seconds apart; the best of several rounds counts for both sides. The session is
warm: each job runs once before it is measured. Data goes to a directory under the working directory.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
from google.protobuf.message import Message
from pyspark.sql import SparkSession
from segments import CHANNEL, Shape, generate
from spark_live import held, measure

from wal.record import Published
from wal.spark.audit.job import audit
from wal.spark.compact.hands import SparkHands
from wal.spark.compact.job import plan
from wal.spark.compact.staging import clear, stage
from wal.spark.export.job import export
from wal.spark.read.listing import manifest_of, visible
from wal.spark.session import session

MIB = 1 << 20
ROWS: list[tuple[str, bool]] = []


def report(work: str, measured: str, target: str, is_reached: bool) -> None:
    ROWS.append((work, is_reached))
    print(f"{'ok  ' if is_reached else 'MISS'}  {work:<44} {measured:<44} target {target}", flush=True)


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix=".bench-spark-", dir="."))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def best_of(rounds: int, work: Callable[[], object], prepare: Callable[[], object] = lambda: None) -> float:
    """Seconds of the quickest round, after one that warms up. What makes ready for a round is not counted."""
    times = []
    for _ in range(rounds + 1):
        prepare()
        times.append(_timed(work))
    return min(times[1:])


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def size_of(log: Path) -> int:
    return sum(segment.size for segment in visible(str(log)))


class WorkerMemory:
    """The most that any Python worker of this process held while it was watched, without what it only mapped."""

    def __enter__(self) -> WorkerMemory:
        self.most = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._over.wait(0.05):
            for child in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if "pyspark.daemon" in child.cmdline():
                        memory = child.memory_info()
                        self.most = max(self.most, memory.rss - memory.shared)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


# ---------------------------------------------------------------- the rows


def audits(spark: SparkSession, here: Path, arguments: argparse.Namespace) -> None:
    shape = Shape(segments=max(2, arguments.mib // 64))
    for name, acks, target in (("integrity", False, 0.8), ("with latency percentiles", True, 0.5)):
        log = here / f"audit-{acks}"
        generate(str(log), replace(shape, acks=acks))
        with WorkerMemory() as memory:
            seconds = best_of(arguments.rounds, partial(audit, spark, str(log)))
        rate = size_of(log) / seconds / 1e9
        report(f"audit, {name}", f"{rate:.2f} GB/s", f">= {target} GB/s", rate >= target)
        report("audit, memory of a worker", f"{memory.most / MIB:.0f} MiB", "< 300 MB", memory.most < 300e6)
    half = here / "half"
    generate(str(half), replace(shape, segments=shape.segments // 2))
    factor = seconds / best_of(arguments.rounds, partial(audit, spark, str(half)))
    report("audit, twice the segments", f"{factor:.2f} x the time", "<= 2.1 x", factor <= 2.1)


def decodes(spark: SparkSession, here: Path, arguments: argparse.Namespace) -> None:
    log = here / "decode"
    count = generate(str(log), Shape(segments=max(2, arguments.mib // 128)))

    def read(columns: str | None) -> None:
        source = spark.read.format("mqwal")
        frame = (source.option("columns", columns) if columns else source).load(str(log))
        frame.write.format("noop").mode("overwrite").save()

    every = count / best_of(arguments.rounds, partial(read, None)) / 1e6
    few = count / best_of(arguments.rounds, partial(read, "channel,offset,value")) / 1e6
    report("decode, all columns", f"{every:.2f} M msg/s", ">= 1.4 M msg/s", every >= 1.4)
    report("decode, three columns", f"{few:.2f} M msg/s", "faster than all", few > every)


def exports(spark: SparkSession, here: Path, arguments: argparse.Namespace) -> None:
    log = here / "export"
    generate(str(log), Shape(segments=max(2, arguments.mib // 128)))
    numbers = iter(range(100))

    def run() -> None:
        export(spark, str(log), str(here / f"lake{next(numbers)}"), is_shown=False)

    rate = size_of(log) / best_of(arguments.rounds, run) / 1e6
    report("export to Parquet", f"{rate:.0f} MB/s of log", ">= 150 MB/s", rate >= 150)


class Trimmed:
    """Rules of a broker that needs of its log nothing but the messages of one channel."""

    def __init__(self, latest: Sequence[tuple[int, int]] = ()) -> None:
        self.latest = list(latest)

    def start_of(self, channel_id: int, partition: int) -> int:
        return 0 if channel_id == CHANNEL else 1 << 62

    def needs(self, record: Message | object) -> bool:
        return isinstance(record, Published) and record.channel_id == CHANNEL

    def passed(self, channel_id: int, partition: int) -> int:
        return 1 << 62

    def tombstones_before(self, channel_id: int, partition: int) -> int | None:
        return 0 if self.latest else None


def compact(spark: SparkSession, log: Path, rules: Trimmed) -> int:
    """Plan and stage, as the job does, each file synced; returns the bytes that were written."""
    hands, manifest = SparkHands(spark), manifest_of(str(log))
    planned = plan(hands, visible(str(log), sealed_only=True), rules)
    offers = stage(hands, str(log), manifest, planned, rules, lambda keys: (), lambda: time.time_ns() // 1000)
    return sum(output.bytes for offer in offers for output in offer.outputs)


def compactions(spark: SparkSession, here: Path, arguments: argparse.Namespace) -> None:
    log = here / "compact"
    generate(str(log), Shape(segments=max(2, arguments.mib // 64), scrap=True))
    (log / "staging").mkdir()
    kept = 0

    def run() -> None:
        nonlocal kept
        kept = compact(spark, log, Trimmed())

    def emptied() -> None:  # of what the round before left, which takes as long for both
        shutil.rmtree(here / "copy", ignore_errors=True)
        (here / "copy").mkdir()
        clear(str(log))

    seconds = best_of(arguments.rounds, run, emptied)
    copying = best_of(arguments.rounds, lambda: copy(log, here / "copy", kept), emptied)
    share = copying / seconds
    measured = f"{kept / seconds / 1e6:.0f} MB/s, a copy {kept / copying / 1e6:.0f} MB/s: {share:.2f}"
    report("compact, drop what is trimmed", measured, ">= 0.7 of a copy", share >= 0.7)


def copy(log: Path, to: Path, size: int) -> None:
    """So many bytes of the log into new files, each synced."""
    for segment in reversed(visible(str(log))):
        if size <= 0:
            return
        with open(log / segment.name, "rb") as source, open(to / segment.name, "wb") as target:
            os.sendfile(target.fileno(), source.fileno(), 0, min(size, segment.size))
            os.fsync(target.fileno())
        size -= segment.size


def latest(spark: SparkSession, here: Path, arguments: argparse.Namespace) -> None:
    log = here / "latest"
    shape = Shape(segment_bytes=64 * MIB, keys=arguments.messages // 10, acks=False, keep_latest=True)
    made = generate(str(log), replace(shape, segments=max(2, arguments.messages // 550_000)))
    seconds = _timed(partial(compact, spark, log, Trimmed([(CHANNEL, 0)])))
    allowed = 60 * made / 10_000_000
    name = f"compact, latest of {shape.keys:,} keys"
    report(name, f"{made / 1e6:.1f} M messages in {seconds:.1f} s", f"< {allowed:.0f} s", seconds < allowed)


def live(spark: SparkSession, here: Path, arguments: argparse.Namespace) -> None:
    found = measure(here, arguments.mib)
    for what in ("published", "pulled"):
        share = found[f"{what}_share"]
        measured = f"{found[what] / 1e3:.0f} k msg/s before, {share:.2f} of that meanwhile"
        report(f"messages {what} during a compaction", measured, ">= 0.6", share >= 0.6)
    took = f"{found['replaced']:.0f} segments replaced in {found['seconds']:.0f} s, longest pause of a reader"
    print(f"      {took} {found['longest_pause'] * 1e3:.0f} ms", flush=True)
    answers = held(here, arguments.mib)
    longest = answers["longest"] * 1e3
    measured = f"{longest:.1f} ms, {answers['before'] * 1e3:.1f} ms without, in {answers['seconds']:.0f} s"
    report("longest answer during an install", measured, "< 20 ms", longest < 20)


WORK: dict[str, Callable[[SparkSession, Path, argparse.Namespace], None]] = {
    "audit": audits,
    "decode": decodes,
    "export": exports,
    "compact": compactions,
    "latest": latest,
    "live": live,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(WORK), action="append")
    parser.add_argument("--mib", type=int, default=2048, help="of the largest log")
    parser.add_argument("--messages", type=int, default=10_000_000, help="of the log whose latest are kept")
    parser.add_argument("--rounds", type=int, default=5, help="of which the best counts, after one that warms up")
    arguments = parser.parse_args()
    spark = session("benchmark", master=f"local[{min(2, os.cpu_count() or 1)}]")
    print(f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, Spark {spark.version}", flush=True)
    for name in arguments.only or WORK:
        with directory() as here:
            WORK[name](spark, here, arguments)
    return 0 if all(is_reached for _, is_reached in ROWS) else 1


if __name__ == "__main__":
    sys.exit(main())
