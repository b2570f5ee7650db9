"""A transaction: publishes to several channels and acks, all or nothing, in one request. No I/O before the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from mq.client import codec
from mq.client.batch import Batch, parts_of
from mq.client.codec import HeaderValue
from mq.client.keeper import Keeper
from mq.client.message import Message, Part, Published, published
from mq.client.options import PublishOptions
from mq.client.sequence import Sequence as Numbering
from mq.client.value import Codec, message_of
from mq.errors import InvalidArgument
from mq.pb import mq_pb2 as pb

TRANSACT = "mq.MQService/Transact"
_PUBLISHES, _ACKS = b"\x0a", b"\x12"  # TransactRequest.publishes = 1, acks = 2


class Draft:
    """What a transaction is to do, as one request."""

    def __init__(self, made_by: Codec | None) -> None:
        self._codec = made_by
        self._publishes: dict[tuple[str, int | None], list[bytes]] = {}

    @property
    def first_channel(self) -> str:
        """Empty: there is no publish."""
        return next(iter(self._publishes), ("", None))[0]

    def publish(
        self,
        channel: str,
        value: Any,
        key: str | bytes | None,
        headers: Mapping[str, HeaderValue] | None,
        partition: int | None,
    ) -> None:
        message = message_of(value, key, headers, self._codec)
        self._publishes.setdefault((channel, partition), []).append(message)

    def request(self, acks: Sequence[pb.AckRequest], numbering: Numbering) -> bytes:
        """A TransactRequest. Its number makes a retry harmless."""
        pieces: list[bytes] = []
        for (channel, partition), messages in self._publishes.items():
            head = PublishOptions(partition=partition).request(channel)
            inner = codec.publish_request(head, messages)
            pieces += (_PUBLISHES, codec.varint(len(inner)), inner)
        for ack in acks:
            inner = ack.SerializeToString()
            pieces += (_ACKS, codec.varint(len(inner)), inner)
        name = pb.TransactRequest(producer_id=numbering.producer_id, sequence=numbering.next)
        pieces.append(name.SerializeToString())
        return b"".join(pieces)

    def published(self, answer: bytes) -> list[Published]:
        """Where each message was stored, by channel in the order of their first publish."""
        answers = pb.TransactResponse.FromString(answer).publishes
        found: list[Published] = []
        for ((channel, _), messages), each in zip(self._publishes.items(), answers, strict=False):
            found += published(channel, each, len(messages))
        return found


class Numberings:
    """Numbers for transactions, by the channel that remembers them: one that is in use is nobody else's."""

    def __init__(self) -> None:
        self._free: dict[str, list[Numbering]] = {}

    def take(self, channel: str) -> Numbering:
        try:
            return self._free[channel].pop()
        except (KeyError, IndexError):
            return Numbering()

    def put_back(self, channel: str, numbering: Numbering) -> None:
        """After an answer. After an error it is not used again: nobody knows what became of its number."""
        numbering.next += 1
        self._free.setdefault(channel, []).append(numbering)


class Transaction:
    """Made by `Client.transaction`. Leaving the block commits; an exception leaves everything as it was.

    >>> with client.transaction() as tx:
    ...     tx.publish("orders", b"four")
    ...     tx.publish("invoices", b"for four")
    >>> client.describe_channel("invoices").messages
    1
    """

    def __init__(self, call: Callable[[str, bytes], bytes], made_by: Codec | None, numberings: Numberings) -> None:
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

    def ack(self, messages: Message | Sequence[Message] | Batch) -> None:
        """Ack at the end of the transaction."""
        parts = parts_of(messages)
        if any(delivery.ledger is None for delivery, _, _ in parts):
            raise InvalidArgument("a message that was read without a group can't be acked")
        self._acked += parts

    def commit(self) -> list[Published]:
        """Do it all now. Raises MqError, and then nothing was done."""
        acks = ack_requests(self._acked)
        if not self._draft.first_channel and not acks:
            return []
        numbering = self._numberings.take(first := self._draft.first_channel or acks[0].channel)
        answer = self._call(TRANSACT, self._draft.request(acks, numbering))
        self._numberings.put_back(first, numbering)
        for delivery, start, end in self._acked:
            assert isinstance(delivery.ledger, Keeper)
            delivery.ledger.take([(delivery, start, end)])
        self.published = self._draft.published(answer)
        return self.published

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()


def ack_requests(parts: Sequence[Part]) -> list[pb.AckRequest]:
    """One request for each consumer whose messages are acked."""
    requests: dict[tuple[str, str, str], pb.AckRequest] = {}
    for delivery, start, end in parts:
        ledger = delivery.ledger
        member = getattr(ledger, "member", "")
        key = (delivery.channel, delivery.group, member)
        if key not in requests:
            requests[key] = pb.AckRequest(channel=delivery.channel, group=delivery.group, member=member)
        receipt = requests[key].receipts.add(receipt=delivery.receipt)
        receipt.ranges.add(start=delivery.offset(start), end=delivery.offset(end - 1) + 1)
    return list(requests.values())
