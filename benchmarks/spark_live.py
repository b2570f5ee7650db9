"""A broker under load while Spark compacts its log and has the result installed: what is left of its rates.

And one that does nothing but install: how long its loop is held at a time, told by somebody who asks all the time.
`python benchmarks/spark_live.py load ADDRESS` is the load: it publishes and pulls at full speed, and prints how far it
is. With `ask` in place of `load` it asks the broker how it is, again and again, and prints how long that took.
"""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from processes import Broker
from segments import Shape, generate

import mq
from mq.cli.spark.compact import run as compact
from wal.spark.read.listing import manifest_of, visible

CHANNEL = "load"
QUIET_SECONDS = 10.0  # how long the rates are taken before Spark begins
TICK_SECONDS = 0.1
AHEAD = 200_000  # messages that may wait for the reader
Tick = tuple[float, int, int]  # when, published, pulled


def measure(here: Path, mib: int) -> dict[str, float]:
    """Rates before and while a log of so many MiB is compacted, and what that took."""
    log = here / "live"
    shape = Shape(segments=max(2, mib // 64), keys=mib * 800, keep_latest=True)
    generate(str(log), shape)
    _restarted(log)
    broker = Broker(log)
    try:
        broker.wait_until_serving()
        names = {segment.name for segment in visible(str(log))}
        with _process("load", broker.address) as ticks:
            _wait(ticks, QUIET_SECONDS)
            began = time.monotonic()
            command = [sys.executable, "-m", "mq.cli", "spark", "compact", "--data-dir", str(log), "--install"]
            command += ["--server", broker.address, "--master", "local[2]", "-o", "json"]
            answer = subprocess.run(command, capture_output=True, text=True)
            ended = time.monotonic()
        if answer.returncode:
            sys.exit(f"the compaction failed: {answer.stderr}")
        replaced = len(names - {segment.name for segment in visible(str(log))})
    finally:
        broker.process.send_signal(signal.SIGTERM)
        broker.process.wait()
    published, pulled = _rates(ticks, began - QUIET_SECONDS, began)
    published_then, pulled_then = _rates(ticks, began, ended)
    return {
        "seconds": ended - began,
        "replaced": replaced,
        "published": published,
        "pulled": pulled,
        "published_share": published_then / published,
        "pulled_share": pulled_then / pulled,
        "longest_pause": _longest_pause(ticks, began, ended),
    }


def held(here: Path, mib: int) -> dict[str, float]:
    """The longest that a broker without other work took to answer: before an install, and during it.

    A question needs one turn of the loop, so an answer takes at least as long as the loop is held.
    """
    log = here / "held"
    generate(str(log), Shape(segments=max(2, mib // 512), keys=mib * 100, keep_latest=True))
    _restarted(log)
    made = compact(str(log))
    broker = Broker(log)
    try:
        broker.wait_until_serving()
        with _process("ask", broker.address) as asked, mq.Client(broker.address, timeout=600) as client:
            _wait(asked, QUIET_SECONDS)
            began = time.monotonic()
            for row in made["proposals"]:
                client.install_segments(row["proposal"])
            ended = time.monotonic()
            _wait(asked, 2 * TICK_SECONDS)
    finally:
        broker.process.send_signal(signal.SIGTERM)
        broker.process.wait()
    return {
        "seconds": ended - began,
        "before": max(longest for when, longest in asked if when < began),
        "longest": max(longest for when, longest in asked if when > began and when - TICK_SECONDS < ended),
    }


def _restarted(log: Path) -> None:
    """Two good stops leave two snapshots: what lies before both may be compacted."""
    while len(manifest_of(str(log)).snapshots) < 2:
        broker = Broker(log)
        broker.wait_until_serving()
        broker.process.send_signal(signal.SIGTERM)
        broker.process.wait()


@contextmanager
def _process(work: str, address: str) -> Iterator[list[Any]]:
    """What another process prints while it does something to a broker."""
    process = subprocess.Popen([sys.executable, __file__, work, address], stdout=subprocess.PIPE, text=True)
    ticks: list[Any] = []

    def collect() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            ticks.append(tuple(json.loads(line)))

    reader = threading.Thread(target=collect)
    reader.start()
    try:
        _wait(ticks, 2.0)  # until it runs evenly
        yield ticks
    finally:
        process.kill()
        process.wait()
        reader.join()


def _wait(ticks: list[Any], seconds: float) -> None:
    begin = len(ticks)
    while len(ticks) - begin < seconds / TICK_SECONDS:
        time.sleep(TICK_SECONDS)


def _rates(ticks: list[Tick], begin: float, end: float) -> tuple[float, float]:
    within = [tick for tick in ticks if begin <= tick[0] <= end]
    seconds = within[-1][0] - within[0][0]
    return (within[-1][1] - within[0][1]) / seconds, (within[-1][2] - within[0][2]) / seconds


def _longest_pause(ticks: list[Tick], begin: float, end: float) -> float:
    """The longest time in which no message came out."""
    longest, last, since = 0.0, -1, begin
    for when, _, pulled in ticks:
        if begin <= when <= end and pulled != last:
            longest, last, since = max(longest, when - since), pulled, when
    return longest


def load(address: str) -> None:
    """Publish and pull for ever."""
    with mq.Client(address) as client:
        client.create_channel(CHANNEL, exist_ok=True)
        counts = {"published": 0, "pulled": 0}
        for work in (_publish, _pull):
            threading.Thread(target=work, args=(address, counts), daemon=True).start()
        while True:
            time.sleep(TICK_SECONDS)
            print(json.dumps([time.monotonic(), counts["published"], counts["pulled"]]), flush=True)


def _publish(address: str, counts: dict[str, int]) -> None:
    body = [bytes(100)] * 5_000
    with mq.Client(address) as client, client.producer(CHANNEL) as producer:
        while True:
            while counts["published"] - counts["pulled"] > AHEAD:
                time.sleep(0.001)
            producer.send_many(body)
            counts["published"] += len(body)


def _pull(address: str, counts: dict[str, int]) -> None:
    with mq.Client(address) as client:
        for batch in client.read(CHANNEL, start="latest").batches():
            counts["pulled"] += len(batch)


def ask(address: str) -> None:
    """Ask for ever, one question at a time, and print the longest answer of each tick."""
    with mq.Client(address) as client:
        client.server_info()
        gc.freeze()  # so that this process does not hold itself up
        gc.disable()
        while True:
            longest, end = 0.0, time.monotonic() + TICK_SECONDS
            while (before := time.monotonic()) < end:
                client.server_info()
                longest = max(longest, time.monotonic() - before)
                time.sleep(0.001)
            print(json.dumps([time.monotonic(), longest]), flush=True)


if __name__ == "__main__":
    {"load": load, "ask": ask}[sys.argv[1]](sys.argv[2])
