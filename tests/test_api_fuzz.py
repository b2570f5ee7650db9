"""Hostile requests to a real broker through both doors: never INTERNAL, never a hang, and its memory comes back."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import grpc
import psutil
import pytest
from hostile import CHANNELS, METHODS, Hostile, may_wait
from process import Process, wait_until
from torture import seed_of_run, sized
from wirepeer import Peer

from mq import wire
from mq.client.wire import WireTransport
from mq.pb import mq_pb2 as pb

CALLS = sized(6_000, 200_000)  # both doors together
ANSWER_SECONDS = 20.0  # longer than any answer takes on a busy machine; nothing waits for it
GROWTH_BYTES = 192 << 20  # a channel of many partitions comes and goes; a leak of 1 KiB a call would be as much
NAMES = {number: name for name, number in wire.STATUS.items()}


class Broker:
    """A real one, and how much of the machine it holds."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.wire_port = self.process.wait_for_port("wire")
        self.grpc_port = self.process.wait_for_port()
        self.measured = psutil.Process(self.process.process.pid)
        self.create_channels()

    def ask(self, method: str, request: Any) -> bytes:
        transport = WireTransport("127.0.0.1", self.wire_port)
        try:
            return transport.call(method, request.SerializeToString(), ANSWER_SECONDS)
        finally:
            transport.close()

    def create_channels(self) -> None:
        for name in CHANNELS:
            self.ask("mq.MQService/CreateChannel", pb.CreateChannelRequest(channel=name, partitions=2))

    def channels(self) -> list[str]:
        answer = self.ask("mq.AdminService/ListChannels", pb.ListChannelsRequest())
        return [info.channel for info in pb.ListChannelsResponse.FromString(answer).channels]

    def empty(self) -> None:
        """Away with all that the calls left behind."""
        for name in self.channels():
            self.ask("mq.AdminService/DeleteChannel", pb.DeleteChannelRequest(channel=name))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    process = Process(tmp_path, STORAGE_MAX_MEMORY_BYTES="16MiB")
    try:
        yield Broker(process)
    finally:
        process.signal(signal.SIGKILL)
        process.wait()


def call_by_wire(broker: Broker, hostile: Hostile, calls: int, seen: Counter[str]) -> float:
    """Bursts of pipelined requests, a connection each. Returns the seconds of the slowest burst."""
    slowest = 0.0
    while calls > 0:
        burst = [hostile.request() for _ in range(min(60, calls))]
        calls -= len(burst)
        waited_for = {at for at, (method, data) in enumerate(burst, 1) if not may_wait(method, data)}
        began = time.monotonic()
        with Peer(broker.wire_port) as peer:
            peer.socket.settimeout(ANSWER_SECONDS)
            peer.send(*(wire.pack(at, wire.METHODS[method], 0, data) for at, (method, data) in enumerate(burst, 1)))
            while waited_for:
                try:
                    id_, code, flags, payload = peer.take()
                except TimeoutError:
                    left = [burst[id_ - 1] for id_ in waited_for]
                    raise AssertionError(f"no answer to {left}: {broker.process.output[-2_000:]}") from None
                assert code < wire.CONTROL, pb.WireError.FromString(payload)
                method, data = burst[id_ - 1]
                seen[NAMES[code]] += not flags & wire.MORE
                assert NAMES[code] not in ("INTERNAL", "UNKNOWN"), f"{method} {data!r}: {payload!r}"
                if code == wire.OK and method.endswith("/Pull"):
                    hostile.learn(payload)
                if not flags & wire.MORE:
                    waited_for.discard(id_)
        slowest = max(slowest, time.monotonic() - began)
    return slowest


def call_by_grpc(broker: Broker, hostile: Hostile, calls: int, seen: Counter[str]) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{broker.grpc_port}") as channel:
        unary = {name: channel.unary_unary(f"/{name}") for name in METHODS}
        subscribe = channel.unary_stream("/mq.MQService/Subscribe")
        stream = channel.stream_stream("/mq.MQService/PublishStream")
        while calls > 0:
            under_way = []
            for _ in range(min(60, calls)):
                method, data = hostile.request()
                calls -= 1
                if method.endswith("/Subscribe"):
                    subscribe(data).cancel()
                elif method.endswith("/PublishStream"):
                    stream(iter([data])).cancel()
                else:
                    under_way.append((method, data, unary[method].future(data, timeout=ANSWER_SECONDS)))
            for method, data, future in under_way:
                if may_wait(method, data):
                    future.cancel()
                    continue
                code = future.code()
                seen[code.name] += 1
                words = f"{method} {data!r}: {code} {future.details()}"
                assert code.name not in ("INTERNAL", "UNKNOWN", "DEADLINE_EXCEEDED"), words


@pytest.mark.slow
@pytest.mark.shows("T5", "mutated requests of every method and raw bytes, through both doors of the real broker")
def test_hostile_calls_are_answered_never_internal_and_leave_no_memory_behind(
    broker: Broker, figures: dict[str, Any]
) -> None:
    figures |= {"seed": seed_of_run(), "calls": CALLS}
    hostile = Hostile(Random(figures["seed"]))
    seen: Counter[str] = Counter()
    pieces, slowest = 10, 0.0
    rss: list[int] = []
    for _ in range(pieces):
        slowest = max(slowest, call_by_wire(broker, hostile, CALLS * 3 // 4 // pieces, seen))
        call_by_grpc(broker, hostile, CALLS // 4 // pieces, seen)
        broker.empty()
        rss.append(broker.measured.memory_info().rss)
        broker.create_channels()
    broker.empty()
    figures |= dict(seen.most_common(4)) | {"MiB after a tenth": rss[0] >> 20, "MiB in the end": rss[-1] >> 20}
    figures["slowest burst of 60"] = f"{slowest:.1f} s"
    assert seen["OK"] > CALLS // 20
    assert seen["INVALID_ARGUMENT"] > CALLS // 20
    assert broker.channels() == []
    assert rss[-1] - rss[0] < GROWTH_BYTES
    assert "Traceback" not in broker.process.output
    broker.process.signal(signal.SIGTERM)
    assert broker.process.wait() == 0


def test_every_method_is_among_the_hostile_requests() -> None:
    hostile = Hostile(Random(1))
    assert {hostile.request()[0] for _ in range(5_000)} == set(METHODS) == set(wire.METHODS)


@pytest.mark.shows("T5", "connections that are opened and say nothing, or half of something, at both doors")
def test_connections_without_number_are_borne_and_given_back(broker: Broker, figures: dict[str, Any]) -> None:
    count = sized(300, 10_000) // 2
    figures["connections"] = 2 * count
    broker.ask("mq.AdminService/ServerInfo", pb.ServerInfoRequest())
    before = broker.measured.num_fds()
    rss = broker.measured.memory_info().rss
    halves = [b"", wire.MAGIC, wire.MAGIC + wire.pack_header(100, 1, 2, 0)]
    starts = [b"", b"PRI * HTTP/2.0\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\0\0"]
    peers: list[Peer] = []
    try:
        for number in range(count):
            for port, words in ((broker.wire_port, halves), (broker.grpc_port, starts)):
                peers.append(Peer(port, is_greeting=False))
                peers[-1].send(words[number % len(words)])
        broker.ask("mq.MQService/Publish", pb.PublishRequest(channel=CHANNELS[0], content=b"others are served"))
        figures["MiB more"] = (broker.measured.memory_info().rss - rss) >> 20
    finally:
        for peer in peers:
            peer.socket.close()
    wait_until(lambda: broker.measured.num_fds() <= before + 5, 60)
    broker.ask("mq.MQService/Publish", pb.PublishRequest(channel=CHANNELS[0], content=b"still"))


# ------------------------------------------------------------ HTTP/2, by hand

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, RST_STREAM, SETTINGS, PING, CONTINUATION = 1, 3, 4, 6, 9


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header field as HPACK writes it without any table."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call_headers(path: bytes = b"/mq.MQService/Publish") -> bytes:
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"x")]
    return b"".join(literal(*each) for each in [*fields, (b"content-type", b"application/grpc"), (b"te", b"trailers")])


def other_calls_work(broker: Broker) -> bool:
    with grpc.insecure_channel(f"127.0.0.1:{broker.grpc_port}") as channel:
        request = pb.PublishRequest(channel=CHANNELS[0], content=b"x").SerializeToString()
        return bool(channel.unary_unary("/mq.MQService/Publish")(request, timeout=ANSWER_SECONDS))


@pytest.mark.shows("T5", "HTTP/2 abuse by hand: rapid resets, endless headers, floods of settings and pings")
def test_abuse_of_http2_hurts_nobody_else(broker: Broker, figures: dict[str, Any]) -> None:
    resets = figures["resets"] = sized(3_000, 200_000)
    pings = figures["pings and settings"] = sized(2_000, 100_000)
    before = broker.measured.num_fds()
    abuses = [
        rapid_resets(resets),
        frame(HEADERS, 0, 1, call_headers()) + frame(CONTINUATION, 0, 1, literal(b"a", b"b" * 100)) * 5_000,
        b"".join(frame(PING, 0, 0, bytes(8)) + frame(SETTINGS, 0, 0) for _ in range(pings)),
        frame(HEADERS, 4, 1, call_headers(b"/mq.MQService/" + b"x" * 100)) * 50,
        b"\xff" * 100_000,
    ]
    for abuse in abuses:
        with Peer(broker.grpc_port, is_greeting=False) as peer:
            inflict(peer, abuse)
            assert other_calls_work(broker)
    wait_until(lambda: broker.measured.num_fds() <= before + 5, 60)


def test_calls_that_are_opened_and_reset_cancel_nobody_elses(broker: Broker) -> None:
    """Those that wait to be taken are more than gRPC keeps by default before it cancels some, whosever they are."""
    for _ in range(5):
        with Peer(broker.grpc_port, is_greeting=False) as peer:
            inflict(peer, rapid_resets(3_000))
            assert other_calls_work(broker)


def rapid_resets(count: int) -> bytes:
    return b"".join(
        frame(HEADERS, 4, stream, call_headers()) + frame(RST_STREAM, 0, stream, b"\0\0\0\x08")
        for stream in range(1, 2 * count, 2)
    )


def inflict(peer: Peer, abuse: bytes) -> None:
    try:
        peer.send(PREFACE + frame(SETTINGS, 0, 0))
        for at in range(0, len(abuse), 1 << 16):
            peer.send(abuse[at : at + (1 << 16)])
            drop_answers(peer)
    except ConnectionError:
        pass  # it was cut off, as it should be


def drop_answers(peer: Peer) -> None:
    peer.socket.setblocking(False)
    try:
        while peer.socket.recv(1 << 16):
            pass
    except BlockingIOError:
        pass
    finally:
        peer.socket.settimeout(ANSWER_SECONDS)


def test_headers_that_come_byte_by_byte_hold_up_nobody(broker: Broker) -> None:
    with Peer(broker.grpc_port, is_greeting=False) as slow:
        whole = PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 4, 1, call_headers())
        for at, byte in enumerate(whole[:-1]):
            slow.send(bytes([byte]))
            if at % 100 == 0:
                assert other_calls_work(broker)
        assert other_calls_work(broker)
