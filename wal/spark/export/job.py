"""Export: the messages of a log as Parquet, each exactly once, run after run.

The driver splits what is new into spans of the log, workers read them and write the files themselves (bytes never
travel through the JVM), and one commit makes the files of a round count (`destination`). Goes by sequence and not by
file: a segment that was rewritten in between has nothing new, and the active segment may be exported up to where it is
durable and again from there.

Workers know channels by their numbers: the names are met anywhere in the log, and the driver puts them together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow as pa
from google.protobuf.message import DecodeError, Message
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from wal.frame import Frame
from wal.pb import wal_pb2 as pb
from wal.record import Atomic, ChannelCreated, ChannelSnapshot, Unknown, decode, items_of
from wal.segment import Gap
from wal.spark.export.destination import SCHEMA_FILE, Commit, Destination, Kind, PartFile, partition_folder
from wal.spark.export.jsontype import CORRUPT, BadSchema, Typer, inferred
from wal.spark.export.partfiles import PartFiles, Staged, by_channel_and_day, write_empty
from wal.spark.progress import run as with_progress
from wal.spark.read.catalog import Catalog, catalog_of
from wal.spark.read.listing import Segment, manifest_of, visible
from wal.spark.read.rows import MESSAGES, Filter, LeftOut, messages
from wal.spark.read.source import Slice, present

COLUMNS = (
    "key", "value", "headers", "partition", "offset", "timestamp", "sequence",
    "producer", "producer_sequence", "deliver_at", "ttl_ms",
)  # fmt: skip
INFER = "infer"
SAMPLE_MESSAGES = 10_000  # that a schema is guessed from

LEAST_SPAN_BYTES = 32 << 20  # of log that one task reads, so that files are not small without need
SPAN_BYTES = 256 << 20  # that it reads at most, where one segment has less
_TASKS_PER_CORE = 3  # so that the last one to end does not keep the others waiting for long
_ROUND_TASKS_PER_CORE = 16  # what a crash costs at most
_NAMING = frozenset({pb.CHANNEL_CREATED, pb.CHANNEL_SNAPSHOT, pb.ATOMIC})


class Span(NamedTuple):
    """What one task exports: records after one sequence, through another, of neighbouring segments."""

    after: int
    through: int
    segments: tuple[Segment, ...]


class Done(NamedTuple):
    """What one task did."""

    files: list[Staged]
    names: dict[int, str]  # of channels, by id
    damage: list[str]


class Recipe(NamedTuple):
    """How a task writes."""

    folder: str
    compression: str
    json_schema: Any


@dataclass(frozen=True, slots=True)
class Result:
    """What an export added."""

    commits: tuple[Commit, ...]
    through: int  # the last sequence that is exported now
    missed: int  # records that left the log, by whole segments, before they were exported
    rewritten: int  # segments that were rewritten before they were exported: what they lost by that nobody can tell

    @property
    def messages(self) -> int:
        return sum(commit.rows for commit in self.commits)

    @property
    def files(self) -> list[PartFile]:
        return [each for commit in self.commits for each in commit.files]

    @property
    def damage(self) -> list[str]:
        return [line for commit in self.commits for line in commit.damage]


def pending(root: str, after: int, *, sealed_only: bool = False) -> list[Segment]:
    """The segments that hold something after a sequence."""
    return [each for each in visible(root, sealed_only=sealed_only) if each.last_sequence > after]


def export(
    spark: SparkSession | Callable[[], SparkSession],
    root: str,
    out: str,
    *,
    channels: Iterable[str] = (),
    json_schema: Any = None,
    sealed_only: bool = False,
    compression: str = "snappy",
    is_shown: bool | None = None,
) -> Result:
    """Add to the export in `out` what came into the log at `root` since the last time.

    `spark` may be what makes a session: it is asked only where there is something to export.
    `json_schema` is a schema as Spark writes it in JSON, or INFER: guess one the first time, and keep it.
    Raises ExportRefused where `out` is another export, LogLocked where one is running, NotALog, BadSchema, OSError.
    """
    wanted = Kind(str(manifest_of(root).log_uuid), tuple(sorted(set(channels))), json_schema)
    with Destination(out) as destination:
        _check(destination, wanted)
        segments = pending(root, destination.through, sealed_only=sealed_only)
        if segments and destination.kind() is None:
            _begin(destination, segments, wanted)
        if not segments:
            return Result((), destination.through, 0, 0)
        spark = spark() if callable(spark) else spark
        cores = spark.sparkContext.defaultParallelism
        spans = plan(segments, destination.through, cores)
        # what was gone before the first run was never there for an export
        missed, rewritten = lost(segments, destination.through) if destination.last else (0, 0)
        commits = []
        for start in range(0, len(spans), _ROUND_TASKS_PER_CORE * cores):
            chunk = spans[start : start + _ROUND_TASKS_PER_CORE * cores]
            what = f"exporting {start + len(chunk)} of {len(spans)}"
            work = _round(spark, destination, chunk, compression)
            commits.append(with_progress(spark, what, work, is_shown=is_shown))
        return Result(tuple(commits), destination.through, missed, rewritten)


def lost(segments: list[Segment], after: int) -> tuple[int, int]:
    """What is no longer there to export: records of whole segments, and how many of the others are not as they were."""
    missed = 0
    for segment in segments:
        missed += max(0, segment.first_sequence - after - 1)
        after = segment.last_sequence
    return missed, sum(segment.generation > 0 for segment in segments)


def plan(segments: list[Segment], after: int, cores: int) -> list[Span]:
    """Neighbouring segments together, so that tasks are alike and enough for all cores."""
    share = sum(each.size for each in segments) // (cores * _TASKS_PER_CORE)
    wanted = min(SPAN_BYTES, max(LEAST_SPAN_BYTES, share))
    spans: list[Span] = []
    held: list[Segment] = []
    size = 0
    for segment in segments:
        held.append(segment)
        size += segment.size
        if size >= wanted or segment is segments[-1]:
            spans.append(Span(after, segment.last_sequence, tuple(held)))
            after, held, size = segment.last_sequence, [], 0
    return spans


def _check(destination: Destination, wanted: Kind) -> None:
    """Raises ExportRefused where the directory is an export of something else, BadSchema."""
    present = destination.kind()
    if wanted.json_schema not in (None, INFER):
        Typer(wanted.json_schema)
    if present is None:
        return
    if wanted.json_schema == INFER and present.json_schema is not None:
        wanted = replace(wanted, json_schema=present.json_schema)
    destination.begin(wanted)


def _begin(destination: Destination, segments: list[Segment], wanted: Kind) -> None:
    """What the directory is an export of, and a file that shows its schema, before the first row."""
    if wanted.json_schema == INFER:
        wanted = replace(wanted, json_schema=_guessed(segments, wanted.channels))
    draft = destination.journal / "schema.new"
    write_empty(draft, file_schema(wanted.json_schema))
    destination.put(draft, SCHEMA_FILE)
    destination.begin(wanted)


def schema_of_ddl(text: str) -> Any:
    """A schema in Spark's language of tables, as JSON. Raises BadSchema; needs a session."""
    try:
        return StructType.fromDDL(text).jsonValue()
    except PySparkException as error:
        raise BadSchema(f"that is no schema: {error.getMessage() or error}".splitlines()[0]) from None


def file_schema(json_schema: Any) -> pa.Schema:
    """The columns of every file. Raises BadSchema."""
    schema = pa.schema([pa.field(name, MESSAGES[name]) for name in COLUMNS])
    if json_schema is None:
        return schema
    at = schema.get_field_index("value")
    return schema.set(at, pa.field("value", Typer(json_schema).type)).append(pa.field(CORRUPT, pa.string()))


def _guessed(segments: list[Segment], channels: tuple[str, ...]) -> Any:
    catalog = catalog_of(segments[0].root)
    wanted = frozenset().union(*(catalog.ids(name) for name in channels)) if channels else None
    values: list[bytes] = []
    for segment in segments:
        items = frames_between(segment, 0, segment.last_sequence)
        for batch in messages(items, segment, ("value",), catalog, Filter(wanted)):
            if not isinstance(batch, LeftOut):
                values += batch.column("value").slice(0, SAMPLE_MESSAGES).to_pylist()
            if len(values) >= SAMPLE_MESSAGES:
                return inferred(values[:SAMPLE_MESSAGES])
    return inferred(values)


def _round(spark: SparkSession, destination: Destination, spans: list[Span], compression: str) -> Callable[[], Commit]:
    """Tasks for some spans, and the commit of what they wrote."""
    kind = destination.kind()
    assert kind is not None

    def work() -> Commit:
        staging = destination.stage()
        recipe = Recipe(str(staging.resolve()), compression, kind.json_schema)
        tasks = spark.sparkContext.parallelize(spans, len(spans))
        done = tasks.map(lambda span: write_span(span, recipe)).collect()
        names = {int(number): name for number, name in destination.last.names.items()} if destination.last else {}
        for each in done:
            names.update(each.names)
        if any(file.channel_id not in names for each in done for file in each.files):
            # named before what is exported here; looking there may mean to read a log from its start
            names = {**catalog_of(spans[0].segments[0].root).names, **names}
        commit = Commit(
            number=0,
            after=spans[0].after,
            through=spans[-1].through,
            staging="",
            files=tuple(_placed(spans, done, names, kind.channels)),
            names={str(number): name for number, name in names.items()},
            damage=tuple(line for each in done for line in each.damage),
        )
        return destination.commit(staging, commit)

    return work


def _placed(
    spans: list[Span], done: list[Done], names: dict[int, str], channels: tuple[str, ...]
) -> Iterator[PartFile]:
    """Where each file of a round goes, now that all names are known."""
    for span, each in zip(spans, done, strict=True):
        for number, file in enumerate(each.files):
            channel = names.get(file.channel_id, f"#{file.channel_id}")  # which no name can be
            if not channels or channel in channels:
                folder = partition_folder(channel, file.date)
                path = f"{folder}/{span.after + 1:020d}-{span.through:020d}-{number}.parquet"
                yield PartFile(file.name, path, file.rows, file.bytes)


# ---------------------------------------------------------------- in the worker


def write_span(span: Span, recipe: Recipe) -> Done:
    """Stage the files of one span, under names that no other attempt at it uses."""
    schema = file_schema(recipe.json_schema)
    typer = Typer(recipe.json_schema) if recipe.json_schema is not None else None
    files = PartFiles(recipe.folder, uuid4().hex, schema, recipe.compression)
    names: dict[int, str] = {}
    damage: list[str] = []
    for segment in span.segments:
        items = _naming(frames_between(segment, span.after, span.through), names)
        for found in messages(items, segment, (*COLUMNS, "channel_id"), Catalog(segment.log_uuid)):
            if isinstance(found, LeftOut):
                damage.append(str(found))
            elif found.num_rows:
                for channel_id, date, part in by_channel_and_day(found):
                    files.add(channel_id, date, typed(part, typer, schema))
    return Done(files.close(), names, damage)


def typed(batch: pa.RecordBatch, typer: Typer | None, schema: pa.Schema) -> pa.RecordBatch:
    """The rows as the file has them."""
    if typer is None:
        return batch
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns["value"], columns[CORRUPT] = typer.columns(batch.column("value").to_pylist())
    return pa.record_batch([columns[name] for name in schema.names], schema=schema)


def frames_between(segment: Segment, after: int, through: int) -> Iterator[Frame | Gap]:
    """The frames of a segment in a range of sequences; from what replaced it where it was rewritten meanwhile."""
    first, last = max(after + 1, segment.first_sequence), min(through, segment.last_sequence)
    for _, items in present(Slice(segment, first, last)):
        yield from items


def _naming(items: Iterable[Frame | Gap], names: dict[int, str]) -> Iterator[Frame | Gap]:
    """Notes the names of channels in passing."""
    for item in items:
        if isinstance(item, Frame) and item.type in _NAMING:
            try:
                record = decode(item.type, item.payload)
            except DecodeError:
                record = Unknown(item.type, b"")
            for each in items_of(record) if isinstance(record, Atomic) else (record,):
                _note(each, names)
        yield item


def _note(record: Message | Unknown, names: dict[int, str]) -> None:
    if isinstance(record, ChannelCreated | ChannelSnapshot) and record.name:
        names[record.channel_id] = record.name
