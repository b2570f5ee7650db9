"""The broker: the one owner of the state and of the log. It decides, applies, queues and, when durable, answers.

Everything here runs on one event loop; only `Log` has threads, and its callbacks are bounced to the loop once per
group. No transport is known here, and no file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mq.command import Command
from mq.errors import MqError
from mq.limits import Limits
from mq.reply import PullReply, Reply
from wal.log import Log

Done = Callable[[Reply | MqError], None]


class Clock(Protocol):
    """Time, passed in so that tests need not sleep."""

    def now_us(self) -> int:
        """Microseconds since the Unix epoch, as the wall clock says."""
        ...

    def monotonic(self) -> float:
        """Seconds that only grow: for waiting."""
        ...


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a start found in the log."""

    channels: int
    groups: int
    messages: int
    records: int  # replayed
    seconds: float
    damaged: list[str]  # one line per damaged range of the log
    set_aside: int  # records whose channel or group is missing, or of an unknown type


class Waiter(Protocol):
    """A pull that waits for messages."""

    def cancel(self) -> None:
        """Nobody wants the answer any more: `done` is not called, nothing is leased. Idempotent."""
        ...


class Broker:
    """Call everything on the loop that `start` ran on."""

    failed: MqError | None  # set once, by a storage failure: from then on every command gets it

    def __init__(
        self, log: Log, clock: Clock, limits: Limits, *, on_health: Callable[[bool], None] | None = None
    ) -> None:
        """`on_health(True)` comes when the broker serves, `on_health(False)` when it drains or failed."""

    async def start(self) -> Recovered:
        """Restore everything from the log and begin to serve."""
        raise NotImplementedError

    def submit(self, command: Command, done: Done) -> Waiter | None:
        """Decide a command now; `done` gets its reply, or its error, exactly once, when that may leave.

        That is when everything decided before it and itself is durable, so also for errors and for replies
        that made no record. `done` may be called before this returns. A pull that waits returns a Waiter;
        a cancelled one never calls `done`.
        """
        raise NotImplementedError

    def release(self, reply: PullReply) -> None:
        """Give back at once the leases of an answer that could not be sent, as if it had never been pulled."""
        raise NotImplementedError

    async def drain(self) -> None:
        """Take no more commands (they get Unavailable), answer waiting pulls empty, wait for what is in flight."""
        raise NotImplementedError

    async def close(self) -> None:
        """Drain, write a snapshot, close the log. Idempotent."""
        raise NotImplementedError

    def rotate(self) -> None:
        """Seal the log's current segment."""
        raise NotImplementedError
