"""Writes what stays of segments, and proposes it to the log's owner.

Workers write files under names that no other attempt has; the driver gives them their own names and writes the
proposals last, so a job that dies leaves files that nobody looks at. Nothing here touches the log: that is
`wal.install`'s work.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from wal.disk import DirectDisk, Disk
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
from wal.segment import SealedWriter, SegmentHeader
from wal.spark.compact.hands import Hands
from wal.spark.compact.intact import NotClear, intact_frames
from wal.spark.compact.job import Plan, SegmentDamaged, frames_of
from wal.spark.compact.selection import Key, Latest, Rules, Selection
from wal.spark.read.listing import Segment, visible

SEND_BYTES = 4 << 20  # that are put on disk at a time
_OURS = re.compile(r"[0-9a-f]{16}[-.].*")


class Staged(NamedTuple):
    """A file that a worker wrote."""

    attempt: str
    frames: int
    bytes: int
    crc: int
    dropped_records: int
    dropped: dict[Key, int]


class Spoilt(NamedTuple):
    """Why a worker wrote none."""

    segment: str  # that is damaged
    reason: str


@dataclass(frozen=True, slots=True)
class Part:
    """Neighbours that become one file."""

    segments: tuple[Segment, ...]
    offer_id: str
    floors: dict[Key, int]  # where the whole run of neighbours begins in each partition
    is_alone: bool  # of the run there is nothing else


Written = tuple[Part, Staged]


def stage(
    hands: Hands,
    root: str,
    manifest: Manifest,
    planned: Plan,
    rules: Rules,
    grounds: Callable[[set[Key]], tuple[Ground, ...]],
    now_us: Callable[[], int],
    tell: Callable[[str], None] = lambda text: None,
) -> list[Offer]:
    """Write what stays of the planned segments; returns the proposals, oldest segments first.

    The clock is asked when a claim or a proposal is written: each holds for so long from then, and a look at a large
    log may take as long. A segment that turns out to be damaged is left alone, and `tell` hears of it. Raises
    SegmentDamaged where a message would go for a later one's sake: what is lost may be what keeps it.
    """
    disk = DirectDisk()
    disk.make_directory(os.path.join(root, STAGING))
    kept = {each.name: each.kept_bytes for each in planned.surveys}
    target = max((entry.size for entry in manifest.segments if entry.is_sealed), default=0)
    runs = _claimed(disk, root, manifest, {uuid4().hex[:16]: run for run in planned.runs}, now_us)
    parts = [
        Part(segments, offer_id, planned.floors(run), len(run) == 1)
        for offer_id, run in runs.items()
        for segments in _fitting(run, kept, target)
    ]

    def note(spoilt: Spoilt) -> None:
        if planned.latest:
            raise SegmentDamaged(spoilt.reason)
        tell(f"{spoilt.reason}: this segment is left alone (mq wal repair comes first)")

    written = _write(hands, parts, partial(rewrite, rules, planned.latest, manifest), note)
    offers: list[Offer] = []
    for offer_id, run in runs.items():
        stretches = _stretches(run, [each for each in written if each[0].offer_id == offer_id])
        for number, stretch in enumerate(stretches):
            made = _offer(root, manifest, uuid4().hex[:16] if number else offer_id, stretch, grounds, now_us())
            write_offer(disk, root, made)
            offers.append(made)
        if not stretches:
            remove_offer(disk, root, offer_id)
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


def _write(
    hands: Hands, parts: Sequence[Part], work: Callable[[Part], Staged | Spoilt], note: Callable[[Spoilt], None]
) -> list[Written]:
    """What was written, oldest first. Around a segment that is damaged the others are written once more."""
    written: list[Written] = []
    while parts:
        again: list[Part] = []
        for part, made in zip(parts, hands.each(parts, work), strict=True):
            if isinstance(made, Staged):
                written.append((part, made))
                continue
            note(made)
            at = [segment.name for segment in part.segments].index(made.segment)
            around = (part.segments[:at], part.segments[at + 1 :])
            again += [replace(part, segments=some) for some in around if some]
        parts = again
    return sorted(written, key=lambda each: each[0].segments[0].first_sequence)


def _stretches(run: Sequence[Segment], written: Sequence[Written]) -> list[list[Written]]:
    """What can be proposed together: neighbours, of which the first has a frame: outputs begin where inputs begin."""
    place = {segment.name: number for number, segment in enumerate(run)}
    stretches: list[list[Written]] = []
    end = -1
    for part, made in written:
        if place[part.segments[0].name] != end or not any(before.frames for _, before in stretches[-1]):
            stretches.append([])
        stretches[-1].append((part, made))
        end = place[part.segments[-1].name] + 1
    return stretches


def _offer(
    root: str,
    manifest: Manifest,
    offer_id: str,
    stretch: Sequence[Written],
    grounds: Callable[[set[Key]], tuple[Ground, ...]],
    now_us: int,
) -> Offer:
    inputs = [segment for part, _ in stretch for segment in part.segments]
    outputs = tuple(_take(root, offer_id, number, made) for number, (_, made) in enumerate(stretch) if made.frames)
    dropped = sum((Counter(made.dropped) for _, made in stretch), Counter[Key]())
    return Offer(
        offer_id,
        manifest.log_uuid,
        now_us,
        tuple(segment.name for segment in inputs),
        outputs,
        sum(made.dropped_records for _, made in stretch),
        dropped.total(),
        sum(segment.size for segment in inputs) - sum(output.bytes for output in outputs),
        grounds(set(dropped)),
    )


def _take(root: str, offer_id: str, number: int, made: Staged) -> Output:
    """Give a written file the name under which it is proposed."""
    name = staged_name(offer_id, number)
    os.rename(path_in_staging(root, made.attempt), path_in_staging(root, name))
    return Output(name, made.frames, made.bytes, made.crc)


def clear(root: str) -> None:
    """Remove what earlier compactions left in staging/, proposals that wait included. Called under the lock."""
    folder = Path(root, STAGING)
    for path in folder.iterdir():
        if _OURS.fullmatch(path.name):
            path.unlink(missing_ok=True)  # the broker forgets a proposal when it has decided


# ---------------------------------------------------------------- in the workers


def rewrite(rules: Rules, latest: Mapping[Key, Latest], manifest: Manifest, part: Part) -> Staged | Spoilt:
    """Write what stays of some neighbours into one file, under a name that no other attempt has.

    Every byte is read and checked: what becomes of a damaged segment is for a repair to say.
    """
    selection = Selection(rules, latest, part.floors, is_alone=part.is_alone)
    first = part.segments[0]
    header = SegmentHeader(manifest.log_uuid, first.first_sequence, first.generation + 1, os.urandom(8))
    disk = _EagerDisk()
    name = f"{part.offer_id}-{uuid4().hex}.part"
    path = path_in_staging(first.root, name)
    fd = disk.create(path)
    dropped: Counter[Key] = Counter()
    records = 0
    try:
        writer = SealedWriter(disk, fd, header)
        for segment in part.segments:
            for frame in _frames(segment, writer.flush):
                payload, gone = selection.cut(frame)
                if gone:
                    dropped.update(gone)
                if payload is None:
                    records += 1
                else:
                    writer.add(frame.type, frame.sequence, [payload])
        size = writer.seal()
    except SegmentDamaged as error:
        disk.unlink(path)
        return Spoilt(segment.name, str(error))
    finally:
        disk.close(fd)
    if not writer.frames:
        disk.unlink(path)
    return Staged(name, writer.frames, size, writer.last_crc, records, dict(dropped))


def _frames(segment: Segment, let_go: Callable[[], None]) -> Iterator[Frame]:
    """Raises SegmentDamaged, SegmentGone."""
    try:
        yield from intact_frames(segment, let_go)
    except (NotClear, FileNotFoundError) as error:
        for _ in frames_of(segment):  # it knows what is wrong
            pass
        raise SegmentDamaged(str(error)) from error


class _EagerDisk(DirectDisk):
    """For one file: begins early to put on disk what was written, so that a sync has less to wait for."""

    def __init__(self) -> None:
        super().__init__()
        self._sent = 0  # up to here

    def write(self, fd: int, buffers: Sequence[bytes], position: int) -> int:
        count = super().write(fd, buffers, position)
        unsent = position + count - self._sent
        if unsent >= SEND_BYTES and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, self._sent, unsent, os.POSIX_FADV_DONTNEED)  # what is not on disk yet is sent there
            self._sent += unsent
        return count
