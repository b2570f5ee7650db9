"""Who pulls for a consumer: a thread of its own while there is more, whoever iterates when there is not."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from process import wait_until
from tcpproxy import connected

import mq
from mq.client.connection import Connection
from mq.client.pulling import PULL
from mq.testing import broker

DEADLINE = 30.0
THREAD = "mq-consumer"


@pytest.fixture(params=["wire", "grpc"])
def client(request: pytest.FixtureRequest) -> Iterator[mq.Client]:
    with broker(LOG_LEVEL="ERROR") as running:
        client = mq.Client(str(running) if request.param == "wire" else f"grpc://{running.address}")
        client.create_channel("c")
        yield client
        client.close()


@pytest.fixture
def pulls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that pulled, by name, one for each pull that began."""
    names: list[str] = []
    call = Connection.call

    def noted(self: Connection, method: str, *args: Any, **options: Any) -> bytes:
        if method == PULL:
            names.append(threading.current_thread().name)
        return call(self, method, *args, **options)

    monkeypatch.setattr(Connection, "call", noted)
    return names


def fill(client: mq.Client, count: int) -> None:
    with client.producer("c") as producer:
        producer.send_many([b"%d" % number for number in range(count)])


def take(messages: Iterator[mq.Message], count: int) -> list[bytes]:
    taken = []
    for _ in range(count):
        message = next(messages)
        message.ack()
        taken.append(message.content)
    return taken


@contextmanager
def waiting(client: mq.Client, pulls: list[str]) -> Iterator[tuple[mq.Consumer, threading.Thread, list[bytes]]]:
    """A consumer that a thread iterates, which has emptied the channel and waits for more."""
    fill(client, 3)
    consumer = client.consumer("c", "g")
    taken: list[bytes] = []
    iterates = threading.Thread(target=lambda: taken.extend(message.content for message in consumer), name="iterates")
    iterates.start()
    wait_until(lambda: len(pulls) >= 2)  # the second finds nothing
    try:
        yield consumer, iterates, taken
    finally:
        consumer.close()
        iterates.join(DEADLINE)
        assert not iterates.is_alive()


def test_a_thread_pulls_ahead_while_there_is_more(client: mq.Client, pulls: list[str]) -> None:
    fill(client, 40)
    with client.consumer("c", "g", batch_size=10) as consumer:
        messages = iter(consumer)
        assert take(messages, 1) == [b"0"]
        wait_until(lambda: consumer.held == 29)  # of this answer, and two that were pulled ahead
        assert len(take(messages, 39)) == 39
    assert set(pulls) == {THREAD}


def test_who_empties_a_channel_pulls_for_himself_and_the_thread_takes_over_when_there_is_more(
    client: mq.Client, pulls: list[str]
) -> None:
    with client.consumer("c", "g", batch_size=10) as consumer:
        messages = iter(consumer)
        for number in range(5):
            client.publish("c", b"%d" % number)
            assert take(messages, 1) == [b"%d" % number]
        is_grpc = not consumer._own.can_be_cut  # a wait there can't be ended by a signal's handler
        others = THREAD if is_grpc else threading.current_thread().name
        assert pulls[:5] == [THREAD, *[others] * 4]
        del pulls[:]
        fill(client, 30)
        assert len(take(messages, 30)) == 30
        assert pulls[1:] == [THREAD] * len(pulls[1:])
        assert THREAD in pulls


def test_an_answer_of_many_bytes_may_not_be_all_there_is(mq_client: mq.Client, pulls: list[str]) -> None:
    mq_client.create_channel("c")
    with mq_client.consumer("c", "g", batch_size=10) as consumer:
        messages = iter(consumer)
        for _ in range(3):
            mq_client.publish("c", bytes(100_000))
            take(messages, 1)
    assert set(pulls) == {THREAD}


@pytest.mark.parametrize("by", ["stop", "close"])
def test_another_thread_ends_a_wait(client: mq.Client, pulls: list[str], by: str) -> None:
    with waiting(client, pulls) as (consumer, iterates, taken):
        getattr(consumer, by)()
        iterates.join(DEADLINE)
        assert not iterates.is_alive()
        assert taken == [b"0", b"1", b"2"]


def test_a_signals_handler_ends_a_wait_of_the_thread_that_it_interrupts(client: mq.Client, pulls: list[str]) -> None:
    fill(client, 3)
    with client.consumer("c", "g") as consumer:
        messages = iter(consumer)
        assert len(take(messages, 3)) == 3
        before = signal.signal(signal.SIGALRM, lambda *_: consumer.stop())
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            assert list(messages) == []
        finally:
            signal.signal(signal.SIGALRM, before)
    assert client.describe_group("c", "g").lag == 0


def test_a_seek_of_another_thread_moves_who_waits(client: mq.Client, pulls: list[str]) -> None:
    with waiting(client, pulls) as (consumer, _, taken):
        consumer.seek("earliest")
        wait_until(lambda: taken == [b"0", b"1", b"2"] * 2)


def test_a_connection_that_breaks_while_somebody_pulls_for_himself_is_made_anew(
    tmp_path: Path, pulls: list[str]
) -> None:
    with connected(tmp_path) as (client, proxy), client.consumer("c", "g") as consumer:
        messages = iter(consumer)
        for number in range(3):
            client.publish("c", b"%d" % number)
            assert take(messages, 1) == [b"%d" % number]
            consumer.flush()
            threading.Timer(0.1, proxy.reset).start()
            threading.Timer(0.3, client.publish, ("c", b"after it")).start()
            assert take(messages, 1) == [b"after it"]
    assert threading.current_thread().name in pulls


def test_what_a_pull_is_refused_ends_the_iteration_with_its_error(mq_client: mq.Client, pulls: list[str]) -> None:
    mq_client.create_channel("c")
    with mq_client.consumer("c", "g") as consumer:
        messages = iter(consumer)
        mq_client.publish("c", b"one")
        take(messages, 1)
        threading.Timer(0.1, mq_client.delete_channel, ("c",)).start()
        with pytest.raises((mq.ChannelNotFound, mq.GroupNotFound)):
            next(messages)
    assert pulls[-1] == threading.current_thread().name
