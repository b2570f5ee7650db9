"""Backups that clients ask for. Each is made by the log, in another thread; here is who may write where, and how far.

Paths: a backup is a directory right inside BACKUP_DIR, by a name of letters, digits, dots, dashes and underscores. A
whole path is taken too, if it is exactly that one: it is compared as text, so that no path of a client's is ever
looked up, and nothing a client can name leads elsewhere. Errors say names, not where things are on this machine.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
from collections import deque
from contextlib import suppress
from dataclasses import dataclass

from loguru import logger

from mq.broker import Broker
from mq.errors import (
    BackupNotFound,
    BackupRefused,
    InvalidArgument,
    MqError,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)
from mq.pb import mq_pb2 as pb
from mq.service.checks import is_name
from mq.service.response import Pieces
from wal import errors as wal_errors
from wal.log import Log

REMEMBERED = 100  # backups that can be asked about
MOST = 64  # backups in BACKUP_DIR: each keeps segments on disk that the log has dropped, until a person removes it
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(slots=True)
class Job:
    """One backup, from its beginning on."""

    name: str
    path: str
    info: pb.BackupInfo
    progress: tuple[int, int] = (0, 0)  # set by the thread that copies
    task: asyncio.Task[None] | None = None

    def answer(self) -> Pieces:
        self.info.copied_bytes, self.info.total_bytes = self.progress
        return [self.info.SerializeToString()]


class Backups:
    """Call everything on the broker's loop."""

    def __init__(self, broker: Broker, log: Log, root: str) -> None:
        self._broker = broker
        self._log = log
        self._root = os.path.abspath(root) if root else ""
        self._jobs: deque[Job] = deque(maxlen=REMEMBERED)

    def create(self, directory: str) -> Pieces:
        """Begin one, or join the one that is being made there."""
        name = self._name(directory)
        if self._broker.owner.refusal is not None:
            raise self._broker.owner.refusal
        running = next((job for job in self._jobs if job.info.state == pb.BackupInfo.RUNNING), None)
        if running is not None:
            if running.name != name:
                raise BackupRefused(f"the backup {running.name!r} is being made; one at a time")
            return running.answer()
        path = os.path.join(self._root, name)
        info = pb.BackupInfo(
            backup_id=secrets.token_hex(8),
            directory=path,
            state=pb.BackupInfo.RUNNING,
            started_us=self._broker.clock.now_us(),
        )
        job = Job(name, path, info)
        self._jobs.append(job)
        job.task = asyncio.get_running_loop().create_task(self._run(job))
        return job.answer()

    def describe(self, backup_id: str) -> Pieces:
        found = next((job for job in self._jobs if job.info.backup_id == backup_id), None)
        if found is None:
            raise BackupNotFound("no backup has that id; the broker forgets them when it stops")
        return found.answer()

    def _name(self, directory: str) -> str:
        head, slash, name = directory.rstrip("/").rpartition("/")
        if not is_name(name):
            raise InvalidArgument("directory is no name of letters, digits, '.', '_' and '-', up to 128")
        if not self._root:
            raise PermissionDenied("this broker makes no backups: its BACKUP_DIR is not set")
        if slash and head != self._root:
            raise PermissionDenied("backups are made in the broker's BACKUP_DIR and nowhere else: give a name")
        return name

    async def _run(self, job: Job) -> None:
        info = job.info

        def progress(done: int, total: int) -> None:
            job.progress = done, total

        try:
            await asyncio.to_thread(_check_place, self._root, job)
            made = await self._log.back_up(job.path, progress)
        except Exception as error:
            self._fail(job, error)
        except BaseException:
            self._fail(job, wal_errors.LogClosed("the broker is shutting down"))
            raise
        else:
            info.last_sequence, info.segments, info.bytes = made.last_sequence, made.segments, made.bytes
            info.linked, info.copied, info.kept, info.missing = made.linked, made.copied, made.kept, made.missing
            job.progress = made.copied_bytes, made.copied_bytes
            info.state = pb.BackupInfo.DONE
            logger.info(
                "backup {}: {} segments, {} linked, {} copied, {} kept, {} missing",
                job.name, made.segments, made.linked, made.copied, made.kept, made.missing,
            )  # fmt: skip
        finally:
            info.finished_us = self._broker.clock.now_us()

    def _fail(self, job: Job, error: Exception) -> None:
        logger.error("backup {} was not made: {}", job.name, error)
        told = _as_mq_error(job, error)
        job.info.error_status, job.info.error_reason, job.info.error = told.status, type(told).__name__, str(told)
        job.info.state = pb.BackupInfo.FAILED


def _check_place(root: str, job: Job) -> None:
    if os.path.islink(job.path):
        raise wal_errors.BackupRefused(f"{job.path} is a link to somewhere else")
    if os.path.isdir(job.path):
        return
    with suppress(FileNotFoundError):  # not even the place for them is there
        count = sum(entry.is_dir(follow_symlinks=False) for entry in os.scandir(root))
        if count >= MOST:
            raise wal_errors.BackupRefused(f"there are {count} backups already: remove one, or bring one up to date")


def _as_mq_error(job: Job, error: Exception) -> MqError:
    """What the log said, in words for a client: it knows the backup by its name."""
    match error:
        case wal_errors.BackupRefused():
            return BackupRefused(str(error).replace(job.path, f"backup {job.name!r}"))
        case wal_errors.LogLocked():
            return BackupRefused(f"another process is writing backup {job.name!r}")
        case wal_errors.WalError():
            return Unavailable("the log was closed, or has failed, before the backup was made")
        case OSError() if error.errno in FULL:
            return ResourceExhausted(f"the disk of the backup is full: {error.strerror}")
        case OSError():
            return MqError(f"the backup can't be written: {error.strerror}")
    logger.opt(exception=error).error("backup {} failed", job.name)
    return MqError("internal error; the server's log has the reason")
