"""Messages that came together, as a sequence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from mq.client.message import Message, Part, View
from mq.errors import InvalidArgument

if TYPE_CHECKING:
    from mq.client.settling import Ledger

V = TypeVar("V", bound=View)


class Views(Sequence[V], Generic[V]):
    """Messages made when they are asked for; `contents` is the fast way to all bodies."""

    __slots__ = ("_parts", "_size")
    view: type[View] = View

    def __init__(self, parts: list[Part]) -> None:
        self._parts = parts
        self._size = 0
        for _, start, end in parts:
            self._size += end - start

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[V]:
        view: Any = self.view
        for delivery, start, end in self._parts:
            for index in range(start, end):
                yield view(delivery, index)

    @overload
    def __getitem__(self, index: int) -> V: ...

    @overload
    def __getitem__(self, index: slice) -> list[V]: ...

    def __getitem__(self, index: int | slice) -> V | list[V]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(self._size))]
        place = index + self._size if index < 0 else index
        view: Any = self.view
        for delivery, start, end in self._parts:
            if 0 <= place < end - start:
                made: V = view(delivery, start + place)
                return made
            place -= end - start
        raise IndexError(f"there are {self._size} messages, and none has index {index}")

    def contents(self) -> list[bytes]:
        """The bodies of all messages."""
        found: list[bytes] = []
        for delivery, start, end in self._parts:
            contents = delivery.contents()
            found += contents if end - start == len(contents) else contents[start:end]
        return found

    def values(self) -> list[Any]:
        """The bodies, or what the codec makes of them."""
        made_by = self._parts[0][0].codec if self._parts else None
        contents = self.contents()
        return contents if made_by is None else [made_by.decode(content) for content in contents]

    def parts(self) -> list[Part]:
        """The deliveries behind it."""
        return self._parts

    def _ledger(self) -> Ledger | None:
        if not self._parts:
            return None
        ledger = self._parts[0][0].ledger
        if ledger is None:
            raise InvalidArgument("these messages were read without a group: there is nothing to ack")
        return ledger

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._size} messages>"


class Batch(Views[Message]):
    """Messages with one ack for all.

    >>> with client.consumer("orders", "billing") as consumer:
    ...     batch = consumer.fetch(10, timeout=5)
    ...     batch.ack()
    >>> len(batch), batch[0].text(), batch.contents()[-1]
    (3, 'one', b'three')
    """

    __slots__ = ()
    view = Message

    def ack(self) -> None:
        """All of them are done."""
        if ledger := self._ledger():
            ledger.ack(self._parts)

    def nack(self, delay_ms: int | None = None) -> None:
        """Deliver all of them again, after a delay or the group's backoff."""
        if ledger := self._ledger():
            ledger.nack(self._parts, delay_ms)

    def reject(self, reason: str = "") -> None:
        """All of them go to the dead-letter channel."""
        if ledger := self._ledger():
            ledger.reject(self._parts, reason)


def parts_of(messages: Message | Sequence[Message] | Batch) -> list[Part]:
    """The deliveries behind what a user names in one way or another."""
    if isinstance(messages, Message):
        return [messages.part()]
    if isinstance(messages, Batch):
        return messages.parts()
    return [message.part() for message in messages]
