"""Threads that take messages off a broker for a framework that waits in one place.

A puller fetches when it is asked to and not before, so that nothing is leased that nobody has room for; a listener
reads on and on. What they find, or the error that ended them, they give away; they never call a framework themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

from mq.client.batch import Batch
from mq.client.consumer import Consumer
from mq.client.message import View
from mq.client.reader import Reader
from mq.errors import MqError

WAIT_SECONDS = 5.0  # of one pull; the next follows at once
CLOSE_SECONDS = 5.0  # to send the last acks, where the broker is away

Give = Callable[[View | MqError], None]


class Puller:
    """Fetches from a group, as many messages as it was asked for, from the moment there are any.

    Where there are none it waits for the first, and says so: what it was asked for may be asked of others meanwhile.
    """

    def __init__(self, consumer: Consumer, give: Give, on_idle: Callable[[], None]) -> None:
        self._consumer = consumer
        self._give = give
        self._on_idle = on_idle
        self._asks: SimpleQueue[int] = SimpleQueue()  # 0 ends
        self._due = 0  # of the ask that is not fulfilled yet
        self.turn = 0  # grows with each ask that is shared out
        self._is_asked = self._is_cancelled = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="mq-puller", daemon=True)
        self._thread.start()

    @property
    def load(self) -> int:
        """Messages that are leased to it, and those that it may find at any moment."""
        return self._due + self._consumer.held

    @property
    def is_free(self) -> bool:
        """Whether it may be asked."""
        return not self._is_asked

    def ask(self, count: int) -> None:
        """Fetch up to so many; nothing, where the last ask is not fulfilled yet."""
        with self._lock:
            if self._is_asked:
                return
            self._is_asked, self._due = True, count
        self._asks.put(count)

    def cancel(self) -> None:
        """Fetch no more. What was given may still be acked."""
        self._is_cancelled = True
        self._asks.put(0)

    def close(self) -> None:
        """Send the acks, give back what is not acked. Where the broker is away, all of it comes again."""
        self.cancel()
        with suppress(MqError):
            self._consumer.close(CLOSE_SECONDS)

    def close_if_idle(self) -> bool:
        """Close one that was cancelled, where nothing is leased to it any more."""
        if self._consumer.held:
            return False
        self.close()
        return True

    def _run(self) -> None:
        while count := self._asks.get():
            try:
                found = self._fetch(count)
            except MqError as error:
                if not self._is_cancelled:
                    self._give(error)
                return
            with self._lock:  # before they are given: whoever gets the last may ask again at once
                self._is_asked, self._due = False, 0
            for message in found:
                if self._is_cancelled:
                    message.nack(delay_ms=0)
                else:
                    self._give(message)

    def _fetch(self, count: int) -> Batch:
        found = self._consumer.fetch(count)
        while not found and not self._is_cancelled:
            if self._due:
                self._due = 0
                self._on_idle()
            found = self._consumer.fetch(1, WAIT_SECONDS)
        return found


class Listener:
    """Gives away what a reader finds. There is nothing to ack, so there is nothing to ask for."""

    def __init__(self, reader: Reader, give: Give) -> None:
        self._reader = reader
        self._give = give
        self._is_cancelled = False
        self._thread = threading.Thread(target=self._run, name="mq-listener", daemon=True)
        self._thread.start()

    def ask(self, count: int) -> None:
        """It reads anyway."""

    def cancel(self) -> None:
        self._is_cancelled = True
        self._reader.close()

    def close(self) -> None:
        self.cancel()

    def close_if_idle(self) -> bool:
        self.close()
        return True

    def _run(self) -> None:
        try:
            for message in self._reader:
                self._give(message)
        except MqError as error:
            if not self._is_cancelled:
                self._give(error)


def share_out(room: int, pullers: list[Puller]) -> None:
    """Ask those that are free for this many in all, beginning with who was asked longest ago."""
    free = sorted((puller for puller in pullers if puller.is_free), key=lambda puller: puller.turn)
    last = max((puller.turn for puller in pullers), default=0)
    for number, puller in enumerate(free):
        share = -(-room // (len(free) - number))
        if share > 0:
            puller.turn = last = last + 1
            puller.ask(share)
            room -= share
