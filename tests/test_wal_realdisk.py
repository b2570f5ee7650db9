"""The log on a real file system: modes, locks, a small disk that fills up, and errors that the kernel reports."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from loguru import logger

from wal.disk import DirectDisk
from wal.errors import DiskFull, LogLocked, UnsupportedVersion
from wal.filelog import FileLog
from wal.frame import crc32c
from wal.manifest import MANIFEST
from wal.options import Options
from wal.record import Published

OPTIONS = Options(segment_bytes=1 << 16, snapshot_bytes=1 << 16, soft_free_bytes=1 << 17)

# Publishes one record after the other and writes down what was reported synced, until told to stop or the log fails.
PUBLISHER = """
import sys
from wal.filelog import FileLog
from wal.options import Options
from wal.record import Published
from wal.errors import LogFailed

directory, segment_bytes, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
log = FileLog.open(directory, Options(segment_bytes=segment_bytes, soft_free_bytes=0), is_threaded=False)
log.start(lambda written, synced: print("synced", synced, flush=True), lambda error: print("failed", flush=True))
print("open", flush=True)
{setup}
try:
    for number in range(count):
        log.append([Published(channel_id=1, base_offset=number, count=1, batch=bytes(1000))])
        log.pump()
except (LogFailed, OSError) as error:
    print("stopped", type(error).__name__, flush=True)
    try:
        log.append([Published()])
    except LogFailed:
        print("sticky", flush=True)
if count == 0:
    sys.stdin.read()
"""


def publisher(directory: Path, *, segment_bytes: int, count: int, setup: str = "", prefix: tuple[str, ...] = ()):
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", PUBLISHER.replace("{setup}", setup), directory, str(segment_bytes), str(count)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def offsets_in(directory: Path) -> list[int]:
    log = FileLog.open(directory, Options(segment_bytes=1 << 16, soft_free_bytes=0), is_threaded=False)
    try:
        assert log.report.damage == []
        return [record.base_offset for _, record in log.replay() if isinstance(record, Published)]
    finally:
        log.close()


def last_synced(output: str) -> int:
    return max((int(line.split()[1]) for line in output.splitlines() if line.startswith("synced")), default=0)


def test_files_are_for_their_owner_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        directory = tmp_path / "a" / "b"
        log = FileLog.open(directory, OPTIONS, is_threaded=False)
        for number in range(200):
            log.append([Published(channel_id=1, base_offset=number, count=1, batch=bytes(1000))])
        log.pump()
        (directory / "00000000000000099999-0.wal").write_bytes(b"whose is this?")
        log.close()
        FileLog.open(directory, OPTIONS, is_threaded=False).close()
    finally:
        os.umask(before)
    found = [path for path in (tmp_path / "a").rglob("*") if path.name != "00000000000000099999-0.wal-1"]
    assert {path.suffix for path in found} >= {".wal", ".idx", ""}
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_directory_has_one_owner(tmp_path: Path) -> None:
    log = FileLog.open(tmp_path / "log", OPTIONS, is_threaded=False)
    with pytest.raises(LogLocked):
        FileLog.open(tmp_path / "log", OPTIONS)
    with publisher(tmp_path / "log", segment_bytes=1 << 16, count=1) as other:
        _, errors = other.communicate()
    assert "LogLocked" in errors
    log.close()
    FileLog.open(tmp_path / "log", OPTIONS, is_threaded=False).close()


def test_the_lock_of_a_killed_process_is_gone(tmp_path: Path) -> None:
    with publisher(tmp_path / "log", segment_bytes=1 << 16, count=0) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(LogLocked):
            FileLog.open(tmp_path / "log", OPTIONS)
        other.send_signal(signal.SIGKILL)
        other.wait()
        FileLog.open(tmp_path / "log", OPTIONS, is_threaded=False).close()


def test_a_log_from_the_future_is_left_as_it_is(tmp_path: Path) -> None:
    FileLog.open(tmp_path, OPTIONS, is_threaded=False).close()
    _, body = (tmp_path / MANIFEST).read_bytes().split(b"\n", 1)
    (tmp_path / MANIFEST).write_bytes(f"mq-wal-manifest 2 {crc32c(body):08x}\n".encode() + body)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(UnsupportedVersion, match="format 2"):
        FileLog.open(tmp_path, OPTIONS)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_an_existing_directory_is_made_durable_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was killed between mkdir and the sync of the parent leaves a name that a power cut would take."""
    synced: list[str] = []
    monkeypatch.setattr(DirectDisk, "sync_directory", lambda self, path: synced.append(path))
    DirectDisk().make_directory(str(tmp_path / "a" / "b"))
    assert synced == [str(tmp_path.parent), str(tmp_path), str(tmp_path / "a")]
    synced.clear()
    DirectDisk().make_directory(str(tmp_path / "a" / "b"))
    assert synced == [str(tmp_path / "a")]


@pytest.mark.slow
def test_nothing_that_was_acknowledged_is_lost_by_killing_the_owner_again_and_again(tmp_path: Path) -> None:
    synced = 0
    for number in range(8):
        with publisher(tmp_path / "log", segment_bytes=1 << 14, count=10_000) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(5 + 17 * number)]
            process.kill()
            output = "".join(lines) + process.communicate()[0]
        synced = max(synced, last_synced(output))
        assert last_synced(output) >= number
        log = FileLog.open(tmp_path / "log", OPTIONS, is_threaded=False)
        assert log.report.damage == []
        assert log.last_sequence >= synced
        assert [sequence for sequence, _ in log.replay()] == list(range(1, log.last_sequence + 1))
        log._disk.close(log._lock_fd)  # and this owner dies, too


@pytest.mark.slow
@pytest.mark.parametrize("nth", range(1, 40, 3))
def test_an_error_of_a_real_sync_is_final_and_loses_nothing_that_was_acknowledged(nth: int, tmp_path: Path) -> None:
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("NOT SHOWN on this machine: errors of real syncs need strace")
    prefix = (strace, "-f", "-o", "/dev/null", "-e", "trace=fdatasync", "-e", f"inject=fdatasync:error=EIO:when={nth}")
    with publisher(tmp_path / "log", segment_bytes=1 << 13, count=30, prefix=prefix) as process:
        output, errors = process.communicate()
    if "open" not in output and "Input/output error" not in errors:
        pytest.skip(f"NOT SHOWN on this machine: strace can't trace: {errors[-200:]}")
    if "open" in output:
        assert "failed\nstopped" in output, "the injected error was not noticed"
        assert output.endswith("sticky\n")
    synced = last_synced(output)
    assert synced < 30
    offsets = offsets_in(tmp_path / "log")
    assert offsets == list(range(len(offsets)))
    assert len(offsets) >= synced


def test_a_file_size_limit_stops_the_log_and_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    setup = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (6000, resource.RLIM_INFINITY))"
    with publisher(tmp_path / "log", segment_bytes=1 << 13, count=30, setup=setup) as process:
        output, _ = process.communicate()
    assert "failed\nstopped" in output
    assert output.endswith("sticky\n")
    synced = last_synced(output)
    assert 0 < synced < 30
    offsets = offsets_in(tmp_path / "log")
    assert offsets == list(range(len(offsets)))
    assert len(offsets) >= synced


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    where = tmp_path / "disk"
    where.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", where], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"NOT SHOWN on this machine: a real full disk needs the right to mount: {mounted.stderr.strip()}")
    logger.disable("wal")
    yield where
    logger.enable("wal")
    subprocess.run(["umount", "--lazy", where], check=True)


class TurnedClock:
    seconds = 0.0

    def now_us(self) -> int:
        return int(self.seconds * 1e6)

    def monotonic(self) -> float:
        self.seconds += 1
        return self.seconds


def test_a_real_disk_that_fills_up_refuses_publishers_takes_acks_and_recovers(small_disk: Path) -> None:
    def publish(log: FileLog, *, essential: bool = False) -> None:
        log.append(
            [Published(channel_id=1, base_offset=log.last_sequence, count=1, batch=bytes(500))], essential=essential
        )
        log.pump()

    log = FileLog.open(small_disk / "log", OPTIONS, clock=TurnedClock(), is_threaded=False)
    publish(log)
    ballast = small_disk / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, DirectDisk().free_bytes(str(small_disk)))
    assert DirectDisk().free_bytes(str(small_disk)) == 0
    log.pump()
    with pytest.raises(DiskFull):
        publish(log)
    for _ in range(200):
        publish(log, essential=True)  # 100 KB, on a disk without a free byte
    assert log.synced == log.last_sequence == 201
    last = log.last_sequence
    log._writer.abandon()  # a kill, as far as the directory can tell
    log._disk.close(log._lock_fd)

    log = FileLog.open(small_disk / "log", OPTIONS, clock=TurnedClock(), is_threaded=False)
    assert log.report.damage == []
    assert [record.base_offset for _, record in log.replay() if isinstance(record, Published)] == list(range(last))
    publish(log, essential=True)
    ballast.unlink()
    log.pump()
    publish(log)
    assert log.synced == last + 2
    log.close()
