"""The broker: the one owner of the state and of the log. It decides, applies, queues and, when durable, answers.

Everything here runs on one event loop; only `Log` has threads, and its callbacks are bounced to the loop once per
group. There is no future and no task per request: a task is made only where something has to be read from the log.
No transport is known here, and no file.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from loguru import logger

from mq.agenda import Agenda
from mq.channel import Missing, Partition
from mq.command import (
    MEMORY,
    Command,
    CreateGroup,
    DeleteChannel,
    DeleteGroup,
    Leave,
    Publish,
    Pull,
    PurgeChannel,
    Redrive,
    Seek,
    Transact,
)
from mq.commitqueue import CommitQueue, Done, Post
from mq.deciders import decide
from mq.errors import MqError, ResourceExhausted, Unavailable
from mq.installer import Installer
from mq.limits import Limits
from mq.owner import Owner
from mq.publication import decide_publish, repeated_publish
from mq.readback import Readback
from mq.redrive import MOST_BYTES as REDRIVEN_BYTES
from mq.reply import Leased, PublishReply
from mq.snapshotter import Snapshotter
from mq.state import State
from wal.clock import Clock
from wal.log import Log

MOST_READ_BYTES = 32 << 20  # for one command; an answer, and so what is settled by one request, has far less

__all__ = ["Broker", "Clock", "Done", "Recovered", "Waiter"]


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a start found in the log."""

    channels: int
    groups: int
    messages: int
    records: int  # replayed
    seconds: float
    damaged: list[str]  # one line per damaged range of the log
    set_aside: int  # records whose channel or group is missing, or of an unknown type


class Waiter(Protocol):
    """A pull that waits for messages."""

    def cancel(self) -> None:
        """Nobody wants the answer any more: `done` is not called, nothing stays leased. Idempotent."""
        ...


class Broker:
    """Call everything on the loop that `start` ran on."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        limits: Limits,
        *,
        secret: bytes | None = None,
        on_health: Callable[[bool], None] | None = None,
    ) -> None:
        """`secret`: 32 random bytes, new with each start (None: made here); receipts and generations come from it.

        `on_health(True)` comes when the broker serves, `on_health(False)` when it drains or failed.
        """
        self.log = log
        self.clock = clock
        self.limits = limits
        self.owner = Owner(log, clock, limits, secret or secrets.token_bytes(32))
        self.owner.refusal = Unavailable("the broker is starting")
        self._on_health = on_health or (lambda serving: None)
        self._readback = Readback(log, self.state)
        self._agenda = Agenda(self.owner, self._readback)
        self._pulls = self._agenda.pulls
        self._installer = Installer(self.owner)
        self._is_closed = False

    @property
    def state(self) -> State:
        return self.owner.state

    @property
    def failed(self) -> MqError | None:
        """Set once, by a storage failure: from then on every command gets it."""
        return self.owner.failed

    @property
    def _queue(self) -> CommitQueue:
        return self.owner.queue

    # ---------------------------------------------------------------- life

    async def start(self) -> Recovered:
        """Restore everything from the log and begin to serve."""
        began = self.clock.monotonic()
        records = await self._replay()
        if not self.limits.serves_old:
            self.state.hide()
        self.owner.open(self._on_synced, self._on_failed)
        self._queue.on_written = self._show
        self._snapshotter = Snapshotter(self.state, self._queue, self.clock, self.limits)
        self.owner.refusal = None
        self._agenda.begin()
        self._on_health(True)
        channels = self.state.channels.values()
        return Recovered(
            channels=len(channels),
            groups=sum(len(channel.groups) for channel in channels),
            messages=sum(at.next_offset - at.start_offset for channel in channels for at in channel.partitions),
            records=records,
            seconds=self.clock.monotonic() - began,
            damaged=[f"{at.segment}, byte {at.position}, {at.bytes} bytes: {at.reason}" for at in self.state.damaged],
            set_aside=self.state.set_aside,
        )

    async def _replay(self) -> int:
        """Apply everything that the log has; returns how many records that was."""
        state = self.state
        state.synced = 1 << 62  # everything that is replayed is durable
        records = 0
        breath = self.clock.monotonic()
        for sequence, record in self.log.replay():
            state.apply(sequence, record)
            records += 1
            if not records & 255 and self.clock.monotonic() - breath > 0.05:
                await asyncio.sleep(0)  # health checks are answered during a long replay
                breath = self.clock.monotonic()
        state.synced = self.log.synced
        return records

    async def drain(self) -> None:
        """Take no more commands (they get Unavailable), answer waiting pulls empty, wait for what is in flight.

        A proposal that is being examined is given up: that may take minutes, and has changed nothing yet.
        """
        if self.owner.refusal is None:
            self.owner.refusal = Unavailable("the broker is shutting down")
            self._on_health(False)
        self._agenda.stop()
        self.log.end_examining()
        self._pulls.end_all()
        while self.owner.tasks:
            await asyncio.wait(list(self.owner.tasks))
            self._pulls.end_all()  # one that was reading may have begun to wait
        if self.owner.is_open:
            await self._queue.drained()

    async def close(self, grace_seconds: float | None = None) -> None:
        """Drain, write a snapshot, close the log. Idempotent.

        `grace_seconds`: a disk that is full, or stands still, is waited for no longer.
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            async with asyncio.timeout(grace_seconds):
                await self.drain()
                if self.failed is None and self.owner.is_open:
                    self._snapshotter.finish()
                    await self._queue.drained()
        except TimeoutError:
            logger.warning("the log did not take everything in time: it is closed as it is")
        finally:  # whatever else went wrong: nobody could open it again in this process
            await asyncio.get_running_loop().run_in_executor(None, self.log.close)

    # ---------------------------------------------------------------- commands

    def submit(self, command: Command, done: Done) -> Waiter | None:
        """Decide a command now; `done` gets its reply, or its error, exactly once, when that may leave.

        That is when everything decided before it and itself is durable, so also for errors and for replies
        that made no record; an `Early` one may be called while the disk is still at it. `done` may be called before
        this returns. A pull that waits returns a Waiter; a cancelled one never calls `done`.
        """
        if self.owner.refusal is not None:
            done(self.owner.refusal)
            return None
        if type(command) is Publish:
            self._publish(command, done)
            return None
        if type(command) is Pull:
            return self._pulls.begin(command, done)
        try:
            if self._readback.is_time_asked(command):
                self.owner.spawn(self._after_lookup(command, done))
            else:
                self._run(command, done)
        except Missing as missing:
            self.owner.spawn(self._after_reading(command, done, missing))
        except MqError as error:
            self.owner.answer(done, error)
        return None

    def release(self, leased: Leased) -> None:
        """Give back at once the leases of an answer that could not be sent, as if it had never been pulled."""
        self._pulls.release(leased)

    def send_by(self, post: Post) -> None:
        """Answers of a group are sent together. For a `done` that is `Early` they are made ready before that."""
        self.owner.queue.post = post

    def rotate(self) -> None:
        """Seal the log's current segment."""
        if self.owner.refusal is not None:
            raise self.owner.refusal
        self._queue.flush()
        self.log.rotate()

    def install(self, proposal: str, done: Done) -> None:
        """Replace segments of the log by those that a compaction has staged under this id, if nothing live is lost."""
        if self.owner.refusal is not None:
            done(self.owner.refusal)
        else:
            self._installer.begin(proposal, done)

    def tick(self) -> None:
        """Do what is due by the clock; the broker's own timer does this, and tests with a clock of theirs."""
        self._agenda.tick()

    def _publish(self, command: Publish, done: Done) -> None:
        """The hot path."""
        owner = self.owner
        now = self.clock.now_us()
        try:
            owner.admit(len(command.batch))
            reply = self._publish_plainly(command, now) or owner.take(decide_publish(owner.state, command, now))
        except MqError as error:
            owner.queue.answer(done, error)
            return
        assert isinstance(reply, PublishReply)
        durability = command.durability or self.limits.durability
        reply.durable = MEMORY if self.limits.is_memory else durability
        owner.queue.answer(done, reply, durability)
        if reply.schedule_id:
            self._agenda.arm()

    def _publish_plainly(self, command: Publish, now: int) -> PublishReply | None:
        """A publish that goes to one partition at once, as nearly all do, is decided, queued and applied in one step.

        To decide it in general gives a record that tells the same, by way of several message objects.
        """
        state = self.owner.state
        channel = state.channels.get(command.channel)
        if channel is None or command.delay_ms or command.deliver_at_us:
            return None
        number, partitions = command.partition, channel.partitions
        if number is None:
            if len(partitions) > 1:
                return None
            number = 0
        elif not 0 <= number < len(partitions):
            return None
        partition, producer = partitions[number], command.producer_id
        if producer and (repeated := repeated_publish(channel, command)):
            return repeated
        base, batch, count = partition.next_offset, command.batch, command.count
        ttl_ms = command.ttl_ms or channel.settings.ttl_ms
        part = (base, now, producer, command.sequence, command.crc)
        sequence, time_us = self.owner.queue.publish(channel.channel_id, number, batch, count, ttl_ms, part)
        state.publish(sequence, channel, partition, batch, count, ttl_ms, (base, time_us, *part[2:]))
        return PublishReply(number, base, count, time_us)

    def _run(self, command: Command, done: Done) -> None:
        """Everything but Publish and Pull."""
        if isinstance(command, Transact):
            self.owner.admit(sum(len(publish.batch) for publish in command.publishes))
        elif isinstance(command, Redrive):
            self.owner.admit(REDRIVEN_BYTES)
        reply = self.owner.take(decide(self.state, command, self.clock.now_us()))
        assert reply is not None
        self.owner.answer(done, reply)
        self._after(command)

    def _after(self, command: Command) -> None:
        """What a command may have changed for others."""
        self._agenda.plan_burial()
        for touched in (*command.acks, *command.commits) if isinstance(command, Transact) else (command,):
            channel = self.state.channels.get(getattr(touched, "channel", ""))
            group = channel.groups.get(getattr(touched, "group", "")) if channel else None
            if group is not None:
                if isinstance(touched, Leave) and touched.member not in group.members:
                    self._pulls.end_of_member(group, touched.member)
                self._pulls.wake(group)
        if isinstance(command, (DeleteChannel, DeleteGroup)):
            self._pulls.wake_orphans()
        if isinstance(command, (PurgeChannel, Redrive)) and command.channel in self.state.channels:
            for group in list(self.state.channels[command.channel].groups.values()):
                self._pulls.wake(group)  # what was out is gone, and there may be room for more
        self._agenda.arm()

    async def _after_reading(self, command: Command, done: Done, missing: Missing) -> None:
        """Read what is missing, then decide again, because the world went on meanwhile.

        A command may need batches that lie apart, and a partition keeps one stretch of what was read: so it is read
        from the first one on, and more each time.
        """
        first: dict[Partition, int] = {}
        max_bytes = self.limits.read_bytes
        while True:
            try:
                partition = missing.partition
                first[partition] = min(missing.offset, first.get(partition, missing.offset))
                if max_bytes > MOST_READ_BYTES:
                    raise ResourceExhausted("these messages lie too far apart to be read together: name fewer at once")
                await self._readback.read(Missing(partition, first[partition]), max_bytes)
                max_bytes *= 2
                if self.failed is not None:
                    raise self.failed
                self._run(command, done)
                return
            except Missing as another:
                missing = another
            except MqError as error:
                self.owner.answer(done, error)
                return

    async def _after_lookup(self, command: Command, done: Done) -> None:
        assert isinstance(command, (CreateGroup, Seek))
        try:
            found = command._replace(positions=await self._readback.positions(command))
            if self.failed is not None:
                raise self.failed
            self._run(found, done)
        except MqError as error:
            self.owner.answer(done, error)

    # ---------------------------------------------------------------- the log

    def _show(self, last: int) -> None:
        """Let pulls see everything up to a sequence: it is durable, or will be before their answers leave."""
        self._pulls.moved(self.state.advance(last))

    def _on_synced(self, synced: int) -> None:
        if synced > self.state.synced:  # else it was shown before the sync
            self._show(synced)
        self._snapshotter.step()
        self._agenda.resume()

    def _on_failed(self, error: BaseException) -> None:
        if self.failed is not None:
            return
        logger.critical("storage failed, nothing is served until a restart: {}", error)
        failed = Unavailable("storage failed: what was not yet answered may or may not be stored")
        self.owner.failed = self.owner.refusal = failed
        self._on_health(False)
        self._pulls.end_all(failed)
        self._queue.refuse_waiting(failed)
