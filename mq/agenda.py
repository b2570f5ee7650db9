"""What is due by the clock: leases that end, delayed publishes, dead letters, members gone, long polls over.

Runs on the loop, with one timer for whatever comes first.
"""

from __future__ import annotations

import asyncio

from loguru import logger

from mq.channel import Missing
from mq.cleaner import Cleaner
from mq.deadletter import decide_burial
from mq.errors import MqError
from mq.owner import Owner
from mq.pulls import Pulls
from mq.readback import Readback
from mq.retention import decide_retention
from mq.scrubber import Scrubber
from mq.settlement import decide_absence, decide_expiry
from mq.store import Dying

HOUSEKEEPING_SECONDS = 1.0
SHORTEST_SLEEP_SECONDS = 0.002


class Agenda:
    def __init__(self, owner: Owner, readback: Readback) -> None:
        self._owner = owner
        self._state = owner.state
        self._clock = owner.clock
        self._readback = readback
        self._pulls = Pulls(owner, readback, self.arm)
        self._cleaner = Cleaner(owner)
        self._scrubber = Scrubber(owner)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._housekeeping_at = 0.0
        self._is_burial_planned = False
        self._is_publishing_due = False
        self._is_held_up = False  # something waits for room in the log
        self._is_arming = False

    @property
    def pulls(self) -> Pulls:
        return self._pulls

    def begin(self) -> None:
        """After the replay: what was due while nobody was there."""
        self._housekeep()
        self.plan_burial()
        self.arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def resume(self) -> None:
        """The marks have moved: go on with what waited for room in the log."""
        if self._is_held_up and self._owner.has_room:
            self._is_held_up = False
            self._owner.loop.call_soon(self.tick)

    def tick(self) -> None:
        """Do what is due by the clock; the timer calls this, and tests with a clock of theirs."""
        self.stop()  # a timer that fired is over, also where it was early by the loop's own clock: uvloop's are
        if self._owner.refusal is not None:
            return
        try:
            self._do_what_is_due(self._clock.now_us())
        finally:
            self.arm()  # whatever went wrong with one thing, the next one is due all the same

    def _do_what_is_due(self, now: int) -> None:
        records, groups = decide_expiry(self._state, now)
        for record in records:
            self._owner.note(record)
        self.plan_burial()
        for group in groups:
            self._pulls.wake(group)
        self._pulls.end_overdue()
        self._is_held_up = not self._owner.has_room and (self._is_held_up or self._is_schedule_due(now))
        if self._is_schedule_due(now) and not self._is_publishing_due and not self._is_held_up:
            self._is_publishing_due = True
            self._owner.spawn(self._publish_due())
        if self._clock.monotonic() >= self._housekeeping_at:
            self._housekeep()

    def arm(self) -> None:
        """Set the timer for whatever comes first: after this turn of the loop, whose answers need not wait for it."""
        if not self._is_arming:
            self._is_arming = True
            self._owner.loop.call_soon(self._arm)

    def _arm(self) -> None:
        self._is_arming = False
        if self._owner.refusal is not None:
            return
        now_us, now = self._clock.now_us(), self._clock.monotonic()
        delay = self._housekeeping_at - now
        alarm_us = self._state.next_alarm_us()
        if alarm_us:
            delay = min(delay, (alarm_us - now_us) / 1e6)
        if self._state.schedules and not self._is_held_up:
            delay = min(delay, (self._state.schedules.first[0] - now_us) / 1e6)
        deadline = self._pulls.next_deadline
        if deadline is not None:
            delay = min(delay, deadline - now)
        delay = max(delay, SHORTEST_SLEEP_SECONDS)
        due = self._owner.loop.time() + delay
        if self._timer is None or due < self._timer_at:
            self.stop()
            self._timer_at = due
            self._timer = self._owner.loop.call_later(delay, self.tick)

    def _housekeep(self) -> None:
        self._housekeeping_at = self._clock.monotonic() + HOUSEKEEPING_SECONDS
        now = self._clock.now_us()
        self._pulls.keep_alive()
        records, groups = decide_absence(self._state, now)
        for record in records:
            self._owner.note(record)
        for group in groups:
            self._pulls.wake(group)
        if records:
            self._pulls.wake_orphans()
        self._retain(now)
        self._cleaner.step()
        self._scrubber.step()
        self._look_at_the_disk()

    def _look_at_the_disk(self) -> None:
        """How full it is the log watches itself; here, whether it is there at all."""
        try:
            self._owner.log.usage()
        except FileNotFoundError as error:
            # What is written now is in files that have no name: nothing of it would be there after a stop.
            self._owner.queue.fail(error)
        except OSError as error:
            logger.warning("the disk can't be asked for its free space: {}", error)

    def _retain(self, now: int) -> None:
        """Let go what the channels' settings no longer keep."""
        records, channels = decide_retention(self._state, now)
        for record in records:
            self._owner.note(record)
        for channel in channels:
            for group in list(channel.groups.values()):
                self._pulls.wake(group)  # what held an ordered group up may be gone

    def _is_schedule_due(self, now: int) -> bool:
        return bool(self._state.schedules) and self._state.schedules.first[0] <= now

    async def _publish_due(self) -> None:
        """Delayed publishes whose time has come, one after the other, as long as there is room for them."""
        try:
            while self._owner.refusal is None and self._is_schedule_due(self._clock.now_us()):
                if not self._owner.has_room:
                    self._is_held_up = True
                    break
                decision = await self._readback.due(self._clock.now_us())
                if decision is None:
                    break
                self._owner.take(decision)
        finally:
            self._is_publishing_due = False

    def plan_burial(self) -> None:
        if self._state.dying and not self._is_burial_planned:
            self._is_burial_planned = True
            self._owner.loop.call_soon(self._bury)

    def _bury(self) -> None:
        """Dead-letter what was delivered often enough."""
        self._is_burial_planned = False
        while self._state.dying and self._owner.failed is None:
            if not self._owner.has_room:
                self._is_held_up = True
                break
            dying = self._state.dying.popleft()
            try:
                decision, lost = decide_burial(self._state, dying, self._clock.now_us())
            except Missing as missing:
                self._owner.spawn(self._bury_after_reading(dying, missing))
                continue
            self._owner.take(decision)
            self._pulls.wake(dying.group)
            for loss in lost:
                text = "messages of channel {!r} for its dead-letter channel can't be read: {}"
                logger.error(text, dying.channel.name, loss)

    async def _bury_after_reading(self, dying: Dying, missing: Missing) -> None:
        try:
            await self._readback.read(missing)
        except MqError as error:
            text = "messages of channel {!r} for its dead-letter channel can't be read yet, it is tried again: {}"
            logger.warning(text, dying.channel.name, error)
            self._state.dying.append(dying)  # the next tick comes back to it
            return
        self._state.dying.append(dying)
        self._bury()
