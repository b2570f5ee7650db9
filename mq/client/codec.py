"""Batches as bytes, without a protobuf object for each message. Pure: values in, bytes out, and back.

    Batch          0a <length> message, again and again
    BatchMessage   0a <length> content, 12 <length> key, 1a <length> header, again and again
    Header         0a <length> name, 12 <length> value

What stands before a content depends on its length alone, so it is looked up. Where all contents of a batch have one
length, the batch is that head, and the contents joined by it. `tests/test_client_codec.py` compares with protobuf.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mq.pb import mq_pb2 as pb

HeaderValue = str | bytes

_MESSAGE = b"\x0a"  # Batch.messages = 1
_CONTENT = b"\x0a"  # BatchMessage.content = 1
_KEY = b"\x12"  # BatchMessage.key = 2
_HEADER = b"\x1a"  # BatchMessage.headers = 3
_BATCH = b"\x7a"  # PublishBatchRequest.batch = 15
_SMALL = [bytes([value]) for value in range(0x80)]
_CONTINUED = [bytes([value | 0x80]) for value in range(0x80)]
_SHORTEST_HEAD, _LONGEST_HEAD = 4, 12  # of a content: two tags, and two numbers of up to five bytes
_REMEMBERED = 1 << 16  # heads of longer contents are made when needed: their content costs more than the head


def varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    if value < 0x80:
        return _SMALL[value]
    out = b""
    while value > 0x7F:
        out += _CONTINUED[value & 0x7F]
        value >>= 7
    return out + _SMALL[value]


class _Heads(dict[int, bytes]):
    """What stands before a content of a given length, in a message that has nothing else."""

    def __missing__(self, length: int) -> bytes:
        content = _CONTENT + varint(length) if length else b""  # an empty field is not written
        head = _MESSAGE + varint(len(content) + length) + content
        if length < _REMEMBERED:
            self[length] = head
        return head


HEADS = _Heads()


class _Strides(dict[int, bytes]):
    """The same by the length of the whole message; empty where there is none such, or its content is empty."""

    def __missing__(self, stride: int) -> bytes:
        sizes = range(_SHORTEST_HEAD, min(_LONGEST_HEAD, stride - 1) + 1)
        head = next((HEADS[stride - size] for size in sizes if len(HEADS[stride - size]) == size), b"")
        if stride < _REMEMBERED:
            self[stride] = head
        return head


_STRIDES = _Strides()


def message(content: bytes, key: bytes | None = None, headers: bytes = b"") -> bytes:
    """One message of a batch; its headers as `headers_of` made them."""
    if key is None and not headers:
        return HEADS[len(content)] + content
    pieces = [_CONTENT, varint(len(content)), content] if content else []
    if key is not None:
        pieces += (_KEY, varint(len(key)), key)
    pieces.append(headers)
    return _MESSAGE + varint(sum(map(len, pieces))) + b"".join(pieces)


def headers_of(headers: Mapping[str, HeaderValue]) -> bytes:
    """The header fields of a message. Raises TypeError where a value is neither text nor bytes."""
    pieces: list[bytes] = []
    for name, value in headers.items():
        if not isinstance(value, str | bytes):
            raise TypeError(f"header {name!r}: a value is str or bytes, not {type(value).__name__}")
        data = value.encode() if isinstance(value, str) else value
        field = pb.Header(name=name, value=data).SerializeToString()
        pieces += (_HEADER, varint(len(field)), field)
    return b"".join(pieces)


def join(contents: Sequence[bytes]) -> bytes:
    """The batch of many contents without keys and headers."""
    lengths = set(map(len, contents))
    if len(lengths) == 1:
        return HEADS[lengths.pop()].join((b"", *contents))
    pieces: list[bytes] = []
    for content in contents:
        pieces += (HEADS[len(content)], content)
    return b"".join(pieces)


def publish_request(head: bytes, batch: Sequence[bytes]) -> bytes:
    """A PublishBatchRequest: its other fields serialized, and the pieces of its batch."""
    return b"".join((head, _BATCH, varint(sum(map(len, batch))), *batch))


def split(batch: bytes, count: int) -> list[bytes] | None:
    """The contents of a batch whose messages are alike: one length, no key, no headers. None: it is not such a one."""
    stride, remainder = divmod(len(batch), count) if count else (0, 0)
    head = _STRIDES[stride]
    if remainder or not head or not batch.startswith(head):
        return None
    size = len(head)
    if count == 1:
        return [batch[size:]]
    # The first message fills its stride exactly; so does each one that begins with the same head.
    for place, byte in enumerate(head):
        if batch[place::stride].count(byte) != count:
            return None
    return [batch[start : start + stride - size] for start in range(size, len(batch), stride)]
