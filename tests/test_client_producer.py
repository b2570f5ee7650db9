"""Producers: batches, back-pressure, futures, and each message once and in order whatever the network does."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from process import wait_until
from tcpproxy import connected

import mq
from mq.client import producer as producing
from mq.client.outbox import Outbox
from mq.testing import broker

DEADLINE = 30.0


@pytest.fixture
def client(mq_client: mq.Client) -> mq.Client:
    mq_client.create_channel("c")
    return mq_client


def contents(client: mq.Client, channel: str = "c") -> list[bytes]:
    return [message.content for message in client.read(channel, follow=False)]


def test_leaving_the_block_flushes(client: mq.Client) -> None:
    with client.producer("c", linger_ms=60_000) as producer:
        sent = [producer.send(b"%d" % number) for number in range(1_234)]
    assert [each.result().offset for each in sent] == list(range(1_234))
    assert contents(client) == [b"%d" % number for number in range(1_234)]


def test_what_lingers_leaves_by_itself(client: mq.Client) -> None:
    with client.producer("c", linger_ms=1) as producer:
        assert producer.send(b"alone").result(DEADLINE).offset == 0


def test_many_are_sent_in_order_between_single_ones(client: mq.Client) -> None:
    with client.producer("c", linger_ms=60_000) as producer:
        producer.send(b"first")
        assert producer.send_many(b"%d" % number for number in range(12_345)) == 12_345
        producer.send("last")
        assert producer.send_many([]) == 0
        assert producer.send_many(["text", {"a": 1}], key="k") == 2
    assert contents(client) == [b"first", *(b"%d" % n for n in range(12_345)), b"last", b"text", b'{"a":1}']


def test_large_values_are_spread_over_requests(client: mq.Client) -> None:
    values = [bytes([number]) * 300_000 for number in range(40)]
    with client.producer("c") as producer:
        producer.send_many(values)
    assert contents(client) == values


@pytest.mark.parametrize(
    ("options", "singles", "many"),
    [
        ({"batch_size": 10_000}, [b"s"] * 6_000, [b"m"] * 6_000),
        ({"batch_size": 20_000}, [b"s"] * 12_000, [b"m"] * 12_000),
        ({"batch_bytes": 2 << 20}, [b"s" * 1_000] * 1_400, [b"m" * 800] * 5_000),
        ({"batch_bytes": 8 << 20}, [b"s" * 1_000] * 4_500, [b"m" * 1_000] * 5_000),
        ({}, [b"s" * 1_000] * 200 + [b"l" * 4_128_000], [b"m"]),
    ],
    ids=["messages", "too many messages", "bytes", "too many bytes", "a large one"],
)
def test_no_batch_is_more_than_a_broker_takes(
    client: mq.Client, mq_broker: str, options: dict[str, Any], singles: list[bytes], many: list[bytes]
) -> None:
    with client.producer("c", linger_ms=60_000, **options) as producer:
        for value in singles:
            producer.send(value)
        assert producer.send_many(many) == len(many)

    async def send() -> None:
        async with (
            mq.AsyncClient(mq_broker) as tasks,
            await tasks.producer("c", linger_ms=60_000, **options) as producer,
        ):
            for value in singles:
                await producer.send(value)
            assert await producer.send_many(many) == len(many)

    asyncio.run(send())
    assert contents(client) == 2 * (singles + many)


def test_a_broker_that_takes_less_is_sent_less() -> None:
    small = [b"s" * 1_000] * 600
    with broker(LOG_LEVEL="ERROR", SERVER_MAX_RECV_MSG_SIZE="256KiB") as address:
        with mq.Client(address) as client:
            client.create_channel("c")
            with client.producer("c", batch_size=1_000) as producer:
                for value in small:
                    producer.send(value)
                producer.send_many(small)

        async def send() -> None:
            async with (
                mq.AsyncClient(address) as tasks,
                await tasks.producer("c", batch_size=1_000) as producer,
            ):
                for value in small:
                    await producer.send(value)
                await producer.send_many(small)

        asyncio.run(send())
        with mq.Client(address) as client:
            assert contents(client) == 4 * small


def test_a_future_tells_once_and_for_all(client: mq.Client) -> None:
    told: list[int] = []
    is_told = threading.Event()
    with client.producer("c", linger_ms=60_000) as producer:
        sent = producer.send(b"x")
        assert not sent.done()
        with pytest.raises(TimeoutError):
            sent.result(0.01)
        sent.add_done_callback(lambda each: (told.append(each.result().offset), is_told.set()))
        producer.flush()
        assert is_told.wait(DEADLINE)
        sent.add_done_callback(lambda each: told.append(each.result().offset))
    assert sent.done()
    assert sent.exception() is None
    assert told == [0, 0]


def test_a_full_buffer_holds_the_sender_back(client: mq.Client) -> None:
    with client.producer("c", linger_ms=0, batch_bytes=1_000, buffer_bytes=10_000) as producer:
        for number in range(500):
            producer.send(b"%06d" % number * 100)
            assert producer._buffered <= 10_000 + 700
    assert len(contents(client)) == 500


def test_a_flush_that_takes_too_long_says_so() -> None:
    with connected() as (client, proxy):
        producer = client.producer("c")
        producer.send(b"warm").result(DEADLINE)
        proxy.swallow()
        producer.send(b"lost")
        with pytest.raises(mq.TimedOut):
            producer.flush(timeout=0.05)
        with pytest.raises(mq.TimedOut):
            producer.close(timeout=0.05)


def test_a_channel_that_goes_away_is_told_by_future_and_flush(client: mq.Client) -> None:
    producer = client.producer("c")
    producer.send(b"x").result(DEADLINE)
    client.delete_channel("c")
    assert isinstance(producer.send(b"y").exception(DEADLINE), mq.ChannelNotFound)
    with pytest.raises(mq.ChannelNotFound):
        producer.flush()
    producer.flush()  # told once
    client.create_channel("c")
    assert producer.send(b"z").result(DEADLINE).offset == 0
    producer.close()
    with pytest.raises(mq.Unavailable, match="closed"):
        producer.send(b"late")


def test_after_a_refused_batch_the_others_are_stored_in_order(client: mq.Client) -> None:
    with pytest.raises(mq.InvalidArgument), client.producer("c", linger_ms=60_000, batch_size=1) as producer:
        sent = [producer.send(b"x" * (5 << 20) if number == 3 else b"%d" % number) for number in range(40)]
    assert isinstance(sent[3].exception(), mq.InvalidArgument)
    assert contents(client) == [b"%d" % number for number in range(40) if number != 3]


def test_a_producer_that_the_broker_has_forgotten_starts_over(client: mq.Client) -> None:
    with client.producer("c", linger_ms=0) as producer:
        producer.send(b"a").result(DEADLINE)
        client.delete_channel("c")
        client.create_channel("c")
        assert producer.send(b"b").result(DEADLINE).offset == 0
        assert producer.send(b"c").result(DEADLINE).offset == 1
    assert contents(client) == [b"b", b"c"]


def test_keys_keep_their_order_and_their_partition(client: mq.Client) -> None:
    client.create_channel("p", partitions=3)
    with client.producer("p", batch_size=7) as producer:
        sent = [
            (f"k{number % 5}", number, producer.send(b"%d" % number, key=f"k{number % 5}")) for number in range(999)
        ]
    places: dict[str, set[int]] = {}
    for key, _, each in sent:
        places.setdefault(key, set()).add(each.result().partition)
    assert all(len(partitions) == 1 for partitions in places.values())
    by_key: dict[bytes, list[int]] = {}
    for message in client.read("p", follow=False):
        assert message.key is not None
        by_key.setdefault(message.key, []).append(int(message.content))
    assert by_key == {f"k{rest}".encode(): list(range(rest, 999, 5)) for rest in range(5)}


def test_a_partition_is_the_one_that_the_broker_would_choose() -> None:
    from mq.publication import partition_of

    outbox = Outbox("c", 7, 1, 1)
    keys = [b"%d" % number for number in range(100)]
    assert [outbox.partition_of(key) for key in keys] == [partition_of(key, 7) for key in keys]
    assert outbox.partition_of(None) is None


@pytest.mark.parametrize("durable", [False, True])
def test_resets_while_sending_lose_nothing_and_double_nothing(durable: bool, tmp_path: Path) -> None:
    with connected(tmp_path if durable else None) as (client, proxy):
        with client.producer("c", linger_ms=0, batch_size=10) as producer:
            for number in range(3_000):
                producer.send(b"%d" % number)
                if number % 500 == 250:
                    wait_until(lambda: len(producer._in_flight) > 0 or not producer._buffered)
                    proxy.reset()
        assert contents(client) == [b"%d" % number for number in range(3_000)]
        assert proxy.connections > 3


def test_single_publishes_survive_resets_too() -> None:
    with connected() as (client, proxy):
        stop = threading.Event()
        offsets: list[int] = []

        def disturb() -> None:
            before = -1
            while not stop.wait(0.01):
                if len(offsets) > before:  # a slow machine comes no further between two resets than a fast one
                    before = len(offsets)
                    proxy.reset()

        thread = threading.Thread(target=disturb)
        thread.start()
        for number in range(200):
            offsets.append(client.publish("c", b"%d" % number).offset)
        stop.set()
        thread.join(DEADLINE)
        assert offsets == list(range(200))
        assert contents(client) == [b"%d" % number for number in range(200)]


def test_a_network_that_swallows_everything_is_left_for_a_new_connection() -> None:
    with connected() as (client, proxy):
        client._connection._attempt_seconds = client._connection._connect_timeout = 0.2
        proxy.swallow()
        threading.Timer(0.3, proxy.swallow, (False,)).start()
        assert client.publish("c", b"x").offset == 0
        assert client.publish("c", b"y").offset == 1
        assert contents(client) == [b"x", b"y"]


def test_a_deadline_is_kept() -> None:
    with connected() as (client, proxy):
        proxy.swallow()
        with pytest.raises(mq.TimedOut):
            client.publish("c", b"x", timeout=0.1)


def test_a_slow_network_only_takes_longer() -> None:
    with connected() as (client, proxy):
        proxy.delay = 0.02
        with client.producer("c", linger_ms=0, batch_size=10) as producer:
            producer.send_many(b"%d" % number for number in range(500))
        assert contents(client) == [b"%d" % number for number in range(500)]


def test_no_more_batches_are_in_flight_than_a_broker_recognises_a_retry_among() -> None:
    from mq.limits import Limits

    assert Limits().producer_window >= producing.IN_FLIGHT * 2
