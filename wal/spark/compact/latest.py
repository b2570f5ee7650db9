"""The last message of each key, from segments that different workers read. Imports no pyspark; no I/O here.

A worker combines what it reads: one row for each key that it met, and those of all workers together, in as many buckets
as there are hands, give the offsets that stay. Keys never reach the driver, only offsets do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from zlib import crc32

import numpy as np
import pyarrow as pa

from wal.frame import Frame
from wal.index import INDEXED
from wal.record import PUBLISHED, Published, decode, published_in
from wal.spark.compact.selection import Key, Latest, Rules, offsets_of
from wal.spark.read import decode as columns

_MADE = ("last", "first", "pinned")


class LastKeys:
    """What a worker remembers of the publishes it met: for each key of a partition its last message.

    Columns: `last` is twice the offset, and one more where it is a tombstone that may go; `first` is the offset of the
    key's first message; `pinned` says that one of them stands in a record that is never cut: then a tombstone stays.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._wanted = set(rules.latest)
        self._waiting: dict[Key, list[tuple[Published, bool]]] = {}
        self._bytes = self._messages = 0
        self._tables: dict[Key, list[pa.Table]] = {}  # the first holds all that came before the others

    def meet(self, frame: Frame) -> None:
        if frame.type not in INDEXED:
            return
        for published in published_in(decode(frame.type, frame.payload)):
            key = (published.channel_id, published.partition)
            if key in self._wanted:
                self._waiting.setdefault(key, []).append((published, frame.type != PUBLISHED))
                self._bytes += len(frame.payload)
                self._messages += published.count
        if self._bytes >= columns.CHUNK_BYTES or self._messages >= columns.CHUNK_MESSAGES:
            self._combine()

    def buckets(self, count: int) -> Iterator[tuple[int, bytes]]:
        """Everything that was met, in parts: a key is always in the same one."""
        self._combine()
        for (channel_id, partition), tables in self._tables.items():
            table = _last(pa.concat_tables(tables), ["key"])
            keys = table["key"].to_pylist()
            bucket = np.fromiter((crc32(key) % count for key in keys), np.int64, len(keys))
            whole = table.add_column(0, "channel_id", pa.array(np.full(len(keys), channel_id)))
            whole = whole.add_column(1, "partition", pa.array(np.full(len(keys), partition, np.int32)))
            for number in range(count):
                chosen = whole.take(pa.array(np.flatnonzero(bucket == number)))
                if len(chosen):
                    yield number, packed(chosen)
        self._tables.clear()

    def _combine(self) -> None:
        for key, waiting in self._waiting.items():
            tables = self._tables.setdefault(key, [])
            tables.append(_last(self._table(key, waiting), ["key"]))
            if len(tables) > 1 and sum(map(len, tables[1:])) > len(tables[0]):  # so each row is looked at a few times
                tables[:] = [_last(pa.concat_tables(tables), ["key"])]
        self._waiting.clear()
        self._bytes = self._messages = 0

    def _table(self, key: Key, waiting: list[tuple[Published, bool]]) -> pa.Table:
        decoded = columns.decode([record.batch for record, _ in waiting], ("key", "size"))
        before = self._rules.tombstones_before(*key)
        offsets = [offsets_of(record) for record, _ in waiting]
        if [len(each) for each in offsets] != decoded.counts.tolist():
            raise ValueError(f"channel {key[0]}: a batch has other messages than its record tells")
        counts = decoded.counts
        is_old = np.array([before is not None and record.max_timestamp_us <= before for record, _ in waiting])
        is_pinned = np.array([pinned for _, pinned in waiting])
        tombstone = (np.asarray(decoded.columns["size"]) == 0) & np.repeat(is_old, counts)
        table = pa.table(
            {
                "key": decoded.columns["key"],
                "last": pa.array(np.concatenate(offsets) * 2 + tombstone),
                "first": pa.array(np.concatenate(offsets)),
                "pinned": pa.array(np.repeat(is_pinned, counts)),
            }
        )
        return table.filter(table["key"].is_valid())


def latest_of(blobs: Iterable[bytes], rules: Rules) -> dict[Key, Latest]:
    """The offsets that one bucket says are the last of their keys, by partition."""
    tables = [unpacked(blob) for blob in blobs]
    if not tables:
        return {}
    together = _last(pa.concat_tables(tables), ["channel_id", "partition", "key"])
    last, first = np.asarray(together["last"]), np.asarray(together["first"])
    is_pinned = np.asarray(together["pinned"])
    channel_ids, partitions = np.asarray(together["channel_id"]), np.asarray(together["partition"])
    found = {}
    for key in {*zip(channel_ids.tolist(), partitions.tolist(), strict=True)}:
        mine = (channel_ids == key[0]) & (partitions == key[1])
        offsets = last[mine] >> 1
        may_go = ((last[mine] & 1) == 1) & ~is_pinned[mine] & (offsets < rules.passed(*key))
        found[key] = Latest(np.sort(offsets), offsets[may_go], first[mine][may_go])
    return found


def joined(parts: Iterable[Mapping[Key, Latest]]) -> dict[Key, Latest]:
    """The latest of all buckets."""
    known: dict[Key, list[Latest]] = {}
    for part in parts:
        for key, latest in part.items():
            known.setdefault(key, []).append(latest)
    return {key: _together(buckets) for key, buckets in known.items()}


def _together(buckets: Sequence[Latest]) -> Latest:
    offsets, tombstones, firsts = (np.concatenate(column) for column in zip(*buckets, strict=True))
    order = np.argsort(tombstones)
    return Latest(np.sort(offsets), tombstones[order], firsts[order])


def packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def unpacked(blob: bytes) -> pa.Table:
    with pa.ipc.open_stream(blob) as stream:
        return stream.read_all()


def _last(table: pa.Table, by: list[str]) -> pa.Table:
    combined = table.group_by(by, use_threads=False).aggregate([("last", "max"), ("first", "min"), ("pinned", "max")])
    return combined.select([*by, "last_max", "first_min", "pinned_max"]).rename_columns([*by, *_MADE])
