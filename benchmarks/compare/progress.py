"""Says what runs now and about how long the rest takes, from what the same work took before."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from statistics import mean
from typing import TypeVar

T = TypeVar("T")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def told(steps: Sequence[tuple[str, T]]) -> Iterator[tuple[str, T]]:
    """The steps, each announced; a step is a kind of work, like a broker's name, and whatever else it needs."""
    took: dict[str, list[float]] = {}
    for number, (kind, what) in enumerate(steps):
        left = seconds_left([kind for kind, _ in steps[number:]], took)
        about = f", about {left / 60:.0f} min left" if left else ""
        say(f"{number + 1} of {len(steps)}{about}: {kind}")
        begin = time.monotonic()
        yield kind, what
        took.setdefault(kind, []).append(time.monotonic() - begin)


def seconds_left(kinds: Sequence[str], took: dict[str, list[float]]) -> float:
    """What never ran is taken to last as long as the others do; 0 where nothing ran yet."""
    if not took:
        return 0.0
    means = {kind: mean(each) for kind, each in took.items()}
    usual = mean(means.values())
    return sum(means.get(kind, usual) for kind in kinds)
