"""What the source can show beside messages: batches, records, segments. Imports no pyspark.

A row for each publish, each frame, each file. Segments carry the damage that was found in them, with its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from google.protobuf.json_format import MessageToJson
from google.protobuf.message import DecodeError, Message

from wal.check import damage_told_by, undecodable
from wal.frame import HEADER_BYTES as FRAME_BYTES
from wal.frame import Frame
from wal.index import INDEXED
from wal.pb import wal_pb2 as pb
from wal.record import DAMAGED, Atomic, DeadLettered, Published, decode, end_offset, items_of, published_in
from wal.segment import Gap
from wal.spark.read.catalog import Catalog
from wal.spark.read.listing import Segment
from wal.spark.read.rows import MESSAGES, TIME, Filter, LeftOut

_ROWS = 10_000  # of one record batch

_PLACE = {"sequence": pa.int64(), "segment": pa.string(), "position": pa.int64(), "log_uuid": pa.string()}
BATCHES: dict[str, pa.DataType] = {
    "channel": pa.string(),
    "channel_id": pa.int64(),
    "partition": pa.int32(),
    "base_offset": pa.int64(),
    "end_offset": pa.int64(),
    "count": pa.int32(),
    "bytes": pa.int64(),
    "min_timestamp": TIME,
    "max_timestamp": TIME,
    "publishes": pa.int32(),
    "ttl_ms": pa.int64(),
    "deliver_at": TIME,
    "is_dead_letter": pa.bool_(),
    **_PLACE,
}
RECORDS: dict[str, pa.DataType] = {
    "type": pa.string(),
    "channel": pa.string(),
    "channel_id": pa.int64(),
    "group_id": pa.int64(),
    "partition": pa.int32(),
    "timestamp": TIME,
    "bytes": pa.int64(),
    "fields": pa.string(),
    **_PLACE,
}
DAMAGE = pa.struct(
    [
        pa.field("position", pa.int64()),
        pa.field("end", pa.int64()),
        pa.field("first_sequence", pa.int64()),
        pa.field("last_sequence", pa.int64()),
        pa.field("reason", pa.string()),
    ]
)
SEGMENTS: dict[str, pa.DataType] = {
    "segment": pa.string(),
    "first_sequence": pa.int64(),
    "last_sequence": pa.int64(),
    "generation": pa.int32(),
    "is_sealed": pa.bool_(),
    "size": pa.int64(),
    "frames": pa.int64(),
    "messages": pa.int64(),
    "damaged_ranges": pa.int32(),
    "damaged_bytes": pa.int64(),
    "damage": pa.list_(DAMAGE),
    "root": pa.string(),
    "log_uuid": pa.string(),
}
COLUMNS = {"messages": MESSAGES, "batches": BATCHES, "records": RECORDS, "segments": SEGMENTS}

_NAMES = {number: name for name, number in pb.RecordType.items()}


def batches(
    items: Iterable[Frame | Gap], segment: Segment, columns: Sequence[str], catalog: Catalog, selection: Filter
) -> Iterator[pa.RecordBatch | LeftOut]:
    """A row for every wanted publish."""
    rows: list[dict[str, Any]] = []
    for item in items:
        if isinstance(item, Gap):
            yield LeftOut(segment.name, item)
            continue
        if item.type not in INDEXED:
            continue
        try:
            record = decode(item.type, item.payload)
            found = list(published_in(record))
        except DecodeError:
            yield LeftOut(segment.name, undecodable(item))
            continue
        for published in found:
            if selection.wants(published, catalog):
                is_dead_letter = isinstance(record, DeadLettered)
                rows.append({**_batch(published, catalog), "is_dead_letter": is_dead_letter, **_place(item, segment)})
        if len(rows) >= _ROWS:
            yield table(rows, columns, BATCHES)
            rows = []
    if rows:
        yield table(rows, columns, BATCHES)


def _batch(published: Published, catalog: Catalog) -> dict[str, Any]:
    return {
        "channel": catalog.names.get(published.channel_id),
        "channel_id": published.channel_id,
        "partition": published.partition,
        "base_offset": published.base_offset,
        "end_offset": end_offset(published),
        "count": published.count,
        "bytes": len(published.batch),
        "min_timestamp": published.min_timestamp_us,
        "max_timestamp": published.max_timestamp_us,
        "publishes": max(1, len(published.parts)),
        "ttl_ms": published.ttl_ms or None,
        "deliver_at": published.due_us or None,
    }


def records(
    items: Iterable[Frame | Gap], segment: Segment, columns: Sequence[str], catalog: Catalog, selection: Filter
) -> Iterator[pa.RecordBatch | LeftOut]:
    """A row for every frame; `fields` holds the record as JSON, without the messages of batches."""
    rows: list[dict[str, Any]] = []
    for item in items:
        if isinstance(item, Gap):
            yield LeftOut(segment.name, item)
            continue
        try:
            record = decode(item.type, item.payload)
            inside = list(items_of(record)) if isinstance(record, Atomic) else []
        except DecodeError:
            yield LeftOut(segment.name, undecodable(item))
            continue
        wanted = selection.channel_ids
        if wanted is not None and wanted.isdisjoint(getattr(each, "channel_id", 0) for each in (record, *inside)):
            continue
        is_known = isinstance(record, Message)
        channel_id = getattr(record, "channel_id", None)
        rows.append(
            {
                "type": _NAMES.get(item.type, str(item.type)),
                "channel": catalog.names.get(channel_id) if channel_id else None,
                "channel_id": channel_id,
                "group_id": getattr(record, "group_id", None),
                "partition": getattr(record, "partition", None),
                "timestamp": getattr(record, "timestamp_us", 0) or getattr(record, "max_timestamp_us", 0) or None,
                "bytes": FRAME_BYTES + len(item.payload),
                "fields": _json(record, inside) if is_known and "fields" in columns else None,
                **_place(item, segment),
            }
        )
        if len(rows) >= _ROWS:
            yield table(rows, columns, RECORDS)
            rows = []
    if rows:
        yield table(rows, columns, RECORDS)


def segment_row(items: Iterable[Frame | Gap], segment: Segment) -> dict[str, Any]:
    """What a segment holds, and what of it can't be read."""
    frames = messages = 0
    gaps: list[Gap] = []
    for item in items:
        if isinstance(item, Gap):
            gaps.append(item)
            continue
        frames += 1
        try:
            if item.type in INDEXED:
                messages += sum(published.count for published in published_in(decode(item.type, item.payload)))
            elif item.type == DAMAGED:
                gaps.append(damage_told_by(item))
        except DecodeError:
            gaps.append(undecodable(item))
    return {
        "segment": segment.name,
        "first_sequence": segment.first_sequence,
        "last_sequence": segment.last_sequence,
        "generation": segment.generation,
        "is_sealed": segment.is_sealed,
        "size": segment.size,
        "frames": frames,
        "messages": messages,
        "damaged_ranges": len(gaps),
        "damaged_bytes": sum(gap.size for gap in gaps),
        "damage": [{name: getattr(gap, name) for name in DAMAGE.names} for gap in gaps],
        "root": segment.root,
        "log_uuid": segment.log_uuid,
    }


def table(rows: Sequence[dict[str, Any]], columns: Sequence[str], types: dict[str, pa.DataType]) -> pa.RecordBatch:
    arrays = []
    for name in columns:
        values = [row.get(name) for row in rows]
        is_time = types[name] == TIME
        arrays.append(pa.array(values, pa.int64()).cast(TIME) if is_time else pa.array(values, types[name]))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([pa.field(name, types[name]) for name in columns]))


def _place(frame: Frame, segment: Segment) -> dict[str, Any]:
    return {
        "sequence": frame.sequence,
        "segment": segment.name,
        "position": frame.position,
        "log_uuid": segment.log_uuid,
    }


def _json(record: Message | Any, inside: Sequence[Message | Any]) -> str:
    if inside:
        each = [_json(item, ()) for item in inside if isinstance(item, Message)]
        return '{"items": [' + ", ".join(each) + "]}"
    short = type(record)()
    short.CopyFrom(record)
    for holder in (short, getattr(short, "published", None)):
        if holder is not None and hasattr(holder, "batch"):
            holder.ClearField("batch")
    return MessageToJson(short, preserving_proto_field_name=True, indent=None)
