"""Has the log cleaned, a bounded part at a time and never for more than a tenth of the time."""

from __future__ import annotations

from loguru import logger

from mq.horizon import Horizon
from mq.owner import Owner
from wal.errors import WalError

IDLE_SECONDS = 10.0  # until the next look after one that found nothing
BUSY_SECONDS = 1.0  # after one that did, or longer: nine times what that took


class Cleaner:
    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._horizon: Horizon | None = None
        self._taken_at = 0  # the last sequence given out when the horizon was taken
        self._due = 0.0
        self._is_running = False

    def step(self) -> None:
        """Take a look at what is needed; once that is durable, have the rest cleaned. Called every second."""
        owner = self._owner
        if not owner.limits.clean_bytes or self._is_running or owner.clock.monotonic() < self._due:
            return
        if self._horizon is None:
            self._horizon = Horizon(owner.state)
            self._taken_at = owner.queue.last
        if owner.log.synced >= self._taken_at:
            horizon, self._horizon = self._horizon, None
            self._is_running = True
            owner.spawn(self._clean(horizon))

    async def _clean(self, horizon: Horizon) -> None:
        clock = self._owner.clock
        began = clock.monotonic()
        pause = IDLE_SECONDS
        try:
            freed = await self._owner.log.clean(horizon, self._owner.limits.clean_bytes)
            if freed:
                logger.debug("cleaning the log freed {} bytes", freed)
                pause = max(BUSY_SECONDS, 9 * (clock.monotonic() - began))
        except WalError as error:
            logger.warning("the log can't be cleaned at the moment: {}", error)
        finally:
            self._due = clock.monotonic() + pause
            self._is_running = False
