"""Every door serves the same API: the same calls through each of the client's transports have the same outcomes."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest

from mq.client.grpc import AsyncGrpcTransport, GrpcTransport
from mq.client.wire import WireTransport
from mq.client.wire_async import AsyncWireTransport
from mq.errors import MqError
from mq.pb import mq_pb2 as pb
from mq.service import METHODS
from mq.testing import Running, broker

TRANSPORTS = ["wire", "grpc", "wire, asyncio", "grpc, asyncio"]
DEADLINE = 20.0
# What differs from one start of a broker to the next, beside times.
FLEETING = {"receipt", "generation", "start_id", "log_uuid", "id", "created_at", "free_bytes", "fsync_count"}

Ask = Callable[[str, bytes], bytes]
Stream = Callable[[str, bytes, int], list[bytes]]  # the first so many items


@contextmanager
def transport(kind: str, running: Running) -> Iterator[tuple[Ask, Stream]]:
    port = running.server.grpc.port if kind.startswith("grpc") else running.server.wire.port
    if "asyncio" not in kind:
        made = (GrpcTransport if kind == "grpc" else WireTransport)("127.0.0.1", port)

        def take(method: str, request: bytes, number: int) -> list[bytes]:
            items = made.stream(method, request)
            return [next(items) for _ in range(number)]

        try:
            yield lambda method, request: made.call(method, request, DEADLINE), take
        finally:
            made.close()
        return
    with asyncio.Runner() as runner:
        cls = AsyncGrpcTransport if kind.startswith("grpc") else AsyncWireTransport
        peer: Any = runner.run(cls.connect("127.0.0.1", port))

        async def collect(method: str, request: bytes, number: int) -> list[bytes]:
            items = peer.stream(method, request)
            found = [await anext(items) for _ in range(number)]
            await items.aclose()
            return found

        yield (
            lambda method, request: runner.run(asyncio.wait_for(peer.call(method, request), DEADLINE)),
            lambda method, request, number: runner.run(asyncio.wait_for(collect(method, request, number), DEADLINE)),
        )
        runner.run(peer.close())


class Session:
    """Calls through one transport, and what came of each."""

    def __init__(self, ask: Ask, stream: Stream) -> None:
        self._ask = ask
        self._stream = stream
        self.outcomes: list[Any] = []
        self.called: set[str] = set()

    def call(self, method: str, request: Any, answer: Any) -> Any:
        """The answer, which is also noted; None where there was an error."""
        service = "MQService" if hasattr(pb, f"{method}Request") and f"mq.MQService/{method}" in METHODS else "Admin"
        name = f"mq.{service}/{method}" if service == "MQService" else f"mq.AdminService/{method}"
        self.called.add(name)
        try:
            data = self._ask(name, request if isinstance(request, bytes) else request.SerializeToString())
        except MqError as error:
            self.outcomes.append((method, type(error).__name__, error.status, error.retryable, str(error)))
            return None
        message = answer.FromString(data)
        self.outcomes.append((method, lasting(message)))
        return message

    def subscribe(self, request: pb.SubscribeRequest, number: int) -> None:
        self.called.add("mq.MQService/Subscribe")
        try:
            items = self._stream("mq.MQService/Subscribe", request.SerializeToString(), number)
        except MqError as error:
            self.outcomes.append(("Subscribe", type(error).__name__, error.status, error.retryable, str(error)))
            return
        self.outcomes += [("Subscribe", lasting(pb.Message.FromString(item))) for item in items]


def lasting(message: Any) -> str:
    """What a message says, without what differs from one start of a broker to the next."""
    for field, value in message.ListFields():
        if field.name.endswith(("_us", "_seconds")) or field.name in FLEETING:
            message.ClearField(field.name)
        elif field.message_type is not None:
            for each in value if field.is_repeated else [value]:
                lasting(each)
    return str(message)


def batch(*contents: bytes, key: bytes | None = None) -> pb.Batch:
    return pb.Batch(messages=[pb.BatchMessage(content=content, key=key) for content in contents])


def receipts(answer: pb.PullResponse) -> list[pb.Receipt]:
    return [pb.Receipt(receipt=pulled.receipt) for pulled in answer.batches]


def everything(session: Session) -> None:
    """Each method at least once, with what it refuses."""
    call = session.call
    call("CreateChannel", pb.CreateChannelRequest(channel="orders"), pb.CreateChannelResponse)
    call("CreateChannel", pb.CreateChannelRequest(channel="orders"), pb.CreateChannelResponse)
    call("CreateChannel", pb.CreateChannelRequest(channel="orders", fail_if_exists=True), pb.CreateChannelResponse)
    call("CreateChannel", pb.CreateChannelRequest(channel="no name"), pb.CreateChannelResponse)
    call("CreateChannel", b"\xff\xff", pb.CreateChannelResponse)
    call("CreateChannel", pb.CreateChannelRequest(channel="wide", partitions=3), pb.CreateChannelResponse)
    publishes(session)
    pulls(session)
    settles(session)
    administers(session)


def publishes(session: Session) -> None:
    call = session.call
    for number in range(3):
        call("Publish", pb.PublishRequest(channel="orders", content=b"%d" % number), pb.PublishResponse)
    call("Publish", pb.PublishRequest(channel="nosuch", content=b"x"), pb.PublishResponse)
    call("Publish", pb.PublishRequest(channel="orders"), pb.PublishResponse)
    call("Publish", pb.PublishRequest(channel="orders", content=b"x" * 4_150_000), pb.PublishResponse)
    many = pb.PublishBatchRequest(channel="orders", batch=batch(*[b"x"] * 10), producer_id="p", sequence=0)
    call("PublishBatch", many, pb.PublishBatchResponse)
    call("PublishBatch", many, pb.PublishBatchResponse)
    call("PublishBatch", pb.PublishBatchRequest(channel="nosuch", batch=batch(b"x")), pb.PublishBatchResponse)
    call("PublishBatch", pb.PublishBatchRequest(channel="orders"), pb.PublishBatchResponse)
    keyed = pb.Batch(messages=[pb.BatchMessage(content=b"x", key=b"%d" % number) for number in range(12)])
    call("PublishBatch", pb.PublishBatchRequest(channel="wide", batch=keyed), pb.PublishBatchResponse)
    later = pb.PublishBatchRequest(channel="orders", batch=batch(b"later"), delay_ms=3_600_000)
    call("PublishBatch", later, pb.PublishBatchResponse)


def pulls(session: Session) -> None:
    call = session.call
    call("Pull", pb.PullRequest(channel="orders", partition=0), pb.PullResponse)
    call("Pull", pb.PullRequest(channel="orders", partition=0, max_messages=2), pb.PullResponse)
    call("Pull", pb.PullRequest(channel="orders", start=pb.Start(latest=True), max_wait_ms=10), pb.PullResponse)
    call("Pull", pb.PullRequest(channel="orders", start=pb.Start(offset=99)), pb.PullResponse)
    call("Pull", pb.PullRequest(channel="wide"), pb.PullResponse)
    call("Pull", pb.PullRequest(channel="nosuch"), pb.PullResponse)
    call("Pull", pb.PullRequest(channel="orders", group="g"), pb.PullResponse)
    beginning = pb.SubscribeRequest.OFFSET_BEGINNING
    session.subscribe(pb.SubscribeRequest(channel="orders", offset=beginning), 5)
    session.subscribe(pb.SubscribeRequest(channel="nosuch", offset=beginning), 1)
    session.subscribe(pb.SubscribeRequest(channel="orders"), 1)


def settles(session: Session) -> None:
    call = session.call
    who = {"channel": "orders", "group": "g", "member": "m"}

    def pull(number: int) -> list[pb.Receipt]:
        return receipts(call("Pull", pb.PullRequest(**who, max_messages=number), pb.PullResponse))

    held = session._ask("mq.MQService/Pull", pb.PullRequest(**who, max_messages=2).SerializeToString())
    first = receipts(pb.PullResponse.FromString(held))
    call("Extend", pb.ExtendRequest(**who, receipts=first), pb.ExtendResponse)
    call("Ack", pb.AckRequest(**who, receipts=first), pb.AckResponse)
    call("Ack", pb.AckRequest(**who, receipts=[pb.Receipt(receipt=b"forged")]), pb.AckResponse)
    call("Ack", pb.AckRequest(**who), pb.AckResponse)
    held = session._ask("mq.MQService/Pull", pb.PullRequest(**who, max_messages=1).SerializeToString())
    call("Nack", pb.NackRequest(**who, receipts=receipts(pb.PullResponse.FromString(held))), pb.NackResponse)
    held = session._ask("mq.MQService/Pull", pb.PullRequest(**who, max_messages=1).SerializeToString())
    refused = receipts(pb.PullResponse.FromString(held))
    call("Reject", pb.RejectRequest(**who, receipts=refused, reason="bad"), pb.RejectResponse)
    held = session._ask("mq.MQService/Pull", pb.PullRequest(**who, max_messages=1).SerializeToString())
    acks = [pb.AckRequest(**who, receipts=receipts(pb.PullResponse.FromString(held)))]
    both = pb.TransactRequest(publishes=[pb.PublishBatchRequest(channel="wide", batch=batch(b"t"))], acks=acks)
    call("Transact", both, pb.TransactResponse)
    call("Transact", pb.TransactRequest(), pb.TransactResponse)
    call("Leave", pb.LeaveRequest(**who), pb.LeaveResponse)
    call("Seek", pb.SeekRequest(channel="orders", group="g", start=pb.Start(earliest=True)), pb.SeekResponse)
    call("Seek", pb.SeekRequest(channel="orders", group="nosuch", start=pb.Start(earliest=True)), pb.SeekResponse)
    ordered = pb.GroupSettings(mode=pb.GroupSettings.ORDERED)
    call("CreateGroup", pb.CreateGroupRequest(channel="orders", group="o", settings=ordered), pb.GroupInfo)
    owner = {"channel": "orders", "group": "o", "member": "m"}
    held = session._ask("mq.MQService/Pull", pb.PullRequest(**owner, max_messages=3).SerializeToString())
    generation = pb.PullResponse.FromString(held).generation
    to = [pb.Position(partition=0, offset=2)]
    call("Commit", pb.CommitRequest(**owner, generation=generation, positions=to), pb.CommitResponse)
    call("Commit", pb.CommitRequest(**owner, generation=1, positions=to), pb.CommitResponse)
    for number in (generation, 1):
        commits = [pb.CommitRequest(**owner, generation=number, positions=[pb.Position(partition=0, offset=3)])]
        call("Transact", pb.TransactRequest(publishes=both.publishes, commits=commits), pb.TransactResponse)


def administers(session: Session) -> None:
    call = session.call
    call("ListChannels", pb.ListChannelsRequest(), pb.ListChannelsResponse)
    call("DescribeChannel", pb.DescribeChannelRequest(channel="orders"), pb.ChannelInfo)
    call("DescribeChannel", pb.DescribeChannelRequest(channel="nosuch"), pb.ChannelInfo)
    call("UpdateChannel", pb.UpdateChannelRequest(channel="orders", partitions=2), pb.ChannelInfo)
    call("UpdateGroup", pb.UpdateGroupRequest(channel="orders", group="g", settings=pb.GroupSettings()), pb.GroupInfo)
    call("ListGroups", pb.ListGroupsRequest(), pb.ListGroupsResponse)
    call("DescribeGroup", pb.DescribeGroupRequest(channel="orders", group="g", pending=True), pb.GroupInfo)
    call("DeleteGroup", pb.DeleteGroupRequest(channel="orders", group="g"), pb.DeleteGroupResponse)
    call("DeleteGroup", pb.DeleteGroupRequest(channel="orders", group="g"), pb.DeleteGroupResponse)
    call("ListSchedules", pb.ListSchedulesRequest(channel="orders"), pb.ListSchedulesResponse)
    call("CancelSchedule", pb.CancelScheduleRequest(channel="orders", schedule_id=1), pb.CancelScheduleResponse)
    call("CancelSchedule", pb.CancelScheduleRequest(channel="orders", schedule_id=1), pb.CancelScheduleResponse)
    call("Redrive", pb.RedriveRequest(channel="orders.dlq", reason="other"), pb.RedriveResponse)
    call("Redrive", pb.RedriveRequest(channel="orders.dlq", to="wide"), pb.RedriveResponse)
    call("Redrive", pb.RedriveRequest(channel="orders"), pb.RedriveResponse)
    call("PurgeChannel", pb.PurgeChannelRequest(channel="orders"), pb.PurgeChannelResponse)
    call("DeleteChannel", pb.DeleteChannelRequest(channel="orders"), pb.DeleteChannelResponse)
    call("ListSegments", pb.ListSegmentsRequest(), pb.ListSegmentsResponse)
    call("RotateSegment", pb.RotateSegmentRequest(), pb.RotateSegmentResponse)
    call("InstallSegments", pb.InstallSegmentsRequest(proposal="0123456789abcdef"), pb.InstallSegmentsResponse)
    call("CreateBackup", pb.CreateBackupRequest(directory="nightly"), pb.BackupInfo)
    call("DescribeBackup", pb.DescribeBackupRequest(backup_id="nightly"), pb.BackupInfo)
    call("ServerInfo", pb.ServerInfoRequest(), pb.ServerInfoResponse)


@cache
def outcomes(kind: str) -> tuple[list[Any], set[str]]:
    with broker() as running, transport(kind, running) as (ask, stream):
        session = Session(ask, stream)
        everything(session)
        return session.outcomes, session.called


@pytest.mark.parametrize("kind", TRANSPORTS[1:])
def test_every_transport_has_the_outcomes_of_the_first(kind: str) -> None:
    mine, _ = outcomes(kind)
    first, _ = outcomes(TRANSPORTS[0])
    assert mine == first


def test_the_comparison_calls_every_method() -> None:
    """PublishStream alone has many requests, and is compared by the tests of each door."""
    assert outcomes(TRANSPORTS[0])[1] == METHODS.keys() - {"mq.MQService/PublishStream"}


def test_the_comparison_meets_most_errors() -> None:
    names = {outcome[1] for outcome in outcomes(TRANSPORTS[0])[0] if len(outcome) == 5}
    assert names >= {"InvalidArgument", "MessageTooLarge", "ChannelNotFound", "ChannelExists", "GroupNotFound"}
    assert "LeaseLost" in names
    assert "MqError" not in names


def test_answers_are_the_same_bytes_through_both_doors() -> None:
    with broker() as running, transport("wire", running) as (wire, _), transport("grpc", running) as (grpc, _):
        wire("mq.MQService/CreateChannel", pb.CreateChannelRequest(channel="orders").SerializeToString())
        for door in (wire, grpc):
            many = pb.PublishBatchRequest(channel="orders", batch=batch(*[b"x" * 100] * 50))
            door("mq.MQService/PublishBatch", many.SerializeToString())
        for request in (
            pb.PullRequest(channel="orders", partition=0),
            pb.PullRequest(channel="orders", partition=0, max_messages=7, start=pb.Start(offset=48)),
        ):
            asked = request.SerializeToString()
            assert wire("mq.MQService/Pull", asked) == grpc("mq.MQService/Pull", asked) != b""
