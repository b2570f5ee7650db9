"""A publish on its way into the log, which others join: the record of the hot path. No I/O here.

It holds plain values, and is written as a `Published` without an object of it: for a single small publish, that would
cost as much as all of the rest of the log.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TypeAlias

from wal.varint import varint

# One publish in a record: where it begins, when it came, and of an idempotent one its producer, sequence and CRC32C.
# It ends where the next one begins.
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
        base, count = varint(self.base_offset), varint(self.end_offset - self.base_offset)
        oldest = youngest = varint(parts[0][1])
        if len(parts) == 1:
            told = _part(base, count, oldest, parts[0])
        else:
            ends = [part[0] for part in parts[1:]] + [self.end_offset]
            told = b"".join(
                [
                    _part(varint(part[0]), varint(end - part[0]), varint(part[1]), part)
                    for part, end in zip(parts, ends, strict=True)
                ]
            )
            times = [part[1] for part in parts]
            oldest, youngest = varint(min(times)), varint(max(times))
        place = _place(self.channel_id, self.partition)
        head = b"%b\x18%b\x20%b%b\x30%b\x38%b" % (place, base, count, told, oldest, youngest)
        return head + b"\x40" + varint(self.ttl_ms) if self.ttl_ms else head


def _part(base: bytes, count: bytes, time_us: bytes, part: JoinedPart) -> bytes:
    """A field with a Part in it."""
    _, _, producer, sequence, crc = part
    if producer:
        who = b"%b\x20%b\x2d%b" % (_producer(producer), varint(sequence), _pack_crc(crc))
        told = b"\x08%b\x10%b%b\x30%b" % (base, count, who, time_us)
    else:
        told = b"\x08%b\x10%b\x30%b" % (base, count, time_us)
    return b"\x2a%b%b" % (varint(len(told)), told)


@lru_cache(1_024)
def _place(channel_id: int, partition: int) -> bytes:
    return b"\x08%b\x10%b" % (varint(channel_id), varint(partition))


@lru_cache(1_024)
def _producer(name: str) -> bytes:
    data = name.encode()
    return b"\x1a%b%b" % (varint(len(data)), data)
