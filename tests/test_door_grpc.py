"""The gRPC door of a real server: paths, statuses, streams, health, reflection, back-pressure."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from litter import litter_of

from mq.errors import LeaseLost
from mq.pb import mq_pb2 as pb
from mq.pb import mq_pb2_grpc
from mq.testing import Running, broker

DEADLINE = 20.0


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.005)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with broker() as started:
        yield started


@pytest.fixture(scope="module")
def channel(running: Running) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(running.address) as made:
        yield made


@pytest.fixture(scope="module")
def stub(channel: grpc.Channel) -> Any:
    return mq_pb2_grpc.MQServiceStub(channel)


@pytest.fixture(scope="module")
def admin(channel: grpc.Channel) -> Any:
    return mq_pb2_grpc.AdminServiceStub(channel)


_numbers = itertools.count()


@pytest.fixture
def name(stub: Any) -> str:
    made = f"door-{next(_numbers)}"
    stub.CreateChannel(pb.CreateChannelRequest(channel=made), timeout=DEADLINE)
    return made


def batch(*contents: bytes) -> pb.Batch:
    return pb.Batch(messages=[pb.BatchMessage(content=content) for content in contents])


def publish(stub: Any, name: str, *contents: bytes) -> pb.PublishBatchResponse:
    return stub.PublishBatch(pb.PublishBatchRequest(channel=name, batch=batch(*contents)), timeout=DEADLINE)


def contents(answer: pb.PullResponse) -> list[bytes]:
    return [message.content for pulled in answer.batches for message in pulled.batch.messages]


def pull(stub: Any, name: str, **fields: Any) -> pb.PullResponse:
    return stub.Pull(pb.PullRequest(channel=name, **fields), timeout=DEADLINE)


# ---------------------------------------------------------------- publish and pull


def test_a_batch_comes_back_as_it_went_in(stub: Any, name: str) -> None:
    sent = pb.Batch(
        messages=[
            pb.BatchMessage(content=b"a", key=b"k", headers=[pb.Header(name="h", value=b"\xff")]),
            pb.BatchMessage(content=b"", key=b""),
            pb.BatchMessage(content=b"c" * 1_000),
        ]
    )
    answer = stub.PublishBatch(pb.PublishBatchRequest(channel=name, batch=sent), timeout=DEADLINE)
    assert (answer.base_offset, answer.count, answer.durable) == (0, 3, pb.MEMORY)
    got = pull(stub, name, partition=0)
    assert [pulled.batch for pulled in got.batches] == [sent]
    assert got.next_offset == 3
    assert list(got.next) == [pb.Position(partition=0, offset=3)]


def test_a_pull_ends_at_its_limits_but_always_returns_a_message(stub: Any, name: str) -> None:
    publish(stub, name, *[b"x" * 100] * 10)
    assert len(contents(pull(stub, name, max_messages=3))) == 3
    assert len(contents(pull(stub, name, max_bytes=1))) == 1
    assert 1 <= len(contents(pull(stub, name, max_bytes=450))) <= 4


def test_an_answer_fits_what_generated_clients_receive(stub: Any, name: str) -> None:
    for _ in range(6):
        publish(stub, name, *[b"x" * 1_000_000])
    got = pull(stub, name, max_messages=10_000)
    assert 3 <= len(contents(got)) <= 4


def test_a_long_poll_ends_with_a_publish(stub: Any, name: str) -> None:
    waiting = stub.Pull.future(pb.PullRequest(channel=name, max_wait_ms=15_000), timeout=DEADLINE)
    publish(stub, name, b"wake up")
    assert contents(waiting.result()) == [b"wake up"]


def test_a_long_poll_ends_empty_when_its_time_is_over(stub: Any, name: str) -> None:
    assert contents(pull(stub, name, max_wait_ms=20)) == []


def test_leases_are_acked_through_the_door(stub: Any, admin: Any, name: str) -> None:
    publish(stub, name, b"a", b"b", b"c")
    who = {"channel": name, "group": "g", "member": "m"}
    (pulled,) = stub.Pull(pb.PullRequest(**who, max_messages=2), timeout=DEADLINE).batches
    assert pulled.delivery_count == 1
    receipt = pb.Receipt(receipt=pulled.receipt)
    assert stub.Ack(pb.AckRequest(**who, receipts=[receipt]), timeout=DEADLINE).acked == 2
    info = admin.DescribeGroup(pb.DescribeGroupRequest(channel=name, group="g"), timeout=DEADLINE)
    assert (info.lag, info.pending) == (1, 0)
    with pytest.raises(grpc.RpcError) as caught:
        stub.Ack(pb.AckRequest(**who, receipts=[pb.Receipt(receipt=b"made up")]), timeout=DEADLINE)
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert dict(caught.value.trailing_metadata())["mq-reason"] == LeaseLost.__name__


@pytest.mark.parametrize("wait_ms", [0, 20_000])
def test_a_message_that_was_pulled_is_kept_by_nobody(stub: Any, name: str, wait_ms: int) -> None:
    """A cycle of gRPC's keeps what is called at the end of a call; once it kept gigabytes of messages with that."""

    def pull_often() -> None:
        for _ in range(10):
            asked = stub.Pull.future(pb.PullRequest(channel=name, group="g", member="m", max_wait_ms=wait_ms))
            if not wait_ms:
                asked.result(DEADLINE)
            publish(stub, name, b"x")
            assert wait_ms == 0 or contents(asked.result(DEADLINE)) == [b"x"]

    assert not litter_of(pull_often) & {"Delivery", "PullReply", "PulledBatch", "LongPoll", "_LongPoll"}


def test_the_lease_of_a_pull_that_was_cancelled_while_it_waited_is_never_given(stub: Any, name: str) -> None:
    waiting = stub.Pull.future(
        pb.PullRequest(channel=name, group="g", member="gone", max_wait_ms=15_000), timeout=DEADLINE
    )
    waiting.cancel()
    publish(stub, name, b"x")
    got = stub.Pull(pb.PullRequest(channel=name, group="g", member="here", max_wait_ms=5_000), timeout=DEADLINE)
    assert contents(got) == [b"x"]
    assert got.batches[0].delivery_count == 1


def test_a_client_that_vanished_while_it_waited_leases_nothing(running: Running, stub: Any, name: str) -> None:
    leaver = grpc.insecure_channel(running.address, options=[("grpc.use_local_subchannel_pool", 1)])
    request = pb.PullRequest(channel=name, group="g", member="gone", max_wait_ms=15_000)
    waiting = mq_pb2_grpc.MQServiceStub(leaver).Pull.future(request, timeout=DEADLINE)  # a lost call is a cancelled one
    wait_until(lambda: bool(running.server.grpc._connections))
    leaver.close()
    wait_until(lambda: waiting.done() and not running.server.grpc._connections)
    publish(stub, name, b"x")
    got = pull(stub, name, group="g", member="here")
    assert contents(got) == [b"x"]
    assert got.batches[0].delivery_count == 1


# ---------------------------------------------------------------- streams


def test_a_publish_stream_answers_in_order_and_goes_on_after_a_refusal(stub: Any, name: str) -> None:
    requests = [pb.PublishBatchRequest(channel=name, batch=batch(b"%d" % number)) for number in range(300)]
    requests[100] = pb.PublishBatchRequest(channel=name)
    requests[200] = pb.PublishBatchRequest(channel="nowhere", batch=batch(b"x"))
    answers = list(stub.PublishStream(iter(requests), timeout=DEADLINE))
    assert len(answers) == 300
    assert [answers[100].error_reason, answers[200].error_reason] == ["InvalidArgument", "ChannelNotFound"]
    assert answers[100].error
    good = [answer for answer in answers if not answer.error]
    assert [answer.base_offset for answer in good] == list(range(298))


def test_a_publish_stream_takes_more_than_its_window(stub: Any, name: str) -> None:
    request = pb.PublishBatchRequest(channel=name, batch=batch(b"x" * 1_000_000))
    answers = list(stub.PublishStream((request for _ in range(40)), timeout=DEADLINE))
    assert [answer.base_offset for answer in answers] == list(range(40))


def test_a_publish_stream_answers_before_the_caller_is_done(stub: Any, name: str) -> None:
    go_on = threading.Semaphore(1)

    def requests() -> Iterator[pb.PublishBatchRequest]:
        while go_on.acquire(timeout=DEADLINE):
            yield pb.PublishBatchRequest(channel=name, batch=batch(b"x"))

    stream = stub.PublishStream(requests(), timeout=DEADLINE)
    for offset in range(5):
        assert next(stream).base_offset == offset
        go_on.release()
    stream.cancel()


def test_subscribe_with_a_batch_size_keeps_to_the_interval(stub: Any, name: str) -> None:
    publish(stub, name, *[b"x"] * 10)
    request = pb.SubscribeRequest(
        channel=name, offset=pb.SubscribeRequest.OFFSET_BEGINNING, pull_interval=200, batch_size=3
    )
    stream = stub.Subscribe(request, timeout=DEADLINE)
    times = []
    for _ in range(10):
        next(stream)
        times.append(time.monotonic())
    stream.cancel()
    assert times[9] - times[0] > 0.5


def test_subscribe_gives_keys_headers_and_places(stub: Any, name: str) -> None:
    header = pb.Header(name="n", value=b"v")
    message = pb.BatchMessage(content=b"c", key=b"k", headers=[header])
    stub.PublishBatch(pb.PublishBatchRequest(channel=name, batch=pb.Batch(messages=[message])), timeout=DEADLINE)
    request = pb.SubscribeRequest(channel=name, offset=pb.SubscribeRequest.OFFSET_BEGINNING)
    stream = stub.Subscribe(request, timeout=DEADLINE)
    got = next(stream)
    stream.cancel()
    assert (got.content, got.key, list(got.headers), got.offset) == (b"c", b"k", [header], 0)
    assert got.created_at == got.timestamp_us // 1_000_000


def test_subscribe_reads_all_partitions_also_those_added_later(stub: Any, admin: Any) -> None:
    name = f"door-{next(_numbers)}"
    stub.CreateChannel(pb.CreateChannelRequest(channel=name, partitions=3), timeout=DEADLINE)
    for partition in range(3):
        request = pb.PublishBatchRequest(channel=name, partition=partition, batch=batch(b"%d" % partition))
        stub.PublishBatch(request, timeout=DEADLINE)
    request = pb.SubscribeRequest(channel=name, offset=pb.SubscribeRequest.OFFSET_BEGINNING)
    stream = stub.Subscribe(request, timeout=DEADLINE)
    got = [next(stream) for _ in range(3)]
    stream.cancel()
    assert sorted(message.content for message in got) == [b"0", b"1", b"2"]
    assert len({message.id for message in got}) == 3


# ---------------------------------------------------------------- limits


def test_too_many_waiting_pulls_of_one_connection_are_refused(running: Running, stub: Any, name: str) -> None:
    service = running.server.grpc.service
    assert service is not None
    before, service.edge = service.edge, type(service.edge)(long_polls=3, streams=2)
    try:
        request = pb.PullRequest(channel=name, max_wait_ms=15_000)
        waiting = [stub.Pull.future(request, timeout=DEADLINE) for _ in range(4)]
        wait_until(lambda: any(each.done() for each in waiting))
        (refused,) = [each for each in waiting if each.done()]
        assert refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(refused.trailing_metadata())["mq-reason"] == "ResourceExhausted"
        publish(stub, name, b"x")
        assert [contents(each.result()) for each in waiting if each is not refused] == [[b"x"]] * 3
        # those that ended made room again
        assert contents(pull(stub, name, max_wait_ms=1_000)) == [b"x"]
        subscribe = pb.SubscribeRequest(channel=name, offset=pb.SubscribeRequest.OFFSET_LATEST)
        streams = [stub.Subscribe(subscribe, timeout=DEADLINE) for _ in range(2)]
        for each in streams:
            each.initial_metadata()
        with pytest.raises(grpc.RpcError) as caught:
            next(stub.Subscribe(subscribe, timeout=DEADLINE))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        for each in streams:
            each.cancel()
    finally:
        service.edge = before


def test_a_request_above_the_limit_is_refused_and_the_connection_lives(stub: Any, name: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        publish(stub, name, b"x" * (4 << 20))
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    publish(stub, name, b"x" * ((4 << 20) - (128 << 10)))


def test_a_large_request_that_is_no_publish_is_refused(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/mq.MQService/Ack")(b"\x22\x00" * 1_000_000, timeout=DEADLINE)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_connections_leave_nothing_behind(running: Running, stub: Any, name: str) -> None:
    for _ in range(3):
        with grpc.insecure_channel(running.address, options=[("grpc.use_local_subchannel_pool", 1)]) as once:
            mq_pb2_grpc.MQServiceStub(once).Pull(pb.PullRequest(channel=name, max_wait_ms=1), timeout=DEADLINE)
    wait_until(lambda: not running.server.grpc._connections)


# ---------------------------------------------------------------- health, reflection, information


@pytest.mark.parametrize("service", ["", "mq.MQService", "mq.AdminService"])
def test_health_says_serving(channel: grpc.Channel, service: str) -> None:
    check = health_pb2_grpc.HealthStub(channel).Check
    answer = check(health_pb2.HealthCheckRequest(service=service), timeout=DEADLINE)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_names_the_services_and_describes_them(channel: grpc.Channel) -> None:
    ask = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol="mq.MQService"),
    ]
    listed, described = ask(iter(requests), timeout=DEADLINE)
    names = {service.name for service in listed.list_services_response.service}
    assert {"mq.MQService", "mq.AdminService", "grpc.health.v1.Health"} <= names
    assert any(b"PublishBatch" in file for file in described.file_descriptor_response.file_descriptor_proto)


def test_the_server_tells_about_itself(admin: Any, name: str) -> None:
    info = admin.ServerInfo(pb.ServerInfoRequest(), timeout=DEADLINE)
    assert info.storage_mode == "memory"
    assert info.channels >= 1
    assert info.log_uuid
    assert info.max_request_bytes == 4 << 20


def test_an_unknown_method_is_unimplemented(channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/mq.MQService/Nothing")(b"", timeout=DEADLINE)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
