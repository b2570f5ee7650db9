"""Peers that break the rules, or take their time: the broker stays within its memory and serves everybody else."""

import random
import socket
import threading
from collections.abc import Iterator

import pytest
from torture import seed_of_run, sized
from wirebroker import LOOPS, Broker, wire_broker
from wirepeer import HELLO, Closed, Peer, request

from mq import wire
from mq.doors.wire_outbox import HIGH_WATER_BYTES
from mq.pb import mq_pb2 as pb

LIVE_FRAMES = sized(5_000, 50_000)


@pytest.fixture(scope="module", params=LOOPS)
def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with wire_broker(request.param) as started:
        yield started


@pytest.fixture
def name(broker: Broker) -> str:
    return broker.create()


@pytest.fixture(autouse=True)
def _others_are_untouched(broker: Broker, name: str, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A connection that was open all the time works as before, and nothing is left of the others."""
    with Peer(broker.port) as other:
        yield
        other.call(1, "Publish", pb.PublishRequest(channel=name, content=b"x"))
        assert other.take()[:2] == (1, wire.OK)
        broker.wait_for_connections(1)
        assert broker.door._held_bytes == 0
    broker.wait_for_connections(0)
    assert not [each for each in caplog.records if each.name == "asyncio" and each.levelname == "ERROR"]


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"gRPC is served on another port"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 400 Bad Request"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"without TLS"),
        (b"PING\r\n", b"not what you sent"),
        (b"mqwire\n\n" + HELLO, b"not what you sent"),
        (b"\0" * 64, b"not what you sent"),
        (b"x", b"not what you sent"),
    ],
)
def test_whoever_speaks_something_else_is_told_so(broker: Broker, start: bytes, words: bytes) -> None:
    with Peer(broker.port, is_greeting=False) as stranger:
        stranger.send(start)
        said = stranger.wait_for_end()
        assert words in said
        assert b"this port speaks the mq wire" in said


PUBLISH = wire.METHODS["mq.MQService/Publish"]


@pytest.mark.parametrize(
    ("data", "reason", "words"),
    [
        (wire.pack(0, wire.HELLO, 0, b""), "InvalidArgument", "names a version"),
        (wire.pack(0, wire.HELLO, 0, b"\xff\xff\xff"), "InvalidArgument", "begins with a hello"),
        (wire.pack(1, PUBLISH, 0, b""), "InvalidArgument", "begins with a hello"),
        (HELLO + HELLO, "InvalidArgument", "no control code 0x8000"),
        (HELLO + wire.pack(0, 0x8123), "InvalidArgument", "no control code 0x8123"),
        (HELLO + wire.pack(0, PUBLISH), "InvalidArgument", "an id other than 0"),
        (HELLO + wire.pack_header(2**32 - 1, 1, PUBLISH, 0), "InvalidArgument", "4294967295 bytes"),
        (HELLO + wire.pack_header(2**31, 1, PUBLISH, 0) + b"x" * 50, "InvalidArgument", "2147483648 bytes"),
        (wire.pack_header(5 << 20, 0, wire.HELLO, 0), "InvalidArgument", "are allowed"),
    ],
)
def test_a_broken_rule_is_named_and_ends_the_connection(broker: Broker, data: bytes, reason: str, words: str) -> None:
    with Peer(broker.port, is_greeting=False) as peer:
        peer.send(wire.MAGIC, data)
        peer.take_magic()
        said = peer.take_goodbye()
        assert said.reason == reason
        assert words in said.message


def test_an_id_that_is_in_flight_ends_the_connection(broker: Broker, name: str) -> None:
    waiting = request(1, "Pull", pb.PullRequest(channel=name, max_wait_ms=15_000))
    with Peer(broker.port) as peer:
        peer.send(waiting, waiting)
        assert peer.take_goodbye().message == "request 1 is in flight already"


def test_a_stream_goes_on_only_with_its_own_method(broker: Broker, name: str) -> None:
    with Peer(broker.port) as peer:
        peer.send(request(1, "PublishStream", b"", wire.MORE), request(1, "Publish", b""))
        assert peer.take_goodbye().message == "request 1 is in flight already"


def test_a_truncated_frame_is_forgotten_with_its_connection(broker: Broker, name: str) -> None:
    whole = request(1, "Publish", pb.PublishRequest(channel=name, content=b"x" * 100_000))
    for size in (1, 11, 12, 13, 70_000, len(whole) - 1):
        with Peer(broker.port) as peer:
            peer.send(whole[:size])
            if size > 12:
                broker.wait_until(lambda: broker.door._held_bytes > 0)
        broker.wait_until(lambda: broker.door._held_bytes == 0)


def test_unfinished_requests_have_a_budget(broker: Broker, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker.door, "_max_held_bytes", 300_000)
    whole = request(1, "Publish", pb.PublishRequest(channel=name, content=b"x" * 200_000))
    with Peer(broker.port) as first, Peer(broker.port) as second:
        first.send(whole[:150_000])
        broker.wait_until(lambda: broker.door._held_bytes >= 150_000)
        second.send(whole[:150_000])
        assert second.take_goodbye().reason == "ResourceExhausted"
        first.send(whole[150_000:])
        assert first.take()[:2] == (1, wire.OK)


def test_a_request_may_come_byte_by_byte(broker: Broker, name: str) -> None:
    with Peer(broker.port) as slow:
        for byte in request(1, "Publish", pb.PublishRequest(channel=name, content=b"x" * 50)):
            slow.send(bytes([byte]))
        assert slow.take()[:2] == (1, wire.OK)


def test_a_hundred_thousand_tiny_frames_are_answered_in_order(broker: Broker) -> None:
    pings = b"".join(wire.pack(id_, wire.PING) for id_ in range(100_000))
    with Peer(broker.port) as peer:
        sender = threading.Thread(target=peer.send, args=(pings,))
        sender.start()
        for id_ in range(100_000):
            assert peer.take() == (id_, wire.PONG, 0, b"")
        sender.join()


def test_a_peer_that_does_not_read_is_not_read_from(broker: Broker, name: str) -> None:
    """It asks for far more than it reads: what waits for it stays bounded, and in the end all of it comes."""
    broker.publish(name, *[b"x" * 1_000] * 500)
    pull = pb.PullRequest(channel=name, partition=0, max_messages=500)
    number = 400
    with Peer(broker.port, receive_buffer=16_384) as stuck:
        sender = threading.Thread(
            target=stuck.send, args=(b"".join(request(id_, "Pull", pull) for id_ in range(1, number + 1)),)
        )
        sender.start()
        broker.wait_until(lambda: any(each._holds for each in broker.door.connections))
        unsent = broker.do(lambda: max(each._outbox.unsent_bytes for each in broker.door.connections))
        assert HIGH_WATER_BYTES < unsent < 4 * HIGH_WATER_BYTES
        with Peer(broker.port) as other:
            other.call(1, "Publish", pb.PublishRequest(channel=name, content=b"x"))
            assert other.take()[:2] == (1, wire.OK)
        unsent = broker.do(lambda: max(each._outbox.unsent_bytes for each in broker.door.connections))
        assert unsent < 4 * HIGH_WATER_BYTES
        assert [stuck.take()[0] for _ in range(number)] == list(range(1, number + 1))
        sender.join()


def test_a_subscriber_that_does_not_read_is_waited_for(broker: Broker, name: str) -> None:
    for _ in range(20):
        broker.publish(name, *[b"x" * 1_000] * 500)
    with Peer(broker.port, receive_buffer=16_384) as stuck:
        stuck.call(1, "Subscribe", pb.SubscribeRequest(channel=name, offset=pb.SubscribeRequest.OFFSET_BEGINNING))
        broker.wait_until(lambda: any(each._holds for each in broker.door.connections))
        unsent = broker.do(lambda: max(each._outbox.unsent_bytes for each in broker.door.connections))
        assert unsent < 4 * HIGH_WATER_BYTES
        items = [stuck.take() for _ in range(10_001)]
        assert [pb.Message.FromString(item[3]).offset for item in items[1:]] == list(range(10_000))


def test_a_publish_stream_that_runs_ahead_is_held_and_then_goes_on(broker: Broker, name: str) -> None:
    one = pb.PublishBatchRequest(channel=name, batch=pb.Batch(messages=[pb.BatchMessage(content=b"x" * 10_000)]))
    frames = [request(1, "PublishStream", one, wire.MORE)] * 3_000
    with Peer(broker.port, receive_buffer=16_384) as eager:
        sender = threading.Thread(target=eager.send, args=(*frames, request(1, "PublishStream", b"")))
        sender.start()
        offsets = [pb.PublishBatchResponse.FromString(eager.take()[3]).base_offset for _ in range(3_000)]
        assert offsets == list(range(3_000))
        assert eager.take() == (1, wire.OK, 0, b"")
        sender.join()


def test_leases_that_never_left_go_to_another_member(broker: Broker, name: str) -> None:
    broker.publish(name, *[b"x" * 1_000] * 400)
    for _ in range(19):
        broker.publish(name, *[b"y" * 1_000] * 400)
    pull = pb.PullRequest(channel=name, group="g", member="gone", max_messages=400)
    with Peer(broker.port, receive_buffer=16_384) as stuck:
        stuck.send(*(request(id_, "Pull", pull) for id_ in range(1, 21)))
        broker.wait_until(lambda: any(each._holds for each in broker.door.connections))
    broker.wait_for_connections(1)
    got = 0
    with Peer(broker.port) as here:
        for id_ in range(1, 40):
            here.call(id_, "Pull", pb.PullRequest(channel=name, group="g", member="here", max_messages=400))
            answer = pb.PullResponse.FromString(here.take()[3])
            assert {pulled.delivery_count for pulled in answer.batches} <= {1}
            got += sum(len(pulled.batch.messages) for pulled in answer.batches)
    # All but what the operating system had taken for the one that is gone: its buffers are a few MiB at most.
    assert got >= 8_000 - 5_000
    assert got % 400 == 0


def test_a_peer_that_lets_answers_pile_up_is_cut(broker: Broker, name: str) -> None:
    """Its pulls were waiting, so nothing can be held back when they are all answered at once."""
    pull = pb.PullRequest(channel=name, max_wait_ms=60_000)
    with Peer(broker.port, receive_buffer=16_384) as stuck:
        stuck.send(*(request(id_, "Pull", pull) for id_ in range(1, 41)))
        broker.wait_until(lambda: any(each._connection.long_polls == 40 for each in broker.door.connections))
        broker.publish(name, b"x" * (3 << 20))
        broker.wait_for_connections(1)


PROBE = 2**32 - 7


def check_answers(peer: Peer) -> None:
    """Whatever comes back until the connection ends: words for a stranger, else frames, and never INTERNAL."""
    if not peer.welcome.version:
        words = peer.wait_for_end()
        assert not words or words.startswith((wire.MAGIC, b"mq: this port", b"HTTP/1.1 400"))
        return
    try:
        while True:
            assert peer.take()[1] != wire.STATUS["INTERNAL"]
    except Closed:
        pass


def fuzz(broker: Broker, name: str, frames: int, seed: int) -> int:
    """Mutated frames to a live broker; returns how many connections they took."""
    rng = random.Random(seed)
    good = [
        request(3, "Publish", pb.PublishRequest(channel=name, content=b"x" * 30)),
        request(4, "Pull", pb.PullRequest(channel=name, max_messages=2, group="g", member="m")),
        request(5, "PublishBatch", pb.PublishBatchRequest(channel=name, batch=pb.Batch(messages=[pb.BatchMessage()]))),
        request(6, "PublishStream", pb.PublishBatchRequest(channel=name), wire.MORE),
        request(7, "Subscribe", pb.SubscribeRequest(channel=name, offset=pb.SubscribeRequest.OFFSET_LATEST)),
        wire.pack(8, wire.CANCEL),
        wire.pack(9, wire.PING, 0, b"x" * 20),
        wire.MAGIC + HELLO,
    ]
    connections = sent = 0
    while sent < frames:
        with Peer(broker.port, is_greeting=rng.random() < 0.8) as peer:
            connections += 1
            chosen = [rng.choice(good) for _ in range(rng.randint(1, 30))]
            burst = bytearray(b"".join(chosen))
            sent += len(chosen)
            for _ in range(rng.randint(0, 6)):
                burst[rng.randrange(len(burst))] = rng.randrange(256)
            try:
                peer.send(bytes(burst[: rng.randint(1, len(burst))]), wire.pack(PROBE, wire.PING))
                peer.socket.shutdown(socket.SHUT_WR)
                check_answers(peer)
            except ConnectionError:
                pass
    return connections


@pytest.mark.shows("T5", "mutated frames of the wire to a live broker, on both event loops")
def test_mutated_frames_never_hurt_a_live_broker(broker: Broker, name: str, figures: dict[str, int]) -> None:
    figures |= {"seed": seed_of_run(), "frames": LIVE_FRAMES}
    figures["connections"] = fuzz(broker, name, LIVE_FRAMES, figures["seed"])
    assert figures["connections"] > 0
