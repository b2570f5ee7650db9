"""Stays awake for a moment after an answer, where the next request is known to come at once.

A caller that publishes one message after the other is back a few hundredths of a millisecond after its answer. By then
an idle loop has put its processor to sleep, and to wake that takes longer than the caller did. So the loop looks on
for a moment, without sleeping. Where nothing comes it was for nothing, and is not tried again for a while, ever longer.
The same holds for a vigil that is made longer, where somebody else needed the processor meanwhile: most likely those
who are to ask next.
"""

from __future__ import annotations

import resource
from collections.abc import Callable

SECONDS = 120e-6
LONGEST_REST = 64  # answers
LOOK_SECONDS = 20e-6  # between two looks: what takes longer was something else, or somebody else

_THREAD = getattr(resource, "RUSAGE_THREAD", None)  # Linux alone counts for each thread


def times_displaced() -> int:
    """How often this thread lost its processor to another one."""
    return resource.getrusage(_THREAD).ru_nivcsw if _THREAD is not None else 0


class Vigil:
    """`begin` after an answer, `end` when something came; `call_soon` of a loop that does not sleep then."""

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        now: Callable[[], float],
        seconds: float = SECONDS,
        displaced: Callable[[], int] = times_displaced,
    ) -> None:
        self._call_soon = call_soon
        self._now = now
        self._seconds = seconds
        self._displaced = displaced if seconds > SECONDS else lambda: 0
        self.watched = 0.0  # seconds without work, in all
        self._looked = 0.0  # when it looked last
        self._until = 0.0  # 0: there is nothing to watch for
        self._displaced_before = 0
        self._is_look_planned = False
        self._in_vain = 0  # vigils in a row
        self._rest = 0  # answers that are not followed by one
        self._in_the_end: Callable[[], None] | None = None

    def begin(self, in_the_end: Callable[[], None] | None = None) -> None:
        """`in_the_end`: what else there is to do, and can wait for a moment in which something urgent may come."""
        if self._rest:
            self._rest -= 1
            if in_the_end is not None:
                self._call_soon(in_the_end)
            return
        self._in_the_end = in_the_end
        self._looked = self._now()
        self._until = self._looked + self._seconds
        self._displaced_before = self._displaced()
        if not self._is_look_planned:
            self._is_look_planned = True
            self._call_soon(self._look)

    def end(self) -> None:
        if self._until:
            self._until = 0.0
            if self._displaced() == self._displaced_before:
                self._in_vain = 0
            else:
                self._rest_for_a_while()

    def _look(self) -> None:
        now = self._now()
        if self._until and self._in_the_end is not None and now >= self._until - self._seconds + SECONDS:
            in_the_end, self._in_the_end = self._in_the_end, None
            in_the_end()
        if now < self._until:
            self.watched += min(now - self._looked, LOOK_SECONDS)
            self._looked = now
            self._call_soon(self._look)
            return
        self._is_look_planned = False
        if self._until:
            self._until = 0.0
            self._rest_for_a_while()

    def _rest_for_a_while(self) -> None:
        self._rest = min(LONGEST_REST, (1 << self._in_vain) - 1)
        self._in_vain = min(self._in_vain + 1, LONGEST_REST)
