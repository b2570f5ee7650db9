"""Messages of an asyncio consumer: the same views, with await."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from mq.client.batch import Views
from mq.client.message import View


class AsyncMessage(View):
    """One message, and what can be done about it."""

    __slots__ = ()

    async def ack(self) -> None:
        """Done: once the broker has that, it is never delivered again. Sent with the next few, so it is cheap."""
        self._ledger().ack_one(self._delivery, self._index)

    async def nack(self, delay_ms: int | None = None) -> None:
        """Deliver it again, after a delay or the group's backoff."""
        self._ledger().nack([self.part()], delay_ms)

    async def reject(self, reason: str = "") -> None:
        """Never deliver it again: it goes to the dead-letter channel."""
        self._ledger().reject([self.part()], reason)

    async def extend(self) -> None:
        """Keep it longer. A consumer does this by itself; here it is asked for."""
        self._ledger().extend(self._delivery)

    def process(self) -> AbstractAsyncContextManager[AsyncMessage]:
        """A block that acks at its end, and nacks where it raises."""
        return AsyncProcessing(self)


class AsyncProcessing(AbstractAsyncContextManager[AsyncMessage]):
    """Acks a message, or hands it back, by how its block ends."""

    def __init__(self, message: AsyncMessage) -> None:
        self._message = message

    async def __aenter__(self) -> AsyncMessage:
        return self._message

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            await self._message.ack()
        else:
            await self._message.nack()


class AsyncBatch(Views[AsyncMessage]):
    """Messages with one ack for all."""

    __slots__ = ()
    view = AsyncMessage

    async def ack(self) -> None:
        """All of them are done."""
        if ledger := self._ledger():
            ledger.ack(self._parts)

    async def nack(self, delay_ms: int | None = None) -> None:
        """Deliver all of them again, after a delay or the group's backoff."""
        if ledger := self._ledger():
            ledger.nack(self._parts, delay_ms)

    async def reject(self, reason: str = "") -> None:
        """All of them go to the dead-letter channel."""
        if ledger := self._ledger():
            ledger.reject(self._parts, reason)
