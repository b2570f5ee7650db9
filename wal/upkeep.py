"""The upkeep of a log's finished segments while it is written: installs, cleaning, scrubbing.

The reading and copying happens in other threads; only the swap of the manifest is the writer's, between two groups.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Sequence
from contextlib import suppress

from loguru import logger

from wal.clean import Cleaner, Keep
from wal.disk import Disk
from wal.errors import InstallRefused, LogFailed, WalError
from wal.install import Approve, Proposal, check, place
from wal.space import Space
from wal.verify import Damage, verify_segment
from wal.writer import Writer


class Upkeep:
    """What a `FileLog` does for its sealed segments. Called by the owner."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        writer: Writer,
        cleaner: Cleaner,
        *,
        space: Space,
        random: Callable[[int], bytes],
        check_usable: Callable[[], None],
        between_groups: Callable[[Callable[[Writer], None]], None],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._writer = writer
        self._cleaner = cleaner
        self._space = space
        self._random = random
        self._check_usable = check_usable
        self._between_groups = between_groups
        self._scrubbed = 0  # the first sequence of the segment that was scrubbed last
        self._installing = asyncio.Lock()
        self._installs: list[concurrent.futures.Future[None]] = []  # waiting for the writer

    def fail(self, error: BaseException) -> None:
        """The writer has stopped: nobody may go on waiting for it."""
        for swapped in self._installs:
            with suppress(concurrent.futures.InvalidStateError):
                swapped.set_exception(LogFailed(str(error)))

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
        swapped: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._installs.append(swapped)
        self._check_usable()  # the log may have failed meanwhile, and then nobody would end the wait below

        def act(writer: Writer) -> None:
            writer.replace_segments(proposal.inputs, entries)
            self._installs.remove(swapped)
            with suppress(concurrent.futures.InvalidStateError):  # whoever waited was cancelled
                swapped.set_result(None)

        self._between_groups(act)
        await asyncio.wrap_future(swapped)
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
        return self._cleaner.propose(
            self._writer.manifest, keep, max_bytes, self._random(8), may_write=not self._space.is_short
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


def _approval(keep: Keep) -> Approve:
    """Cleaning drops whole records that nobody needs, and changes none."""
    return lambda sequence, before, after: after is None and not keep.needs(before)
