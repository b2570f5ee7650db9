"""What is said for every small message, read and written without protobuf. Pure.

The smallest publish, channel and content and nothing else, is what every client of the first broker sends; and at
small sizes protobuf's objects would cost more than the broker does. Whatever looks different is left to the general
way; tests compare the two. A field may be written with 0 in it, which protobuf leaves out: readers find the same.
"""

from __future__ import annotations

from functools import lru_cache

from mq.command import Publish
from mq.reply import PublishReply, PulledBatch
from mq.service.edge import Edge
from wal.varint import varint

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
    """A PublishResponse; None where there is more to say than where and when."""
    if reply.schedule_id or reply.duplicate or reply.partition:
        return None
    return b"\x10%b%b" % (varint(reply.base_offset), _tail(reply.timestamp_us, reply.durable))


def batch_answer(reply: PublishReply) -> bytes | None:
    """A PublishBatchResponse, likewise."""
    if reply.schedule_id or reply.duplicate or reply.placements:
        return None
    place, count, time_us = varint(reply.base_offset), varint(reply.count), varint(reply.timestamp_us)
    told = b"\x10%b\x18%b\x20%b\x28%b" % (place, count, time_us, varint(reply.durable))
    return b"\x08" + varint(reply.partition) + told if reply.partition else told


def pulled(batch: PulledBatch) -> bytes:
    """A PulledBatch up to the messages themselves, which are its last field."""
    place, count, time_us = varint(batch.base_offset), varint(batch.count), varint(batch.timestamp_us)
    head = b"\x08%b\x10%b\x18%b\x20%b" % (varint(batch.partition), place, count, time_us)
    if batch.offset_deltas:
        deltas = b"".join(map(varint, batch.offset_deltas))
        head += b"\x2a%b%b" % (varint(len(deltas)), deltas)
    if receipt := batch.receipt:
        until_us = varint(batch.lease_until_us)
        head += b"\x32%b%b\x38%b\x40%b" % (varint(len(receipt)), receipt, varint(batch.delivery_count), until_us)
    return b"%b\x7a%b" % (head, varint(len(batch.batch)))


@lru_cache(1_024)
def _opening(size: int) -> bytes:
    return b"\x0a" + varint(size) + b"\x0a"


@lru_cache(64)  # publishes that share a record share its time
def _tail(timestamp_us: int, durable: int) -> bytes:
    return b"\x18%b\x20%b" % (varint(timestamp_us), varint(durable))
