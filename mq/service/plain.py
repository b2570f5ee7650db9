"""The smallest publish, channel and content and nothing else, read and answered without protobuf. Pure.

It is what every client of the first broker sends, and at small sizes protobuf's objects would cost more than the
broker does. Whatever looks different is left to the general way; tests compare the two.
"""

from __future__ import annotations

from functools import lru_cache

from mq.command import Publish
from mq.reply import PublishReply
from mq.service.edge import Edge

_CHANNEL_TAG = 0x0A  # PublishRequest.channel = 1
_CONTENT_TAG = 0x12  # PublishRequest.content = 2
_MOST_NAMES = 4_096

_names: dict[bytes, str] = {}  # the bytes of a channel field -> its name, which was found valid


def read(request: bytes, edge: Edge) -> Publish | None:
    """The command in a plain request to a channel that was remembered; None: parse it."""
    size = len(request)
    if size < 5 or request[0] != _CHANNEL_TAG:
        return None
    at = request[1] + 2
    name = _names.get(request[:at])
    if name is None or size < at + 3 or request[at] != _CONTENT_TAG:
        return None
    length, start = request[at + 1], at + 2
    if length >= 0x80:
        length, start = length & 0x7F | request[start] << 7, start + 1
        if not 0x80 <= length < 0x4000:
            return None
    if not length or start + length != size or size > edge.message_bytes:
        return None
    # BatchMessage.content is field 1, so only the tag differs; around it goes Batch.messages, field 1 too
    return Publish(name, _opening(size - at) + request[at + 1 :], 1)


def remember(request: bytes, name: str) -> None:
    """A request to a channel of this name was parsed and found valid."""
    field = bytes((_CHANNEL_TAG, len(name))) + name.encode()
    if request.startswith(field) and len(name) < 0x80:
        if len(_names) >= _MOST_NAMES:
            _names.clear()
        _names[field] = name


def answer(reply: PublishReply) -> bytes | None:
    """A PublishResponse, as protobuf would write it; None where there is more to say than where and when."""
    if reply.schedule_id or reply.duplicate or reply.partition:
        return None
    offset = reply.base_offset
    tail = _tail(reply.timestamp_us, reply.durable)
    if offset < 0x80:
        return b"\x10%c%b" % (offset, tail) if offset else tail
    return b"\x10%c%b%b" % (offset & 0x7F | 0x80, varint(offset >> 7), tail)


@lru_cache(1_024)  # offsets follow each other, so that all but their lowest bits were seen before
def varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


@lru_cache(1_024)
def _opening(size: int) -> bytes:
    return b"\x0a" + varint(size) + b"\x0a"


@lru_cache(64)  # publishes that share a record share its time
def _tail(timestamp_us: int, durable: int) -> bytes:
    time = b"\x18" + varint(timestamp_us) if timestamp_us else b""
    return time + (b"\x20" + varint(durable) if durable else b"")
