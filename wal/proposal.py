"""A proposal: what a program that rewrote segments asks the log's owner to install. A file in `staging/`, made last.

It names the segments to be replaced and the staged files to replace them with, and what its maker relied on. Nothing in
it is believed: `wal.install` reads both sides, and the owner decides by its own state. The id is sixteen hex digits and
never a path; the files of a proposal are named after it.

    <id>.claim              while it is made: which segments it is about, so that nobody else rewrites them
    <id>.proposal           a line with the format and the CRC32C of what follows, then JSON
    <id>-<number>.staged    a whole segment
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from typing import Any
from uuid import UUID

from wal.disk import Disk, read_file, write_file
from wal.errors import InstallRefused, NoSuchProposal
from wal.frame import crc32c

STAGING = "staging"
_TAG, _VERSION = "mq-wal-proposal", "1"
_SUFFIX, _CLAIM = ".proposal", ".claim"
CLAIM_US = 3_600_000_000  # how long a claim or a proposal keeps others from the segments that it names
_ID = re.compile(r"[0-9a-f]{16}")
_MOST = (1 << 63) - 1
_STAGED = re.compile(r"([0-9a-f]{16})-[0-9]{1,9}\.staged")


@dataclass(frozen=True, slots=True)
class Proposal:
    """Segments to be replaced, and the staged files to replace them with."""

    inputs: tuple[str, ...]  # names in the chain, neighbours, sealed
    outputs: tuple[str, ...]  # names in staging/; none where nothing of the inputs is kept


@dataclass(frozen=True, slots=True)
class Output:
    """A staged file, as its maker left it."""

    name: str
    frames: int
    bytes: int
    crc: int  # of its seal frame


@dataclass(frozen=True, slots=True)
class Ground:
    """A partition as the maker of a proposal saw it."""

    channel_id: int
    channel: str
    partition: int
    start_offset: int
    keeps_latest: bool
    tombstone_grace_ms: int
    groups: Mapping[str, int] = field(default_factory=dict)  # position of each


@dataclass(frozen=True, slots=True)
class Offer:
    """A proposal with all that is told of it."""

    id: str
    log_uuid: UUID
    made_us: int
    inputs: tuple[str, ...]
    outputs: tuple[Output, ...]
    dropped_records: int
    dropped_messages: int
    freed_bytes: int
    grounds: tuple[Ground, ...] = ()  # of the partitions that lose something

    @property
    def proposal(self) -> Proposal:
        return Proposal(self.inputs, tuple(output.name for output in self.outputs))

    def pack(self) -> bytes:
        fields = {**asdict(self), "log_uuid": str(self.log_uuid)}
        body = (json.dumps(fields, indent=1) + "\n").encode()
        return f"{_TAG} {_VERSION} {crc32c(body):08x}\n".encode() + body

    @classmethod
    def unpack(cls, data: bytes, offer_id: str) -> Offer:
        """Raises InstallRefused."""
        line, _, body = data.partition(b"\n")
        words = line.decode("ascii", "replace").split(" ")
        if len(words) != 3 or words[0] != _TAG or words[2] != f"{crc32c(body):08x}":
            raise InstallRefused(f"proposal {offer_id} is damaged")
        if words[1] != _VERSION:
            raise InstallRefused(f"proposal {offer_id} has format {words[1]}; this version reads {_VERSION}")
        try:
            offer = cls._of(json.loads(body))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InstallRefused(f"proposal {offer_id} is not what a compaction writes: {error!r}") from error
        if offer.id != offer_id:
            raise InstallRefused(f"proposal {offer_id} says that it is {offer.id!r}")
        return offer

    @classmethod
    def _of(cls, fields: Any) -> Offer:
        offer = cls(
            **{
                **fields,
                "log_uuid": UUID(fields["log_uuid"]),
                "inputs": tuple(fields["inputs"]),
                "outputs": tuple(Output(**output) for output in fields["outputs"]),
                "grounds": tuple(Ground(**ground) for ground in fields["grounds"]),
            }
        )
        for output in offer.outputs:
            found = _STAGED.fullmatch(output.name)
            if found is None or found[1] != offer.id:
                raise ValueError(f"{output.name!r} is no file of this proposal")
        if not all(isinstance(name, str) for name in offer.inputs):
            raise ValueError("inputs are names")
        parts: list[Offer | Output | Ground] = [offer, *offer.outputs, *offer.grounds]
        for each in parts:
            _check_types(each)
        return offer


def _check_types(told: Offer | Output | Ground) -> None:
    """JSON holds anything anywhere, and numbers of any size: nobody who calculates with these expects that."""
    for each in fields(told):
        wanted = {"int": int, "str": str, "bool": bool}.get(str(each.type))
        value = getattr(told, each.name)
        if wanted is not None and type(value) is not wanted:
            raise ValueError(f"{each.name} is {value!r:.40}")
        if type(value) is int and not (-_MOST if each.name == "freed_bytes" else 0) <= value <= _MOST:
            raise ValueError(f"{each.name} is out of range")


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def staged_name(offer_id: str, number: int) -> str:
    return f"{offer_id}-{number}.staged"


def path_in_staging(directory: str, name: str) -> str:
    return os.path.join(directory, STAGING, name)


def write_offer(disk: Disk, directory: str, offer: Offer) -> None:
    """The last act of who makes a proposal: what it names is whole by now."""
    _write(disk, directory, offer, _SUFFIX)
    disk.sync_directory(os.path.join(directory, STAGING))


def write_claim(disk: Disk, directory: str, offer: Offer) -> None:
    """The first act: an offer without outputs."""
    _write(disk, directory, offer, _CLAIM)


def _write(disk: Disk, directory: str, offer: Offer, suffix: str) -> None:
    path = path_in_staging(directory, offer.id + suffix)
    write_file(disk, path + ".new", offer.pack())
    disk.rename(path + ".new", path)


def claimed(disk: Disk, directory: str, now_us: int) -> frozenset[str]:
    """The segments that proposals, waiting or being made, are about. Who never comes back claims nothing for long."""
    names: set[str] = set()
    try:
        files = disk.list(os.path.join(directory, STAGING))
    except FileNotFoundError:
        return frozenset()
    for file in files:
        if file.endswith((_SUFFIX, _CLAIM)) and is_id(file[:16]):
            with suppress(InstallRefused, OSError):
                offer = Offer.unpack(read_file(disk, path_in_staging(directory, file)), file[:16])
                if 0 <= now_us - offer.made_us < CLAIM_US:  # one from the future would claim until then
                    names.update(offer.inputs)
    return frozenset(names)


def read_offer(disk: Disk, directory: str, offer_id: str) -> Offer:
    """Raises NoSuchProposal, InstallRefused."""
    if not is_id(offer_id):
        raise NoSuchProposal(f"{offer_id[:40]!r} is no proposal: an id has sixteen hex digits")
    try:
        data = read_file(disk, path_in_staging(directory, offer_id + _SUFFIX))
    except FileNotFoundError:
        raise NoSuchProposal(f"there is no proposal {offer_id}") from None
    return Offer.unpack(data, offer_id)


def waiting_offers(disk: Disk, directory: str) -> list[str]:
    """The ids of the proposals in staging/."""
    try:
        names = disk.list(os.path.join(directory, STAGING))
    except FileNotFoundError:
        return []
    return sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX) and is_id(name[:16]))


def remove_offer(disk: Disk, directory: str, offer_id: str) -> None:
    """Forget a proposal, and whatever of its files is left."""
    folder = os.path.join(directory, STAGING)
    for name in disk.list(folder):
        if name.startswith((offer_id + "-", offer_id + ".")):
            with suppress(FileNotFoundError):  # a compaction that begins was quicker to clear it away
                disk.unlink(os.path.join(folder, name))
