"""Published batches: checked without making an object of each message. Pure: bytes in, a count out, or an error.

A batch is stored and handed out as it came, so it must be well-formed; one parse at the speed of C shows that. A
hostile batch packs two million empty messages, or headers, into 4 MiB, and parsing it fully would take 400 MB. So a
large one is first read as lists of plain bytes (proto/raw.proto), counted, and parsed fully only where it has headers:
without them the counting has looked at every field there is.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from mq.errors import InvalidArgument, MessageTooLarge
from mq.pb import mq_pb2 as pb
from mq.pb import raw_pb2 as raw
from mq.service.edge import Edge
from wal.varint import varint

_MESSAGE_TAG = b"\x0a"  # Batch.messages = 1
_CONTENT_TAG = b"\x0a"  # BatchMessage.content = 1
_KEY_TAG = b"\x12"  # BatchMessage.key = 2
_HEADER_TAG = b"\x1a"  # BatchMessage.headers = 3
_BATCH_TAG = 0x7A  # PublishBatchRequest.batch = 15


def split(request: bytes) -> tuple[bytes, bytes] | None:
    """A PublishBatchRequest without its batch, and the batch: spares the copy that parsing the whole would make.

    None where the batch is not the last field, as it is from every generated client, or anything looks odd.
    """
    at, size = 0, len(request)
    while at < size:
        tag = request[at]
        if tag == _BATCH_TAG:
            length, start = _read_varint(request, at + 1)
            return (request[:at], request[start:]) if start + length == size else None
        if tag & 0x87 == 0x02:
            length, at = _read_varint(request, at + 1)
            at += length
        elif tag & 0x87 == 0x00:
            _, at = _read_varint(request, at + 1)
        else:
            return None
    return None


def check(batch: bytes, edge: Edge) -> int:
    """The number of messages in a batch. Raises InvalidArgument, MessageTooLarge."""
    try:
        count = (
            _check_large(batch, edge) if len(batch) > edge.shallow_bytes else len(pb.Batch.FromString(batch).messages)
        )
    except DecodeError:
        raise InvalidArgument("batch is not well-formed") from None
    if not 0 < count <= edge.batch_messages:
        raise InvalidArgument(f"a batch has from 1 to {edge.batch_messages} messages; this one has {count}")
    return count


def _check_large(batch: bytes, edge: Edge) -> int:
    messages = raw.Batch.FromString(batch).messages
    count = len(messages)
    if count > edge.batch_messages:
        return count
    headers = len(raw.MergedBatch.FromString(batch).messages.headers)
    if headers > edge.headers:
        raise InvalidArgument(f"a batch has at most {edge.headers} headers; this one has {headers}")
    if headers:
        pb.Batch.FromString(batch)
    if len(batch) > edge.message_bytes and (size := max(map(len, messages))) > edge.message_bytes:
        raise MessageTooLarge(f"a message has at most {edge.message_bytes} bytes; one has {size}")
    return count


def of_one(content: bytes, key: bytes | None, headers: list[bytes], edge: Edge) -> bytes:
    """The batch that holds a single message; headers are serialized already. Raises MessageTooLarge."""
    pieces = [_CONTENT_TAG, varint(len(content)), content]
    if key is not None:
        pieces += [_KEY_TAG, varint(len(key)), key]
    for header in headers:
        pieces += [_HEADER_TAG, varint(len(header)), header]
    size = sum(map(len, pieces))
    if size > edge.message_bytes:
        raise MessageTooLarge(f"a message has at most {edge.message_bytes} bytes; this one has {size}")
    return b"".join([_MESSAGE_TAG, varint(size), *pieces])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A number and where it ends; past the end of the data it ends past it, too."""
    value = shift = 0
    for at in range(at, min(at + 10, len(data))):  # noqa: B020
        value |= (data[at] & 0x7F) << shift
        if data[at] < 0x80:
            return value, at + 1
        shift += 7
    return value, len(data) + 1
