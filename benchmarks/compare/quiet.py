"""Is the machine left to the broker that is measured? What others do on it, and on its host, is nobody's merit.

A virtual machine shares processors and disks with strangers, and Linux counts the time in which it had work and no
processor was given to it (steal). That comes in waves of seconds to minutes, longer than a work and shorter than
a round; so work that was disturbed is done again, by the same rule for every broker.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

REST_SECONDS = 20.0  # then it begins, however busy the machine still is
LOOK_SECONDS = 0.5  # for so long little may happen
QUIET_PERCENT = 15.0  # of all processors
QUIET_WRITES = 20  # to all disks
MOST_STOLEN_PERCENT = 1.0  # of all processors; above it a work is done again
MOST_TRIES = 4
STOLEN = "stolen_percent"
CAN_TELL = hasattr(psutil.cpu_times(), "steal")

Result = dict[str, float]


@dataclass(frozen=True)
class Look:
    """What was counted at a moment, by those systems that tell."""

    at: float
    writes: int
    stolen_seconds: float

    @classmethod
    def now(cls) -> Look:
        disks = psutil.disk_io_counters()
        return cls(time.monotonic(), disks.write_count if disks else 0, getattr(psutil.cpu_times(), "steal", 0.0))

    def stolen_percent(self, later: Look) -> float:
        """How much of the processors others had until then."""
        here = (later.at - self.at) * (os.cpu_count() or 1)
        return 100 * (later.stolen_seconds - self.stolen_seconds) / max(here, 1e-9)


def settle() -> None:
    """Wait until the machine is done with what the broker before left to it, and its host with others."""
    os.sync()
    end = time.monotonic() + REST_SECONDS
    while time.monotonic() < end:
        before = Look.now()
        busy = psutil.cpu_percent(LOOK_SECONDS)
        after = Look.now()
        is_left_alone = before.stolen_percent(after) <= MOST_STOLEN_PERCENT
        if busy < QUIET_PERCENT and after.writes - before.writes < QUIET_WRITES and is_left_alone:
            return


def measured(work: Callable[[], Result], look: Callable[[], Look] = Look.now) -> Result:
    """What a work found, with how much others had of the processors meanwhile, where the system tells that."""
    before = look()
    found = work()
    return found | {STOLEN: before.stolen_percent(look())} if CAN_TELL else found


def undisturbed(try_: Callable[[], Result]) -> Result:
    """What the least disturbed of some tries found; each of them is `measured`."""
    best = try_()
    for _ in range(MOST_TRIES - 1):
        if best.get(STOLEN, 0.0) <= MOST_STOLEN_PERCENT:
            break
        settle()
        best = min(best, try_(), key=lambda found: found[STOLEN])
    return best


def together(*found: Result) -> Result:
    """Of works of one round: everything, and the most that was taken from one of them."""
    stolen = [each[STOLEN] for each in found if STOLEN in each]
    every = {name: value for each in found for name, value in each.items()}
    return every | {STOLEN: max(stolen)} if stolen else every
