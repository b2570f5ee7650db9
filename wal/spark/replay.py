"""Replay, the reading half: a selection of a log's messages in a fixed order, from any point of it on.

The order is that of the log, and within one record by channel, partition and offset: so a message has the same place
in every run, also where compaction has dropped some of its neighbours, and an interrupted run goes on where it was.
Publishing is the caller's business: this package knows no broker.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, NamedTuple, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from wal.spark.read.listing import manifest_of, visible
from wal.spark.read.rows import CORRUPT
from wal.spark.read.source import MqWal, columns_of

Place: TypeAlias = tuple[int, int, int, int]  # of a message: sequence of its record, channel id, partition, offset

_COLUMNS = ("sequence", "channel_id", "partition", "offset", "key", "value", "headers")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which messages, of which log."""

    log_uuid: str
    channels: tuple[str, ...]
    from_time: str | None = None  # ISO 8601; at or after
    to_time: str | None = None  # before
    where: str | None = None  # a condition in SQL over the columns of the source
    also_dropped: bool = False  # what is trimmed, expired or of deleted channels too, as long as the log has it

    def name(self, target: str) -> str:
        """The same for the same selection and target, and for no other."""
        told = json.dumps([asdict(self), target], sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()[:16]


class Selected(NamedTuple):
    """A message to publish again."""

    place: Place
    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]]

    @property
    def bytes(self) -> int:
        headers = sum(len(name) + len(value) + 8 for name, value in self.headers)
        return len(self.value) + len(self.key or b"") + headers + 16


def log_of(root: str) -> tuple[str, int]:
    """The uuid of a log, and its last durable sequence."""
    segments = visible(root)
    return str(manifest_of(root).log_uuid), segments[-1].last_sequence if segments else 0


def matching(
    spark: SparkSession,
    root: str,
    wanted: Wanted,
    through: int,
    after: Place | None = None,
    *,
    skip_damaged: bool = False,
) -> DataFrame:
    """The messages that are wanted, up to a sequence, and those of the record at `after` again.

    Damage fails the query; with `skip_damaged` a row that is none but has `damage` stands for what could not be read:
    nobody knows whether it would have been wanted.
    """
    spark.dataSource.register(MqWal)
    reader = spark.read.format("mqwal").option("channels", ",".join(wanted.channels))
    reader = reader.option("mode", "PERMISSIVE" if skip_damaged else "FAILFAST")
    reader = reader.option("columns", ",".join(columns_of("messages")))
    reader = reader.option("liveOnly", str(not wanted.also_dropped).lower())
    if wanted.from_time:
        reader = reader.option("fromTs", wanted.from_time)
    if wanted.to_time:
        reader = reader.option("toTs", wanted.to_time)
    frame = reader.load(root).filter(F.col("sequence").between(after[0] if after else 0, through))
    if wanted.where:
        frame = frame.filter(F.expr(wanted.where) | F.col(CORRUPT).isNotNull())
    return frame.select(*_COLUMNS, F.col(CORRUPT).alias("damage"))


def counted(frame: DataFrame) -> tuple[int, int]:
    """How many messages `matching` found, and how many damaged ranges among them."""
    damaged = F.count("damage")
    row = frame.agg((F.count(F.lit(1)) - damaged).alias("messages"), damaged.alias("damaged")).collect()[0]
    return row.messages, row.damaged


def in_order(rows: Iterable[Any], after: Place | None = None, left_out: list[str] | None = None) -> Iterator[Selected]:
    """The rows as they come from the source, each record's put into their order, without those up to `after`.

    What stands for damage is put into `left_out`.
    """
    for _, record in groupby(_intact(rows, left_out), key=lambda row: row.sequence):
        some = (((row.sequence, row.channel_id, row.partition, row.offset), row) for row in record)
        for place, row in sorted(some, key=lambda each: each[0]):
            if after is None or place > after:
                headers = [(header["key"], bytes(header["value"])) for header in row.headers]
                key = None if row.key is None else bytes(row.key)
                yield Selected(place, key, bytes(row.value), headers)


def _intact(rows: Iterable[Any], left_out: list[str] | None) -> Iterator[Any]:
    for row in rows:
        if row.damage is None:
            yield row
        elif left_out is not None:
            left_out.append(row.damage)


def batches(messages: Iterable[Selected], max_messages: int, max_bytes: int) -> Iterator[list[Selected]]:
    """Cut the same way in every run that starts at the same place; one message is never too large."""
    held: list[Selected] = []
    size = 0
    for message in messages:
        if held and (len(held) >= max_messages or size + message.bytes > max_bytes):
            yield held
            held, size = [], 0
        held.append(message)
        size += message.bytes
    if held:
        yield held
