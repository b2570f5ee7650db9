"""`spark.readStream.format("mqwal")`: a log as a stream of its sealed segments.

An offset is {log uuid: sequence}, the last sequence that was taken of each log; never a file, because files come and
go: the broker rotates, cleans, compacts and restarts meanwhile. A micro-batch ends where a segment does. What it holds
is a range of sequences, so after a crash the same range is read again, from whatever files hold it by then.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import zip_longest

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from wal.errors import WalError
from wal.spark.read.listing import Segment, visible
from wal.spark.read.options import Options
from wal.spark.read.source import Rows, Slice, Task, catalogs_of, grouped

Offset = dict[str, int]
_GO_ON = "(failOnDataLoss=false goes on with what is there)"


class DataLost(WalError):
    """A part of the log went before the stream came to it."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans on the driver, reads in the workers."""

    def __init__(self, options: Options, schema: StructType) -> None:
        if options.view == "segments":
            raise ValueError("view=segments is for batch reads; streams show messages, batches or records")
        self.options = options
        self.rows = Rows(options, schema)
        self.target: Offset | None = None  # Trigger.AvailableNow goes so far, whatever is sealed meanwhile
        self.turn = 0

    # ------------------------------------------------------------ offsets

    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name, as those below
        begin: Offset = {}
        for root in self.options.roots:
            segments = visible(root)
            if segments:
                first, last = segments[0].first_sequence - 1, segments[-1].last_sequence
                starting = self.options.starting
                at = starting if isinstance(starting, int) else {"earliest": first, "latest": last}[starting]
                begin[segments[0].log_uuid] = max(at, first)
        return begin

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self.options.max_segments
        return ReadAllAvailable() if most is None else ReadMaxFiles(most)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        most = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        sealed = self._sealed()
        if self.options.fail_on_data_loss:
            self._check_logs(start, sealed)
        ahead = [
            [(uuid, end) for end in map(self._end_of, segments) if end > start.get(uuid, 0)]
            for uuid, segments in sealed.items()
        ]
        # one of each log in turn, and another log first each time: none waits for another to have been read to its end
        self.turn += 1
        first = self.turn % len(ahead) if ahead else 0
        rounds = zip_longest(*ahead[first:], *ahead[:first])
        taken = [each for some in rounds for each in some if each is not None][:most]
        return {**start, **dict(taken)}

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        return self._ends()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self.target = self._ends()

    def _end_of(self, segment: Segment) -> int:
        """How far a segment may be read. What was sealed after the target may have been merged with what was before."""
        if self.target is None:
            return segment.last_sequence
        target = self.target.get(segment.log_uuid, 0)
        return min(segment.last_sequence, target) if segment.first_sequence <= target else 0

    def _ends(self) -> Offset:
        return {uuid: segments[-1].last_sequence for uuid, segments in self._sealed().items()}

    def _sealed(self) -> dict[str, list[Segment]]:
        """What may be read, by log."""
        found: dict[str, list[Segment]] = {}
        for root in self.options.roots:
            for segment in visible(root, sealed_only=True):
                found.setdefault(segment.log_uuid, []).append(segment)
        return found

    def _check_logs(self, start: Offset, sealed: dict[str, list[Segment]]) -> None:
        """Raises DataLost where a log was replaced by another, or by an older state of itself."""
        behind = {uuid for uuid, at in start.items() if uuid not in sealed or sealed[uuid][-1].last_sequence < at}
        if not behind:
            return
        ends = {each.log_uuid: each.last_sequence for root in self.options.roots for each in visible(root)}
        for uuid in behind:
            if uuid not in ends:
                raise DataLost(f"log {uuid} is no longer in {self._where()} {_GO_ON}")
            if ends[uuid] < start[uuid]:
                raise DataLost(f"log {uuid} in {self._where()} ends at {ends[uuid]}, before {start[uuid]} {_GO_ON}")

    def _where(self) -> str:
        return ", ".join(self.options.roots)

    # ------------------------------------------------------------ batches

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        sealed = self._sealed()
        slices: list[Slice] = []
        for uuid, last in end.items():
            segments = sealed.get(uuid, [])
            # a log that came to its place after the query had begun is read from its beginning
            earliest = segments[0].first_sequence if segments else last + 1
            first = start[uuid] + 1 if uuid in start else earliest
            if first > last:
                continue
            if self.options.fail_on_data_loss:
                self._check_cover(segments, first, last)
            slices += [
                Slice(segment, max(first, segment.first_sequence), min(last, segment.last_sequence))
                for segment in segments
                if segment.first_sequence <= last and segment.last_sequence >= first
            ]
        catalogs = catalogs_of(self.options) if slices else {}
        now_us = time.time_ns() // 1000
        return [Task(group, now_us, catalogs) for group in grouped(slices)]

    def _check_cover(self, segments: Sequence[Segment], first: int, last: int) -> None:
        """Raises DataLost where segments that covered a part of the range are gone as a whole."""
        expected = first
        for segment in segments:
            if segment.first_sequence <= expected <= segment.last_sequence:
                expected = segment.last_sequence + 1
        if expected <= last:
            gone = f"records from {expected} on left the log in {self._where()} before this query read them"
            raise DataLost(f"{gone}: retention was faster {_GO_ON}")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, Task) and partition.catalogs is not None:
            yield from self.rows.read(partition.slices, partition.catalogs, partition.now_us)
