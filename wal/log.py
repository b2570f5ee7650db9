"""The log: an ordered sequence of records that outlives the process. What the broker knows of storage is here.

`append` is a plain call that waits for the disk only as long as its caller says: it takes records, gives each the next
sequence and returns the last one. When a group of them is durable the log calls `on_marks(written, synced)` once, from
its own thread: everything up to `written` is in the operating system's hands, everything up to `synced` survives a
power cut.
Reads are awaitable, because a log may one day live across a network. Nothing here says that files exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from google.protobuf.message import Message

from wal.backup import Backup
from wal.clean import Keep
from wal.install import Approve, Engage, Installed
from wal.proposal import Proposal
from wal.record import Published, Record, Unknown
from wal.verify import Damage, Progress, Report

OnMarks = Callable[[int, int], None]
OnFailure = Callable[[BaseException], None]


def nothing() -> None:
    """What is done while the disk works, where nothing is."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a log holds and what it still has to do."""

    last_sequence: int
    written: int
    synced: int
    queued_bytes: int  # appended, not yet synced
    queue_limit_bytes: int
    segments: int
    bytes: int  # on disk, or in memory where there is no disk
    free_bytes: int  # of the disk; a very large number where there is none
    is_short_of_space: bool  # below the soft mark: only essential records are taken
    replay_bytes: int  # appended since the last complete snapshot run began
    fsync_count: int
    fsync_seconds: float


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One stretch of the log, for listings."""

    name: str
    first_sequence: int
    last_sequence: int
    generation: int
    bytes: int
    is_sealed: bool


class Log(Protocol):
    """Everything above the log talks to this. One owner at a time calls append, rotate and close."""

    @property
    def uuid(self) -> UUID: ...

    @property
    def last_sequence(self) -> int:
        """The sequence given out last; 0 in an empty log."""
        ...

    @property
    def written(self) -> int: ...

    @property
    def synced(self) -> int: ...

    def start(self, on_marks: OnMarks, on_failure: OnFailure) -> None:
        """Begin to accept appends. Both callbacks come from the log's own thread; a failure is final, and comes from
        the owner's where an append waited for the disk.
        """
        ...

    def replay(self) -> Iterator[tuple[int, Message | Unknown]]:
        """Every record from the last complete snapshot run on, in order; a damaged range appears as Damaged."""
        ...

    @property
    def is_short_of_space(self) -> bool:
        """Whether only essential records are taken now; asked before each publish."""
        ...

    @property
    def likely_seconds(self) -> float:
        """How long it is likely to take until a little that is appended is durable; a guess."""
        ...

    def append(
        self,
        records: Sequence[Record],
        *,
        sync: bool = True,
        essential: bool = False,
        patience: float = 0.0,
        meanwhile: Callable[[], None] = nothing,
    ) -> int:
        """Queue records and return the last sequence given.

        `sync=False`: nobody waits for the sync, so it may come with a later group. `essential`: records that make
        room or end work (acks, trims, snapshots) and so are taken past the queue's limit and on a full disk.
        `patience`: for so many seconds the owner may be kept waiting for the disk. Where that is likely to suffice, all
        may be written at the return, and durable too, with `sync`: then the marks tell, nobody is called, and `rest` is
        to follow when there is time.
        `meanwhile`: what the owner has to do while it waits for a sync. It is called at most once, when the records are
        written and not yet durable; if they are not so at the return either, the log has failed.

        Raises LogBusy, DiskFull, RecordTooLarge (nothing was appended), LogFailed, LogClosed.
        """
        ...

    def rest(self, patience: float, meanwhile: Callable[[], None] = nothing) -> None:
        """Do what an append with patience left over, or have it done: make durable what it only wrote.

        `patience` and `meanwhile` as there.
        """
        ...

    async def read(self, channel_id: int, partition: int, offset: int, max_bytes: int) -> list[Published]:
        """Publishes of one partition in offset order, the first of them holding `offset` or the next one kept.

        At least one if there is any, then as many as fit in `max_bytes`; only what is synced.
        Raises CorruptSegment where the bytes are damaged.
        """
        ...

    @property
    def has_gaps(self) -> bool:
        """Whether a read came upon damage that may hide records: what it did not find may be lost, not dropped."""
        ...

    async def read_sequence(self, sequence: int) -> Message | Unknown | None:
        """The record with that sequence, or None where it was dropped. Raises CorruptSegment."""
        ...

    def rotate(self) -> None:
        """Seal the current segment, in log order, if it holds anything."""
        ...

    async def install(self, proposal: Proposal, approve: Approve) -> list[str]:
        """Replace segments by rewritten ones, if every difference is approved. Raises InstallRefused."""
        ...

    async def install_offer(self, offer_id: str, engage: Engage, confirm: Callable[[], None]) -> Installed:
        """Install what another program proposes and has staged under this id, by the same rules.

        `engage` is called on the loop, once the proposal is found and its turn has come. `confirm` is called on the
        loop right before the swap takes its place in the log: it may refuse as well, because the state went on
        meanwhile. Everything that the judge goes by must be durable.
        Raises NoSuchProposal, InstallRefused, LogClosed (see `end_examining`), and then the log is as it was.
        """
        ...

    def end_examining(self) -> None:
        """The log will be closed soon: no proposal is examined any more, which may take minutes. All else goes on."""
        ...

    async def clean(self, keep: Keep, max_bytes: int) -> int:
        """Let go of a part of what no replay and nobody else needs; returns the bytes that this frees.

        Reads about `max_bytes`, at least one segment. Everything that `keep` goes by must be durable.
        """
        ...

    async def verify(self, progress: Progress | None = None) -> Report:
        """Read everything and report every damaged range, while the log goes on."""
        ...

    async def scrub(self) -> list[Damage]:
        """Verify the next part of the log, a little at each call, round and round; returns what is damaged in it."""
        ...

    async def back_up(self, target: str, progress: Progress | None = None) -> Backup:
        """Bring the backup in a directory to what is durable now, while the log goes on.

        What `progress` raises ends it. Raises BackupRefused, LogLocked, OSError: the backup before is as it was.
        """
        ...

    def segments(self) -> list[SegmentInfo]: ...

    def usage(self) -> Usage: ...

    def close(self) -> None:
        """Sync everything, leave the mark of a clean stop, and let go. Idempotent."""
        ...
