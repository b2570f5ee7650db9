"""The wire door, frame by frame: greeting, calls, streams, cancel, ping, limits, drain."""

import asyncio
from collections.abc import Iterator

import pytest
from litter import litter_of
from wirebroker import LOOPS, Broker, wire_broker
from wirepeer import Closed, Peer, request

from mq import wire
from mq.doors import wire_connection
from mq.doors.listening import listen
from mq.doors.wire import WireDoor
from mq.doors.wire_link import CLOSE_SECONDS, HANDSHAKE_SECONDS, IDLE_SECONDS
from mq.pb import mq_pb2 as pb

LATEST = pb.Start(latest=True)


@pytest.fixture(scope="module", params=LOOPS)
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with wire_broker(request.param) as started:
        yield started


@pytest.fixture
def peer(broker: Broker) -> Iterator[Peer]:
    with Peer(broker.port) as made:
        yield made


@pytest.fixture
def name(broker: Broker) -> str:
    return broker.create()


def error_in(frame: wire.Frame) -> tuple[int, str, str]:
    said = pb.WireError.FromString(frame[3])
    return frame[1], said.reason, said.message


def batch(*contents: bytes) -> pb.Batch:
    return pb.Batch(messages=[pb.BatchMessage(content=content) for content in contents])


def contents(payload: bytes) -> list[bytes]:
    answer = pb.PullResponse.FromString(payload)
    return [message.content for pulled in answer.batches for message in pulled.batch.messages]


# ---------------------------------------------------------------- greeting


def test_a_welcome_tells_the_limits(broker: Broker, peer: Peer) -> None:
    assert peer.welcome.version == wire.VERSION
    assert peer.welcome.window == wire_connection.WINDOW
    assert peer.welcome.max_frame_bytes == broker.door.max_frame_bytes
    assert peer.welcome.start_id == broker.server.start_id
    assert peer.welcome.server.startswith("mq/")


def test_a_newer_client_is_answered_in_our_version(broker: Broker) -> None:
    with Peer(broker.port, is_greeting=False) as peer:
        peer.send(wire.MAGIC, wire.pack(0, wire.HELLO, 0, pb.WireHello(version=99).SerializeToString()))
        peer.take_magic()
        assert pb.WireWelcome.FromString(peer.take()[3]).version == wire.VERSION


def test_an_older_client_is_told_which_versions_there_are(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "OLDEST_VERSION", 2)
    with Peer(broker.port, is_greeting=False) as peer:
        peer.send(wire.MAGIC, wire.pack(0, wire.HELLO, 0, pb.WireHello(version=1).SerializeToString()))
        peer.take_magic()
        assert peer.take_goodbye().message == "version 1 of the wire is too old; the oldest spoken here is 2"


def test_a_greeting_may_come_byte_by_byte(broker: Broker) -> None:
    hello = wire.MAGIC + wire.pack(0, wire.HELLO, 0, pb.WireHello(version=1).SerializeToString())
    with Peer(broker.port, is_greeting=False) as peer:
        for byte in hello:
            peer.send(bytes([byte]))
        peer.take_magic()
        assert peer.take()[1] == wire.WELCOME


# ---------------------------------------------------------------- calls


def test_answers_come_by_id_and_those_that_wait_hold_up_nobody(peer: Peer, name: str) -> None:
    peer.send(
        request(7, "Pull", pb.PullRequest(channel=name, max_wait_ms=15_000)),
        request(8, "Publish", pb.PublishRequest(channel=name, content=b"x")),
    )
    answers = {id_: (code, payload) for id_, code, _, payload in (peer.take(), peer.take())}
    assert answers[8][0] == wire.OK
    assert pb.PublishResponse.FromString(answers[8][1]).offset == 0
    assert contents(answers[7][1]) == [b"x"]


def test_an_unknown_method_is_refused_and_the_connection_goes_on(peer: Peer, name: str) -> None:
    peer.send(wire.pack(1, 4_711, 0, b""))
    assert error_in(peer.take()) == (wire.STATUS["UNIMPLEMENTED"], "InvalidArgument", "there is no method 4711")
    peer.call(2, "Publish", pb.PublishRequest(channel=name, content=b"x"))
    assert peer.take()[:2] == (2, wire.OK)


def test_a_bad_request_is_refused_and_the_connection_goes_on(peer: Peer, name: str) -> None:
    peer.send(request(1, "Publish", b"\xff\xff"), request(2, "Publish", pb.PublishRequest(channel=name, content=b"x")))
    assert error_in(peer.take())[:2] == (wire.STATUS["INVALID_ARGUMENT"], "InvalidArgument")
    assert peer.take()[:2] == (2, wire.OK)


def test_a_call_of_several_frames_is_refused_where_one_is_asked_for(peer: Peer, name: str) -> None:
    for method, message in (("Publish", pb.PublishRequest(channel=name)), ("Subscribe", pb.SubscribeRequest())):
        peer.send(request(1, method, message, wire.MORE))
        assert error_in(peer.take())[:2] == (wire.STATUS["INVALID_ARGUMENT"], "InvalidArgument")


@pytest.mark.parametrize("is_ready_in_time", [True, False])
def test_calls_wait_a_little_for_a_broker_that_is_starting(broker: Broker, name: str, is_ready_in_time: bool) -> None:
    door = broker.door
    service = door.service
    assert service is not None
    door.service, door.is_waiting = None, True
    with Peer(broker.port) as early, Peer(broker.port, is_greeting=False) as silent:
        try:
            early.send(*(request(n, "Publish", pb.PublishRequest(channel=name, content=b"x")) for n in (1, 2)))
            broker.wait_for_connections(2)
            broker.do(lambda: None)  # a turn of the loop, in which they would have been refused
        finally:
            broker.do(lambda: door.serve(service) if is_ready_in_time else door._stop_waiting())
        for number in (1, 2):
            assert early.take()[:2] == (number, wire.OK if is_ready_in_time else wire.STATUS["UNAVAILABLE"])
        door.service = service
        early.call(3, "Publish", pb.PublishRequest(channel=name, content=b"x"))
        assert early.take()[:2] == (3, wire.OK)
        silent.greet()
        silent.call(1, "Publish", pb.PublishRequest(channel=name, content=b"x"))
        assert silent.take()[:2] == (1, wire.OK)


@pytest.mark.parametrize("end", ["time", "drain"])
def test_calls_that_wait_for_a_start_are_refused_in_the_end(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq.doors.wire.START_SECONDS", 0.01 if end == "time" else 1_000.0)

    def ask(port: int) -> tuple[int, str, str]:
        with Peer(port) as peer:
            peer.call(1, "Publish", pb.PublishRequest(channel="x", content=b"x"))
            while True:
                frame = peer.take()
                if frame[0] == 1:
                    return error_in(frame)

    async def main() -> tuple[int, str, str]:
        door = WireDoor(max_request_bytes=1 << 20, server="test", start_id="1")
        await door.open(listen("127.0.0.1", 0))
        asked = asyncio.create_task(asyncio.to_thread(ask, door.port))
        while not any(link._is_greeted for link in door.connections):  # noqa: ASYNC110 - no event tells of a greeting
            await asyncio.sleep(0)
        if end == "drain":
            await door.drain()
        answer = await asked
        await door.drain()
        await door.close(1.0)
        return answer

    assert asyncio.run(main()) == (wire.STATUS["UNAVAILABLE"], "Unavailable", "the broker is starting")


def test_before_the_broker_is_ready_calls_are_unavailable(broker: Broker, peer: Peer) -> None:
    service, broker.door.service = broker.door.service, None
    try:
        peer.call(1, "Publish", pb.PublishRequest(channel="x", content=b"x"))
        assert error_in(peer.take()) == (wire.STATUS["UNAVAILABLE"], "Unavailable", "the broker is starting")
    finally:
        broker.door.service = service


def test_a_cancelled_pull_is_answered_so_and_leases_nothing(broker: Broker, peer: Peer, name: str) -> None:
    peer.call(5, "Pull", pb.PullRequest(channel=name, group="g", member="m", max_wait_ms=15_000))
    peer.send(wire.pack(5, wire.CANCEL))
    assert error_in(peer.take())[:2] == (wire.STATUS["CANCELLED"], "Cancelled")
    broker.publish(name, b"x")
    peer.call(5, "Pull", pb.PullRequest(channel=name, group="g", member="n", max_wait_ms=15_000))
    id_, code, _, payload = peer.take()
    assert (id_, code, contents(payload)) == (5, wire.OK, [b"x"])
    assert pb.PullResponse.FromString(payload).batches[0].delivery_count == 1


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_pull_that_waited_leaves_nothing_to_collect(
    broker: Broker, peer: Peer, name: str, is_cancelled: bool
) -> None:
    """With a cycle for each of them, the collector would halt the broker for milliseconds every few thousand pulls."""

    def pull_often() -> None:
        for id_ in range(2, 12):
            peer.call(id_, "Pull", pb.PullRequest(channel=name, group="g", member="m", max_wait_ms=20_000))
            broker.wait_until(lambda: any(each._pending for each in broker.door.connections))
            if is_cancelled:
                peer.send(wire.pack(id_, wire.CANCEL))
            else:
                broker.publish(name, b"x")
            assert peer.take()[0] == id_

    assert not litter_of(pull_often) & {"_Pull", "_LongPoll", "LongPoll", "Pull", "PullReply"}


def test_a_cancel_of_nothing_changes_nothing(peer: Peer, name: str) -> None:
    peer.send(wire.pack(5, wire.CANCEL), wire.pack(0, wire.CANCEL))
    peer.call(5, "Publish", pb.PublishRequest(channel=name, content=b"x"))
    assert peer.take()[:2] == (5, wire.OK)


def test_a_ping_comes_back_with_its_first_bytes(peer: Peer) -> None:
    peer.send(wire.pack(77, wire.PING, 0, b"hello"), wire.pack(0, wire.PING, 0, b"x" * 100), wire.pack(1, wire.PONG))
    assert peer.take() == (77, wire.PONG, 0, b"hello")
    assert peer.take() == (0, wire.PONG, 0, b"x" * 64)


# ---------------------------------------------------------------- streams


def test_a_subscription_begins_with_an_empty_item_and_ends_with_a_cancel(peer: Peer, name: str) -> None:
    latest = pb.SubscribeRequest(channel=name, offset=pb.SubscribeRequest.OFFSET_LATEST, pull_interval=5)
    peer.send(request(3, "Subscribe", latest))
    assert peer.take() == (3, wire.OK, wire.MORE, b"")
    peer.call(4, "Publish", pb.PublishRequest(channel=name, content=b"news"))
    frames = [peer.take(), peer.take()]
    item = next(frame for frame in frames if frame[0] == 3)
    assert item[1:3] == (wire.OK, wire.MORE)
    assert pb.Message.FromString(item[3]).content == b"news"
    peer.send(wire.pack(3, wire.CANCEL))
    assert error_in(peer.take())[0] == wire.STATUS["CANCELLED"]


def test_a_subscription_that_is_refused_has_one_frame(peer: Peer) -> None:
    peer.call(3, "Subscribe", pb.SubscribeRequest(channel="nosuch", offset=pb.SubscribeRequest.OFFSET_LATEST))
    frame = peer.take()
    assert error_in(frame)[:2] == (wire.STATUS["FAILED_PRECONDITION"], "ChannelNotFound")
    assert not frame[2] & wire.MORE


def test_a_publish_stream_answers_each_batch_in_order_and_ends(peer: Peer, name: str) -> None:
    for number in range(5):
        one = pb.PublishBatchRequest(channel=name if number != 3 else "nosuch", batch=batch(b"%d" % number))
        peer.send(request(9, "PublishStream", one, wire.MORE))
    peer.send(request(9, "PublishStream", b""))
    answers = []
    while (frame := peer.take())[2] & wire.MORE:
        answers.append(pb.PublishBatchResponse.FromString(frame[3]))
    assert frame == (9, wire.OK, 0, b"")
    assert [answer.base_offset for answer in answers if not answer.error] == [0, 1, 2, 3]
    assert answers[3].error_reason == "ChannelNotFound"


def test_a_publish_stream_may_end_with_its_last_batch(peer: Peer, name: str) -> None:
    peer.send(request(9, "PublishStream", pb.PublishBatchRequest(channel=name, batch=batch(b"a"))))
    assert pb.PublishBatchResponse.FromString(peer.take()[3]).count == 1
    assert peer.take() == (9, wire.OK, 0, b"")


def test_streams_are_counted_and_given_back(broker: Broker, name: str) -> None:
    latest = pb.SubscribeRequest(channel=name, offset=pb.SubscribeRequest.OFFSET_LATEST)
    with Peer(broker.port) as peer:
        peer.send(*(request(id_, "Subscribe", latest) for id_ in range(1, 502)))
        refused = [frame for frame in (peer.take() for _ in range(501)) if frame[1] != wire.OK]
        assert [error_in(frame)[:2] for frame in refused] == [(wire.STATUS["RESOURCE_EXHAUSTED"], "ResourceExhausted")]
        peer.send(wire.pack(1, wire.CANCEL), wire.pack(2, wire.CANCEL))
        assert {peer.take()[0], peer.take()[0]} == {1, 2}
        peer.send(request(900, "Subscribe", latest))
        assert peer.take() == (900, wire.OK, wire.MORE, b"")


# ---------------------------------------------------------------- time and limits


def test_a_peer_that_says_nothing_is_sent_away(broker: Broker) -> None:
    with Peer(broker.port, is_greeting=False) as silent:
        broker.wait_for_connections(1)
        now = broker.loop.time()
        broker.do(lambda: [each.check_alive(now + HANDSHAKE_SECONDS + 1) for each in broker.door.connections])
        silent.take_magic()
        assert silent.take_goodbye().message == "no hello came within 5 s"
    broker.wait_for_connections(0)


def test_a_silent_connection_is_pinged_and_then_closed(broker: Broker) -> None:
    with Peer(broker.port) as silent:
        now = broker.loop.time()
        for _ in range(2):
            broker.do(lambda: [each.check_alive(now + IDLE_SECONDS + 1) for each in broker.door.connections])
        assert silent.take() == (0, wire.PING, 0, b"")
        silent.send(wire.pack(1, wire.PING, 0, b"once"))
        assert silent.take() == (1, wire.PONG, 0, b"once")  # one ping and no more
        broker.do(lambda: [each.check_alive(now + 2 * IDLE_SECONDS + 60) for each in broker.door.connections])
        assert "too long" in silent.take_goodbye().message


def test_a_connection_with_a_stream_may_be_silent(broker: Broker, name: str) -> None:
    with Peer(broker.port) as silent:
        silent.call(3, "Subscribe", pb.SubscribeRequest(channel=name, offset=pb.SubscribeRequest.OFFSET_LATEST))
        assert silent.take()[0] == 3
        now = broker.loop.time()
        broker.do(lambda: [each.check_alive(now + 3 * IDLE_SECONDS) for each in broker.door.connections])
        assert silent.take() == (0, wire.PING, 0, b"")


def test_connections_are_limited_in_all_and_by_address(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, text in (("_max_connections", "2 connections are open"), ("_max_per_address", "2 connections from 127")):
        broker.wait_for_connections(0)
        with monkeypatch.context() as patch, Peer(broker.port), Peer(broker.port):
            patch.setattr(broker.door, limit, 2)
            with Peer(broker.port, is_greeting=False) as third:
                third.take_magic()
                said = third.take_goodbye()
                assert said.reason == "ResourceExhausted"
                assert text in said.message
        broker.wait_for_connections(0)
    assert broker.door._addresses == {}


def test_a_window_that_is_ignored_ends_the_connection(
    broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_connection, "WINDOW", 3)
    with Peer(broker.port) as greedy, Peer(broker.port) as other:
        waiting = pb.PullRequest(channel=name, max_wait_ms=15_000)
        greedy.send(*(request(id_, "Pull", waiting) for id_ in range(1, 5)))
        said = greedy.take_goodbye()
        assert (said.reason, said.message) == ("ResourceExhausted", "more than 3 requests are in flight")
        other.call(1, "Publish", pb.PublishRequest(channel=name, content=b"x"))
        assert other.take()[:2] == (1, wire.OK)


def test_a_goodbye_from_the_peer_ends_it(broker: Broker) -> None:
    with Peer(broker.port) as leaver:
        leaver.send(wire.pack(0, wire.GOODBYE))
        assert leaver.wait_for_end() == b""


@pytest.mark.parametrize("loop", LOOPS)
def test_draining_ends_streams_answers_pulls_and_says_goodbye(loop: str) -> None:
    with wire_broker(loop) as broker:
        name = broker.create()
        with Peer(broker.port) as peer, Peer(broker.port) as idle, Peer(broker.port, is_greeting=False):
            latest = pb.SubscribeRequest(channel=name, offset=pb.SubscribeRequest.OFFSET_LATEST)
            peer.send(
                request(1, "Subscribe", latest), request(2, "Pull", pb.PullRequest(channel=name, max_wait_ms=15_000))
            )
            assert peer.take()[0] == 1
            stopping = asyncio.run_coroutine_threadsafe(broker.server.stop(), broker.loop)
            frames = {(frame[0], frame[1]) for frame in (peer.take() for _ in range(3))}
            assert frames == {(0, wire.DRAIN), (1, wire.STATUS["UNAVAILABLE"]), (2, wire.OK)}
            assert peer.take_goodbye().message == "the broker is shutting down"
            assert idle.take_goodbye().reason == "Unavailable"
            assert stopping.result(20)
            with pytest.raises((ConnectionError, Closed)):
                Peer(broker.port)


def test_a_peer_that_does_not_take_its_goodbye_is_cut(broker: Broker, name: str) -> None:
    broker.publish(name, b"x" * (1 << 20))
    broker.wait_for_connections(0)
    with Peer(broker.port, receive_buffer=4_096) as stuck:
        stuck.send(*(request(id_, "Pull", pb.PullRequest(channel=name)) for id_ in range(1, 9)))
        stuck.send(wire.pack(9, 0x8FFF))
        broker.wait_until(lambda: any(each._outbox.unsent_bytes > 1 << 20 for each in broker.door.connections))
        late = broker.loop.time() + CLOSE_SECONDS + 1
        broker.do(lambda: [each.close() for each in broker.door.connections])
        broker.do(lambda: [each.check_alive(late) for each in broker.door.connections])
        broker.wait_for_connections(0)
