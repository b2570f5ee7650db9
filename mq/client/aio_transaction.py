"""A transaction for asyncio: publishes to several channels and acks, all or nothing, in one request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any

from mq.client.aio_consumer import Messages, parts_of
from mq.client.aio_keeper import AsyncKeeper
from mq.client.codec import HeaderValue
from mq.client.message import Part, Published
from mq.client.transaction import TRANSACT, Draft, Numberings, ack_requests
from mq.client.value import Codec
from mq.errors import InvalidArgument


class AsyncTransaction:
    """Made by `AsyncClient.transaction`. Leaving the block commits; an exception leaves everything as it was.

    >>> async def main():
    ...     async with mq.AsyncClient(address) as client:
    ...         async with client.transaction() as tx:
    ...             tx.publish("orders", b"four")
    ...             tx.publish("invoices", b"for four")
    >>> asyncio.run(main())
    """

    def __init__(
        self, call: Callable[[str, bytes], Awaitable[bytes]], made_by: Codec | None, numberings: Numberings
    ) -> None:
        self._call = call
        self._numberings = numberings
        self._draft = Draft(made_by)
        self._acked: list[Part] = []
        self.published: list[Published] = []  # after the commit

    def publish(
        self,
        channel: str,
        value: Any,
        key: str | bytes | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        partition: int | None = None,
    ) -> None:
        """Publish at the end of the transaction."""
        self._draft.publish(channel, value, key, headers, partition)

    def ack(self, messages: Messages) -> None:
        """Ack at the end of the transaction."""
        parts = parts_of(messages)
        if any(delivery.ledger is None for delivery, _, _ in parts):
            raise InvalidArgument("a message that was read without a group can't be acked")
        self._acked += parts

    async def commit(self) -> list[Published]:
        """Do it all now. Raises MqError, and then nothing was done."""
        acks = ack_requests(self._acked)
        if not self._draft.first_channel and not acks:
            return []
        numbering = self._numberings.take(first := self._draft.first_channel or acks[0].channel)
        answer = await self._call(TRANSACT, self._draft.request(acks, numbering))
        self._numberings.put_back(first, numbering)
        for part in self._acked:
            assert isinstance(part[0].ledger, AsyncKeeper)
            part[0].ledger.take(part)
        self.published = self._draft.published(answer)
        return self.published

    async def __aenter__(self) -> AsyncTransaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.commit()
