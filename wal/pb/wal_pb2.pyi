from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RecordType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RECORD_TYPE_UNSPECIFIED: _ClassVar[RecordType]
    SEAL: _ClassVar[RecordType]
    CHANNEL_CREATED: _ClassVar[RecordType]
    CHANNEL_UPDATED: _ClassVar[RecordType]
    CHANNEL_DELETED: _ClassVar[RecordType]
    PUBLISHED: _ClassVar[RecordType]
    SCHEDULED: _ClassVar[RecordType]
    SCHEDULE_CANCELLED: _ClassVar[RecordType]
    DEAD_LETTERED: _ClassVar[RecordType]
    GROUP_CREATED: _ClassVar[RecordType]
    GROUP_UPDATED: _ClassVar[RecordType]
    GROUP_DELETED: _ClassVar[RecordType]
    ACKED: _ClassVar[RecordType]
    COMMITTED: _ClassVar[RecordType]
    SOUGHT: _ClassVar[RecordType]
    REDELIVERED: _ClassVar[RecordType]
    TRIMMED: _ClassVar[RecordType]
    EXPIRED: _ClassVar[RecordType]
    ATOMIC: _ClassVar[RecordType]
    SNAPSHOT_BEGIN: _ClassVar[RecordType]
    CHANNEL_SNAPSHOT: _ClassVar[RecordType]
    SNAPSHOT_END: _ClassVar[RecordType]
    DAMAGED: _ClassVar[RecordType]
    SKIPPED: _ClassVar[RecordType]
RECORD_TYPE_UNSPECIFIED: RecordType
SEAL: RecordType
CHANNEL_CREATED: RecordType
CHANNEL_UPDATED: RecordType
CHANNEL_DELETED: RecordType
PUBLISHED: RecordType
SCHEDULED: RecordType
SCHEDULE_CANCELLED: RecordType
DEAD_LETTERED: RecordType
GROUP_CREATED: RecordType
GROUP_UPDATED: RecordType
GROUP_DELETED: RecordType
ACKED: RecordType
COMMITTED: RecordType
SOUGHT: RecordType
REDELIVERED: RecordType
TRIMMED: RecordType
EXPIRED: RecordType
ATOMIC: RecordType
SNAPSHOT_BEGIN: RecordType
CHANNEL_SNAPSHOT: RecordType
SNAPSHOT_END: RecordType
DAMAGED: RecordType
SKIPPED: RecordType

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

class OpaqueBatch(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, messages: _Optional[_Iterable[bytes]] = ...) -> None: ...

class OpaqueMessage(_message.Message):
    __slots__ = ("headers",)
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    headers: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, headers: _Optional[_Iterable[bytes]] = ...) -> None: ...

class OpaquePublished(_message.Message):
    __slots__ = ("parts",)
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, parts: _Optional[_Iterable[bytes]] = ...) -> None: ...

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

class ChannelCreated(_message.Message):
    __slots__ = ("channel_id", "name", "partitions", "settings", "timestamp_us")
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    channel_id: int
    name: str
    partitions: int
    settings: ChannelSettings
    timestamp_us: int
    def __init__(self, channel_id: _Optional[int] = ..., name: _Optional[str] = ..., partitions: _Optional[int] = ..., settings: _Optional[_Union[ChannelSettings, _Mapping]] = ..., timestamp_us: _Optional[int] = ...) -> None: ...

class ChannelUpdated(_message.Message):
    __slots__ = ("channel_id", "partitions", "settings", "timestamp_us")
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    channel_id: int
    partitions: int
    settings: ChannelSettings
    timestamp_us: int
    def __init__(self, channel_id: _Optional[int] = ..., partitions: _Optional[int] = ..., settings: _Optional[_Union[ChannelSettings, _Mapping]] = ..., timestamp_us: _Optional[int] = ...) -> None: ...

class ChannelDeleted(_message.Message):
    __slots__ = ("channel_id", "timestamp_us")
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    channel_id: int
    timestamp_us: int
    def __init__(self, channel_id: _Optional[int] = ..., timestamp_us: _Optional[int] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("base_offset", "count", "producer", "sequence", "crc", "timestamp_us")
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    base_offset: int
    count: int
    producer: str
    sequence: int
    crc: int
    timestamp_us: int
    def __init__(self, base_offset: _Optional[int] = ..., count: _Optional[int] = ..., producer: _Optional[str] = ..., sequence: _Optional[int] = ..., crc: _Optional[int] = ..., timestamp_us: _Optional[int] = ...) -> None: ...

class Published(_message.Message):
    __slots__ = ("channel_id", "partition", "base_offset", "count", "parts", "min_timestamp_us", "max_timestamp_us", "ttl_ms", "offset_deltas", "schedule_id", "due_us", "batch")
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    MIN_TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    MAX_TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    OFFSET_DELTAS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_ID_FIELD_NUMBER: _ClassVar[int]
    DUE_US_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    channel_id: int
    partition: int
    base_offset: int
    count: int
    parts: _containers.RepeatedCompositeFieldContainer[Part]
    min_timestamp_us: int
    max_timestamp_us: int
    ttl_ms: int
    offset_deltas: _containers.RepeatedScalarFieldContainer[int]
    schedule_id: int
    due_us: int
    batch: bytes
    def __init__(self, channel_id: _Optional[int] = ..., partition: _Optional[int] = ..., base_offset: _Optional[int] = ..., count: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[Part, _Mapping]]] = ..., min_timestamp_us: _Optional[int] = ..., max_timestamp_us: _Optional[int] = ..., ttl_ms: _Optional[int] = ..., offset_deltas: _Optional[_Iterable[int]] = ..., schedule_id: _Optional[int] = ..., due_us: _Optional[int] = ..., batch: _Optional[bytes] = ...) -> None: ...

class Scheduled(_message.Message):
    __slots__ = ("channel_id", "partition", "schedule_id", "due_us", "count", "producer", "sequence", "crc", "timestamp_us", "ttl_ms", "batch")
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_ID_FIELD_NUMBER: _ClassVar[int]
    DUE_US_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    channel_id: int
    partition: int
    schedule_id: int
    due_us: int
    count: int
    producer: str
    sequence: int
    crc: int
    timestamp_us: int
    ttl_ms: int
    batch: bytes
    def __init__(self, channel_id: _Optional[int] = ..., partition: _Optional[int] = ..., schedule_id: _Optional[int] = ..., due_us: _Optional[int] = ..., count: _Optional[int] = ..., producer: _Optional[str] = ..., sequence: _Optional[int] = ..., crc: _Optional[int] = ..., timestamp_us: _Optional[int] = ..., ttl_ms: _Optional[int] = ..., batch: _Optional[bytes] = ...) -> None: ...

class ScheduleCancelled(_message.Message):
    __slots__ = ("channel_id", "schedule_id", "timestamp_us")
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    channel_id: int
    schedule_id: int
    timestamp_us: int
    def __init__(self, channel_id: _Optional[int] = ..., schedule_id: _Optional[int] = ..., timestamp_us: _Optional[int] = ...) -> None: ...

class DeadLettered(_message.Message):
    __slots__ = ("channel_id", "group_id", "partition", "range", "delivery_count", "reason", "published", "timestamp_us")
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_COUNT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    channel_id: int
    group_id: int
    partition: int
    range: OffsetRange
    delivery_count: int
    reason: str
    published: Published
    timestamp_us: int
    def __init__(self, channel_id: _Optional[int] = ..., group_id: _Optional[int] = ..., partition: _Optional[int] = ..., range: _Optional[_Union[OffsetRange, _Mapping]] = ..., delivery_count: _Optional[int] = ..., reason: _Optional[str] = ..., published: _Optional[_Union[Published, _Mapping]] = ..., timestamp_us: _Optional[int] = ...) -> None: ...

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

class GroupCreated(_message.Message):
    __slots__ = ("channel_id", "group_id", "name", "settings", "start", "timestamp_us")
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    channel_id: int
    group_id: int
    name: str
    settings: GroupSettings
    start: _containers.RepeatedCompositeFieldContainer[Position]
    timestamp_us: int
    def __init__(self, channel_id: _Optional[int] = ..., group_id: _Optional[int] = ..., name: _Optional[str] = ..., settings: _Optional[_Union[GroupSettings, _Mapping]] = ..., start: _Optional[_Iterable[_Union[Position, _Mapping]]] = ..., timestamp_us: _Optional[int] = ...) -> None: ...

class GroupUpdated(_message.Message):
    __slots__ = ("channel_id", "group_id", "settings", "timestamp_us")
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    channel_id: int
    group_id: int
    settings: GroupSettings
    timestamp_us: int
    def __init__(self, channel_id: _Optional[int] = ..., group_id: _Optional[int] = ..., settings: _Optional[_Union[GroupSettings, _Mapping]] = ..., timestamp_us: _Optional[int] = ...) -> None: ...

class GroupDeleted(_message.Message):
    __slots__ = ("channel_id", "group_id", "timestamp_us")
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    channel_id: int
    group_id: int
    timestamp_us: int
    def __init__(self, channel_id: _Optional[int] = ..., group_id: _Optional[int] = ..., timestamp_us: _Optional[int] = ...) -> None: ...

class Acked(_message.Message):
    __slots__ = ("channel_id", "group_id", "partition", "ranges", "timestamp_us")
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    channel_id: int
    group_id: int
    partition: int
    ranges: _containers.RepeatedCompositeFieldContainer[OffsetRange]
    timestamp_us: int
    def __init__(self, channel_id: _Optional[int] = ..., group_id: _Optional[int] = ..., partition: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[OffsetRange, _Mapping]]] = ..., timestamp_us: _Optional[int] = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("channel_id", "group_id", "partition", "offset", "timestamp_us")
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    channel_id: int
    group_id: int
    partition: int
    offset: int
    timestamp_us: int
    def __init__(self, channel_id: _Optional[int] = ..., group_id: _Optional[int] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., timestamp_us: _Optional[int] = ...) -> None: ...

class Sought(_message.Message):
    __slots__ = ("channel_id", "group_id", "positions", "timestamp_us")
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    channel_id: int
    group_id: int
    positions: _containers.RepeatedCompositeFieldContainer[Position]
    timestamp_us: int
    def __init__(self, channel_id: _Optional[int] = ..., group_id: _Optional[int] = ..., positions: _Optional[_Iterable[_Union[Position, _Mapping]]] = ..., timestamp_us: _Optional[int] = ...) -> None: ...

class Redelivered(_message.Message):
    __slots__ = ("channel_id", "group_id", "partition", "retries", "timestamp_us")
    class Retry(_message.Message):
        __slots__ = ("start", "end", "delivery_count", "not_before_us")
        START_FIELD_NUMBER: _ClassVar[int]
        END_FIELD_NUMBER: _ClassVar[int]
        DELIVERY_COUNT_FIELD_NUMBER: _ClassVar[int]
        NOT_BEFORE_US_FIELD_NUMBER: _ClassVar[int]
        start: int
        end: int
        delivery_count: int
        not_before_us: int
        def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., delivery_count: _Optional[int] = ..., not_before_us: _Optional[int] = ...) -> None: ...
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    channel_id: int
    group_id: int
    partition: int
    retries: _containers.RepeatedCompositeFieldContainer[Redelivered.Retry]
    timestamp_us: int
    def __init__(self, channel_id: _Optional[int] = ..., group_id: _Optional[int] = ..., partition: _Optional[int] = ..., retries: _Optional[_Iterable[_Union[Redelivered.Retry, _Mapping]]] = ..., timestamp_us: _Optional[int] = ...) -> None: ...

class Trimmed(_message.Message):
    __slots__ = ("channel_id", "partition", "start_offset", "reason", "timestamp_us")
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    channel_id: int
    partition: int
    start_offset: int
    reason: str
    timestamp_us: int
    def __init__(self, channel_id: _Optional[int] = ..., partition: _Optional[int] = ..., start_offset: _Optional[int] = ..., reason: _Optional[str] = ..., timestamp_us: _Optional[int] = ...) -> None: ...

class Expired(_message.Message):
    __slots__ = ("channel_id", "partition", "ranges", "timestamp_us")
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    channel_id: int
    partition: int
    ranges: _containers.RepeatedCompositeFieldContainer[OffsetRange]
    timestamp_us: int
    def __init__(self, channel_id: _Optional[int] = ..., partition: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[OffsetRange, _Mapping]]] = ..., timestamp_us: _Optional[int] = ...) -> None: ...

class Atomic(_message.Message):
    __slots__ = ("items", "producer", "sequence", "crc", "timestamp_us")
    class Item(_message.Message):
        __slots__ = ("type", "payload")
        TYPE_FIELD_NUMBER: _ClassVar[int]
        PAYLOAD_FIELD_NUMBER: _ClassVar[int]
        type: int
        payload: bytes
        def __init__(self, type: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[Atomic.Item]
    producer: str
    sequence: int
    crc: int
    timestamp_us: int
    def __init__(self, items: _Optional[_Iterable[_Union[Atomic.Item, _Mapping]]] = ..., producer: _Optional[str] = ..., sequence: _Optional[int] = ..., crc: _Optional[int] = ..., timestamp_us: _Optional[int] = ...) -> None: ...

class SnapshotBegin(_message.Message):
    __slots__ = ("channel_ids", "next_channel_id", "next_group_id", "next_schedule_id", "timestamp_us")
    CHANNEL_IDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    NEXT_GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    NEXT_SCHEDULE_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    channel_ids: _containers.RepeatedScalarFieldContainer[int]
    next_channel_id: int
    next_group_id: int
    next_schedule_id: int
    timestamp_us: int
    def __init__(self, channel_ids: _Optional[_Iterable[int]] = ..., next_channel_id: _Optional[int] = ..., next_group_id: _Optional[int] = ..., next_schedule_id: _Optional[int] = ..., timestamp_us: _Optional[int] = ...) -> None: ...

class ChannelSnapshot(_message.Message):
    __slots__ = ("channel_id", "name", "settings", "partitions", "groups", "producers", "schedules", "created_us", "part", "more")
    class Partition(_message.Message):
        __slots__ = ("start_offset", "next_offset", "bytes", "start_timestamp_us", "damaged", "end_timestamp_us", "marks", "mark_spacing", "end_expiry_us")
        START_OFFSET_FIELD_NUMBER: _ClassVar[int]
        NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
        BYTES_FIELD_NUMBER: _ClassVar[int]
        START_TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
        DAMAGED_FIELD_NUMBER: _ClassVar[int]
        END_TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
        MARKS_FIELD_NUMBER: _ClassVar[int]
        MARK_SPACING_FIELD_NUMBER: _ClassVar[int]
        END_EXPIRY_US_FIELD_NUMBER: _ClassVar[int]
        start_offset: int
        next_offset: int
        bytes: int
        start_timestamp_us: int
        damaged: _containers.RepeatedCompositeFieldContainer[OffsetRange]
        end_timestamp_us: int
        marks: _containers.RepeatedCompositeFieldContainer[ChannelSnapshot.Mark]
        mark_spacing: int
        end_expiry_us: int
        def __init__(self, start_offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., bytes: _Optional[int] = ..., start_timestamp_us: _Optional[int] = ..., damaged: _Optional[_Iterable[_Union[OffsetRange, _Mapping]]] = ..., end_timestamp_us: _Optional[int] = ..., marks: _Optional[_Iterable[_Union[ChannelSnapshot.Mark, _Mapping]]] = ..., mark_spacing: _Optional[int] = ..., end_expiry_us: _Optional[int] = ...) -> None: ...
    class Mark(_message.Message):
        __slots__ = ("offset", "bytes", "timestamp_us", "expiry_us")
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        BYTES_FIELD_NUMBER: _ClassVar[int]
        TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
        EXPIRY_US_FIELD_NUMBER: _ClassVar[int]
        offset: int
        bytes: int
        timestamp_us: int
        expiry_us: int
        def __init__(self, offset: _Optional[int] = ..., bytes: _Optional[int] = ..., timestamp_us: _Optional[int] = ..., expiry_us: _Optional[int] = ...) -> None: ...
    class Group(_message.Message):
        __slots__ = ("group_id", "name", "settings", "cursors", "seen_us", "created_us", "skipped")
        GROUP_ID_FIELD_NUMBER: _ClassVar[int]
        NAME_FIELD_NUMBER: _ClassVar[int]
        SETTINGS_FIELD_NUMBER: _ClassVar[int]
        CURSORS_FIELD_NUMBER: _ClassVar[int]
        SEEN_US_FIELD_NUMBER: _ClassVar[int]
        CREATED_US_FIELD_NUMBER: _ClassVar[int]
        SKIPPED_FIELD_NUMBER: _ClassVar[int]
        group_id: int
        name: str
        settings: GroupSettings
        cursors: _containers.RepeatedCompositeFieldContainer[ChannelSnapshot.Cursor]
        seen_us: int
        created_us: int
        skipped: int
        def __init__(self, group_id: _Optional[int] = ..., name: _Optional[str] = ..., settings: _Optional[_Union[GroupSettings, _Mapping]] = ..., cursors: _Optional[_Iterable[_Union[ChannelSnapshot.Cursor, _Mapping]]] = ..., seen_us: _Optional[int] = ..., created_us: _Optional[int] = ..., skipped: _Optional[int] = ...) -> None: ...
    class Cursor(_message.Message):
        __slots__ = ("partition", "offset", "acked", "retries")
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        ACKED_FIELD_NUMBER: _ClassVar[int]
        RETRIES_FIELD_NUMBER: _ClassVar[int]
        partition: int
        offset: int
        acked: _containers.RepeatedCompositeFieldContainer[OffsetRange]
        retries: _containers.RepeatedCompositeFieldContainer[Redelivered.Retry]
        def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ..., acked: _Optional[_Iterable[_Union[OffsetRange, _Mapping]]] = ..., retries: _Optional[_Iterable[_Union[Redelivered.Retry, _Mapping]]] = ...) -> None: ...
    class Producer(_message.Message):
        __slots__ = ("producer", "seen_us", "window")
        PRODUCER_FIELD_NUMBER: _ClassVar[int]
        SEEN_US_FIELD_NUMBER: _ClassVar[int]
        WINDOW_FIELD_NUMBER: _ClassVar[int]
        producer: str
        seen_us: int
        window: _containers.RepeatedCompositeFieldContainer[ChannelSnapshot.Window]
        def __init__(self, producer: _Optional[str] = ..., seen_us: _Optional[int] = ..., window: _Optional[_Iterable[_Union[ChannelSnapshot.Window, _Mapping]]] = ...) -> None: ...
    class Window(_message.Message):
        __slots__ = ("sequence", "crc", "partition", "base_offset", "count", "timestamp_us", "schedule_id")
        SEQUENCE_FIELD_NUMBER: _ClassVar[int]
        CRC_FIELD_NUMBER: _ClassVar[int]
        PARTITION_FIELD_NUMBER: _ClassVar[int]
        BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
        COUNT_FIELD_NUMBER: _ClassVar[int]
        TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
        SCHEDULE_ID_FIELD_NUMBER: _ClassVar[int]
        sequence: int
        crc: int
        partition: int
        base_offset: int
        count: int
        timestamp_us: int
        schedule_id: int
        def __init__(self, sequence: _Optional[int] = ..., crc: _Optional[int] = ..., partition: _Optional[int] = ..., base_offset: _Optional[int] = ..., count: _Optional[int] = ..., timestamp_us: _Optional[int] = ..., schedule_id: _Optional[int] = ...) -> None: ...
    class Schedule(_message.Message):
        __slots__ = ("schedule_id", "due_us", "sequence", "count")
        SCHEDULE_ID_FIELD_NUMBER: _ClassVar[int]
        DUE_US_FIELD_NUMBER: _ClassVar[int]
        SEQUENCE_FIELD_NUMBER: _ClassVar[int]
        COUNT_FIELD_NUMBER: _ClassVar[int]
        schedule_id: int
        due_us: int
        sequence: int
        count: int
        def __init__(self, schedule_id: _Optional[int] = ..., due_us: _Optional[int] = ..., sequence: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    channel_id: int
    name: str
    settings: ChannelSettings
    partitions: _containers.RepeatedCompositeFieldContainer[ChannelSnapshot.Partition]
    groups: _containers.RepeatedCompositeFieldContainer[ChannelSnapshot.Group]
    producers: _containers.RepeatedCompositeFieldContainer[ChannelSnapshot.Producer]
    schedules: _containers.RepeatedCompositeFieldContainer[ChannelSnapshot.Schedule]
    created_us: int
    part: int
    more: bool
    def __init__(self, channel_id: _Optional[int] = ..., name: _Optional[str] = ..., settings: _Optional[_Union[ChannelSettings, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[ChannelSnapshot.Partition, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[ChannelSnapshot.Group, _Mapping]]] = ..., producers: _Optional[_Iterable[_Union[ChannelSnapshot.Producer, _Mapping]]] = ..., schedules: _Optional[_Iterable[_Union[ChannelSnapshot.Schedule, _Mapping]]] = ..., created_us: _Optional[int] = ..., part: _Optional[int] = ..., more: bool = ...) -> None: ...

class SnapshotEnd(_message.Message):
    __slots__ = ("begin_sequence",)
    BEGIN_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    begin_sequence: int
    def __init__(self, begin_sequence: _Optional[int] = ...) -> None: ...

class Damaged(_message.Message):
    __slots__ = ("first_sequence", "last_sequence", "segment", "position", "bytes", "reason", "skip", "timestamp_us")
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    first_sequence: int
    last_sequence: int
    segment: str
    position: int
    bytes: int
    reason: str
    skip: int
    timestamp_us: int
    def __init__(self, first_sequence: _Optional[int] = ..., last_sequence: _Optional[int] = ..., segment: _Optional[str] = ..., position: _Optional[int] = ..., bytes: _Optional[int] = ..., reason: _Optional[str] = ..., skip: _Optional[int] = ..., timestamp_us: _Optional[int] = ...) -> None: ...

class Skipped(_message.Message):
    __slots__ = ("first_sequence", "last_sequence", "segment", "position", "bytes", "reason", "skip", "timestamp_us", "quarantine")
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    QUARANTINE_FIELD_NUMBER: _ClassVar[int]
    first_sequence: int
    last_sequence: int
    segment: str
    position: int
    bytes: int
    reason: str
    skip: int
    timestamp_us: int
    quarantine: str
    def __init__(self, first_sequence: _Optional[int] = ..., last_sequence: _Optional[int] = ..., segment: _Optional[str] = ..., position: _Optional[int] = ..., bytes: _Optional[int] = ..., reason: _Optional[str] = ..., skip: _Optional[int] = ..., timestamp_us: _Optional[int] = ..., quarantine: _Optional[str] = ...) -> None: ...

class Seal(_message.Message):
    __slots__ = ("frames", "last_sequence", "rolling_crc")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ROLLING_CRC_FIELD_NUMBER: _ClassVar[int]
    frames: int
    last_sequence: int
    rolling_crc: int
    def __init__(self, frames: _Optional[int] = ..., last_sequence: _Optional[int] = ..., rolling_crc: _Optional[int] = ...) -> None: ...
