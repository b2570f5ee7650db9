"""What a broker may use and what it assumes where a request leaves something open. Plain values, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass, field

from mq.command import FSYNC
from wal.pb.wal_pb2 import ChannelSettings, GroupSettings

MIB = 1 << 20


def default_group() -> GroupSettings:
    """The settings of a group that is made without any."""
    return GroupSettings(
        ack_wait_ms=30_000,
        max_deliver=5,
        backoff_ms=[1_000, 5_000, 30_000],
        session_timeout_ms=10_000,
        assignment="sticky",
    )


@dataclass(frozen=True, slots=True)
class Limits:
    """Every default with its reason."""

    buffer_bytes: int = 256 * MIB  # batches kept in memory, of all channels; older ones are read back from the log
    fetched_bytes: int = 16 * MIB  # of those read back, so that small pulls do not read one batch again and again
    unsynced_bytes: int = 64 * MIB  # taken but not yet durable: the one memory that can't be evicted
    response_bytes: int = 4 * MIB - 16 * 1024  # generated clients refuse answers from 4 MiB on
    read_bytes: int = 1 * MIB  # asked of the log at a time when a batch has left memory
    pull_messages: int = 500  # of a pull that does not say
    merge_messages: int = 500  # small publishes share a record up to here: fat pulls, and still cheap to slice
    merge_bytes: int = 256 * 1024
    snapshot_bytes: int = 64 * MIB  # of log between snapshot runs, or twice the last run: what a start replays at most
    snapshot_record_bytes: int = 1 * MIB  # a channel that needs more is told in several records
    snapshot_slice_seconds: float = 0.004  # of the loop at a time, below the 5 ms that others may be held up
    clean_bytes: int = 8 * MIB  # of the log read in one round of cleaning, or one segment; 0: no cleaning
    channels: int = 10_000
    partitions: int = 1_024  # of one channel
    groups: int = 1_000  # of one channel
    members: int = 1_000  # of one group
    producers: int = 10_000  # remembered for one channel; the one longest unseen is forgotten first
    producer_window: int = 64  # publishes of one producer that a retry is recognised among
    producer_expiry_us: int = 7 * 24 * 3600 * 1_000_000  # after its last publish a producer is forgotten
    durability: int = FSYNC  # of publishes that do not say
    busy_poll_seconds: float = 0.0  # awake after an answer; 0: a moment, where that is known to pay
    serves_old: bool = True  # what was published before the start; else it stays where it is, unseen
    is_memory: bool = False  # the log keeps nothing on disk, and answers say so
    group: GroupSettings = field(default_factory=default_group)
    channel: ChannelSettings = field(default_factory=ChannelSettings)
