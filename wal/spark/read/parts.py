"""The publishes that share a record, as columns: who published when. Imports no pyspark; no I/O here.

Single publishes meet in one record, hundreds of them, so a part may be as frequent as a message: then they are decoded
side by side, as messages are. Where parts are few, or of an unusual form, they are read one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wal.pb.wal_pb2 import OpaquePublished
from wal.record import Published
from wal.spark.read.lockstep import Integers, Unusual, field, fixed32, gather, varint

MANY = 8  # parts to a record; from so many on it pays to decode them side by side
# the tags of Part, in the order of its fields
_BASE_OFFSET, _COUNT, _PRODUCER, _SEQUENCE, _CRC, _TIMESTAMP = 0x08, 0x10, 0x1A, 0x20, 0x2D, 0x30


class Parts(NamedTuple):
    """The parts of some records, in order. A record without any counts as one."""

    counts: Integers  # parts of each record
    base_offsets: NDArray[np.int64]
    timestamps_us: NDArray[np.int64]
    producers: pa.Array  # null: not an idempotent publish
    sequences: pa.Array  # null likewise


def parts_of(records: Sequence[Published]) -> Parts:
    counts = np.fromiter((len(record.parts) for record in records), np.intp, len(records))
    if len(records) and counts.min() > 0 and counts.sum() >= MANY * len(records):
        try:
            return _in_step(records, counts)
        except Unusual:
            pass
    return _one_by_one(records, counts)


def _in_step(records: Sequence[Published], counts: Integers) -> Parts:
    pieces = [part for record in records for part in OpaquePublished.FromString(record.SerializeToString()).parts]
    joined = b"".join(pieces)
    raw = np.frombuffer(joined, np.uint8)
    lengths = np.fromiter(map(len, pieces), np.intp, len(pieces))
    end = np.cumsum(lengths)
    base_offsets, at = varint(raw, end - lengths, end, _BASE_OFFSET)
    _, at = varint(raw, at, end, _COUNT)
    producer = field(raw, at, end, _PRODUCER)
    sequences, at = varint(raw, producer.stop, end, _SEQUENCE)
    at = fixed32(raw, at, end, _CRC)
    timestamps, at = varint(raw, at, end, _TIMESTAMP)
    if (at != end).any():
        raise Unusual
    named = producer.has & (producer.stop > producer.start)
    names = gather(joined, producer.start, producer.stop, named).view(pa.string())
    return Parts(counts, base_offsets, timestamps, names, pa.array(sequences, mask=~named))


def _one_by_one(records: Sequence[Published], counts: Integers) -> Parts:
    bases, times, producers, sequences = [], [], [], []
    for record in records:
        for part in record.parts:
            bases.append(part.base_offset)
            times.append(part.timestamp_us)
            producers.append(part.producer or None)
            sequences.append(part.sequence if part.producer else None)
        if not record.parts:
            bases.append(record.base_offset)
            times.append(record.min_timestamp_us)
            producers.append(None)
            sequences.append(None)
    return Parts(
        np.maximum(counts, 1),
        np.asarray(bases, np.int64),
        np.asarray(times, np.int64),
        pa.array(producers, pa.string()),
        pa.array(sequences, pa.int64()),
    )
