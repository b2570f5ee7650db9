"""The messages of a segment as Arrow record batches, as a consumer would get them. Imports no pyspark.

Every record that gives messages an offset counts: a publish, a delayed one that came due, a dead letter, those inside a
transaction. What is known per record or per publish is spread over its messages by numpy; nothing happens per message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from wal.check import undecodable
from wal.errors import CorruptSegment
from wal.frame import Frame
from wal.index import INDEXED
from wal.record import Published, decode, end_offset, published_in
from wal.segment import Gap
from wal.spark.read.catalog import Catalog
from wal.spark.read.decode import CHUNK_BYTES, CHUNK_MESSAGES, HEADERS
from wal.spark.read.decode import COLUMNS as OF_MESSAGE
from wal.spark.read.decode import decode as decode_batches
from wal.spark.read.listing import Segment
from wal.spark.read.parts import Parts, parts_of

TIME = pa.timestamp("us", "UTC")
CORRUPT = "_corrupt_record"

MESSAGES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "channel": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": TIME,
    "headers": HEADERS,
    "log_uuid": pa.string(),
    "channel_id": pa.int64(),
    "sequence": pa.int64(),
    "segment": pa.string(),
    "position": pa.int64(),
    "producer": pa.string(),
    "producer_sequence": pa.int64(),
    "deliver_at": TIME,
    "ttl_ms": pa.int64(),
}

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Filter:
    """Which messages are wanted."""

    channel_ids: frozenset[int] | None = None  # None: all
    from_us: int | None = None  # from_us <= timestamp < to_us
    to_us: int | None = None
    now_us: int | None = None  # None: also those that are trimmed, expired, or of deleted channels

    def wants(self, published: Published, catalog: Catalog) -> bool:
        """Whether some message of a publish may be wanted."""
        if self.channel_ids is not None and published.channel_id not in self.channel_ids:
            return False
        if self.from_us is not None and published.max_timestamp_us < self.from_us:
            return False
        if self.to_us is not None and published.min_timestamp_us >= self.to_us:
            return False
        if self.now_us is None:
            return True
        if published.ttl_ms and self.now_us >= published.max_timestamp_us + published.ttl_ms * 1000:
            return False
        start = catalog.starts.get((published.channel_id, published.partition), 0)
        return catalog.is_live(published.channel_id) and end_offset(published) > start


EVERYTHING = Filter()


@dataclass(slots=True)
class Chunk:
    """Publishes that are turned into rows together."""

    published: list[Published] = field(default_factory=list)
    sequences: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    messages: int = 0
    bytes: int = 0

    @property
    def is_full(self) -> bool:
        return self.messages >= CHUNK_MESSAGES or self.bytes >= CHUNK_BYTES

    def add(self, published: Published, frame: Frame) -> None:
        self.published.append(published)
        self.sequences.append(frame.sequence)
        self.positions.append(frame.position)
        self.messages += published.count
        self.bytes += len(published.batch)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A range that could not be read, on its way to the caller."""

    segment: str
    gap: Gap

    def __str__(self) -> str:
        gap = self.gap
        sequences = f"sequences {gap.first_sequence} to {gap.last_sequence}"
        return f"{self.segment}, bytes {gap.position} to {gap.end}, {sequences}: {gap.reason}"

    def raise_it(self) -> None:
        raise CorruptSegment(self.segment, self.gap.position, str(self.gap.reason), "mq wal verify lists what is lost")


def messages(
    items: Iterable[Frame | Gap],
    segment: Segment,
    columns: Sequence[str],
    catalog: Catalog,
    selection: Filter = EVERYTHING,
) -> Iterator[pa.RecordBatch | LeftOut]:
    """The wanted messages of a segment's frames in the order of the log, and each damaged range in its place."""
    chunk = Chunk()
    for item in items:
        if isinstance(item, Gap):
            if chunk.published:
                yield from _rows(chunk, segment, columns, catalog, selection)
                chunk = Chunk()
            yield LeftOut(segment.name, item)
            continue
        if item.type not in INDEXED:
            continue
        try:
            found = list(published_in(decode(item.type, item.payload)))
        except DecodeError:
            yield LeftOut(segment.name, undecodable(item))
            continue
        for published in found:
            if selection.wants(published, catalog):
                chunk.add(published, item)
        if chunk.is_full:
            yield from _rows(chunk, segment, columns, catalog, selection)
            chunk = Chunk()
    if chunk.published:
        yield from _rows(chunk, segment, columns, catalog, selection)


def _rows(
    chunk: Chunk, segment: Segment, columns: Sequence[str], catalog: Catalog, selection: Filter
) -> Iterator[pa.RecordBatch | LeftOut]:
    spread = _Spread(chunk, segment, columns, catalog)
    for at in spread.malformed:
        position, sequence = chunk.positions[at], chunk.sequences[at]
        yield LeftOut(segment.name, Gap(position, position, sequence, sequence, "the batch can't be decoded"))
    arrays = [spread.column(name) for name in columns]
    mask = spread.mask(selection, catalog)
    schema = pa.schema([pa.field(name, MESSAGES[name]) for name in columns])
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    yield batch if mask is None else batch.filter(pa.array(mask))


class _Spread:
    """The columns of a chunk: what a record knows once, repeated for each of its messages."""

    def __init__(self, chunk: Chunk, segment: Segment, columns: Sequence[str], catalog: Catalog) -> None:
        self.chunk, self.segment, self.catalog = chunk, segment, catalog
        wanted = [name for name in columns if name in OF_MESSAGE]
        decoded = decode_batches([published.batch for published in chunk.published], wanted)
        self.decoded, self.malformed = decoded.columns, list(decoded.malformed)
        self.counts = decoded.counts
        self.total = int(self.counts.sum())
        self.first = np.cumsum(self.counts) - self.counts  # the row of each record's first message
        self.offsets = self._offsets()
        self._parts: tuple[Parts, NDArray[np.intp]] | None = None

    def column(self, name: str) -> pa.Array:
        if name in self.decoded:
            return self.decoded[name]
        return getattr(self, f"_{name}")()

    def mask(self, selection: Filter, catalog: Catalog) -> NDArray[np.bool_] | None:
        """Which messages of the chunk are wanted; None: all. Most records are wanted whole."""
        mask: NDArray[np.bool_] | None = self.offsets >= 0 if self.malformed else None
        if selection.now_us is not None:
            starts = [catalog.starts.get((each.channel_id, each.partition), 0) for each in self.chunk.published]
            if any(each.base_offset < start for each, start in zip(self.chunk.published, starts, strict=True)):
                kept = self.offsets >= self._each(starts)
                mask = kept if mask is None else mask & kept
        low, high = selection.from_us, selection.to_us
        if low is not None or high is not None:
            times = self._times()
            within = (times >= (low or 0)) & (times < (np.iinfo(np.int64).max if high is None else high))
            mask = within if mask is None else mask & within
        return None if mask is None or mask.all() else mask

    def _each(self, values: Sequence[int]) -> Integers:
        return np.repeat(np.asarray(values, np.int64), self.counts)

    def _offsets(self) -> Integers:
        """base + i, except where compaction left holes."""
        bases = np.asarray([published.base_offset for published in self.chunk.published], np.int64)
        offsets: Integers = np.arange(self.total, dtype=np.int64) + np.repeat(bases - self.first, self.counts)
        for at, published in enumerate(self.chunk.published):
            if published.offset_deltas and self.counts[at]:
                deltas = np.asarray(published.offset_deltas, np.int64)
                rows = slice(self.first[at], self.first[at] + self.counts[at])
                if len(deltas) == self.counts[at]:
                    offsets[rows] = published.base_offset + deltas
                else:
                    self.malformed.append(at)
                    offsets[rows] = -1
        return offsets

    def _part_of_each(self) -> tuple[Parts, NDArray[np.intp]]:
        """Every publish of the chunk, and which of them each message is of."""
        if self._parts is None:
            parts = parts_of(self.chunk.published)
            begins = np.cumsum(parts.counts) - parts.counts
            owner = np.repeat(begins, self.counts)
            for at in np.flatnonzero(parts.counts > 1):
                rows = slice(self.first[at], self.first[at] + self.counts[at])
                bases = parts.base_offsets[begins[at] : begins[at] + parts.counts[at]]
                owner[rows] += np.maximum(np.searchsorted(bases, self.offsets[rows], side="right") - 1, 0)
            self._parts = parts, owner
        return self._parts

    def _times(self) -> Integers:
        parts, owner = self._part_of_each()
        return parts.timestamps_us.take(owner)

    # ------------------------------------------------------------ columns

    def _channel(self) -> pa.Array:
        return self._of_record([self.catalog.names.get(each.channel_id) for each in self.chunk.published], pa.string())

    def _partition(self) -> pa.Array:
        return pa.array(self._each([published.partition for published in self.chunk.published]).astype(np.int32))

    def _offset(self) -> pa.Array:
        return pa.array(self.offsets)

    def _timestamp(self) -> pa.Array:
        return pa.array(self._times()).cast(TIME)

    def _log_uuid(self) -> pa.Array:
        return self._same(self.segment.log_uuid)

    def _channel_id(self) -> pa.Array:
        return pa.array(self._each([published.channel_id for published in self.chunk.published]))

    def _sequence(self) -> pa.Array:
        return pa.array(self._each(self.chunk.sequences))

    def _segment(self) -> pa.Array:
        return self._same(self.segment.name)

    def _position(self) -> pa.Array:
        return pa.array(self._each(self.chunk.positions))

    def _producer(self) -> pa.Array:
        parts, owner = self._part_of_each()
        return self._take(parts.producers, owner)

    def _producer_sequence(self) -> pa.Array:
        parts, owner = self._part_of_each()
        return self._take(parts.sequences, owner)

    def _deliver_at(self) -> pa.Array:
        return self._of_record([each.due_us or None for each in self.chunk.published], pa.int64()).cast(TIME)

    def _ttl_ms(self) -> pa.Array:
        return self._of_record([each.ttl_ms or None for each in self.chunk.published], pa.int64())

    def _of_record(self, values: Sequence[Any], type_: pa.DataType) -> pa.Array:
        """What each record has, for its messages. Often it is the same for all of them."""
        if len(set(values)) == 1:
            return _repeated(values[0], type_, self.total)
        return self._take(pa.array(values, type_), np.repeat(np.arange(len(self.counts)), self.counts))

    def _take(self, values: pa.Array, owner: NDArray[np.intp]) -> pa.Array:
        if len(values) == values.null_count:
            return pa.nulls(self.total, values.type)
        return values.take(pa.array(owner))

    def _same(self, text: str) -> pa.Array:
        return _repeated(text, pa.string(), self.total)


def _repeated(value: Any, type_: pa.DataType, count: int) -> pa.Array:
    return pa.nulls(count, type_) if value is None else _long(value, type_, 1 << count.bit_length()).slice(0, count)


@lru_cache(maxsize=8)
def _long(value: Any, type_: pa.DataType, count: int) -> pa.Array:
    """Every chunk needs such an array, and nearly always one that was there before."""
    return pa.repeat(pa.scalar(value, type_), count)
