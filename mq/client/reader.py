"""Reading a channel without a group: every reader has its own place, and nothing is leased or acked."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from queue import Empty, SimpleQueue
from types import TracebackType

from mq.client.batch import Views
from mq.client.connection import Connection
from mq.client.message import View
from mq.client.pulling import LONGEST_WAIT_SECONDS, PULL, Cursor, Pulled
from mq.errors import MqError


class Read(Views[View]):
    """Messages that were read together."""

    __slots__ = ()
    view = View


class Reader:
    """Made by `Client.read`: iterate over messages, or over `batches()`.

    >>> [message.text() for message in client.read("orders", follow=False)]
    ['one', 'two', 'three']
    """

    def __init__(
        self, connection: Connection, cursor: Cursor, *, follow: bool, batch_size: int, max_bytes: int, interval: float
    ) -> None:
        self._connection = connection
        self._cursor = cursor
        self._follow = follow
        self._batch_size = batch_size
        self._max_bytes = max_bytes
        self._interval = interval
        self._is_stopping = False
        self._wakeups: SimpleQueue[None] = SimpleQueue()  # a signal's handler may put something in, whoever waits

    def __iter__(self) -> Iterator[View]:
        for batch in self.batches():
            for message in batch:
                if self._is_stopping:
                    return
                yield message

    def batches(self) -> Generator[Read, None, None]:
        """Whole answers; the fast way.

        >>> for batch in client.read("orders", follow=False).batches():
        ...     print(batch.contents())
        [b'one', b'two', b'three']
        """
        is_looked_up = bool(self._cursor.positions)
        try:
            while not self._is_stopping:
                pulled = self._pull()
                if pulled is None:
                    return
                if pulled.deliveries:
                    yield Read([delivery.whole() for delivery in pulled.deliveries])
                elif is_looked_up and not self._follow:
                    return
                is_looked_up = True
                if self._interval and self._is_stopped_within(self._interval):
                    return
        finally:  # nothing stays open for an iteration that may never come; if it comes, it connects again
            own, self._connection = self._connection, self._connection.another()
            own.close()

    @property
    def positions(self) -> dict[int, int]:
        """The next offset of each partition: where the next answer begins.

        >>> reader = client.read("orders", follow=False)
        >>> for message in reader:
        ...     pass
        >>> reader.positions
        {0: 3}
        """
        return dict(self._cursor.positions)

    def stop(self) -> None:
        """End the iteration; a signal's handler may call this."""
        self._is_stopping = True
        self._wakeups.put(None)
        self._connection.cut()
        if self._connection.needs_a_close:
            self._connection.close()

    def close(self, timeout: float | None = None) -> None:
        """Stop, and close the connection. Idempotent."""
        self.stop()
        self._connection.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _is_stopped_within(self, seconds: float) -> bool:
        try:
            self._wakeups.get(timeout=seconds)
        except Empty:
            return False
        return True

    def _pull(self) -> Pulled | None:
        """None: stopped meanwhile."""
        wait = LONGEST_WAIT_SECONDS if self._follow else 0.0
        request = self._cursor.request(self._batch_size, wait, self._max_bytes)
        timeout = float("inf") if self._follow else None
        try:
            return self._cursor.advance(self._connection.call(PULL, request, wait=wait, timeout=timeout))
        except MqError:
            if self._is_stopping:
                return None
            raise
