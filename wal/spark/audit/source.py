"""The segments of a log as rows of an audit, for Spark: workers read the files and hand over what they found."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from wal.manifest import Manifest, SegmentEntry
from wal.spark.audit.summary import SCHEMA, record_batch, summarise
from wal.spark.read.options import PARTITION_BYTES
from wal.spark.read.storage import storage


def summaries(spark: SparkSession, root: str, manifest: Manifest, *, is_deep: bool = False) -> DataFrame:
    """A row (or several) for each segment that the manifest names; `wal.spark.audit.summary.SCHEMA` is their form."""
    spark.dataSource.register(AuditSource)
    options = {"path": root, "manifest": manifest.pack().decode(), "deep": str(is_deep)}
    return spark.read.format(AuditSource.name()).options(**options).load()


class AuditSource(DataSource):
    """Knows the chain by its option: what is judged in the end must be what was read."""

    @classmethod
    def name(cls) -> str:
        return "mqwal_audit"

    def schema(self) -> StructType:
        return from_arrow_schema(SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:
        manifest = Manifest.unpack(self.options["manifest"].encode(), self.options["path"])
        return AuditReader(self.options["path"], manifest, self.options["deep"] == "True")


class AuditReader(DataSourceReader):
    """Made on the driver, which plans; travels to the workers, which read."""

    def __init__(self, root: str, manifest: Manifest, is_deep: bool) -> None:
        self._root = root
        self._is_deep = is_deep
        self._chain: Manifest | None = manifest

    def partitions(self) -> Sequence[InputPartition]:
        assert self._chain is not None
        chain = self._chain.with_segments(())
        return [Some(chain, group) for group in grouped(self._chain.segments)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Some):  # Spark's way to say that there are none
            return
        gc.freeze()  # pyspark collects after every task, and all that was imported need not be looked at each time
        disk, folder = storage(self._root)
        for number, entry in partition.entries:
            for row in summarise(disk, folder, partition.chain, number, entry, is_deep=self._is_deep):
                yield record_batch(row)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_chain": None}  # there may be very many segments, and a task has its own


class Some(InputPartition):
    """Segments for one task."""

    def __init__(self, chain: Manifest, entries: Sequence[tuple[int, SegmentEntry]]) -> None:
        super().__init__(None)
        self.chain = chain  # without its segments: there may be very many
        self.entries = entries


def grouped(entries: Sequence[SegmentEntry]) -> list[list[tuple[int, SegmentEntry]]]:
    """Neighbours put together, so that no task is tiny. The live segment, whose size nobody knows, has its own task."""
    groups: list[list[tuple[int, SegmentEntry]]] = []
    size = PARTITION_BYTES
    for number, entry in enumerate(entries):
        if size + entry.size > PARTITION_BYTES or not entry.is_sealed:
            groups.append([])
            size = 0
        groups[-1].append((number, entry))
        size += entry.size
    return groups
