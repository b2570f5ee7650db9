"""The log in a directory: `FileLog` implements `wal.log.Log` with one writer thread.

The owner's side is here: it gives out sequences, knows where each frame will lie before it is written (so the index
grows at once), and decides when a segment is full. The writer's side is `wal.writer`, driven by `wal.drive`.
What keeps the finished segments in order is in `wal.upkeep`.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from uuid import UUID

from google.protobuf.message import Message
from loguru import logger

from wal.backup import Backup
from wal.chain import replay_start
from wal.clean import Cleaner, Keep
from wal.clock import Clock, SystemClock
from wal.disk import LOCK, DirectDisk, Disk
from wal.drive import Drive
from wal.errors import DiskFull, LogBusy, LogClosed, LogFailed, RecordTooLarge
from wal.frame import HEADER_BYTES as FRAME_BYTES
from wal.frame import MAX_PAYLOAD_BYTES
from wal.index import INDEXED, SegmentIndex
from wal.install import Approve, Engage, Installed
from wal.log import OnFailure, OnMarks, SegmentInfo, Usage, nothing
from wal.manifest import Manifest, SnapshotRun
from wal.options import Options
from wal.proposal import Proposal
from wal.reader import Reader
from wal.record import (
    SNAPSHOT_BEGIN,
    SNAPSHOT_END,
    Published,
    Record,
    SnapshotBegin,
    SnapshotEnd,
    Unknown,
    encode,
    placements,
)
from wal.recovery import Recovery, recover
from wal.segment import SEGMENT_HEADER_BYTES
from wal.space import Space
from wal.upkeep import Upkeep
from wal.verify import Damage, Progress, Report, verify
from wal.writer import SMALL_BYTES, TEND_SECONDS, Entry, Group, Rotation, Run, Writer

_RUN_ENDS = frozenset({SNAPSHOT_BEGIN, SNAPSHOT_END})


class FileLog:
    """A log in a directory. Make one with `FileLog.open`."""

    def __init__(
        self,
        directory: str,
        options: Options,
        disk: Disk,
        clock: Clock,
        random: Callable[[int], bytes],
        *,
        is_threaded: bool,
    ) -> None:
        disk.make_directory(directory)
        self._lock_fd = disk.lock(os.path.join(directory, LOCK))
        try:
            opened = recover(
                disk, directory, clock, random, extension=options.extension,
                make_space=lambda: Space(
                    disk, directory, segment_bytes=options.segment_bytes,
                    reserve_bytes=options.segment_bytes + options.snapshot_bytes,
                    soft_free_bytes=options.soft_free_bytes,
                ),
            )  # fmt: skip
        except BaseException:
            disk.close(self._lock_fd)
            raise
        self.directory = directory
        self.report: Recovery = opened.report
        self._options, self._disk, self._clock = options, disk, clock
        self._segment_bytes = options.segment_bytes
        self._max_record_bytes = min(options.max_record_bytes, MAX_PAYLOAD_BYTES)
        self._reader = Reader(disk, directory, opened.manifest)
        self._reader.go_live(opened.manifest, opened.live.index, opened.live.position)
        self._space = opened.space
        self._closing = threading.Event()
        self._writer = Writer(
            disk, directory, clock, opened.manifest, opened.live, space=opened.space, watermark=opened.watermark,
            reader=self._reader, bytes_per_sync=options.bytes_per_sync, retire_grace_us=options.retire_grace_us,
            random=random, pause=self._wait_for_space,
        )  # fmt: skip
        self._drive = Drive(self._writer, options.group_bytes, self._fail, is_threaded=is_threaded)
        self._on_failure: OnFailure = lambda error: None
        self._is_closed = False
        self._upkeep = Upkeep(
            disk, directory, self._writer, Cleaner(disk, directory, self._reader, options.segment_bytes),
            clock=clock, space=opened.space, random=random, check_usable=self._check_usable,
            between_groups=self.run_between_groups,
        )  # fmt: skip

        self.last_sequence = opened.live.last_sequence
        self._index: SegmentIndex = opened.live.index
        self._position = opened.live.position  # where the next frame will start, in a segment that may not exist yet
        self._appended_bytes = 0
        self._run_begin = (0, 0)  # sequence of the snapshot run that is being written, and _appended_bytes there
        self._replay_bytes = self._kept_since_snapshot(opened.manifest)

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        options: Options | None = None,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
        random: Callable[[int], bytes] = os.urandom,
        is_threaded: bool = True,
    ) -> FileLog:
        """Recover a directory, or make a new one, and own it until `close`.

        Raises LogLocked, CorruptSegment (only for a lost manifest: other damage is reported and lived with),
        UnsupportedVersion, BackupRefused (where it is a backup).
        """
        return cls(
            os.fspath(directory), options or Options(), disk or DirectDisk(), clock or SystemClock(), random,
            is_threaded=is_threaded,
        )  # fmt: skip

    # ------------------------------------------------------------ what it is

    @property
    def uuid(self) -> UUID:
        return self._writer.manifest.log_uuid

    @property
    def written(self) -> int:
        return self._writer.written

    @property
    def synced(self) -> int:
        return self._writer.synced

    @property
    def manifest(self) -> Manifest:
        return self._writer.manifest

    def segments(self) -> list[SegmentInfo]:
        manifest = self._writer.manifest
        return [
            SegmentInfo(
                entry.name(manifest.extension),
                entry.first_sequence,
                entry.last_sequence if entry.is_sealed else self.synced,
                entry.generation,
                entry.size if entry.is_sealed else self._position,
                entry.is_sealed,
            )
            for entry in manifest.segments
        ]

    def usage(self) -> Usage:
        segments = self.segments()
        return Usage(
            last_sequence=self.last_sequence,
            written=self.written,
            synced=self.synced,
            queued_bytes=self._appended_bytes - self._writer.synced_bytes,
            queue_limit_bytes=self._options.queue_bytes,
            segments=len(segments),
            bytes=sum(segment.bytes for segment in segments),
            free_bytes=self._space.free_bytes(),
            is_short_of_space=self._space.is_short,
            replay_bytes=self._replay_bytes,
            fsync_count=self._writer.sync_count,
            fsync_seconds=self._writer.sync_seconds,
        )

    # ------------------------------------------------------------ the owner's calls

    def start(self, on_marks: OnMarks, on_failure: OnFailure) -> None:
        self._writer.on_marks = on_marks
        self._on_failure = on_failure
        self._drive.start()

    @property
    def is_short_of_space(self) -> bool:
        return self._space.is_short

    @property
    def likely_seconds(self) -> float:
        return self._drive.likely_seconds

    def append(
        self,
        records: Sequence[Record],
        *,
        sync: bool = True,
        essential: bool = False,
        patience: float = 0.0,
        meanwhile: Callable[[], None] = nothing,
    ) -> int:
        if self._drive.failure is not None or self._is_closed:
            self._check_usable()
        encoded = [encode(record) for record in records]
        self._check_room(encoded, essential)
        entries: list[Entry] = []
        queued, position, sequence = 0, self._position, self.last_sequence
        index = self._index
        for record, (type_, pieces, length) in zip(records, encoded, strict=True):
            size = FRAME_BYTES + length
            sequence += 1
            if position + size > self._segment_bytes and position > SEGMENT_HEADER_BYTES:
                self._enqueue(entries, queued, sync)
                entries, queued = [], 0
                position = self._rotate_before(sequence)
                index = self._index
            index.add(position, sequence, placements(record) if type_ in INDEXED else ())
            position += size
            queued += size
            entries.append((sequence, type_, pieces, size))
            if type_ in _RUN_ENDS:
                self._enqueue(entries, queued, sync)
                entries, queued = [], 0
                self._note_snapshot(record, sequence)
        self._position, self.last_sequence = position, sequence
        self._enqueue(entries, queued, sync, patience, meanwhile)
        return sequence

    def rest(self, patience: float, meanwhile: Callable[[], None] = nothing) -> None:
        self._drive.rest(patience, meanwhile)

    def rotate(self) -> None:
        self._check_usable()
        if self._position > SEGMENT_HEADER_BYTES:
            self._rotate_before(self.last_sequence + 1)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._closing.set()
        self._upkeep.end_examining()
        try:
            self._drive.stop()
        finally:
            self._disk.close(self._lock_fd)

    # ------------------------------------------------------------ reading

    def replay(self) -> Iterator[tuple[int, Message | Unknown]]:
        return self._reader.replay(
            replay_start(self._disk, self.directory, self._writer.manifest, self._reader.index_of)
        )

    async def read(self, channel_id: int, partition: int, offset: int, max_bytes: int) -> list[Published]:
        self._check_usable()
        return await asyncio.to_thread(self._reader.read, channel_id, partition, offset, max_bytes, self.synced)

    @property
    def has_gaps(self) -> bool:
        return self._reader.has_gaps

    async def read_sequence(self, sequence: int) -> Message | Unknown | None:
        self._check_usable()
        return await asyncio.to_thread(self._reader.read_sequence, sequence, self.synced)

    # ------------------------------------------------------------ inside

    def _check_usable(self) -> None:
        if self._drive.failure is not None:
            raise LogFailed(str(self._drive.failure)) from self._drive.failure
        if self._is_closed:
            raise LogClosed(f"{self.directory} is closed")

    def _check_room(self, encoded: Sequence[tuple[int, list[bytes], int]], essential: bool) -> None:
        most = self._max_record_bytes
        for _, _, length in encoded:
            if length > most:
                raise RecordTooLarge(f"a record of {length} bytes exceeds {most}")
        if essential:
            return
        if self._space.is_short:
            raise DiskFull(f"only {self._space.free_bytes()} bytes are free on the disk of {self.directory}")
        if self._appended_bytes - self._writer.synced_bytes > self._options.queue_bytes:
            raise LogBusy(f"{self._options.queue_bytes} bytes wait for the disk already")

    def _enqueue(
        self,
        entries: list[Entry],
        size: int,
        sync: bool,
        patience: float = 0.0,
        meanwhile: Callable[[], None] = nothing,
    ) -> None:
        if entries:
            self._appended_bytes += size
            self._replay_bytes += size
            group = Group(entries, size, sync)
            if not (patience and size < SMALL_BYTES and self._drive.commit(group, patience, meanwhile)):
                self._drive.hand(group)

    def _rotate_before(self, sequence: int) -> int:
        """The next record opens a new segment; returns its position there."""
        self._index = SegmentIndex()
        self._position = SEGMENT_HEADER_BYTES
        self._drive.hand(Rotation(sequence, self._index))
        return SEGMENT_HEADER_BYTES

    def _note_snapshot(self, record: Record, sequence: int) -> None:
        if isinstance(record, SnapshotBegin):
            self._run_begin = (sequence, self._appended_bytes)
        elif isinstance(record, SnapshotEnd) and record.begin_sequence == self._run_begin[0]:
            self._replay_bytes = self._appended_bytes - self._run_begin[1]
            self._drive.hand(Run(SnapshotRun(record.begin_sequence, sequence)))

    def _kept_since_snapshot(self, manifest: Manifest) -> int:
        begin = manifest.snapshots[-1].begin if manifest.snapshots else 0
        return self._position + sum(entry.size for entry in manifest.segments if entry.last_sequence >= begin)

    def pump(self) -> None:
        """One turn of the writer in the caller's thread, for a log that was opened without one."""
        self._check_usable()
        self._drive.pump()
        self._drive.tend()

    def _fail(self, error: BaseException) -> None:
        logger.error("the log stops: {}", error)
        self._upkeep.fail(error)
        self._on_failure(error)

    def _wait_for_space(self) -> bool:
        return not self._closing.wait(TEND_SECONDS)

    # ------------------------------------------------------------ upkeep

    async def install(self, proposal: Proposal, approve: Approve) -> list[str]:
        """Replace segments by rewritten ones, if every difference is approved. Raises InstallRefused."""
        return await self._upkeep.install(proposal, approve)

    async def install_offer(self, offer_id: str, engage: Engage, confirm: Callable[[], None]) -> Installed:
        """Install what another program proposes, if the judge finds nothing wrong with it."""
        return await self._upkeep.install_offer(offer_id, engage, confirm)

    def end_examining(self) -> None:
        """Whoever waits until a proposal is examined gets LogClosed soon, also those who come later."""
        self._upkeep.end_examining()

    def install_now(self, proposal: Proposal, approve: Approve) -> list[str]:
        """The same for a log that was opened without a thread."""
        return self._upkeep.install_now(proposal, approve, self.pump)

    async def clean(self, keep: Keep, max_bytes: int) -> int:
        """Write mostly dead segments anew, or retire them whole; returns the bytes that this frees."""
        return await self._upkeep.clean(keep, max_bytes)

    def clean_now(self, keep: Keep, max_bytes: int) -> int:
        """The same for a log that was opened without a thread."""
        return self._upkeep.clean_now(keep, max_bytes, self.pump)

    async def verify(self, progress: Progress | None = None) -> Report:
        """Read the whole log and report every damaged range, while it goes on being written."""
        return await asyncio.to_thread(verify, self.directory, disk=self._disk, progress=progress)

    async def scrub(self) -> list[Damage]:
        """Verify the next sealed segment, round and round; returns what is damaged in it."""
        return await self._upkeep.scrub()

    async def back_up(self, target: str, progress: Progress | None = None) -> Backup:
        """Bring the backup in a directory to what is durable now. Raises BackupRefused, LogLocked, OSError."""
        return await self._upkeep.back_up(target, progress or (lambda done, total: None), self._closing)

    def run_between_groups(self, act: Callable[[Writer], None]) -> None:
        """Have the writer do something between two groups (an install)."""
        self._drive.do_between_groups(act)
