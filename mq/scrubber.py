"""Has the log read what it keeps, a segment at a time, round and round: damage is to be found before it is needed."""

from __future__ import annotations

from loguru import logger

from mq.owner import Owner
from wal.errors import WalError

PAUSE_SECONDS = 60.0  # between two segments: a gigabyte in twenty minutes, a thousandth of one core


class Scrubber:
    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._due = owner.clock.monotonic() + PAUSE_SECONDS
        self._is_running = False
        self._told: set[tuple[str, int, int]] = set()  # what is damaged stays so: it is told once

    def step(self) -> None:
        """Called every second."""
        if not self._is_running and self._owner.clock.monotonic() >= self._due:
            self._is_running = True
            self._owner.spawn(self._scrub())

    async def _scrub(self) -> None:
        try:
            for damage in await self._owner.log.scrub():
                place = (damage.segment, damage.position, damage.end)
                if place not in self._told:
                    self._told.add(place)
                    logger.error(
                        "{} is damaged from byte {} to {}: {}; mq wal verify lists what is lost", *place, damage.reason
                    )
        except (WalError, OSError) as error:
            logger.warning("the log can't be scrubbed at the moment: {}", error)
        finally:
            self._due = self._owner.clock.monotonic() + PAUSE_SECONDS
            self._is_running = False
