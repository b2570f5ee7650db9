"""The composition root: settings in, a running broker out. The only place that knows all parts.

Order matters twice. Starting: listen (so that a taken port is known before any work), open the log, recover, serve.
gRPC takes longer to load than most logs to recover, so it is opened when the wire serves; where recovering takes long,
before that, and health says NOT_SERVING. Stopping: refuse new work, let what is in flight finish, sync, leave the clean
mark.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import socket
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from loguru import logger

from mq import __version__, logs
from mq.broker import Broker, Recovered
from mq.command import FSYNC, OS
from mq.config import Config
from mq.doors.listening import check_free, wire_sockets
from mq.doors.wire import WireDoor
from mq.errors import MqError
from mq.limits import Limits
from mq.service import Edge, Service
from mq.service.info import Facts
from wal import FileLog, Log, MemoryLog, Options, WalError
from wal.clock import SystemClock
from wal.pb.wal_pb2 import ChannelSettings, GroupSettings

if TYPE_CHECKING:
    from mq.doors.grpc import GrpcDoor

FILES = 65_536  # above the connections that the doors take, and the segments
SHORT_SECONDS = 0.5  # who recovers in less is not asked for its health meanwhile
FIRST_SECONDS = 0.05  # for who waited for the start, before gRPC is loaded, which lets nobody else work
LOOPBACK = ("127.", "localhost", "::1", "[::1]")


class StartFailed(Exception):
    """The server can't start; the text is one line for an operator."""


class Server:
    """One broker with its log and its doors. `start`, then `stop`; both on the same loop."""

    def __init__(self, config: Config, sockets: Sequence[socket.socket] = ()) -> None:
        """`sockets`: the wire's, where they listen already."""
        self.config = config
        self._sockets = sockets
        self.broker: Broker | None = None
        self.start_id = uuid.uuid4().hex
        self.wire = WireDoor(
            max_request_bytes=config.max_request_bytes, server=f"mq/{__version__}", start_id=self.start_id
        )
        self._grpc: GrpcDoor | None = None
        self._rotation: asyncio.TimerHandle | None = None

    @property
    def grpc(self) -> GrpcDoor:
        """Of a server that was started."""
        assert self._grpc is not None
        return self._grpc

    async def start(self) -> Recovered:
        """Listen, recover, serve. Raises StartFailed."""
        recovering: asyncio.Task[tuple[Service, Recovered]] | None = None
        try:
            sockets = self._sockets or wire_sockets(self.config)
            if sockets:
                await self.wire.open(sockets)
            check_free(self.config.host, self.config.port)
            recovering = asyncio.create_task(self._recover())
            await asyncio.wait({recovering}, timeout=SHORT_SECONDS if sockets else 0)
            if not recovering.done():
                await self._open_grpc()
            service, recovered = await asyncio.shield(recovering)  # who gives up ends it, and closes the log
            self.wire.serve(service)
            if self.wire.connections and self._grpc is None:
                await asyncio.sleep(FIRST_SECONDS)
            if self._grpc is None:
                await self._open_grpc(service)
            elif self.broker is not None:
                self._show_health(self.broker.failed is None)  # it may have been told so while the door was opening
        except (WalError, OSError) as error:
            await self._give_up(recovering)
            raise StartFailed(_in_one_line(error, self.config)) from None
        except BaseException:
            await self._give_up(recovering)
            raise
        self._rotate_later()
        return recovered

    async def _recover(self) -> tuple[Service, Recovered]:
        log = await open_log(self.config)
        try:
            self.broker = Broker(log, SystemClock(), limits(self.config), on_health=self._show_health)
            recovered = await self.broker.start()
            self.broker.send_by(self.wire)
            service = Service(self.broker, log, edge(self.config), self._facts(log))
        except BaseException:
            await _closed(log)
            raise
        if self._grpc is not None:
            self._grpc.service = service
        return service, recovered

    async def _open_grpc(self, service: Service | None = None) -> None:
        from mq.doors.grpc import GrpcDoor

        self._grpc = GrpcDoor(max_request_bytes=self.config.max_request_bytes)
        self._grpc.service = service
        is_serving = service is not None and self.broker is not None and self.broker.failed is None
        await self._grpc.open(self.config.host, self.config.port, is_serving=is_serving)

    async def _give_up(self, recovering: asyncio.Task[tuple[Service, Recovered]] | None) -> None:
        """The start failed, perhaps when the wire served already. The log is closed, whatever else goes wrong."""
        try:
            await self.wire.drain()
            await asyncio.gather(self.wire.close(0), *([self._grpc.close(0)] if self._grpc else []))
        finally:
            if recovering is not None:
                await self._close_log(recovering)

    async def _close_log(self, recovering: asyncio.Task[tuple[Service, Recovered]]) -> None:
        """Of a start that failed; a recovery that did not succeed has closed it."""
        if not recovering.done():
            logger.warning("the start failed; the log is closed as soon as that can be done")
            recovering.cancel()
            await asyncio.wait({recovering})
        if not recovering.cancelled() and recovering.exception() is None:
            assert self.broker is not None
            with suppress(WalError, OSError):
                await self.broker.close(self.config.graceful_shutdown_ms / 1_000)

    async def stop(self) -> bool:
        """Finish what is in flight, within the configured time, and close the log; False where the log had failed."""
        assert self.broker is not None
        if self._rotation is not None:
            self._rotation.cancel()
        end = time.monotonic() + self.config.graceful_shutdown_ms / 1_000
        await self.wire.drain()
        await self.grpc.drain()
        try:
            await asyncio.wait_for(self.broker.drain(), end - time.monotonic())
        except TimeoutError:
            logger.warning("what was in flight did not end in time")
        grace = max(0.0, end - time.monotonic())
        await asyncio.gather(self.grpc.close(grace), self.wire.close(grace))
        await self.broker.close(max(grace, self.config.graceful_shutdown_ms / 1_000))
        return self.broker.failed is None

    def _rotate_later(self) -> None:
        """Seal the current segment after each span of its greatest age; one that holds nothing stays open."""
        if self.config.segment_max_age_ms:
            loop = asyncio.get_running_loop()
            self._rotation = loop.call_later(self.config.segment_max_age_ms / 1_000, self._rotate)

    def _rotate(self) -> None:
        assert self.broker is not None
        try:
            self.broker.rotate()
        except (MqError, WalError) as error:
            logger.warning("the segment was not rotated: {}", error)
        self._rotate_later()

    def _facts(self, log: Log) -> Facts:
        return Facts(
            version=__version__,
            log_uuid=str(log.uuid),
            start_id=self.start_id,
            started_us=time.time_ns() // 1_000,
            storage_mode=self.config.storage_mode,
            max_request_bytes=self.config.max_request_bytes,
        )

    def _show_health(self, is_serving: bool) -> None:
        if self._grpc is not None:
            self._grpc.show_health(is_serving)


async def open_log(config: Config) -> Log:
    """The configured log, recovered. That may take a while, so it is done beside the loop."""
    record_bytes = max(16 << 20, config.max_request_bytes + (1 << 20))
    if config.storage_mode == "memory":
        return MemoryLog(max_record_bytes=record_bytes)
    options = Options(
        segment_bytes=config.segment_bytes,
        extension=config.segment_extension,
        bytes_per_sync=config.bytes_per_sync,
        max_record_bytes=record_bytes,
        retire_grace_us=config.retire_grace_ms * 1_000,
    )
    opening = asyncio.create_task(asyncio.to_thread(FileLog.open, config.wal_dir, options))
    try:
        log = await asyncio.shield(opening)
    except asyncio.CancelledError:
        with suppress(WalError, OSError):  # a thread goes on, and what it opens would stay locked
            await _closed(await opening)
        raise
    _report_log(log)
    return log


async def _closed(log: Log) -> None:
    """Close a log that nobody is going to use. Whatever is wrong with it is told by what made it useless."""
    with suppress(WalError, OSError):
        await asyncio.to_thread(log.close)


def limits(config: Config) -> Limits:
    """What the broker may use."""
    return Limits(
        buffer_bytes=config.max_memory_bytes,
        durability=FSYNC if config.wal_sync else OS,
        busy_poll_seconds=config.busy_poll_ms / 1_000,
        serves_old=config.sync_on_startup,
        is_memory=config.storage_mode == "memory",
        channel=ChannelSettings(
            max_age_ms=config.channel_max_age_ms,
            max_bytes=config.channel_max_bytes,
            max_messages=config.channel_max_messages,
            drop_acked=config.channel_drop_acked,
        ),
        group=GroupSettings(
            ack_wait_ms=config.group_ack_wait_ms,
            max_deliver=config.group_max_deliver,
            backoff_ms=config.group_backoff_ms,
            session_timeout_ms=config.group_session_timeout_ms,
            assignment="sticky",
        ),
    )


def edge(config: Config) -> Edge:
    """What a caller may ask for."""
    return Edge(request_bytes=config.max_request_bytes, batch_size=config.batch_size, backup_dir=config.backup_dir)


def _in_one_line(error: WalError | OSError, config: Config) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or Path(config.wal_dir).absolute()}: {error.strerror}"
    return " ".join(str(error).split())


def run(config: Config, sockets: Sequence[socket.socket] = ()) -> int:
    """Serve until a signal comes; the exit code. A second signal exits at once: the log is made for that.

    `sockets`: the wire's, where they listen already.
    """
    logs.configure(config)
    _raise_file_limit()
    try:
        import uvloop
    except ImportError:  # not on Windows
        factory = None
    else:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        try:
            return runner.run(_serve(config, sockets))
        except StartFailed as error:
            sys.stderr.write(f"mq: {error}\n")
            return 1


async def _serve(config: Config, sockets: Sequence[socket.socket]) -> int:
    stopping = asyncio.Event()

    def on_signal() -> None:
        if stopping.is_set():
            os._exit(1)
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    for note in config.notes:
        logger.warning("{}", note)
    server = Server(config, sockets)
    recovered = await server.start()
    _calm_collector()
    _report(config, recovered, server)
    await stopping.wait()
    logger.info("stopping: no new work is taken")
    is_clean = await server.stop()
    logger.info("stopped")
    return 0 if is_clean else 1


def _calm_collector() -> None:
    """A request leaves no cycles behind, so looking for them often only costs: a sixth of all time, at the default."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 50)
    gc.enable()


def _raise_file_limit() -> None:
    """Every connection is a file, and the usual limit of a shell is for shells."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _report_log(log: FileLog) -> None:
    found = log.report
    if found.is_new:
        logger.info("{} is a new log", log.directory)
    elif not found.was_clean:
        unsure = f"{found.rewritten_bytes} bytes that might not be on disk were written again"
        logger.warning("the last stop was not clean: {}", unsure if found.rewritten_bytes else "all of it is on disk")
    if found.torn_bytes:
        logger.warning("{} torn bytes at the end were set aside: no answered publish was among them", found.torn_bytes)
    for segment, gap in found.damage:
        logger.error("{} is damaged from byte {} to {}: {}", segment, gap.position, gap.end, gap.reason)
    for orphan in found.orphans:
        logger.warning("{} belongs to no log and was moved to orphans", orphan)


def _report(config: Config, recovered: Recovered, server: Server) -> None:
    if config.storage_mode == "memory":
        logger.warning("STORAGE_MODE=memory: nothing is kept on disk, a restart forgets everything")
    logger.info(
        "recovered {}, {}, {} from {} in {:.2f} s",
        _counted(recovered.channels, "channel"),
        _counted(recovered.groups, "group"),
        _counted(recovered.messages, "message"),
        _counted(recovered.records, "record"),
        recovered.seconds,
    )
    for line in recovered.damaged:
        logger.error("damaged: {}", line)
    if recovered.set_aside:
        logger.warning("{} records have no channel or group any more, or are of an unknown type", recovered.set_aside)
    if not config.host.startswith(LOOPBACK):
        logger.warning("{} can be reached from outside, without TLS: whoever gets there reads and writes", config.host)
    wire = f" and {config.host}:{server.wire.port} (wire)" if server.wire.port else ""
    logger.info("listening on {}:{} (gRPC){}", config.host, server.grpc.port, wire)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
