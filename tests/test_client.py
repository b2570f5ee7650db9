"""The client for threads against a real broker: publishing, reading, administration, and what it says when it can't."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from process import wait_until

import mq
from mq.client import address
from mq.client.address import Address
from mq.testing import broker

DEADLINE = 30.0


@pytest.fixture(scope="module", params=["wire", "grpc"])
def client(request: pytest.FixtureRequest) -> Iterator[mq.Client]:
    with broker(LOG_LEVEL="ERROR") as running:
        where = str(running) if request.param == "wire" else f"grpc://{running.address}"
        with mq.Client(where) as made:
            yield made


@pytest.fixture
def channel(client: mq.Client, request: pytest.FixtureRequest) -> str:
    """A channel of this test's own."""
    name = "".join(each if each.isalnum() else "-" for each in request.node.name)[-100:].strip("-")
    client.create_channel(name)
    return name


def contents(client: mq.Client, channel: str) -> list[bytes]:
    return [message.content for message in client.read(channel, follow=False)]


# ---------------------------------------------------------------- publishing


def test_a_publish_answers_where_the_message_is(client: mq.Client, channel: str) -> None:
    begin = datetime.now(UTC) - timedelta(seconds=1)
    first, second = client.publish(channel, b"a"), client.publish(channel, b"b")
    assert (first.channel, first.partition, first.offset, second.offset) == (channel, 0, 0, 1)
    assert begin < first.timestamp <= second.timestamp < datetime.now(UTC) + timedelta(seconds=1)
    assert first.durable == "memory"
    assert contents(client, channel) == [b"a", b"b"]


def test_text_and_json_get_a_content_type_and_bytes_get_none(client: mq.Client, channel: str) -> None:
    for value in (b"raw", bytearray(b"array"), "text ü", {"a": [1, None]}, ["x"], 7):
        client.publish(channel, value)
    raw, array, text, mapping, listing, number = client.read(channel, follow=False)
    assert (raw.value, raw.headers, array.value) == (b"raw", {}, b"array")
    assert (text.text(), text.headers) == ("text ü", {"content-type": "text/plain; charset=utf-8"})
    assert mapping.json() == {"a": [1, None]}
    assert mapping.headers == {"content-type": "application/json"}
    assert (listing.json(), number.json()) == (["x"], 7)


def test_keys_and_headers_come_back_as_they_went(client: mq.Client, channel: str) -> None:
    client.publish(channel, b"v", key="c-42", headers={"source": "web", "blob": b"\xff\x00"})
    client.publish(channel, b"v", key=b"", headers={"content-type": "mine"})
    client.publish(channel, "text", headers={"content-type": "mine"})
    first, second, third = client.read(channel, follow=False)
    assert (first.key, first.raw_headers) == (b"c-42", [("source", b"web"), ("blob", b"\xff\x00")])
    assert first.headers["blob"].encode(errors="surrogateescape") == b"\xff\x00"
    assert (second.key, third.key) == (b"", None)
    assert third.headers == {"content-type": "mine"}


def test_threads_that_publish_at_once_share_requests_and_each_gets_its_own_offset(
    client: mq.Client, channel: str
) -> None:
    def publish(number: int) -> list[tuple[int, bytes]]:
        values = [b"%d-%d" % (number, turn) for turn in range(20)]
        return [(client.publish(channel, value).offset, value) for value in values]

    with ThreadPoolExecutor(64) as pool:
        answers = dict(answer for answers in pool.map(publish, range(64)) for answer in answers)
    stored = contents(client, channel)
    assert len(stored) == 64 * 20
    assert [answers[offset] for offset in range(len(stored))] == stored


def test_one_bad_message_of_a_shared_request_spoils_no_other(client: mq.Client, channel: str) -> None:
    large = b"x" * (5 << 20)
    barrier = threading.Barrier(9)

    def publish(value: bytes) -> Any:
        barrier.wait(DEADLINE)
        try:
            return client.publish(channel, value).offset
        except mq.InvalidArgument as error:
            return error

    with ThreadPoolExecutor(9) as pool:
        results = list(pool.map(publish, [b"a", b"b", large, b"c", b"d", b"e", b"f", b"g", b"h"]))
    assert isinstance(results[2], mq.InvalidArgument)
    assert sorted(result for result in results if isinstance(result, int)) == list(range(8))


def test_a_delayed_message_has_no_offset_and_comes_later(client: mq.Client, channel: str) -> None:
    later = client.publish(channel, b"later", delay_ms=300)
    client.publish(channel, b"now")
    assert later.schedule_id
    never = client.publish(channel, b"never", delay_ms=100)
    client.cancel_schedule(channel, never.schedule_id)
    with pytest.raises(mq.ScheduleNotFound):
        client.cancel_schedule(channel, never.schedule_id)
    reader = iter(client.read(channel))
    assert [next(reader).content, next(reader).content] == [b"now", b"later"]


def test_a_key_goes_to_its_partition_and_answers_name_it(client: mq.Client) -> None:
    name = f"partitioned-{id(client)}"
    client.create_channel(name, partitions=4)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda number: client.publish(name, b"%d" % number, key=str(number % 7)), range(70)))
    places = {(answer.partition, answer.offset): b"%d" % number for number, answer in enumerate(answers)}
    assert len(places) == 70
    for message in client.read(name, follow=False):
        assert places[message.partition, message.offset] == message.content
    assert client.publish(name, b"x", partition=3).partition == 3


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda client: client.publish("no-such", b"x"), mq.ChannelNotFound),
        (lambda client: client.publish("bad name", b"x"), mq.InvalidArgument),
        (lambda client: client.describe_channel("no-such"), mq.ChannelNotFound),
        (lambda client: client.producer("no-such"), mq.ChannelNotFound),
        (lambda client: client.consumer("no-such", "g"), mq.ChannelNotFound),
        (lambda client: list(client.read("no-such", follow=False)), mq.ChannelNotFound),
        (lambda client: client.read("x", start="middle"), mq.InvalidArgument),
        (lambda client: client.publish("x", b"x", durability="tape"), mq.InvalidArgument),
        (lambda client: client.publish("x", b"x", key=7), TypeError),
        (lambda client: client.publish("x", object()), TypeError),
    ],
)
def test_what_is_wrong_is_raised_as_its_class(client: mq.Client, act: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        act(client)


def test_making_a_channel_twice_is_an_error_unless_that_is_fine(client: mq.Client, channel: str) -> None:
    with pytest.raises(mq.ChannelExists):
        client.create_channel(channel)
    assert client.create_channel(channel, exist_ok=True) is False


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("scheme", ["mq", "grpc"])
def test_a_wrong_address_is_one_clear_error(scheme: str) -> None:
    port = closed_port()
    with pytest.raises(mq.Unavailable, match=f"127.0.0.1:{port}"):
        mq.Client(f"{scheme}://127.0.0.1:{port}", connect_timeout=0.5)


def test_of_several_addresses_the_first_that_answers_is_used(mq_broker: str) -> None:
    with mq.Client(f"mq://127.0.0.1:{closed_port()},{mq_broker}") as client:
        assert client.create_channel("c")


def test_a_closed_client_says_so(mq_broker: str) -> None:
    client = mq.Client(mq_broker)
    client.close()
    client.close()
    with pytest.raises(mq.Unavailable, match="closed"):
        client.publish("x", b"x")


def test_the_wire_to_a_grpc_port_says_what_to_write(client: mq.Client) -> None:
    with broker(LOG_LEVEL="ERROR") as running, pytest.raises(mq.InvalidArgument, match="grpc://"):
        mq.Client(f"mq://{running.address}")


def test_without_a_port_the_wire_is_tried_first_then_grpc_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    with broker(LOG_LEVEL="ERROR", SERVER_WIRE_PORT="0") as running:
        monkeypatch.setattr(address, "WIRE_PORT", closed_port())
        monkeypatch.setattr(address, "GRPC_PORT", running.port)
        with pytest.warns(RuntimeWarning, match="slower") as caught:
            client = mq.Client("mq://127.0.0.1")
        assert len(caught) == 1
        with client:
            client.create_channel("c")
            client.publish("c", b"x")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mq://host", [Address("mq", "host", 50052, True)]),
        ("host", [Address("mq", "host", 50052, True)]),
        ("host:50051", [Address("grpc", "host", 50051)]),
        ("grpc://host", [Address("grpc", "host", 50051, True)]),
        ("mq://host:7/", [Address("mq", "host", 7)]),
        ("mq://[::1]:7, grpc://b", [Address("mq", "::1", 7), Address("grpc", "b", 50051, True)]),
        ("::1", [Address("mq", "::1", 50052, True)]),
    ],
)
def test_addresses_are_read_as_people_write_them(text: str, expected: list[Address]) -> None:
    assert address.parse(text) == expected


@pytest.mark.parametrize("text", ["", ",", "http://host", "mq://", "mq://host:port", "mq://host:70000", "mq://a/b"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(mq.InvalidArgument):
        address.parse(text)


def test_the_environment_names_the_server_and_promises_nothing(monkeypatch: pytest.MonkeyPatch, mq_broker: str) -> None:
    monkeypatch.setenv("MQ_SERVER", mq_broker)
    with mq.Client() as client:
        assert client.server_info().storage_mode == "memory"
    monkeypatch.setenv("MQ_TOKEN", "secret")
    with pytest.raises(mq.InvalidArgument, match="MQ_TOKEN"):
        mq.Client()


# ---------------------------------------------------------------- reading


def test_reading_starts_where_it_is_told(client: mq.Client, channel: str) -> None:
    for number in range(10):
        middle = client.publish(channel, b"%d" % number)
    client.publish(channel, b"last")

    def read(start: Any) -> list[bytes]:
        return [message.content for message in client.read(channel, start, follow=False)]

    assert len(read("earliest")) == 11
    assert read("latest") == []
    assert read(mq.at_offset(9)) == [b"9", b"last"]
    assert read(mq.last(1)) == [b"last"]
    assert read(mq.at_time(middle.timestamp))[-1] == b"last"
    assert read(mq.at_time(datetime.now(UTC) + timedelta(days=1))) == []


def test_a_reader_waits_for_what_comes_and_can_be_stopped(client: mq.Client, channel: str) -> None:
    client.publish(channel, b"old")
    reader = client.read(channel, "latest")
    found: list[bytes] = []
    seen = threading.Event()

    def read() -> None:
        for message in reader:
            found.append(message.content)
            seen.set()

    thread = threading.Thread(target=read)
    thread.start()
    while not seen.wait(0.01):
        client.publish(channel, b"new")
    reader.stop()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    assert set(found) == {b"new"}


def test_a_reader_tells_where_it_is(client: mq.Client, channel: str) -> None:
    with client.producer(channel) as producer:
        producer.send_many(b"%d" % number for number in range(1_000))
    reader = client.read(channel, follow=False, batch_size=100)
    batches = iter(reader.batches())
    next(batches)
    offset = reader.positions[0]
    assert offset == len(next(client.read(channel, batch_size=100).batches()))
    rest = [message.offset for message in client.read(channel, mq.at_offset(offset), follow=False)]
    assert rest == list(range(offset, 1_000))


def test_what_is_over_keeps_no_connection_open(client: mq.Client, channel: str) -> None:
    def connections() -> int:
        return len(psutil.Process().net_connections("tcp"))

    for number in range(3):
        client.publish(channel, b"%d" % number)
    before = connections()
    for _ in range(10):
        assert len(list(client.read(channel, follow=False))) == 3
        next(iter(client.read(channel)))  # left in the middle
        with client.producer(channel) as producer:
            producer.send(b"one more").result()
        client.purge_channel(channel, before_offset=client.describe_channel(channel).partitions[0].next_offset - 3)
    wait_until(lambda: connections() <= before)
    reader = client.read(channel, follow=False)
    assert len(list(reader)) == 3
    client.publish(channel, b"later")
    assert [message.value for message in reader] == [b"later"]  # and goes on where it was


def test_what_was_read_without_a_group_can_not_be_acked(client: mq.Client, channel: str) -> None:
    client.publish(channel, b"x")
    (message,) = client.read(channel, follow=False)
    assert not hasattr(message, "ack")
    assert (message.group, message.delivery_count) == ("", 0)


# ---------------------------------------------------------------- codecs


class Reversed:
    def encode(self, value: Any) -> bytes:
        return bytes(reversed(value))

    def decode(self, content: bytes) -> Any:
        return bytes(reversed(content))


def test_a_codec_is_any_object_with_encode_and_decode(client: mq.Client, channel: str) -> None:
    client.publish(channel, b"abc", codec=Reversed())
    (message,) = client.read(channel, follow=False, codec=Reversed())
    assert (message.content, message.value) == (b"cba", b"abc")
    with client.producer(channel, codec=mq.JsonCodec()) as producer:
        producer.send("x")
        producer.send_many([{"a": 1}, 2])
    assert contents(client, channel)[1:] == [b'"x"', b'{"a":1}', b"2"]


def test_protobuf_messages_go_through_their_codec() -> None:
    from mq.pb import mq_pb2 as pb

    made = mq.ProtobufCodec(pb.Position)
    assert made.decode(made.encode(pb.Position(offset=7))).offset == 7


def test_messagepack_is_used_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake:
        packb = staticmethod(lambda value: json.dumps(value).encode())
        unpackb = staticmethod(json.loads)

    monkeypatch.setitem(sys.modules, "msgpack", Fake)
    assert mq.MessagePackCodec().decode(mq.MessagePackCodec().encode([1])) == [1]
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(ImportError, match="pip install msgpack"):
        mq.MessagePackCodec()


# ---------------------------------------------------------------- the package


def test_the_public_surface_is_what_the_package_names() -> None:
    assert sorted(mq.__all__) == mq.__all__
    for name in mq.__all__:
        assert getattr(mq, name).__doc__, name
    assert set(mq.__all__) <= set(dir(mq))
    assert set(mq._LAZY) <= set(mq.__all__)
    with pytest.raises(AttributeError, match="nosuch"):
        _ = mq.nosuch


def test_importing_the_package_loads_neither_grpc_nor_the_server() -> None:
    code = (
        "import sys, mq\nmq.Client, mq.at_offset\n"
        "heavy = ('grpc', 'uvloop', 'wal', 'loguru', 'click', 'rich', 'mq.server', 'mq.broker', 'mq.state')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "[]\n"


def test_a_users_program_passes_a_strict_type_check(root: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-incremental", str(program)]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=root)
    assert answer.returncode == 0, answer.stdout


PROGRAM = """
from datetime import datetime

import mq


def main(address: str) -> int:
    with mq.Client(address, timeout=5.0) as client:
        client.create_channel("orders", exist_ok=True)
        ack = client.publish("orders", b"x", key="k", headers={"a": "b"})
        offset: int = ack.offset
        with client.producer("orders", linger_ms=5) as producer:
            sent: mq.Sent = producer.send({"a": 1})
            count: int = producer.send_many([b"a", b"b"])
            where: mq.Published = sent.result(1.0)
        with client.consumer("orders", group="g", start=mq.at_time(datetime.now())) as consumer:
            for message in consumer:
                with message.process():
                    text: str = message.text()
            for batch in consumer.batches():
                first: mq.Message = batch[0]
                batch.ack()
            batch = consumer.fetch(10, timeout=1.0)
            consumer.ack(batch)
        with client.transaction() as tx:
            tx.publish("orders", "x")
        for view in client.read("orders", mq.last(3), follow=False):
            key: bytes | None = view.key
        try:
            client.delete_channel("orders")
        except mq.MqError as error:
            return 1 if error.retryable else 2
    return offset + count + where.offset
"""
