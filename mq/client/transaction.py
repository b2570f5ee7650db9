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
from mq.errors import InvalidArgument, MqError
from mq.pb import mq_pb2 as pb

TRANSACT = "mq.MQService/Transact"
_PUBLISHES, _ACKS = b"\x0a", b"\x12"  # TransactRequest.publishes = 1, acks = 2


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


class Draft:
    """What a transaction is to do, as one request. After a commit it is empty, and begins anew."""

    def __init__(self, made_by: Codec | None, numberings: Numberings) -> None:
        self._codec = made_by
        self._numberings = numberings
        self._sent: tuple[bytes, str, Numbering] | None = None  # a request whose outcome is not known, and its number
        self._begin()

    def _begin(self) -> None:
        self._publishes: dict[tuple[str, int | None], list[bytes]] = {}
        self.acked: list[Part] = []
        self._sent = None

    def publish(
        self,
        channel: str,
        value: Any,
        key: str | bytes | None,
        headers: Mapping[str, HeaderValue] | None,
        partition: int | None,
    ) -> None:
        self._check_open()
        message = message_of(value, key, headers, self._codec)
        self._publishes.setdefault((channel, partition), []).append(message)

    def ack(self, parts: Sequence[Part]) -> None:
        self._check_open()
        if any(delivery.ledger is None for delivery, _, _ in parts):
            raise InvalidArgument("a message that was read without a group can't be acked")
        self.acked += parts

    def _check_open(self) -> None:
        if self._sent is not None:
            raise InvalidArgument("the outcome of the commit is not known: commit again, or make a new transaction")

    def request(self) -> bytes | None:
        """A TransactRequest; None: there is nothing to do. Its number makes it harmless to send it once more.

        While nobody knows what became of it, it stays the same.
        """
        if self._sent is not None:
            return self._sent[0]
        acks = ack_requests(self.acked)
        if not self._publishes and not acks:
            return None
        first = next(iter(self._publishes))[0] if self._publishes else acks[0].channel
        numbering = self._numberings.take(first)
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
        self._sent = b"".join(pieces), first, numbering
        return self._sent[0]

    def refused(self, error: MqError) -> None:
        """There was an error. If that says that nothing was done, the request is forgotten, not what it was to do."""
        if not error.leaves_open:
            self._sent = None

    def done(self, answer: bytes) -> list[Published]:
        """Where each message was stored, by channel in the order of their first publish."""
        assert self._sent is not None
        _, first, numbering = self._sent
        self._numberings.put_back(first, numbering)
        answers = pb.TransactResponse.FromString(answer).publishes
        found: list[Published] = []
        for ((channel, _), messages), each in zip(self._publishes.items(), answers, strict=False):
            found += published(channel, each, len(messages))
        self._begin()
        return found


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

    def ack(self, messages: Message | Sequence[Message] | Batch) -> None:
        """Ack at the end of the transaction."""
        self._draft.ack(parts_of(messages))

    def commit(self) -> list[Published]:
        """Do it all now; what is told after it is the next transaction. Raises MqError: then nothing was done.

        After Unavailable or TimedOut nobody knows: to commit once more tells, and does it at most once.
        """
        request = self._draft.request()
        if request is None:
            return []
        try:
            answer = self._call(TRANSACT, request)
        except MqError as error:
            self._draft.refused(error)
            raise
        for delivery, start, end in self._draft.acked:
            assert isinstance(delivery.ledger, Keeper)
            delivery.ledger.take([(delivery, start, end)])
        self.published = self._draft.done(answer)
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
