"""The client's wire transports: threads and tasks on one connection, deadlines, giving up, endings, forks."""

import asyncio
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest
import uvloop
from wirebroker import Broker, wire_broker
from wirepeer import HELLO, Peer, request

from mq import wire
from mq.client import wire as sync_wire
from mq.client import wire_socket
from mq.client.transport import TimedOut
from mq.client.wire import WireTransport
from mq.client.wire_async import STREAM_BYTES, AsyncWireTransport
from mq.client.wire_socket import WireSocket
from mq.errors import ChannelNotFound, InvalidArgument, MqError, Unavailable
from mq.pb import mq_pb2 as pb

DEADLINE = 20.0
PUBLISH, PULL, SUBSCRIBE = "mq.MQService/Publish", "mq.MQService/Pull", "mq.MQService/Subscribe"
WELCOME = wire.MAGIC + wire.pack(
    0, wire.WELCOME, 0, pb.WireWelcome(version=1, window=2, max_frame_bytes=1_000).SerializeToString()
)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with wire_broker("uvloop") as started:
        yield started


@pytest.fixture
def name(broker: Broker) -> str:
    return broker.create()


@pytest.fixture
def transport(broker: Broker) -> Iterator[WireTransport]:
    made = WireTransport("127.0.0.1", broker.port)
    yield made
    made.close()


def publish(name: str, content: bytes = b"x") -> bytes:
    return pb.PublishRequest(channel=name, content=content).SerializeToString()


def waiting_pull(name: str, **fields: Any) -> bytes:
    return pb.PullRequest(channel=name, max_wait_ms=15_000, **fields).SerializeToString()


@contextmanager
def listening() -> Iterator[socket.socket]:
    """A server that says what a test tells it to."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        made.listen()
        made.settimeout(DEADLINE)
        yield made


@contextmanager
def answering(*words: bytes) -> Iterator[int]:
    """A server that says these words to whoever connects, one after each thing it hears, and then closes."""
    with listening() as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(DEADLINE)
                for word in words:
                    connection.recv(65_536)
                    connection.sendall(word)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join(DEADLINE)


# ---------------------------------------------------------------- threads


def test_many_threads_share_a_connection_and_each_gets_its_own(transport: WireTransport, name: str) -> None:
    offsets: list[int] = []

    def work() -> None:
        for _ in range(100):
            offsets.append(pb.PublishResponse.FromString(transport.call(PUBLISH, publish(name), DEADLINE)).offset)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert sorted(offsets) == list(range(1_600))


def test_a_thread_that_waits_long_reads_for_the_others(transport: WireTransport, name: str) -> None:
    answers: list[bytes] = []
    waiter = threading.Thread(target=lambda: answers.append(transport.call(PULL, waiting_pull(name), DEADLINE)))
    waiter.start()
    for _ in range(50):
        transport.call(PUBLISH, publish(name), DEADLINE)
    waiter.join(DEADLINE)
    assert pb.PullResponse.FromString(answers[0]).batches


def test_many_sends_are_answered_once_each(transport: WireTransport, name: str) -> None:
    answers: list[bytes | MqError] = []
    done = threading.Event()

    def take(answer: bytes | MqError) -> None:
        answers.append(answer)
        if len(answers) == 20_000:
            done.set()

    for _ in range(20_000):
        transport.send(PUBLISH, publish(name), take)
    assert done.wait(DEADLINE)
    offsets = [pb.PublishResponse.FromString(answer).offset for answer in answers if isinstance(answer, bytes)]
    assert sorted(offsets) == list(range(20_000))


def test_a_callback_that_fails_hurts_nobody_else(
    transport: WireTransport, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(answer: bytes | MqError) -> None:
        raise ValueError("a bug")

    transport.send(PUBLISH, publish(name), fail)
    assert transport.call(PUBLISH, publish(name), DEADLINE)
    assert "callback of an answer failed" in caplog.text


def test_a_deadline_ends_a_call_and_not_the_connection(transport: WireTransport, name: str) -> None:
    with pytest.raises(TimedOut) as caught:
        transport.call(PULL, waiting_pull(name, group="g", member="m"), 0.05)
    assert caught.value.retryable
    assert transport.is_usable
    transport.call(PUBLISH, publish(name), DEADLINE)
    got = pb.PullResponse.FromString(transport.call(PULL, waiting_pull(name, group="g", member="n"), DEADLINE))
    assert got.batches[0].delivery_count == 1  # the pull that was given up leased nothing


def test_deadlines_of_followers_hold_too(transport: WireTransport, name: str) -> None:
    leader = threading.Thread(target=lambda: transport.call(PULL, waiting_pull(name), DEADLINE))
    leader.start()
    with pytest.raises(TimedOut):
        transport.call(PULL, waiting_pull(name), 0.05)
    transport.call(PUBLISH, publish(name), DEADLINE)
    leader.join(DEADLINE)
    assert not leader.is_alive()


def test_who_reads_and_gives_up_leaves_the_reading_to_the_others(
    broker: Broker, transport: WireTransport, name: str
) -> None:
    answers: list[bytes] = []
    other = broker.create()

    def give_up() -> None:
        with pytest.raises(TimedOut):
            transport.call(PULL, waiting_pull(other), 0.5)

    reader = threading.Thread(target=give_up)
    follower = threading.Thread(target=lambda: answers.append(transport.call(PULL, waiting_pull(name), DEADLINE)))
    reader.start()
    broker.wait_until(lambda: any(each._connection.long_polls == 1 for each in broker.door.connections))
    follower.start()
    broker.wait_until(lambda: any(each._connection.long_polls == 2 for each in broker.door.connections))
    reader.join(DEADLINE)
    with Peer(broker.port) as another:
        another.send(request(1, "Publish", pb.PublishRequest(channel=name, content=b"x")))
        another.take()
    follower.join(DEADLINE / 2)
    assert len(answers) == 1


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each look at a socket instead of a sleep: whether it saw something. Processors are not shared."""
    monkeypatch.setattr(wire_socket, "YIELD_SECONDS", DEADLINE)
    seen: list[bool] = []
    look = WireSocket._look

    def noted(self: WireSocket, until: float) -> int | None:
        size = look(self, until)
        seen.append(size is not None)
        return size

    monkeypatch.setattr(WireSocket, "_look", noted)
    return seen


@contextmanager
def awake(port: int, seconds: float) -> Iterator[WireTransport]:
    made = WireTransport("127.0.0.1", port, busy_poll=seconds)
    try:
        yield made
    finally:
        made.close()


def test_a_lone_caller_stays_awake_where_the_answer_before_came_soon(
    broker: Broker, name: str, looks: list[bool]
) -> None:
    with awake(broker.port, DEADLINE) as transport:
        transport.call(PUBLISH, publish(name))
        assert looks == []  # nobody knows yet how soon this one answers
        transport.call(PUBLISH, publish(name))
        transport.call(PUBLISH, publish(name), 1.0)  # in less than a read of the system takes
        assert looks == [True, True]


def test_whose_answers_take_long_sleeps(broker: Broker, name: str, looks: list[bool]) -> None:
    with awake(broker.port, 0.02) as transport:
        transport._took = 0.0
        waiting = pb.PullRequest(channel=name, max_wait_ms=100, positions=[pb.Position(offset=0)]).SerializeToString()
        transport.call(PULL, waiting)
        assert looks == [False]
        transport.call(PULL, waiting)
        assert looks == [False]
        transport.call(PUBLISH, publish(name))
        transport._took = 0.0
        transport.call(PUBLISH, publish(name))
        assert len(looks) == 2
    with awake(broker.port, 0.0) as transport:
        transport._took = 0.0
        transport.call(PUBLISH, publish(name))
        assert len(looks) == 2


def test_a_look_ends_with_the_time_of_its_call(broker: Broker, name: str, looks: list[bool]) -> None:
    with awake(broker.port, DEADLINE) as transport:
        transport._took = 0.0
        began = time.monotonic()
        with pytest.raises(TimedOut):
            transport.call(PULL, waiting_pull(name, positions=[pb.Position(offset=0)]), 0.05)
        assert time.monotonic() - began < DEADLINE
        assert looks == [False]


def test_whose_processor_is_needed_sleeps(
    broker: Broker, name: str, looks: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = pb.PullRequest(channel=name, max_wait_ms=100, positions=[pb.Position(offset=0)]).SerializeToString()
    with awake(broker.port, DEADLINE) as transport:
        transport._took = 0.0
        transport.call(PULL, waiting)
        monkeypatch.setattr(wire_socket, "YIELD_SECONDS", 0.0)  # it never comes back that soon
        transport._took = 0.0
        transport.call(PULL, waiting)
        assert looks == [True, False]


def test_nobody_stays_awake_where_another_reads_for_all(broker: Broker, name: str, looks: list[bool]) -> None:
    def wait() -> None:
        with suppress(Unavailable):  # when it is closed
            transport.call(PULL, waiting_pull(broker.create()), DEADLINE)

    with awake(broker.port, DEADLINE) as transport:
        reader = threading.Thread(target=wait)
        reader.start()
        broker.wait_until(lambda: any(each._connection.long_polls for each in broker.door.connections))
        broker.wait_until(transport._reading.locked)
        transport._took = 0.0
        transport.call(PUBLISH, publish(name))
        assert looks == []
    reader.join(DEADLINE)


def test_who_reads_for_others_too_sleeps(broker: Broker, name: str, looks: list[bool]) -> None:
    with awake(broker.port, DEADLINE) as transport:
        transport._took = 0.0
        transport._calls[1 << 31] = sync_wire._Call()  # somebody else's, which is not answered yet
        transport.call(PUBLISH, publish(name))
        assert looks == []


def test_a_signal_that_raises_ends_a_look(broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise BlockingIOError("not the system's: raised by a handler")

    monkeypatch.setattr(wire_socket.os, "sched_yield", interrupted)
    with awake(broker.port, DEADLINE) as transport:
        transport._took = 0.0
        with pytest.raises(BlockingIOError, match="by a handler"):
            transport.call(PULL, waiting_pull(name, positions=[pb.Position(offset=0)]))
        assert not transport.is_usable  # what came meanwhile may be lost


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, broker: Broker) -> Iterator[WireTransport]:
    """The system ends its reads after a second, which is a small part of what is waited for."""
    monkeypatch.setattr(wire_socket, "READ_SECONDS", 1)
    made = WireTransport("127.0.0.1", broker.port)
    yield made
    made.close()


@pytest.mark.parametrize("timeout", [None, DEADLINE])
def test_a_read_goes_on_when_the_system_ends_it_before_its_time(
    impatient: WireTransport, name: str, timeout: float | None
) -> None:
    threading.Timer(1.5, impatient.call, (PUBLISH, publish(name))).start()
    answer = impatient.call(PULL, waiting_pull(name), timeout)
    assert pb.PullResponse.FromString(answer).batches


def test_a_deadline_beyond_what_the_system_waits_is_kept(impatient: WireTransport, name: str) -> None:
    began = time.monotonic()
    with pytest.raises(TimedOut):
        impatient.call(PULL, waiting_pull(name), 1.5)
    assert time.monotonic() - began >= 1.5
    impatient.call(PUBLISH, publish(name))


def test_closing_fails_what_is_in_flight(broker: Broker, name: str) -> None:
    transport = WireTransport("127.0.0.1", broker.port)
    errors: list[MqError] = []

    def wait() -> None:
        try:
            transport.call(PULL, waiting_pull(name), DEADLINE)
        except MqError as error:
            errors.append(error)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    broker.wait_until(lambda: sum(each._connection.long_polls for each in broker.door.connections) == 3)
    transport.close()
    transport.close()
    for thread in threads:
        thread.join(DEADLINE)
    assert [str(error) for error in errors] == ["the client was closed"] * 3
    assert len({id(error) for error in errors}) == 3
    with pytest.raises(Unavailable, match="was closed"):
        transport.call(PUBLISH, publish(name))


def test_a_server_that_left_is_noticed_before_anything_is_sent(
    broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_wire, "QUIET_SECONDS", -1.0)
    broker.wait_for_connections(0)
    transport = WireTransport("127.0.0.1", broker.port)
    broker.do(lambda: [each.say_goodbye(Unavailable("see you")) for each in broker.door.connections])
    broker.wait_for_connections(0)
    with pytest.raises(Unavailable, match="see you"):
        transport.call(PUBLISH, publish(name))
    assert not transport.is_usable
    transport.close()


def test_a_ping_is_answered_by_whoever_reads(broker: Broker, transport: WireTransport, name: str) -> None:
    broker.wait_for_connections(1)
    waiter = threading.Thread(target=lambda: transport.call(PULL, waiting_pull(name), DEADLINE))
    waiter.start()
    broker.wait_until(lambda: any(each._connection.long_polls for each in broker.door.connections))
    asking = broker.do(lambda: next(each for each in broker.door.connections if each._connection.long_polls))
    late = broker.do(lambda: asking._heard + 61)
    broker.do(lambda: asking.check_alive(late))
    broker.wait_until(lambda: not asking._is_pinged)
    with Peer(broker.port) as other:
        other.send(request(1, "Publish", pb.PublishRequest(channel=name, content=b"x")))
        other.take()
    waiter.join(DEADLINE)


def test_who_begins_to_wait_while_the_reading_is_passed_on_reads_himself(
    transport: WireTransport, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed_on: list[bool] = []

    def lock() -> threading.Lock:
        """Made by who is about to wait; who reads until now is done at just this moment."""
        made = threading.Lock()
        if not passed_on:
            passed_on.append(True)
            transport._reading.release()
            transport._pass_reading_on()
        return made

    transport._reading.acquire()
    monkeypatch.setattr(sync_wire, "threading", SimpleNamespace(Lock=lock))
    assert transport.call(PUBLISH, publish(name), DEADLINE)
    assert passed_on


def test_a_child_is_told_and_does_not_hurt_the_parent(transport: WireTransport, name: str) -> None:
    pid = os.fork()
    if not pid:
        try:
            transport.call(PUBLISH, publish(name))
        except Unavailable:
            transport.close()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    assert transport.call(PUBLISH, publish(name), DEADLINE)


def test_a_request_that_is_too_large_does_not_leave(transport: WireTransport, name: str) -> None:
    with pytest.raises(InvalidArgument, match="at most"):
        transport.call(PUBLISH, b"x" * (5 << 20))
    assert transport.call(PUBLISH, publish(name), DEADLINE)


def test_who_finds_the_window_full_waits_no_longer_than_he_may() -> None:
    done = threading.Event()
    with listening() as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(WELCOME)
                assert done.wait(DEADLINE)

        thread = threading.Thread(target=serve)
        thread.start()
        transport = WireTransport("127.0.0.1", server.getsockname()[1])
        for _ in range(2):
            with pytest.raises(TimedOut, match="did not answer in time"):
                transport.call(PUBLISH, b"", 0.01)
        with pytest.raises(TimedOut, match="left 2 requests without an answer"):
            transport.call(PUBLISH, b"", 0.01)
        transport.close()
        done.set()
        thread.join(DEADLINE)


def test_the_window_holds_sends_back() -> None:
    """The server takes two at a time: the third is sent when one was answered."""
    with listening() as server:
        taken: list[int] = []
        made: list[WireTransport] = []
        port = server.getsockname()[1]
        connecting = threading.Thread(target=lambda: made.append(WireTransport("127.0.0.1", port)))
        connecting.start()
        connection, _ = server.accept()
        with connection:
            connection.settimeout(DEADLINE)
            assert connection.recv(len(wire.MAGIC + HELLO) + 100)
            connection.sendall(WELCOME)
            connecting.join(DEADLINE)
            answered = threading.Event()
            sender = threading.Thread(
                target=lambda: [made[0].send(PUBLISH, b"", lambda _: answered.set()) for _ in range(3)]
            )
            sender.start()
            while sum(taken) < 2 * wire.HEADER_BYTES:
                taken.append(len(connection.recv(1_000)))
            assert sum(taken) == 2 * wire.HEADER_BYTES
            assert not answered.is_set()
            connection.sendall(wire.pack(2, wire.OK))
            assert len(connection.recv(1_000)) == wire.HEADER_BYTES
            sender.join(DEADLINE)
        made[0].close()


# ---------------------------------------------------------------- servers that are not ours


@pytest.mark.parametrize(
    ("words", "kind", "text"),
    [
        (b"\0\0\x12\x04\0\0\0\0\0" + b"\0" * 18, InvalidArgument, "it speaks gRPC: use grpc://"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", InvalidArgument, "it speaks HTTP"),
        (b"220 mail.example ESMTP\r\n", InvalidArgument, "it speaks something else"),
        (b"", Unavailable, "closed the connection"),
        (wire.MAGIC, Unavailable, "closed the connection"),
        (wire.MAGIC + wire.pack(0, wire.PONG), InvalidArgument, "answered a hello with code 0x8003"),
        (wire.MAGIC + wire.pack(0, wire.WELCOME, 0, b"\xff"), InvalidArgument, "speaks version 0"),
        (wire.MAGIC + wire.pack(0, wire.WELCOME, 0, b"\x08\x09"), InvalidArgument, "speaks version 9"),
        (wire.MAGIC + wire.pack(0, wire.GOODBYE, 0, b"\x0a\x11ResourceExhausted\x12\x04full"), MqError, "full"),
    ],
)
def test_a_server_that_greets_otherwise_is_named(words: bytes, kind: type[MqError], text: str) -> None:
    with answering(words) as port, pytest.raises(kind, match=text):
        WireTransport("127.0.0.1", port)
    with answering(words) as port, pytest.raises(kind, match=text):
        asyncio.run(AsyncWireTransport.connect("127.0.0.1", port))


def test_nobody_there_is_unavailable() -> None:
    with listening() as server:
        port = server.getsockname()[1]
    with pytest.raises(Unavailable, match="can't connect"):
        WireTransport("127.0.0.1", port)
    with pytest.raises(Unavailable, match="can't connect"):
        asyncio.run(AsyncWireTransport.connect("127.0.0.1", port))


def test_a_server_that_does_not_greet_is_given_up() -> None:
    with listening() as server:
        port = server.getsockname()[1]
        with pytest.raises(Unavailable, match="did not greet in time"):
            WireTransport("127.0.0.1", port, connect_timeout=0.05)
        with pytest.raises(Unavailable, match="did not answer within"):
            asyncio.run(AsyncWireTransport.connect("127.0.0.1", port, connect_timeout=0.05))


@pytest.mark.parametrize(
    "words",
    [
        b"",
        wire.pack(0, wire.GOODBYE, 0, b"\x12\x03bye"),
        wire.pack_header(2**31, 1, 0, 0) + b"x" * 20,
        wire.pack(1, wire.OK)[:7],
    ],
)
def test_a_connection_that_ends_in_a_call_leaves_its_outcome_unknown(words: bytes) -> None:
    with answering(WELCOME, words) as port:
        transport = WireTransport("127.0.0.1", port)
        with pytest.raises(Unavailable):
            transport.call(PUBLISH, b"x", DEADLINE)
        assert not transport.is_usable
        transport.close()

    async def again(port: int) -> None:
        peer = await AsyncWireTransport.connect("127.0.0.1", port)
        with pytest.raises(Unavailable):
            await peer.call(PUBLISH, b"x")
        assert not peer.is_usable
        await peer.close()

    with answering(WELCOME, words) as port:
        asyncio.run(again(port))


# ---------------------------------------------------------------- streams


def backlog(broker: Broker, name: str, number: int, size: int) -> bytes:
    for _ in range(number // 500):
        broker.publish(name, *[b"x" * size] * 500)
    return pb.SubscribeRequest(channel=name, offset=pb.SubscribeRequest.OFFSET_BEGINNING).SerializeToString()


def test_a_stream_that_is_not_read_holds_up_no_call(broker: Broker, transport: WireTransport, name: str) -> None:
    subscribe = backlog(broker, name, 20_000, 1_000)
    items = transport.stream(SUBSCRIBE, subscribe)
    assert pb.Message.FromString(next(items)).offset == 0
    for _ in range(20):
        transport.call(PUBLISH, publish(name), DEADLINE)
    assert [pb.Message.FromString(next(items)).offset for _ in range(20_019)] == list(range(1, 20_020))
    items.close()  # type: ignore[attr-defined]
    broker.wait_for_connections(1)


def test_a_stream_that_is_refused_raises(transport: WireTransport) -> None:
    latest = pb.SubscribeRequest(channel="nosuch", offset=pb.SubscribeRequest.OFFSET_LATEST).SerializeToString()
    with pytest.raises(ChannelNotFound):
        next(transport.stream(SUBSCRIBE, latest))


# ---------------------------------------------------------------- asyncio


@pytest.fixture(params=["asyncio", "uvloop"])
def runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    factory = uvloop.new_event_loop if request.param == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as made:
        yield made


def test_tasks_share_a_connection_beyond_its_window(broker: Broker, runner: asyncio.Runner, name: str) -> None:
    async def work() -> None:
        peer = await AsyncWireTransport.connect("127.0.0.1", broker.port)
        peer.welcome.window = 100
        answers = await asyncio.gather(*(peer.call(PUBLISH, publish(name)) for _ in range(2_000)))
        assert sorted(pb.PublishResponse.FromString(answer).offset for answer in answers) == list(range(2_000))
        futures = [peer.submit(PUBLISH, publish(name)) for _ in range(2_000)]
        assert len(await asyncio.gather(*futures)) == 2_000
        with pytest.raises(ChannelNotFound):
            await peer.call(PUBLISH, publish("nosuch"))
        await peer.close()
        with pytest.raises(Unavailable):
            await peer.call(PUBLISH, publish(name))

    runner.run(work())


def test_a_task_that_is_cancelled_gives_its_call_up(broker: Broker, runner: asyncio.Runner, name: str) -> None:
    async def work() -> None:
        peer = await AsyncWireTransport.connect("127.0.0.1", broker.port)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await peer.call(PULL, waiting_pull(name, group="g", member="m"))
        await peer.call(PUBLISH, publish(name))
        got = pb.PullResponse.FromString(await peer.call(PULL, waiting_pull(name, group="g", member="n")))
        assert got.batches[0].delivery_count == 1
        await peer.close()

    runner.run(work())


def test_what_an_async_callback_does_wrong_does_not_hold_back_the_others(
    broker: Broker, runner: asyncio.Runner, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[bytes | BaseException] = []

    def stumble(_: bytes | BaseException) -> None:
        raise Unavailable("planted")

    async def work() -> None:
        peer = await AsyncWireTransport.connect("127.0.0.1", broker.port)
        for done in (stumble, heard.append):
            peer.send(PUBLISH, publish(name), done)
        assert await peer.call(PUBLISH, publish(name))
        assert peer.is_usable
        for done in (stumble, heard.append):
            peer.send(PULL, waiting_pull("nosuch"), done)
            peer.send(PULL, waiting_pull(name, start=pb.Start(latest=True)), done)
        with pytest.raises(ChannelNotFound):
            await peer.call(PUBLISH, publish("nosuch"))
        await peer.close()

    runner.run(work())
    assert [type(each) for each in heard] == [bytes, ChannelNotFound, Unavailable]
    assert sum("the callback of an answer failed" in each.message for each in caplog.records) == 3


def test_a_call_that_is_given_up_in_line_never_leaves(broker: Broker, runner: asyncio.Runner, name: str) -> None:
    async def work() -> None:
        peer = await AsyncWireTransport.connect("127.0.0.1", broker.port)
        peer.welcome.window = 1
        first = peer.submit(PULL, waiting_pull(name))
        given_up, last = peer.submit(PUBLISH, publish("nosuch")), peer.submit(PUBLISH, publish(name))
        given_up.cancel()
        async with asyncio.TaskGroup() as group:
            other = await AsyncWireTransport.connect("127.0.0.1", broker.port)
            group.create_task(other.call(PUBLISH, publish(name)))
        await first
        assert pb.PublishResponse.FromString(await last).offset == 1
        await peer.close()
        await other.close()

    runner.run(work())


def test_an_async_stream_that_is_not_read_is_not_hoarded(broker: Broker, runner: asyncio.Runner, name: str) -> None:
    subscribe = backlog(broker, name, 20_000, 1_000)

    async def work() -> None:
        peer = await AsyncWireTransport.connect("127.0.0.1", broker.port)
        items = peer.stream(SUBSCRIBE, subscribe)
        assert pb.Message.FromString(await anext(items)).offset == 0
        for _ in range(50):
            await peer.call(PUBLISH, publish(name))
        held = items.ag_frame.f_locals["items"]._bytes  # type: ignore[attr-defined]
        assert held < 2 * STREAM_BYTES
        offsets = [pb.Message.FromString(await anext(items)).offset for _ in range(20_000)]
        assert offsets == list(range(1, 20_001))
        await items.aclose()  # type: ignore[attr-defined]
        await peer.close()

    runner.run(work())
    broker.wait_for_connections(0)


def test_an_async_stream_ends_with_its_server(runner: asyncio.Runner) -> None:
    async def work(port: int) -> None:
        peer = await AsyncWireTransport.connect("127.0.0.1", port)
        with pytest.raises(MqError):
            await anext(peer.stream(SUBSCRIBE, b""))
        await peer.close()

    with wire_broker("uvloop") as broker:
        runner.run(work(broker.port))
