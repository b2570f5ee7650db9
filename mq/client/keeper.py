"""The thread behind a consumer: sends acks, gathered; keeps leases while a message is worked on.

Acks go out when there are many, when the oldest has waited long enough, and at the end. What a broker refuses because
the lease is gone is told in the log and counted: the message is delivered again, which is what at-least-once means.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from mq.client.connection import Connection
from mq.client.message import Delivery, Part
from mq.client.settling import NACK, REJECT, Book, Settlement
from mq.client.transport import TimedOut
from mq.errors import GroupNotFound, LeaseLost, MqError

log = logging.getLogger("mq")

ACK_SECONDS = 0.05
SHORTEST_SECONDS = 0.1  # for one request, also where all the time is used up: a broker that is there answers in less
GIVEN_BACK = "mq: all that was held of %s was given back; %d messages of it that were out are delivered again"


class Keeper:
    """Implements `Ledger`. All methods may be called from any thread."""

    def __init__(self, connection: Connection, channel: str, group: str, member: str, extend_seconds: float) -> None:
        self._connection = connection
        self.member = member
        self._place = (channel, group, member)
        self._extend_seconds = extend_seconds
        self._lock = threading.RLock()  # a signal's handler may ack while its thread is acking
        self._changed = threading.Condition(self._lock)
        self._book = Book()
        self._unsent: list[Settlement] = []  # taken from the book, and not answered yet
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._sender: object = None  # who sends what is unsent: each settlement is sent by one thread, and once
        self._ack_by = 0.0  # 0: nothing waits
        self._extend_at = float("inf")
        self.lost = 0  # messages whose lease was gone when they were acked

    # ------------------------------------------------------------ Ledger

    def ack_one(self, delivery: Delivery, index: int) -> None:
        with self._lock:
            self._book.ack_one(delivery, index)
            if not self._ack_by or self._book.is_urgent:
                self._note()

    def ack(self, parts: Sequence[Part]) -> None:
        with self._lock:
            for part in parts:
                self._book.ack(*part)
            self._note()

    def nack(self, parts: Sequence[Part], delay_ms: int | None) -> None:
        with self._lock:
            self._book.hand_back(NACK, parts, delay_ms)
            self._note()

    def reject(self, parts: Sequence[Part], reason: str) -> None:
        with self._lock:
            self._book.hand_back(REJECT, parts, reason=reason)
            self._note()

    def extend(self, delivery: Delivery) -> None:
        with self._lock:
            extensions = self._book.extensions([delivery])
        for each in extensions:
            self._connection.call(f"mq.MQService/{each.act}", each.request(*self._place))

    # ------------------------------------------------------------ a consumer's side

    def hold(self, deliveries: Sequence[Delivery], start_id: str) -> None:
        """These came; they are kept until they are settled."""
        with self._lock:
            for delivery in deliveries:
                delivery.ledger = self
                delivery.start_id = start_id
                self._book.hold(delivery)
            if self._thread is None and not self._is_closing:
                self._thread = threading.Thread(target=self._run, name="mq-consumer-keeper", daemon=True)
                self._thread.start()

    @property
    def held(self) -> int:
        """Messages that are kept."""
        with self._lock:
            return self._book.held_messages

    def take(self, parts: Sequence[Part]) -> list[tuple[Delivery, list[tuple[int, int]]]]:
        """Settle these by other means: a transaction acks them itself."""
        with self._lock:
            return [(part[0], self._book.take(*part)) for part in parts]

    def check(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Which of these are still held, as the broker sees it. Asked after a break."""
        with self._lock:
            extensions = self._book.extensions(deliveries) if deliveries else []
        for each in extensions:
            self._settle(each, None)
        return [delivery for delivery in deliveries if not delivery.is_lost]

    def lose_all(self) -> None:
        """All that is held goes back, also what waits to be handed out: it comes again, in its order."""
        with self._lock:
            count = self._book.lose_all()
            self.lost += count
        if count:
            log.warning(GIVEN_BACK, self._place[0], count)

    def flush(self, timeout: float | None = None) -> None:
        """Send what waits, and wait for the answer. Raises the error of what could not be sent."""
        self._send_all(max(SHORTEST_SECONDS, self._connection.timeout if timeout is None else timeout))

    def close(self, timeout: float | None = None) -> None:
        """Send what waits, and stop. Idempotent."""
        begin = time.monotonic()
        with self._lock:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout if timeout is not None else self._connection.timeout)
        self.flush(None if timeout is None else begin + timeout - time.monotonic())

    # ------------------------------------------------------------ the thread

    def _note(self) -> None:
        """Something waits to be sent."""
        if not self._ack_by:
            self._ack_by = time.monotonic() + ACK_SECONDS
            self._changed.notify_all()
        elif self._book.is_urgent:
            self._changed.notify_all()

    def _run(self) -> None:
        self._extend_at = time.monotonic() + self._extend_seconds
        while True:
            with self._lock:
                while not self._is_due() and time.monotonic() < self._extend_at:
                    until = min(self._extend_at, self._ack_by or self._extend_at)
                    self._changed.wait(max(0.0, until - time.monotonic()))
                if self._is_closing:
                    return
            is_failing = False
            for step in (self._send_due, self._extend_all):  # also where acks fail again and again, leases are kept
                try:
                    step()
                except Exception as error:  # whatever it is: without this thread all leases run out
                    tell(error)
                    is_failing = True
            if is_failing and self._connection.pause(0.2):
                return

    def _send_due(self) -> None:
        if self._is_due():
            self._send_all(None)

    def _is_due(self) -> bool:
        return self._is_closing or self._book.is_urgent or 0 < self._ack_by <= time.monotonic()

    def _extend_all(self, end: float | None = None) -> None:
        """Where it is time."""
        if time.monotonic() < self._extend_at:
            return
        with self._lock:
            self._extend_at = time.monotonic() + self._extend_seconds
            extensions = self._book.extensions()
        for each in extensions:
            self._settle(each, end)

    def _send_all(self, timeout: float | None) -> None:
        end = None if timeout is None else time.monotonic() + timeout
        me = object()
        try:
            self._take_turn(me, end)
            while self._unsent:
                self._settle(self._unsent[0], end)
                self._unsent.pop(0)
                self._extend_all(end)  # many refused acks must not cost the leases of what came since
        finally:  # also where a signal's handler raises, at whatever step: nothing would ever be sent again
            with self._lock:
                if self._sender is me:
                    self._sender = None
                    if self._unsent:
                        self._ack_by = time.monotonic() + ACK_SECONDS
                    self._changed.notify_all()

    def _take_turn(self, me: object, end: float | None) -> None:
        """Wait until nobody else sends. What waits in the book is for this one then, with what was left unsent."""
        with self._lock:
            while self._sender is not None:
                is_told = self._changed.wait(None if end is None else end - time.monotonic())
                if not is_told and self._sender is not None:
                    raise TimedOut("other acks are still on their way")
            self._sender = me
            self._unsent += self._book.take_all()
            self._ack_by = 0.0

    def _settle(self, settlement: Settlement, end: float | None) -> None:
        """Make one request, until a time. Raises MqError where it may succeed later."""
        try:
            request = settlement.request(*self._place)
        except Exception:  # it never can be made: what waits behind it goes out nevertheless
            log.exception("mq: %s of %s can't be sent", settlement.act, self._place[0])
            self._lose(settlement)
            return
        timeout = None if end is None else max(SHORTEST_SECONDS, end - time.monotonic())
        try:
            self._connection.call(f"mq.MQService/{settlement.act}", request, timeout=timeout)
        except LeaseLost:
            new, old = settlement.of_start(self._connection.start_id)
            self._lose(old)  # a broker that was started again knows none of these: asking for each would take long
            if old.receipts or len(new.receipts) > 1:
                for each in [new] if old.receipts else new.halves():
                    if each.receipts:
                        self._settle(each, end)
            elif new.names_a_part:
                for each in self._book.extensions(new.deliveries):  # refused where the whole lease is gone
                    self._settle(each, end)
            else:
                self._lose(new)
        except MqError as error:
            if error.retryable:
                raise
            if not isinstance(error, GroupNotFound):
                log.error("mq: %s of %s was refused: %s", settlement.act, self._place[0], error)
            self._lose(settlement)

    def _lose(self, settlement: Settlement) -> None:
        with self._lock:
            for delivery in settlement.deliveries:
                if not delivery.is_lost:
                    self.lost += delivery.count
                    log.warning(
                        "mq: the lease of %d messages of %s from offset %d is gone; they are delivered again",
                        delivery.count,
                        delivery.channel,
                        delivery.base,
                    )
                self._book.lose(delivery)


def tell(error: Exception) -> None:
    """Why acks wait, in the log. Where it is no state of affairs but a mistake, with its traceback."""
    log.warning("mq: acks wait: %s", error, exc_info=None if isinstance(error, MqError) else error)
