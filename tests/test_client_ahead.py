"""Who pulls for a consumer: a thread of its own while there is more, whoever iterates when there is not."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from process import wait_until
from tcpproxy import connected

import mq
from mq.client.ahead import Ahead
from mq.client.connection import Connection
from mq.client.pulling import PULL, Pulled
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


def test_what_a_seek_gives_back_is_not_handed_out_by_a_thread_that_waits(
    client: mq.Client, pulls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    leave = mq.Consumer._leave

    def slow(self: mq.Consumer, timeout: float | None = None) -> None:
        leave(self, timeout)
        threading.Event().wait(0.2)  # what was held could be pulled again now, from where the group was

    with waiting(client, pulls) as (consumer, _, taken):  # and none of the three is acked
        monkeypatch.setattr(mq.Consumer, "_leave", slow)
        consumer.seek("latest")
        monkeypatch.undo()
        client.publish("c", b"new")
        wait_until(lambda: len(taken) > 3)
        assert taken == [b"0", b"1", b"2", b"new"]


def test_a_stop_lets_an_ordered_consumer_finish_what_it_works_on(client: mq.Client, pulls: list[str]) -> None:
    fill(client, 20)
    with client.consumer("c", "g", ordered=True, batch_size=10) as consumer:
        member = consumer.member
        messages = iter(consumer)
        take(messages, 2)
        third = next(messages)
        wait_until(lambda: len(pulls) == 3)  # the thread waits with the last of these
        consumer.stop()
        threading.Event().wait(0.3)
        third.ack()
        assert list(messages) == []
        assert (consumer.lost, consumer.member) == (0, member)
    assert client.describe_group("c", "g").lag == 17


def test_a_stop_ends_a_fetch_that_waits(mq_client: mq.Client) -> None:
    mq_client.create_channel("c")
    with mq_client.consumer("c", "g") as consumer:
        consumer.fetch(1)
        threading.Timer(0.1, consumer.stop).start()
        began = time.monotonic()
        assert len(consumer.fetch(1, timeout=DEADLINE)) == 0
        assert time.monotonic() - began < DEADLINE / 2


@pytest.mark.parametrize("kind", [TimeoutError, BlockingIOError, ValueError])
def test_what_a_signals_handler_raises_ends_a_wait(mq_client: mq.Client, kind: type[Exception]) -> None:
    mq_client.create_channel("c")
    mq_client.publish("c", b"one")
    with mq_client.consumer("c", "g") as consumer:
        messages = iter(consumer)
        take(messages, 1)

        def cry(*_: object) -> None:
            raise kind("enough")

        before = signal.signal(signal.SIGALRM, cry)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(kind, match="enough"):
                next(messages)
        finally:
            signal.signal(signal.SIGALRM, before)
        mq_client.publish("c", b"two")
        assert take(iter(consumer), 1) == [b"two"]


def test_whether_the_thread_goes_on_is_decided_once() -> None:
    """A client of several addresses may find itself connected to one of another kind when its answer is taken."""
    own = SimpleNamespace(can_be_cut=False, reconnects=0)
    pulled = Pulled.nothing(frozenset())
    answers = [pulled._replace(assigned=frozenset({number})) for number in range(2)]
    done = threading.Event()

    def pull(_: Any) -> Pulled:
        if not answers:
            done.wait(DEADLINE)
            raise mq.Unavailable("over")
        return answers.pop()

    ahead = Ahead(cast(Connection, own), pull, lambda: None, batch_size=10, interval=0)
    ahead.begin()
    wait_until(lambda: not answers)
    own.can_be_cut = True
    assert ahead.take(DEADLINE) is not None
    assert ahead.is_at_work
    done.set()
    ahead.end(DEADLINE)


def test_who_waits_for_an_answer_is_woken_also_where_another_thread_takes_what_is_left() -> None:
    """A seek, or a close, may be quicker to look for answers that nobody took than the one who waits for them."""

    def pull(_: Any) -> Pulled:
        raise mq.Unavailable("over")

    own = SimpleNamespace(can_be_cut=False, reconnects=0)
    ahead = Ahead(cast(Connection, own), pull, lambda: None, batch_size=10, interval=0)
    ahead.wake()
    ahead.end(DEADLINE)
    assert ahead.left() == []
    waits = threading.Thread(target=ahead.take, args=(None,), daemon=True)
    waits.start()
    waits.join(DEADLINE)
    assert not waits.is_alive()


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
