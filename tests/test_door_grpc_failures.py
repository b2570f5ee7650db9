"""The gRPC door when things go wrong: answers nobody waits for, errors nobody expected, readers that fall behind."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import grpc
import pytest
from loguru import logger

import mq.server
from mq.config import Config
from mq.doors.grpc import GrpcDoor
from mq.pb import mq_pb2 as pb
from mq.pb import mq_pb2_grpc
from mq.service import METHODS, Delivery, Method
from mq.testing import Running, broker
from wal import MemoryLog

DEADLINE = 20.0


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.005)


class Held(NamedTuple):
    """A broker whose log becomes durable only when a test says so."""

    running: Running
    log: MemoryLog
    stub: Any
    channel: grpc.Channel

    def release(self) -> None:
        self.running.loop.call_soon_threadsafe(self.log.release)

    def answered(self, future: Any) -> Any:
        """The answer, for which everything appended meanwhile becomes durable."""
        end = time.monotonic() + DEADLINE
        while not future.done():
            assert time.monotonic() < end
            self.release()
            time.sleep(0.005)
        return future.result()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    log = MemoryLog(is_held=True)

    async def given(config: Config) -> MemoryLog:
        return log

    monkeypatch.setattr(mq.server, "open_log", given)
    with broker() as running, grpc.insecure_channel(running.address) as channel:
        made = Held(running, log, mq_pb2_grpc.MQServiceStub(channel), channel)
        yield made
        log.is_held = False
        made.release()


def batch(*contents: bytes) -> pb.Batch:
    return pb.Batch(messages=[pb.BatchMessage(content=content) for content in contents])


def test_no_answer_leaves_before_it_is_durable(held: Held) -> None:
    creating = held.stub.CreateChannel.future(pb.CreateChannelRequest(channel="c"), timeout=DEADLINE)
    wait_until(lambda: held.log.last_sequence > 0)
    again = held.stub.CreateChannel.future(pb.CreateChannelRequest(channel="c"), timeout=DEADLINE)
    with pytest.raises(grpc.FutureTimeoutError):
        again.result(timeout=0.2)
    assert not creating.done()
    assert held.answered(creating).created
    assert not held.answered(again).created


def test_leases_of_an_answer_that_nobody_waits_for_go_back_at_once(held: Held) -> None:
    held.answered(held.stub.CreateChannel.future(pb.CreateChannelRequest(channel="c"), timeout=DEADLINE))
    publish = pb.PublishBatchRequest(channel="c", batch=batch(b"x"))
    held.answered(held.stub.PublishBatch.future(publish, timeout=DEADLINE))
    before = held.log.last_sequence
    # the first pull makes the group, so its answer waits for the log; the caller does not
    gone = held.stub.Pull.future(pb.PullRequest(channel="c", group="g", member="gone"), timeout=DEADLINE)
    wait_until(lambda: held.log.last_sequence > before)
    gone.cancel()
    wait_until(lambda: not held.running.server.grpc._connections)
    request = pb.PullRequest(channel="c", group="g", member="here", max_wait_ms=10_000)
    got = held.answered(held.stub.Pull.future(request, timeout=DEADLINE))
    assert [message.content for message in got.batches[0].batch.messages] == [b"x"]


def test_leases_of_an_answer_that_came_as_its_caller_went_go_back_at_once() -> None:
    released: list[bool] = []

    class Answering:
        def call(self, method: Method, connection: object, request: bytes, done: Callable[[Delivery], None]) -> None:
            self.done = done

    class Peer:
        def peer(self) -> str:
            return "ipv4:127.0.0.1:1"

    async def cancelled_in_the_same_turn() -> None:
        door, door_service = GrpcDoor(max_request_bytes=1 << 20), Answering()
        door.service = door_service  # type: ignore[assignment]
        call = asyncio.create_task(door._unary(METHODS["mq.MQService/Pull"])(b"", Peer()))
        await asyncio.sleep(0)
        door_service.done(Delivery([b"x"], lambda: released.append(True)))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(cancelled_in_the_same_turn())
    assert released == [True]


def test_an_unexpected_error_is_logged_once_and_leaves_without_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("a secret path")

    lines: list[str] = []
    with broker() as running, grpc.insecure_channel(running.address) as channel:
        sink = logger.add(lines.append, format="{message}", diagnose=False)
        monkeypatch.setattr(running.server.broker, "submit", broken)
        stub = mq_pb2_grpc.MQServiceStub(channel)
        with pytest.raises(grpc.RpcError) as caught:
            stub.PublishBatch(pb.PublishBatchRequest(channel="c", batch=batch(b"x")), timeout=DEADLINE)
        assert caught.value.code() == grpc.StatusCode.INTERNAL
        assert "secret" not in caught.value.details()
        assert len(lines) == 1
        assert "RuntimeError: a secret path" in lines[0]
        requests = [pb.PublishBatchRequest(channel="c", batch=batch(b"x"))] * 3
        answers = list(stub.PublishStream(iter(requests), timeout=DEADLINE))
        assert ["secret" in answer.error for answer in answers] == [False] * 3
        assert all(answer.error for answer in answers)
        subscribe = pb.SubscribeRequest(channel="c", offset=pb.SubscribeRequest.OFFSET_BEGINNING)
        with pytest.raises(grpc.RpcError) as caught:
            next(stub.Subscribe(subscribe, timeout=DEADLINE))
        assert caught.value.code() == grpc.StatusCode.INTERNAL
        logger.remove(sink)


def test_a_subscriber_that_retention_overtook_goes_on_with_what_is_left() -> None:
    with broker() as running, grpc.insecure_channel(running.address) as channel:
        stub, admin = mq_pb2_grpc.MQServiceStub(channel), mq_pb2_grpc.AdminServiceStub(channel)
        stub.CreateChannel(pb.CreateChannelRequest(channel="c"), timeout=DEADLINE)
        stub.PublishBatch(pb.PublishBatchRequest(channel="c", batch=batch(*[b"old"] * 10)), timeout=DEADLINE)
        request = pb.SubscribeRequest(channel="c", offset=1, pull_interval=300, batch_size=3)  # type: ignore[arg-type]
        stream = stub.Subscribe(request, timeout=DEADLINE)
        assert [next(stream).content for _ in range(3)] == [b"old"] * 3
        admin.PurgeChannel(pb.PurgeChannelRequest(channel="c"), timeout=DEADLINE)
        stub.PublishBatch(pb.PublishBatchRequest(channel="c", batch=batch(b"new")), timeout=DEADLINE)
        after = next(stream)
        assert (after.content, after.offset) == (b"new", 10)
        admin.DeleteChannel(pb.DeleteChannelRequest(channel="c"), timeout=DEADLINE)
        with pytest.raises(grpc.RpcError) as caught:
            next(stream)
        assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION


def test_a_subscriber_that_stops_reading_costs_bounded_memory_and_nobody_waits() -> None:
    with broker() as running, grpc.insecure_channel(running.address) as channel:
        stub = mq_pb2_grpc.MQServiceStub(channel)
        stub.CreateChannel(pb.CreateChannelRequest(channel="c"), timeout=DEADLINE)
        for _ in range(20):
            stub.PublishBatch(pb.PublishBatchRequest(channel="c", batch=batch(b"x" * 1_000_000)), timeout=DEADLINE)
        slow = grpc.insecure_channel(running.address, options=[("grpc.use_local_subchannel_pool", 1)])
        request = pb.SubscribeRequest(channel="c", offset=pb.SubscribeRequest.OFFSET_BEGINNING)
        stream = mq_pb2_grpc.MQServiceStub(slow).Subscribe(request, timeout=DEADLINE)
        next(stream)
        begin = time.monotonic()
        stub.PublishBatch(pb.PublishBatchRequest(channel="c", batch=batch(b"y")), timeout=DEADLINE)
        assert time.monotonic() - begin < 5
        assert sum(1 for _, message in zip(range(19), stream, strict=False) if len(message.content) == 1_000_000) == 19
        slow.close()
