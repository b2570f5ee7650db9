"""The writer: turns queued records into durable frames, in order, a group at a time.

It alone writes the live segment, the MANIFEST and the watermark. All that was queued while a sync ran is written
together and shares the next one. A plain object whose steps a thread calls for a living log, or a test one by one.

The rules it keeps: nothing counts as durable before `sync` returned on the descriptor that wrote it; an error of
sync or close is final; a full disk is not an error of ours, so a group that does not fit is cut back and tried
again; no frame of a new segment is written before the old one's seal, the new file's name and the MANIFEST are
durable.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from loguru import logger

from wal.backup import Moment, moment_of
from wal.clock import Clock
from wal.disk import FULL, Disk, write_all
from wal.errors import InstallRefused, LogFailed
from wal.frame import HEADER_BYTES as FRAME_BYTES
from wal.frame import encode
from wal.index import SegmentIndex
from wal.live import Live, start_segment
from wal.log import OnMarks
from wal.manifest import Manifest, SegmentEntry, SnapshotRun, swap_manifest
from wal.reader import Reader
from wal.record import SEAL, Seal
from wal.segment import SegmentHeader, roll
from wal.space import Space
from wal.watermark import Mark, WatermarkFile

JOIN_ABOVE = 64  # buffers; so many small ones are cheaper copied together than handed over one by one
SMALL_BYTES = 64 << 10  # a group below this writes zeros ahead of itself; others are written past the page cache
AHEAD_BYTES = 256 << 10
SLOW_SYNC_SECONDS = 1.0
LATE_SECONDS = 0.002  # who pulls waits for the sync, also where who published does not
LATEST_SECONDS = 0.1  # however long a sync took
FORGETTING = 0.8  # of a slow sync, with each that follows
SYNC_SHARE = 4  # at most one such sync in so many times what the last took: publishes wait for them
TEND_SECONDS = 0.25

T = TypeVar("T")
_ZEROS = bytes(AHEAD_BYTES)


# One record on its way to disk: sequence, type, payload in pieces, size of the whole frame.
Entry: TypeAlias = tuple[int, int, Sequence[bytes], int]


@dataclass(slots=True)
class Group:
    """Records that were appended together."""

    entries: list[Entry]
    bytes: int
    wants_sync: bool


@dataclass(slots=True)
class Rotation:
    """Seal the live segment; the next one starts at a sequence."""

    first_sequence: int
    index: SegmentIndex


@dataclass(slots=True)
class Run:
    """A snapshot run ended with the records before this."""

    run: SnapshotRun


@dataclass(slots=True)
class Task:
    """Something that must happen between two groups, on the writer's own terms (an install)."""

    act: Callable[[], None]


Item = Group | Rotation | Run | Task


class Writer:
    """The steps; one caller at a time."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        clock: Clock,
        manifest: Manifest,
        live: Live,
        *,
        space: Space,
        watermark: WatermarkFile,
        reader: Reader,
        bytes_per_sync: int,
        retire_grace_us: int,
        random: Callable[[int], bytes],
        pause: Callable[[], bool],
    ) -> None:
        self.manifest = manifest
        self.written = self.synced = live.last_sequence
        self.synced_bytes = 0  # since the start
        self.sync_count = 0
        self.sync_seconds = 0.0
        self._last_sync_seconds = 0.0
        self._slowest_seconds = 0.0  # of the syncs of late, the older ones half forgotten
        self.on_marks: OnMarks = lambda written, synced: None
        self.held: set[str] = set()  # segments that a backup still has to take: they stay, also when retired
        self._disk = disk
        self._directory = directory
        self._clock = clock
        self._live = live
        self._space = space
        self._watermark = watermark
        self._reader = reader
        self._bytes_per_sync = bytes_per_sync
        self._retire_grace_us = retire_grace_us
        self._random = random
        self._pause = pause  # waits a little for space to come back; False: give up
        self._buffers: list[bytes] = []  # encoded, not yet written
        self._buffered = 0
        self._crcs: list[int] = []
        self._encoded = 0  # the last sequence in the buffers
        self._unsynced_bytes = 0
        self._unsynced_since = 0.0  # when the first of that was written
        self._wants_sync = False
        self._has_loose = False  # somebody waits for the written mark only
        self._marked = 0  # the sequence in the watermark
        self._tended = float("-inf")

    # ------------------------------------------------------------ groups

    def process(self, items: Sequence[Item]) -> None:
        """Write what was queued, in order; groups that follow each other go out in one call."""
        for item in items:
            if isinstance(item, Group):
                self._encode(item)
                continue
            self._flush()
            match item:
                case Rotation():
                    self._rotate(item)
                case Run():
                    self._note_run(item.run)
                case Task():
                    item.act()
        self._flush()
        if self._has_loose and self.written > self.synced:
            self.on_marks(self.written, self.synced)
        self._has_loose = False

    @property
    def likely_seconds(self) -> float:
        """How long the next small commit may well take: who had to wait long is to expect it for a while."""
        return SLOW_SYNC_SECONDS if self._space.is_short or not self.sync_count else self._slowest_seconds

    def commit(self, group: Group, meanwhile: Callable[[], None]) -> bool:
        """Write one small group, waiting for nothing but the disk, and leave it to the caller to say so.

        It is durable where it wants to be, or where something before it was left to the next sync for too long; see
        `sync_here` for the rest. False: it is not written, and has to take the usual way.
        """
        if self._unsynced_bytes + group.bytes >= min(SMALL_BYTES, self._bytes_per_sync):
            return False
        self._encode(group)
        live = self._live
        if not self._write_at_once(live.fd, self._joined(), live.position):
            self._forget_encoded()
            self._wants_sync = self._has_loose = False
            return False
        is_due = group.wants_sync or self._is_late()
        if is_due:
            self._hasten(self._buffered)
        self._note_written(self._encoded)
        self._has_loose = False
        if is_due:
            meanwhile()
            self._sync_live()
        return True

    def sync_here(self, meanwhile: Callable[[], None]) -> None:
        """Make the little that is written durable, and leave it to the caller to say so.

        `meanwhile` is called while the disk works.
        """
        self._hasten(0)
        meanwhile()
        self._sync_live()

    def _hasten(self, more: int) -> None:
        """Let the disk begin with what is not synced, and with so many bytes behind it."""
        unsynced = self._unsynced_bytes
        self._disk.hasten(self._live.fd, self._live.position - unsynced, unsynced + more)

    @property
    def has_news(self) -> bool:
        """Is more durable than the watermark tells?"""
        return self._marked < self.synced

    def mark_at_once(self) -> None:
        """Note in the watermark what is durable. Where that fails, the thread will try again, and may wait."""
        with suppress(OSError):
            self._watermark.write(self._durable_mark())
            self._marked = self.synced

    def mark(self) -> None:
        """Note in the watermark what is durable, where it is not yet noted."""
        if self.has_news:
            self._mark()

    @property
    def has_unsynced(self) -> bool:
        return self.written > self.synced

    def settle(self, *, is_idle: bool) -> None:
        """Sync if somebody waits for it, or has waited: what is not synced is not served.

        The watermark waits until nothing else is to do: before that, the next frame's `durable` says the same.
        """
        if self._wants_sync or self._is_late():
            self.sync()
        if is_idle:
            self.mark()

    def _is_late(self) -> bool:
        if self.written == self.synced:
            return False
        late = max(LATE_SECONDS, min(LATEST_SECONDS, SYNC_SHARE * self._last_sync_seconds))
        return self._clock.monotonic() - self._unsynced_since >= late

    def rest(self) -> None:
        """Nothing came for a moment: sync also what nobody waits for."""
        self.sync()
        self.mark()

    def sync(self) -> None:
        """Make everything written durable, and say so."""
        if self.synced == self.written:
            return
        self._sync_live()
        self.on_marks(self.written, self.synced)

    def _encode(self, group: Group) -> None:
        salt, buffers, crcs = self._live.salt, self._buffers, self._crcs
        for sequence, type_, pieces, size in group.entries:
            header, crc = encode(salt, type_, sequence, self.synced, pieces, size - FRAME_BYTES)
            buffers.append(header)
            buffers += pieces
            crcs.append(crc)
            self._buffered += size
            if self._unsynced_bytes + self._buffered >= self._bytes_per_sync:
                self._flush(sequence)
                self.sync()
        self._encoded = group.entries[-1][0]
        if group.wants_sync:
            self._wants_sync = True
        else:
            self._has_loose = True

    def _flush(self, last_sequence: int | None = None) -> None:
        """Write what is encoded, up to a sequence (default: of the last group)."""
        if not self._buffers:
            return
        live = self._live
        buffers = self._joined()
        if not self._write_at_once(live.fd, buffers, live.position):
            self._patiently(lambda: self._write_or_cut(live.fd, buffers, live.position))
        self._note_written(self._encoded if last_sequence is None else last_sequence)

    def _joined(self) -> list[bytes]:
        """What is encoded, in no more pieces than are worth it, and than one call takes."""
        return self._buffers if len(self._buffers) <= JOIN_ABOVE else [b"".join(self._buffers)]

    def _note_written(self, last_sequence: int) -> None:
        live = self._live
        live.position += self._buffered
        live.frames += len(self._crcs)
        live.rolling_crc = roll(live.rolling_crc, self._crcs)
        if self.written == self.synced:
            self._unsynced_since = self._clock.monotonic()
        live.last_sequence = self.written = last_sequence
        self._unsynced_bytes += self._buffered
        if self._buffered < SMALL_BYTES and live.position > live.zeroed:
            self._write_zeros_ahead()
        self._forget_encoded()

    def _forget_encoded(self) -> None:
        self._buffered = 0
        self._buffers.clear()
        self._crcs.clear()

    def _write_zeros_ahead(self) -> None:
        """Write zeros where the next groups will be; the sync that follows makes them durable too.

        A sync of bytes that were only preallocated has to tell the file system that they are in use now, and takes
        half as long again as one that overwrites. So one small group pays for the many that follow it; large ones are
        bound by bandwidth and must not write everything twice. Only a favour: where it fails, nothing is lost.
        """
        live = self._live
        live.zeroed = live.position + AHEAD_BYTES
        with suppress(OSError):
            size = min(live.zeroed, self._disk.size(live.fd)) - live.position
            if size > 0:
                self._disk.write(live.fd, [_ZEROS[:size]], live.position)

    def _write_at_once(self, fd: int, buffers: list[bytes], position: int) -> bool:
        """One call, as nearly always; False where it did not take everything, and has to be done with patience."""
        write = self._disk.write if self._buffered < SMALL_BYTES else self._disk.write_past_cache
        try:
            return write(fd, buffers, position) == self._buffered
        except OSError as error:
            self._disk.truncate(fd, position)
            if error.errno not in FULL:
                raise
            return False

    def _write_or_cut(self, fd: int, buffers: list[bytes], position: int) -> None:
        """A failed write leaves nothing behind it: the next try, or recovery, finds zeros there."""
        try:
            write_all(self._disk, fd, buffers, position)
        except OSError:
            self._disk.truncate(fd, position)
            raise

    def _sync_live(self) -> None:
        started = self._clock.monotonic()
        self._sync_fd(self._live.fd)
        seconds = self._clock.monotonic() - started
        self.sync_count += 1
        self.sync_seconds += seconds
        self._last_sync_seconds = seconds
        self._slowest_seconds = max(seconds, FORGETTING * self._slowest_seconds)
        if seconds > SLOW_SYNC_SECONDS:
            logger.warning("a sync of the log took {:.1f} s; the disk is slow or overloaded", seconds)
        self._reader.advance(self._live.position)
        self.synced = self.written
        self.synced_bytes += self._unsynced_bytes
        self._unsynced_bytes = 0
        self._wants_sync = False

    def _sync_fd(self, fd: int) -> None:
        try:
            self._disk.sync(fd)
        except OSError as error:
            # The kernel may have dropped what it could not write, and would answer the next sync with success.
            raise LogFailed(f"syncing the log failed: {error}") from error

    def _mark(self, *, is_clean: bool = False) -> None:
        mark = self._durable_mark(is_clean)
        self._patiently(lambda: self._watermark.write(mark))
        self._marked = self.synced

    def _durable_mark(self, is_clean: bool = False) -> Mark:
        live = self._live
        durable = live.position - self._unsynced_bytes
        return Mark(self.synced, live.entry.first_sequence, live.entry.generation, durable, is_clean)

    # ------------------------------------------------------------ rotation

    def _rotate(self, rotation: Rotation) -> None:
        sealed = self._seal()
        live = self._start_segment(rotation, sealed)
        self.manifest = self._swap(self.manifest.with_segments([*self.manifest.segments[:-1], sealed, live.entry]))
        before, self._live = self._live, live
        self._reader.seal(self.manifest, sealed, before.index)
        self._reader.go_live(self.manifest, live.index, live.position)
        self._close_fd(before.fd)
        self._mark()
        self._watermark.sync()

    def _seal(self) -> SegmentEntry:
        live = self._live
        seal = Seal(frames=live.frames, last_sequence=live.last_sequence, rolling_crc=live.rolling_crc)
        payload = seal.SerializeToString()
        header, crc = encode(live.salt, SEAL, live.last_sequence + 1, self.synced, [payload])
        self._patiently(lambda: self._write_or_cut(live.fd, [header, payload], live.position))
        size = live.position + len(header) + len(payload)
        self._disk.truncate(live.fd, size)
        self._sync_live()
        self.on_marks(self.written, self.synced)
        return replace(live.entry, is_sealed=True, last_sequence=live.last_sequence, size=size, last_crc=crc)

    def _start_segment(self, rotation: Rotation, before: SegmentEntry) -> Live:
        header = SegmentHeader(
            self.manifest.log_uuid, rotation.first_sequence, 0, self._random(8), before.last_sequence, before.last_crc
        )
        return start_segment(
            self._disk,
            self._directory,
            header,
            self.manifest.extension,
            rotation.index,
            space=self._space,
            patiently=self._patiently,
            sync=self._sync_fd,
        )

    def _close_fd(self, fd: int) -> None:
        try:
            self._disk.close(fd)
        except OSError as error:
            raise LogFailed(f"closing a segment failed: {error}") from error

    # ------------------------------------------------------------ the manifest

    def _note_run(self, run: SnapshotRun) -> None:
        self.sync()
        self.manifest = self._swap(self.manifest.with_snapshot(run))

    def replace_segments(self, inputs: Sequence[str], outputs: Sequence[SegmentEntry]) -> None:
        """Put rewritten segments, already durable under their names, in the place of others. Raises InstallRefused."""
        names = set(inputs)
        if not names <= {entry.name(self.manifest.extension) for entry in self.manifest.segments}:
            raise InstallRefused(f"not all of {', '.join(inputs)} are in the log any more")
        self.sync()
        kept = [entry for entry in self.manifest.segments if entry.name(self.manifest.extension) not in names]
        chain = sorted([*kept, *outputs], key=lambda entry: entry.first_sequence)
        manifest = self.manifest.with_segments(chain).with_retired(sorted(names), self._clock.now_us())
        self.manifest = self._swap(manifest)
        self._reader.follow(self.manifest)

    def _swap(self, manifest: Manifest) -> Manifest:
        return self._patiently(lambda: swap_manifest(self._disk, self._directory, manifest))

    def _patiently(self, act: Callable[[], T]) -> T:
        """Do something that needs space; while the disk is full, wait and try again."""
        while True:
            try:
                return self._space.with_room(act)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                self._space.is_short = True
                if self.has_news:
                    self.mark_at_once()  # no frame will tell of it for as long as this takes
                logger.error("the disk is full: {} ({} bytes free); waiting for space", error, self._space.free_bytes())
                if not self._pause():
                    raise LogFailed("the disk is full and the log is closing") from error

    # ------------------------------------------------------------ between groups

    def tend(self, *, is_idle: bool) -> None:
        """What can wait: room for the next segment, a look at the disk, the end of retired segments."""
        now = self._clock.monotonic()
        if now - self._tended >= TEND_SECONDS:
            self._tended = now
            self.mark()
            self._space.check()
            self._unlink_retired()
        elif is_idle and not self._space.is_short:
            self._space.fill_spare()

    def _unlink_retired(self) -> None:
        # Short of space, room for acks counts more than readers who have not opened an old segment yet.
        before = self._clock.now_us() - (0 if self._space.is_short else self._retire_grace_us)
        gone = [retired for retired in self.manifest.retired if retired.since_us <= before]
        over = [retired for retired in gone if retired.name not in self.held]
        if not over:
            return
        present = set(self._disk.list(self._directory))
        for retired in over:
            stem = retired.name.removesuffix(self.manifest.extension)
            for name in {retired.name, stem + ".idx"} & present:
                self._disk.unlink(os.path.join(self._directory, name))
        kept = tuple(retired for retired in self.manifest.retired if retired not in over)
        self.manifest = self._swap(replace(self.manifest, retired=kept))

    def hold(self) -> Moment:
        """Make everything durable and keep every file of it, until each is taken out of `held`."""
        self.sync()
        self.held = {entry.name(self.manifest.extension) for entry in self.manifest.segments}
        return moment_of(self.manifest, self.synced, self._live.position)

    def close(self) -> None:
        """Leave a clean log behind."""
        try:
            self.sync()
            self._mark(is_clean=True)
            self._watermark.sync()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Let go of the files as they are."""
        try:
            self._watermark.close()
        finally:
            self._close_fd(self._live.fd)
