"""A log that keeps everything in memory and nothing on disk: memory mode, and fast tests of what sits above a log.

It moves its marks inside `append`, so an answer never waits. With `is_held=True` they stay where they are until
`release()`: a test then decides when a group becomes durable, and with `crash()` that it never does.
"""

from __future__ import annotations

import asyncio
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from google.protobuf.message import Message

from wal.backup import Backup
from wal.clean import Keep
from wal.errors import BackupRefused, InstallRefused, LogClosed, LogFailed, NoSuchProposal, RecordTooLarge
from wal.install import Approve, Engage, Installed
from wal.log import OnFailure, OnMarks, SegmentInfo, Usage, nothing
from wal.proposal import Proposal
from wal.record import (
    Encoded,
    Published,
    Record,
    SnapshotBegin,
    SnapshotEnd,
    Unknown,
    encode,
    end_offset,
    placements,
    plain,
    published_in,
)
from wal.verify import Damage, Progress, Report

UNLIMITED = 1 << 62
BREATH = 500  # records looked at before others have their turn


class MemoryLog:
    """Implements `wal.log.Log`."""

    def __init__(self, *, max_record_bytes: int = 16 << 20, is_held: bool = False) -> None:
        self.uuid = uuid.uuid4()
        self.is_held = is_held
        self.max_record_bytes = max_record_bytes
        self.is_short_of_space = False
        self.last_sequence = 0
        self.written = 0
        self.synced = 0
        self._records: dict[int, Message | Unknown | Encoded] = {}  # by sequence, rising
        self._sizes: dict[int, int] = {}
        self._bytes = 0  # of all that was ever appended
        self._freed_bytes = 0
        self._offsets: dict[tuple[int, int], tuple[list[int], list[int]]] = {}  # ends and sequences, both rising
        self._snapshot_begin = 1
        self._snapshot_bytes = 0  # before it
        self._synced_bytes = 0
        self._on_marks: OnMarks | None = None
        self._on_failure: OnFailure | None = None
        self._failure: BaseException | None = None
        self.is_closed = False

    def start(self, on_marks: OnMarks, on_failure: OnFailure) -> None:
        self._on_marks, self._on_failure = on_marks, on_failure

    def replay(self) -> Iterator[tuple[int, Message | Unknown]]:
        for sequence in range(self._snapshot_begin, self.synced + 1):
            yield sequence, plain(self._records[sequence])

    @property
    def likely_seconds(self) -> float:
        return float("inf")  # as its marks do not come with the return of `append`

    def append(
        self,
        records: Sequence[Record],
        *,
        sync: bool = True,
        essential: bool = False,
        patience: float = 0.0,
        meanwhile: Callable[[], None] = nothing,
    ) -> int:
        self._check_usable()
        sizes = [encode(record)[2] for record in records]
        if sizes and max(sizes) > self.max_record_bytes:
            raise RecordTooLarge(f"a record of {max(sizes)} bytes exceeds {self.max_record_bytes}")
        for record, size in zip(records, sizes, strict=True):
            self.last_sequence += 1
            # what was encoded ahead is large, and decoded when somebody asks for it
            self._records[self.last_sequence] = record if isinstance(record, Encoded) else plain(record)
            self._sizes[self.last_sequence] = size
            self._bytes += size
            for channel_id, partition, _, end in placements(record):
                ends, sequences = self._offsets.setdefault((channel_id, partition), ([], []))
                ends.append(end)
                sequences.append(self.last_sequence)
        if not self.is_held:
            self._move_marks(self.last_sequence)
        return self.last_sequence

    def release(self, sequence: int | None = None) -> None:
        """Make everything durable up to a sequence (default: all); only held logs need it."""
        self._move_marks(self.last_sequence if sequence is None else sequence)

    def fail(self, error: BaseException) -> None:
        """Behave as if a sync had failed: final, and nothing unsynced is ever durable."""
        self._failure = error
        if self._on_failure:
            self._on_failure(error)

    def crash(self) -> MemoryLog:
        """The log as the next start finds it: what was synced, and nothing else."""
        self.is_closed = True
        successor = MemoryLog(max_record_bytes=self.max_record_bytes, is_held=self.is_held)
        successor.uuid = self.uuid
        held, successor.is_held = successor.is_held, False
        for sequence, record in self._records.items():
            if sequence <= self.synced:
                successor.last_sequence = sequence - 1  # what was let go leaves its number unused
                successor.append([record])
        successor.last_sequence = successor.written = successor.synced = self.synced
        successor.is_held = held
        return successor

    async def read(self, channel_id: int, partition: int, offset: int, max_bytes: int) -> list[Published]:
        self._check_usable()
        ends, sequences = self._offsets.get((channel_id, partition), ([], []))
        found: list[Published] = []
        size = 0
        for at in range(bisect_right(ends, offset), len(ends)):
            sequence = sequences[at]
            size += self._sizes[sequence]
            if sequence > self.synced or (found and size > max_bytes):
                break
            for published in published_in(self._records[sequence]):
                place = (published.channel_id, published.partition, end_offset(published))
                if place == (channel_id, partition, ends[at]):
                    found.append(published)
        return found

    @property
    def has_gaps(self) -> bool:
        return False

    async def read_sequence(self, sequence: int) -> Message | Unknown | None:
        self._check_usable()
        found = self._records.get(sequence) if sequence <= self.synced else None
        return None if found is None else plain(found)

    def rest(self, patience: float, meanwhile: Callable[[], None] = nothing) -> None:
        pass

    def rotate(self) -> None:
        self._check_usable()

    async def install(self, proposal: Proposal, approve: Approve) -> list[str]:
        raise InstallRefused("a log in memory has no segments")

    async def install_offer(self, offer_id: str, engage: Engage, confirm: Callable[[], None]) -> Installed:
        raise NoSuchProposal("a log in memory has no segments, and so no proposals")

    def end_examining(self) -> None:
        pass

    async def clean(self, keep: Keep, max_bytes: int) -> int:
        """Forget what is not needed; everything is at hand, so all of it in one go, with breaths between."""
        self._check_usable()
        for (channel_id, partition), (ends, sequences) in list(self._offsets.items()):
            gone = bisect_right(ends, keep.start_of(channel_id, partition))
            del ends[:gone], sequences[:gone]
            if not ends:
                del self._offsets[channel_id, partition]
        before = self._freed_bytes
        for number, sequence in enumerate(list(self._records)):
            if sequence >= self._snapshot_begin:
                break
            record = self._records[sequence]
            if isinstance(record, Encoded) or not keep.needs(record):
                del self._records[sequence]
                self._freed_bytes += self._sizes.pop(sequence)
            if number % BREATH == BREATH - 1:
                await asyncio.sleep(0)
        return self._freed_bytes - before

    async def verify(self, progress: Progress | None = None) -> Report:
        return Report("memory", self.uuid, frames=len(self._records), bytes=self._bytes - self._freed_bytes)

    async def scrub(self) -> list[Damage]:
        return []

    async def back_up(self, target: str, progress: Progress | None = None) -> Backup:
        raise BackupRefused("a log in memory has no backup")

    def segments(self) -> list[SegmentInfo]:
        return []

    def usage(self) -> Usage:
        return Usage(
            last_sequence=self.last_sequence,
            written=self.written,
            synced=self.synced,
            queued_bytes=self._bytes - self._synced_bytes,
            queue_limit_bytes=UNLIMITED,
            segments=0,
            bytes=self._bytes - self._freed_bytes,
            free_bytes=UNLIMITED,
            is_short_of_space=self.is_short_of_space,
            replay_bytes=self._bytes - self._snapshot_bytes,
            fsync_count=0,
            fsync_seconds=0.0,
        )

    def close(self) -> None:
        if not self.is_closed and self._failure is None:
            self._move_marks(self.last_sequence)
        self.is_closed = True

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise LogFailed(str(self._failure))
        if self.is_closed:
            raise LogClosed("the log is closed")

    def _move_marks(self, sequence: int) -> None:
        for moved in range(self.synced + 1, sequence + 1):
            record = self._records.get(moved)
            self._synced_bytes += self._sizes.get(moved, 0)
            if isinstance(record, SnapshotEnd) and isinstance(self._records.get(record.begin_sequence), SnapshotBegin):
                self._snapshot_begin = record.begin_sequence
                since = range(record.begin_sequence, self.last_sequence + 1)
                self._snapshot_bytes = self._bytes - sum(self._sizes.get(number, 0) for number in since)
        self.written = self.synced = sequence
        if self._on_marks:
            self._on_marks(sequence, sequence)
