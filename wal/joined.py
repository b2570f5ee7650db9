"""A publish on its way into the log, which others join: the record of the hot path. No I/O here.

It holds plain values, and is written in the bytes that protobuf would write for a `Published`, without an object of it:
for a single small publish, that would cost as much as all of the rest of the log.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TypeAlias

from wal.varint import number, same_varint, varint

# One publish in a record: where it begins, when it came (not 0), and of an idempotent one its producer, sequence and
# CRC32C. It ends where the next one begins.
JoinedPart: TypeAlias = tuple[int, int, str, int, int]

_pack_crc = struct.Struct("<I").pack


class Joined:
    """A Published that publishes join one after the other, until it is appended. It has one part or more by then."""

    __slots__ = ("base_offset", "channel_id", "end_offset", "partition", "parts", "pieces", "size", "ttl_ms")

    def __init__(self, channel_id: int, partition: int, base_offset: int, ttl_ms: int) -> None:
        self.channel_id = channel_id
        self.partition = partition
        self.base_offset = self.end_offset = base_offset
        self.ttl_ms = ttl_ms
        self.size = 0  # of the pieces
        self.pieces: list[bytes] = []  # of its batch
        self.parts: list[JoinedPart] = []

    def head(self) -> bytes:
        """The message up to its batch, which is the last field."""
        parts = self.parts
        if len(parts) == 1:
            told = _part(parts[0], self.end_offset)
            oldest = youngest = same_varint(parts[0][1])
        else:
            ends = [part[0] for part in parts[1:]] + [self.end_offset]
            told = b"".join(map(_part, parts, ends))
            times = [part[1] for part in parts]
            oldest, youngest = same_varint(min(times)), same_varint(max(times))
        place = _place(self.channel_id, self.partition)
        base, count = number(b"\x18", self.base_offset), same_varint(self.end_offset - self.base_offset)
        ttl = number(b"\x40", self.ttl_ms)
        return b"%b%b\x20%b%b\x30%b\x38%b%b" % (place, base, count, told, oldest, youngest, ttl)


def _part(part: JoinedPart, end: int) -> bytes:
    """A field with a Part in it."""
    base, time_us, producer, sequence, crc = part
    told = b"%b\x10%b" % (number(b"\x08", base), same_varint(end - base))
    if producer:
        told += _producer(producer) + number(b"\x20", sequence)
        if crc:
            told += b"\x2d" + _pack_crc(crc)
    told = b"%b\x30%b" % (told, same_varint(time_us))
    return b"\x2a%b%b" % (same_varint(len(told)), told)


@lru_cache(1_024)
def _place(channel_id: int, partition: int) -> bytes:
    return number(b"\x08", channel_id) + number(b"\x10", partition)


@lru_cache(1_024)
def _producer(name: str) -> bytes:
    data = name.encode()
    return b"\x1a%b%b" % (varint(len(data)), data)
