"""Between the owner and the log: collects the records of a turn into groups, and holds answers until they are durable.

Commands that arrive while a group is being synced share the next one. Small publishes to one partition share a
record. Runs on the loop's thread; the log's callbacks are bounced to it once per group.

Where the loop itself waits for the disk, everything is made ready meanwhile that may leave when it is over: pulls are
decided, and answers written for doors that can hold them back (`Early`, `Post`).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from mq.command import OS
from mq.company import Company
from mq.errors import MqError, ResourceExhausted
from mq.limits import Limits
from mq.reply import Reply
from mq.vigil import SECONDS, Vigil
from wal.errors import RecordTooLarge, WalError
from wal.joined import Joined, JoinedPart
from wal.log import Log
from wal.pb.wal_pb2 import Atomic, ChannelSnapshot, DeadLettered, Published, SnapshotEnd
from wal.record import Carried, Encoded, Record

Answer = Reply | MqError
Done = Callable[[Answer], None]
Waiting = deque[tuple[int, Done, Answer]]

SHARED_TIME_US = 1_000  # publishes this close to each other, in one record, may have one timestamp
NEVER_US = -SHARED_TIME_US  # before every time that something may share
HAND_OVER_SECONDS = 300e-6  # what a change to the log's thread and back costs a group, in time and in disorder
MOST_PATIENCE_SECONDS = 500e-6
GROUPS_IN_FLIGHT = 2  # one being synced and one behind it: more would only make smaller groups
QUIET_SECONDS = 0.01  # without a sync, then the log notes how far it is durable
WAITING_BYTES = 64 << 10  # a turn that leaves less waits for the group under way, where that is over soon


class Early(partial[None]):
    """A `done` that may be called before its answer may leave: that goes no further than into a `Post`.

    It sends nothing and closes nothing itself. Where the post is burnt, what it was told is void, and no more comes.
    """


class Post(Protocol):
    """Where the answers of those doors lie that send them together."""

    def send(self) -> None:
        """Let everything leave at once."""
        ...

    def burn(self) -> None:
        """Nothing of what lies here may ever leave. Whoever it was for is to learn that the outcome is not known."""
        ...


class OpenRecord(Joined):
    """A publish in the group being collected, which the next small ones may join."""

    __slots__ = ("plain_us", "sequence")

    sequence: int
    plain_us: int  # when the last part was published; never, where that has a producer, whose are told apart

    def takes(self, offset: int, count: int, size: int, ttl_ms: int, limits: Limits) -> bool:
        """Whether a batch may follow those that are here."""
        return (
            self.end_offset == offset
            and self.size + size <= limits.merge_bytes
            and offset + count - self.base_offset <= limits.merge_messages
            and self.ttl_ms == ttl_ms
        )

    def join(self, batch: bytes, count: int, part: JoinedPart | None) -> None:
        """Take in a batch; None: it is more of the last part."""
        if part is not None:
            self.parts.append(part)
            self.plain_us = NEVER_US if part[2] else part[1]
        self.pieces.append(batch)
        self.size += len(batch)
        self.end_offset += count


class Leisure:
    """How long may the loop wait for the disk itself, rather than hand a group over to the log's thread?

    Waiting keeps it from whatever comes meanwhile, and more comes the busier it is: its thread's share of a processor,
    over some milliseconds, tells. To be awake and look on is no work.
    """

    SPAN_SECONDS = 0.005

    def __init__(self, vigil: Vigil) -> None:
        self._vigil = vigil
        self._since = time.monotonic()
        self._worked = self._work()
        self._patience = 0.0

    def patience(self) -> float:
        """In seconds."""
        now = time.monotonic()
        passed = now - self._since
        if passed > self.SPAN_SECONDS:
            worked = self._work()
            share = (worked - self._worked) / passed
            self._since, self._worked = now, worked
            self._patience = min(MOST_PATIENCE_SECONDS, HAND_OVER_SECONDS / max(share, 1e-3))
        return self._patience

    def _work(self) -> float:
        return time.thread_time() - self._vigil.watched


class CommitQueue:
    """One owner; `on_synced(sequence)` is called on the loop when the durable mark moves."""

    def __init__(
        self, log: Log, limits: Limits, on_synced: Callable[[int], None], on_failed: Callable[[BaseException], None]
    ) -> None:
        self._log = log
        self._limits = limits
        self._on_synced = on_synced
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._records: list[Record] = []
        self._bytes = 0  # of those
        self._open: dict[int, dict[int, OpenRecord]] = {}  # by channel and partition
        self._needs_sync = False
        self._is_flush_planned = False
        self._is_rest_planned = False
        self._in_flight: deque[tuple[int, int]] = deque()  # groups not yet synced: last sequence, bytes
        self._pace: deque[tuple[int, bool]] = deque()  # groups not yet done: last sequence, whether done means synced
        self._waiting: Waiting = deque()
        self._waiting_os: Waiting = deque()
        self._drained: list[asyncio.Future[None]] = []
        self._has_failed = False
        self._vigil = Vigil(self._loop.call_soon, time.monotonic, max(SECONDS, limits.busy_poll_seconds))
        self._leisure = Leisure(self._vigil)
        self._company = Company(time.monotonic)
        self._written = self._synced = log.synced  # the marks that were heard of last
        self.post: Post | None = None  # without one nothing is told early
        self.on_written: Callable[[int], None] = lambda sequence: None  # all up to it will be durable, or nothing more
        self._is_early = False  # answers lie in the post that may not leave yet
        self.on_snapshot_refused: Callable[[WalError], None] = lambda error: None  # the run under way is void
        self.last = log.last_sequence  # the sequence given out last, also to records that are still collected here
        self.unsynced_bytes = 0
        self.limit_bytes = min(limits.unsynced_bytes, log.usage().queue_limit_bytes)
        self.replay_bytes = log.usage().replay_bytes  # since the last snapshot run began
        log.start(self._marks_from_log, self._failure_from_log)

    # ---------------------------------------------------------------- in

    def admit(self, size: int) -> None:
        """Raises ResourceExhausted where so many more bytes would be too much that is not durable yet."""
        if self.unsynced_bytes + size > self.limit_bytes and self.unsynced_bytes:
            raise ResourceExhausted(
                f"{self.unsynced_bytes} bytes wait to become durable, {self.limit_bytes} are allowed"
            )

    def put(self, record: Record) -> int:
        """Queue a record; returns its sequence."""
        if isinstance(record, Carried):
            head, batch = record.record, b"".join(record.batch)
            if isinstance(head, Published) and not head.schedule_id:
                (part,) = head.parts
                told = (part.base_offset, part.timestamp_us, part.producer, part.sequence, part.crc)
                here = self._record_for(head.channel_id, head.partition, len(batch), head.count, head.ttl_ms, told)
                here.join(batch, head.count, told)
                return here.sequence
            self._open.pop(head.channel_id, None)
            return self._append(record, len(batch) + 64)
        if isinstance(record, (Atomic, DeadLettered)):
            self._open.clear()
        else:
            self._open.pop(getattr(record, "channel_id", 0), None)
        return self._append(record, record.ByteSize() if hasattr(record, "ByteSize") else 64)

    def publish(
        self, channel_id: int, partition: int, batch: bytes, count: int, ttl_ms: int, part: JoinedPart
    ) -> tuple[int, int]:
        """Queue a publish without making a record of its own; returns the sequence, and when it counts as published.

        A plain one right behind another is told as more messages of the same moment.
        """
        here = self._record_for(channel_id, partition, len(batch), count, ttl_ms, part)
        time_us = part[1]
        if not part[2] and 0 <= time_us - here.plain_us < SHARED_TIME_US:
            here.join(batch, count, None)
            return here.sequence, here.plain_us
        here.join(batch, count, part)
        return here.sequence, time_us

    def _record_for(
        self, channel_id: int, partition: int, size: int, count: int, ttl_ms: int, part: JoinedPart
    ) -> OpenRecord:
        """Where a publish is told: in the record of those before it, if it may be."""
        opened = self._open.get(channel_id)
        if opened is None:
            opened = self._open[channel_id] = {}
        here = opened.get(partition)
        if here is not None and here.takes(part[0], count, size, ttl_ms, self._limits):
            self._bytes += size
            self.unsynced_bytes += size
            self.replay_bytes += size
        else:
            here = opened[partition] = OpenRecord(channel_id, partition, part[0], ttl_ms)
            here.sequence = self._append(here, size + 64)
            here.plain_us = NEVER_US
        if len(opened) > 1 and part[2]:
            # A producer's publishes stay in its order, also over partitions: nothing joins an earlier record now.
            self._open[channel_id] = {partition: here}
        return here

    def _append(self, record: Record, size: int) -> int:
        self._records.append(record)
        self.last += 1
        self._bytes += size
        self.unsynced_bytes += size
        self.replay_bytes += size
        if not self._is_flush_planned and len(self._pace) < GROUPS_IN_FLIGHT:
            self._is_flush_planned = True
            self._loop.call_soon(self._flush_planned)
            self._vigil.end()
        return self.last

    # ---------------------------------------------------------------- out

    def answer(self, done: Done, reply: Answer, durability: int = 0) -> None:
        """Call `done(reply)` once everything queued so far is durable, or before that if it is `Early`."""
        if durability == OS:
            mark, waiting = self._log.written, self._waiting_os
        else:
            mark, waiting = self._log.synced, self._waiting
            if self.last > mark and not (self._pace and self._pace[-1] == (self.last, True)):
                self._needs_sync = True  # no group under way brings the sync that this waits for
        if self.last <= mark and not waiting:
            self.tell(done, reply)
        else:
            waiting.append((self.last, done, reply))

    def _flush_planned(self) -> None:
        """The turn is over. With nothing under way, the log may make a small group durable here and now."""
        patience = self._leisure.patience()
        is_brief = self._bytes < WAITING_BYTES and self._log.likely_seconds <= patience
        can_wait = is_brief and self._needs_sync and not self._pace
        self._is_flush_planned = can_wait and not self._company.is_complete(len(self._waiting))
        if self._is_flush_planned:
            self._loop.call_soon(self._flush_planned)  # those who come until then need no sync of their own
            return
        if self._pace:
            if is_brief:
                return  # what is under way is over soon, and then this can be done here
            patience = 0.0
        self.flush(patience)
        if not self._pace:
            return
        due = self._pace[-1][0]
        if self._log.synced >= due:
            self._tell_synced()
            self._rest_when_quiet()
            self._vigil.begin()
            self._company.answered()
        elif self._log.written >= due:
            self._on_marks(self._log.written, self._log.synced)
            self._vigil.begin(self._rest)  # nobody waits for the sync but who pulls

    def _tell_synced(self) -> None:
        if self._is_early and self.post is not None:
            self._try("answers could not be sent", self.post.send)  # they are true now, and the rest can wait
        self._on_marks(self._log.written, self._log.synced)

    def _rest(self) -> None:
        """Let the log do what it put off. Where more came meanwhile it goes first, and vouches for what is durable."""
        if self._records or self._has_failed:
            return
        before, due, self._is_early = self._log.synced, self.last, False
        try:
            self._log.rest(self._leisure.patience(), self._make_ready)
        finally:
            self._burn_before(due)
        if self._log.synced > before:
            self._tell_synced()
            self._rest_when_quiet()  # once more, for the watermark

    def _rest_when_quiet(self) -> None:
        """Nobody waits for the watermark, and the frames of the next sync vouch for this one: it waits for a silence.

        On some file systems a sync of one file writes what was noted of its neighbours, too.
        """
        if not self._is_rest_planned:
            self._is_rest_planned = True
            self._loop.call_later(QUIET_SECONDS, self._rest_if_quiet, self._log.synced)

    def _rest_if_quiet(self, before: int) -> None:
        self._is_rest_planned = False
        if self._log.synced > before:
            self._rest_when_quiet()
        else:
            self._rest()

    def _burn_before(self, due: int) -> None:
        """Answers that were made ready for a sync which did not come never leave."""
        if self._is_early and self.post is not None and self._log.synced < due:
            self.post.burn()

    def flush(self, patience: float = 0.0) -> None:
        """Hand the collected group to the log."""
        self._is_flush_planned = False
        if not self._records or self._has_failed:
            return
        records, size = self._records, self._bytes
        self._records, self._bytes = [], 0
        self._open.clear()
        sync, self._needs_sync = self._needs_sync, False
        due = self.last
        self._in_flight.append((due, size))
        self._pace.append((due, sync))
        self._is_early = False
        try:
            # What is too much or for a full disk was refused before it was decided: by now it has to go in.
            try:
                last = self._log.append(
                    records, sync=sync, essential=True, patience=patience, meanwhile=self._make_ready
                )
            except RecordTooLarge as error:
                last = self._append_without_snapshots(records, sync, error)
        except WalError as error:
            self.fail(error)
            return
        except BaseException as error:
            self.fail(error)  # the sequences are given out: nothing can follow them
            raise
        finally:
            self._burn_before(due)
        if last != due:
            self.fail(RuntimeError(f"the log gave sequence {last} where {due} was due"))

    def _append_without_snapshots(self, records: list[Record], sync: bool, error: RecordTooLarge) -> int:
        """A snapshot can be done without: where it is too large for the log, what is decided goes in all the same."""
        if not any(isinstance(record, (ChannelSnapshot, Encoded)) for record in records):
            raise error
        self.on_snapshot_refused(error)
        # The records behind have their sequences already: a first part that no other follows says nothing.
        blank = ChannelSnapshot(more=True)
        void = (ChannelSnapshot, Encoded, SnapshotEnd)  # only snapshots are encoded ahead
        kept = [blank if isinstance(record, void) else record for record in records]
        return self._log.append(kept, sync=sync, essential=True)

    def _make_ready(self) -> None:
        """The group is written and the disk works: do now what else would have to be done when it is durable.

        Messages that can be delivered go first, and then the disk is most likely done: who published is answered when
        they have left.
        """
        last, waiting = self.last, self._waiting
        before = len(waiting)
        self._try("pulls could not be decided", self.on_written, last)
        if len(waiting) <= before:
            self._make_ready_up_to(last)
            return
        put_off = [waiting.popleft() for _ in range(before)]
        self._make_ready_up_to(last)
        waiting.extendleft(reversed(put_off))

    def _make_ready_up_to(self, last: int) -> None:
        """Write the answers that come next, as long as they may be `Early`."""
        post, waiting = self.post, self._waiting
        while waiting and post is not None:
            sequence, done, reply = waiting[0]
            if sequence > last or type(done) is not Early:
                return
            waiting.popleft()
            self._is_early = True
            self.tell(done, reply)

    async def drained(self) -> None:
        """Everything queued is durable and answered."""
        if self._is_idle() or self._has_failed:
            return
        future: asyncio.Future[None] = self._loop.create_future()
        self._drained.append(future)
        await future

    def _is_idle(self) -> bool:
        return not (self._records or self._in_flight or self._waiting or self._waiting_os)

    def _marks_from_log(self, written: int, synced: int) -> None:
        self._bounce(self._on_marks, written, synced)

    def _failure_from_log(self, error: BaseException) -> None:
        self._bounce(self.fail, error)

    def _bounce(self, call: Callable[..., None], *args: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *args)

    def _on_marks(self, written: int, synced: int) -> None:
        if self._has_failed:
            return
        # What was made durable here is known at once: a word that the log's thread sent before may come after it.
        self._written, self._synced = written, synced = max(written, self._written), max(synced, self._synced)
        while self._in_flight and self._in_flight[0][0] <= synced:
            self.unsynced_bytes -= self._in_flight.popleft()[1]
        while self._pace and self._pace[0][0] <= (synced if self._pace[0][1] else max(written, synced)):
            self._pace.popleft()
        # First, so that a pull by whoever is answered now sees what was answered.
        self._try("what follows a sync went wrong", self._on_synced, synced)
        self._release(self._waiting, synced)
        self._release(self._waiting_os, max(written, synced))
        if not self._waiting:
            self._needs_sync = False  # who wanted it has it
        if self.post is not None:
            self._try("answers could not be sent", self.post.send)
        if self._records and len(self._pace) < GROUPS_IN_FLIGHT and not self._is_flush_planned:
            self._flush_planned()
        if self._drained and self._is_idle():
            self._end_drains()

    def _release(self, waiting: Waiting, mark: int) -> None:
        while waiting and waiting[0][0] <= mark:
            _, done, reply = waiting.popleft()
            self.tell(done, reply)

    def tell(self, done: Done, reply: Answer) -> None:
        """Call `done(reply)` now."""
        try:
            done(reply)
        except Exception as error:
            # A door's mistake with one answer is not to hold back the others.
            self._loop.call_exception_handler({"message": "an answer could not be delivered", "exception": error})

    def _try(self, what: str, call: Callable[..., None], *args: object) -> None:
        """A mistake of somebody else's is told to the loop, and holds nobody back."""
        try:
            call(*args)
        except Exception as error:
            self._loop.call_exception_handler({"message": what, "exception": error})

    def _end_drains(self) -> None:
        for future in self._drained:
            if not future.done():
                future.set_result(None)
        self._drained.clear()

    def fail(self, error: BaseException) -> None:
        """Nothing more becomes durable: whoever waits is told that the outcome is not known."""
        if self._has_failed:
            return
        self._has_failed = True
        self._on_failed(error)

    def refuse_waiting(self, refusal: MqError) -> None:
        """Answer everybody who waits for durability with an error."""
        for waiting in (self._waiting, self._waiting_os):
            while waiting:
                _, done, _ = waiting.popleft()
                self.tell(done, refusal)
        self._end_drains()
