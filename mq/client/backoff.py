"""How long to wait before the next try: longer each time, and never the same for two clients."""

from __future__ import annotations

import random

FIRST_SECONDS = 0.02
LONGEST_SECONDS = 2.0


class Backoff:
    """Doubles up to a limit, with full jitter in the upper half, so that clients do not come back as one."""

    def __init__(self, first: float = FIRST_SECONDS, longest: float = LONGEST_SECONDS) -> None:
        self._next = first
        self._longest = longest

    def seconds(self) -> float:
        wait, self._next = self._next, min(self._next * 2, self._longest)
        return wait * random.uniform(0.5, 1.0)  # noqa: S311 - luck, not a secret
