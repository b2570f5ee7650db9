"""The wire's frames, as docs/wire.md specifies them. Bytes in, values out; no sockets here.

    0       4       8     10     12
    +-------+-------+------+------+-------------+
    |length |  id   | code | flags|   payload   |
    +-------+-------+------+------+-------------+

Little-endian. `length` counts the payload. `id` names the request that a frame belongs to, in both directions. `code`
is a method in a request, a status in an answer, or one of the control codes from 0x8000 on.
"""

from __future__ import annotations

import struct
from typing import Final

MAGIC: Final = b"mqwire\r\n"  # first bytes in both directions; no HTTP, TLS or text protocol begins like this
VERSION: Final = 1  # the highest that is spoken here
OLDEST_VERSION: Final = 1
HEADER_BYTES: Final = 12

CONTROL: Final = 0x8000  # codes from here on are not methods, nor statuses
HELLO: Final = 0x8000
WELCOME: Final = 0x8001
PING: Final = 0x8002
PONG: Final = 0x8003
CANCEL: Final = 0x8004
DRAIN: Final = 0x8005
GOODBYE: Final = 0x8006

MORE: Final = 1  # flag: further frames of this request, or of this answer, follow

OK: Final = 0

# The numbers are for ever; a new method gets a new one.
METHODS: Final[dict[str, int]] = {
    "mq.MQService/CreateChannel": 1,
    "mq.MQService/Publish": 2,
    "mq.MQService/Subscribe": 3,
    "mq.MQService/PublishBatch": 4,
    "mq.MQService/PublishStream": 5,
    "mq.MQService/Pull": 6,
    "mq.MQService/Ack": 7,
    "mq.MQService/Nack": 8,
    "mq.MQService/Reject": 9,
    "mq.MQService/Extend": 10,
    "mq.MQService/Commit": 11,
    "mq.MQService/Seek": 12,
    "mq.MQService/Leave": 13,
    "mq.MQService/Transact": 14,
    "mq.AdminService/ListChannels": 64,
    "mq.AdminService/DescribeChannel": 65,
    "mq.AdminService/UpdateChannel": 66,
    "mq.AdminService/DeleteChannel": 67,
    "mq.AdminService/PurgeChannel": 68,
    "mq.AdminService/CreateGroup": 69,
    "mq.AdminService/UpdateGroup": 70,
    "mq.AdminService/ListGroups": 71,
    "mq.AdminService/DescribeGroup": 72,
    "mq.AdminService/DeleteGroup": 73,
    "mq.AdminService/ListSegments": 74,
    "mq.AdminService/RotateSegment": 75,
    "mq.AdminService/ServerInfo": 76,
    "mq.AdminService/Redrive": 77,
    "mq.AdminService/ListSchedules": 78,
    "mq.AdminService/CancelSchedule": 79,
    "mq.AdminService/InstallSegments": 80,
    "mq.AdminService/CreateBackup": 81,
    "mq.AdminService/DescribeBackup": 82,
}

# gRPC's numbers, so that every language has a table of them.
STATUS: Final[dict[str, int]] = {
    "OK": OK,
    "CANCELLED": 1,
    "UNKNOWN": 2,
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "NOT_FOUND": 5,
    "ALREADY_EXISTS": 6,
    "PERMISSION_DENIED": 7,
    "RESOURCE_EXHAUSTED": 8,
    "FAILED_PRECONDITION": 9,
    "ABORTED": 10,
    "OUT_OF_RANGE": 11,
    "UNIMPLEMENTED": 12,
    "INTERNAL": 13,
    "UNAVAILABLE": 14,
    "DATA_LOSS": 15,
    "UNAUTHENTICATED": 16,
}

# The most of an announced frame that is set aside before its bytes are there: so many times what came of it.
GROWTH: Final = 4

_HEADER = struct.Struct("<IIHH")
pack_header = _HEADER.pack

Frame = tuple[int, int, int, bytes]
"""id, code, flags, payload. A plain tuple: one is made for every message."""


class FrameTooLong(Exception):
    """The peer announced a frame that is longer than it may be; nothing after it can be read."""


def pack(id_: int, code: int, flags: int = 0, payload: bytes = b"") -> bytes:
    """A whole frame."""
    return pack_header(len(payload), id_, code, flags) + payload


class Inbox:
    """Puts a stream of bytes together to frames, reading large ones into their final place.

    The scratch buffer may be shared by all connections of a thread: between two reads an inbox keeps only the bytes of
    an unfinished frame, so that an idle connection holds none. A length that was only announced costs nothing: memory
    follows the bytes that came.
    """

    __slots__ = ("_filled", "_partial", "_scratch", "_whole", "max_bytes")

    def __init__(self, scratch: bytearray, max_bytes: int) -> None:
        self.max_bytes = max_bytes  # of a payload
        self._scratch = scratch
        self._partial: bytearray | None = None  # an unfinished frame
        self._filled = 0  # how much of it is there
        self._whole = 0  # how long it will be; a header's length while not even that is known

    @property
    def held_bytes(self) -> int:
        """Memory that an unfinished frame takes."""
        return 0 if self._partial is None else len(self._partial)

    def room(self) -> memoryview:
        """Where the next bytes are to be read to."""
        if self._partial is None:
            return memoryview(self._scratch)
        return memoryview(self._partial)[self._filled :]

    def received(self, count: int) -> list[Frame]:
        """So many bytes were read; the frames that are whole now. Raises FrameTooLong."""
        partial = self._partial
        if partial is None:
            if count >= HEADER_BYTES:
                length, id_, code, flags = _HEADER.unpack_from(self._scratch)
                if length == count - HEADER_BYTES <= self.max_bytes:  # one frame, as from whoever waits for its answer
                    return [(id_, code, flags, bytes(memoryview(self._scratch)[HEADER_BYTES:count]))]
            with memoryview(self._scratch) as scratch:
                if count >= HEADER_BYTES and self._read_whole(scratch) > count:
                    self._keep(scratch[:count])  # a large frame begins: no need to look for others
                    return []
                return self._split(bytes(scratch[:count]))
        self._filled += count
        if self._filled < len(partial):
            return []
        if len(partial) == HEADER_BYTES < self._read_whole(partial) or len(partial) < self._whole:
            self._grow(partial)
            return []
        self._partial = None
        _, id_, code, flags = _HEADER.unpack_from(partial)
        return [(id_, code, flags, bytes(memoryview(partial)[HEADER_BYTES:]))]

    def _split(self, data: bytes) -> list[Frame]:
        frames: list[Frame] = []
        unpack, most = _HEADER.unpack_from, self.max_bytes
        start, end = 0, len(data)
        while (body := start + HEADER_BYTES) <= end:
            length, id_, code, flags = unpack(data, start)
            if length > most:
                raise FrameTooLong(f"a frame of {length} bytes, {most} are allowed")
            stop = body + length
            if stop > end:
                break
            frames.append((id_, code, flags, data[body:stop]))
            start = stop
        if start < end:
            self._keep(memoryview(data)[start:])
        return frames

    def _keep(self, rest: memoryview) -> None:
        """The beginning of a frame, perhaps not even its header."""
        size = self._filled = len(rest)
        self._whole = HEADER_BYTES if size < HEADER_BYTES else self._read_whole(rest)
        self._partial = bytearray(self._room_for(size))
        self._partial[:size] = rest

    def _room_for(self, filled: int) -> int:
        """In proportion to what is there."""
        return min(self._whole, GROWTH * max(filled, 1 << 10))

    def _read_whole(self, header: memoryview | bytearray) -> int:
        length = int.from_bytes(header[:4], "little")
        if length > self.max_bytes:
            raise FrameTooLong(f"a frame of {length} bytes, {self.max_bytes} are allowed")
        self._whole = HEADER_BYTES + length
        return self._whole

    def _grow(self, partial: bytearray) -> None:
        """Make room for more. A new buffer: a view of the old one may be out."""
        self._partial = bytearray(self._room_for(self._filled))
        self._partial[: len(partial)] = partial
