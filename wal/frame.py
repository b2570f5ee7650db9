"""Frames: a record on disk. Bytes in, values out; no files here.

    0       4       8      12      16      20              28              36
    +-------+-------+-------+-------+-------+---------------+---------------+----------------+
    |  crc  | sync  | head  |length | type  |   sequence    |    durable    |    payload     |
    +-------+-------+-------+-------+-------+---------------+---------------+----------------+

All integers are little-endian and unsigned.

* `crc`: CRC32C over the segment's salt and everything after this field. It decides whether a frame is intact.
* `sync`: the first four bytes of the salt. After damage a reader looks for them to find the next frame, at the
  speed of a substring search; payloads can't imitate them, because the salt never leaves the machine.
* `head`: CRC32C over the salt and the fields behind it. It lets a reader believe `length` when only the payload is
  damaged, and makes that search linear: nothing is read because of a length that nobody vouches for.
* `sequence`: +1 with every frame of a segment that is written live, only rising in a rewritten one.
* `durable`: the highest sequence known to be durable when this frame was written. If it covers damage that lies
  before it, that damage hit something that was already safe: corruption, never a torn write.

A zero type is never valid, so zeroed bytes are no frame, whatever the salt.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from mmap import mmap
from typing import NamedTuple, TypeAlias

import google_crc32c

HEADER_BYTES = 36
MAX_PAYLOAD_BYTES = 64 << 20  # checked before anything is allocated for a frame

Buffer: TypeAlias = bytes | mmap

_HEADER = struct.Struct("<IIIIIQQ")
_CHECKED = struct.Struct("<IIQQ")  # length, type, sequence, durable: what `head` covers
_PREFIX = struct.Struct("<II")
_CRC = struct.Struct("<I")
_ZEROS = bytes(1 << 16)
_COPIED_TWICE_BYTES = 4096  # payloads below this: a second copy costs less than a second call for the CRC

crc32c = google_crc32c.value
extend_crc32c = google_crc32c.extend


class Salt(NamedTuple):
    """A segment's random bytes, and what every frame takes from them."""

    raw: bytes
    crc: int  # where every CRC of the segment starts from
    sync: int

    @classmethod
    def of(cls, salt: bytes) -> Salt:
        return cls(salt, crc32c(salt), int.from_bytes(salt[:4], "little"))


class Frame(NamedTuple):
    """An intact frame."""

    position: int
    type: int
    sequence: int
    durable: int
    crc: int
    payload: bytes


class Head(NamedTuple):
    """A frame's header that passed its own check; the payload may still be damaged."""

    position: int
    end: int
    type: int
    sequence: int
    durable: int


def encode(
    salt: Salt, type_: int, sequence: int, durable: int, pieces: Sequence[bytes], length: int | None = None
) -> tuple[bytes, int]:
    """The header for a payload given in pieces (and their length, where it is known), and the frame's CRC."""
    if length is None:
        length = sum(map(len, pieces))
    checked = _CHECKED.pack(length, type_, sequence, durable)
    body = _PREFIX.pack(salt.sync, extend_crc32c(salt.crc, checked)) + checked
    crc = extend_crc32c(salt.crc, body)
    for piece in pieces:
        crc = extend_crc32c(crc, piece)
    return _CRC.pack(crc) + body, crc


def scan(buffer: Buffer, salt: Salt, start: int, base: int = 0) -> Iterator[Frame]:
    """The intact frames that follow each other from `start`; ends at the first bytes that are none.

    `base` is the file position of the buffer's first byte.
    """
    unpack, extend, seed, size = _HEADER.unpack_from, extend_crc32c, salt.crc, len(buffer)
    last_header = size - HEADER_BYTES
    while start <= last_header:
        crc, _, _, length, type_, sequence, durable = unpack(buffer, start)
        end = start + HEADER_BYTES + length
        if end > size or length > MAX_PAYLOAD_BYTES or not type_:
            return
        if length < _COPIED_TWICE_BYTES:
            covered = buffer[start + 4 : end]
            found, payload = extend(seed, covered), covered[32:]
        else:
            payload = buffer[start + HEADER_BYTES : end]
            found = extend(extend(seed, buffer[start + 4 : start + HEADER_BYTES]), payload)
        if found != crc:
            return
        yield Frame(base + start, type_, sequence, durable, crc, payload)
        start = end


def read_head(buffer: Buffer, salt: Salt, start: int, base: int = 0) -> Head | None:
    """The header at `start` if it is intact and says nothing impossible."""
    if start + HEADER_BYTES > len(buffer):
        return None
    _, sync, head, length, type_, sequence, durable = _HEADER.unpack_from(buffer, start)
    if sync != salt.sync or not type_ or not sequence or length > MAX_PAYLOAD_BYTES:
        return None
    if extend_crc32c(salt.crc, buffer[start + 12 : start + HEADER_BYTES]) != head:
        return None
    return Head(base + start, base + start + HEADER_BYTES + length, type_, sequence, durable)


def find_head(buffer: Buffer, salt: Salt, start: int, base: int = 0) -> Head | None:
    """The next intact header at or after `start`. Linear in the buffer, whatever it holds."""
    needle = salt.raw[:4]
    found = buffer.find(needle, start + 4)
    while found >= 0:
        head = read_head(buffer, salt, found - 4, base)
        if head is not None:
            return head
        found = buffer.find(needle, found + 1)
    return None


def last_nonzero(buffer: bytes) -> int:
    """The end of the last byte that is not zero; 0 where all are. Compares: stripping goes byte by byte."""
    end, step = len(buffer), len(_ZEROS)
    while end > 0:
        chunk = buffer[max(0, end - step) : end]
        if chunk != _ZEROS[: len(chunk)]:
            return end - len(chunk) + len(chunk.rstrip(b"\0"))
        end -= len(chunk)
    return 0


def first_nonzero(buffer: Buffer, start: int) -> int:
    """The position of the first byte that is not zero, or the buffer's size."""
    size, step = len(buffer), len(_ZEROS)
    while start < size:
        chunk = buffer[start : start + step]
        if chunk != _ZEROS[: len(chunk)]:
            return start + len(chunk) - len(chunk.lstrip(b"\0"))
        start += step
    return size
