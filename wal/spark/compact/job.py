"""Compaction: writes segments anew without what nobody needs, and proposes them to the log's owner.

Three passes, each over the segments that no replay will look into. Where channels keep the latest message of each key,
the first finds those; the second tells how much of each segment would stay; the third writes neighbours that are worth
it, staged under a name that no other attempt has. The driver gives them their names and writes the proposals last, so a
job that dies leaves files that nobody looks at. Nothing here touches the log: that is `wal.install`'s work.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from wal.disk import DirectDisk, Disk
from wal.errors import WalError
from wal.frame import Frame
from wal.manifest import Manifest
from wal.proposal import (
    STAGING,
    Ground,
    Offer,
    Output,
    path_in_staging,
    remove_offer,
    staged_name,
    write_claim,
    write_offer,
)
from wal.record import DAMAGED
from wal.segment import SealedWriter, SegmentHeader
from wal.spark.compact.hands import Hands
from wal.spark.compact.latest import LastKeys, joined, latest_of
from wal.spark.compact.selection import Key, Latest, Rules, Selection, frame_bytes
from wal.spark.read.listing import Segment, SegmentGone, visible
from wal.spark.read.scan import read

LOCK = "compacting"  # in staging/: one compaction of a log at a time
WORTH = 0.1  # of a segment's bytes must go, or it is left alone
MOST_REPLACED = 4_000_000  # messages that a proposal drops for later ones' sake: a broker remembers 5 million keys
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
    def left_alone(cls, segment: Segment, *, is_damaged: bool) -> Survey:
        return cls(segment.name, segment.size, segment.size, 0, {}, {}, is_damaged)


class Staged(NamedTuple):
    """A file that a worker wrote."""

    attempt: str
    frames: int
    bytes: int
    crc: int
    dropped_records: int
    dropped: dict[Key, int]


@dataclass(frozen=True, slots=True)
class Part:
    """Neighbours that become one file."""

    segments: tuple[Segment, ...]
    offer_id: str
    floors: dict[Key, int]  # where the whole run of neighbours begins in each partition


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


def stage(
    hands: Hands,
    root: str,
    manifest: Manifest,
    planned: Plan,
    rules: Rules,
    grounds: Callable[[set[Key]], tuple[Ground, ...]],
    now_us: Callable[[], int],
) -> list[Offer]:
    """Write what stays of the planned segments; returns the proposals, oldest segments first.

    The clock is asked when a claim or a proposal is written: each holds for so long from then, and a look at a large
    log may take as long.
    """
    disk = DirectDisk()
    disk.make_directory(os.path.join(root, STAGING))
    kept = {each.name: each.kept_bytes for each in planned.surveys}
    target = max((entry.size for entry in manifest.segments if entry.is_sealed), default=0)
    runs = _claimed(disk, root, manifest, {uuid4().hex[:16]: run for run in planned.runs}, now_us)
    parts = [
        Part(segments, offer_id, planned.floors(run))
        for offer_id, run in runs.items()
        for segments in _fitting(run, kept, target)
    ]
    written = hands.each(parts, partial(rewrite, rules, planned.latest, manifest))
    offers = []
    for offer_id, run in runs.items():
        mine = [made for part, made in zip(parts, written, strict=True) if part.offer_id == offer_id]
        outputs = tuple(_take(root, offer_id, number, made) for number, made in enumerate(mine) if made.frames)
        dropped = sum((Counter(made.dropped) for made in mine), Counter[Key]())
        offer = Offer(
            offer_id,
            manifest.log_uuid,
            now_us(),
            tuple(segment.name for segment in run),
            outputs,
            sum(made.dropped_records for made in mine),
            dropped.total(),
            sum(segment.size for segment in run) - sum(output.bytes for output in outputs),
            grounds(set(dropped)),
        )
        write_offer(disk, root, offer)
        offers.append(offer)
    return offers


def _claimed(
    disk: Disk, root: str, manifest: Manifest, runs: dict[str, list[Segment]], now_us: Callable[[], int]
) -> dict[str, list[Segment]]:
    """The runs that are all there once they are claimed: the broker may have cleaned some since they were looked at."""
    for offer_id, run in runs.items():
        names = tuple(segment.name for segment in run)
        write_claim(disk, root, Offer(offer_id, manifest.log_uuid, now_us(), names, (), 0, 0, 0))
    present = {segment.name for segment in visible(root, sealed_only=True)}
    claimed = {}
    for offer_id, run in runs.items():
        if present.issuperset(segment.name for segment in run):
            claimed[offer_id] = run
        else:
            remove_offer(disk, root, offer_id)
    return claimed


def clear(root: str) -> None:
    """Remove what earlier compactions left in staging/, proposals that wait included. Called under the lock."""
    folder = Path(root, STAGING)
    for path in folder.iterdir():
        if _OURS.fullmatch(path.name):
            path.unlink(missing_ok=True)  # the broker forgets a proposal when it has decided


# ---------------------------------------------------------------- in the workers


def survey(rules: Rules, latest: Mapping[Key, Latest], segment: Segment) -> Survey:
    """How much of a segment would stay, if it were rewritten by itself."""
    selection = Selection(rules, latest)
    kept = records = 0
    dropped: Counter[Key] = Counter()
    try:
        for frame in _frames(segment):
            cut = selection.cut(frame)
            dropped.update(cut.dropped)
            if cut.payload is None:
                records += 1
            else:
                kept += frame_bytes(cut.payload)
    except SegmentDamaged:
        return Survey.left_alone(segment, is_damaged=True)
    except SegmentGone:
        return Survey.left_alone(segment, is_damaged=False)
    if not records and not dropped:
        kept = segment.size
    return Survey(segment.name, segment.size, kept, records, dict(dropped), selection.floors, False)


def rewrite(rules: Rules, latest: Mapping[Key, Latest], manifest: Manifest, part: Part) -> Staged:
    """Write what stays of some neighbours into one file, under a name that no other attempt has."""
    selection = Selection(rules, latest, part.floors)
    first = part.segments[0]
    header = SegmentHeader(manifest.log_uuid, first.first_sequence, first.generation + 1, os.urandom(8))
    disk = DirectDisk()
    name = f"{part.offer_id}-{uuid4().hex}.part"
    fd = disk.create(path_in_staging(first.root, name))
    dropped: Counter[Key] = Counter()
    records = 0
    try:
        writer = SealedWriter(disk, fd, header)
        for segment in part.segments:
            for frame in _frames(segment):
                cut = selection.cut(frame)
                dropped.update(cut.dropped)
                if cut.payload is None:
                    records += 1
                else:
                    writer.add(frame.type, frame.sequence, [cut.payload])
        size = writer.seal()
    finally:
        disk.close(fd)
    if not writer.frames:
        disk.unlink(path_in_staging(first.root, name))
    return Staged(name, writer.frames, size, writer.last_crc, records, dict(dropped))


def _keys(rules: Rules, buckets: int, group: Sequence[Segment]) -> Iterator[tuple[int, bytes]]:
    last = LastKeys(rules)
    is_damaged = is_gone = False
    for segment in group:
        try:
            for frame in _frames(segment):
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


def _frames(segment: Segment) -> Iterator[Frame]:
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


def _fitting(run: Sequence[Segment], kept: Mapping[str, int], target: int) -> list[tuple[Segment, ...]]:
    """Neighbours of a run that fit into one file; where nothing stays of some, they go with what is before or after."""
    fitting: list[list[Segment]] = [[]]
    size = 0
    for segment in run:
        if size and size + kept[segment.name] > target:
            fitting.append([])
            size = 0
        fitting[-1].append(segment)
        size += kept[segment.name]
    return [tuple(each) for each in fitting]


def _take(root: str, offer_id: str, number: int, made: Staged) -> Output:
    """Give a written file the name under which it is proposed."""
    name = staged_name(offer_id, number)
    os.rename(path_in_staging(root, made.attempt), path_in_staging(root, name))
    return Output(name, made.frames, made.bytes, made.crc)
