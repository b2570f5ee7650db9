"""Reading what the log holds: by offset, by sequence, and all of it in order.

Knows the segments of the chain and their indexes. Any thread may read; the writer tells it of new chains, and the
owner adds to the live index as it appends.
"""

from __future__ import annotations

import errno
import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError, Message

from wal.chain import open_entry, path_of, walk_chain, walk_entry
from wal.disk import Disk, read_file, write_all
from wal.errors import CorruptSegment, WalError
from wal.frame import HEADER_BYTES as FRAME_BYTES
from wal.frame import Frame
from wal.index import Places, SegmentIndex, Summary, build_index, summary_bytes, unpack_summary
from wal.manifest import Manifest, SegmentEntry
from wal.record import Damaged, Published, Unknown, decode, end_offset, published_in
from wal.segment import Gap, SegmentFile

_HINT = "mq wal verify lists what is lost"
_CACHED_INDEXES = 8
_PASSING = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN})  # these say nothing about a file
MAX_MESSAGES_PER_RECORD = 10_000  # what a writer puts into one record at most
_SUMMARY_GUESS_BYTES = 1 << 14  # one read gets most summaries whole


@dataclass(slots=True)
class _Catalog:
    """Where each partition's offsets are, by segment: what one look-up over many segments needs."""

    order: dict[str, int] = field(default_factory=dict)  # of the segments, by name
    segments: dict[tuple[int, int], tuple[list[int], list[SegmentEntry]]] = field(default_factory=dict)
    gaps: list[tuple[int, int]] = field(default_factory=list)  # order of the segment, position

    def add(self, name: str, entry: SegmentEntry, summary: Summary) -> None:
        order = self.order[name] = len(self.order)
        for key, last_end in summary.last_ends.items():
            ends, entries = self.segments.setdefault(key, ([], []))
            ends.append(last_end)
            entries.append(entry)
        self.gaps += [(order, position) for position in summary.gaps]

    def note_gaps(self, name: str, summary: Summary) -> None:
        """Damage to a segment that has come to light since it was added."""
        order = self.order.get(name)
        if order is not None:
            self.gaps += {(order, position) for position in summary.gaps}.difference(self.gaps)


class Reader:
    """All reads of one log."""

    def __init__(self, disk: Disk, directory: str, manifest: Manifest) -> None:
        self._disk = disk
        self._directory = directory
        self._lock = threading.RLock()
        self._manifest = manifest
        self._live_index = SegmentIndex()
        self._live: SegmentEntry | None = None
        self._live_end = 0  # what of the live segment is synced; its index knows more than that
        self._indexes: OrderedDict[str, SegmentIndex] = OrderedDict()
        self._catalog: _Catalog | None = None
        self._renewed: set[str] = set()  # segments whose index was compared with the log after it led nowhere

    # ------------------------------------------------------------ the chain

    def follow(self, manifest: Manifest) -> None:
        """Read from another chain from now on: segments were replaced."""
        with self._lock:
            self._manifest = manifest
            self._catalog = None

    def go_live(self, manifest: Manifest, index: SegmentIndex, end: int) -> None:
        """The last segment of the chain is being written, is synced up to `end`, and this index grows with it."""
        with self._lock:
            self._manifest = manifest
            self._live, self._live_index, self._live_end = manifest.segments[-1], index, end

    def advance(self, end: int) -> None:
        """The live segment is synced up to `end`."""
        self._live_end = end

    def seal(self, manifest: Manifest, sealed: SegmentEntry, index: SegmentIndex) -> None:
        """The live segment is sealed and not yet followed by another: its index goes beside it."""
        name = sealed.name(manifest.extension)
        with self._lock:
            self._manifest = manifest
            self._live = None
            self._remember(name, index)
            if self._catalog is not None:
                self._catalog.add(name, sealed, index.summary())
        self._save(sealed, index)

    # ------------------------------------------------------------ by offset

    @property
    def has_gaps(self) -> bool:
        """See `wal.log.Log.has_gaps`."""
        catalog = self._catalog
        return catalog is None or bool(catalog.gaps)

    def read(self, channel_id: int, partition: int, offset: int, max_bytes: int, synced: int) -> list[Published]:
        """See `wal.log.Log.read`."""
        while True:
            manifest = self._manifest
            try:
                return self._read(channel_id, partition, offset, max_bytes, synced)
            except (CorruptSegment, OSError):
                if self._manifest is manifest:
                    raise
                # segments were replaced meanwhile, and the old ones may be gone already

    def _read(self, channel_id: int, partition: int, offset: int, max_bytes: int, synced: int) -> list[Published]:
        key = (channel_id, partition)
        found: list[Published] = []
        previous: tuple[int, int] | None = None  # the place of the frame before
        catalog, before, entries, live_end = self._segments_from(key, offset)
        for entry in entries:
            index = self._index(entry)
            places = index.partitions.get(key)
            if places is None:
                continue
            order = catalog.order.get(entry.name(self._manifest.extension), len(catalog.order))
            first = places.first_after(offset)
            if first:
                previous = (order, places.positions[first - 1])
            if first == len(places.ends):
                continue
            segment = self._open_for(entry, places, first, bool(found))
            if segment is None:
                return found
            with segment:
                for at in range(first, len(places.ends)):
                    base, end, here = places.bases[at], places.ends[at], (order, places.positions[at])
                    if not entry.is_sealed and here[1] >= live_end:
                        return found
                    if base > offset and catalog.gaps:
                        # damage between the frame before and this one may have held offsets
                        previous = previous or self._last_place(catalog, before, key)
                        if any(previous < gap <= here for gap in catalog.gaps):
                            if found:
                                return found
                            raise CorruptSegment(segment.path, here[1], "damage hides offsets", _HINT, (offset, base))
                    try:
                        frame, published = self._fetch(segment, here[1], key, end)
                    except CorruptSegment as error:
                        is_renewed = self._renew(entry, segment, index)
                        if found:
                            return found
                        if is_renewed:
                            return self._read(channel_id, partition, offset, max_bytes, synced)
                        raise CorruptSegment(error.path, here[1], error.reason, error.hint, (base, end)) from None
                    max_bytes -= len(frame.payload)
                    if frame.sequence > synced or (found and max_bytes < 0):
                        return found
                    found.append(published)
                    offset, previous = end, here
        return found

    def _open_for(self, entry: SegmentEntry, places: Places, first: int, may_stop: bool) -> SegmentFile | None:
        """The segment; None where it is missing and there is something to return before it."""
        try:
            return self._open(entry)
        except CorruptSegment as error:
            if may_stop:
                return None
            lost = (places.bases[first], places.ends[-1])
            raise CorruptSegment(error.path, 0, error.reason, error.hint, lost) from None

    def _last_place(self, catalog: _Catalog, entry: SegmentEntry | None, key: tuple[int, int]) -> tuple[int, int]:
        """The place of a partition's last frame in a segment; before everything where there is none."""
        places = self._index(entry).partitions.get(key) if entry is not None else None
        if entry is None or places is None:
            return (-1, 0)
        return catalog.order.get(entry.name(self._manifest.extension), -1), places.positions[-1]

    def _fetch(self, segment: SegmentFile, position: int, key: tuple[int, int], end: int) -> tuple[Frame, Published]:
        """The frame that an index names, and the publish in it that ends with an offset. Raises CorruptSegment."""
        frame = segment.frame_at(position)
        for published in published_in(_decoded(frame, segment.path)):
            if (published.channel_id, published.partition, end_offset(published)) == (*key, end):
                return frame, published
        raise CorruptSegment(segment.path, position, "another frame lies here than was written", _HINT)

    def _renew(self, entry: SegmentEntry, segment: SegmentFile, old: SegmentIndex) -> bool:
        """A frame is not where the index says: once, look where they all are now. True where any has moved."""
        name = entry.name(self._manifest.extension)
        if not entry.is_sealed or name in self._renewed:
            return False
        self._renewed.add(name)
        index = build_index(walk_entry(segment, entry))
        if index.places() <= old.places():
            return False  # what is left is in its place: the old index still knows best what is lost
        self._save(entry, index)
        with self._lock:
            self._remember(name, index)
            self._catalog = None
        return True

    def _segments_from(
        self, key: tuple[int, int], offset: int
    ) -> tuple[_Catalog, SegmentEntry | None, list[SegmentEntry], int]:
        """The segments that may hold an offset or later ones, the one before them, and the live one's synced end."""
        with self._lock:
            if self._catalog is None:
                self._catalog = self._build_catalog()
            ends, entries = self._catalog.segments.get(key, ([], []))
            at = bisect_right(ends, offset)
            chosen = entries[at:] + ([self._live] if self._live is not None else [])
            return self._catalog, entries[at - 1] if at else None, chosen, self._live_end

    def _build_catalog(self) -> _Catalog:
        catalog = _Catalog()
        for entry in self._manifest.segments:
            if entry.is_sealed:
                catalog.add(entry.name(self._manifest.extension), entry, self._summary(entry))
        return catalog

    # ------------------------------------------------------------ by sequence

    def read_sequence(self, sequence: int, synced: int) -> Message | Unknown | None:
        """See `wal.log.Log.read_sequence`."""
        if not 0 < sequence <= synced:
            return None
        while True:
            manifest = self._manifest
            try:
                return self._read_sequence(sequence)
            except (CorruptSegment, OSError):
                if self._manifest is manifest:
                    raise

    def _read_sequence(self, sequence: int) -> Message | Unknown | None:
        with self._lock:
            segments, live = self._manifest.segments, self._live
        at = bisect_right([entry.first_sequence for entry in segments], sequence) - 1
        if at < 0:
            return None
        entry = segments[at]
        index = self._index(entry)
        expected, start = index.mark_before(sequence)
        with self._open(entry) as segment:
            walk = walk_entry(segment, entry, start=start, expected=expected or entry.first_sequence)
            for item in walk:
                if isinstance(item, Gap):
                    if item.first_sequence <= sequence <= item.last_sequence:
                        raise CorruptSegment(segment.path, item.position, item.reason, _HINT)
                elif item.sequence >= sequence:
                    return _decoded(item, segment.path) if item.sequence == sequence else None
        if live is not entry and sequence <= entry.last_sequence and entry.is_dense:
            raise CorruptSegment(segment.path, segment.size, "the segment ends early", _HINT)
        return None

    # ------------------------------------------------------------ all of it

    def replay(self, first_sequence: int) -> Iterator[tuple[int, Message | Unknown]]:
        """Every record from a sequence on; what is damaged appears as Damaged, in its place."""
        walk = walk_chain(
            self._disk, self._directory, self._manifest, first_sequence, self._live_end, index_of=self._index
        )
        for entry, item in walk:
            if isinstance(item, Frame):
                try:
                    yield item.sequence, decode(item.type, item.payload)
                except DecodeError:
                    gap = Gap(item.position, item.position, item.sequence, item.sequence, "the record can't be decoded")
                    yield item.sequence, damaged(gap, entry.name(self._manifest.extension), len(item.payload))
            else:
                yield item.last_sequence, damaged(item, entry.name(self._manifest.extension))

    # ------------------------------------------------------------ indexes

    def index_of(self, entry: SegmentEntry) -> SegmentIndex:
        """The index of a segment. Raises CorruptSegment where the segment is missing."""
        return self._index(entry)

    def _index(self, entry: SegmentEntry) -> SegmentIndex:
        name = entry.name(self._manifest.extension)
        with self._lock:
            if entry is self._live:
                return self._live_index
            if name in self._indexes:
                self._indexes.move_to_end(name)
                return self._indexes[name]
        index = self._load(entry) or self._rebuild(entry)
        with self._lock:
            self._remember(name, index)
        return index

    def _remember(self, name: str, index: SegmentIndex) -> None:
        self._indexes[name] = index
        while len(self._indexes) > _CACHED_INDEXES:
            self._indexes.popitem(last=False)

    def _load(self, entry: SegmentEntry) -> SegmentIndex | None:
        try:
            return SegmentIndex.unpack(read_file(self._disk, self._sidecar(entry)), entry.salt_bytes, entry.size)
        except OSError as error:
            if error.errno in _PASSING:
                raise
            return None

    def _rebuild(self, entry: SegmentEntry) -> SegmentIndex:
        with self._open(entry) as segment:
            index = build_index(walk_entry(segment, entry))
        self._save(entry, index)
        with self._lock:
            if self._catalog is not None:
                self._catalog.note_gaps(entry.name(self._manifest.extension), index.summary())
        return index

    def _save(self, entry: SegmentEntry, index: SegmentIndex) -> None:
        """Best effort: a sidecar that can't be written, or is written torn, is rebuilt when it is needed."""
        path = self._sidecar(entry)
        try:
            if os.path.basename(path) in self._disk.list(self._directory):
                self._disk.unlink(path)
            fd = self._disk.create(path)
            try:
                write_all(self._disk, fd, [index.pack(entry.salt_bytes, entry.size)], 0)
            finally:
                self._disk.close(fd)
        except OSError:
            return

    def _summary(self, entry: SegmentEntry) -> Summary:
        try:
            fd = self._disk.open_read_only(self._sidecar(entry))
        except OSError as error:
            if error.errno in _PASSING:
                raise
            fd = -1
        if fd >= 0:
            try:
                data = self._disk.read(fd, _SUMMARY_GUESS_BYTES, 0)
                size = summary_bytes(data)
                if size > len(data):
                    data = self._disk.read(fd, min(size, self._disk.size(fd)), 0)
                data = data[:size]
            finally:
                self._disk.close(fd)
            summary = unpack_summary(data, entry.salt_bytes, entry.size)
            if summary is not None:
                return summary
        try:
            return self._index(entry).summary()
        except (OSError, WalError) as error:
            if isinstance(error, OSError) and error.errno in _PASSING:
                raise
            return Summary({}, [0])  # the file is gone: everything it held is a gap

    def _sidecar(self, entry: SegmentEntry) -> str:
        return os.path.join(self._directory, entry.name(".idx"))

    def _open(self, entry: SegmentEntry) -> SegmentFile:
        try:
            return open_entry(self._disk, self._directory, self._manifest, entry)
        except FileNotFoundError:
            path = path_of(self._directory, self._manifest, entry)
            raise CorruptSegment(path, 0, "the segment is missing", _HINT) from None


def damaged(gap: Gap, segment: str, size: int | None = None) -> Damaged:
    """The record that stands for a gap, and how many offsets every partition has to leave out for it.

    A message takes at least two bytes. Where frames vanished without leaving bytes, each may have been a full one.
    """
    lost = gap.size if size is None else size
    missing = gap.last_sequence - gap.first_sequence + 1
    return Damaged(
        first_sequence=gap.first_sequence,
        last_sequence=gap.last_sequence,
        segment=segment,
        position=gap.position,
        bytes=lost,
        reason=gap.reason,
        skip=lost // 2 if lost >= missing * FRAME_BYTES else missing * MAX_MESSAGES_PER_RECORD,
    )


def _decoded(frame: Frame, path: str) -> Message | Unknown:
    try:
        return decode(frame.type, frame.payload)
    except DecodeError:
        raise CorruptSegment(path, frame.position, "the record can't be decoded", _HINT) from None
