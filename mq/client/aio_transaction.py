"""A transaction for asyncio: publishes to several channels and acks, all or nothing, in one request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any

from mq.client.aio_consumer import Messages, parts_of
from mq.client.aio_keeper import AsyncKeeper
from mq.client.codec import HeaderValue
from mq.client.message import Published
from mq.client.transaction import TRANSACT, Draft, Numberings
from mq.client.value import Codec
from mq.errors import MqError


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
        self._draft = Draft(made_by, numberings)
        self.published: list[Published] = []  # by the last commit

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
        self._draft.ack(parts_of(messages))

    async def commit(self) -> list[Published]:
        """Do it all now; what is told after it is the next transaction. Raises MqError: then nothing was done.

        After Unavailable or TimedOut nobody knows: to commit once more tells, and does it at most once.
        """
        request = self._draft.request()
        if request is None:
            return []
        try:
            answer = await self._call(TRANSACT, request)
        except MqError as error:
            self._draft.refused(error)
            raise
        for part in self._draft.acked:
            assert isinstance(part[0].ledger, AsyncKeeper)
            part[0].ledger.take(part)
        self.published = self._draft.done(answer)
        return self.published

    async def __aenter__(self) -> AsyncTransaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.commit()
