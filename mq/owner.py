"""The owner's tools: one state, one queue to the log, one clock. Whatever changes something goes through here.

Runs on one event loop. Decisions come from the pure modules; here they are applied and queued, in log order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from mq.commitqueue import CommitQueue, Done
from mq.decision import Decision
from mq.errors import MqError, ResourceExhausted
from mq.limits import Limits
from mq.reply import Reply
from mq.state import State
from wal.clock import Clock
from wal.log import Log
from wal.record import Record


class Owner:
    """What the parts of a broker share. `open` comes once, after the replay."""

    queue: CommitQueue
    loop: asyncio.AbstractEventLoop

    def __init__(self, log: Log, clock: Clock, limits: Limits, secret: bytes) -> None:
        self.log = log
        self.clock = clock
        self.limits = limits
        self.state = State(limits, secret)
        self.refusal: MqError | None = None  # what every command gets while the broker does not serve
        self.failed: MqError | None = None  # set once, by a storage failure
        self.is_open = False
        self.tasks: set[asyncio.Task[None]] = set()

    def open(self, on_synced: Callable[[int], None], on_failed: Callable[[BaseException], None]) -> None:
        """Begin to append."""
        self.loop = asyncio.get_running_loop()
        self.queue = CommitQueue(self.log, self.limits, on_synced, on_failed)
        self.is_open = True

    def admit(self, size: int) -> None:
        """Raises ResourceExhausted where so many more bytes can't be taken at the moment."""
        if self.log.is_short_of_space:  # now, not a while ago: what is taken too long uses up what acks live on
            raise ResourceExhausted("the disk is almost full; acks and pulls go on")
        self.queue.admit(size)

    @property
    def has_room(self) -> bool:
        """Whether the broker's own publishes may go on: nobody can be told to come back with them later."""
        return not self.log.is_short_of_space and self.queue.unsynced_bytes < self.queue.limit_bytes

    def take(self, decision: Decision) -> Reply | None:
        """Apply and queue what was decided."""
        for record in decision.records:
            self.note(record)
        reply = decision.reply
        return reply() if callable(reply) else reply

    def note(self, record: Record) -> None:
        """Apply and queue one record."""
        self.state.apply(self.queue.put(record), record)

    def answer(self, done: Done, reply: Reply | MqError) -> None:
        """Call `done(reply)` once everything decided so far is durable; at once where nothing more becomes so."""
        if self.failed is not None:
            self.queue.tell(done, self.failed)
        else:
            self.queue.answer(done, reply)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run what has to wait for the log; nothing else is worth a task."""
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
