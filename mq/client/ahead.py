"""A thread that pulls a consumer's next answers while one is worked on.

That is of use while there is more than one answer holds. Where a channel was emptied the thread rests, and whoever
wants the next message pulls it himself: to be woken by another thread takes a while, and long on a busy machine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

from mq.client.connection import Connection
from mq.client.pulling import Pulled
from mq.errors import MqError

PREFETCH = 2  # answers that wait for their turn, beside the one that is worked on
LARGE_BYTES = 64 << 10  # of an answer: there may be more, though it has fewer messages than were asked for


class Ahead:
    """For one consumer and one connection. What the thread does not do itself is called by the consumer's."""

    def __init__(
        self,
        own: Connection,
        pull: Callable[[Connection], Pulled],
        on_break: Callable[[], None],
        *,
        batch_size: int,
        interval: float,
    ) -> None:
        self.is_at_work = False
        self.own = own
        self._pull = pull
        self._on_break = on_break  # what waits may be somebody else's by now
        self._batch_size = batch_size
        self._interval = interval
        self._answers: SimpleQueue[tuple[Pulled, bool] | MqError | None] = SimpleQueue()  # and whether it goes on
        self._room = threading.Semaphore(PREFETCH)
        self._turn = threading.Semaphore(0)
        self._is_over = False
        self._thread: threading.Thread | None = None

    @property
    def is_needed(self) -> bool:
        """A wait that can't be cut short, or has an interval before it, is always the thread's."""
        return self._interval > 0 or not self.own.can_be_cut

    def is_full(self, pulled: Pulled) -> bool:
        """Whether there may be more than this answer holds."""
        return pulled.size >= LARGE_BYTES or pulled.messages >= self._batch_size

    def begin(self) -> None:
        """Pull, up to an answer after which there is no more."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="mq-consumer", daemon=True)
            thread.start()
            self._thread = thread  # not before it can be joined: another thread may end this
        self.is_at_work = True
        self._turn.release()

    def take(self, timeout: float | None) -> Pulled | None:
        """The next answer, while it is at work; None: none came in time, or `wake` was called. Raises MqError."""
        try:
            answer = self._answers.get(timeout=timeout)
        except Empty:
            return None
        if isinstance(answer, MqError):
            self.is_at_work = False
            raise answer
        if answer is None:
            return None
        self._room.release()
        pulled, self.is_at_work = answer
        return pulled

    def wake(self) -> None:
        """Whoever takes gets nothing. Takes no lock."""
        self._answers.put(None)

    def end(self, timeout: float | None) -> None:
        """No more pulls; the connection was closed."""
        self._is_over = True
        self._turn.release()
        self._room.release()
        if self._thread is not None:
            self._thread.join(timeout)

    def left(self) -> list[Pulled]:
        """After the end: the answers that nobody took."""
        left: list[Pulled] = []
        with suppress(Empty):
            while True:
                answer = self._answers.get_nowait()
                if isinstance(answer, tuple):
                    left.append(answer[0])
        self.wake()  # once more: what was to wake whoever still waits may have been taken here
        return left

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        while self._turn.acquire() and not self._is_over:
            try:
                self._pull_all()
            except MqError as error:
                self._answers.put(error)  # also where it was stopped: then nobody takes it

    def _pull_all(self) -> None:
        own, assigned = self.own, None
        breaks = own.reconnects
        while self._room.acquire() and not self._is_over:
            try:
                pulled = self._pull(own)
            except MqError:
                self._room.release()
                raise
            if breaks != own.reconnects:
                breaks = own.reconnects
                self._on_break()
            goes_on = self.is_full(pulled) or self.is_needed
            if pulled.deliveries or pulled.assigned != assigned or not goes_on:
                assigned = pulled.assigned
                self._answers.put((pulled, goes_on))
            else:
                self._room.release()
            if not goes_on or (self._interval and own.pause(self._interval)):
                return
