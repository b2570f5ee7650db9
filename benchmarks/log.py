"""What the log costs, against the bare system calls, in one run on one machine.

    make bench-wal [ARGS='--only open --gib 2']

Every ratio compares two things measured side by side a few seconds apart, because machines are noisy; the best of
several interleaved rounds counts for both sides. Data goes to a directory under the working directory: never a
memory file system, where a sync costs nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from wal import FileLog, Options
from wal.disk import DirectDisk
from wal.manifest import SegmentEntry, read_manifest, swap_manifest
from wal.pb.wal_pb2 import Batch, BatchMessage
from wal.record import Carried, Published, SnapshotBegin, SnapshotEnd, encode
from wal.segment import SealedWriter, SegmentHeader
from wal.verify import verify

ROWS: list[tuple[str, str, str, bool]] = []


def report(work: str, measured: str, target: str, is_reached: bool) -> None:
    ROWS.append((work, measured, target, is_reached))
    print(f"{'ok  ' if is_reached else 'MISS'}  {work:<48} {measured:<44} target {target}", flush=True)


@contextlib.contextmanager
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix=".bench-wal-", dir="."))
    try:
        yield path
    finally:
        shutil.rmtree(path)


class Waiter:
    """A publisher that waits for its own sync: the callback sets it free."""

    def __init__(self, log: FileLog) -> None:
        self.log = log
        self.turn = threading.Lock()
        self.turn.acquire()
        self.wanted = 0
        log.start(self._on_marks, self._on_failure)

    def append(self, record: Carried) -> None:
        self.wanted = self.log.append([record])
        self.turn.acquire()

    def _on_marks(self, written: int, synced: int) -> None:
        if synced >= self.wanted and self.turn.locked():
            self.turn.release()

    def _on_failure(self, error: BaseException) -> None:
        raise error


def published(base: int, batch: bytes, count: int = 1) -> Carried:
    return Carried(Published(channel_id=1, base_offset=base, count=count), [batch])


# ---------------------------------------------------------------- append


def bare_rate(path: Path, size: int, seconds: float) -> float:
    """writev + fdatasync of the same bytes, appended to a file: groups per second."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    header, payload = os.urandom(64), os.urandom(size - 64)
    count, stop = 0, time.perf_counter() + seconds
    try:
        while time.perf_counter() < stop:
            os.writev(fd, [header, payload])
            os.fdatasync(fd)
            count += 1
    finally:
        os.close(fd)
        path.unlink()
    return count / seconds


def waiting_rate(path: Path, size: int, seconds: float) -> float:
    """Groups per second where the next is appended when the one before is durable."""
    log = FileLog.open(path)
    waiter = Waiter(log)
    batch = os.urandom(size - 64)
    count, stop = 0, time.perf_counter() + seconds
    while time.perf_counter() < stop:
        waiter.append(published(count, batch))
        count += 1
    log.close()
    shutil.rmtree(path)
    return count / seconds


def busy_rate(path: Path, size: int, seconds: float) -> float:
    """Groups per second where the next always waits behind the one that is synced; each has a sync of its own."""
    log = FileLog.open(path, Options(group_bytes=size // 2))
    room = threading.Semaphore(3)
    log.start(lambda written, synced: room.release(), lambda error: None)
    batch = os.urandom(size - 64)
    count, stop = 0, time.perf_counter() + seconds
    while time.perf_counter() < stop:
        room.acquire()
        log.append([published(count, batch)])
        count += 1
    done = log.usage().fsync_count
    log.close()
    shutil.rmtree(path)
    return done / seconds


def bench_append(
    label: str, size: int, target: float, seconds: float, rate: Callable[[Path, int, float], float]
) -> None:
    with directory() as root:
        bare, ours = [], []
        for _ in range(9):
            bare.append(bare_rate(root / "bare", size, seconds))
            ours.append(rate(root / "log", size, seconds))
    ratio = statistics.median(ours) / statistics.median(bare)
    report(
        f"append + fsync, {label}",
        f"{ratio:.2f} of bare ({statistics.median(ours):,.0f} of {statistics.median(bare):,.0f} /s)",
        f">= {target} of bare",
        ratio >= target,
    )


def bench_group_commit(seconds: float) -> None:
    """64 publishers, each with one record under way at a time, through one owner.

    The owner does what a broker's loop does: it appends together what arrived together, and lets everybody go on whose
    record the marks cover.
    """

    def rate(path: Path, publishers: int) -> float:
        log = FileLog.open(path)
        batch = os.urandom(512 - 64)
        moved = threading.Lock()
        moved.acquire()

        def on_marks(written: int, synced: int) -> None:
            if moved.locked():
                moved.release()

        log.start(on_marks, lambda error: None)
        base = done = 0
        free = publishers
        stop = time.perf_counter() + seconds
        while time.perf_counter() < stop:
            if free:
                log.append([published(base + number, batch) for number in range(free)])
                base += free
            moved.acquire()
            free = log.synced - done
            done = log.synced
        log.close()
        shutil.rmtree(path)
        return done / seconds

    with directory() as root:
        one, many = [], []
        for _ in range(5):
            one.append(rate(root / "log", 1))
            many.append(rate(root / "log", 64))
    ratio = statistics.median(many) / statistics.median(one)
    report(
        "64 concurrent appenders of 512 B",
        f"{ratio:.1f} x one ({statistics.median(many):,.0f} of {statistics.median(one):,.0f} /s)",
        ">= 20 x one",
        ratio >= 20,
    )


# ---------------------------------------------------------------- read


def batch_of(count: int, size: int) -> bytes:
    content = os.urandom(size - 4)
    return Batch(messages=[BatchMessage(content=content)] * count).SerializeToString()


def fill(path: Path, total_bytes: int, batch: bytes, count: int, segment_bytes: int = 50 << 20) -> None:
    """A log of sealed segments, made with the log's own writer of whole segments."""
    log = FileLog.open(path, Options(segment_bytes=segment_bytes), is_threaded=False)
    log.append([SnapshotBegin(next_channel_id=2), SnapshotEnd(begin_sequence=1)])
    log.rotate()
    log.pump()
    log.close()
    disk = DirectDisk()
    manifest = read_manifest(disk, str(path))
    assert manifest is not None
    live = manifest.segments[-1]
    (path / live.name(manifest.extension)).unlink()
    before, entries, sequence, offset, written = manifest.segments[-2], [], live.first_sequence, 0, 0
    while written < total_bytes:
        header = SegmentHeader(manifest.log_uuid, sequence, 0, os.urandom(8), before.last_sequence, before.last_crc)
        fd = disk.create(str(path / f"{sequence:020d}-0.wal"))
        writer = SealedWriter(disk, fd, header)
        while writer.position < segment_bytes - len(batch) - 256 and written + writer.position < total_bytes:
            type_, pieces, _ = encode(published(offset, batch, count))
            writer.add(type_, sequence, pieces)
            sequence, offset = sequence + 1, offset + count
        size = writer.seal()
        disk.close(fd)
        before = SegmentEntry.of(
            header, last_sequence=writer.last_sequence, is_sealed=True, size=size, last_crc=writer.last_crc
        )
        entries.append(before)
        written += size
    swap_manifest(disk, str(path), manifest.with_segments([*manifest.segments[:-1], *entries]))
    log = FileLog.open(path, is_threaded=False)
    log.close()


def best(work: Callable[[], None], rounds: int = 3) -> float:
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def drop_snapshots(path: Path) -> None:
    """So that a replay reads everything."""
    disk = DirectDisk()
    manifest = read_manifest(disk, str(path))
    assert manifest is not None
    swap_manifest(disk, str(path), type(manifest)(manifest.log_uuid, manifest.edition, segments=manifest.segments))


def bench_read() -> None:
    for label, count, total, target in (("500 x 100 B", 500, 512 << 20, 1000), ("one message", 1, 64 << 20, 80)):
        with directory() as root:
            path = root / "log"
            fill(path, total, batch_of(count, 100), count)
            drop_snapshots(path)
            size = sum(file.stat().st_size for file in path.glob("*.wal")) / 1e6
            log = FileLog.open(path, is_threaded=False)

            def replay(log: FileLog = log) -> None:
                for _ in log.replay():
                    pass

            speed = size / best(replay)
            report(f"replay, frames of {label}", f"{speed:,.0f} MB/s", f">= {target:,} MB/s", speed >= target)
            log.close()
            if count > 1:
                speed = size / best(lambda path=path: verify(str(path)))  # type: ignore[misc]
                report("verify (full CRC)", f"{speed:,.0f} MB/s", ">= 1,000 MB/s", speed >= 1000)


# ---------------------------------------------------------------- open

_CHILD = """
import re, sys, time
from wal import FileLog
from wal.verify import verify
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
before = peak()
started = time.perf_counter()
log = FileLog.open(sys.argv[1], is_threaded=False)
opened = time.perf_counter() - started
if sys.argv[2] == "all":
    for _ in log.replay(): pass
    log.close()
    verify(sys.argv[1])
else:
    log.close()
after = peak()
print(opened, (after - before) / 1024)
"""


def open_in_child(path: Path, work: str) -> tuple[float, float]:
    """Seconds to open, and megabytes above the interpreter, in a process of its own."""
    out = subprocess.run([sys.executable, "-c", _CHILD, str(path), work], capture_output=True, text=True, check=True)
    seconds, megabytes = map(float, out.stdout.split())
    return seconds, megabytes


def bench_open(gib: float) -> None:
    batch = batch_of(500, 100)
    with directory() as root:
        fill(root / "small", int(gib * (1 << 30)) // 100, batch, 500)
        fill(root / "large", int(gib * (1 << 30)), batch, 500)
        small, large = [], []
        for _ in range(7):
            small.append(open_in_child(root / "small", "open")[0])
            large.append(open_in_child(root / "large", "open")[0])
        ratio = min(large) / min(small)
        report(
            f"open with 100 x the sealed data ({gib:g} GiB)",
            f"{ratio:.2f} x ({min(small) * 1e3:.1f} -> {min(large) * 1e3:.1f} ms)",
            "<= 1.3 x",
            ratio <= 1.3,
        )
        drop_snapshots(root / "large")
        _, megabytes = open_in_child(root / "large", "all")
        report(
            f"memory to open, replay, verify {gib:g} GiB",
            f"{megabytes:.0f} MB above the interpreter",
            "< 100 MB",
            megabytes < 100,
        )
        fresh = min(open_in_child(root / f"new{n}", "open")[0] for n in range(5))
        report("clean start of an empty log", f"{fresh * 1e3:.1f} ms", "< 50 ms", fresh < 0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["append", "group", "read", "open"], help="one part")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each append round")
    parser.add_argument("--gib", type=float, default=10.0, help="size of the large log")
    args = parser.parse_args()
    print(f"{platform.platform()}, Python {platform.python_version()}, {os.cpu_count()} cores\n")
    parts: dict[str, Callable[[], None]] = {
        "append": lambda: (
            bench_append("256 KiB per group", 256 << 10, 0.9, args.seconds, busy_rate),  # type: ignore[func-returns-value]
            bench_append("4 KiB per group, one waiter", 4 << 10, 0.75, args.seconds, waiting_rate),
        )[0],
        "group": lambda: bench_group_commit(args.seconds),
        "read": bench_read,
        "open": lambda: bench_open(args.gib),
    }
    for name, part in parts.items():
        if args.only in (None, name):
            part()
    missed = [row for row in ROWS if not row[3]]
    print(f"\n{len(ROWS) - len(missed)} of {len(ROWS)} reached; peak memory {_peak():.0f} MB")


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
