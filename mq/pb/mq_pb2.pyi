from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Durability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DURABILITY_DEFAULT: _ClassVar[Durability]
    FSYNC: _ClassVar[Durability]
    OS: _ClassVar[Durability]
    MEMORY: _ClassVar[Durability]
DURABILITY_DEFAULT: Durability
FSYNC: Durability
OS: Durability
MEMORY: Durability

class Header(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: bytes
    def __init__(self, name: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class BatchMessage(_message.Message):
    __slots__ = ("content", "key", "headers")
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    key: bytes
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    def __init__(self, content: _Optional[bytes] = ..., key: _Optional[bytes] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[BatchMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[BatchMessage, _Mapping]]] = ...) -> None: ...

class OffsetRange(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("partition", "offset")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("offset", "time_us", "earliest", "latest", "last")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    offset: int
    time_us: int
    earliest: bool
    latest: bool
    last: int
    def __init__(self, offset: _Optional[int] = ..., time_us: _Optional[int] = ..., earliest: bool = ..., latest: bool = ..., last: _Optional[int] = ...) -> None: ...

class CreateChannelRequest(_message.Message):
    __slots__ = ("channel", "partitions", "settings", "fail_if_exists")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    FAIL_IF_EXISTS_FIELD_NUMBER: _ClassVar[int]
    channel: str
    partitions: int
    settings: ChannelSettings
    fail_if_exists: bool
    def __init__(self, channel: _Optional[str] = ..., partitions: _Optional[int] = ..., settings: _Optional[_Union[ChannelSettings, _Mapping]] = ..., fail_if_exists: bool = ...) -> None: ...

class CreateChannelResponse(_message.Message):
    __slots__ = ("created",)
    CREATED_FIELD_NUMBER: _ClassVar[int]
    created: bool
    def __init__(self, created: bool = ...) -> None: ...

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
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    partition: int
    producer_id: str
    sequence: int
    deliver_at_us: int
    delay_ms: int
    ttl_ms: int
    durability: Durability
    def __init__(self, channel: _Optional[str] = ..., content: _Optional[bytes] = ..., key: _Optional[bytes] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ..., partition: _Optional[int] = ..., producer_id: _Optional[str] = ..., sequence: _Optional[int] = ..., deliver_at_us: _Optional[int] = ..., delay_ms: _Optional[int] = ..., ttl_ms: _Optional[int] = ..., durability: _Optional[_Union[Durability, str]] = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ("partition", "offset", "timestamp_us", "durable", "schedule_id", "duplicate")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_ID_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    timestamp_us: int
    durable: Durability
    schedule_id: int
    duplicate: bool
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ..., timestamp_us: _Optional[int] = ..., durable: _Optional[_Union[Durability, str]] = ..., schedule_id: _Optional[int] = ..., duplicate: bool = ...) -> None: ...

class SubscribeRequest(_message.Message):
    __slots__ = ("channel", "offset", "pull_interval", "batch_size")
    class Offset(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OFFSET_UNKNOWN: _ClassVar[SubscribeRequest.Offset]
        OFFSET_BEGINNING: _ClassVar[SubscribeRequest.Offset]
        OFFSET_LATEST: _ClassVar[SubscribeRequest.Offset]
    OFFSET_UNKNOWN: SubscribeRequest.Offset
    OFFSET_BEGINNING: SubscribeRequest.Offset
    OFFSET_LATEST: SubscribeRequest.Offset
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PULL_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    channel: str
    offset: SubscribeRequest.Offset
    pull_interval: int
    batch_size: int
    def __init__(self, channel: _Optional[str] = ..., offset: _Optional[_Union[SubscribeRequest.Offset, str]] = ..., pull_interval: _Optional[int] = ..., batch_size: _Optional[int] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("id", "content", "created_at", "partition", "offset", "key", "headers", "timestamp_us")
    ID_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    id: str
    content: bytes
    created_at: int
    partition: int
    offset: int
    key: bytes
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    timestamp_us: int
    def __init__(self, id: _Optional[str] = ..., content: _Optional[bytes] = ..., created_at: _Optional[int] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., key: _Optional[bytes] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ..., timestamp_us: _Optional[int] = ...) -> None: ...

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
    durability: Durability
    batch: Batch
    def __init__(self, channel: _Optional[str] = ..., partition: _Optional[int] = ..., producer_id: _Optional[str] = ..., sequence: _Optional[int] = ..., deliver_at_us: _Optional[int] = ..., delay_ms: _Optional[int] = ..., ttl_ms: _Optional[int] = ..., durability: _Optional[_Union[Durability, str]] = ..., batch: _Optional[_Union[Batch, _Mapping]] = ...) -> None: ...

class PublishBatchResponse(_message.Message):
    __slots__ = ("partition", "base_offset", "count", "timestamp_us", "durable", "schedule_id", "duplicate", "placements", "error", "error_reason")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_ID_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    PLACEMENTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_REASON_FIELD_NUMBER: _ClassVar[int]
    partition: int
    base_offset: int
    count: int
    timestamp_us: int
    durable: Durability
    schedule_id: int
    duplicate: bool
    placements: _containers.RepeatedCompositeFieldContainer[Placement]
    error: str
    error_reason: str
    def __init__(self, partition: _Optional[int] = ..., base_offset: _Optional[int] = ..., count: _Optional[int] = ..., timestamp_us: _Optional[int] = ..., durable: _Optional[_Union[Durability, str]] = ..., schedule_id: _Optional[int] = ..., duplicate: bool = ..., placements: _Optional[_Iterable[_Union[Placement, _Mapping]]] = ..., error: _Optional[str] = ..., error_reason: _Optional[str] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("partition", "base_offset", "indexes", "schedule_id")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_ID_FIELD_NUMBER: _ClassVar[int]
    partition: int
    base_offset: int
    indexes: _containers.RepeatedScalarFieldContainer[int]
    schedule_id: int
    def __init__(self, partition: _Optional[int] = ..., base_offset: _Optional[int] = ..., indexes: _Optional[_Iterable[int]] = ..., schedule_id: _Optional[int] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("channel", "group", "member", "max_messages", "max_bytes", "max_wait_ms", "partition", "start", "positions", "channel_id", "group_id", "turn", "afresh", "since")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    AFRESH_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    channel: str
    group: str
    member: str
    max_messages: int
    max_bytes: int
    max_wait_ms: int
    partition: int
    start: Start
    positions: _containers.RepeatedCompositeFieldContainer[Position]
    channel_id: int
    group_id: int
    turn: int
    afresh: bool
    since: int
    def __init__(self, channel: _Optional[str] = ..., group: _Optional[str] = ..., member: _Optional[str] = ..., max_messages: _Optional[int] = ..., max_bytes: _Optional[int] = ..., max_wait_ms: _Optional[int] = ..., partition: _Optional[int] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., positions: _Optional[_Iterable[_Union[Position, _Mapping]]] = ..., channel_id: _Optional[int] = ..., group_id: _Optional[int] = ..., turn: _Optional[int] = ..., afresh: bool = ..., since: _Optional[int] = ...) -> None: ...

class PullResponse(_message.Message):
    __slots__ = ("batches", "next_offset", "next", "generation", "assigned", "channel_id", "group_id")
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ASSIGNED_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[PulledBatch]
    next_offset: int
    next: _containers.RepeatedCompositeFieldContainer[Position]
    generation: int
    assigned: _containers.RepeatedScalarFieldContainer[int]
    channel_id: int
    group_id: int
    def __init__(self, batches: _Optional[_Iterable[_Union[PulledBatch, _Mapping]]] = ..., next_offset: _Optional[int] = ..., next: _Optional[_Iterable[_Union[Position, _Mapping]]] = ..., generation: _Optional[int] = ..., assigned: _Optional[_Iterable[int]] = ..., channel_id: _Optional[int] = ..., group_id: _Optional[int] = ...) -> None: ...

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
    batch: Batch
    def __init__(self, partition: _Optional[int] = ..., base_offset: _Optional[int] = ..., count: _Optional[int] = ..., timestamp_us: _Optional[int] = ..., offset_deltas: _Optional[_Iterable[int]] = ..., receipt: _Optional[bytes] = ..., delivery_count: _Optional[int] = ..., lease_until_us: _Optional[int] = ..., batch: _Optional[_Union[Batch, _Mapping]] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("receipt", "ranges")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    receipt: bytes
    ranges: _containers.RepeatedCompositeFieldContainer[OffsetRange]
    def __init__(self, receipt: _Optional[bytes] = ..., ranges: _Optional[_Iterable[_Union[OffsetRange, _Mapping]]] = ...) -> None: ...

class AckRequest(_message.Message):
    __slots__ = ("channel", "group", "member", "receipts")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    channel: str
    group: str
    member: str
    receipts: _containers.RepeatedCompositeFieldContainer[Receipt]
    def __init__(self, channel: _Optional[str] = ..., group: _Optional[str] = ..., member: _Optional[str] = ..., receipts: _Optional[_Iterable[_Union[Receipt, _Mapping]]] = ...) -> None: ...

class AckResponse(_message.Message):
    __slots__ = ("acked",)
    ACKED_FIELD_NUMBER: _ClassVar[int]
    acked: int
    def __init__(self, acked: _Optional[int] = ...) -> None: ...

class NackRequest(_message.Message):
    __slots__ = ("channel", "group", "member", "receipts", "delay_ms")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    channel: str
    group: str
    member: str
    receipts: _containers.RepeatedCompositeFieldContainer[Receipt]
    delay_ms: int
    def __init__(self, channel: _Optional[str] = ..., group: _Optional[str] = ..., member: _Optional[str] = ..., receipts: _Optional[_Iterable[_Union[Receipt, _Mapping]]] = ..., delay_ms: _Optional[int] = ...) -> None: ...

class NackResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RejectRequest(_message.Message):
    __slots__ = ("channel", "group", "member", "receipts", "reason")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    channel: str
    group: str
    member: str
    receipts: _containers.RepeatedCompositeFieldContainer[Receipt]
    reason: str
    def __init__(self, channel: _Optional[str] = ..., group: _Optional[str] = ..., member: _Optional[str] = ..., receipts: _Optional[_Iterable[_Union[Receipt, _Mapping]]] = ..., reason: _Optional[str] = ...) -> None: ...

class RejectResponse(_message.Message):
    __slots__ = ("rejected",)
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    rejected: int
    def __init__(self, rejected: _Optional[int] = ...) -> None: ...

class ExtendRequest(_message.Message):
    __slots__ = ("channel", "group", "member", "receipts", "ack_wait_ms")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    ACK_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    channel: str
    group: str
    member: str
    receipts: _containers.RepeatedCompositeFieldContainer[Receipt]
    ack_wait_ms: int
    def __init__(self, channel: _Optional[str] = ..., group: _Optional[str] = ..., member: _Optional[str] = ..., receipts: _Optional[_Iterable[_Union[Receipt, _Mapping]]] = ..., ack_wait_ms: _Optional[int] = ...) -> None: ...

class ExtendResponse(_message.Message):
    __slots__ = ("lease_until_us",)
    LEASE_UNTIL_US_FIELD_NUMBER: _ClassVar[int]
    lease_until_us: int
    def __init__(self, lease_until_us: _Optional[int] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("channel", "group", "member", "generation", "positions")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    channel: str
    group: str
    member: str
    generation: int
    positions: _containers.RepeatedCompositeFieldContainer[Position]
    def __init__(self, channel: _Optional[str] = ..., group: _Optional[str] = ..., member: _Optional[str] = ..., generation: _Optional[int] = ..., positions: _Optional[_Iterable[_Union[Position, _Mapping]]] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SeekRequest(_message.Message):
    __slots__ = ("channel", "group", "partition", "start", "shift", "force", "dry_run")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    SHIFT_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    channel: str
    group: str
    partition: int
    start: Start
    shift: int
    force: bool
    dry_run: bool
    def __init__(self, channel: _Optional[str] = ..., group: _Optional[str] = ..., partition: _Optional[int] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., shift: _Optional[int] = ..., force: bool = ..., dry_run: bool = ...) -> None: ...

class SeekResponse(_message.Message):
    __slots__ = ("positions", "before")
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    positions: _containers.RepeatedCompositeFieldContainer[Position]
    before: _containers.RepeatedCompositeFieldContainer[Position]
    def __init__(self, positions: _Optional[_Iterable[_Union[Position, _Mapping]]] = ..., before: _Optional[_Iterable[_Union[Position, _Mapping]]] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("channel", "group", "member", "turn")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    channel: str
    group: str
    member: str
    turn: int
    def __init__(self, channel: _Optional[str] = ..., group: _Optional[str] = ..., member: _Optional[str] = ..., turn: _Optional[int] = ...) -> None: ...

class LeaveResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TransactRequest(_message.Message):
    __slots__ = ("publishes", "acks", "commits", "producer_id", "sequence")
    PUBLISHES_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    publishes: _containers.RepeatedCompositeFieldContainer[PublishBatchRequest]
    acks: _containers.RepeatedCompositeFieldContainer[AckRequest]
    commits: _containers.RepeatedCompositeFieldContainer[CommitRequest]
    producer_id: str
    sequence: int
    def __init__(self, publishes: _Optional[_Iterable[_Union[PublishBatchRequest, _Mapping]]] = ..., acks: _Optional[_Iterable[_Union[AckRequest, _Mapping]]] = ..., commits: _Optional[_Iterable[_Union[CommitRequest, _Mapping]]] = ..., producer_id: _Optional[str] = ..., sequence: _Optional[int] = ...) -> None: ...

class TransactResponse(_message.Message):
    __slots__ = ("publishes", "duplicate")
    PUBLISHES_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    publishes: _containers.RepeatedCompositeFieldContainer[PublishBatchResponse]
    duplicate: bool
    def __init__(self, publishes: _Optional[_Iterable[_Union[PublishBatchResponse, _Mapping]]] = ..., duplicate: bool = ...) -> None: ...

class ChannelSettings(_message.Message):
    __slots__ = ("max_age_ms", "max_bytes", "max_messages", "drop_acked", "ttl_ms", "keep", "tombstone_grace_ms")
    class Keep(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KEEP_ALL: _ClassVar[ChannelSettings.Keep]
        KEEP_LATEST_PER_KEY: _ClassVar[ChannelSettings.Keep]
    KEEP_ALL: ChannelSettings.Keep
    KEEP_LATEST_PER_KEY: ChannelSettings.Keep
    MAX_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    DROP_ACKED_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    max_age_ms: int
    max_bytes: int
    max_messages: int
    drop_acked: bool
    ttl_ms: int
    keep: ChannelSettings.Keep
    tombstone_grace_ms: int
    def __init__(self, max_age_ms: _Optional[int] = ..., max_bytes: _Optional[int] = ..., max_messages: _Optional[int] = ..., drop_acked: bool = ..., ttl_ms: _Optional[int] = ..., keep: _Optional[_Union[ChannelSettings.Keep, str]] = ..., tombstone_grace_ms: _Optional[int] = ...) -> None: ...

class GroupSettings(_message.Message):
    __slots__ = ("mode", "ack_wait_ms", "max_deliver", "backoff_ms", "max_pending", "max_pending_per_member", "expire_after_ms", "session_timeout_ms", "assignment")
    class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        SHARED: _ClassVar[GroupSettings.Mode]
        ORDERED: _ClassVar[GroupSettings.Mode]
    SHARED: GroupSettings.Mode
    ORDERED: GroupSettings.Mode
    MODE_FIELD_NUMBER: _ClassVar[int]
    ACK_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_DELIVER_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_PENDING_FIELD_NUMBER: _ClassVar[int]
    MAX_PENDING_PER_MEMBER_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    mode: GroupSettings.Mode
    ack_wait_ms: int
    max_deliver: int
    backoff_ms: _containers.RepeatedScalarFieldContainer[int]
    max_pending: int
    max_pending_per_member: int
    expire_after_ms: int
    session_timeout_ms: int
    assignment: str
    def __init__(self, mode: _Optional[_Union[GroupSettings.Mode, str]] = ..., ack_wait_ms: _Optional[int] = ..., max_deliver: _Optional[int] = ..., backoff_ms: _Optional[_Iterable[int]] = ..., max_pending: _Optional[int] = ..., max_pending_per_member: _Optional[int] = ..., expire_after_ms: _Optional[int] = ..., session_timeout_ms: _Optional[int] = ..., assignment: _Optional[str] = ...) -> None: ...

class PartitionInfo(_message.Message):
    __slots__ = ("partition", "start_offset", "next_offset", "bytes", "damaged")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    partition: int
    start_offset: int
    next_offset: int
    bytes: int
    damaged: _containers.RepeatedCompositeFieldContainer[OffsetRange]
    def __init__(self, partition: _Optional[int] = ..., start_offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., bytes: _Optional[int] = ..., damaged: _Optional[_Iterable[_Union[OffsetRange, _Mapping]]] = ...) -> None: ...

class ChannelInfo(_message.Message):
    __slots__ = ("channel", "settings", "partitions", "messages", "bytes", "groups", "created_us", "scheduled", "expired")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    SCHEDULED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    channel: str
    settings: ChannelSettings
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionInfo]
    messages: int
    bytes: int
    groups: int
    created_us: int
    scheduled: int
    expired: int
    def __init__(self, channel: _Optional[str] = ..., settings: _Optional[_Union[ChannelSettings, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[PartitionInfo, _Mapping]]] = ..., messages: _Optional[int] = ..., bytes: _Optional[int] = ..., groups: _Optional[int] = ..., created_us: _Optional[int] = ..., scheduled: _Optional[int] = ..., expired: _Optional[int] = ...) -> None: ...

class ListChannelsRequest(_message.Message):
    __slots__ = ("prefix",)
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    def __init__(self, prefix: _Optional[str] = ...) -> None: ...

class ListChannelsResponse(_message.Message):
    __slots__ = ("channels",)
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    channels: _containers.RepeatedCompositeFieldContainer[ChannelInfo]
    def __init__(self, channels: _Optional[_Iterable[_Union[ChannelInfo, _Mapping]]] = ...) -> None: ...

class DescribeChannelRequest(_message.Message):
    __slots__ = ("channel",)
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    channel: str
    def __init__(self, channel: _Optional[str] = ...) -> None: ...

class UpdateChannelRequest(_message.Message):
    __slots__ = ("channel", "settings", "partitions")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    channel: str
    settings: ChannelSettings
    partitions: int
    def __init__(self, channel: _Optional[str] = ..., settings: _Optional[_Union[ChannelSettings, _Mapping]] = ..., partitions: _Optional[int] = ...) -> None: ...

class DeleteChannelRequest(_message.Message):
    __slots__ = ("channel",)
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    channel: str
    def __init__(self, channel: _Optional[str] = ...) -> None: ...

class DeleteChannelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PurgeChannelRequest(_message.Message):
    __slots__ = ("channel", "partition", "before_offset")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BEFORE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    channel: str
    partition: int
    before_offset: int
    def __init__(self, channel: _Optional[str] = ..., partition: _Optional[int] = ..., before_offset: _Optional[int] = ...) -> None: ...

class PurgeChannelResponse(_message.Message):
    __slots__ = ("purged",)
    PURGED_FIELD_NUMBER: _ClassVar[int]
    purged: int
    def __init__(self, purged: _Optional[int] = ...) -> None: ...

class RedriveRequest(_message.Message):
    __slots__ = ("channel", "to", "reason", "min_age_ms", "max_age_ms", "max_messages", "start_offset")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MIN_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    channel: str
    to: str
    reason: str
    min_age_ms: int
    max_age_ms: int
    max_messages: int
    start_offset: int
    def __init__(self, channel: _Optional[str] = ..., to: _Optional[str] = ..., reason: _Optional[str] = ..., min_age_ms: _Optional[int] = ..., max_age_ms: _Optional[int] = ..., max_messages: _Optional[int] = ..., start_offset: _Optional[int] = ...) -> None: ...

class RedriveResponse(_message.Message):
    __slots__ = ("moved", "left", "next_offset", "done")
    MOVED_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    moved: int
    left: int
    next_offset: int
    done: bool
    def __init__(self, moved: _Optional[int] = ..., left: _Optional[int] = ..., next_offset: _Optional[int] = ..., done: bool = ...) -> None: ...

class ListSchedulesRequest(_message.Message):
    __slots__ = ("channel", "max_schedules", "after_due_us", "after_schedule_id")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    MAX_SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    AFTER_DUE_US_FIELD_NUMBER: _ClassVar[int]
    AFTER_SCHEDULE_ID_FIELD_NUMBER: _ClassVar[int]
    channel: str
    max_schedules: int
    after_due_us: int
    after_schedule_id: int
    def __init__(self, channel: _Optional[str] = ..., max_schedules: _Optional[int] = ..., after_due_us: _Optional[int] = ..., after_schedule_id: _Optional[int] = ...) -> None: ...

class ListSchedulesResponse(_message.Message):
    __slots__ = ("schedules",)
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    schedules: _containers.RepeatedCompositeFieldContainer[ScheduleInfo]
    def __init__(self, schedules: _Optional[_Iterable[_Union[ScheduleInfo, _Mapping]]] = ...) -> None: ...

class ScheduleInfo(_message.Message):
    __slots__ = ("schedule_id", "due_us", "count")
    SCHEDULE_ID_FIELD_NUMBER: _ClassVar[int]
    DUE_US_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    schedule_id: int
    due_us: int
    count: int
    def __init__(self, schedule_id: _Optional[int] = ..., due_us: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class CancelScheduleRequest(_message.Message):
    __slots__ = ("channel", "schedule_id")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_ID_FIELD_NUMBER: _ClassVar[int]
    channel: str
    schedule_id: int
    def __init__(self, channel: _Optional[str] = ..., schedule_id: _Optional[int] = ...) -> None: ...

class CancelScheduleResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CreateGroupRequest(_message.Message):
    __slots__ = ("channel", "group", "settings", "start")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    channel: str
    group: str
    settings: GroupSettings
    start: Start
    def __init__(self, channel: _Optional[str] = ..., group: _Optional[str] = ..., settings: _Optional[_Union[GroupSettings, _Mapping]] = ..., start: _Optional[_Union[Start, _Mapping]] = ...) -> None: ...

class UpdateGroupRequest(_message.Message):
    __slots__ = ("channel", "group", "settings")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    channel: str
    group: str
    settings: GroupSettings
    def __init__(self, channel: _Optional[str] = ..., group: _Optional[str] = ..., settings: _Optional[_Union[GroupSettings, _Mapping]] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ("channel",)
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    channel: str
    def __init__(self, channel: _Optional[str] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupInfo]
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupInfo, _Mapping]]] = ...) -> None: ...

class DescribeGroupRequest(_message.Message):
    __slots__ = ("channel", "group", "pending")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    channel: str
    group: str
    pending: bool
    def __init__(self, channel: _Optional[str] = ..., group: _Optional[str] = ..., pending: bool = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("channel", "group")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    channel: str
    group: str
    def __init__(self, channel: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class DeleteGroupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GroupInfo(_message.Message):
    __slots__ = ("channel", "group", "settings", "positions", "members", "lag", "lag_us", "pending", "skipped", "pending_ranges", "generation", "created_us")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    LAG_US_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    PENDING_RANGES_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    channel: str
    group: str
    settings: GroupSettings
    positions: _containers.RepeatedCompositeFieldContainer[GroupPosition]
    members: _containers.RepeatedCompositeFieldContainer[MemberInfo]
    lag: int
    lag_us: int
    pending: int
    skipped: int
    pending_ranges: _containers.RepeatedCompositeFieldContainer[PendingRange]
    generation: int
    created_us: int
    def __init__(self, channel: _Optional[str] = ..., group: _Optional[str] = ..., settings: _Optional[_Union[GroupSettings, _Mapping]] = ..., positions: _Optional[_Iterable[_Union[GroupPosition, _Mapping]]] = ..., members: _Optional[_Iterable[_Union[MemberInfo, _Mapping]]] = ..., lag: _Optional[int] = ..., lag_us: _Optional[int] = ..., pending: _Optional[int] = ..., skipped: _Optional[int] = ..., pending_ranges: _Optional[_Iterable[_Union[PendingRange, _Mapping]]] = ..., generation: _Optional[int] = ..., created_us: _Optional[int] = ...) -> None: ...

class GroupPosition(_message.Message):
    __slots__ = ("partition", "offset", "next_offset", "lag", "owner")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    next_offset: int
    lag: int
    owner: str
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., lag: _Optional[int] = ..., owner: _Optional[str] = ...) -> None: ...

class MemberInfo(_message.Message):
    __slots__ = ("member", "seen_us", "leased", "partitions")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    SEEN_US_FIELD_NUMBER: _ClassVar[int]
    LEASED_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    member: str
    seen_us: int
    leased: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, member: _Optional[str] = ..., seen_us: _Optional[int] = ..., leased: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class PendingRange(_message.Message):
    __slots__ = ("partition", "start", "end", "member", "delivery_count", "until_us", "since_us")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_COUNT_FIELD_NUMBER: _ClassVar[int]
    UNTIL_US_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    partition: int
    start: int
    end: int
    member: str
    delivery_count: int
    until_us: int
    since_us: int
    def __init__(self, partition: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., member: _Optional[str] = ..., delivery_count: _Optional[int] = ..., until_us: _Optional[int] = ..., since_us: _Optional[int] = ...) -> None: ...

class ListSegmentsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListSegmentsResponse(_message.Message):
    __slots__ = ("segments",)
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    segments: _containers.RepeatedCompositeFieldContainer[SegmentInfo]
    def __init__(self, segments: _Optional[_Iterable[_Union[SegmentInfo, _Mapping]]] = ...) -> None: ...

class SegmentInfo(_message.Message):
    __slots__ = ("name", "first_sequence", "last_sequence", "generation", "bytes", "sealed")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    name: str
    first_sequence: int
    last_sequence: int
    generation: int
    bytes: int
    sealed: bool
    def __init__(self, name: _Optional[str] = ..., first_sequence: _Optional[int] = ..., last_sequence: _Optional[int] = ..., generation: _Optional[int] = ..., bytes: _Optional[int] = ..., sealed: bool = ...) -> None: ...

class RotateSegmentRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RotateSegmentResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InstallSegmentsRequest(_message.Message):
    __slots__ = ("proposal",)
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    proposal: str
    def __init__(self, proposal: _Optional[str] = ...) -> None: ...

class InstallSegmentsResponse(_message.Message):
    __slots__ = ("segments", "bytes_before", "bytes_after", "dropped_records", "dropped_messages")
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_BEFORE_FIELD_NUMBER: _ClassVar[int]
    BYTES_AFTER_FIELD_NUMBER: _ClassVar[int]
    DROPPED_RECORDS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    segments: _containers.RepeatedScalarFieldContainer[str]
    bytes_before: int
    bytes_after: int
    dropped_records: int
    dropped_messages: int
    def __init__(self, segments: _Optional[_Iterable[str]] = ..., bytes_before: _Optional[int] = ..., bytes_after: _Optional[int] = ..., dropped_records: _Optional[int] = ..., dropped_messages: _Optional[int] = ...) -> None: ...

class CreateBackupRequest(_message.Message):
    __slots__ = ("directory",)
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    directory: str
    def __init__(self, directory: _Optional[str] = ...) -> None: ...

class DescribeBackupRequest(_message.Message):
    __slots__ = ("backup_id",)
    BACKUP_ID_FIELD_NUMBER: _ClassVar[int]
    backup_id: str
    def __init__(self, backup_id: _Optional[str] = ...) -> None: ...

class BackupInfo(_message.Message):
    __slots__ = ("backup_id", "directory", "state", "copied_bytes", "total_bytes", "started_us", "finished_us", "last_sequence", "segments", "bytes", "linked", "copied", "kept", "error_status", "error_reason", "error", "missing")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNKNOWN: _ClassVar[BackupInfo.State]
        RUNNING: _ClassVar[BackupInfo.State]
        DONE: _ClassVar[BackupInfo.State]
        FAILED: _ClassVar[BackupInfo.State]
    STATE_UNKNOWN: BackupInfo.State
    RUNNING: BackupInfo.State
    DONE: BackupInfo.State
    FAILED: BackupInfo.State
    BACKUP_ID_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    STARTED_US_FIELD_NUMBER: _ClassVar[int]
    FINISHED_US_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    LINKED_FIELD_NUMBER: _ClassVar[int]
    COPIED_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    ERROR_STATUS_FIELD_NUMBER: _ClassVar[int]
    ERROR_REASON_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    backup_id: str
    directory: str
    state: BackupInfo.State
    copied_bytes: int
    total_bytes: int
    started_us: int
    finished_us: int
    last_sequence: int
    segments: int
    bytes: int
    linked: int
    copied: int
    kept: int
    error_status: str
    error_reason: str
    error: str
    missing: int
    def __init__(self, backup_id: _Optional[str] = ..., directory: _Optional[str] = ..., state: _Optional[_Union[BackupInfo.State, str]] = ..., copied_bytes: _Optional[int] = ..., total_bytes: _Optional[int] = ..., started_us: _Optional[int] = ..., finished_us: _Optional[int] = ..., last_sequence: _Optional[int] = ..., segments: _Optional[int] = ..., bytes: _Optional[int] = ..., linked: _Optional[int] = ..., copied: _Optional[int] = ..., kept: _Optional[int] = ..., error_status: _Optional[str] = ..., error_reason: _Optional[str] = ..., error: _Optional[str] = ..., missing: _Optional[int] = ...) -> None: ...

class ServerInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ServerInfoResponse(_message.Message):
    __slots__ = ("version", "log_uuid", "start_id", "started_us", "storage_mode", "channels", "groups", "messages", "buffered_bytes", "log_bytes", "log_segments", "last_sequence", "synced_sequence", "free_bytes", "fsync_mean_seconds", "max_request_bytes", "now_us")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LOG_UUID_FIELD_NUMBER: _ClassVar[int]
    START_ID_FIELD_NUMBER: _ClassVar[int]
    STARTED_US_FIELD_NUMBER: _ClassVar[int]
    STORAGE_MODE_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BUFFERED_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOG_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SYNCED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FSYNC_MEAN_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    NOW_US_FIELD_NUMBER: _ClassVar[int]
    version: str
    log_uuid: str
    start_id: str
    started_us: int
    storage_mode: str
    channels: int
    groups: int
    messages: int
    buffered_bytes: int
    log_bytes: int
    log_segments: int
    last_sequence: int
    synced_sequence: int
    free_bytes: int
    fsync_mean_seconds: float
    max_request_bytes: int
    now_us: int
    def __init__(self, version: _Optional[str] = ..., log_uuid: _Optional[str] = ..., start_id: _Optional[str] = ..., started_us: _Optional[int] = ..., storage_mode: _Optional[str] = ..., channels: _Optional[int] = ..., groups: _Optional[int] = ..., messages: _Optional[int] = ..., buffered_bytes: _Optional[int] = ..., log_bytes: _Optional[int] = ..., log_segments: _Optional[int] = ..., last_sequence: _Optional[int] = ..., synced_sequence: _Optional[int] = ..., free_bytes: _Optional[int] = ..., fsync_mean_seconds: _Optional[float] = ..., max_request_bytes: _Optional[int] = ..., now_us: _Optional[int] = ...) -> None: ...

class WireHello(_message.Message):
    __slots__ = ("version", "client", "token")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    version: int
    client: str
    token: str
    def __init__(self, version: _Optional[int] = ..., client: _Optional[str] = ..., token: _Optional[str] = ...) -> None: ...

class WireWelcome(_message.Message):
    __slots__ = ("version", "server", "max_frame_bytes", "window", "idle_ms", "start_id")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SERVER_FIELD_NUMBER: _ClassVar[int]
    MAX_FRAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    START_ID_FIELD_NUMBER: _ClassVar[int]
    version: int
    server: str
    max_frame_bytes: int
    window: int
    idle_ms: int
    start_id: str
    def __init__(self, version: _Optional[int] = ..., server: _Optional[str] = ..., max_frame_bytes: _Optional[int] = ..., window: _Optional[int] = ..., idle_ms: _Optional[int] = ..., start_id: _Optional[str] = ...) -> None: ...

class WireError(_message.Message):
    __slots__ = ("reason", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...
