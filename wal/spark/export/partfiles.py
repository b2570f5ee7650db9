"""Writes rows to Parquet files, one or more for each channel and day. Imports no pyspark; runs in a worker.

Holds little: rows wait until a row group of their file is worth writing, and the largest that waits goes first where
all together are too many. A task may meet more channels and days than files may be open, so the file that was written
longest ago is closed, and another follows it where more comes.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wal.spark.export.destination import STAGED

ROW_GROUP_BYTES = 16 << 20
WAITING_BYTES = 64 << 20
OPEN_FILES = 100
DAY_US = 86_400_000_000

_REPETITIVE = ("producer", "partition", "ttl_ms")  # a dictionary pays for these; values it would only slow down
_COUNTED = ("partition", "offset", "timestamp", "sequence")  # readers skip row groups by these


class Staged(NamedTuple):
    """A finished file."""

    name: str
    channel_id: int
    date: str
    rows: int
    bytes: int


@dataclass(slots=True)
class _Shelf:
    """What goes to one channel and day."""

    waiting: list[pa.RecordBatch] = field(default_factory=list)
    bytes: int = 0
    writer: Any = None
    name: str = ""
    rows: int = 0


class PartFiles:
    """Files of one attempt of a task; their names begin with `prefix`, which no other attempt has."""

    def __init__(self, folder: str | Path, prefix: str, schema: pa.Schema, compression: str) -> None:
        self._folder = Path(folder)
        self._prefix = prefix
        self._schema = schema
        self._options: dict[str, Any] = {
            "compression": compression,
            "use_dictionary": [name for name in _REPETITIVE if name in schema.names],
            "write_statistics": [name for name in _COUNTED if name in schema.names],
        }
        self._shelves: OrderedDict[tuple[int, str], _Shelf] = OrderedDict()
        self._waiting = 0
        self._files = 0
        self._finished: list[Staged] = []

    def add(self, channel_id: int, date: str, batch: pa.RecordBatch) -> None:
        shelf = self._shelves.setdefault((channel_id, date), _Shelf())
        shelf.waiting.append(batch)
        shelf.bytes += batch.nbytes
        self._waiting += batch.nbytes
        if shelf.bytes >= ROW_GROUP_BYTES:
            self._write((channel_id, date))
        while self._waiting > WAITING_BYTES:
            self._write(max(self._shelves, key=lambda key: self._shelves[key].bytes))

    def close(self) -> list[Staged]:
        """Everything written and synced."""
        for key in list(self._shelves):
            self._write(key)
            self._finish(key)
        return self._finished

    def _write(self, key: tuple[int, str]) -> None:
        shelf = self._shelves[key]
        if not shelf.waiting:
            return
        if shelf.writer is None:
            opened = [each for each, other in self._shelves.items() if other.writer is not None]
            if len(opened) >= OPEN_FILES:
                self._finish(opened[0])
            shelf.name = f"{self._prefix}-{self._files}{STAGED}"
            shelf.writer = pq.ParquetWriter(self._folder / shelf.name, self._schema, **self._options)
            self._files += 1
        table = pa.Table.from_batches(shelf.waiting, self._schema)
        shelf.writer.write_table(table, row_group_size=len(table))
        shelf.rows += len(table)
        self._waiting -= shelf.bytes
        shelf.waiting, shelf.bytes = [], 0
        self._shelves.move_to_end(key)

    def _finish(self, key: tuple[int, str]) -> None:
        shelf = self._shelves[key]
        if shelf.writer is None:
            return
        shelf.writer.close()
        path = self._folder / shelf.name
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # a commit that names it must not outlive it
            size = os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
        self._finished.append(Staged(shelf.name, *key, shelf.rows, size))
        shelf.writer, shelf.rows = None, 0


def by_channel_and_day(batch: pa.RecordBatch) -> Iterator[tuple[int, str, pa.RecordBatch]]:
    """Channel id, UTC day and rows (without the channel, which the directory tells), for each pair that occurs."""
    channels = batch.column("channel_id").to_numpy()
    days = batch.column("timestamp").cast(pa.int64()).to_numpy() // DAY_US
    rest = batch.drop_columns(["channel_id"])
    if (channels == channels[0]).all() and (days == days[0]).all():
        yield int(channels[0]), _date(int(days[0])), rest
        return
    order = np.lexsort((days, channels))  # stable: rows of one day stay in the order of the log
    channels, days = channels[order], days[order]
    starts = np.flatnonzero((np.diff(channels, prepend=channels[0] - 1) != 0) | (np.diff(days, prepend=days[0]) != 0))
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(order)], strict=True):
        # each with bytes of its own: a slice of all rows would keep all of them for as long as it waits
        yield int(channels[start]), _date(int(days[start])), rest.take(pa.array(order[start:stop]))


def _date(day: int) -> str:
    return datetime.fromtimestamp(day * 86_400, UTC).strftime("%Y-%m-%d")


def write_empty(path: Path, schema: pa.Schema) -> None:
    """A file with a schema and no rows."""
    pq.write_table(schema.empty_table(), path)
