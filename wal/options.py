"""How a directory is written: the settings of a `FileLog`. No behaviour."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """How a directory is written; each default with its reason."""

    segment_bytes: int = 50 << 20  # small enough to rewrite in a blink, large enough that rotation costs nothing
    extension: str = ".wal"
    bytes_per_sync: int = 8 << 20  # what a power cut may take from those who did not ask for a sync
    group_bytes: int = 8 << 20  # written before a sync at most, so that nobody waits behind a mountain
    queue_bytes: int = 64 << 20  # appended and not yet durable; beyond it publishers are told to come back
    max_record_bytes: int = 16 << 20  # four times the largest request
    snapshot_bytes: int = 16 << 20  # kept in reserve on top of one segment, for a snapshot run on a full disk
    soft_free_bytes: int = 64 << 20  # below it only essential records are taken
    retire_grace_us: int = 600_000_000  # how long replaced segments stay for readers
