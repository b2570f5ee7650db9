"""How many requests a group waits for: about as many as came together lately. Pure.

Callers who are answered together are back at about the same time, and the first of them would be a group of his own:
all others would wait for his sync, and then for theirs. So a group with fewer requests than the fullest of late looks
around for some turns of the loop first. That pays only while everybody is in a hurry: who comes long after the last
answers is most likely alone.
"""

from __future__ import annotations

from collections.abc import Callable

LOOKS = 16  # turns of the loop; one in which nobody comes takes two or three microseconds
LONGEST_SECONDS = 100e-6  # for turns in which the loop has other work: then it has waited long enough
FRESH_SECONDS = 300e-6  # for so long after an answer others who got theirs then may be on their way back
FORGETTING = 0.1  # requests: by so much fewer are waited for with each group that is not fuller
FORGETTING_SHARE = 1 / 32  # of the requests, where that is more: a burst of many is not waited for much longer


class Company:
    """`is_complete` before a group goes to the disk, `answered` when it is back."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._usual = 0.0  # requests in a group
        self._looks = 0  # at the group that is waiting
        self._until = 0.0  # when that has waited for long enough
        self._answered = float("-inf")  # when the last group was

    def is_complete(self, requests: int) -> bool:
        """Whether a group of so many requests goes now; else ask again with the next turn of the loop."""
        if requests >= self._usual:
            self._usual = float(requests)
        elif self._may_look():
            self._looks += 1
            return False
        else:
            self._usual -= max(FORGETTING, FORGETTING_SHARE * self._usual)
        self._looks = 0
        return True

    def _may_look(self) -> bool:
        now = self._now()
        if self._looks:
            return self._looks < LOOKS and now < self._until
        self._until = now + LONGEST_SECONDS
        return now - self._answered < FRESH_SECONDS

    def answered(self) -> None:
        self._answered = self._now()
