"""The log in a directory: `FileLog` implements `wal.log.Log` with one writer thread.

The owner's side is here: it gives out sequences, knows where each frame will lie before it is written (so the index
grows at once), and decides when a segment is full. The writer's side is `wal.writer`; they share a queue.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from google.protobuf.message import Message
from loguru import logger

from wal.chain import walk_chain
from wal.clean import Cleaner, Keep
from wal.clock import Clock, SystemClock
from wal.disk import DirectDisk, Disk
from wal.errors import DiskFull, InstallRefused, LogBusy, LogClosed, LogFailed, RecordTooLarge, WalError
from wal.frame import HEADER_BYTES as FRAME_BYTES
from wal.frame import MAX_PAYLOAD_BYTES, Frame
from wal.index import INDEXED, SegmentIndex
from wal.install import Approve, Proposal, check, place
from wal.log import OnFailure, OnMarks, SegmentInfo, Usage
from wal.manifest import Manifest, SnapshotRun
from wal.reader import Reader
from wal.record import (
    DAMAGED,
    SKIPPED,
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
from wal.verify import Damage, Progress, Report, verify, verify_segment
from wal.writer import TEND_SECONDS, Entry, Group, Item, Rotation, Run, Task, Writer

LOCK = "LOCK"
LINGER_SECONDS = 0.001  # of silence, then what nobody waits for is synced too: a stream of it shares few syncs
LOST = frozenset({DAMAGED, SKIPPED})  # what stands in the place of records that are gone
_RUN_ENDS = frozenset({SNAPSHOT_BEGIN, SNAPSHOT_END})


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
        self._cleaner = Cleaner(disk, directory, self._reader, options.segment_bytes)
        self._random = random
        self._space = opened.space
        self._closing = threading.Event()
        self._writer = Writer(
            disk, directory, clock, opened.manifest, opened.live, space=opened.space, watermark=opened.watermark,
            reader=self._reader, bytes_per_sync=options.bytes_per_sync, retire_grace_us=options.retire_grace_us,
            random=random, pause=self._wait_for_space,
        )  # fmt: skip
        self._queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="wal-writer", daemon=True) if is_threaded else None
        self._failure: BaseException | None = None
        self._on_failure: OnFailure = lambda error: None
        self._is_closed = False
        self._scrubbed = 0  # the first sequence of the segment that was scrubbed last
        self._installing = asyncio.Lock()
        self._installs: list[concurrent.futures.Future[None]] = []  # waiting for the writer

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
        UnsupportedVersion.
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
        if self._thread is not None and not self._thread.is_alive():
            self._thread.start()

    def append(self, records: Sequence[Record], *, sync: bool = True, essential: bool = False) -> int:
        if self._failure is not None or self._is_closed:
            self._check_usable()
        encoded = [encode(record) for record in records]
        self._check_room(encoded, essential)
        entries: list[Entry] = []
        queued, position, sequence = 0, self._position, self.last_sequence
        for record, (type_, pieces, length) in zip(records, encoded, strict=True):
            size = FRAME_BYTES + length
            sequence += 1
            if position + size > self._segment_bytes and position > SEGMENT_HEADER_BYTES:
                self._enqueue(entries, queued, sync)
                entries, queued = [], 0
                position = self._rotate_before(sequence)
            self._index.add(position, sequence, placements(record) if type_ in INDEXED else ())
            position += size
            queued += size
            entries.append((sequence, type_, pieces, size))
            if type_ in _RUN_ENDS:
                self._enqueue(entries, queued, sync)
                entries, queued = [], 0
                self._note_snapshot(record, sequence)
        self._position, self.last_sequence = position, sequence
        self._enqueue(entries, queued, sync)
        return sequence

    def rotate(self) -> None:
        self._check_usable()
        if self._position > SEGMENT_HEADER_BYTES:
            self._rotate_before(self.last_sequence + 1)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._closing.set()
        try:
            if self._thread is not None and self._thread.is_alive():
                self._queue.put(None)
                self._thread.join()
            elif self._failure is None:
                self._drain()
        finally:
            try:
                if self._failure is None:
                    self._writer.close()
                else:
                    self._writer.abandon()
            finally:
                self._disk.close(self._lock_fd)

    # ------------------------------------------------------------ reading

    def replay(self) -> Iterator[tuple[int, Message | Unknown]]:
        return self._reader.replay(self._replay_start())

    async def read(self, channel_id: int, partition: int, offset: int, max_bytes: int) -> list[Published]:
        self._check_usable()
        return await asyncio.to_thread(self._reader.read, channel_id, partition, offset, max_bytes, self.synced)

    async def read_sequence(self, sequence: int) -> Message | Unknown | None:
        self._check_usable()
        return await asyncio.to_thread(self._reader.read_sequence, sequence, self.synced)

    def _replay_start(self) -> int:
        """The newest snapshot run without damage; a damaged one would restore half a state."""
        manifest = self._writer.manifest
        for run in reversed(manifest.snapshots):
            for _, item in walk_chain(self._disk, self.directory, manifest, run.begin):
                if not isinstance(item, Frame) or item.type in LOST:
                    break
                if item.sequence >= run.end:
                    return run.begin
            logger.error("the snapshot run at {} is damaged; going back to an older one", run.begin)
        return 0

    # ------------------------------------------------------------ inside

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise LogFailed(str(self._failure)) from self._failure
        if self._is_closed:
            raise LogClosed(f"{self.directory} is closed")

    def _check_room(self, encoded: Sequence[tuple[int, list[bytes], int]], essential: bool) -> None:
        for _, _, length in encoded:
            if length > self._max_record_bytes:
                raise RecordTooLarge(f"a record of {length} bytes exceeds {self._max_record_bytes}")
        if essential:
            return
        if self._space.is_short:
            raise DiskFull(f"only {self._space.free_bytes()} bytes are free on the disk of {self.directory}")
        if self._appended_bytes - self._writer.synced_bytes > self._options.queue_bytes:
            raise LogBusy(f"{self._options.queue_bytes} bytes wait for the disk already")

    def _enqueue(self, entries: list[Entry], size: int, sync: bool) -> None:
        if entries:
            self._appended_bytes += size
            self._replay_bytes += size
            self._queue.put(Group(entries, size, sync))

    def _rotate_before(self, sequence: int) -> int:
        """The next record opens a new segment; returns its position there."""
        self._index = SegmentIndex()
        self._position = SEGMENT_HEADER_BYTES
        self._queue.put(Rotation(sequence, self._index))
        return SEGMENT_HEADER_BYTES

    def _note_snapshot(self, record: Record, sequence: int) -> None:
        if isinstance(record, SnapshotBegin):
            self._run_begin = (sequence, self._appended_bytes)
        elif isinstance(record, SnapshotEnd) and record.begin_sequence == self._run_begin[0]:
            self._replay_bytes = self._appended_bytes - self._run_begin[1]
            self._queue.put(Run(SnapshotRun(record.begin_sequence, sequence)))

    def _kept_since_snapshot(self, manifest: Manifest) -> int:
        begin = manifest.snapshots[-1].begin if manifest.snapshots else 0
        return self._position + sum(entry.size for entry in manifest.segments if entry.last_sequence >= begin)

    # ------------------------------------------------------------ the writer's thread

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as error:
            self._fail(error)

    def _step(self) -> bool:
        """Take what is queued, up to a group's size, and make it durable; False when asked to stop."""
        items: list[Item] = []
        size = 0
        try:
            item = self._queue.get(timeout=LINGER_SECONDS if self._writer.has_unsynced else TEND_SECONDS)
        except queue.Empty:
            self._writer.rest()
            self._writer.tend(is_idle=True)
            return True
        try:
            while item is not None:
                items.append(item)
                size += item.bytes if isinstance(item, Group) else 0
                if size >= self._options.group_bytes:
                    break
                item = self._queue.get_nowait()
        except queue.Empty:
            pass
        self._writer.process(items)
        is_idle = self._queue.empty()
        self._writer.settle(is_idle=is_idle)
        if item is None:
            return False
        self._writer.tend(is_idle=is_idle)
        return True

    def _drain(self) -> None:
        """Everything that is queued, at once: a log without a thread."""
        items: list[Item] = []
        while not self._queue.empty():
            item = self._queue.get_nowait()
            if item is not None:
                items.append(item)
        try:
            self._writer.process(items)
            self._writer.rest()
            if not self._is_closed:
                self._writer.tend(is_idle=True)
        except Exception as error:
            self._fail(error)
            raise

    def pump(self) -> None:
        """One turn of the writer in the caller's thread, for a log that was opened without one."""
        self._check_usable()
        self._drain()

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        logger.error("the log stops: {}", error)
        for swapped in self._installs:
            with suppress(concurrent.futures.InvalidStateError):
                swapped.set_exception(LogFailed(str(error)))
        self._on_failure(error)

    def _wait_for_space(self) -> bool:
        return not self._closing.wait(TEND_SECONDS)

    # ------------------------------------------------------------ upkeep

    async def install(self, proposal: Proposal, approve: Approve) -> list[str]:
        """Replace segments by rewritten ones, if every difference is approved; returns the new names.

        Raises InstallRefused, and then the log is as it was. One after the other: what the first has replaced, the
        second can't replace again.
        """
        async with self._installing:
            return await self._install(proposal, approve)

    async def _install(self, proposal: Proposal, approve: Approve) -> list[str]:
        self._check_usable()
        manifest = self._writer.manifest
        entries = await asyncio.to_thread(check, self._disk, self.directory, manifest, proposal, approve)
        await asyncio.to_thread(place, self._disk, self.directory, manifest, proposal, entries)
        swapped: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._installs.append(swapped)
        self._check_usable()  # the log may have failed meanwhile, and then nobody would end the wait below

        def act(writer: Writer) -> None:
            writer.replace_segments(proposal.inputs, entries)
            self._installs.remove(swapped)
            with suppress(concurrent.futures.InvalidStateError):  # whoever waited was cancelled
                swapped.set_result(None)

        self.run_between_groups(act)
        await asyncio.wrap_future(swapped)
        return [entry.name(manifest.extension) for entry in entries]

    def install_now(self, proposal: Proposal, approve: Approve) -> list[str]:
        """The same for a log that was opened without a thread."""
        manifest = self._writer.manifest
        entries = check(self._disk, self.directory, manifest, proposal, approve)
        place(self._disk, self.directory, manifest, proposal, entries)
        self.run_between_groups(lambda writer: writer.replace_segments(proposal.inputs, entries))
        self.pump()
        return [entry.name(manifest.extension) for entry in entries]

    async def clean(self, keep: Keep, max_bytes: int) -> int:
        """Write mostly dead segments anew, or retire them whole; returns the bytes that this frees."""
        self._check_usable()
        try:
            proposal = await asyncio.to_thread(self._propose_cleaning, keep, max_bytes)
            if proposal is None:
                return 0
            before = self._bytes_of(proposal.inputs)
            try:
                names = await self.install(proposal, _approval(keep))
            except InstallRefused:
                self._cleaner.refuse(proposal.inputs)
                raise
        except (WalError, OSError) as error:
            self._check_usable()
            logger.warning("a part of the log is not cleaned: {}", error)
            return 0
        return before - self._bytes_of(names)

    def clean_now(self, keep: Keep, max_bytes: int) -> int:
        """The same for a log that was opened without a thread."""
        proposal = self._propose_cleaning(keep, max_bytes)
        if proposal is None:
            return 0
        before = self._bytes_of(proposal.inputs)
        return before - self._bytes_of(self.install_now(proposal, _approval(keep)))

    def _propose_cleaning(self, keep: Keep, max_bytes: int) -> Proposal | None:
        return self._cleaner.propose(
            self._writer.manifest, keep, max_bytes, self._random(8), may_write=not self._space.is_short
        )

    def _bytes_of(self, names: Sequence[str]) -> int:
        manifest = self._writer.manifest
        return sum(entry.size for entry in manifest.segments if entry.name(manifest.extension) in names)

    async def verify(self, progress: Progress | None = None) -> Report:
        """Read the whole log and report every damaged range, while it goes on being written."""
        return await asyncio.to_thread(verify, self.directory, disk=self._disk, progress=progress)

    async def scrub(self) -> list[Damage]:
        """Verify the next sealed segment, round and round; returns what is damaged in it."""
        manifest = self._writer.manifest
        sealed = [entry for entry in manifest.segments if entry.is_sealed]
        if not sealed:
            return []
        due = [entry for entry in sealed if entry.first_sequence > self._scrubbed] or sealed
        self._scrubbed = due[0].first_sequence
        return await asyncio.to_thread(verify_segment, self.directory, manifest, due[0], disk=self._disk)

    def run_between_groups(self, act: Callable[[Writer], None]) -> None:
        """Have the writer do something between two groups (an install)."""
        self._queue.put(Task(lambda: act(self._writer)))


def _approval(keep: Keep) -> Approve:
    """Cleaning drops whole records that nobody needs, and changes none."""
    return lambda sequence, before, after: after is None and not keep.needs(before)
