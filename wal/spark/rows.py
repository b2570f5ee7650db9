"""The messages in a segment's frames as rows, in Arrow. Imports no pyspark; whoever calls opens the files.

The one place that knows which records publish messages (Published, DeadLettered, and both inside an Atomic), which
offset and which time each message has, and what a row is called. A message is a row when it has its offset: a delayed
publish is one when it comes out, a cancelled one never.

A channel's id becomes a name by what the caller knows; an id without a name reads `#<id>`, which no name can be.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from wal.frame import HEADER_BYTES as FRAME_BYTES
from wal.frame import Frame
from wal.record import ATOMIC, DEAD_LETTERED, PUBLISHED, Published, decode, published_in
from wal.segment import Gap
from wal.spark import decode as batches
from wal.spark.listing import Segment

TIME = pa.timestamp("us", tz="UTC")
# As Spark's Kafka source names them, and what only the log knows.
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        pa.field("value", pa.binary(), False),
        pa.field("headers", batches.HEADERS, False),
        pa.field("channel", pa.string(), False),
        pa.field("partition", pa.int32(), False),
        pa.field("offset", pa.int64(), False),
        pa.field("timestamp", TIME, False),
        pa.field("sequence", pa.int64(), False),  # of the record that holds it
        pa.field("segment", pa.string(), False),
        pa.field("position", pa.int64(), False),  # of that record's frame in the segment
        ("producer", pa.string()),  # null: not an idempotent publish
        ("producer_sequence", pa.int64()),
        ("deliver_at", TIME),  # null: not a delayed publish; else when it came out
        ("ttl_ms", pa.int64()),  # null: it never expires
        pa.field("log_uuid", pa.string(), False),
    ]
)

_PUBLISHING = frozenset({PUBLISHED, DEAD_LETTERED, ATOMIC})


class Choice(NamedTuple):
    """What is asked for."""

    columns: tuple[str, ...] = tuple(SCHEMA.names)
    channels: frozenset[str] | None = None  # None: all of them
    from_us: int | None = None  # timestamps at or after this
    to_us: int | None = None  # and before this


class _Place(NamedTuple):
    """A publish in the log."""

    frame: Frame
    published: Published
    channel: str


def rows(
    items: Iterable[Frame | Gap],
    segment: Segment,
    names: Mapping[int, str],
    choice: Choice | None = None,
    report: Callable[[Gap], None] = lambda gap: None,
) -> Iterator[pa.RecordBatch]:
    """The chosen messages among a segment's frames, in log order, in record batches of about CHUNK_MESSAGES rows.

    Gaps are handed to `report`; so is a frame that is intact and no record of ours.
    """
    choice = choice or Choice()
    held: list[_Place] = []
    messages = size = 0
    for item in items:
        if isinstance(item, Gap):
            report(item)
            continue
        if item.type not in _PUBLISHING:
            continue
        try:
            places = [_Place(item, each, "") for each in published_in(decode(item.type, item.payload))]
        except DecodeError:
            report(_unreadable(item))
            continue
        for place in places:
            published = place.published
            channel = names.get(published.channel_id) or f"#{published.channel_id}"
            if not _may_hold(choice, channel, published):
                continue
            held.append(place._replace(channel=channel))
            messages += published.count
            size += len(published.batch)
        if messages >= batches.CHUNK_MESSAGES or size >= batches.CHUNK_BYTES:
            yield from _record_batches(held, segment, choice, report)
            held, messages, size = [], 0, 0
    yield from _record_batches(held, segment, choice, report)


def schema_of(columns: Collection[str]) -> pa.Schema:
    """The types of the named columns, in the order of the names. Raises ValueError."""
    for name in columns:
        if name not in SCHEMA.names:
            raise ValueError(f"{name!r} is no column of a message; there are {', '.join(SCHEMA.names)}")
    return pa.schema([SCHEMA.field(name) for name in columns])


def _may_hold(choice: Choice, channel: str, published: Published) -> bool:
    if choice.channels is not None and channel not in choice.channels:
        return False
    if choice.from_us is not None and published.max_timestamp_us < choice.from_us:
        return False
    return choice.to_us is None or published.min_timestamp_us < choice.to_us


def _record_batches(
    held: list[_Place], segment: Segment, choice: Choice, report: Callable[[Gap], None]
) -> Iterator[pa.RecordBatch]:
    if not held:
        return
    wanted = [name for name in choice.columns if name in batches.COLUMNS]
    decoded = batches.decode([place.published.batch for place in held], wanted)
    odd = {index for index, place in enumerate(held) if decoded.counts[index] != place.published.count}
    if odd:  # never seen: the broker counts before it writes
        for index in sorted(odd):
            report(_unreadable(held[index].frame))
        rest = [place for index, place in enumerate(held) if index not in odd]
        yield from _record_batches(rest, segment, choice, report)
        return
    columns = dict(decoded.columns)
    spread = _Spread(held, decoded.counts)
    for name in choice.columns:
        if name not in columns:
            columns[name] = spread.column(name, segment)
    batch = pa.record_batch([columns[name] for name in choice.columns], schema=schema_of(choice.columns))
    if choice.from_us is not None or choice.to_us is not None:
        mask = spread.within(choice)
        if not mask.all():
            batch = batch.filter(pa.array(mask))
    if batch.num_rows:
        yield batch


class _Spread:
    """What is known of each publish, spread over its messages."""

    def __init__(self, held: list[_Place], counts: NDArray[np.intp]) -> None:
        self._held = held
        self._counts = counts
        self._parts: tuple[NDArray[np.intp], NDArray[np.int64], list[str], NDArray[np.int64]] | None = None

    def column(self, name: str, segment: Segment) -> pa.Array:
        held, total = self._held, int(self._counts.sum())
        if name == "channel":
            return self._strings([place.channel for place in held], self._counts)
        if name == "partition":
            return pa.array(self._each([place.published.partition for place in held], np.int32))
        if name == "offset":
            return pa.array(self._offsets())
        if name == "sequence":
            return pa.array(self._each([place.frame.sequence for place in held]))
        if name == "position":
            return pa.array(self._each([place.frame.position for place in held]))
        if name == "segment":
            return pa.repeat(pa.scalar(segment.name), total)
        if name == "log_uuid":
            return pa.repeat(pa.scalar(segment.log_uuid), total)
        if name == "ttl_ms":
            ttls = self._each([place.published.ttl_ms for place in held])
            return pa.array(ttls, mask=ttls == 0)
        if name == "deliver_at":
            delayed = self._each([place.published.schedule_id != 0 for place in held], np.bool_)
            return pa.array(self.timestamps(), mask=~delayed).cast(TIME)
        return self._of_part(name)

    def within(self, choice: Choice) -> NDArray[np.bool_]:
        """Whose timestamp is in the chosen range."""
        times = self.timestamps()
        mask = np.ones(len(times), np.bool_)
        if choice.from_us is not None:
            mask &= times >= choice.from_us
        if choice.to_us is not None:
            mask &= times < choice.to_us
        return mask

    def timestamps(self) -> NDArray[np.int64]:
        spans, times, _, _ = self._by_part()
        return np.repeat(times, spans)

    def _of_part(self, name: str) -> pa.Array:
        spans, _, producers, sequences = self._by_part()
        if name == "timestamp":
            return pa.array(self.timestamps()).cast(TIME)
        if name == "producer":
            return self._strings([producer or None for producer in producers], spans)
        if name == "producer_sequence":
            anonymous = np.asarray([not producer for producer in producers], np.bool_)
            return pa.array(np.repeat(sequences, spans), mask=np.repeat(anonymous, spans))
        raise ValueError(f"{name!r} is no column of a message")

    def _each(self, values: list[Any], kind: Any = np.int64) -> NDArray[Any]:
        return np.repeat(np.asarray(values, kind), self._counts)

    def _strings(self, values: list[str | None] | list[str], spans: NDArray[np.intp]) -> pa.Array:
        if all(value == values[0] for value in values):
            return pa.repeat(pa.scalar(values[0], pa.string()), int(spans.sum()))
        return pc.take(pa.array(values, pa.string()), pa.array(np.repeat(np.arange(len(values)), spans)))

    def _offsets(self) -> NDArray[np.int64]:
        starts = np.cumsum(self._counts) - self._counts
        bases = np.asarray([place.published.base_offset for place in self._held], np.int64)
        offsets: NDArray[np.int64] = np.repeat(bases - starts, self._counts) + np.arange(int(self._counts.sum()))
        for place, start, count in zip(self._held, starts, self._counts, strict=True):
            if place.published.offset_deltas:  # compaction left holes
                offsets[start : start + count] = place.published.base_offset + np.asarray(
                    place.published.offset_deltas, np.int64
                )
        return offsets

    def _by_part(self) -> tuple[NDArray[np.intp], NDArray[np.int64], list[str], NDArray[np.int64]]:
        """Messages, time, producer and its sequence of each part: publishes that share a record keep their own."""
        if self._parts is None:
            spans: list[int] = []
            times: list[int] = []
            producers: list[str] = []
            sequences: list[int] = []
            for place, count in zip(self._held, self._counts, strict=True):
                for span, part in _parts(place.published, int(count)):
                    spans.append(span)
                    times.append(part.timestamp_us if part else place.published.min_timestamp_us)
                    producers.append(part.producer if part else "")
                    sequences.append(part.sequence if part else 0)
            self._parts = (np.asarray(spans, np.intp), np.asarray(times, np.int64), producers, np.asarray(sequences))
        return self._parts


def _parts(published: Published, count: int) -> list[tuple[int, Any]]:
    """How many of a record's messages belong to each of its parts."""
    parts = published.parts
    if not parts:
        return [(count, None)]
    if len(parts) == 1:
        return [(count, parts[0])]
    offsets = np.asarray(published.offset_deltas or range(count), np.int64) + published.base_offset
    # A part keeps the range of offsets that it was given; compaction may have dropped any of them.
    starts = np.searchsorted(offsets, [part.base_offset for part in parts])
    starts[0] = 0
    return list(zip(np.diff(starts, append=count).tolist(), parts, strict=True))


def _unreadable(frame: Frame) -> Gap:
    end = frame.position + FRAME_BYTES + len(frame.payload)
    return Gap(frame.position, end, frame.sequence, frame.sequence, "an intact frame whose record can't be read")
