"""Clients of the first mq broker, unmodified: its three calls, spoken in bytes written here by hand.

Nothing in this file comes from our own definition or generated code. Field numbers, paths and status codes are those
that the old clients were built with.
"""

import itertools
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from mq.testing import Running, broker

BEGINNING, LATEST = 1, 2
DEADLINE = 30.0


# ---------------------------------------------------------------- protobuf, by hand


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def text(number: int, value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return bytes([number << 3 | 2]) + varint(len(data)) + data


def number(field: int, value: int) -> bytes:
    return bytes([field << 3]) + varint(value)


class OldMessage(NamedTuple):
    id: str
    content: bytes
    created_at: int


def old_message(data: bytes) -> OldMessage:
    """Reads the three fields that old clients know, and steps over all others as they do."""
    fields: dict[int, int | bytes] = {}
    at = 0

    def read() -> int:
        nonlocal at
        value = shift = 0
        while True:
            value |= (data[at] & 127) << shift
            shift += 7
            at += 1
            if data[at - 1] < 128:
                return value

    while at < len(data):
        tag = read()
        if tag & 7 == 2:
            size = read()
            fields[tag >> 3] = data[at : at + size]
            at += size
        else:
            assert tag & 7 == 0
            fields[tag >> 3] = read()
    id_, content, created = fields[1], fields.get(2, b""), fields[3]
    assert isinstance(id_, bytes)
    assert isinstance(content, bytes)
    assert isinstance(created, int)
    return OldMessage(id_.decode(), content, created)


# ---------------------------------------------------------------- an old client


class OldClient:
    def __init__(self, address: str) -> None:
        # its own connection, as a process of its own would have
        self.channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])

    def create(self, name: str) -> None:
        self.channel.unary_unary("/mq.MQService/CreateChannel")(text(1, name), timeout=DEADLINE)

    def publish(self, name: str, content: bytes) -> None:
        self.channel.unary_unary("/mq.MQService/Publish")(text(1, name) + text(2, content), timeout=DEADLINE)

    def publish_many(self, name: str, contents: Iterator[bytes]) -> None:
        """One after the other: calls that overlap have no order among themselves."""
        for content in contents:
            self.publish(name, content)

    def publish_overlapping(self, name: str, contents: Iterator[bytes]) -> None:
        call = self.channel.unary_unary("/mq.MQService/Publish")
        pending = []
        for content in contents:
            pending.append(call.future(text(1, name) + text(2, content), timeout=DEADLINE))
            if len(pending) == 64:
                pending.pop(0).result()
        for each in pending:
            each.result()

    def subscribe(self, name: str, offset: int, interval: int = 0) -> Any:
        request = text(1, name) + number(2, offset) + number(3, interval)
        return self.channel.unary_stream("/mq.MQService/Subscribe")(request, timeout=DEADLINE)

    def read(self, name: str, count: int, offset: int = BEGINNING, interval: int = 0) -> list[OldMessage]:
        stream = self.subscribe(name, offset, interval)
        messages = [old_message(next(stream)) for _ in range(count)]
        stream.cancel()
        return messages

    def status_of(self, method: str, request: bytes) -> grpc.StatusCode:
        if method == "Subscribe":
            call = self.channel.unary_stream("/mq.MQService/Subscribe")(request, timeout=DEADLINE)
            with pytest.raises(grpc.RpcError) as caught:
                next(call)
        else:
            with pytest.raises(grpc.RpcError) as caught:
                self.channel.unary_unary(f"/mq.MQService/{method}")(request, timeout=DEADLINE)
        return caught.value.code()


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    with broker() as started:
        yield started


@pytest.fixture
def client(running: Running) -> Iterator[OldClient]:
    made = OldClient(running.address)
    with made.channel:
        yield made


_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    return f"old-{next(_numbers)}"


def numbered(count: int) -> Iterator[bytes]:
    return (b"message %d" % index for index in range(count))


# ---------------------------------------------------------------- create and publish


def test_creating_a_channel_twice_is_no_error(client: OldClient, name: str) -> None:
    client.create(name)
    client.create(name)


def test_what_is_published_arrives_with_id_content_and_time(client: OldClient, name: str) -> None:
    client.create(name)
    before = int(time.time())
    client.publish(name, b"hello \x00\xff")
    (message,) = client.read(name, 1)
    assert message.content == b"hello \x00\xff"
    assert message.id
    assert before <= message.created_at <= time.time()


@pytest.mark.parametrize(
    ("method", "request_", "status"),
    [
        ("CreateChannel", b"", grpc.StatusCode.INVALID_ARGUMENT),
        ("CreateChannel", text(1, ""), grpc.StatusCode.INVALID_ARGUMENT),
        ("Publish", text(1, "old-nowhere") + text(2, b"x"), grpc.StatusCode.FAILED_PRECONDITION),
        ("Publish", text(2, b"x"), grpc.StatusCode.INVALID_ARGUMENT),
        ("Publish", text(1, "old-nowhere"), grpc.StatusCode.INVALID_ARGUMENT),
        ("Publish", text(1, "old-nowhere") + text(2, b""), grpc.StatusCode.INVALID_ARGUMENT),
        ("Subscribe", text(1, "old-nowhere") + number(2, BEGINNING), grpc.StatusCode.FAILED_PRECONDITION),
        ("Subscribe", number(2, BEGINNING), grpc.StatusCode.INVALID_ARGUMENT),
        ("Subscribe", text(1, "old-nowhere"), grpc.StatusCode.INVALID_ARGUMENT),
        ("Subscribe", text(1, "old-nowhere") + number(2, 0), grpc.StatusCode.INVALID_ARGUMENT),
        ("Subscribe", text(1, "old-nowhere") + number(2, 3), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_refusals_keep_their_status(client: OldClient, method: str, request_: bytes, status: grpc.StatusCode) -> None:
    assert client.status_of(method, request_) == status


# ---------------------------------------------------------------- subscribe


@pytest.mark.parametrize("count", [0, 1, 499, 500, 501, 1_001])
def test_a_backlog_arrives_once_and_in_order_at_any_interval(client: OldClient, name: str, count: int) -> None:
    client.create(name)
    client.publish_many(name, numbered(count))
    expected = list(numbered(count))
    for interval in (0, 1, 100):
        stream = client.subscribe(name, BEGINNING, interval)
        got = [old_message(next(stream)).content for _ in expected]
        client.publish(name, b"the one after")
        expected.append(b"the one after")
        assert [*got, old_message(next(stream)).content] == expected
        stream.cancel()


def test_a_long_backlog_drains_at_full_speed(client: OldClient, name: str) -> None:
    client.create(name)
    # published in batches, which old clients can't; it is the reading that counts here
    for first in range(0, 25_000, 500):
        messages = b"".join(text(1, text(1, b"message %d" % index)) for index in range(first, first + 500))
        request = text(1, name) + text(15, messages)
        client.channel.unary_unary("/mq.MQService/PublishBatch")(request, timeout=DEADLINE)
    begin = time.monotonic()
    got = client.read(name, 25_000, interval=1_000)
    # 500 per interval, as the first broker did it, would take 50 s
    assert time.monotonic() - begin < 25
    assert [message.content for message in got] == list(numbered(25_000))
    assert len({message.id for message in got}) == 25_000


@pytest.mark.parametrize("interval", [0, 1, 100])
def test_latest_starts_at_the_moment_of_the_call(client: OldClient, name: str, interval: int) -> None:
    client.create(name)
    client.publish(name, b"before")
    stream = client.subscribe(name, LATEST, interval)
    stream.initial_metadata()  # the call has arrived
    client.publish(name, b"in the first interval")
    assert old_message(next(stream)).content == b"in the first interval"
    stream.cancel()


def test_a_subscription_never_goes_on_in_another_channel_of_the_same_name(client: OldClient, name: str) -> None:
    client.create(name)
    client.publish(name, b"old")
    stream = client.subscribe(name, BEGINNING, 1_000)
    assert old_message(next(stream)).content == b"old"  # and now it waits for its interval to pass
    client.channel.unary_unary("/mq.AdminService/DeleteChannel")(text(1, name), timeout=DEADLINE)
    client.create(name)
    client.publish_many(name, iter([b"of another", b"of another"]))
    with pytest.raises(grpc.RpcError) as caught:
        next(stream)
    assert caught.value.code() == grpc.StatusCode.FAILED_PRECONDITION


def test_two_subscribers_get_everything_each_under_the_same_ids(client: OldClient, name: str) -> None:
    client.create(name)
    client.publish_many(name, numbered(700))
    first, second = client.subscribe(name, BEGINNING), client.subscribe(name, BEGINNING, 1)
    got = [[old_message(next(stream)) for _ in range(700)] for stream in (first, second)]
    assert got[0] == got[1]
    assert [message.content for message in got[0]] == list(numbered(700))
    assert client.read(name, 700) == got[0]
    for stream in (first, second):
        stream.cancel()


def test_a_channel_that_is_made_again_gives_other_ids(client: OldClient, name: str) -> None:
    client.create(name)
    client.publish(name, b"first life")
    (before,) = client.read(name, 1)
    client.channel.unary_unary("/mq.AdminService/DeleteChannel")(text(1, name), timeout=DEADLINE)
    client.create(name)
    client.publish(name, b"second life")
    (after,) = client.read(name, 1)
    assert before.id != after.id


def test_a_disconnect_in_mid_stream_hurts_nobody(running: Running, client: OldClient, name: str) -> None:
    client.create(name)
    client.publish_many(name, numbered(2_000))
    for count in (0, 1, 250, 499, 500, 501):
        leaver = OldClient(running.address)
        stream = leaver.subscribe(name, BEGINNING)
        for _ in range(count):
            next(stream)
        leaver.channel.close()
    assert [message.content for message in client.read(name, 2_000)] == list(numbered(2_000))


@pytest.mark.parametrize("interval", [2**63 - 1, 2**63, 2**64 - 1])
def test_an_absurd_interval_is_no_danger(client: OldClient, name: str, interval: int) -> None:
    client.create(name)
    client.publish(name, b"x")
    assert [message.content for message in client.read(name, 1, interval=interval)] == [b"x"]
    client.publish(name, b"y")
    assert [message.content for message in client.read(name, 2)] == [b"x", b"y"]


def test_forty_subscribers_wait_on_an_empty_channel(running: Running, client: OldClient, name: str) -> None:
    client.create(name)
    clients = [OldClient(running.address) for _ in range(40)]
    streams = [each.subscribe(name, BEGINNING) for each in clients]
    for stream in streams:
        stream.initial_metadata()
    client.publish(name, b"for all of you")
    assert {old_message(next(stream)).content for stream in streams} == {b"for all of you"}
    for each in clients:
        each.channel.close()
    client.publish(name, b"still here")


def test_subscribers_follow_live_publishing(client: OldClient, name: str) -> None:
    client.create(name)
    publisher = threading.Thread(target=client.publish_overlapping, args=(name, numbered(3_000)))
    stream = client.subscribe(name, BEGINNING, 1)
    publisher.start()
    got = [old_message(next(stream)).content for _ in range(3_000)]
    publisher.join()
    stream.cancel()
    # publishes that overlap have no order among themselves; what counts is once each
    assert sorted(got) == sorted(numbered(3_000))


# ---------------------------------------------------------------- restart and connection


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    with broker(tmp_path) as first:
        client = OldClient(first.address)
        client.create("empty")
        client.create("full")
        client.publish_many("full", numbered(1_001))
        before = client.read("full", 1_001)
        client.channel.close()
    with broker(tmp_path) as second:
        client = OldClient(second.address)
        assert client.read("full", 1_001) == before
        client.publish("empty", b"the channel survived")
        client.publish("full", b"one more")
        assert [message.content for message in client.read("full", 1_002)] == [*numbered(1_001), b"one more"]
        client.channel.close()


@pytest.mark.slow
def test_a_client_that_pings_every_ten_seconds_without_a_call_is_not_cut_off(running: Running) -> None:
    def frame(kind: int, flags: int = 0, payload: bytes = b"") -> bytes:
        return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + bytes(4) + payload

    settings, ping, goaway, is_ack = 4, 6, 7, 1
    seen: list[tuple[int, int, bytes]] = []
    with socket.create_connection(("127.0.0.1", running.port), timeout=DEADLINE) as peer, peer.makefile("rb") as stream:
        peer.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(settings))

        def read_until_pong(payload: bytes) -> None:
            while (ping, is_ack, payload) not in seen:
                head = stream.read(9)
                assert len(head) == 9, "the broker closed the connection"
                body = stream.read(int.from_bytes(head[:3], "big"))
                seen.append((head[3], head[4], body))
                if head[3] == settings and not head[4]:
                    peer.sendall(frame(settings, is_ack))

        for turn in range(4):
            payload = b"ping %03d" % turn
            peer.sendall(frame(ping, 0, payload))
            read_until_pong(payload)
            threading.Event().wait(10.0)  # the time itself is what is tested
    assert goaway not in {kind for kind, _, _ in seen}
