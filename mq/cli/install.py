"""Has proposals installed: by the broker that owns the log, or, where none does, by one without doors.

Both are the same work by the same rules. A broker that starts does what is due, and one that stops leaves a snapshot.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mq.cli.option import connect
from mq.errors import MqError, Unavailable
from mq.pb import mq_pb2 as pb

if TYPE_CHECKING:
    from mq.broker import Broker
    from mq.reply import InstallReply, Reply

TIMEOUT_SECONDS = 3_600.0  # every frame is read on both sides, and the broker serves others meanwhile


def install_live(server: str | None, proposals: Sequence[str], log_uuid: str = "") -> list[pb.InstallSegmentsResponse]:
    """By a running broker. Raises MqError; what came before stays installed."""
    with connect(server, timeout=TIMEOUT_SECONDS) as client:
        if log_uuid and client.server_info().log_uuid != log_uuid:
            raise Unavailable("another broker has this log: say which by --server, or MQ_SERVER")
        return [client.install_segments(proposal) for proposal in proposals]


def install_offline(directory: str, proposals: Sequence[str]) -> list[pb.InstallSegmentsResponse]:
    """On a stopped log. Raises LogLocked, MqError."""
    return asyncio.run(_install_offline(directory, proposals))


async def _install_offline(directory: str, proposals: Sequence[str]) -> list[pb.InstallSegmentsResponse]:
    from loguru import logger

    from mq.broker import Broker
    from mq.config import Config
    from mq.server import limits, open_log
    from wal.clock import SystemClock

    logger.remove()
    logger.add(sys.stderr, level="ERROR", format="mq: {message}")
    config = Config.load({"WAL_DIR_PATH": directory, "STORAGE_MODE": "wal"}, os.environ)
    # It would rewrite what is about to be replaced.
    without_cleaning = replace(limits(config), clean_bytes=0)
    broker = Broker(await open_log(config), SystemClock(), without_cleaning)
    try:
        await broker.start()
        return [_response(await _install(broker, proposal)) for proposal in proposals]
    finally:
        await broker.close()


async def _install(broker: Broker, proposal: str) -> InstallReply:
    from mq.reply import InstallReply

    answered: asyncio.Future[Reply | MqError] = asyncio.get_running_loop().create_future()
    broker.install(proposal, answered.set_result)
    answer = await answered
    if isinstance(answer, MqError):
        raise answer
    assert isinstance(answer, InstallReply)
    return answer


def _response(reply: InstallReply) -> pb.InstallSegmentsResponse:
    return pb.InstallSegmentsResponse(
        segments=reply.segments,
        bytes_before=reply.bytes_before,
        bytes_after=reply.bytes_after,
        dropped_records=reply.dropped_records,
        dropped_messages=reply.dropped_messages,
    )
