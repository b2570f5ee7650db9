"""Compaction: finds out which segments are worth to be written anew, without what nobody needs.

Three passes, each over the segments that no replay will look into. Where channels keep the latest message of each key,
the first finds those; the second tells how much of each segment would stay; the third, in `wal.spark.compact.staging`,
writes neighbours that are worth it. Only where a message may go for a later one's sake the second reads every byte:
else a look at the heads tells as much, and damage behind them is found by the third.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from wal.errors import WalError
from wal.frame import Frame
from wal.manifest import Manifest
from wal.record import DAMAGED
from wal.spark.compact.hands import Hands
from wal.spark.compact.intact import NotClear
from wal.spark.compact.latest import LastKeys, joined, latest_of
from wal.spark.compact.selection import MOST_REPLACED, Key, Latest, Rules, Selection, dropped_in, frame_bytes
from wal.spark.compact.skim import skim
from wal.spark.read.listing import Segment, SegmentGone, visible
from wal.spark.read.scan import read

LOCK = "compacting"  # in staging/: one compaction of a log at a time
WORTH = 0.1  # of a segment's bytes must go, or it is left alone
KEYS_BYTES = 64 << 20  # of log that one task combines the keys of
_DAMAGED, _GONE = -1, -2  # in place of a bucket's number: what a worker met
_OURS = re.compile(r"[0-9a-f]{16}[-.].*")


class SegmentDamaged(WalError):
    """A segment that is damaged is not rewritten: repair comes first."""


class Survey(NamedTuple):
    """What would become of one segment."""

    name: str
    bytes: int
    kept_bytes: int
    dropped_records: int
    dropped: dict[Key, int]  # messages
    floors: dict[Key, int]  # its first offset in each partition that keeps the latest of each key
    is_damaged: bool

    @property
    def dropped_messages(self) -> int:
        return sum(self.dropped.values())

    @classmethod
    def of(
        cls, segment: Segment, kept: int, records: int, dropped: Mapping[Key, int], floors: dict[Key, int]
    ) -> Survey:
        kept_bytes = kept if records or dropped else segment.size
        return cls(segment.name, segment.size, kept_bytes, records, dict(dropped), floors, False)

    @classmethod
    def left_alone(cls, segment: Segment, *, is_damaged: bool) -> Survey:
        return cls(segment.name, segment.size, segment.size, 0, {}, {}, is_damaged)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a compaction would do."""

    surveys: list[Survey]
    runs: list[list[Segment]]  # neighbours that are worth it
    latest: dict[Key, Latest] = field(default_factory=dict)
    is_damaged: bool = False  # so nothing goes for a later message's sake

    def floors(self, run: Sequence[Segment]) -> dict[Key, int]:
        """Where a run begins in each partition that keeps the latest of each key."""
        known = {each.name: each.floors for each in self.surveys}
        found: dict[Key, int] = {}
        for segment in run:
            found = {**known[segment.name], **found}
        return found

    @property
    def _chosen(self) -> list[Survey]:
        names = {segment.name for run in self.runs for segment in run}
        return [each for each in self.surveys if each.name in names]

    @property
    def freed_bytes(self) -> int:
        return sum(each.bytes - each.kept_bytes for each in self._chosen)

    @property
    def kept_bytes(self) -> int:
        """What is written anew."""
        return sum(each.kept_bytes for each in self._chosen)

    @property
    def dropped(self) -> Counter[Key]:
        """Messages that would go, by partition."""
        total: Counter[Key] = Counter()
        for each in self._chosen:
            total.update(each.dropped)
        return total


def candidates(root: str, manifest: Manifest) -> list[Segment]:
    """The segments that no replay will look into: all before the older of the two snapshot runs."""
    floor = manifest.snapshots[0].begin if len(manifest.snapshots) > 1 else 0
    return [segment for segment in visible(root, sealed_only=True) if segment.last_sequence < floor]


def plan(hands: Hands, segments: Sequence[Segment], rules: Rules, *, worth: float = WORTH) -> Plan:
    """Find out what may go, and which segments are worth writing anew. Reads only."""
    latest: dict[Key, Latest] = {}
    is_damaged = False
    if rules.latest and segments:
        latest, is_damaged = _latest(hands, segments, rules)
    surveys = hands.each(segments, partial(survey, rules, latest))
    return Plan(surveys, _runs(segments, surveys, rules, worth), latest, is_damaged)


def _runs(segments: Sequence[Segment], surveys: Sequence[Survey], rules: Rules, worth: float) -> list[list[Segment]]:
    """Neighbours that are worth it, together as long as a broker can judge them together."""
    keeping = set(rules.latest)
    runs: list[list[Segment]] = []
    replaced = 0  # in the last of them
    is_open = False  # the last of them goes on with the next segment
    for segment, found in zip(segments, surveys, strict=True):
        freed = found.bytes - found.kept_bytes
        if found.is_damaged or not freed or freed < worth * found.bytes:
            is_open = False
            continue
        more = sum(count for key, count in found.dropped.items() if key in keeping)
        if is_open and replaced + more <= MOST_REPLACED:
            runs[-1].append(segment)
            replaced += more
        else:
            runs.append([segment])
            replaced = more
        is_open = True
    return runs


# ---------------------------------------------------------------- in the workers


def survey(rules: Rules, latest: Mapping[Key, Latest], segment: Segment) -> Survey:
    """How much of a segment would stay, if it were rewritten by itself."""
    try:
        if not rules.latest:
            with suppress(NotClear, FileNotFoundError):
                return _skimmed(rules, segment)
        return _surveyed(rules, latest, segment)
    except SegmentDamaged:
        return Survey.left_alone(segment, is_damaged=True)
    except SegmentGone:
        return Survey.left_alone(segment, is_damaged=False)


def _skimmed(rules: Rules, segment: Segment) -> Survey:
    """Where records stay or go whole, a look at their heads tells how much that is. Nothing else is read."""
    kept = records = 0
    dropped: Counter[Key] = Counter()
    for record, size in skim(segment):
        if rules.needs(record):
            kept += size
        else:
            records += 1
            for key, count in dropped_in(record).items():
                dropped[key] += count
    return Survey.of(segment, kept, records, dropped, {})


def _surveyed(rules: Rules, latest: Mapping[Key, Latest], segment: Segment) -> Survey:
    selection = Selection(rules, latest)
    kept = records = 0
    dropped: Counter[Key] = Counter()
    for frame in frames_of(segment):
        payload, gone = selection.cut(frame)
        dropped.update(gone)
        if payload is None:
            records += 1
        else:
            kept += frame_bytes(payload)
    return Survey.of(segment, kept, records, dropped, selection.floors)


def _keys(rules: Rules, buckets: int, group: Sequence[Segment]) -> Iterator[tuple[int, bytes]]:
    last = LastKeys(rules)
    is_damaged = is_gone = False
    for segment in group:
        try:
            for frame in frames_of(segment):
                is_damaged |= frame.type == DAMAGED
                last.meet(frame)
        except SegmentDamaged:
            is_damaged = True
        except SegmentGone:
            is_gone = True
    yield from last.buckets(buckets)
    if is_damaged:
        yield _DAMAGED, b""
    if is_gone:
        yield _GONE, b""


def frames_of(segment: Segment) -> Iterator[Frame]:
    """Every frame but the seal. Raises SegmentDamaged, SegmentGone."""
    for item in read(segment):
        if not isinstance(item, Frame):
            raise SegmentDamaged(f"{segment.name}, byte {item.position}: {item.reason}")
        yield item


# ---------------------------------------------------------------- in the driver


def _latest(hands: Hands, segments: Sequence[Segment], rules: Rules) -> tuple[dict[Key, Latest], bool]:
    """The last messages of each key, and whether damage was met on the way.

    None where not every segment could be read: what those hold may be all that keeps a tombstone of the others.
    """
    groups = _groups(segments, KEYS_BYTES)
    buckets = max(hands.count, len(groups) // 4)
    combined = hands.combine(groups, partial(_keys, rules, buckets), buckets, partial(_bucket, rules))
    met = {number for number, _ in combined if number < 0}
    return {} if met else joined(found for _, found in combined), _DAMAGED in met


def _bucket(rules: Rules, bucket: tuple[int, Iterable[bytes]]) -> tuple[int, dict[Key, Latest]]:
    number, blobs = bucket
    return number, latest_of(blobs, rules) if number >= 0 else {}


def _groups(segments: Sequence[Segment], most_bytes: int) -> list[list[Segment]]:
    groups: list[list[Segment]] = []
    for segment in segments:
        if groups and sum(each.size for each in groups[-1]) + segment.size <= most_bytes:
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return groups
