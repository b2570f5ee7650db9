"""What an audit leaves behind: a Parquet file for each table, and report.html. Imports no pyspark.

The place is a directory of this machine, or a URI that pyarrow.fs opens. An earlier audit's files there are replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from wal.spark.audit.report import page
from wal.spark.read.storage import folder_of, is_local

if TYPE_CHECKING:
    from wal.spark.audit.job import Audit

REPORT = "report.html"

_I64, _I32, _TEXT, _FLOAT = pa.int64(), pa.int32(), pa.string(), pa.float64()
_TIME = pa.timestamp("us", tz="UTC")
_CHANNEL = {"channel": _TEXT, "channel_id": _I64}
_PARTITION = {**_CHANNEL, "partition": _I32}
_GROUP = {"channel": _TEXT, "group": _TEXT, "channel_id": _I64, "group_id": _I64}
_OFFSETS = pa.list_(pa.struct([("channel_id", _I64), ("partition", _I32), ("start", _I64), ("end", _I64)]))

# The files and their columns; a name that ends in _us here is a timestamp there, and is called without it.
FORMS: dict[str, dict[str, pa.DataType]] = {
    "segments": {
        "number": _I32, "segment": _TEXT, "generation": _I32, "is_sealed": pa.bool_(), "state": _TEXT,
        "first_sequence": _I64, "last_sequence": _I64, "bytes": _I64, "torn_bytes": _I64, "frames": _I64,
        "messages": _I64, "other_bytes": _I64,
    },
    "damage": {
        "segment": _TEXT, "position": _I64, "end": _I64, "first_sequence": _I64, "last_sequence": _I64,
        "reason": _TEXT, "offsets": _OFFSETS,
    },
    "channels": {
        **_CHANNEL, "partitions": _I64, "messages": _I64, "bytes": _I64, "frames": _I64, "dead_bytes": _I64,
        "max_batch": _I64, "min_us": _TIME, "max_us": _TIME, "is_deleted": pa.bool_(), "sampled_messages": _I64,
        "mean_size": _FLOAT, "compression": _FLOAT, "keyed": _FLOAT, "distinct_keys": _I64, "top_key_share": _FLOAT,
        "replaced": _I64,
    },
    "partitions": {
        **_PARTITION, "frames": _I64, "messages": _I64, "bytes": _I64, "first_offset": _I64, "end_offset": _I64,
        "start_offset": _I64, "expired": _I64, "max_batch": _I64, "min_us": _TIME, "max_us": _TIME,
        "dead_bytes": _I64,
    },
    "rates": {**_PARTITION, "start_us": _TIME, "messages": _I64, "bytes": _I64, "end_offset": _I64},
    "batches": {**_CHANNEL, "bits": _I32, "frames": _I64},
    "sizes": {**_CHANNEL, "bits": _I32, "messages": _I64},
    "keys": {
        **_CHANNEL, "key": pa.binary(), "messages": _I64, "rank": _I32, "distinct_keys": _I64, "keyed": _I64,
    },
    "groups": {
        **_GROUP, "acked": _I64, "acks": _I64, "redelivered": _I64, "max_deliveries": _I64, "dead_letters": _I64,
        "lag": _I64, "max_lag": _I64, "ack_p50": _FLOAT, "ack_p90": _FLOAT, "ack_p99": _FLOAT, "ack_p999": _FLOAT,
    },
    "lags": {**_GROUP, "start_us": _TIME, "lag": _I64},
    "latencies": {**_GROUP, "microseconds": _FLOAT, "messages": _I64},
    "reasons": {**_GROUP, "reason": _TEXT, "messages": _I64},
    "producers": {
        **_CHANNEL, "producer": _TEXT, "first_sequence": _I64, "last_sequence": _I64, "gaps": _I64, "missing": _I64,
    },
}  # fmt: skip


def prepare(out: str) -> None:
    """Make the place, so that one that can't be written to is found before the work and not after. Raises OSError."""
    files, folder = _place(out)
    files.create_dir(folder, recursive=True)


def write(audit: Audit, out: str) -> str:
    """Write everything; returns where the report is. Raises OSError."""
    prepare(out)
    files, folder = _place(out)
    for name, form in FORMS.items():
        with files.open_output_stream(f"{folder}/{name}.parquet") as stream:
            pq.write_table(_arrow(audit.tables.get(name, []), form), stream, compression="zstd")
    with files.open_output_stream(f"{folder}/{REPORT}") as stream:
        stream.write(page(audit).encode())
    return f"{out.rstrip('/')}/{REPORT}"


def _place(out: str) -> tuple[fs.FileSystem, str]:
    if is_local(out):
        return fs.LocalFileSystem(), folder_of(out)
    files, folder = fs.FileSystem.from_uri(out)
    return files, folder.rstrip("/")


def _arrow(rows: Sequence[Mapping[str, Any]], form: Mapping[str, pa.DataType]) -> pa.Table:
    columns = []
    for name, kind in form.items():
        values = [row[name] for row in rows]
        columns.append(pa.array(values, _I64).cast(kind) if kind == _TIME else pa.array(values, kind))
    names = {"min_us": "first", "max_us": "last", "start_us": "start"}
    return pa.table(columns, names=[names.get(name, name) for name in form])
