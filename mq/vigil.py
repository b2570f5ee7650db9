"""Stays awake for a moment after an answer, where the next request is known to come at once.

A caller that publishes one message after the other is back a few hundredths of a millisecond after its answer. By then
an idle loop has put its processor to sleep, and to wake that takes longer than the caller did. So the loop looks on
for a moment, without sleeping. Where nothing comes it was for nothing, and is not tried again for a while, ever longer.
"""

from __future__ import annotations

from collections.abc import Callable

SECONDS = 120e-6
LONGEST_REST = 64  # answers


class Vigil:
    """`begin` after an answer, `end` when something came; `call_soon` of a loop that does not sleep then."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object], now: Callable[[], float]) -> None:
        self._call_soon = call_soon
        self._now = now
        self._until = 0.0  # 0: there is nothing to watch for
        self._is_look_planned = False
        self._in_vain = 0  # vigils in a row
        self._rest = 0  # answers that are not followed by one
        self._in_the_end: Callable[[], None] | None = None

    def begin(self, in_the_end: Callable[[], None] | None = None) -> None:
        """`in_the_end`: what else there is to do, and can wait until it is likely that nothing comes."""
        if self._rest:
            self._rest -= 1
            if in_the_end is not None:
                self._call_soon(in_the_end)
            return
        self._in_the_end = in_the_end
        self._until = self._now() + SECONDS
        if not self._is_look_planned:
            self._is_look_planned = True
            self._call_soon(self._look)

    def end(self) -> None:
        if self._until:
            self._until = 0.0
            self._in_vain = 0

    def _look(self) -> None:
        if self._now() < self._until:
            self._call_soon(self._look)
            return
        self._is_look_planned = False
        if self._until:
            self._until = 0.0
            self._rest = min(LONGEST_REST, (1 << self._in_vain) - 1)
            self._in_vain = min(self._in_vain + 1, LONGEST_REST)
            if self._in_the_end is not None:
                self._in_the_end()
