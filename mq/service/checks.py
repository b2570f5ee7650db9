"""Checks that many requests share: names, numbers, lists. Pure; a failure is InvalidArgument and names the field."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from mq.command import EARLIEST, Position, Receipt, Start
from mq.errors import InvalidArgument
from mq.pb import mq_pb2 as pb
from mq.service.edge import Edge

M = TypeVar("M", bound=Message)

NAME_LENGTH = 128
NEW_CHANNEL_LENGTH = 120  # the rest is for the names that the broker derives: <channel>.dlq
LONGEST_MS = 100 * 366 * 24 * 3600 * 1_000  # a hundred years: adding it to a time still fits 64 bits
LONGEST_REASON = 1_024
KNOWN = 4_096  # names that were found right and are not looked at again

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MEMBER = re.compile(r"[!-~]{1,128}")


def parse(kind: type[M], request: bytes) -> M:
    """The message in a request's bytes."""
    try:
        return kind.FromString(request)
    except DecodeError:
        raise InvalidArgument(f"the request is no {kind.DESCRIPTOR.name}") from None


def is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


@lru_cache(KNOWN)
def channel(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise _bad_name("channel", name, NAME_LENGTH)
    return name


def new_channel(name: str) -> str:
    if len(name) > NEW_CHANNEL_LENGTH or not _NAME.fullmatch(name):
        raise _bad_name("channel", name, NEW_CHANNEL_LENGTH)
    return name


@lru_cache(KNOWN)
def group(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise _bad_name("group", name, NAME_LENGTH)
    return name


@lru_cache(KNOWN)
def member(name: str) -> str:
    if not _MEMBER.fullmatch(name):
        raise InvalidArgument(f"member {_shown(name)} is not from 1 to 128 visible ASCII characters")
    return name


@lru_cache(KNOWN)
def producer(name: str) -> str:
    if not _MEMBER.fullmatch(name):
        raise InvalidArgument(f"producer_id {_shown(name)} is not from 1 to 128 visible ASCII characters")
    return name


def milliseconds(field: str, value: int) -> int:
    if value > LONGEST_MS:
        raise InvalidArgument(f"{field} is more than a hundred years")
    return value


def durability(value: int) -> int:
    if value not in (pb.DURABILITY_DEFAULT, pb.FSYNC, pb.OS):
        raise InvalidArgument("durability is FSYNC or OS, or is not set")
    return value


def start(message: pb.Start) -> Start:
    at = message.WhichOneof("at")
    if at is None or at == "earliest":
        return EARLIEST
    if at == "latest":
        return Start("latest")
    return Start(at.removesuffix("_us"), getattr(message, at))


def positions(items: Sequence[pb.Position]) -> list[Position]:
    if len({item.partition for item in items}) != len(items):
        raise InvalidArgument("positions name a partition twice")
    return [Position(item.partition, item.offset) for item in items]


def receipts(items: Sequence[pb.Receipt], edge: Edge) -> list[Receipt]:
    if len(items) > edge.receipts:
        raise InvalidArgument(f"a request has at most {edge.receipts} receipts; this one has {len(items)}")
    return [Receipt(item.receipt or _no_receipt(), _ranges(item.ranges, edge) if item.ranges else ()) for item in items]


def some_receipts(items: Sequence[pb.Receipt], edge: Edge) -> list[Receipt]:
    if not items:
        raise InvalidArgument("receipts is empty")
    return receipts(items, edge)


def _no_receipt() -> bytes:
    raise InvalidArgument("a receipt is empty")


def _ranges(items: Iterable[pb.OffsetRange], edge: Edge) -> list[tuple[int, int]]:
    ranges = [(item.start, item.end) for item in items]
    if len(ranges) > edge.receipts:
        raise InvalidArgument(f"a receipt has at most {edge.receipts} ranges; this one has {len(ranges)}")
    for first, end in ranges:
        if first >= end:
            raise InvalidArgument(f"the range from {first} to {end} is empty")
    return ranges


def _bad_name(what: str, name: str, length: int) -> InvalidArgument:
    if not name:
        return InvalidArgument(f"{what} is empty")
    return InvalidArgument(
        f"{what} {_shown(name)} is no name: it has up to {length} letters, digits, '.', '_' and '-', "
        "and starts with a letter or digit"
    )


def _shown(name: str) -> str:
    """A foreign string, short and escaped."""
    return ascii(name if len(name) <= 40 else name[:40] + "…")
