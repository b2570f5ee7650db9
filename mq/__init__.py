"""mq: a durable, pull-based message broker.

    with mq.Client("mq://localhost") as client:
        client.create_channel("orders", exist_ok=True)
        client.publish("orders", b"hello")

What stands in `__all__` is the public surface. It is loaded when it is used: `import mq` alone costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mq.errors import (
    BackupNotFound,
    BackupRefused,
    ChannelExists,
    ChannelNotFound,
    DataLoss,
    GroupExists,
    GroupInUse,
    GroupNotFound,
    InvalidArgument,
    LeaseLost,
    MessageTooLarge,
    MqError,
    OffsetOutOfRange,
    PermissionDenied,
    ProposalNotFound,
    ProposalRefused,
    ResourceExhausted,
    ScheduleNotFound,
    SequenceRefused,
    Unauthenticated,
    Unavailable,
)

if TYPE_CHECKING:
    from mq.client.aio_client import AsyncClient
    from mq.client.aio_consumer import AsyncConsumer
    from mq.client.aio_message import AsyncBatch, AsyncMessage
    from mq.client.aio_producer import AsyncProducer, AsyncSent
    from mq.client.aio_reader import AsyncReader
    from mq.client.aio_transaction import AsyncTransaction
    from mq.client.batch import Batch
    from mq.client.client import Client
    from mq.client.consumer import Consumer
    from mq.client.message import Message, Published, View
    from mq.client.outbox import Sent
    from mq.client.position import at_offset, at_time, last
    from mq.client.producer import Producer
    from mq.client.reader import Reader
    from mq.client.transaction import Transaction
    from mq.client.transport import TimedOut
    from mq.client.value import Codec, JsonCodec, MessagePackCodec, ProtobufCodec

# The one place that states the version; the package metadata and `mq --version` read it from here.
__version__ = "0.1.0"

__all__ = [
    "AsyncBatch",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncMessage",
    "AsyncProducer",
    "AsyncReader",
    "AsyncSent",
    "AsyncTransaction",
    "BackupNotFound",
    "BackupRefused",
    "Batch",
    "ChannelExists",
    "ChannelNotFound",
    "Client",
    "Codec",
    "Consumer",
    "DataLoss",
    "GroupExists",
    "GroupInUse",
    "GroupNotFound",
    "InvalidArgument",
    "JsonCodec",
    "LeaseLost",
    "Message",
    "MessagePackCodec",
    "MessageTooLarge",
    "MqError",
    "OffsetOutOfRange",
    "PermissionDenied",
    "Producer",
    "ProposalNotFound",
    "ProposalRefused",
    "ProtobufCodec",
    "Published",
    "Reader",
    "ResourceExhausted",
    "ScheduleNotFound",
    "Sent",
    "SequenceRefused",
    "TimedOut",
    "Transaction",
    "Unauthenticated",
    "Unavailable",
    "View",
    "at_offset",
    "at_time",
    "last",
]

# name -> the module that has it
_LAZY = {
    "AsyncBatch": "mq.client.aio_message",
    "AsyncClient": "mq.client.aio_client",
    "AsyncConsumer": "mq.client.aio_consumer",
    "AsyncMessage": "mq.client.aio_message",
    "AsyncProducer": "mq.client.aio_producer",
    "AsyncReader": "mq.client.aio_reader",
    "AsyncSent": "mq.client.aio_producer",
    "AsyncTransaction": "mq.client.aio_transaction",
    "Batch": "mq.client.batch",
    "Client": "mq.client.client",
    "Codec": "mq.client.value",
    "Consumer": "mq.client.consumer",
    "JsonCodec": "mq.client.value",
    "Message": "mq.client.message",
    "MessagePackCodec": "mq.client.value",
    "Producer": "mq.client.producer",
    "ProtobufCodec": "mq.client.value",
    "Published": "mq.client.message",
    "Reader": "mq.client.reader",
    "Sent": "mq.client.outbox",
    "TimedOut": "mq.client.transport",
    "Transaction": "mq.client.transaction",
    "View": "mq.client.message",
    "at_offset": "mq.client.position",
    "at_time": "mq.client.position",
    "last": "mq.client.position",
}


def __getattr__(name: str) -> Any:
    if name == "testing":  # `mq.testing.broker()` after a plain `import mq`
        return import_module("mq.testing")
    if name not in _LAZY:
        raise AttributeError(f"module 'mq' has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
