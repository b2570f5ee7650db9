"""The upkeep of a log's finished segments while it is written: installs, cleaning, scrubbing, backups.

The reading and copying happens in other threads, the check of a large proposal in another process; only the swap of the
manifest is the writer's, between two groups.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from loguru import logger

from wal.apart import examine_apart
from wal.backup import Backup, Moment, back_up
from wal.clean import Cleaner, Keep
from wal.clock import Clock
from wal.disk import DirectDisk, Disk
from wal.errors import BackupRefused, InstallRefused, LogClosed, LogFailed, WalError
from wal.frame import Frame
from wal.install import Approve, Engage, Installed, Judge, check, examine, place, take_back
from wal.manifest import Manifest, SegmentEntry
from wal.proposal import Offer, Proposal, claimed, read_offer, remove_offer
from wal.segment import Gap, SegmentFile
from wal.space import Space
from wal.verify import Damage, Progress, verify_segment
from wal.writer import Writer

T = TypeVar("T")

RUN_SECONDS = 0.004  # of checking at a time
APART_BYTES = 16 << 20  # of inputs: less is checked sooner than a process is begun


class Upkeep:
    """What a `FileLog` does for its sealed segments. Called by the owner."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        writer: Writer,
        cleaner: Cleaner,
        *,
        clock: Clock,
        space: Space,
        random: Callable[[int], bytes],
        check_usable: Callable[[], None],
        between_groups: Callable[[Callable[[Writer], None]], None],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._writer = writer
        self._cleaner = cleaner
        self._clock = clock
        self._space = space
        self._random = random
        self._check_usable = check_usable
        self._between_groups = between_groups
        self._scrubbed = 0  # the first sequence of the segment that was scrubbed last
        self._installing = asyncio.Lock()
        self._waiting: list[concurrent.futures.Future[Any]] = []  # for the writer
        self._is_backing_up = False
        self._no_examining = threading.Event()

    def end_examining(self) -> None:
        """See `wal.log.Log.end_examining`."""
        self._no_examining.set()

    def fail(self, error: BaseException) -> None:
        """The writer has stopped: nobody may go on waiting for it."""
        for waiting in list(self._waiting):
            with suppress(concurrent.futures.InvalidStateError):
                waiting.set_exception(LogFailed(str(error)))

    def _between(self, act: Callable[[Writer], T]) -> asyncio.Future[T]:
        """Have the writer do something behind all that was appended; await it to know that it has."""
        acted: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._waiting.append(acted)
        self._check_usable()  # the log may have failed meanwhile, and then nobody would end the wait below

        def run(writer: Writer) -> None:
            result = act(writer)
            self._waiting.remove(acted)
            with suppress(concurrent.futures.InvalidStateError):  # whoever waited was cancelled
                acted.set_result(result)

        self._between_groups(run)
        return asyncio.wrap_future(acted)

    # ------------------------------------------------------------ installing

    async def install(self, proposal: Proposal, approve: Approve) -> list[str]:
        """One after the other: what the first has replaced, the second can't replace again."""
        async with self._installing:
            return await self._install(proposal, approve)

    async def _install(self, proposal: Proposal, approve: Approve) -> list[str]:
        self._check_usable()
        manifest = self._writer.manifest
        entries = await asyncio.to_thread(check, self._disk, self._directory, manifest, proposal, approve)
        await asyncio.to_thread(place, self._disk, self._directory, manifest, proposal, entries)
        return await self._swap(manifest, proposal, entries)

    async def install_offer(self, offer_id: str, engage: Engage, confirm: Callable[[], None]) -> Installed:
        """See `wal.log.Log.install_offer`."""
        async with self._installing:
            self._check_usable()
            disk, directory, manifest = self._disk, self._directory, self._writer.manifest
            offer = await asyncio.to_thread(read_offer, disk, directory, offer_id)
            before = self._bytes_of(offer.inputs)
            judge = await engage()
            entries = await asyncio.to_thread(self._examine, manifest, offer, judge, before)
            await asyncio.to_thread(place, disk, directory, manifest, offer.proposal, entries)
            try:
                confirm()
            except InstallRefused:
                await asyncio.to_thread(take_back, disk, directory, manifest, entries)
                raise
            # Nothing was awaited since it was confirmed, so it holds for all that was decided. A group that the owner
            # commits itself may come before the swap: on disk that is a log in which the swap has not been yet.
            names = await self._swap(manifest, offer.proposal, entries)
            with suppress(OSError):  # it is installed, whatever becomes of the paper
                await asyncio.to_thread(remove_offer, disk, directory, offer_id)
            return Installed(tuple(names), offer, before, self._bytes_of(names))

    def _examine(self, manifest: Manifest, offer: Offer, judge: Judge, size: int) -> list[SegmentEntry]:
        """What is large, and on a disk that others can read, by a process of its own."""
        if size >= APART_BYTES and isinstance(self._disk, DirectDisk):
            try:
                return examine_apart(self._directory, manifest, offer, judge, self._no_examining)
            except OSError as error:
                logger.warning("no process can be had to check proposal {}: {}", offer.id, error)
        return examine(self._disk, self._directory, manifest, offer, judge, Breath(self._no_examining))

    async def _swap(self, manifest: Manifest, proposal: Proposal, entries: Sequence[SegmentEntry]) -> list[str]:
        """Have the writer swap the manifest: it is queued before this first waits."""

        def act(writer: Writer) -> InstallRefused | None:
            try:
                writer.replace_segments(proposal.inputs, entries)
            except InstallRefused as refusal:
                return refusal
            return None

        refusal = await self._between(act)
        if refusal is not None:
            await asyncio.to_thread(take_back, self._disk, self._directory, manifest, entries)
            raise refusal
        return [entry.name(manifest.extension) for entry in entries]

    def install_now(self, proposal: Proposal, approve: Approve, pump: Callable[[], None]) -> list[str]:
        """The same for a log without a thread; `pump` is a turn of its writer."""
        manifest = self._writer.manifest
        entries = check(self._disk, self._directory, manifest, proposal, approve)
        place(self._disk, self._directory, manifest, proposal, entries)
        self._between_groups(lambda writer: writer.replace_segments(proposal.inputs, entries))
        pump()
        return [entry.name(manifest.extension) for entry in entries]

    # ------------------------------------------------------------ cleaning

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

    def clean_now(self, keep: Keep, max_bytes: int, pump: Callable[[], None]) -> int:
        proposal = self._propose_cleaning(keep, max_bytes)
        if proposal is None:
            return 0
        before = self._bytes_of(proposal.inputs)
        return before - self._bytes_of(self.install_now(proposal, _approval(keep), pump))

    def _propose_cleaning(self, keep: Keep, max_bytes: int) -> Proposal | None:
        is_short = self._space.is_short
        # Short of space, what this frees now counts more than what a compaction may free later.
        spared = frozenset() if is_short else claimed(self._disk, self._directory, self._clock.now_us())
        return self._cleaner.propose(
            self._writer.manifest, keep, max_bytes, self._random(8), may_write=not is_short, spared=spared
        )

    def _bytes_of(self, names: Sequence[str]) -> int:
        manifest = self._writer.manifest
        return sum(entry.size for entry in manifest.segments if entry.name(manifest.extension) in names)

    # ------------------------------------------------------------ scrubbing

    async def scrub(self) -> list[Damage]:
        """Verify the next sealed segment, round and round; returns what is damaged in it."""
        manifest = self._writer.manifest
        sealed = [entry for entry in manifest.segments if entry.is_sealed]
        if not sealed:
            return []
        due = [entry for entry in sealed if entry.first_sequence > self._scrubbed] or sealed
        self._scrubbed = due[0].first_sequence
        return await asyncio.to_thread(verify_segment, self._directory, manifest, due[0], disk=self._disk)

    # ------------------------------------------------------------ backups

    async def back_up(self, target: str, progress: Progress, closing: threading.Event) -> Backup:
        """The writer only says what is durable; linking and copying happen in another thread."""
        if self._is_backing_up:
            raise BackupRefused("another backup of this log is being made")
        self._is_backing_up = True
        # Its thread can't be cancelled. It goes on, and until it is over it is the one that is being made.
        return await asyncio.shield(asyncio.create_task(self._take_backup(target, progress, closing)))

    async def _take_backup(self, target: str, progress: Progress, closing: threading.Event) -> Backup:
        try:
            moment = await self._between(Writer.hold)
            return await asyncio.to_thread(self._back_up, moment, target, progress, closing)
        finally:
            self._is_backing_up = False

    def _back_up(self, moment: Moment, target: str, progress: Progress, closing: threading.Event) -> Backup:
        def advance(done: int, total: int) -> None:
            if closing.is_set():
                raise LogClosed(f"{self._directory} is closing")
            progress(done, total)

        def tail(segment: SegmentFile, live: SegmentEntry) -> Iterator[Frame | Gap]:
            breath = Breath(closing)
            for item in moment.tail(segment, live):
                yield item
                breath()

        held = self._writer.held
        try:
            return back_up(
                self._disk, self._directory, replace(moment, tail=tail), target,
                random=self._random, progress=advance, taken=held.discard,
                leave_bytes=self._space.soft_free_bytes,
            )  # fmt: skip
        finally:
            held.clear()


class Breath:
    """Called by a thread that computes for long: it stands aside for as long as it ran, and ends when the log does.

    Whoever wants the interpreter from a busy thread waits a whole switch interval for it, and the owner wants it often.
    """

    def __init__(self, closing: threading.Event) -> None:
        self._closing = closing
        self._since = time.monotonic()

    def __call__(self) -> None:
        if self._closing.is_set():
            raise LogClosed("the log is closing")
        now = time.monotonic()
        if now - self._since >= RUN_SECONDS:
            time.sleep(now - self._since)
            self._since = time.monotonic()


def _approval(keep: Keep) -> Approve:
    """Cleaning drops whole records that nobody needs, and changes none."""
    return lambda sequence, before, after: after is None and not keep.needs(before)
