"""What one segment tells of its groups: acks, redeliveries, dead letters, how far each has come. Pure, no pyspark.

How far a group is, is told in absolute terms by some records (its creation, a seek, a commit, a snapshot) and in
relative ones by others (acks). A segment notes both by time; whoever reads the notes of all segments in order knows it.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeAlias

from wal.pb import wal_pb2 as pb
from wal.spark.audit.steps import Steps
from wal.spark.audit.traffic import Buckets

GroupKey: TypeAlias = tuple[int, int, int]  # channel id, group id, partition

_MOST_RANGES = 400_000
_MOST_REASONS = 100
_REASON_CHARACTERS = 200


class _Progress:
    __slots__ = ("done", "reset")

    def __init__(self, reset: int | None, done: int) -> None:
        self.reset = reset  # messages that were done for sure at that time; None: not told
        self.done = done  # since then, or since the bucket before

    def merge(self, later: _Progress) -> None:
        if later.reset is None:
            self.done += later.done
        else:
            self.reset, self.done = later.reset, later.done


class _Group:
    __slots__ = ("acked", "acks", "dead_letters", "max_deliveries", "redelivered")

    def __init__(self) -> None:
        self.acked = self.acks = self.redelivered = self.max_deliveries = self.dead_letters = 0


class Consumption:
    """Everything that groups did in a segment."""

    def __init__(self) -> None:
        self._groups: dict[GroupKey, _Group] = {}
        self._progress: Buckets[_Progress] = Buckets()
        self.acks: Steps[GroupKey] = Steps()  # when offsets were acked
        self._reasons: Counter[tuple[int, int, str]] = Counter()
        self._positions: dict[GroupKey, int] = {}  # of cumulative acks, where it is known
        self._open: dict[GroupKey, tuple[int, int]] = {}  # the first commit, where it began is told by segments before
        self._told: set[GroupKey] = set()  # cursors of the snapshot that is being told in parts

    def acked(self, record: pb.Acked) -> None:
        key = (record.channel_id, record.group_id, record.partition)
        done = 0
        for each in record.ranges:
            done += each.end - each.start
            if each.end > each.start:
                self.acks.add(key, each.start, each.end, record.timestamp_us)
        self._ack(key, done)
        self._move(key, record.timestamp_us, None, done)

    def committed(self, record: pb.Committed) -> None:
        key = (record.channel_id, record.group_id, record.partition)
        before = self._positions.get(key)
        if before is None:
            self._open[key] = (record.offset, record.timestamp_us)
            before = record.offset
        elif record.offset > before:
            self.acks.add(key, before, record.offset, record.timestamp_us)
        self._ack(key, max(0, record.offset - before))
        self._place(key, record.offset, record.timestamp_us)

    def redelivered(self, record: pb.Redelivered) -> None:
        group = self._group((record.channel_id, record.group_id, record.partition))
        for retry in record.retries:
            group.redelivered += retry.end - retry.start
            group.max_deliveries = max(group.max_deliveries, retry.delivery_count)

    def dead_lettered(self, record: pb.DeadLettered) -> None:
        key = (record.channel_id, record.group_id, record.partition)
        letters = record.range.end - record.range.start
        group = self._group(key)
        group.dead_letters += letters
        group.max_deliveries = max(group.max_deliveries, record.delivery_count)
        reason = (record.channel_id, record.group_id, record.reason[:_REASON_CHARACTERS])
        if reason not in self._reasons and len(self._reasons) >= _MOST_REASONS:
            reason = (*reason[:2], "(others)")
        self._reasons[reason] += letters
        self._move(key, record.timestamp_us, None, letters)

    def placed(self, channel_id: int, group_id: int, positions: Any, time_us: int) -> None:
        """A group was made or moved."""
        for each in positions:
            self._place((channel_id, group_id, each.partition), each.offset, time_us)

    def snapshot(self, record: pb.ChannelSnapshot, time_us: int) -> None:
        """A channel as it was when this was written; `time_us` is about then."""
        if not record.part:
            self._told.clear()
        for group in record.groups:
            for cursor in group.cursors:
                key = (record.channel_id, group.group_id, cursor.partition)
                ahead = sum(each.end - each.start for each in cursor.acked)
                if key in self._told:  # the part before told the rest of this cursor
                    self._move(key, time_us, None, ahead)
                    continue
                self._told.add(key)
                self._positions[key] = cursor.offset
                self._move(key, time_us, cursor.offset + ahead, 0)

    def is_large(self) -> bool:
        return self.acks.ranges > _MOST_RANGES

    def take(self) -> dict[str, list[Any]]:
        return {
            "groups": [
                (*key, each.acked, each.acks, each.redelivered, each.max_deliveries, each.dead_letters)
                for key, each in self._groups.items()
            ],
            "reasons": [(*where, letters) for where, letters in self._reasons.items()],
            "commits": [
                (*key, *self._open.get(key, (None, None)), position) for key, position in self._positions.items()
            ],
            "progress": [(*key, start, each.reset, each.done) for (key, start), each in self._progress.values.items()],
        }

    def _group(self, key: GroupKey) -> _Group:
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group()
        return group

    def _ack(self, key: GroupKey, messages: int) -> None:
        group = self._group(key)
        group.acked += messages
        group.acks += 1

    def _place(self, key: GroupKey, offset: int, time_us: int) -> None:
        self._positions[key] = offset
        self._move(key, time_us, offset, 0)

    def _move(self, key: GroupKey, time_us: int, reset: int | None, done: int) -> None:
        known = self._progress.values.get((key, self._progress.start_of(time_us)))
        made = _Progress(reset, done)
        if known is None:
            self._progress.put(key, time_us, made)
        else:
            known.merge(made)
