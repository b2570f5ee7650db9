"""Fields of many protobuf messages at a time: what decoders of columns are made of. No I/O, no pyspark here.

The messages lie in one run of bytes, and all of them advance together, field by field: a field's tag is looked for
where each message has got to, and its varints are read by numpy for the whole column, so a message costs no Python
object. That works on what every protobuf writer makes: known fields in the order of their numbers. Anything else
raises `Unusual`, and whoever asked has another way.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_LENGTH_BYTES = 5  # of a varint that is a length; a longer one is legal, and unusual
_VARINT_BYTES = 10

Bytes: TypeAlias = NDArray[np.uint8]
Integers: TypeAlias = NDArray[np.intp]
Mask: TypeAlias = NDArray[np.bool_]


class Unusual(Exception):
    """The bytes are not what a protobuf writer makes at first hand."""


class Span(NamedTuple):
    """Where a field's bytes are in each message; empty where it is absent."""

    has: Mask
    start: Integers
    stop: Integers


def widths(lengths: Integers) -> Integers:
    """Bytes that each length takes as a varint."""
    taken = np.ones(len(lengths), np.intp)
    for bits in range(7, 35, 7):
        above = lengths >= 1 << bits
        if not above.any():
            break
        taken += above
    return taken


def field(raw: Bytes, at: Integers, end: Integers, tag: int) -> Span:
    """A length-delimited field that may come next in each message."""
    has = has_tag(raw, at, end, tag)
    if not has.any():
        return Span(has, at, at)
    if has.all():
        start, length = _length(raw, at + 1)
        stop = start + length
    else:
        start, stop = at.copy(), at.copy()
        present = np.flatnonzero(has)
        begin, length = _length(raw, at[present] + 1)
        start[present], stop[present] = begin, begin + length
    if (stop > end).any():
        raise Unusual
    return Span(has, start, stop)


def _length(raw: Bytes, at: Integers) -> tuple[Integers, Integers]:
    """The varints at the given places: where the bytes behind them begin, and how many those are."""
    byte = raw.take(at, mode="clip").astype(np.intp)
    length, behind = byte & 0x7F, at + 1
    going_on = np.flatnonzero(byte >= 0x80)
    for shift in range(7, 7 * _LENGTH_BYTES, 7):
        if not len(going_on):
            return behind, length
        byte = raw.take(behind[going_on], mode="clip").astype(np.intp)
        length[going_on] |= (byte & 0x7F) << shift
        behind[going_on] += 1
        going_on = going_on[byte >= 0x80]
    if len(going_on):
        raise Unusual
    return behind, length


def varint(raw: Bytes, at: Integers, end: Integers, tag: int) -> tuple[NDArray[np.int64], Integers]:
    """A number that may come next in each message, 0 where it does not, and where each message goes on."""
    values, behind = np.zeros(len(at), np.int64), at.copy()
    going_on = np.flatnonzero(has_tag(raw, at, end, tag))
    behind[going_on] += 1
    for shift in range(0, 7 * _VARINT_BYTES, 7):
        if not len(going_on):
            return values, behind
        byte = raw.take(behind[going_on], mode="clip").astype(np.int64)
        values[going_on] |= (byte & 0x7F) << shift
        behind[going_on] += 1
        if (behind[going_on] > end[going_on]).any():
            raise Unusual
        going_on = going_on[byte >= 0x80]
    if len(going_on):
        raise Unusual
    return values, behind


def fixed32(raw: Bytes, at: Integers, end: Integers, tag: int) -> Integers:
    """Where each message goes on after a field of four bytes that may come next."""
    behind = at + 5 * has_tag(raw, at, end, tag)
    if (behind > end).any():
        raise Unusual
    return behind


def has_tag(raw: Bytes, at: Integers, end: Integers, tag: int) -> Mask:
    has: Mask = at < end
    if len(raw):
        has &= raw.take(at, mode="clip") == tag
    return has


def gather(joined: bytes, start: Integers, stop: Integers, has: Mask | None = None) -> pa.Array:
    """The bytes of rising spans, one after the other; null where `has` says so.

    Spans and what lies between them are one Arrow array over the bytes as they are; taking every other element makes
    Arrow do the copying.
    """
    if not len(start):
        return pa.array([], pa.binary())
    edges = np.empty(2 * len(start), np.int32)
    edges[0::2], edges[1::2] = start, stop
    buffers: list[Any] = [None, pa.py_buffer(edges), pa.py_buffer(joined)]
    spans = pa.Array.from_buffers(pa.binary(), len(edges) - 1, buffers)
    chosen = np.arange(0, len(edges), 2, dtype=np.int32)
    return spans.take(pa.array(chosen, mask=None if has is None or has.all() else ~has))
