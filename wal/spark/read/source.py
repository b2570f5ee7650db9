"""`spark.read.format("mqwal")`: a log as rows. Workers open the files themselves; no byte goes through the JVM.

The reader takes no filters from Spark: it is shared by all queries on a DataFrame, and what one of them pushed down
would leak into the next. Options say what to read. Which segments there are, and what their channels are called, is
fixed when a DataFrame is made.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pyarrow as pa
from loguru import logger
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from wal.frame import Frame
from wal.segment import Gap
from wal.spark.read import views
from wal.spark.read.catalog import Catalog, catalog_of
from wal.spark.read.listing import Segment, SegmentGone, replacements, visible
from wal.spark.read.options import PARTITION_BYTES, Options
from wal.spark.read.rows import CORRUPT, Filter, LeftOut, messages
from wal.spark.read.scan import read, read_all

_LOOKS = 3  # for a segment that is replaced again and again


@dataclass(frozen=True, slots=True)
class Slice:
    """The frames of a segment from one sequence to another."""

    segment: Segment
    first: int
    last: int

    @classmethod
    def whole(cls, segment: Segment) -> Slice:
        return cls(segment, segment.first_sequence, segment.last_sequence)


@dataclass
class Task(InputPartition):
    """What one task reads; a stream's knows the channels too, because it is planned anew for every batch."""

    slices: Sequence[Slice]
    now_us: int  # what is expired by then is not there
    catalogs: Mapping[str, Catalog] | None = None

    def __init__(self, slices: Sequence[Slice], now_us: int, catalogs: Mapping[str, Catalog] | None = None) -> None:
        super().__init__(None)
        self.slices = slices
        self.now_us = now_us
        self.catalogs = catalogs


class MqWal(DataSource):
    """The source; Spark finds it as `pyspark_mqwal.DefaultSource`."""

    @classmethod
    def name(cls) -> str:
        return "mqwal"

    def schema(self) -> StructType:
        options = Options.parse(self.options)
        known = columns_of(options.view)
        columns = options.columns or tuple(name for name in known if name != CORRUPT)
        return from_arrow_schema(pa.schema([pa.field(name, _known(name, known)) for name in columns]))

    def reader(self, schema: StructType) -> DataSourceReader:
        return Reader(Options.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from wal.spark.read.stream import StreamReader

        return StreamReader(Options.parse(self.options), schema)


class Reader(DataSourceReader):
    """A batch read. Made on the driver; travels to the workers, with what it knows of the channels."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.rows = Rows(options, schema)
        self.segments = [each for root in options.roots for each in visible(root, sealed_only=options.sealed_only)]
        self.now_us = time.time_ns() // 1000
        self.catalogs = catalogs_of(options)
        check_channels(options, self.catalogs)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "segments": ()}  # there may be very many, and a task has its own

    def partitions(self) -> Sequence[InputPartition]:
        return [Task(group, self.now_us) for group in grouped([Slice.whole(segment) for segment in self.segments])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Task):  # Spark's way to say that there are none
            return
        yield from self.rows.read(partition.slices, self.catalogs, partition.now_us)


class Rows:
    """Turns slices of segments into what a query asked for; shared by batch reads and streams."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self.options = options
        self.known = columns_of(options.view)
        self.columns = [field.name for field in schema.fields]
        self.types = [_known(name, self.known) for name in self.columns]
        self.schema = to_arrow_schema(schema, timezone="UTC")

    def read(self, slices: Sequence[Slice], catalogs: Mapping[str, Catalog], now_us: int) -> Iterator[pa.RecordBatch]:
        settle()
        for one in slices:
            catalog = catalogs.get(one.segment.log_uuid) or Catalog(one.segment.log_uuid, is_whole=False)
            for made in self._of(one, catalog, now_us):
                batch = self._told(made, one.segment) if isinstance(made, LeftOut) else made
                if batch is not None and batch.num_rows:
                    yield self._as_asked(batch)

    def _of(self, one: Slice, catalog: Catalog, now_us: int) -> Iterator[pa.RecordBatch | LeftOut]:
        view, segment = self.options.view, one.segment
        columns = [name for name in self.columns if name != CORRUPT]
        if view == "segments":
            try:
                row = views.segment_row(read_all(segment), segment)
            except SegmentGone:
                return  # what is in its place now was not there when the listing was made
            if row["damage"] and self.options.is_strict:
                LeftOut(segment.name, Gap(**row["damage"][0])).raise_it()
            yield views.table([row], columns, views.SEGMENTS)
            return
        make = {"messages": messages, "batches": views.batches, "records": views.records}[view]
        selection = self._selection(catalog, now_us)
        for part, items in present(one):
            yield from make(items, part, columns, catalog, selection)

    def _selection(self, catalog: Catalog, now_us: int) -> Filter:
        options = self.options
        ids: frozenset[int] | None = None
        if options.channels is not None:
            found = {channel_id for name in options.channels for channel_id in catalog.ids(name)}
            ids = frozenset(each for each in found if not options.live_only or catalog.is_live(each))
        return Filter(ids, options.from_us, options.to_us, now_us if options.live_only else None)

    def _told(self, damage: LeftOut, segment: Segment) -> pa.RecordBatch | None:
        """Damage is an error, or a row for those who asked for such, and a line in the worker's log in any case."""
        if self.options.is_strict:
            damage.raise_it()
        logger.warning("left out: {}", damage)
        if CORRUPT not in self.columns:
            return None
        told: dict[str, Any] = {
            CORRUPT: str(damage),
            "log_uuid": segment.log_uuid,
            "segment": segment.name,
            "position": damage.gap.position,
            "sequence": damage.gap.first_sequence,
        }
        return views.table([told], self.columns, self.known)

    def _as_asked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """In the order and with the names inside that Spark expects."""
        arrays = []
        for field in self.schema:
            at = batch.schema.get_field_index(field.name)
            array = pa.nulls(batch.num_rows, field.type) if at < 0 else batch.column(at)
            arrays.append(array if array.type == field.type else array.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


@cache
def settle() -> None:
    """Once in a worker: pyspark collects garbage after every task, and all that was imported is none."""
    gc.freeze()


def present(one: Slice) -> Iterator[tuple[Segment, Iterator[Frame | Gap]]]:
    """The frames of a slice, from wherever they are now: its segment, or what has replaced that."""
    try:
        first = read(one.segment)
        head = next(first, None)
    except SegmentGone:
        yield from _replaced(one, _LOOKS)
        return
    yield one.segment, _within(_again(head, first), one)


def _replaced(one: Slice, looks: int) -> Iterator[tuple[Segment, Iterator[Frame | Gap]]]:
    for segment in replacements(one.segment):
        part = replace(one, segment=segment, first=max(one.first, segment.first_sequence))
        part = replace(part, last=min(one.last, segment.last_sequence))
        try:
            items = read(segment)
            head = next(items, None)
        except SegmentGone:
            if not looks:
                raise
            yield from _replaced(part, looks - 1)
            continue
        yield segment, _within(_again(head, items), part)


def _again(head: Frame | Gap | None, items: Iterator[Frame | Gap]) -> Iterator[Frame | Gap]:
    if head is not None:
        yield head
        yield from items


def _within(items: Iterator[Frame | Gap], one: Slice) -> Iterator[Frame | Gap]:
    for item in items:
        if isinstance(item, Gap):
            if item.last_sequence < item.first_sequence or (
                item.first_sequence <= one.last and item.last_sequence >= one.first
            ):
                yield item
        elif one.first <= item.sequence <= one.last:
            yield item


def grouped(slices: Sequence[Slice]) -> list[list[Slice]]:
    """Neighbours put together, so that no task is tiny."""
    groups: list[list[Slice]] = []
    size = PARTITION_BYTES
    for one in slices:
        if size + one.segment.size > PARTITION_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(one)
        size += one.segment.size
    return groups


def catalogs_of(options: Options) -> dict[str, Catalog]:
    if options.view == "segments":
        return {}
    return {catalog.log_uuid: catalog for catalog in map(catalog_of, options.roots)}


def check_channels(options: Options, catalogs: Mapping[str, Catalog]) -> None:
    """Raises ValueError where a channel that was asked for is in none of the logs."""
    names = {name for catalog in catalogs.values() for name in catalog.names.values()}
    missing = [name for name in options.channels or () if name not in names]
    if missing and options.view != "segments":
        some = ", ".join(sorted(names)[:10]) or "none"
        raise ValueError(f"there is no channel {missing[0]!r} in {', '.join(options.roots)}; there are: {some}")


def columns_of(view: str) -> dict[str, pa.DataType]:
    """Every column of a view. The last one is shown only where it is asked for."""
    return {**views.COLUMNS[view], **({} if view == "segments" else {CORRUPT: pa.string()})}


def _known(name: str, known: Mapping[str, pa.DataType]) -> pa.DataType:
    if name not in known:
        raise ValueError(f"{name!r} is no column here; there are {', '.join(known)}")
    return known[name]
