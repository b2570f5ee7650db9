"""Having a backup made: begin it, then ask how far it is until it is over. Once for threads, once for asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from mq.client.request import ADMIN
from mq.client.transport import error_of
from mq.pb import mq_pb2 as pb

SOON_SECONDS = 0.02  # most segments are only linked: a backup is often over at once
LATER_SECONDS = 0.5

OnProgress = Callable[[pb.BackupInfo], None]


def create(call: Callable[[str, bytes], bytes], directory: str, on_progress: OnProgress | None) -> pb.BackupInfo:
    """Raises MqError, also what the backup failed with later."""
    wait = SOON_SECONDS
    info = pb.BackupInfo.FromString(call(ADMIN + "CreateBackup", create_request(directory)))
    while not _is_over(info, on_progress):
        time.sleep(wait)
        wait = min(2 * wait, LATER_SECONDS)
        info = pb.BackupInfo.FromString(call(ADMIN + "DescribeBackup", describe_request(info.backup_id)))
    return info


async def create_async(
    call: Callable[[str, bytes], Awaitable[bytes]], directory: str, on_progress: OnProgress | None
) -> pb.BackupInfo:
    wait = SOON_SECONDS
    info = pb.BackupInfo.FromString(await call(ADMIN + "CreateBackup", create_request(directory)))
    while not _is_over(info, on_progress):
        await asyncio.sleep(wait)
        wait = min(2 * wait, LATER_SECONDS)
        info = pb.BackupInfo.FromString(await call(ADMIN + "DescribeBackup", describe_request(info.backup_id)))
    return info


def create_request(directory: str) -> bytes:
    return pb.CreateBackupRequest(directory=directory).SerializeToString()


def describe_request(backup_id: str) -> bytes:
    return pb.DescribeBackupRequest(backup_id=backup_id).SerializeToString()


def _is_over(info: pb.BackupInfo, on_progress: OnProgress | None) -> bool:
    if on_progress is not None:
        on_progress(info)
    if info.state == pb.BackupInfo.FAILED:
        raise error_of(info.error_status, info.error_reason, info.error)
    return info.state == pb.BackupInfo.DONE
