"""Message batches into Arrow columns, many messages at a time. Imports no pyspark; no I/O here.

A batch is `repeated BatchMessage`, and concatenated batches are one valid batch: so a few MB of them are joined and
decoded at once. All messages advance together, field by field, with the varints of a whole column read by numpy; a
message costs no Python object. That works on what every protobuf writer makes: known fields in the order of their
numbers. Anything else on the wire (unknown fields, another order, a field that comes twice) is legal too: then the
batches are parsed by protobuf and written again, which puts them into that form.

    decoded = decode(batches, ("key", "value"))
    offsets = np.repeat(base_offsets, decoded.counts)       # what is known per batch, spread over its messages
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from wal.pb.wal_pb2 import Batch, OpaqueBatch, OpaqueMessage
from wal.spark.read.lockstep import Bytes, Integers, Unusual, field, gather, widths

# What to hand over at once: enough to make numpy's calls cheap, little enough to stay in the processor's caches.
CHUNK_MESSAGES = 131_072
CHUNK_BYTES = 16 << 20

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string(), False), pa.field("value", pa.binary(), False)]))
COLUMNS: dict[str, pa.DataType] = {
    "key": pa.binary(),  # null: the message has none
    "value": pa.binary(),
    "headers": HEADERS,  # never null; names as Spark's Kafka source has them
    "size": pa.int32(),  # bytes of the value
}

_CONTENT, _KEY, _HEADER = 0x0A, 0x12, 0x1A  # the tags of BatchMessage; those of Header are the first two
_ROUNDS = 32  # so many headers of each message are found side by side; who has more is served one by one


class Decoded(NamedTuple):
    """The messages of some batches, in order."""

    columns: dict[str, pa.Array]  # those that were asked for
    counts: Integers  # messages of each batch
    malformed: list[int]  # batches that protobuf can't parse: no writer of ours made them, and they count 0


def decode(batches: Sequence[bytes], columns: Collection[str] = tuple(COLUMNS)) -> Decoded:
    """The named columns of all messages in the batches. What is not asked for is not looked into.

    The batches together have less than 2 GiB; CHUNK_MESSAGES and CHUNK_BYTES say what is fast.
    """
    try:
        return Decoded(*_in_step(batches, columns), [])
    except Unusual:
        plain = [_rewritten(batch) for batch in batches]
    malformed = [index for index, batch in enumerate(plain) if batch is None]
    return Decoded(*_in_step([batch or b"" for batch in plain], columns), malformed)


def keyed(batch: bytes) -> tuple[Integers, NDArray[np.bool_]] | None:
    """Where each message of a batch ends, and which of them have a key; None where it is written in an unusual way."""
    try:
        at, end, _ = _messages(batch, [len(batch)])
        raw = np.frombuffer(batch, np.uint8)
        return end, field(raw, field(raw, at, end, _CONTENT).stop, end, _KEY).has
    except Unusual:
        return None


def _rewritten(batch: bytes) -> bytes | None:
    """The same messages in the form that decodes in step; None where the bytes are no batch."""
    try:
        parsed = Batch.FromString(batch)
    except DecodeError:
        return None
    parsed.DiscardUnknownFields()
    return parsed.SerializeToString()


def _in_step(batches: Sequence[bytes], columns: Collection[str]) -> tuple[dict[str, pa.Array], Integers]:
    joined = b"".join(batches)
    at, end, counts = _messages(joined, [len(batch) for batch in batches])
    raw = np.frombuffer(joined, np.uint8)
    content = field(raw, at, end, _CONTENT)
    key = field(raw, content.stop, end, _KEY)
    owners, start, stop = _headers(joined, raw, key.stop, end)
    made: dict[str, pa.Array] = {}
    for name in columns:
        if name == "value":
            made[name] = gather(joined, content.start, content.stop)
        elif name == "key":
            made[name] = gather(joined, key.start, key.stop, key.has)
        elif name == "size":
            made[name] = pa.array((content.stop - content.start).astype(np.int32))
        elif name == "headers":
            made[name] = _header_lists(joined, raw, len(at), owners, start, stop)
        else:
            raise ValueError(f"{name!r} is no column of a message; there are {', '.join(COLUMNS)}")
    return made, counts


def _messages(joined: bytes, sizes: Sequence[int]) -> tuple[Integers, Integers, Integers]:
    """Where each message begins and ends, and how many each batch has."""
    try:
        parsed = OpaqueBatch.FromString(joined).messages
    except DecodeError:
        raise Unusual from None
    lengths = np.fromiter(map(len, parsed), np.intp, len(parsed))
    end = np.cumsum(lengths + 1 + widths(lengths))
    # Protobuf writes nothing but messages here, and lengths as short as can be: then, and only then, this adds up.
    if (end[-1] if len(end) else 0) != len(joined):
        raise Unusual
    batch_ends = np.cumsum(np.asarray(sizes, np.intp))
    messages_before = np.searchsorted(end, batch_ends, side="right")
    bounds = np.concatenate(([0], end))
    if not np.array_equal(bounds[messages_before], batch_ends):
        raise Unusual  # a batch that ends within a message is none, also where the next one completes it
    return end - lengths, end, np.diff(messages_before, prepend=0)


def _headers(joined: bytes, raw: Bytes, at: Integers, end: Integers) -> tuple[Integers, Integers, Integers]:
    """All headers in the order of the bytes: the message of each, where it begins and where it ends."""
    owners, starts, stops = [], [], []
    rest = np.flatnonzero(at < end)
    at = at.copy()
    for _ in range(_ROUNDS):
        if not len(rest):
            break
        header = field(raw, at[rest], end[rest], _HEADER)
        if not header.has.all():
            raise Unusual
        owners.append(rest)
        starts.append(header.start)
        stops.append(header.stop)
        at[rest] = header.stop
        rest = rest[header.stop < end[rest]]
    for message in rest:
        start, stop = _many_headers(joined[at[message] : end[message]], at[message])
        owners.append(np.full(len(start), message))
        starts.append(start)
        stops.append(stop)
    if not owners:
        return at[:0], at[:0], at[:0]
    owner, start, stop = np.concatenate(owners), np.concatenate(starts), np.concatenate(stops)
    order = np.argsort(start)
    return owner[order], start[order], stop[order]


def _many_headers(tail: bytes, base: int) -> tuple[Integers, Integers]:
    """The headers of one message that has very many: a hostile one must not make a round for each of them."""
    try:
        parsed = OpaqueMessage.FromString(tail).headers
    except DecodeError:
        raise Unusual from None
    lengths = np.fromiter(map(len, parsed), np.intp, len(parsed))
    stop = np.cumsum(lengths + 1 + widths(lengths))
    if stop[-1] != len(tail):
        raise Unusual
    return base + stop - lengths, base + stop


def _header_lists(
    joined: bytes, raw: Bytes, messages: int, owners: Integers, start: Integers, stop: Integers
) -> pa.Array:
    name = field(raw, start, stop, _CONTENT)
    value = field(raw, name.stop, stop, _KEY)
    if (value.stop != stop).any():
        raise Unusual
    names = gather(joined, name.start, name.stop).view(pa.string())
    try:
        names.validate(full=True)
    except pa.ArrowInvalid:  # protobuf refuses a string that is not UTF-8
        raise Unusual from None
    values = gather(joined, value.start, value.stop)
    offsets = np.zeros(messages + 1, np.int32)
    np.cumsum(np.bincount(owners, minlength=messages), out=offsets[1:])
    entries = pa.StructArray.from_arrays([names, values], fields=list(HEADERS.value_type))
    return pa.ListArray.from_arrays(pa.array(offsets), entries, type=HEADERS)
