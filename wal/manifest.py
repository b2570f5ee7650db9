"""MANIFEST: which segments make up the log. Only what it names exists, for the broker and for Spark alike.

A line with the format version and the CRC32C of what follows, then JSON for human eyes. It is replaced whole: write
a new file, sync, rename, sync the directory. A reader therefore sees the old chain or the new one, never a mixture.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from wal.disk import Disk, read_file, write_file
from wal.errors import CorruptSegment, UnsupportedVersion
from wal.frame import crc32c
from wal.segment import FORMAT_VERSION, SegmentHeader, segment_name

MANIFEST = "MANIFEST"
SALT_BYTES = 8
_TAG = "mq-wal-manifest"
_HINT = "mq wal repair rebuilds it from the segments"


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """One segment of the chain; repeats its header, so that a damaged header costs nothing."""

    first_sequence: int
    last_sequence: int  # of the covered range, dropped frames included; 0 while the segment is written
    generation: int
    salt: str  # hex
    is_sealed: bool
    size: int = 0  # of the file; 0 while the segment is written
    last_crc: int = 0  # of the seal frame
    previous_last: int = 0
    previous_crc: int = 0

    def name(self, extension: str) -> str:
        return segment_name(self.first_sequence, self.generation, extension)

    @property
    def salt_bytes(self) -> bytes:
        return bytes.fromhex(self.salt)

    @property
    def numbers(self) -> tuple[int, ...]:
        range_ = (self.first_sequence, self.last_sequence, self.generation)
        return (*range_, self.size, self.last_crc, self.previous_last, self.previous_crc)

    @property
    def is_dense(self) -> bool:
        """Sequences rise by one: only segments written live promise that."""
        return self.generation == 0

    def header(self, log_uuid: UUID) -> SegmentHeader:
        return SegmentHeader(
            log_uuid, self.first_sequence, self.generation, self.salt_bytes, self.previous_last, self.previous_crc
        )

    @classmethod
    def of(cls, header: SegmentHeader, **fields: Any) -> SegmentEntry:
        return cls(
            first_sequence=header.first_sequence,
            generation=header.generation,
            salt=header.salt.hex(),
            previous_last=header.previous_last,
            previous_crc=header.previous_crc,
            **{"last_sequence": 0, "is_sealed": False, **fields},
        )


@dataclass(frozen=True, slots=True)
class Retired:
    """A segment that left the chain and stays on disk for readers that still have it open."""

    name: str
    since_us: int


@dataclass(frozen=True, slots=True)
class SnapshotRun:
    """A complete snapshot run: replay may start at `begin`."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The chain of record."""

    log_uuid: UUID
    edition: int = 0  # +1 with every swap
    extension: str = ".wal"
    segments: tuple[SegmentEntry, ...] = ()
    retired: tuple[Retired, ...] = ()
    snapshots: tuple[SnapshotRun, ...] = ()  # oldest first; the last two complete runs

    def with_segments(self, segments: Sequence[SegmentEntry]) -> Manifest:
        return replace(self, segments=tuple(segments))

    def with_retired(self, names: Sequence[str], now_us: int) -> Manifest:
        return replace(self, retired=self.retired + tuple(Retired(name, now_us) for name in names))

    def with_snapshot(self, run: SnapshotRun) -> Manifest:
        """Two are kept: should damage hit the newer run, the older one still leads to the same state."""
        return replace(self, snapshots=(*self.snapshots[-1:], run))

    def pack(self) -> bytes:
        fields = {
            "log_uuid": json.dumps(str(self.log_uuid)),
            "edition": json.dumps(self.edition),
            "extension": json.dumps(self.extension),
            "segments": _lines(self.segments),
            "retired": _lines(self.retired),
            "snapshots": _lines(self.snapshots),
        }
        body = ("{\n" + ",\n".join(f' "{name}": {text}' for name, text in fields.items()) + "\n}\n").encode()
        return f"{_TAG} {FORMAT_VERSION} {crc32c(body):08x}\n".encode() + body

    @classmethod
    def unpack(cls, data: bytes, path: str) -> Manifest:
        """Raises CorruptSegment or UnsupportedVersion."""
        line, _, body = data.partition(b"\n")
        words = line.decode("ascii", "replace").split(" ")
        if len(words) != 3 or words[0] != _TAG or words[2] != f"{crc32c(body):08x}":
            raise CorruptSegment(path, 0, "the manifest is damaged", _HINT)
        if words[1] != str(FORMAT_VERSION):
            raise UnsupportedVersion(f"{path} has format {words[1]}; this version reads {FORMAT_VERSION}")
        try:
            return cls._of(json.loads(body))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CorruptSegment(path, 0, f"the manifest is not what a log writes: {error!r}", _HINT) from error

    @classmethod
    def _of(cls, fields: Any) -> Manifest:
        manifest = cls(
            log_uuid=UUID(fields["log_uuid"]),
            edition=fields["edition"],
            extension=fields["extension"],
            segments=tuple(SegmentEntry(**entry) for entry in fields["segments"]),
            retired=tuple(Retired(**entry) for entry in fields["retired"]),
            snapshots=tuple(SnapshotRun(**entry) for entry in fields["snapshots"]),
        )
        for entry in manifest.segments:
            if len(entry.salt_bytes) != SALT_BYTES or not all(isinstance(n, int) for n in entry.numbers):
                raise ValueError(f"not a segment: {entry}")
        names = [manifest.extension, *(retired.name for retired in manifest.retired)]
        if any(os.path.basename(name) != name for name in names):
            raise ValueError(f"a name that leads out of the directory in {names}")
        return manifest


def _lines(entries: Sequence[SegmentEntry] | Sequence[Retired] | Sequence[SnapshotRun]) -> str:
    """A list with an entry to a line: cheap to write at every rotation, and a diff shows what changed."""
    if not entries:
        return "[]"
    names = entries[0].__slots__
    return (
        "[\n  " + ",\n  ".join(json.dumps({name: getattr(entry, name) for name in names}) for entry in entries) + "\n ]"
    )


def read_manifest(disk: Disk, directory: str) -> Manifest | None:
    """The manifest, or None where there is none. Raises CorruptSegment or UnsupportedVersion."""
    path = os.path.join(directory, MANIFEST)
    try:
        return Manifest.unpack(read_file(disk, path), path)
    except FileNotFoundError:
        return None


def swap_manifest(disk: Disk, directory: str, manifest: Manifest) -> Manifest:
    """Replace the manifest; returns what is now the chain of record."""
    manifest = replace(manifest, edition=manifest.edition + 1)
    path = os.path.join(directory, MANIFEST)
    write_file(disk, path + ".new", manifest.pack())
    disk.rename(path + ".new", path)
    disk.sync_directory(directory)
    return manifest
