"""Requests that nobody should send: valid ones of every method, then fields, bytes or all of it made hostile."""

from __future__ import annotations

from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from mq.pb import mq_pb2 as pb

CHANNELS = [f"fuzz-{number}" for number in range(6)]
NUMBERS = [0, 1, 2, 7, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
TEXTS = ["", "x", "../../etc/passwd", "fuzz-0.dlq", "\0", "a b", "é" * 64, "x" * 129, "\n\x1b[31m", "%s{0}", "-"]
USUAL = {"channel", "group", "member", "batch", "messages", "content", "receipts", "receipt", "publishes", "proposal"}

METHODS: dict[str, type[Message]] = {
    f"{service.full_name}/{method.name}": GetMessageClass(method.input_type)
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


class Hostile:
    """Makes requests. It learns receipts from the answers it is shown, so that some are about real leases."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self._names = list(METHODS)
        self._receipts: list[bytes] = []

    def request(self) -> tuple[str, bytes]:
        """A method, and a payload for it."""
        rng = self.rng
        method = rng.choice(self._names)
        if method.endswith(("RotateSegment", "DeleteChannel", "PurgeChannel")) and rng.random() < 0.9:
            method = rng.choice(("mq.MQService/PublishBatch", "mq.MQService/Pull", "mq.MQService/CreateChannel"))
        if rng.random() < 0.05:
            return method, rng.randbytes(rng.choice((0, 1, 10, 300)))
        message = self._valid(METHODS[method]())
        kind = rng.random()
        if kind < 0.2:
            return method, message.SerializeToString()
        if kind < 0.6:
            for _ in range(rng.randint(1, 3)):
                self._spoil(message)
            return method, message.SerializeToString()
        return method, self._mutated(message.SerializeToString())

    def learn(self, answer: bytes) -> None:
        """From the answer to a pull."""
        for batch in pb.PullResponse.FromString(answer).batches:
            self._receipts.append(batch.receipt)
        del self._receipts[:-50]

    # ------------------------------------------------------------ fields

    def _valid(self, message: Message) -> Message:
        for field in message.DESCRIPTOR.fields:
            if field.name not in USUAL and self.rng.random() < 0.8:
                continue
            self._fill(message, field)
        return message

    def _fill(self, message: Any, field: FieldDescriptor) -> None:
        rng = self.rng
        if field.message_type is not None:
            part = getattr(message, field.name)
            for _ in range(rng.randint(1, 3)):
                if field.is_repeated:
                    self._valid(part.add())
                elif rng.random() < 0.7:
                    part.SetInParent()
                    self._valid(part)
        elif field.is_repeated:
            if field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
                getattr(message, field.name).extend([rng.randint(0, 3)])
        elif field.type == FieldDescriptor.TYPE_STRING:
            setattr(message, field.name, self._name(field.name))
        elif field.type == FieldDescriptor.TYPE_BYTES:
            is_receipt = field.name == "receipt" and self._receipts
            value = rng.choice(self._receipts) if is_receipt else rng.randbytes(rng.randint(0, 40))
            setattr(message, field.name, value)
        elif field.type == FieldDescriptor.TYPE_BOOL:
            setattr(message, field.name, rng.random() < 0.3)
        else:
            setattr(message, field.name, rng.randint(0, 1) if field.name != "max_wait_ms" else rng.randint(0, 20))

    def _name(self, field: str) -> str:
        rng = self.rng
        match field:
            case "channel" | "to" | "prefix":
                return rng.choice(CHANNELS)
            case "group":
                return f"group-{rng.randint(0, 3)}"
            case "member":
                return f"member-{rng.randint(0, 3)}"
            case "producer_id":
                return rng.choice(("", "", "producer"))
            case "proposal":
                return "0123456789abcdef"
        return rng.choice(TEXTS)

    def _spoil(self, message: Any) -> None:
        """One field of it, or of a message in it, gets a value that nobody expects."""
        rng = self.rng
        field = rng.choice(message.DESCRIPTOR.fields or [None])
        if field is None:
            return
        if field.message_type is not None:
            part = getattr(message, field.name)
            self._spoil(part.add() if field.is_repeated else part)
        elif field.is_repeated:
            if field.type not in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES):
                self._set(getattr(message, field.name).append, rng.choice(NUMBERS))
        elif field.type == FieldDescriptor.TYPE_STRING:
            setattr(message, field.name, rng.choice(TEXTS))
        elif field.type == FieldDescriptor.TYPE_BYTES:
            setattr(message, field.name, rng.randbytes(rng.choice((0, 1, 100, 70_000))))
        else:
            value = rng.choice((1, -1)) * rng.choice(NUMBERS)
            self._set(lambda number: setattr(message, field.name, number), value)

    def _set(self, act: Any, value: int) -> None:
        """Numbers that a field can't hold are cut to what it can."""
        for number in (value, abs(value), abs(value) & 0x7FFF_FFFF):
            try:
                act(number)
            except (ValueError, TypeError, OverflowError):
                continue
            return

    # ------------------------------------------------------------ bytes

    def _mutated(self, data: bytes) -> bytes:
        rng, changed = self.rng, bytearray(data)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(changed) + 1)
            match rng.randrange(4):
                case 0 if at < len(changed):
                    changed[at] = rng.randrange(256)
                case 1:
                    del changed[at:]
                case 2:
                    changed[at:at] = rng.randbytes(rng.randint(1, 10))
                case _:
                    changed[at:at] = changed[max(0, at - 20) : at] * rng.randint(1, 50)
        return bytes(changed)


def may_wait(method: str, data: bytes) -> bool:
    """Whether a broker may take its time with an answer: a long poll, or a stream without an end."""
    if method == "mq.MQService/Subscribe":
        return True
    if method != "mq.MQService/Pull":
        return False
    try:
        return pb.PullRequest.FromString(data).max_wait_ms > 0
    except DecodeError:
        return False
