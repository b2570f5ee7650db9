"""Where an export goes: a directory of Parquet files that anybody may read, and a journal of what got into it.

    OUT/channel=orders/date=2026-05-01/<first>-<last>-<n>.parquet     what readers see
    OUT/channel=-schema-/date=1970-01-01/schema.parquet               no rows: the schema, also of an empty export
    OUT/_mq_export/export.json                                        what is exported: the log, channels, JSON schema
    OUT/_mq_export/commits/<number>.json                              how far, and into which files
    OUT/_mq_export/staging/<number>-<random>/*.staged                 files of a commit that is being made
    OUT/_mq_export/LOCK

Readers of plain directories leave out names that begin with an underscore (pyarrow, Spark), or look for `*.parquet`
(DuckDB, a shell); what is not yet exported is neither. A file appears by a rename, whole.

The steps, and what a crash after each leaves: workers write and sync staged files (nobody sees them, the next run
removes them); the commit is written, synced and renamed into place (from here on the files count); each staged file is
renamed to its place (the next run goes on with that, before anything else); the staging directory is removed (done).
So a sequence of the log is in exactly one commit, and a committed file is in exactly one place.

The directory without rows has a second use. Readers guess the type of `channel` from the names of the directories: a
log whose only channel is `007` would have a channel 7. `-schema-` is no number, and no channel can have that name.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from wal.errors import LogLocked, WalError

JOURNAL = "_mq_export"
STAGED = ".staged"
SCHEMA_FILE = "channel=-schema-/date=1970-01-01/schema.parquet"
_FORMAT = 1
# What Hive escapes in the name of a partition, and so every reader of such directories takes back.
_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f") | frozenset(map(chr, range(32)))


class ExportRefused(WalError):
    """The directory holds another export than the one that was asked for, or one that can't be gone on with."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What is exported. All commits of a directory have the same, else they would not fit together."""

    log_uuid: str
    channels: tuple[str, ...] = ()  # empty: all
    json_schema: Any = None  # as Spark writes a schema in JSON; None: values stay bytes


@dataclass(frozen=True, slots=True)
class PartFile:
    """A file of a commit."""

    staged: str  # name in the commit's staging directory
    path: str  # in the export
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Commit:
    """One step of an export: the records after one sequence, through another."""

    number: int
    after: int
    through: int
    staging: str  # name of the directory
    files: tuple[PartFile, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)  # of channels, by id; all that are known so far
    damage: tuple[str, ...] = ()  # what could not be read, and so is not in here

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.files)


class Destination:
    """An export's directory, locked while it is open. What a crash left unfinished is finished by opening it."""

    def __init__(self, out: str | Path) -> None:
        """Raises LogLocked where another export writes here, ExportRefused where its journal is damaged, OSError."""
        self.root = Path(out)
        self.journal = self.root / JOURNAL
        (self.journal / "commits").mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.journal / "LOCK", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise LogLocked(f"another export is writing to {self.root}") from None
        try:
            self.last = last_commit(self.journal)
            if self.last is not None:
                self._put_in_place(self.last)
            shutil.rmtree(self.journal / "staging", ignore_errors=True)
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> Destination:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    @property
    def through(self) -> int:
        """The last sequence that is exported."""
        return self.last.through if self.last else 0

    def kind(self) -> Kind | None:
        """What this directory is an export of; None: it is new."""
        path = self.journal / "export.json"
        if not path.exists():
            return None
        try:
            told = json.loads(path.read_text())
            if told["format"] != _FORMAT:
                raise ExportRefused(f"{self.root} was written by a newer version of mq")
            return Kind(told["log_uuid"], tuple(told["channels"]), told["json_schema"])
        except (ValueError, TypeError, KeyError):
            raise ExportRefused(f"{path} is damaged: nobody knows what this is an export of; begin a new one") from None

    def begin(self, kind: Kind) -> None:
        """Remember what is exported. Raises ExportRefused where it is something else already."""
        present = self.kind()
        if present is None:
            _write(self.journal / "export.json", {"format": _FORMAT, **asdict(kind)})
            return
        for name, what in (("log_uuid", "log"), ("channels", "choice of channels"), ("json_schema", "JSON schema")):
            if getattr(present, name) != getattr(kind, name):
                raise ExportRefused(f"{self.root} is the export of another {what}; export into a new directory")

    def put(self, draft: Path, path: str) -> None:
        """Make a file part of the export that is in no commit."""
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        _sync(draft)
        draft.replace(target)
        self._sync_way_to({target})

    def stage(self) -> Path:
        """A new directory for the files of the next commit."""
        number = self.last.number + 1 if self.last else 1
        folder = self.journal / "staging" / f"{number}-{uuid4().hex}"
        folder.mkdir(parents=True)
        return folder

    def commit(self, staging: Path, commit: Commit) -> Commit:
        """Make the commit's files part of the export."""
        commit = replace(commit, number=self.last.number + 1 if self.last else 1, staging=staging.name)
        # what the commit names is there after a power cut, and so is the way to it
        for folder in (staging, staging.parent, self.journal, self.root, self.root.absolute().parent):
            _sync(folder)
        _write(_commit_path(self.journal, commit.number), asdict(commit))
        self.last = commit
        self._put_in_place(commit)
        return commit

    def _put_in_place(self, commit: Commit) -> None:
        staging = self.journal / "staging" / commit.staging
        if not staging.exists():
            return
        for each in commit.files:
            target = self.root / each.path
            if (staging / each.staged).exists():  # else it was, before a crash
                target.parent.mkdir(parents=True, exist_ok=True)
                (staging / each.staged).rename(target)
        self._sync_way_to({self.root / each.path for each in commit.files})
        shutil.rmtree(staging)

    def _sync_way_to(self, files: set[Path]) -> None:
        parents = {parent for path in files for parent in path.parents if self.root in (parent, *parent.parents)}
        for folder in sorted(parents, reverse=True):
            _sync(folder)


def exported_through(out: str | Path) -> int:
    """The last sequence that an export holds, without opening it; 0: there is none."""
    last = last_commit(Path(out) / JOURNAL)
    return last.through if last else 0


def last_commit(journal: Path) -> Commit | None:
    found = list((journal / "commits").glob("*.json"))
    strange = [path for path in found if not path.stem.isdecimal()]
    if strange:
        raise ExportRefused(f"{strange[0]} is no commit: nobody knows how far this export is")
    if not found:
        return None
    path = max(found, key=lambda each: int(each.stem))
    try:
        told = json.loads(path.read_text())
        files = tuple(PartFile(**each) for each in told.pop("files"))
        return Commit(**{**told, "files": files, "damage": tuple(told["damage"])})
    except (ValueError, TypeError, KeyError):
        raise ExportRefused(f"{path} is damaged: nobody knows how far this export is; begin a new one") from None


def _commit_path(journal: Path, number: int) -> Path:
    return journal / "commits" / f"{number:08d}.json"


def partition_folder(channel: str, date: str) -> str:
    """The directory of a channel's day, with what a path or a reader would misunderstand escaped as Hive does it."""
    escaped = "".join(f"%{ord(each):02X}" if each in _ESCAPED else each for each in channel)
    return f"channel={escaped}/date={date}"


def _write(path: Path, content: Any) -> None:
    """The file is there whole, and durable, or not at all."""
    draft = path.with_suffix(".new")
    with draft.open("w") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    """A file's bytes, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
