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
from wal.varint import same_varint, varint

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
    told = b"\x10%b\x20%b%b" % (
        varint(reply.base_offset),
        same_varint(reply.timestamp_us),
        _kind(reply.count, reply.durable),
    )
    return b"\x08" + varint(reply.partition) + told if reply.partition else told


def pulled(batch: PulledBatch) -> bytes:
    """A PulledBatch up to the messages themselves, which are its last field."""
    receipt, shape = batch.receipt, _shape(batch.partition, batch.count, batch.delivery_count)
    head = b"%b\x10%b\x20%b" % (shape, varint(batch.base_offset), same_varint(batch.timestamp_us))
    if batch.offset_deltas:
        deltas = b"".join(map(varint, batch.offset_deltas))
        head += b"\x2a%b%b" % (varint(len(deltas)), deltas)
    if receipt:
        head += b"\x40%b\x32%b%b" % (varint(batch.lease_until_us), same_varint(len(receipt)), receipt)
    return b"%b\x7a%b" % (head, same_varint(len(batch.batch)))


@lru_cache(1_024)
def _shape(partition: int, count: int, delivery_count: int) -> bytes:
    """What one PulledBatch has in common with many."""
    shape = b"\x08%b\x18%b" % (varint(partition), varint(count))
    return b"%b\x38%b" % (shape, varint(delivery_count)) if delivery_count else shape


@lru_cache(1_024)
def _kind(count: int, durable: int) -> bytes:
    """What one PublishBatchResponse has in common with many."""
    return b"\x18%b\x28%b" % (varint(count), varint(durable))


@lru_cache(1_024)
def _opening(size: int) -> bytes:
    return b"\x0a" + varint(size) + b"\x0a"


@lru_cache(64)  # publishes that share a record share its time
def _tail(timestamp_us: int, durable: int) -> bytes:
    return b"\x18%b\x20%b" % (varint(timestamp_us), varint(durable))
