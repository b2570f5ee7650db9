"""One segment of the chain as a verification reads it: frames, and everything that should be there and is not.

Works beside a running writer. What that may do meanwhile is not damage: bytes after the watermark are still being
written, and a segment may be sealed or retired under our eyes.
"""

from __future__ import annotations

from collections.abc import Iterator

from wal.chain import missing_gap, open_entry, walk_entry
from wal.continuity import Loss
from wal.disk import Disk, read_file
from wal.errors import WalError
from wal.frame import Frame
from wal.index import SegmentIndex
from wal.manifest import Manifest, SegmentEntry, read_manifest
from wal.record import Damaged
from wal.segment import SEGMENT_HEADER_BYTES, Gap, SegmentFile
from wal.tail import kept, survey
from wal.watermark import read_mark

_LOOKS = 3  # at a live segment that seems damaged


class SegmentCheck:
    """What it found beside the items is complete when all of them were taken."""

    def __init__(self, disk: Disk, directory: str, manifest: Manifest, entry: SegmentEntry) -> None:
        self._disk = disk
        self._directory = directory
        self._manifest = manifest
        self._entry = entry
        self._index: SegmentIndex | None = None
        self._has_index = True  # or it was not looked for yet
        self.has_left = False  # it was retired, or replaced, since the manifest was read
        self.is_read = False
        self.bytes = 0
        self.torn_bytes = 0  # at the end of the live segment, never durable: not damage

    def items(self) -> Iterator[Frame | Gap]:
        """Every intact frame but the seal, every gap; one that lies before the first frame is the header's."""
        try:
            segment = open_entry(self._disk, self._directory, self._manifest, self._entry)
        except FileNotFoundError:
            self.has_left = self._is_out_of_chain()
            if not self.has_left:
                yield missing_gap(self._entry, "the segment is missing")
            return
        self.is_read = True
        with segment:
            self.bytes = segment.size
            header = self._header_gap(segment)
            if header is not None:
                yield header
            yield from self._walk(segment)

    def losses(self, gap: Gap) -> list[Loss]:
        """What lay in a gap, as an index tells that was made before the damage."""
        index = self._sidecar() if self.is_read else None
        if index is None or index.gaps:
            return []
        return [
            Loss(*key, base, end)
            for key, places in index.partitions.items()
            for base, end, position in zip(places.bases, places.ends, places.positions, strict=True)
            if gap.position <= position < max(gap.end, gap.position + 1)
        ]

    def _header_gap(self, segment: SegmentFile) -> Gap | None:
        try:
            is_its_own = segment.header() == self._entry.header(self._manifest.log_uuid)
            reason = "" if is_its_own else "the header is another segment's"
        except WalError as error:
            reason = getattr(error, "reason", str(error))
        first = self._entry.first_sequence
        return Gap(0, SEGMENT_HEADER_BYTES, first, first - 1, reason) if reason else None

    def _walk(self, segment: SegmentFile) -> Iterator[Frame | Gap]:
        if self._entry.is_sealed:
            return walk_entry(segment, self._entry)
        for _ in range(_LOOKS):
            mark = read_mark(self._disk, self._directory, self._manifest.log_uuid)
            if mark is not None and mark.first_sequence > self._entry.first_sequence:
                sealed = self._as_sealed()
                if sealed is not None:
                    segment.size = self._disk.size(segment.fd)  # as the seal left it
                    return walk_entry(segment, sealed)
            tail = survey(segment, self._entry, mark)
            if not tail.corrupt:
                break  # else look again: a frame may have been half written when we read it, and be vouched for by now
        self.torn_bytes = tail.torn.size if tail.torn else 0
        return kept(segment, self._entry, tail)

    def _as_sealed(self) -> SegmentEntry | None:
        """The live segment of a moment ago, if it was sealed since we read the manifest."""
        manifest = read_manifest(self._disk, self._directory)
        wanted = (self._entry.first_sequence, self._entry.salt, True)
        for now in manifest.segments if manifest is not None else ():
            if (now.first_sequence, now.salt, now.is_sealed) == wanted:
                return now
        return None

    def _is_out_of_chain(self) -> bool:
        manifest = read_manifest(self._disk, self._directory)
        return manifest is not None and all(now.salt != self._entry.salt for now in manifest.segments)

    def _sidecar(self) -> SegmentIndex | None:
        if self._has_index and self._index is None:
            try:
                data = read_file(self._disk, f"{self._directory}/{self._entry.name('.idx')}")
                self._index = SegmentIndex.unpack(data, self._entry.salt_bytes, self._entry.size)
            except OSError:
                pass
            self._has_index = self._index is not None
        return self._index


def damage_told_by(frame: Frame) -> Gap:
    """A Damaged record as the gap that it stands for. Raises DecodeError."""
    lost = Damaged.FromString(frame.payload)
    reason = f"damage found when the log was opened: {lost.reason}"
    return Gap(frame.position, frame.position, lost.first_sequence, frame.sequence, reason)


def undecodable(frame: Frame) -> Gap:
    """A frame whose bytes are intact and no record: no writer of ours made them."""
    return Gap(frame.position, frame.position, frame.sequence, frame.sequence, "the record can't be decoded")


def link_gap(before: SegmentEntry | None, entry: SegmentEntry) -> Gap | None:
    """Where both sides were written live, a segment says which one it continues."""
    if before is None or entry.first_sequence != before.last_sequence + 1:
        return None
    if before.is_dense and entry.is_dense and entry.previous_crc != before.last_crc:
        first = entry.first_sequence
        return Gap(0, 0, first, first - 1, "the segment does not continue the one before")
    return None
