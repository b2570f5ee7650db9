"""The broker: the one owner of the state and of the log. It decides, applies, queues and, when durable, answers.

Everything here runs on one event loop; only `Log` has threads, and its callbacks are bounced to the loop once per
group. There is no future and no task per request: a task is made only where something has to be read from the log.
No transport is known here, and no file.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Protocol

from loguru import logger

from mq.channel import Missing
from mq.command import MEMORY, Command, CreateGroup, DeleteChannel, DeleteGroup, Publish, Pull, Seek, Transact
from mq.commitqueue import CommitQueue, Done
from mq.deadletter import decide_burial
from mq.deciders import decide, decide_pull
from mq.decision import Decision
from mq.delivery import resolve
from mq.errors import DataLoss, MqError, ResourceExhausted, Unavailable
from mq.group import Group
from mq.limits import Limits
from mq.longpoll import Key, LongPoll, LongPolls
from mq.publication import decide_publish
from mq.readback import Readback
from mq.reply import PublishReply, PullReply, Reply
from mq.settlement import decide_absence, decide_expiry, release
from mq.snapshotter import Snapshotter
from mq.state import Dying, State
from wal.log import Log
from wal.record import Record

__all__ = ["Broker", "Clock", "Done", "Recovered", "Waiter"]

HOUSEKEEPING_SECONDS = 1.0
SHORTEST_SLEEP_SECONDS = 0.002


class Clock(Protocol):
    """Time, passed in so that tests need not sleep."""

    def now_us(self) -> int:
        """Microseconds since the Unix epoch, as the wall clock says."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow: for waiting."""
        ...


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
        self.state = State(limits, secret or secrets.token_bytes(32))
        self.failed: MqError | None = None  # set once, by a storage failure: from then on every command gets it
        self._on_health = on_health or (lambda serving: None)
        self._refusal: MqError | None = Unavailable("the broker is starting")
        self._polls = LongPolls()
        self._readback = Readback(log, self.state)
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._housekeeping_at = 0.0
        self.is_short_of_space = False
        self._is_burial_planned = False
        self._is_publishing_due = False
        self._is_closed = False

    # ---------------------------------------------------------------- life

    async def start(self) -> Recovered:
        """Restore everything from the log and begin to serve."""
        began = self.clock.monotonic()
        state = self.state
        state.synced = 1 << 62  # everything that is replayed is durable
        records = 0
        breath = began
        for sequence, record in self.log.replay():
            state.apply(sequence, record)
            records += 1
            if not records & 255 and self.clock.monotonic() - breath > 0.05:
                await asyncio.sleep(0)  # health checks are answered during a long replay
                breath = self.clock.monotonic()
        state.synced = self.log.synced
        self._loop = asyncio.get_running_loop()
        self._queue = CommitQueue(self.log, self.limits, self._on_synced, self._on_failed)
        self._snapshotter = Snapshotter(state, self._queue, self.clock, self.limits)
        self._refusal = None
        self._housekeep()
        self._plan_burial()
        self._arm()
        self._on_health(True)
        return Recovered(
            channels=len(state.channels),
            groups=sum(len(channel.groups) for channel in state.channels.values()),
            messages=sum(
                partition.next_offset - partition.start_offset
                for channel in state.channels.values()
                for partition in channel.partitions
            ),
            records=records,
            seconds=self.clock.monotonic() - began,
            damaged=[f"{at.segment}, byte {at.position}, {at.bytes} bytes: {at.reason}" for at in state.damaged],
            set_aside=state.set_aside,
        )

    async def drain(self) -> None:
        """Take no more commands (they get Unavailable), answer waiting pulls empty, wait for what is in flight."""
        if self._refusal is None:
            self._refusal = Unavailable("the broker is shutting down")
            self._on_health(False)
        for poll in list(self._polls):
            self._answer_poll(poll, poll.reply)
        if self._timer is not None:
            self._timer.cancel()
        while self._tasks:
            await asyncio.wait(list(self._tasks))
        if hasattr(self, "_queue"):
            await self._queue.drained()

    async def close(self) -> None:
        """Drain, write a snapshot, close the log. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        await self.drain()
        if self.failed is None and hasattr(self, "_queue"):
            self._snapshotter.finish()
            await self._queue.drained()
        await asyncio.get_running_loop().run_in_executor(None, self.log.close)

    # ---------------------------------------------------------------- commands

    def submit(self, command: Command, done: Done) -> Waiter | None:
        """Decide a command now; `done` gets its reply, or its error, exactly once, when that may leave.

        That is when everything decided before it and itself is durable, so also for errors and for replies
        that made no record. `done` may be called before this returns. A pull that waits returns a Waiter;
        a cancelled one never calls `done`.
        """
        if self._refusal is not None:
            done(self._refusal)
            return None
        if type(command) is Publish:
            self._publish(command, done)
            return None
        if type(command) is Pull:
            return self._begin_pull(command, done)
        try:
            if self._readback.is_time_asked(command):
                self._spawn(self._after_lookup(command, done))
            else:
                self._run(command, done)
        except Missing as missing:
            self._spawn(self._after_reading(command, done, missing))
        except MqError as error:
            self._queue.answer(done, error)
        return None

    def release(self, reply: PullReply) -> None:
        """Give back at once the leases of an answer that could not be sent, as if it had never been pulled."""
        group = release(self.state, reply)
        if group is not None and self._refusal is None:
            self._wake(group)

    def rotate(self) -> None:
        """Seal the log's current segment."""
        if self._refusal is not None:
            raise self._refusal
        self._queue.flush()
        self.log.rotate()

    def _publish(self, command: Publish, done: Done) -> None:
        """The hot path."""
        queue = self._queue
        now = self.clock.now_us()
        try:
            self._admit(len(command.batch))
            reply = self._share(command, now) or self._publish_apart(command, now)
        except MqError as error:
            queue.answer(done, error)
            return
        durability = command.durability or self.limits.durability
        reply.durable = MEMORY if self.limits.is_memory else durability
        queue.answer(done, reply, durability)
        if reply.schedule_id:
            self._arm()

    def _publish_apart(self, command: Publish, now: int) -> PublishReply:
        records, reply = decide_publish(self.state, command, now)
        for record in records:
            self.state.apply(self._queue.put(record), record)
        assert isinstance(reply, PublishReply)
        return reply

    def _share(self, command: Publish, now: int) -> PublishReply | None:
        """A plain publish right behind another is told in the same record, as more messages of the same moment.

        Deciding it would give a record that differs in nothing else; so it is applied and queued without one.
        """
        channel = self.state.channels.get(command.channel)
        if channel is None or command.producer_id or command.delay_ms or command.deliver_at_us:
            return None
        number = command.partition or 0
        if number >= len(channel.partitions) or (command.partition is None and len(channel.partitions) > 1):
            return None
        partition = channel.partitions[number]
        base, ttl_ms = partition.next_offset, command.ttl_ms or channel.settings.ttl_ms
        record = self._queue.share(channel.channel_id, number, base, command.batch, command.count, ttl_ms, now)
        if record is None:
            return None
        self.state.share(partition, command.batch, command.count, record.sequence, record.timestamp_us)
        return PublishReply(number, base, command.count, record.timestamp_us)

    def _run(self, command: Command, done: Done) -> None:
        """Everything but Publish and Pull."""
        if isinstance(command, Transact):
            self._admit(sum(len(publish.batch) for publish in command.publishes))
        reply = self._take(decide(self.state, command, self.clock.now_us()))
        assert reply is not None
        self._queue.answer(done, reply)
        self._after(command)

    def _take(self, decision: Decision) -> Reply | None:
        """Apply and queue what was decided."""
        for record in decision.records:
            self._note(record)
        reply = decision.reply
        return reply() if callable(reply) else reply

    def _note(self, record: Record) -> None:
        self.state.apply(self._queue.put(record), record)

    def _admit(self, size: int) -> None:
        if self.is_short_of_space:
            raise ResourceExhausted("the disk is almost full; acks and pulls go on")
        self._queue.admit(size)

    def _after(self, command: Command) -> None:
        """What a command may have changed for others."""
        self._plan_burial()
        for touched in command.acks if isinstance(command, Transact) else (command,):
            channel = self.state.channels.get(getattr(touched, "channel", ""))
            group = channel.groups.get(getattr(touched, "group", "")) if channel else None
            if group is not None:
                self._wake(group)
        if isinstance(command, (DeleteChannel, DeleteGroup)):
            self._wake_orphans()
        self._arm()

    def _wake_orphans(self) -> None:
        """Pulls that wait on a channel or a group which is gone get their error."""
        for poll in list(self._polls):
            channel = self.state.channels.get(poll.pull.channel)
            key = poll.keys[0]
            if channel is None or (
                channel.groups_by_id.get(key.group_id) is not key
                if isinstance(key, Group)
                else key not in channel.partitions
            ):
                self._retry(poll)

    # ---------------------------------------------------------------- pulls

    def _begin_pull(self, pull: Pull, done: Done) -> Waiter | None:
        poll = LongPoll(self._polls, pull, done, self.clock.monotonic() + pull.max_wait_ms / 1000)
        try:
            if self._readback.is_time_asked(pull):
                self._spawn(self._pull_after_lookup(poll))
                return poll
            self._prepare(poll)
        except MqError as error:
            self._queue.answer(done, error)
            return None
        if self._retry(poll):
            return None if poll.is_over else poll
        self._park(poll)
        return poll

    def _prepare(self, poll: LongPoll) -> None:
        """Make what the pull needs to be decided: the group, or the positions of a reader."""
        pull = poll.pull
        channel = self.state.channel(pull.channel)
        if not pull.group:
            poll.pull = replace(pull, positions=resolve(channel, pull))
        elif pull.group not in channel.groups:
            made = CreateGroup(pull.channel, pull.group, start=pull.start, positions=pull.positions)
            self._take(decide(self.state, made, self.clock.now_us()))

    def _park(self, poll: LongPoll) -> None:
        """Keep a pull until something happens for it."""
        channel = self.state.channels[poll.pull.channel]
        keys: list[Key]
        if poll.pull.group:
            keys = [channel.groups[poll.pull.group]]
        else:
            keys = [channel.partitions[position.partition] for position in poll.pull.positions]
        self._polls.add(poll, keys)
        self._arm()

    def _retry(self, poll: LongPoll) -> bool:
        """Try to answer a pull; false: it has to wait (on)."""
        try:
            reply = self._pull(poll.pull)
        except Missing as missing:
            self._polls.remove(poll)
            self._spawn(self._pull_after_reading(poll, missing))
            return True
        except MqError as error:
            self._answer_poll(poll, error)
            return True
        if reply.batches or poll.deadline <= self.clock.monotonic():
            self._answer_poll(poll, reply)
            return True
        poll.reply = reply
        return False

    def _pull(self, pull: Pull) -> PullReply:
        while True:
            decision = decide_pull(self.state, pull, self.clock.now_us())
            reply = self._take(decision)
            assert isinstance(reply, PullReply)
            if reply.batches or not decision.records:
                self._arm()
                return reply

    def _answer_poll(self, poll: LongPoll, reply: Reply | MqError) -> None:
        if poll.is_over:
            if isinstance(reply, PullReply):
                self.release(reply)
            return
        poll.cancel()
        self._queue.answer(poll.done, reply)

    def _wake(self, group: Group) -> None:
        """Something may be there for a group: give it to those who wait, longest first."""
        queue = self._polls.on(group)
        if not queue:
            return
        is_picky = group.is_ordered or group.settings.max_pending_per_member  # what one can't get, another may
        for poll in list(queue):
            if poll.keys and not self._retry(poll) and not is_picky and poll.pull.partition is None:
                break

    # ---------------------------------------------------------------- the log

    def _on_synced(self, synced: int) -> None:
        for partition in self.state.advance(synced):
            for poll in list(self._polls.on(partition)):
                if poll.keys:
                    self._retry(poll)
            for group in self._polls.groups_of(partition.channel_id):
                self._wake(group)
        self._snapshotter.step()

    def _on_failed(self, error: BaseException) -> None:
        if self.failed is not None:
            return
        logger.critical("storage failed, nothing is served until a restart: {}", error)
        self.failed = self._refusal = Unavailable("storage failed: what was not yet answered may or may not be stored")
        self._on_health(False)
        for poll in list(self._polls):
            poll.cancel()
            poll.done(self.failed)
        self._queue.refuse_waiting(self.failed)

    # ---------------------------------------------------------------- what has to be read first

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _after_reading(self, command: Command, done: Done, missing: Missing) -> None:
        """Read what is missing, then decide again, because the world went on meanwhile."""
        while True:
            try:
                await self._readback.read(missing)
                if self.failed is not None:
                    done(self.failed)
                else:
                    self._run(command, done)
                return
            except Missing as another:
                missing = another
            except MqError as error:
                self._queue.answer(done, error)
                return

    async def _after_lookup(self, command: Command, done: Done) -> None:
        try:
            assert isinstance(command, (CreateGroup, Seek))
            self._run(replace(command, positions=await self._readback.positions(command)), done)
        except MqError as error:
            self._queue.answer(done, error)

    async def _pull_after_lookup(self, poll: LongPoll) -> None:
        try:
            poll.pull = replace(poll.pull, positions=await self._readback.positions(poll.pull))
            if poll.is_over:
                return
            self._prepare(poll)
        except MqError as error:
            self._answer_poll(poll, error)
            return
        if not self._retry(poll):
            self._park(poll)

    async def _pull_after_reading(self, poll: LongPoll, missing: Missing) -> None:
        try:
            await self._readback.read(missing)
        except MqError as error:
            self._answer_poll(poll, error)
            return
        if self.failed is not None and not poll.is_over:
            poll.cancel()
            poll.done(self.failed)
        if not poll.is_over and not self._retry(poll):
            self._park(poll)

    # ---------------------------------------------------------------- the clock

    def tick(self) -> None:
        """Do what is due by the clock; the broker's own timer calls this, and tests with a clock of theirs."""
        if self._refusal is not None:
            return
        now = self.clock.now_us()
        records, groups = decide_expiry(self.state, now)
        for record in records:
            self._note(record)
        self._plan_burial()
        for group in groups:
            self._wake(group)
        for poll in self._polls.overdue(self.clock.monotonic()):
            self._answer_poll(poll, poll.reply)
        if self._is_schedule_due(now) and not self._is_publishing_due:
            self._is_publishing_due = True
            self._spawn(self._publish_due())
        if self.clock.monotonic() >= self._housekeeping_at:
            self._housekeep()
        self._arm()

    def _arm(self) -> None:
        """Set the timer for whatever comes first."""
        now_us, now = self.clock.now_us(), self.clock.monotonic()
        delay = self._housekeeping_at - now
        for heap in (self.state.alarms, self.state.schedules):
            if heap:
                delay = min(delay, (heap[0][0] - now_us) / 1e6)
        deadline = self._polls.next_deadline
        if deadline is not None:
            delay = min(delay, deadline - now)
        delay = max(delay, SHORTEST_SLEEP_SECONDS)
        due = self._loop.time() + delay
        if (
            self._timer is None
            or self._timer.cancelled()
            or self._timer_at <= self._loop.time()
            or due < self._timer_at
        ):
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = due
            self._timer = self._loop.call_later(delay, self.tick)

    def _housekeep(self) -> None:
        self._housekeeping_at = self.clock.monotonic() + HOUSEKEEPING_SECONDS
        now = self.clock.now_us()
        for poll in list(self._polls):
            key = poll.keys[0]
            if isinstance(key, Group) and poll.pull.member in key.members:
                key.touch(poll.pull.member, now, self.limits.members)  # who waits is alive
        records, groups = decide_absence(self.state, now)
        for record in records:
            self._note(record)
        for group in groups:
            self._wake(group)
        if records:
            self._wake_orphans()
        self.is_short_of_space = self.log.usage().is_short_of_space

    def _is_schedule_due(self, now: int) -> bool:
        return bool(self.state.schedules) and self.state.schedules[0][0] <= now

    async def _publish_due(self) -> None:
        """Delayed publishes whose time has come, one after the other."""
        try:
            while self.failed is None and self._is_schedule_due(self.clock.now_us()):
                decision = await self._readback.due(self.clock.now_us())
                if decision is None:
                    break
                self._take(decision)
        finally:
            self._is_publishing_due = False

    def _plan_burial(self) -> None:
        if self.state.dying and not self._is_burial_planned:
            self._is_burial_planned = True
            self._loop.call_soon(self._bury)

    def _bury(self) -> None:
        """Dead-letter what was delivered often enough."""
        self._is_burial_planned = False
        while self.state.dying and self.failed is None:
            dying = self.state.dying.popleft()
            try:
                self._take(decide_burial(self.state, dying, self.clock.now_us()))
                self._wake(dying.group)
            except Missing as missing:
                self._spawn(self._bury_after_reading(dying, missing))
            except DataLoss as loss:
                logger.error("a message for the dead-letter channel can't be read: {}", loss)

    async def _bury_after_reading(self, dying: Dying, missing: Missing) -> None:
        try:
            await self._readback.read(missing)
        except MqError as error:
            logger.error("a message for the dead-letter channel can't be read: {}", error)
            return
        self.state.dying.append(dying)
        self._bury()
