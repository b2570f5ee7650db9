"""What can be asked of a broker: one value per act. No behaviour, no I/O. What it answers is in mq/reply.py.

Fields are named as in proto/mq.proto. The service has validated them: names are well-formed, `batch` is a
well-formed Batch of `count` messages (at least one), sizes are within the limits of the edge. Settings are the
messages of proto/wal.proto, because they go into records as they are.

Tuples, because a start of the broker waits until they are all made, and a dataclass takes four times as long to make.
`Publish` is one: a tuple has a `count` of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wal.pb.wal_pb2 import ChannelSettings, GroupSettings

# Durability, numbered as in mq.proto.
DEFAULT = 0  # in a request: the server's default
FSYNC = 1  # on disk, survives a power cut
OS = 2  # with the operating system, survives a kill of the broker
MEMORY = 3  # only in an answer: nothing is kept on disk


class Start(NamedTuple):
    """Where to start. `at`: earliest, latest, offset, time (µs since the epoch) or last (so many before latest)."""

    at: str = "earliest"
    value: int = 0


EARLIEST = Start()


class Position(NamedTuple):
    partition: int
    offset: int


class Receipt(NamedTuple):
    """Part of a delivery, by the receipt that came with it; no ranges: all of it."""

    receipt: bytes
    ranges: Sequence[tuple[int, int]] = ()


# ---------------------------------------------------------------- channels


class CreateChannel(NamedTuple):
    channel: str
    partitions: int = 0  # 0: one
    settings: ChannelSettings | None = None  # None: the server's defaults
    fail_if_exists: bool = False


class ListChannels(NamedTuple):
    prefix: str = ""


class DescribeChannel(NamedTuple):
    channel: str


class UpdateChannel(NamedTuple):
    channel: str
    settings: ChannelSettings | None = None  # None: as they are
    partitions: int = 0  # 0: as they are; never fewer


class DeleteChannel(NamedTuple):
    channel: str


class PurgeChannel(NamedTuple):
    channel: str
    partition: int | None = None
    before_offset: int = 0  # 0: everything


# ---------------------------------------------------------------- publishing


@dataclass(slots=True)
class Publish:
    """One batch. `crc` is CRC32C of `batch`, needed only where there is a producer."""

    channel: str
    batch: bytes
    count: int
    partition: int | None = None  # None: by the messages' keys, or the broker's choice
    producer_id: str = ""  # empty: not idempotent
    sequence: int = 0
    crc: int = 0
    deliver_at_us: int = 0  # 0: at once
    delay_ms: int = 0  # instead of deliver_at_us
    ttl_ms: int = 0  # 0: the channel's
    durability: int = DEFAULT


class CancelSchedule(NamedTuple):
    channel: str
    schedule_id: int


class ListSchedules(NamedTuple):
    """Delayed publishes that are not due yet, the soonest first."""

    channel: str
    most: int = 0  # 0: as many as a pull gives
    after: tuple[int, int] = (0, 0)  # due_us and id of the last one seen


class Redrive(NamedTuple):
    """Send a slice of a dead-letter channel back, or elsewhere. The caller comes again at the pace it likes."""

    channel: str
    to: str = ""  # empty: where each message came from
    reason: str = ""  # empty: whatever it was
    min_age_ms: int = 0  # since it was dead-lettered
    max_age_ms: int = 0  # 0: no limit
    max_messages: int = 0  # looked at; 0: as many as a pull gives
    start_offset: int = 0


# ---------------------------------------------------------------- pulling


class Pull(NamedTuple):
    """With a group it leases and needs a member; without one it reads from `positions`, else from `start`."""

    channel: str
    group: str = ""
    member: str = ""
    max_messages: int = 0  # 0: the server's default
    max_bytes: int = 0  # 0: as much as an answer holds; one message is always returned
    max_wait_ms: int = 0  # 0: answer at once
    partition: int | None = None  # None: all
    start: Start | None = None  # of a group that does not exist yet: its first position; None: earliest
    positions: Sequence[Position] = ()
    channel_id: int = 0  # of an answer before; 0: whichever channel has the name
    group_id: int = 0  # of an answer before; 0: whichever group has the name, made where there is none
    turn: int = 0  # of a member, rising from pull to pull; 0: this one is not numbered
    afresh: bool = False  # what the member holds is given back first
    since: int = 0  # the first turn of whoever pulls; another one: somebody else had the member's name


# ---------------------------------------------------------------- leases


class Ack(NamedTuple):
    channel: str
    group: str
    member: str
    receipts: Sequence[Receipt]


class Nack(NamedTuple):
    channel: str
    group: str
    member: str
    receipts: Sequence[Receipt]
    delay_ms: int | None = None  # None: the group's backoff


class Reject(NamedTuple):
    channel: str
    group: str
    member: str
    receipts: Sequence[Receipt]
    reason: str = ""


class Extend(NamedTuple):
    channel: str
    group: str
    member: str
    receipts: Sequence[Receipt]  # none: only the heartbeat
    ack_wait_ms: int = 0  # 0: the group's


class Commit(NamedTuple):
    channel: str
    group: str
    member: str
    generation: int
    positions: Sequence[Position]


class Seek(NamedTuple):
    """Exactly one of start and shift is set."""

    channel: str
    group: str
    partition: int | None = None
    start: Start | None = None
    shift: int | None = None
    force: bool = False
    dry_run: bool = False
    positions: Sequence[Position] = ()  # in place of start, once the broker has looked up a time


class Leave(NamedTuple):
    channel: str
    group: str
    member: str
    turn: int = 0  # of its last pull, which may be on its way


class Transact(NamedTuple):
    """Of the publishes inside, producer_id, sequence, delay and durability are not used. `crc` covers all of them."""

    publishes: Sequence[Publish]
    acks: Sequence[Ack] = ()
    commits: Sequence[Commit] = ()
    producer_id: str = ""
    sequence: int = 0
    crc: int = 0


# ---------------------------------------------------------------- groups


class CreateGroup(NamedTuple):
    """Answered by GroupInfo; fields of settings that are 0 take the server's default."""

    channel: str
    group: str
    settings: GroupSettings | None = None
    start: Start | None = None
    positions: Sequence[Position] = ()  # in place of start, once the broker has looked up a time


class UpdateGroup(NamedTuple):
    channel: str
    group: str
    settings: GroupSettings


class ListGroups(NamedTuple):
    channel: str = ""  # empty: of all channels


class DescribeGroup(NamedTuple):
    channel: str
    group: str
    pending: bool = False  # also who holds what


class DeleteGroup(NamedTuple):
    channel: str
    group: str


Command = (
    CreateChannel
    | ListChannels
    | DescribeChannel
    | UpdateChannel
    | DeleteChannel
    | PurgeChannel
    | Publish
    | CancelSchedule
    | ListSchedules
    | Redrive
    | Pull
    | Ack
    | Nack
    | Reject
    | Extend
    | Commit
    | Seek
    | Leave
    | Transact
    | CreateGroup
    | UpdateGroup
    | ListGroups
    | DescribeGroup
    | DeleteGroup
)
