from mq.pb import mq_pb2 as _mq_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PublishRequest(_message.Message):
    __slots__ = ("channel", "content", "key", "headers", "partition", "producer_id", "sequence", "deliver_at_us", "delay_ms", "ttl_ms", "durability")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_US_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    channel: str
    content: bytes
    key: bytes
    headers: _containers.RepeatedScalarFieldContainer[bytes]
    partition: int
    producer_id: str
    sequence: int
    deliver_at_us: int
    delay_ms: int
    ttl_ms: int
    durability: _mq_pb2.Durability
    def __init__(self, channel: _Optional[str] = ..., content: _Optional[bytes] = ..., key: _Optional[bytes] = ..., headers: _Optional[_Iterable[bytes]] = ..., partition: _Optional[int] = ..., producer_id: _Optional[str] = ..., sequence: _Optional[int] = ..., deliver_at_us: _Optional[int] = ..., delay_ms: _Optional[int] = ..., ttl_ms: _Optional[int] = ..., durability: _Optional[_Union[_mq_pb2.Durability, str]] = ...) -> None: ...

class PublishBatchRequest(_message.Message):
    __slots__ = ("channel", "partition", "producer_id", "sequence", "deliver_at_us", "delay_ms", "ttl_ms", "durability", "batch")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_US_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    channel: str
    partition: int
    producer_id: str
    sequence: int
    deliver_at_us: int
    delay_ms: int
    ttl_ms: int
    durability: _mq_pb2.Durability
    batch: bytes
    def __init__(self, channel: _Optional[str] = ..., partition: _Optional[int] = ..., producer_id: _Optional[str] = ..., sequence: _Optional[int] = ..., deliver_at_us: _Optional[int] = ..., delay_ms: _Optional[int] = ..., ttl_ms: _Optional[int] = ..., durability: _Optional[_Union[_mq_pb2.Durability, str]] = ..., batch: _Optional[bytes] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, messages: _Optional[_Iterable[bytes]] = ...) -> None: ...

class MergedBatch(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: BatchMessage
    def __init__(self, messages: _Optional[_Union[BatchMessage, _Mapping]] = ...) -> None: ...

class BatchMessage(_message.Message):
    __slots__ = ("content", "key", "headers")
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    key: bytes
    headers: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, content: _Optional[bytes] = ..., key: _Optional[bytes] = ..., headers: _Optional[_Iterable[bytes]] = ...) -> None: ...

class TransactRequest(_message.Message):
    __slots__ = ("publishes", "acks", "commits", "producer_id", "sequence")
    PUBLISHES_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    publishes: _containers.RepeatedScalarFieldContainer[bytes]
    acks: _containers.RepeatedScalarFieldContainer[bytes]
    commits: _containers.RepeatedScalarFieldContainer[bytes]
    producer_id: str
    sequence: int
    def __init__(self, publishes: _Optional[_Iterable[bytes]] = ..., acks: _Optional[_Iterable[bytes]] = ..., commits: _Optional[_Iterable[bytes]] = ..., producer_id: _Optional[str] = ..., sequence: _Optional[int] = ...) -> None: ...

class PullResponse(_message.Message):
    __slots__ = ("batches", "next_offset", "next", "generation", "assigned", "channel_id", "group_id")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedScalarFieldContainer[bytes]
    next_offset: int
    next: _containers.RepeatedCompositeFieldContainer[_mq_pb2.Position]
    generation: int
    assigned: _containers.RepeatedScalarFieldContainer[int]
    channel_id: int
    group_id: int
    def __init__(self, batches: _Optional[_Iterable[bytes]] = ..., next_offset: _Optional[int] = ..., next: _Optional[_Iterable[_Union[_mq_pb2.Position, _Mapping]]] = ..., generation: _Optional[int] = ..., assigned: _Optional[_Iterable[int]] = ..., channel_id: _Optional[int] = ..., group_id: _Optional[int] = ...) -> None: ...

class PulledBatch(_message.Message):
    __slots__ = ("partition", "base_offset", "count", "timestamp_us", "offset_deltas", "receipt", "delivery_count", "lease_until_us", "batch")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    OFFSET_DELTAS_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_COUNT_FIELD_NUMBER: _ClassVar[int]
    LEASE_UNTIL_US_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    partition: int
    base_offset: int
    count: int
    timestamp_us: int
    offset_deltas: _containers.RepeatedScalarFieldContainer[int]
    receipt: bytes
    delivery_count: int
    lease_until_us: int
    batch: bytes
    def __init__(self, partition: _Optional[int] = ..., base_offset: _Optional[int] = ..., count: _Optional[int] = ..., timestamp_us: _Optional[int] = ..., offset_deltas: _Optional[_Iterable[int]] = ..., receipt: _Optional[bytes] = ..., delivery_count: _Optional[int] = ..., lease_until_us: _Optional[int] = ..., batch: _Optional[bytes] = ...) -> None: ...
