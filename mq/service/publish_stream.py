"""PublishStream: many batches in flight, an answer for each in the order of the requests.

A batch that is refused is told so in its answer, and the stream goes on. No task and no future per batch: an answer
waits in its place until everything before it has one, then all of them leave together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

from mq.broker import Broker
from mq.errors import MqError
from mq.reply import Reply
from mq.service import response
from mq.service.api import Method
from mq.service.edge import Edge


class _Place:
    __slots__ = ("answer", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self.answer: bytes | None = None


class PublishStream:
    """One call of PublishStream: a door feeds requests, waits for `room`, and iterates over lists of answers."""

    def __init__(
        self, broker: Broker, method: Method, edge: Edge, as_mq_error: Callable[[Method, Exception], MqError]
    ) -> None:
        self._broker = broker
        self._method = method
        self._edge = edge
        self._as_mq_error = as_mq_error
        self._places: deque[_Place] = deque()
        self._bytes = 0
        self._is_finished = False
        self._answered = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()

    def feed(self, request: bytes) -> None:
        """Submit the next batch."""
        place = _Place(len(request))
        self._places.append(place)
        self._bytes += place.size
        if len(self._places) >= self._edge.stream_batches or self._bytes >= self._edge.stream_bytes:
            self._has_room.clear()
        try:
            self._broker.submit(self._method.decode(request, self._edge), lambda answer: self._answer(place, answer))
        except Exception as error:
            self._answer(place, self._as_mq_error(self._method, error))

    def finish(self) -> None:
        """No more requests come; iterating ends after the last answer."""
        self._is_finished = True
        self._answered.set()

    @property
    def has_room(self) -> bool:
        return self._has_room.is_set()

    async def room(self) -> None:
        """Wait until another batch may be fed."""
        await self._has_room.wait()

    async def __aiter__(self) -> AsyncIterator[list[bytes]]:
        while True:
            await self._answered.wait()
            self._answered.clear()
            if answers := self._take():
                yield answers
            if self._is_finished and not self._places:
                return

    def _take(self) -> list[bytes]:
        answers = []
        while self._places and (answer := self._places[0].answer) is not None:
            self._bytes -= self._places.popleft().size
            answers.append(answer)
        if len(self._places) < self._edge.stream_batches and self._bytes < self._edge.stream_bytes:
            self._has_room.set()
        return answers

    def _answer(self, place: _Place, answer: Reply | MqError) -> None:
        pieces = response.refused_batch(answer) if isinstance(answer, MqError) else self._method.encode(answer)
        place.answer = b"".join(pieces)
        if self._places and self._places[0].answer is not None:
            self._answered.set()
