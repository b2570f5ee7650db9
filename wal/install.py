"""Installing rewritten segments (cleaning, compaction): trust nothing that another program made.

Whoever rewrote the inputs may have crashed, raced with the broker, or be wrong. So every frame of the outputs is read
and compared with the frame it came from; what is missing or changed must be approved by somebody who knows the
present state; only then are the files synced, named, and put into the manifest in one swap. Until that swap the log
is exactly what it was, after it exactly the new set; the inputs stay on disk for those who still read them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from google.protobuf.message import DecodeError, Message

from wal.chain import open_entry, path_of, walk_entry
from wal.disk import Disk
from wal.errors import CorruptSegment, InstallRefused, LogClosed, WalError
from wal.frame import Frame
from wal.index import INDEXED
from wal.manifest import Manifest, SegmentEntry
from wal.proposal import STAGING, Offer, Proposal
from wal.record import SEAL, Seal, Unknown, decode
from wal.segment import SEGMENT_HEADER_BYTES, Gap, SegmentFile, SegmentHeader

# (sequence, the record as it is, the record as it would be or None): may it go or change? Called in another thread.
Approve = Callable[[int, Message | Unknown, Message | Unknown | None], bool]


@dataclass(frozen=True, slots=True)
class Installed:
    """What became of a proposal."""

    segments: tuple[str, ...]  # the names of the outputs
    offer: Offer
    bytes_before: int
    bytes_after: int


class Judge(Protocol):
    """Somebody who knows the present state, and also needs to see what stays. Called in another thread, in log order.

    Any of these may raise InstallRefused, with the reason. It may be asked in another process: then it travels there,
    and only its findings come back.
    """

    findings: Any  # what is to be confirmed in the end

    def approves(self, sequence: int, before: Message | Unknown, after: Message | Unknown | None) -> bool:
        """May this record go, or become that one?"""
        ...

    def sees(self, record: Message | Unknown) -> None:
        """A record that gives offsets to messages stays as it is."""
        ...

    @property
    def is_in_doubt(self) -> bool:
        """Whether what was approved depends on what follows the inputs."""
        ...

    def conclude(self, earlier: Iterable[Message | Unknown]) -> None:
        """All was seen. `earlier` are the records that stay, up to the end of the outputs, if they are asked for."""
        ...


# Finds a judge: who knows the present state takes a look at it, and waits until what was seen is durable.
Engage = Callable[[], Awaitable[Judge]]


def check(
    disk: Disk,
    directory: str,
    manifest: Manifest,
    proposal: Proposal,
    approve: Approve,
    *,
    judge: Judge | None = None,
    breathe: Callable[[], None] = lambda: None,
) -> list[SegmentEntry]:
    """Read everything on both sides; returns the outputs as the manifest will name them. Raises InstallRefused.

    `breathe` is called after each frame that is read: the owner's thread must not wait for this one. What it raises
    ends the check.
    """
    inputs = _inputs(manifest, proposal.inputs)
    outputs = _outputs(disk, directory, manifest, proposal.outputs, inputs, breathe)
    after = _frames(_output_files(disk, directory, proposal.outputs, outputs), outputs, breathe)
    kept = next(after, None)
    for before in _frames(_input_files(disk, directory, manifest, inputs), inputs, breathe):
        if kept is not None and kept.sequence < before.sequence:
            break
        if kept is None or kept.sequence > before.sequence:
            _ask(approve, before, None)
            continue
        if (kept.type, kept.payload) != (before.type, before.payload):
            _ask(approve, before, kept)
        elif judge is not None and kept.type in INDEXED:
            judge.sees(_decoded(kept))
        kept = next(after, None)
    if kept is not None:
        raise InstallRefused(f"sequence {kept.sequence} is in the outputs and not in the inputs")
    return outputs


def examine(
    disk: Disk, directory: str, manifest: Manifest, offer: Offer, judge: Judge, breathe: Callable[[], None]
) -> list[SegmentEntry]:
    """The same for what a stranger proposes: by the rules of cleaning, and with a judge. Raises InstallRefused."""
    if offer.log_uuid != manifest.log_uuid:
        raise InstallRefused(f"proposal {offer.id} is made for another log")
    inputs = _inputs(manifest, offer.inputs)
    floor = manifest.snapshots[0].begin if len(manifest.snapshots) > 1 else 0
    if inputs[-1].last_sequence >= floor:
        raise InstallRefused("a replay needs the inputs: they reach the older of the two snapshot runs")
    outputs = check(disk, directory, manifest, offer.proposal, judge.approves, judge=judge, breathe=breathe)
    for told, found in zip(offer.outputs, outputs, strict=True):
        if (told.bytes, told.crc) != (found.size, found.last_crc):
            raise InstallRefused(f"{told.name} is not the file that proposal {offer.id} speaks of")
    at = manifest.segments.index(inputs[-1]) + 1
    for entry in manifest.segments[at:]:
        if not judge.is_in_doubt or not entry.is_sealed:
            break
        for record in _publishing(disk, directory, manifest, [entry], breathe):
            judge.sees(record)
    before = manifest.segments[: at - len(inputs)]
    staged = _frames(_output_files(disk, directory, offer.proposal.outputs, outputs), outputs, breathe)
    judge.conclude(
        itertools.chain(
            _publishing(disk, directory, manifest, before, breathe),
            (_decoded(frame) for frame in staged if frame.type in INDEXED),
        )
    )
    return outputs


def _publishing(
    disk: Disk, directory: str, manifest: Manifest, entries: Sequence[SegmentEntry], breathe: Callable[[], None]
) -> Iterator[Message | Unknown]:
    """The records of segments that give offsets to messages."""
    for frame in _frames(_input_files(disk, directory, manifest, entries), entries, breathe):
        if frame.type in INDEXED:
            yield _decoded(frame)


def place(disk: Disk, directory: str, manifest: Manifest, proposal: Proposal, entries: Sequence[SegmentEntry]) -> None:
    """Make checked outputs durable under their final names. Nothing names them yet."""
    for name, entry in zip(proposal.outputs, entries, strict=True):
        staged = os.path.join(directory, STAGING, name)
        fd = disk.open(staged)
        try:
            disk.sync(fd)
        finally:
            disk.close(fd)
        disk.rename(staged, path_of(directory, manifest, entry))
    if entries:
        disk.sync_directory(os.path.join(directory, STAGING))
        disk.sync_directory(directory)


def take_back(disk: Disk, directory: str, manifest: Manifest, entries: Sequence[SegmentEntry]) -> None:
    """Remove placed outputs that no manifest will name after all."""
    for entry in entries:
        disk.unlink(path_of(directory, manifest, entry))
    if entries:
        disk.sync_directory(directory)


def _inputs(manifest: Manifest, names: Sequence[str]) -> list[SegmentEntry]:
    chain = [entry.name(manifest.extension) for entry in manifest.segments]
    if not names or any(name not in chain for name in names):
        raise InstallRefused(f"not all of {', '.join(names) or 'nothing'} are in the log (any more)")
    first = chain.index(names[0])
    found = manifest.segments[first : first + len(names)]
    if [entry.name(manifest.extension) for entry in found] != list(names):
        raise InstallRefused("the inputs are not neighbours in the log")
    if not all(entry.is_sealed for entry in found):
        raise InstallRefused("an input is still being written")
    return list(found)


def _outputs(
    disk: Disk,
    directory: str,
    manifest: Manifest,
    names: Sequence[str],
    inputs: Sequence[SegmentEntry],
    breathe: Callable[[], None],
) -> list[SegmentEntry]:
    entries: list[SegmentEntry] = []
    known = {entry.name("") for entry in manifest.segments}
    known |= {retired.name.removesuffix(manifest.extension) for retired in manifest.retired}
    for name in names:
        path = os.path.join(directory, STAGING, name)
        try:
            header, size, seal_crc = _read_ends(disk, path, breathe)
        except LogClosed:
            raise
        except (OSError, WalError) as error:
            reason = getattr(error, "reason", "") or getattr(error, "strerror", "") or str(error).replace(path, "it")
            raise InstallRefused(f"{name} can't be read: {reason}") from error
        if header.log_uuid != manifest.log_uuid:
            raise InstallRefused(f"{name} belongs to another log")
        entry = SegmentEntry.of(header, is_sealed=True, size=size, last_crc=seal_crc)
        if entry.name("") in known or entry.generation == 0:
            raise InstallRefused(f"{name} has the name of a segment that exists already")
        entries.append(entry)
    return _with_ranges(entries, inputs)


def _with_ranges(entries: list[SegmentEntry], inputs: Sequence[SegmentEntry]) -> list[SegmentEntry]:
    """Together the outputs cover exactly what the inputs cover."""
    if not entries:
        return []
    firsts = [entry.first_sequence for entry in entries]
    if firsts[0] != inputs[0].first_sequence or firsts != sorted(set(firsts)):
        raise InstallRefused("the outputs do not cover the range of the inputs")
    lasts = [first - 1 for first in firsts[1:]] + [inputs[-1].last_sequence]
    return [replace(entry, last_sequence=last) for entry, last in zip(entries, lasts, strict=True)]


def _read_ends(disk: Disk, path: str, breathe: Callable[[], None]) -> tuple[SegmentHeader, int, int]:
    """A staged file's header, its size, and the CRC of its seal."""
    fd = disk.open_read_only(path)
    try:
        header = SegmentHeader.unpack(disk.read(fd, SEGMENT_HEADER_BYTES, 0), path)
    finally:
        disk.close(fd)
    with SegmentFile(disk, path, header.salt) as segment:
        for item in segment.walk(header.first_sequence, is_dense=False):
            breathe()
            if isinstance(item, Gap):
                raise CorruptSegment(path, item.position, item.reason)
            if item.type == SEAL:
                Seal.FromString(item.payload)
                return header, segment.size, item.crc
    raise CorruptSegment(path, 0, "no seal")


def _input_files(
    disk: Disk, directory: str, manifest: Manifest, inputs: Sequence[SegmentEntry]
) -> Iterator[SegmentFile]:
    for entry in inputs:
        yield open_entry(disk, directory, manifest, entry)


def _output_files(
    disk: Disk, directory: str, names: Sequence[str], entries: Sequence[SegmentEntry]
) -> Iterator[SegmentFile]:
    for name, entry in zip(names, entries, strict=True):
        yield SegmentFile(disk, os.path.join(directory, STAGING, name), entry.salt_bytes)


def _frames(
    files: Iterator[SegmentFile], entries: Sequence[SegmentEntry], breathe: Callable[[], None]
) -> Iterator[Frame]:
    for segment, entry in zip(files, entries, strict=True):
        with segment:
            for item in walk_entry(segment, entry):
                breathe()
                name = os.path.basename(segment.path)
                if isinstance(item, Gap):
                    raise InstallRefused(f"{name}, byte {item.position}: {item.reason}")
                if not entry.first_sequence <= item.sequence <= entry.last_sequence:
                    raise InstallRefused(f"{name} holds sequence {item.sequence}, which is not in its range")
                yield item


def _ask(approve: Approve, before: Frame, after: Frame | None) -> None:
    old = _decoded(before)
    new = _decoded(after) if after is not None else None
    if (after is not None and after.type != before.type) or not approve(before.sequence, old, new):
        raise InstallRefused(f"sequence {before.sequence} would be {'changed' if after else 'dropped'}, and is live")


def _decoded(frame: Frame) -> Message | Unknown:
    try:
        return decode(frame.type, frame.payload)
    except DecodeError as error:
        raise InstallRefused(f"sequence {frame.sequence} can't be decoded") from error
