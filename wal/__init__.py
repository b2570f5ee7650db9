"""A write-ahead log that can be trusted: CRC-framed records, group commit, recovery that tells torn from corrupt.

Usable alone: nothing here knows of a broker.
"""

from wal.errors import (
    CorruptSegment,
    DiskFull,
    InstallRefused,
    LogBusy,
    LogClosed,
    LogFailed,
    LogLocked,
    RecordTooLarge,
    UnsupportedVersion,
    WalError,
)
from wal.filelog import FileLog
from wal.log import Log, SegmentInfo, Usage
from wal.memory import MemoryLog
from wal.options import Options

__all__ = [
    "CorruptSegment",
    "DiskFull",
    "FileLog",
    "InstallRefused",
    "Log",
    "LogBusy",
    "LogClosed",
    "LogFailed",
    "LogLocked",
    "MemoryLog",
    "Options",
    "RecordTooLarge",
    "SegmentInfo",
    "UnsupportedVersion",
    "Usage",
    "WalError",
]
