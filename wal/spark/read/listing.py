"""Which segments of a log there are to read. Imports no pyspark.

The MANIFEST alone decides: what it does not name is not part of the log, whatever lies in the directory. The active
segment counts up to its durable mark, as for a consumer. Everything here only looks: it takes no lock, makes no file,
and works on the directory of a running broker.

A root is a directory, or a URI that pyarrow.fs opens (s3://…, gs://…, hdfs://…).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from wal.disk import Disk
from wal.errors import WalError
from wal.frame import HEADER_BYTES as FRAME_BYTES
from wal.frame import Frame
from wal.manifest import MANIFEST, Manifest, SegmentEntry, read_manifest
from wal.segment import SEGMENT_HEADER_BYTES, SegmentFile
from wal.spark.read.storage import storage
from wal.watermark import Mark, read_mark

_LOOKS = 3  # at a log that changes while it is looked at


class NotALog(WalError):
    """There is no log at that place."""


class SegmentGone(WalError):
    """The segment was retired, or replaced, since it was listed, and its grace is over. That is no damage."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment as it was when it was listed; small, and it may travel to another machine."""

    log_uuid: str
    root: str
    name: str
    first_sequence: int
    last_sequence: int  # of the covered range; of the active segment, the last durable one
    generation: int
    salt: bytes
    size: int  # bytes to read; of the active segment, up to its durable mark
    is_sealed: bool

    @property
    def entry(self) -> SegmentEntry:
        """What a walk needs to know of it."""
        return SegmentEntry(
            self.first_sequence, self.last_sequence, self.generation, self.salt.hex(), self.is_sealed, self.size
        )


def visible(root: str, *, sealed_only: bool = False) -> list[Segment]:
    """The segments of a log, oldest first. Raises NotALog, CorruptSegment, UnsupportedVersion, OSError."""
    disk, folder = storage(root)
    for _ in range(_LOOKS):
        manifest = _manifest(disk, folder, root)
        segments = [_segment(root, manifest, entry) for entry in manifest.segments if entry.is_sealed]
        if sealed_only or len(segments) == len(manifest.segments):
            return segments
        active = _active(disk, folder, root, manifest)
        if active is not None:
            return [*segments, active]
    return segments  # it rotates faster than we look; what is sealed is whole in itself


def replacements(segment: Segment) -> list[Segment]:
    """What now holds the frames of a segment that left the chain; nothing where they were all dropped.

    These may hold frames of its neighbours too: only sequences from its first to its last are its own.
    """
    first, last = segment.first_sequence, segment.last_sequence
    return [each for each in visible(segment.root) if each.first_sequence <= last and each.last_sequence >= first]


def manifest_of(root: str) -> Manifest:
    """The chain of record. Raises NotALog, CorruptSegment, UnsupportedVersion, OSError."""
    return _manifest(*storage(root), root)


@contextmanager
def explained(segment: Segment) -> Iterator[None]:
    """Turns the absence of a segment's file into SegmentGone where the log has gone on without it."""
    try:
        yield
    except FileNotFoundError as error:
        if has_left(segment):
            raise SegmentGone(f"{segment.name} is no longer part of the log in {segment.root}") from error
        raise


def has_left(segment: Segment) -> bool:
    """The present MANIFEST does not name this segment."""
    present = manifest_of(segment.root).segments
    return all((each.first_sequence, each.salt_bytes) != (segment.first_sequence, segment.salt) for each in present)


def _manifest(disk: Disk, folder: str, root: str) -> Manifest:
    manifest = read_manifest(disk, folder)
    if manifest is None:
        disk.list(folder)  # raises where there is no such directory, or none that may be read
        raise NotALog(f"{root} holds no log: there is no {MANIFEST} in it")
    return manifest


def _segment(root: str, manifest: Manifest, entry: SegmentEntry) -> Segment:
    return Segment(
        log_uuid=str(manifest.log_uuid),
        root=root,
        name=entry.name(manifest.extension),
        first_sequence=entry.first_sequence,
        last_sequence=entry.last_sequence,
        generation=entry.generation,
        salt=entry.salt_bytes,
        size=entry.size,
        is_sealed=entry.is_sealed,
    )


def _active(disk: Disk, folder: str, root: str, manifest: Manifest) -> Segment | None:
    """The active segment up to its durable mark; None: it was sealed while we looked.

    Two things vouch for a frame: the watermark, and the `durable` of a frame behind it (a busy writer leaves the
    watermark for later). So what follows the watermark is walked, and the last frame that another vouches for counts.
    """
    entry = manifest.segments[-1]
    listed = _segment(root, manifest, entry)
    for _ in range(_LOOKS):
        mark = read_mark(disk, folder, manifest.log_uuid)
        if mark is not None and mark.first_sequence > entry.first_sequence:
            return None
        if mark is None or (mark.first_sequence, mark.generation) != (entry.first_sequence, entry.generation):
            mark = Mark(entry.first_sequence - 1, entry.first_sequence, entry.generation, SEGMENT_HEADER_BYTES)
        try:
            segment = SegmentFile(disk, f"{folder}/{listed.name}", entry.salt_bytes)
        except FileNotFoundError:  # lost, or sealed and retired at once: whoever reads it finds out
            return replace(listed, size=mark.bytes, last_sequence=mark.sequence)
        with segment:
            end, last, has_gap = _vouched_for(segment, mark)
        if not has_gap:
            break  # else look again: a frame may have been half written when we read it
    return replace(listed, size=end, last_sequence=last)


def _vouched_for(segment: SegmentFile, mark: Mark) -> tuple[int, int, bool]:
    """Where the durable part ends, with which sequence, and whether something in it after the mark is damaged."""
    items: list[tuple[int, int, bool]] = []  # of what follows the mark: last sequence, end, whether it is a gap
    durable = mark.sequence
    for item in segment.walk(mark.sequence + 1, start=mark.bytes):
        if isinstance(item, Frame):
            durable = max(durable, item.durable)
            items.append((item.sequence, item.position + FRAME_BYTES + len(item.payload), False))
        else:
            items.append((item.last_sequence, item.end, True))
    counted = [item for item in items if item[0] <= durable]
    last, end, _ = counted[-1] if counted else (mark.sequence, mark.bytes, False)
    return end, last, any(is_gap for _, _, is_gap in counted)
