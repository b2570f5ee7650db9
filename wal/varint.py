"""Numbers as protobuf writes them, for the few messages that are written without its objects. Pure."""

from __future__ import annotations

from functools import lru_cache

_LAST = [bytes([value]) for value in range(0x80)]
_MORE = [bytes([value | 0x80]) for value in range(0x80)]
_REMEMBERED = 4_096


def varint(value: int) -> bytes:
    """A number that is not negative, seven bits to a byte."""
    if value < 0x80:
        return _LAST[value]
    if value < 0x4000:
        return _MORE[value & 0x7F] + _LAST[value >> 7]
    return _MORE[value & 0x7F] + _MORE[value >> 7 & 0x7F] + _rest(value >> 14)


@lru_cache(_REMEMBERED)  # offsets and times follow each other, so that all but their lowest bits were seen before
def _rest(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


same_varint = lru_cache(64)(varint)  # few, so that what is given up for a new time is still in the processor's cache
"""The same for numbers that are likely to be asked for again: a publish's time is written in several places."""


def number(tag: bytes, value: int) -> bytes:
    """A field with a number in it, which protobuf leaves out where that is 0."""
    return tag + varint(value) if value else b""
