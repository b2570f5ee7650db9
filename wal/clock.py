"""The clock behind an interface, so that tests turn it by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_us(self) -> int:
        """Wall clock, microseconds since the Unix epoch; may jump."""
        ...

    def monotonic(self) -> float:
        """Seconds that only go forward."""
        ...


class SystemClock:
    def now_us(self) -> int:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()
