"""At 70 % of what it can do, killed each minute, with retention and cleaning at work: bounded, and nothing lost."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from process import Process
from soak import BATCH, CONTENT_BYTES, RETAINED_BYTES, Soak
from torture import sized

MINUTES = float(os.environ.get("MQ_SOAK_MINUTES") or 0)
SECONDS = MINUTES * 60 or sized(15, 600)
EPOCH_SECONDS = 60 if SECONDS >= 120 else SECONDS / 3
SEGMENT_BYTES = 8 << 20
SETTINGS = {
    "WAL_SEGMENT_SIZE": str(SEGMENT_BYTES),
    "WAL_RETIRE_GRACE": "1s",
    "STORAGE_MAX_MEMORY_BYTES": "32MiB",
    "GROUP_ACK_WAIT": "5s",
    "GROUP_MAX_DELIVER": "1000000",
}
MOST_DISK_BYTES = 4 * RETAINED_BYTES + 16 * SEGMENT_BYTES  # kept, dead but not yet cleaned, spare, reserve
GRACE_SECONDS = 3  # what came in this time may be dead and still there: the grace, and two looks a second apart
MOST_RSS_BYTES = 400 << 20


class Meter:
    """What the broker holds of the machine, over time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.samples: list[tuple[float, int]] = []  # minutes since the start of the run, resident bytes
        self.slopes: list[float] = []  # MB per minute, within each life, its first half left out
        self.fds: list[int] = []
        self.disk: list[int] = []
        self._began = time.monotonic()

    def watch(self, process: psutil.Process, seconds: float, soak: Soak) -> None:
        life: list[tuple[float, int]] = []
        end = time.monotonic() + seconds
        while time.monotonic() < end and not soak.crashes:
            life.append(((time.monotonic() - self._began) / 60, process.memory_info().rss))
            soak.keep()
            soak.pause(0.2)
        self.samples += life
        self.slopes.append(slope(life[len(life) // 2 :]))

    def look(self, process: psutil.Process) -> None:
        self.fds.append(process.num_fds())
        self.disk.append(sum(path.stat().st_blocks * 512 for path in self._directory.rglob("*") if path.is_file()))


def slope(samples: list[tuple[float, int]]) -> float:
    """MB per minute, by least squares."""
    if len(samples) < 3:
        return 0.0
    mean_x, mean_y = (sum(each[axis] for each in samples) / len(samples) for axis in (0, 1))
    over = sum((x - mean_x) * (y - mean_y) for x, y in samples)
    return over / sum((x - mean_x) ** 2 for x, _ in samples) / 1e6


def measure(soak: Soak, seconds: float) -> float:
    """Batches that are published and consumed in a second, as fast as it goes."""
    soak.begin_epoch()
    before, began = soak.consumed, time.monotonic()
    soak.pause(seconds)
    broken = soak.end_epoch()
    assert not broken, broken[:10]
    return (soak.consumed - before) / (time.monotonic() - began)


@pytest.mark.slow
@pytest.mark.shows("T7", "large batches at 70 % of the measured maximum, retention and the cleaner at work, kills")
def test_a_broker_at_seventy_percent_stays_bounded_and_keeps_its_promises(
    tmp_path: Path, figures: dict[str, Any]
) -> None:
    soak, meter = Soak(), Meter(tmp_path)
    broker = serve(tmp_path, soak)
    try:
        soak.prepare()
        most = measure(soak, min(10.0, SECONDS / 6))
        soak.batches_per_second = 0.7 * most / 2
        began = time.monotonic()
        kills = 0
        while time.monotonic() - began < SECONDS:
            soak.begin_epoch()
            soak.pause(EPOCH_SECONDS / 10)
            broker.signal(signal.SIGKILL)
            broker.wait()
            kills += 1
            broker = serve(tmp_path, soak)
            process = psutil.Process(broker.process.pid)
            meter.watch(process, EPOCH_SECONDS * 0.9, soak)
            meter.look(process)
            broken = soak.end_epoch()
            assert not broken, broken[:10]
        soak.stop()
        assert soak.read_kept() == soak.kept
        figures |= {
            "minutes": f"{(time.monotonic() - began) / 60:.1f}",
            "messages": soak.published * BATCH,
            "messages a second": int(soak.published * BATCH / (time.monotonic() - began)),
            "wanted": int(0.7 * most * BATCH),
            "kills": kills,
            "segments cleaned": rewritten(tmp_path),
            "most MiB resident": max(rss for _, rss in meter.samples) >> 20,
            "MB a minute over all lives": f"{slope(meter.samples):.2f}",
            "MB a minute within a life": f"{sum(meter.slopes) / len(meter.slopes):.2f}",
            "descriptors": f"{min(meter.fds)} to {max(meter.fds)}",
            "MiB on disk": f"{min(meter.disk) >> 20} to {max(meter.disk) >> 20}",
        }
        if SECONDS >= 120:  # nothing is cleaned before the second run of snapshots
            grace_bytes = int(GRACE_SECONDS * 0.7 * most * BATCH * CONTENT_BYTES)
            assert max(meter.disk) < MOST_DISK_BYTES + grace_bytes, "cleaning does not keep up: the disk fills"
        assert max(rss for _, rss in meter.samples) < MOST_RSS_BYTES
        assert meter.fds[-1] <= meter.fds[0] + 20
        if SECONDS >= 1_800:
            assert slope(meter.samples) < 1
            assert soak.published * BATCH >= 5_000_000
        broker.signal(signal.SIGTERM)
        assert broker.wait() == 0
    finally:
        soak.give_up()
        if broker.process.poll() is None:
            broker.signal(signal.SIGKILL)
            broker.wait()


def rewritten(directory: Path) -> int:
    """Segments of the log that are not as they were first written."""
    return sum(not path.name.endswith("-0.wal") for path in (directory / "data").glob("*.wal"))


def serve(directory: Path, soak: Soak) -> Process:
    process = Process(directory, **SETTINGS)
    soak.port = process.wait_for_port("wire")
    return process


def test_a_slope_is_what_grows_in_a_minute() -> None:
    assert slope([(minute, int(5e6 + 2e6 * minute)) for minute in range(5)]) == pytest.approx(2)
    assert slope([(minute, 7) for minute in range(5)]) == 0
