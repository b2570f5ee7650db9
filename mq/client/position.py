"""Where to start reading: "earliest", "latest", or one of the functions here. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from mq.errors import InvalidArgument
from mq.pb import mq_pb2 as pb


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a channel; made by `at_offset`, `at_time` and `last`."""

    kind: str
    value: int


Start = str | Place


def at_offset(offset: int) -> Place:
    """The message with this offset.

    >>> mq.at_offset(42)
    Place(kind='offset', value=42)
    """
    if offset < 0:
        raise InvalidArgument(f"an offset is not negative: {offset}")
    return Place("offset", offset)


def at_time(when: datetime | float) -> Place:
    """The first message not older than a time: a datetime (UTC where it has no zone), or seconds since the epoch.

    >>> mq.at_time(datetime(2030, 1, 1))
    Place(kind='time', value=1893456000000000)
    """
    if isinstance(when, datetime):
        when = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    return Place("time", round(when * 1_000_000))


def last(count: int) -> Place:
    """So many messages before the end, in each partition.

    >>> mq.last(10)
    Place(kind='last', value=10)
    """
    if count < 0:
        raise InvalidArgument(f"a count is not negative: {count}")
    return Place("last", count)


def start_of(start: Start) -> pb.Start:
    """As the API takes it. Raises InvalidArgument."""
    if isinstance(start, Place):
        if start.kind == "offset":
            return pb.Start(offset=start.value)
        if start.kind == "time":
            return pb.Start(time_us=start.value)
        return pb.Start(last=start.value)
    if start == "earliest":
        return pb.Start(earliest=True)
    if start == "latest":
        return pb.Start(latest=True)
    raise InvalidArgument(f"start is 'earliest', 'latest', mq.at_offset(n), mq.at_time(t) or mq.last(n), not {start!r}")
