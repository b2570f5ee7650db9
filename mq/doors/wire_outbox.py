"""What leaves on one wire connection: the answers of a turn of the loop in one write, stored batches uncopied.

It also remembers the leases that are on their way, so that those which never left go to another member.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from mq.service import Delivery

HIGH_WATER_BYTES = 1 << 20  # of unread output, then no more requests are read
MOST_BYTES = 64 << 20  # then the peer is given up: all that was in flight is answered, and it reads nothing
JOINED_BYTES = 64 << 10  # so much is cheaper copied together than handed over in pieces


class Mail:
    """The outboxes of a door that have something to send: all of them are emptied at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._full: list[Outbox] = []
        self._is_planned = False

    def add(self, outbox: Outbox) -> None:
        """It is flushed at the end of this turn of the loop, or earlier."""
        self._full.append(outbox)
        if not self._is_planned:
            self._is_planned = True
            self._loop.call_soon(self._end_turn)

    def flush(self) -> None:
        """Now: no more answers come in this turn. Messages before answers to publishes."""
        full, self._full = self._full, []
        if len(full) > 1:
            full.sort(key=_has_no_delivery)
        for outbox in full:
            try:
                outbox.flush()
            except Exception as error:  # one peer's is not to hold back the others
                self._loop.call_exception_handler({"message": "a peer could not be written to", "exception": error})

    def burn(self) -> None:
        """Nobody knows whether what was put in is true: it does not leave, and whoever it was for is cut off."""
        full, self._full = self._full, []
        for outbox in full:
            outbox.clear()
        for outbox in full:
            outbox.abort()

    def _end_turn(self) -> None:
        self._is_planned = False
        self.flush()


class Outbox:
    """`on_flush` is called after each write, which is when there may be room again."""

    __slots__ = ("_deliveries", "_is_planned", "_mail", "_on_flush", "_pieces", "_queued", "_transport", "bytes")

    def __init__(self, mail: Mail, transport: asyncio.Transport, on_flush: Callable[[], None]) -> None:
        self.bytes = 0  # put in since the last write
        self._mail = mail
        self._transport = transport
        self._on_flush = on_flush
        self._pieces: list[bytes] = []
        self._queued = 0  # bytes given to the transport so far
        self._deliveries: deque[tuple[int, Delivery]] | None = None  # leases, by the byte that ends their frame
        self._is_planned = False

    def put(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self.bytes += len(piece)
        if not self._is_planned:
            self._is_planned = True
            self._mail.add(self)

    def add(self, pieces: list[bytes], size: int) -> None:
        """More of what was put in last."""
        self._pieces += pieces
        self.bytes += size

    def put_delivery(self, delivery: Delivery) -> None:
        """The frame put in last leases messages."""
        if self._deliveries is None:
            self._deliveries = deque()
        self._deliveries.append((self._queued + self.bytes, delivery))

    def flush(self) -> None:
        """Write now what was put in."""
        self._is_planned = False
        transport = self._transport
        if not self._pieces or transport.is_closing():
            return
        pieces, size = self._pieces, self.bytes
        self._pieces, self.bytes = [], 0
        self._queued += size
        if size <= JOINED_BYTES:
            transport.write(b"".join(pieces))
        else:
            for piece in pieces:  # `writelines` of asyncio forgets to pause the protocol in some releases of Python
                transport.write(piece)
        if self._deliveries:
            self.note_sent()
        if transport.get_write_buffer_size() > MOST_BYTES:
            transport.abort()
        else:
            self._on_flush()

    def clear(self) -> None:
        """Forget what was put in since the last write; only for a connection that ends with it."""
        self._pieces, self.bytes = [], 0

    def abort(self) -> None:
        self._transport.abort()

    @property
    def unsent_bytes(self) -> int:
        return self.bytes + self._transport.get_write_buffer_size()

    @property
    def has_delivery(self) -> bool:
        return bool(self._deliveries)

    def note_sent(self) -> None:
        """Forget the leases that the operating system has taken: the peer may have them by now."""
        if self._deliveries:
            sent = self._queued - self._transport.get_write_buffer_size()
            while self._deliveries and self._deliveries[0][0] <= sent:
                self._deliveries.popleft()

    def drop(self) -> None:
        """The connection is gone, and with it what had not left. The transport's own count is not to be trusted now."""
        deliveries, self._deliveries = self._deliveries, None
        self._pieces, self.bytes = [], 0
        for _, delivery in deliveries or ():
            delivery.release()


def _has_no_delivery(outbox: Outbox) -> bool:
    return not outbox.has_delivery
