"""Cleaning: segments that are mostly dead are written anew without what is dead, neighbours into one.

The log knows which records a replay may need (everything from the older of the two kept snapshot runs on) and leaves
them alone. Of what lies before, its owner says what is still needed. A segment's index tells how much of it is worth
keeping, so nothing is read to find out that nothing is to be gained. What is made here goes through `wal.install`,
which reads and compares everything once more.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from google.protobuf.message import DecodeError, Message

from wal.chain import open_entry, walk_entry
from wal.disk import Disk
from wal.errors import InstallRefused, WalError
from wal.frame import HEADER_BYTES as FRAME_BYTES
from wal.frame import Frame
from wal.index import SegmentIndex
from wal.manifest import Manifest, SegmentEntry
from wal.proposal import STAGING, Proposal
from wal.reader import Reader
from wal.record import DEAD_LETTERED, PUBLISHED, Unknown, decode
from wal.segment import SealedWriter

CLEANING = "cleaning"  # the name of what is being made, in staging/
LOOKED_AT_ONCE = 256  # segments whose index is read in one round
LOOKS_UNREAD = 30  # at a segment that was read and kept for what no index tells of, before it is read again
ASKED_AGAIN = 16  # an index is asked again when such a part of what was needed has died
SMALL_PART = 4  # a segment below this part of the usual size is put together with its neighbours


class Keep(Protocol):
    """What is needed of a log beyond what a replay needs, as its owner saw it at one durable moment.

    Asked from another thread. What is not needed once is not needed ever after.
    """

    def start_of(self, channel_id: int, partition: int) -> int:
        """Publishes that end at or before this offset are not needed."""
        ...

    def needs(self, record: Message | Unknown) -> bool: ...


@dataclass(slots=True)
class _Run:
    """Neighbours to be written into one."""

    entries: list[SegmentEntry] = field(default_factory=list)
    live: dict[int, set[int]] = field(default_factory=dict)  # by first sequence: positions of frames to keep
    live_bytes: int = 0
    bytes: int = 0

    def is_worth_it(self) -> bool:
        return len(self.entries) > 1 or (len(self.entries) == 1 and self.live_bytes * 2 <= self.bytes)


@dataclass(frozen=True, slots=True)
class _Look:
    """What the index of a segment told. To ask it takes long where there are many small publishes."""

    live_bytes: int
    ends: list[tuple[int, int, int]]  # channel, partition, and an offset: when that is not needed, ask again

    def is_true(self, keep: Keep) -> bool:
        """Whether still about the same is needed."""
        return all(keep.start_of(channel_id, partition) < end for channel_id, partition, end in self.ends)


class Cleaner:
    """Finds out what to clean next, round and round; one call at a time."""

    def __init__(self, disk: Disk, directory: str, reader: Reader, segment_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._reader = reader
        self._segment_bytes = segment_bytes
        self._after = 0  # the first sequence of the segment that was looked at last
        self._looks: dict[tuple[int, int], _Look] = {}  # by first sequence and generation
        self._unindexed: dict[int, tuple[int, int]] = {}  # by first sequence: bytes that no index tells of, looks left
        self._refused: set[str] = set()
        self._spared: frozenset[str] = frozenset()  # others are about to rewrite these

    def propose(
        self,
        manifest: Manifest,
        keep: Keep,
        max_bytes: int,
        salt: bytes,
        may_write: bool,
        spared: frozenset[str] = frozenset(),
    ) -> Proposal | None:
        """Stage what replaces the next few segments; None where there is nothing to gain. `spared` are left alone."""
        self._spared = spared
        run = self._choose(manifest, keep, max_bytes, may_write)
        if not run.is_worth_it():
            return None
        names = tuple(entry.name(manifest.extension) for entry in run.entries)
        try:
            self._survey(manifest, run, keep)
            return Proposal(names, self._stage(manifest, run, keep, salt)) if run.is_worth_it() else None
        except WalError:
            self.refuse(names)
            raise

    def refuse(self, names: tuple[str, ...]) -> None:
        """These can't be cleaned: they are damaged, or live after all. Do not try again before the next start."""
        self._refused.update(names)

    # ------------------------------------------------------------ what is worth it

    def _choose(self, manifest: Manifest, keep: Keep, max_bytes: int, may_write: bool) -> _Run:
        present = {(entry.first_sequence, entry.generation) for entry in manifest.segments}
        self._looks = {key: look for key, look in self._looks.items() if key in present}
        run = _Run()
        for entry in self._candidates(manifest):
            live_bytes = self._live_bytes(entry, keep)
            is_small = entry.size * SMALL_PART <= self._segment_bytes
            fits = run.live_bytes + live_bytes <= self._segment_bytes and run.bytes + entry.size <= max_bytes
            is_wanted = (live_bytes * 2 <= entry.size or is_small) and (may_write or not live_bytes)
            if run.entries and not (is_wanted and fits and self._are_neighbours(manifest, run.entries[-1], entry)):
                if run.is_worth_it():
                    return run
                run = _Run()
            self._after = entry.first_sequence
            if is_wanted:
                run.entries.append(entry)
                run.live[entry.first_sequence] = self._live_positions(entry, keep)
                run.live_bytes += live_bytes
                run.bytes += entry.size
        return run

    def _candidates(self, manifest: Manifest) -> list[SegmentEntry]:
        """The next ones in which no replay will look: from after those of the last round on, and then from the oldest.

        Where much is written there are new ones in each round, which still live, and older ones that died meanwhile.
        """
        if len(manifest.snapshots) < 2:
            return []
        floor = manifest.snapshots[0].begin
        left_alone = self._refused | self._spared
        sealed = [
            entry
            for entry in manifest.segments
            if entry.is_sealed and entry.last_sequence < floor and entry.name(manifest.extension) not in left_alone
        ]
        seen = bisect_right(sealed, self._after, key=lambda entry: entry.first_sequence)
        return (sealed[seen:] + sealed[:seen])[:LOOKED_AT_ONCE]

    def _are_neighbours(self, manifest: Manifest, left: SegmentEntry, right: SegmentEntry) -> bool:
        at = manifest.segments.index(left)
        return manifest.segments[at + 1] == right

    def _live_bytes(self, entry: SegmentEntry, keep: Keep) -> int:
        """Bytes of what is needed, as far as is known."""
        key = entry.first_sequence, entry.generation
        look = self._looks.get(key)
        if look is None or not look.is_true(keep):
            look = self._looks[key] = self._look_at(entry, keep)
        size, looks = self._unindexed.pop(entry.first_sequence, (0, 0))
        if looks:
            self._unindexed[entry.first_sequence] = (size, looks - 1)
        return size + look.live_bytes

    def _look_at(self, entry: SegmentEntry, keep: Keep) -> _Look:
        partitions = self._index(entry).partitions
        live = [(*key, places, places.first_after(keep.start_of(*key))) for key, places in partitions.items()]
        live = [each for each in live if each[3] < len(each[2].ends)]
        ends = [
            (channel_id, partition, places.ends[at + (len(places.ends) - at) // ASKED_AGAIN])
            for channel_id, partition, places, at in live
        ]
        if len(live) == len(partitions) and (len(live) == 1 or not any(at for *_, at in live)):
            size = entry.size - min((places.positions[at] for _, _, places, at in live), default=entry.size)
        else:
            size = self._measure(entry, self._live_positions(entry, keep)) if live else 0
        return _Look(size, ends)

    def _live_positions(self, entry: SegmentEntry, keep: Keep) -> set[int]:
        live: set[int] = set()
        for (channel_id, partition), places in self._index(entry).partitions.items():
            live.update(places.positions[places.first_after(keep.start_of(channel_id, partition)) :])
        return live

    def _measure(self, entry: SegmentEntry, live: set[int]) -> int:
        """Bytes of the frames at these positions, each with what lies between it and the next publish."""
        size = 0
        partitions = self._index(entry).partitions.values()
        all_positions = sorted({position for places in partitions for position in places.positions})
        for position in live:
            at = bisect_right(all_positions, position)
            size += (all_positions[at] if at < len(all_positions) else entry.size) - position
        return size

    def _index(self, entry: SegmentEntry) -> SegmentIndex:
        return self._reader.index_of(entry)

    # ------------------------------------------------------------ writing it anew

    def _survey(self, manifest: Manifest, run: _Run, keep: Keep) -> None:
        """Find out how much would really stay: delayed publishes are in no index."""
        run.live_bytes = unindexed = 0
        for entry in run.entries:
            live = run.live[entry.first_sequence]
            for frame in self._kept(manifest, entry, live, keep):
                size = FRAME_BYTES + len(frame.payload)
                run.live_bytes += size
                unindexed += 0 if frame.position in live else size
        if unindexed:
            self._unindexed[run.entries[0].first_sequence] = (unindexed, LOOKS_UNREAD)

    def _stage(self, manifest: Manifest, run: _Run, keep: Keep, salt: bytes) -> tuple[str, ...]:
        first = run.entries[0]
        folder = os.path.join(self._directory, STAGING)
        path = os.path.join(folder, CLEANING)
        self._disk.make_directory(folder)
        if CLEANING in self._disk.list(folder):
            self._disk.unlink(path)  # of a round that was cut short
        header = replace(first.header(manifest.log_uuid), generation=first.generation + 1, salt=salt)
        fd = self._disk.create(path)
        try:
            copy = SealedWriter(self._disk, fd, header)
            for entry in run.entries:
                for frame in self._kept(manifest, entry, run.live[entry.first_sequence], keep):
                    copy.add(frame.type, frame.sequence, [frame.payload])
            if copy.frames:
                copy.seal()
        finally:
            self._disk.close(fd)
        if not copy.frames:
            self._disk.unlink(path)
            return ()
        return (CLEANING,)

    def _kept(self, manifest: Manifest, entry: SegmentEntry, live: set[int], keep: Keep) -> Iterator[Frame]:
        with open_entry(self._disk, self._directory, manifest, entry) as segment:
            for item in walk_entry(segment, entry):
                if not isinstance(item, Frame):
                    raise InstallRefused(f"{segment.path}, byte {item.position}: {item.reason}")
                if item.position in live or (item.type not in (PUBLISHED, DEAD_LETTERED) and _is_needed(item, keep)):
                    yield item


def _is_needed(frame: Frame, keep: Keep) -> bool:
    try:
        return keep.needs(decode(frame.type, frame.payload))
    except DecodeError:
        return True
