"""The service: finds no transport above it and one broker below it. Checks the edge, submits, hands answers back.

Answers come by callback, so that a door needs no task or future per request. Whatever goes wrong arrives as an
MqError; an exception that nobody expected is logged here, once, and leaves as INTERNAL without its text.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import cast

from loguru import logger

from mq import command
from mq.broker import Broker, Waiter
from mq.commitqueue import Early
from mq.errors import ChannelNotFound, MessageTooLarge, MqError, Unavailable
from mq.pb import mq_pb2 as pb
from mq.reply import ListChannelsReply, PullReply, Reply
from mq.service import admin, checks, info, response
from mq.service.api import METHODS, Kind, Method
from mq.service.backups import Backups
from mq.service.edge import Connection, Edge
from mq.service.info import Facts
from mq.service.publish_stream import PublishStream
from mq.service.response import Delivery, Pieces
from mq.service.subscribe import Subscription
from wal.errors import WalError
from wal.log import Log

Answer = Pieces | MqError
Done = Callable[[Answer], None]


class Service:
    """Call everything on the broker's loop."""

    def __init__(self, broker: Broker, log: Log, edge: Edge, facts: Facts) -> None:
        self.edge = edge
        self._broker = broker
        self._log = log
        self._facts = facts
        self._backups = Backups(broker, log, edge.backup_dir)

    def call(self, method: Method, connection: Connection, request: bytes, done: Done) -> Waiter | None:
        """Answer one request: `done` is called exactly once, perhaps before this returns.

        A pull that waits returns a Waiter; when that is cancelled `done` is not called.
        """
        try:
            if not method.is_publish:
                self._check_size(request)
            if method.kind is Kind.LOCAL:
                return self._call_local(method, request, done)
            asked = method.decode(request, self.edge)
            if type(asked) is command.Pull:
                return self._pull(method, connection, asked, done)
            later = Early if connection.holds_answers else partial
            return self._broker.submit(asked, later(self._finish, method, done))
        except Exception as error:
            done(self._as_mq_error(method, error))
            return None

    async def subscribe(self, connection: Connection, request: bytes) -> AsyncIterator[list[bytes]]:
        """A stream of lists of serialized messages; the first list is empty and comes when the place is found."""
        method = METHODS["mq.MQService/Subscribe"]
        is_open = False
        try:
            self._check_size(request)
            connection.open_stream(self.edge)
            is_open = True
            subscription = Subscription(self._broker, self._log.uuid, request, self.edge)
            await subscription.open()
            yield []
            async for items in subscription:
                yield items
        except Exception as error:
            raise self._as_mq_error(method, error) from None
        finally:
            connection.streams -= is_open

    def publish_stream(self, connection: Connection) -> PublishStream:
        """A pipelined publish; the caller closes it with `close_stream`."""
        connection.open_stream(self.edge)
        return PublishStream(self._broker, METHODS["mq.MQService/PublishStream"], self.edge, self._as_mq_error)

    def close_stream(self, connection: Connection) -> None:
        connection.streams -= 1

    def _finish(self, method: Method, done: Done, answer: Reply | MqError) -> None:
        if isinstance(answer, MqError):
            done(self._as_mq_error(method, answer))
            return
        try:
            pieces = method.encode(answer)
        except Exception as error:
            done(self._as_mq_error(method, error))
            return
        if isinstance(answer, PullReply) and answer.group:
            pieces = Delivery(pieces, partial(self._broker.release, answer.leased()))
        done(pieces)

    def _pull(self, method: Method, connection: Connection, asked: command.Pull, done: Done) -> Waiter | None:
        later = Early if connection.holds_answers else partial
        if not asked.max_wait_ms:
            return self._broker.submit(asked, later(self._finish, method, done))
        connection.open_long_poll(self.edge)
        poll = _LongPoll(connection, partial(self._finish, method, done))
        try:
            waiter = self._broker.submit(asked, later(poll.finish))
        except BaseException:
            poll.close()
            raise
        poll.waiter = waiter
        return poll if waiter is not None else None

    def _call_local(self, method: Method, request: bytes, done: Done) -> Waiter | None:
        if method.name == "mq.AdminService/ListSegments":
            checks.parse(pb.ListSegmentsRequest, request)
            done(info.list_segments(self._log.segments()))
            return None
        if method.name == "mq.AdminService/RotateSegment":
            checks.parse(pb.RotateSegmentRequest, request)
            self._broker.rotate()
            done(response.empty(None))
            return None
        if method.name == "mq.AdminService/InstallSegments":
            self._broker.install(admin.proposal(request), partial(self._finish, method, done))
            return None
        if method.name == "mq.AdminService/CreateBackup":
            done(self._backups.create(checks.parse(pb.CreateBackupRequest, request).directory))
            return None
        if method.name == "mq.AdminService/DescribeBackup":
            done(self._backups.describe(checks.parse(pb.DescribeBackupRequest, request).backup_id))
            return None
        checks.parse(pb.ServerInfoRequest, request)
        local = method._replace(encode=self._server_info)
        return self._broker.submit(command.ListChannels(), partial(self._finish, local, done))

    def _server_info(self, answer: Reply) -> Pieces:
        broker = self._broker
        listed = cast(ListChannelsReply, answer)
        return info.server_info(
            self._facts, self._log.usage(), listed, broker.state.buffered_bytes, broker.clock.now_us()
        )

    def _check_size(self, request: bytes) -> None:
        most = self.edge.other_request_bytes
        if len(request) > most:
            raise MessageTooLarge(f"this request has at most {most} bytes, not {len(request)}")

    def _as_mq_error(self, method: Method, error: Exception) -> MqError:
        if isinstance(error, WalError):
            return Unavailable("the log takes nothing at the moment")
        if not isinstance(error, MqError):
            logger.opt(exception=error).error("{} failed", method.name)
            return MqError("internal error; the server's log has the reason")
        if method.is_compatible and isinstance(error, ChannelNotFound):
            error.status = "FAILED_PRECONDITION"
        return error


class _LongPoll:
    """A pull that counts against its connection while it waits; after that nobody here keeps it in memory."""

    __slots__ = ("_connection", "_done", "waiter")

    def __init__(self, connection: Connection, done: Callable[[Reply | MqError], None]) -> None:
        self.waiter: Waiter | None = None
        self._connection: Connection | None = connection
        self._done = done

    def finish(self, answer: Reply | MqError) -> None:
        self.close()
        self._done(answer)

    def cancel(self) -> None:
        waiter = self.waiter
        self.close()
        if waiter is not None:
            waiter.cancel()

    def close(self) -> None:
        self.waiter = None
        if self._connection is not None:
            self._connection.long_polls -= 1
            self._connection = None
