"""The task behind an asyncio consumer: sends acks, gathered; keeps leases while a message is worked on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from mq.client.aio_connection import AsyncConnection
from mq.client.keeper import ACK_SECONDS, GIVEN_BACK, tell
from mq.client.message import Delivery, Part
from mq.client.settling import NACK, REJECT, Book, Settlement
from mq.errors import GroupNotFound, LeaseLost, MqError

log = logging.getLogger("mq")


class AsyncKeeper:
    """Implements `Ledger`: acts are noted at once, and sent by a task."""

    def __init__(
        self, connection: AsyncConnection, channel: str, group: str, member: str, extend_seconds: float
    ) -> None:
        self.lost = 0  # messages whose lease was gone when they were acked
        self._connection = connection
        self.member = member
        self._place = (channel, group, member)
        self._extend_seconds = extend_seconds
        self._book = Book()
        self._unsent: list[Settlement] = []
        self._wake = asyncio.Event()
        self._extend_at = float("inf")
        self._sending = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False

    # ------------------------------------------------------------ Ledger

    def ack_one(self, delivery: Delivery, index: int) -> None:
        self._book.ack_one(delivery, index)
        if self._book.is_urgent:
            self._wake.set()

    def ack(self, parts: Sequence[Part]) -> None:
        for part in parts:
            self._book.ack(*part)
        if self._book.is_urgent:
            self._wake.set()

    def nack(self, parts: Sequence[Part], delay_ms: int | None) -> None:
        self._book.hand_back(NACK, parts, delay_ms)
        self._wake.set()

    def reject(self, parts: Sequence[Part], reason: str) -> None:
        self._book.hand_back(REJECT, parts, reason=reason)
        self._wake.set()

    def extend(self, delivery: Delivery) -> None:
        self._unsent += self._book.extensions([delivery])
        self._wake.set()

    # ------------------------------------------------------------ a consumer's side

    def hold(self, deliveries: Sequence[Delivery], start_id: str) -> None:
        """These came; they are kept until they are settled."""
        for delivery in deliveries:
            delivery.ledger = self
            delivery.start_id = start_id
            self._book.hold(delivery)
        if self._task is None and not self._is_closing:
            self._task = asyncio.create_task(self._run())

    @property
    def held(self) -> int:
        """Messages that are kept."""
        return self._book.held_messages

    def take(self, part: Part) -> None:
        """Settle this by other means: a transaction acks it itself."""
        self._book.take(*part)

    def lose_all(self) -> None:
        """All that is held goes back, also what waits to be handed out: it comes again, in its order."""
        count = self._book.lose_all()
        self.lost += count
        if count:
            log.warning(GIVEN_BACK, self._place[0], count)

    async def flush(self) -> None:
        """Send what waits, and wait for the answer. Raises the error of what could not be sent."""
        async with self._sending:
            self._unsent += self._book.take_all()
            while self._unsent:
                await self._settle(self._unsent[0])
                self._unsent.pop(0)
                await self._extend_all()  # many refused acks must not cost the leases of what came since

    async def close(self) -> None:
        """Send what waits, and stop. Idempotent."""
        self._is_closing = True
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self.flush()

    # ------------------------------------------------------------ the task

    async def _run(self) -> None:
        self._extend_at = asyncio.get_running_loop().time() + self._extend_seconds
        while True:
            try:
                async with asyncio.timeout(ACK_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            is_failing = False
            for step in (self.flush, self._extend_all):  # also where acks fail again and again, leases are kept
                try:
                    await step()
                except Exception as error:  # whatever it is: without this task all leases run out
                    tell(error)
                    is_failing = True
            if is_failing and await self._connection.pause(0.2):
                return

    async def _extend_all(self) -> None:
        """Where it is time."""
        now = asyncio.get_running_loop().time()
        if now >= self._extend_at:
            self._extend_at = now + self._extend_seconds
            for each in self._book.extensions():
                await self._settle(each)

    async def _settle(self, settlement: Settlement) -> None:
        try:
            request = settlement.request(*self._place)
        except Exception:  # it never can be made: what waits behind it goes out nevertheless
            log.exception("mq: %s of %s can't be sent", settlement.act, self._place[0])
            self._lose(settlement)
            return
        try:
            await self._connection.call(f"mq.MQService/{settlement.act}", request)
        except LeaseLost:
            new, old = settlement.of_start(self._connection.start_id)
            self._lose(old)  # a broker that was started again knows none of these: asking for each would take long
            if old.receipts or len(new.receipts) > 1:
                for each in [new] if old.receipts else new.halves():
                    if each.receipts:
                        await self._settle(each)
            elif new.names_a_part:
                for each in self._book.extensions(new.deliveries):  # refused where the whole lease is gone
                    await self._settle(each)
            else:
                self._lose(new)
        except MqError as error:
            if error.retryable:
                raise
            if not isinstance(error, GroupNotFound):
                log.error("mq: %s of %s was refused: %s", settlement.act, self._place[0], error)
            self._lose(settlement)

    def _lose(self, settlement: Settlement) -> None:
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
