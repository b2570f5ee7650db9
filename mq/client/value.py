"""What users hand in and get out: bytes as they are, text and JSON with a content type, or a codec's objects. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol

from mq.client import codec
from mq.client.codec import HeaderValue

CONTENT_TYPE = "content-type"
TEXT = "text/plain; charset=utf-8"
JSON = "application/json"


class Codec(Protocol):
    """Turns a user's objects into bytes and back."""

    def encode(self, value: Any) -> bytes: ...

    def decode(self, content: bytes) -> Any: ...


class JsonCodec:
    """Objects as JSON.

    >>> mq.JsonCodec().encode({"a": 1})
    b'{"a":1}'
    """

    def encode(self, value: Any) -> bytes:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()

    def decode(self, content: bytes) -> Any:
        return json.loads(content)


class MessagePackCodec:
    """Objects as MessagePack; needs the package `msgpack`.

    >>> mq.MessagePackCodec().encode([1, 2])
    b'\\x92\\x01\\x02'
    """

    def __init__(self) -> None:
        try:
            msgpack = import_module("msgpack")
        except ImportError:
            raise ImportError("MessagePackCodec needs msgpack: pip install msgpack") from None
        self._pack: Callable[[Any], bytes] = msgpack.packb
        self._unpack: Callable[[bytes], Any] = msgpack.unpackb

    def encode(self, value: Any) -> bytes:
        return self._pack(value)

    def decode(self, content: bytes) -> Any:
        return self._unpack(content)


class ProtobufCodec:
    """Messages of one generated protobuf class.

    >>> from google.protobuf.timestamp_pb2 import Timestamp
    >>> codec = mq.ProtobufCodec(Timestamp)
    >>> codec.decode(codec.encode(Timestamp(seconds=7))).seconds
    7
    """

    def __init__(self, message_class: type[Any]) -> None:
        self._class = message_class

    def encode(self, value: Any) -> bytes:
        data: bytes = value.SerializeToString()
        return data

    def decode(self, content: bytes) -> Any:
        return self._class.FromString(content)


def key_of(key: str | bytes | None) -> bytes | None:
    """A key as bytes. Raises TypeError."""
    if isinstance(key, str):
        return key.encode()
    if key is None or isinstance(key, bytes):
        return key
    raise TypeError(f"a key is str or bytes, not {type(key).__name__}")


def content_of(value: Any, made_by: Codec | None = None) -> tuple[bytes, str]:
    """A value's bytes, and its content type where that is known. Raises TypeError."""
    if made_by is not None:
        return made_by.encode(value), ""
    if isinstance(value, bytes):
        return value, ""
    if isinstance(value, bytearray | memoryview):
        return bytes(value), ""
    if isinstance(value, str):
        return value.encode(), TEXT
    return JsonCodec().encode(value), JSON


def message_of(
    value: Any,
    key: str | bytes | None = None,
    headers: Mapping[str, HeaderValue] | None = None,
    made_by: Codec | None = None,
) -> bytes:
    """A message of a batch, from what a user hands in. Raises TypeError."""
    if type(value) is bytes and made_by is None:
        if key is None and not headers:
            return codec.HEADS[len(value)] + value
        return codec.message(value, key_of(key), codec.headers_of(headers) if headers else b"")
    content, content_type = content_of(value, made_by)
    if content_type and CONTENT_TYPE not in (headers or ()):
        headers = {CONTENT_TYPE: content_type, **(headers or {})}
    return codec.message(content, key_of(key), codec.headers_of(headers) if headers else b"")


def batches_of(
    values: Sequence[Any], key: str | bytes | None, made_by: Codec | None, limit_bytes: int
) -> Iterator[tuple[int, bytes]]:
    """Many values as the bytes of batches, in order and none above the limit unless it is a single message."""
    if key is None and made_by is None and set(map(type, values)) == {bytes}:
        joined = codec.join(values)
        if len(joined) <= limit_bytes or len(values) == 1:
            yield len(values), joined
            return
    elif len(values) == 1:
        yield 1, message_of(values[0], key, None, made_by)
        return
    else:
        messages = [message_of(value, key, None, made_by) for value in values]
        if sum(map(len, messages)) <= limit_bytes:
            yield len(messages), b"".join(messages)
            return
    middle = len(values) // 2
    yield from batches_of(values[:middle], key, made_by, limit_bytes)
    yield from batches_of(values[middle:], key, made_by, limit_bytes)
