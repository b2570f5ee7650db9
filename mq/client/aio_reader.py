"""Reading a channel without a group, for asyncio."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from types import TracebackType

from mq.client.aio_connection import AsyncConnection
from mq.client.message import View
from mq.client.pulling import LONGEST_WAIT_SECONDS, PULL, Cursor, Pulled
from mq.client.reader import Read
from mq.errors import MqError


class AsyncReader:
    """Made by `AsyncClient.read`: `async for` over messages, or over `batches()`.

    >>> async def main():
    ...     async with mq.AsyncClient(address) as client:
    ...         async for message in client.read("orders", follow=False):
    ...             print(message.offset, message.text())
    >>> asyncio.run(main())
    0 one
    1 two
    2 three
    """

    def __init__(
        self,
        connection: AsyncConnection,
        cursor: Cursor,
        *,
        follow: bool,
        batch_size: int,
        max_bytes: int,
        interval: float,
    ) -> None:
        self._connection = connection
        self._cursor = cursor
        self._follow = follow
        self._batch_size = batch_size
        self._max_bytes = max_bytes
        self._interval = interval
        self._is_stopping = False

    async def __aiter__(self) -> AsyncIterator[View]:
        async with aclosing(self.batches()) as batches:
            async for batch in batches:
                for message in batch:
                    if self._is_stopping:
                        return
                    yield message

    async def batches(self) -> AsyncGenerator[Read, None]:
        """Whole answers; the fast way."""
        is_looked_up = bool(self._cursor.positions)
        try:
            while not self._is_stopping and (pulled := await self._pull()) is not None:
                if pulled.deliveries:
                    yield Read([delivery.whole() for delivery in pulled.deliveries])
                elif is_looked_up and not self._follow:
                    return
                is_looked_up = True
                if self._interval and await self._connection.pause(self._interval):
                    return
        finally:  # nothing stays open for an iteration that may never come; if it comes, it connects again
            own, self._connection = self._connection, self._connection.another()
            await own.close()

    @property
    def positions(self) -> dict[int, int]:
        """The next offset of each partition: where the next answer begins."""
        return dict(self._cursor.positions)

    async def close(self) -> None:
        """End the iteration, also one that waits. Idempotent."""
        self._is_stopping = True
        await self._connection.close()

    async def __aenter__(self) -> AsyncReader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _pull(self) -> Pulled | None:
        """None: stopped meanwhile."""
        wait = LONGEST_WAIT_SECONDS if self._follow else 0.0
        request = self._cursor.request(self._batch_size, wait, self._max_bytes)
        timeout = float("inf") if self._follow else None
        try:
            return self._cursor.advance(await self._connection.call(PULL, request, wait=wait, timeout=timeout))
        except MqError:
            if self._is_stopping:
                return None
            raise
