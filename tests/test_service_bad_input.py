"""Every method with every kind of bad input: the documented status, and never INTERNAL."""

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf.message import Message

from mq.pb import mq_pb2 as pb
from mq.service import METHODS, Kind
from mq.testing import Running, broker

DEADLINE = 20.0
INVALID, NOT_FOUND, PRECONDITION = "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION"
RANGE, EXISTS = "OUT_OF_RANGE", "ALREADY_EXISTS"
BATCH = pb.Batch(messages=[pb.BatchMessage(content=b"x")])
HUGE = (1 << 64) - 1
BAD_NAMES = ["", " ", "-a", ".a", "a/b", "../x", "a b", "a\n", "ä", "a\0b", "x" * 129]


class Case(NamedTuple):
    method: str
    request: Message
    status: str


def names(method: str, make: Callable[..., Message], *fields: str) -> Iterator[Case]:
    """Each of the fields with each of the bad names, the others good."""
    good = {"channel": "here", "group": "workers", "member": "m"}
    for field in fields:
        for bad in BAD_NAMES if field != "member" else ["", " ", "ä", "x" * 129, "a\n"]:
            chosen = {name: good[name] for name in fields} | {field: bad}
            yield Case(method, make(**chosen), INVALID)


def all_cases() -> Iterator[Case]:
    yield from publishing()
    yield from consuming()
    yield from administration()


def publishing() -> Iterator[Case]:
    def publish(**fields: Any) -> pb.PublishRequest:
        return pb.PublishRequest(**{"channel": "here", "content": b"x", **fields})

    def batch(**fields: Any) -> pb.PublishBatchRequest:
        return pb.PublishBatchRequest(**{"channel": "here", "batch": BATCH, **fields})

    yield from names("CreateChannel", pb.CreateChannelRequest, "channel")
    yield Case("CreateChannel", pb.CreateChannelRequest(channel="x" * 121), INVALID)
    yield Case("CreateChannel", pb.CreateChannelRequest(channel="new", partitions=1 << 31), INVALID)
    yield Case("CreateChannel", pb.CreateChannelRequest(channel="here", fail_if_exists=True), EXISTS)
    for settings in bad_channel_settings():
        yield Case("CreateChannel", pb.CreateChannelRequest(channel="new", settings=settings), INVALID)
    yield from names("Publish", lambda channel: publish(channel=channel), "channel")
    yield from names("PublishBatch", lambda channel: batch(channel=channel), "channel")
    yield Case("Publish", publish(channel="nowhere"), PRECONDITION)
    yield Case("PublishBatch", batch(channel="nowhere"), NOT_FOUND)
    yield Case("Publish", pb.PublishRequest(channel="here"), INVALID)
    yield Case("PublishBatch", pb.PublishBatchRequest(channel="here"), INVALID)
    yield Case("PublishBatch", batch(batch=pb.Batch()), INVALID)
    yield Case("PublishBatch", batch(batch=pb.Batch(messages=[pb.BatchMessage()] * 10_001)), INVALID)
    for method, make in (("Publish", publish), ("PublishBatch", batch)):
        for fields in (
            {"partition": 99},
            {"partition": (1 << 32) - 1},
            {"durability": pb.MEMORY},
            {"durability": 77},
            {"sequence": 1},
            {"producer_id": "x" * 129},
            {"producer_id": "a b"},
            {"deliver_at_us": -1},
            {"deliver_at_us": 1, "delay_ms": 1},
            {"delay_ms": HUGE},
            {"ttl_ms": HUGE},
        ):
            yield Case(method, make(**fields), INVALID)
    yield Case("Subscribe", pb.SubscribeRequest(channel="nowhere", offset=1), PRECONDITION)  # type: ignore[arg-type]
    yield Case("Subscribe", pb.SubscribeRequest(channel="here"), INVALID)
    yield Case("Subscribe", pb.SubscribeRequest(channel="here", offset=9), INVALID)  # type: ignore[arg-type]
    yield from names("Subscribe", lambda channel: pb.SubscribeRequest(channel=channel, offset=1), "channel")  # type: ignore[arg-type]
    for transact in (
        pb.TransactRequest(),
        pb.TransactRequest(publishes=[pb.PublishBatchRequest(channel="here")]),
        pb.TransactRequest(publishes=[batch(channel="a b")]),
        pb.TransactRequest(publishes=[batch(delay_ms=5)]),
        pb.TransactRequest(publishes=[batch(producer_id="p")]),
        pb.TransactRequest(publishes=[batch(durability=pb.OS)]),
        pb.TransactRequest(publishes=[batch()], sequence=3),
        pb.TransactRequest(publishes=[batch()] * 1_001),
        pb.TransactRequest(acks=[pb.AckRequest(channel="here", group="workers", member="m")]),
        pb.TransactRequest(commits=[pb.CommitRequest(channel="here", group="workers", member="m")]),
    ):
        yield Case("Transact", transact, INVALID)
    yield Case("Transact", pb.TransactRequest(publishes=[batch(), batch(channel="nowhere")]), NOT_FOUND)


def consuming() -> Iterator[Case]:
    def pull(**fields: Any) -> pb.PullRequest:
        return pb.PullRequest(**{"channel": "here", **fields})

    yield from names("Pull", pb.PullRequest, "channel")
    yield Case("Pull", pull(channel="nowhere"), NOT_FOUND)
    yield Case("Pull", pull(channel="nowhere", group="g", member="m"), NOT_FOUND)
    yield Case("Pull", pull(group="a b", member="m"), INVALID)
    yield Case("Pull", pull(group="workers"), INVALID)
    yield Case("Pull", pull(group="workers", member="ä"), INVALID)
    yield Case("Pull", pull(member="m"), INVALID)
    yield Case("Pull", pull(group="workers", member="m", positions=[pb.Position()]), INVALID)
    yield Case("Pull", pull(positions=[pb.Position(), pb.Position()]), INVALID)
    yield Case("Pull", pull(positions=[pb.Position(partition=99)]), INVALID)
    yield Case("Pull", pull(partition=99), INVALID)
    yield Case("Pull", pull(positions=[pb.Position(offset=HUGE)]), RANGE)
    yield Case("Pull", pull(start=pb.Start(offset=1_000)), RANGE)
    holders: list[tuple[str, Callable[..., Message]]] = [
        ("Ack", pb.AckRequest),
        ("Nack", pb.NackRequest),
        ("Reject", pb.RejectRequest),
        ("Extend", pb.ExtendRequest),
        ("Commit", pb.CommitRequest),
        ("Leave", pb.LeaveRequest),
    ]
    for method, make in holders:
        yield from names(method, make, "channel", "group", "member")
    who = {"channel": "here", "group": "workers", "member": "m"}
    for method, make in holders[:3]:
        yield Case(method, make(**who), INVALID)
    for method, make in holders[:4]:
        for receipt in (b"x", b"\0" * 40, b"y" * 1_000):
            yield Case(method, make(**who, receipts=[pb.Receipt(receipt=receipt)]), PRECONDITION)
        bad_range = pb.OffsetRange(start=5, end=5)
        yield Case(method, make(**who, receipts=[pb.Receipt()]), INVALID)
        yield Case(method, make(**who, receipts=[pb.Receipt(receipt=b"x", ranges=[bad_range])]), INVALID)
    yield Case("Nack", pb.NackRequest(**who, receipts=[pb.Receipt(receipt=b"x")], delay_ms=HUGE), INVALID)
    yield Case("Reject", pb.RejectRequest(**who, receipts=[pb.Receipt(receipt=b"x")], reason="r" * 1_025), INVALID)
    yield Case("Extend", pb.ExtendRequest(**who, ack_wait_ms=HUGE), INVALID)
    yield Case("Commit", pb.CommitRequest(**who), INVALID)
    yield Case("Seek", pb.SeekRequest(channel="here", group="workers"), INVALID)
    yield Case("Seek", pb.SeekRequest(channel="here", group="nobody", shift=1), NOT_FOUND)
    yield Case("Seek", pb.SeekRequest(channel="nowhere", group="workers", shift=1), NOT_FOUND)
    yield Case("Seek", pb.SeekRequest(channel="here", group="workers", shift=1, partition=99), INVALID)
    yield from names("Seek", lambda **fields: pb.SeekRequest(**fields, shift=1), "channel", "group")


def bad_channel_settings() -> list[pb.ChannelSettings]:
    return [
        pb.ChannelSettings(keep=9),  # type: ignore[arg-type]
        pb.ChannelSettings(max_age_ms=HUGE),
        pb.ChannelSettings(max_bytes=HUGE),
        pb.ChannelSettings(max_messages=HUGE),
        pb.ChannelSettings(ttl_ms=HUGE),
        pb.ChannelSettings(keep=pb.ChannelSettings.KEEP_LATEST_PER_KEY, max_bytes=1),
    ]


def bad_group_settings() -> list[pb.GroupSettings]:
    return [
        pb.GroupSettings(mode=9),  # type: ignore[arg-type]
        pb.GroupSettings(ack_wait_ms=HUGE),
        pb.GroupSettings(backoff_ms=[HUGE]),
        pb.GroupSettings(backoff_ms=[1] * 33),
        pb.GroupSettings(expire_after_ms=HUGE),
        pb.GroupSettings(assignment="alphabetical"),
    ]


def administration() -> Iterator[Case]:
    simple: list[tuple[str, Callable[..., Message]]] = [
        ("DescribeChannel", pb.DescribeChannelRequest),
        ("UpdateChannel", pb.UpdateChannelRequest),
        ("DeleteChannel", pb.DeleteChannelRequest),
        ("PurgeChannel", pb.PurgeChannelRequest),
        ("Redrive", pb.RedriveRequest),
        ("ListSchedules", pb.ListSchedulesRequest),
        ("CancelSchedule", pb.CancelScheduleRequest),
    ]
    for method, make in simple:
        yield from names(method, make, "channel")
        yield Case(method, make(channel="nowhere"), NOT_FOUND)
    yield Case("ListChannels", pb.ListChannelsRequest(prefix="x" * 129), INVALID)
    yield Case("PurgeChannel", pb.PurgeChannelRequest(channel="here", partition=99), INVALID)
    yield Case("Redrive", pb.RedriveRequest(channel="here"), INVALID)
    yield Case("Redrive", pb.RedriveRequest(channel="here", to="a b"), INVALID)
    yield Case("Redrive", pb.RedriveRequest(channel="here", min_age_ms=HUGE), INVALID)
    yield Case("CancelSchedule", pb.CancelScheduleRequest(channel="here", schedule_id=7), NOT_FOUND)
    yield Case("UpdateChannel", pb.UpdateChannelRequest(channel="here", partitions=1 << 31), INVALID)
    for settings in bad_channel_settings():
        yield Case("UpdateChannel", pb.UpdateChannelRequest(channel="here", settings=settings), INVALID)
    for method, make in [("DescribeGroup", pb.DescribeGroupRequest), ("DeleteGroup", pb.DeleteGroupRequest)]:
        yield from names(method, make, "channel", "group")
        yield Case(method, make(channel="here", group="nobody"), NOT_FOUND)
        yield Case(method, make(channel="nowhere", group="workers"), NOT_FOUND)
    yield from names("CreateGroup", pb.CreateGroupRequest, "channel", "group")
    yield Case("CreateGroup", pb.CreateGroupRequest(channel="nowhere", group="g"), NOT_FOUND)
    yield Case("UpdateGroup", pb.UpdateGroupRequest(channel="here", group="workers"), INVALID)
    some = pb.GroupSettings(max_deliver=3)
    yield Case("UpdateGroup", pb.UpdateGroupRequest(channel="here", group="nobody", settings=some), NOT_FOUND)
    for bad in bad_group_settings():
        yield Case("CreateGroup", pb.CreateGroupRequest(channel="here", group="g", settings=bad), INVALID)
        yield Case("UpdateGroup", pb.UpdateGroupRequest(channel="here", group="workers", settings=bad), INVALID)
    yield Case("ListGroups", pb.ListGroupsRequest(channel="a b"), INVALID)
    for proposal in ("", "../MANIFEST", "0123456789abcde", "0123456789abcdeg", "0123456789ABCDEF", "0" * 17):
        yield Case("InstallSegments", pb.InstallSegmentsRequest(proposal=proposal), INVALID)
    yield Case("InstallSegments", pb.InstallSegmentsRequest(proposal="0" * 16), NOT_FOUND)
    for directory in ("", "/", ".", "..", "nightly/..", "a b", "a\0b", "-f", "x" * 129):
        yield Case("CreateBackup", pb.CreateBackupRequest(directory=directory), INVALID)
    yield Case("DescribeBackup", pb.DescribeBackupRequest(backup_id="../MANIFEST"), NOT_FOUND)
    yield Case("ListGroups", pb.ListGroupsRequest(channel="nowhere"), NOT_FOUND)


PATHS = {name.split("/")[1]: f"/{name}" for name in METHODS}


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with broker() as started:
        yield started


@pytest.fixture(scope="module")
def channel(running: Running) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(running.address) as made:
        made.unary_unary(PATHS["CreateChannel"])(pb.CreateChannelRequest(channel="here").SerializeToString())
        group = pb.CreateGroupRequest(channel="here", group="workers")
        made.unary_unary(PATHS["CreateGroup"])(group.SerializeToString())
        yield made


def status_of(channel: grpc.Channel, method: str, request: bytes, timeout: float = DEADLINE) -> str:
    kind = METHODS[PATHS[method][1:]].kind
    try:
        if kind is Kind.SUBSCRIBE:
            stream = channel.unary_stream(PATHS[method])(request, timeout=timeout)
            stream.initial_metadata()
            if stream.is_active():
                stream.cancel()
                return "OK"
            next(stream)
        elif kind is Kind.PUBLISH_STREAM:
            (answer,) = channel.stream_stream(PATHS[method])(iter([request]), timeout=timeout)
            return pb.PublishBatchResponse.FromString(answer).error_reason or "OK"
        else:
            channel.unary_unary(PATHS[method])(request, timeout=timeout)
    except grpc.RpcError as error:
        return error.code().name
    return "OK"


CASES = list(all_cases())


@pytest.mark.parametrize("method", PATHS)
def test_bad_input_gets_the_documented_status(channel: grpc.Channel, method: str) -> None:
    wrong = []
    for case in CASES:
        if case.method == method:
            got = status_of(channel, method, case.request.SerializeToString())
            if got != case.status:
                wrong.append(f"{case.request!r} gave {got}, not {case.status}")
    assert wrong == []


def test_every_method_that_takes_anything_has_cases() -> None:
    without = {"ListSegments", "RotateSegment", "ServerInfo", "PublishStream"}  # no fields; the same as PublishBatch
    assert {case.method for case in CASES} == PATHS.keys() - without


@pytest.mark.parametrize("method", PATHS)
def test_bytes_that_are_no_message_are_an_invalid_argument(channel: grpc.Channel, method: str) -> None:
    for request in (b"\xff", b"\x0a\xff", b"\x0a\x05abc", b"\x00", b"\x0b" * 200, b"\x0a\x02\xc3\x28"):
        got = status_of(channel, method, request)
        known = {"OK"} if METHODS[PATHS[method][1:]].kind is Kind.LOCAL else set()
        assert got in {"INVALID_ARGUMENT", "InvalidArgument"} | known, request


@pytest.mark.parametrize("method", PATHS)
def test_random_bytes_never_reach_the_inside(channel: grpc.Channel, method: str) -> None:
    source = random.Random(method)
    good = [case.request.SerializeToString() for case in CASES if case.method == method] or [b""]
    for _ in range(150):
        if source.random() < 0.3:
            request = source.randbytes(source.randrange(60))
        else:
            changed = bytearray(source.choice(good)[:2_000] or b"\x0a\x04here")
            for _ in range(source.randrange(1, 4)):
                changed[source.randrange(len(changed))] = source.randrange(256)
            request = bytes(changed)
        assert status_of(channel, method, request) not in ("INTERNAL", "UNKNOWN", "MqError"), request


def test_errors_carry_no_foreign_control_characters(channel: grpc.Channel) -> None:
    request = pb.PullRequest(channel="a\nb\x1b[31m" + "x" * 500)
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(PATHS["Pull"])(request.SerializeToString(), timeout=DEADLINE)
    details = caught.value.details()
    assert details.isprintable()
    assert len(details) < 300
