"""Small logs in real directories, made without a broker."""

from __future__ import annotations

from pathlib import Path

from walsample import published

from wal.filelog import FileLog
from wal.options import Options
from wal.record import ChannelCreated

SMALL = Options(segment_bytes=2 << 10, snapshot_bytes=1 << 10, soft_free_bytes=0)


def grow(log: FileLog, count: int, base: int = 0) -> None:
    """So many publishes, each durable before the next."""
    for offset in range(base, base + count):
        log.append([published(offset, b"content %d" % offset)])
        log.pump()


def open_here(directory: Path) -> FileLog:
    return FileLog.open(directory, SMALL, is_threaded=False)


def make_log(directory: Path, count: int = 60) -> Path:
    """A log that was closed in good order, with several sealed segments and an active one."""
    log = open_here(directory)
    log.append([ChannelCreated(channel_id=1, name="orders", partitions=1)])
    grow(log, count)
    log.close()
    return directory
