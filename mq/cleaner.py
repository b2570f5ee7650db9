"""Has the log cleaned, a bounded part at a time.

A little to clean is done in a tenth of the time, so that nobody notices. Where round after round finds more, rounds
become larger and the pauses between them shorter, up to four fifths of the time: a full disk is worse than a slow hour.
They do so twice as fast where a round could have freed more than it was allowed to: then there is much, as there is
after a start of a broker that wrote a lot before it.
"""

from __future__ import annotations

from loguru import logger

from mq.horizon import Horizon
from mq.owner import Owner
from wal.errors import WalError

IDLE_SECONDS = 10.0  # until the next look after one that found nothing
PAUSES = (9, 4, 2, 1, 0.5, 0.25)  # after one that did, by haste: times what the round took, …
SHORTEST_PAUSES = (1.0, 0.5, 0.25, 0.125, 0.125, 0.125)  # … and at least so many seconds
SYNC_SECONDS = 0.02  # until what was under way is probably durable
EARLY_SECONDS = 0.002  # that a timer may come before its time: uvloop's do


class Cleaner:
    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._horizon: Horizon | None = None
        self._taken_at = 0  # the last sequence given out when the horizon was taken
        self._looked_at = 0  # the same, of the round before
        self._due = 0.0
        self._haste = 0  # a step or two more after each round that found something to clean
        self._is_running = False

    def step(self) -> None:
        """Take a look at what is needed; once that is durable, have the rest cleaned. Called often."""
        owner = self._owner
        if not owner.limits.clean_bytes or self._is_running or owner.refusal is not None:
            return
        if owner.clock.monotonic() < self._due:
            return
        if self._horizon is None:
            self._horizon = Horizon(owner.state)
            self._taken_at = owner.queue.last
        if owner.log.synced >= self._taken_at:
            horizon, self._horizon = self._horizon, None
            self._is_running = True
            owner.spawn(self._clean(horizon))
        elif self._haste:
            owner.loop.call_later(SYNC_SECONDS, self.step)

    async def _clean(self, horizon: Horizon) -> None:
        clock = self._owner.clock
        began = clock.monotonic()
        # What becomes dead becomes so at once, when a snapshot run ends: who writes much is looked at every second.
        has_grown, self._looked_at = self._taken_at > self._looked_at, self._taken_at
        pause = SHORTEST_PAUSES[0] if has_grown else IDLE_SECONDS
        try:
            haste, self._haste = self._haste, 0
            allowed = self._owner.limits.clean_bytes << haste
            freed = await self._owner.log.clean(horizon, allowed)
            if freed:
                logger.debug("cleaning the log freed {} bytes", freed)
                pause = max(SHORTEST_PAUSES[haste], PAUSES[haste] * (clock.monotonic() - began))
                self._haste = min(haste + (2 if freed * 2 > allowed else 1), len(PAUSES) - 1)
            elif haste:  # it was ahead of what becomes dead
                pause = SHORTEST_PAUSES[0]
                self._haste = max(0, haste - 2)
        except WalError as error:
            logger.warning("the log can't be cleaned at the moment: {}", error)
        finally:
            self._due = clock.monotonic() + pause
            self._is_running = False
            if pause < IDLE_SECONDS:
                self._owner.loop.call_later(pause + EARLY_SECONDS, self.step)
