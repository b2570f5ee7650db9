"""What is particular to threads: callbacks, flushes at once, signals, forks, deadlines in line."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from process import wait_until
from tcpproxy import connected

import mq
from mq.client.address import Address
from mq.client.connection import Connection
from mq.client.keeper import Keeper
from mq.client.options import PublishOptions
from mq.client.publisher import Lane, _Entry
from mq.client.value import message_of
from mq.client.wire import _Call, _wake
from mq.pb import mq_pb2 as pb

DEADLINE = 20.0
X = message_of(b"x", None, None, None)


@pytest.fixture
def client(mq_client: mq.Client) -> mq.Client:
    mq_client.create_channel("c")
    return mq_client


# ---------------------------------------------------------------- callbacks of a producer


@pytest.mark.parametrize("act", ["flush", "close"])
def test_a_callback_that_would_wait_for_its_own_producer_is_told_so(client: mq.Client, act: str) -> None:
    raised: list[BaseException] = []
    with client.producer("c") as producer:

        def call(sent: mq.Sent) -> None:
            try:
                getattr(producer, act)()
            except mq.MqError as error:
                raised.append(error)

        producer.send(b"x").add_done_callback(call)
        wait_until(lambda: bool(raised))
        assert isinstance(raised[0], mq.InvalidArgument)
        assert producer.send(b"y").result(DEADLINE).offset == 1
        producer.flush(DEADLINE)


def test_a_callback_may_send_however_full_the_buffer_is() -> None:
    with connected() as (client, proxy), client.producer("c", buffer_bytes=1, batch_size=1) as producer:
        producer.send(b"warm").result(DEADLINE)
        proxy.hold()
        again: list[mq.Sent] = []
        first = producer.send(b"first")
        first.add_done_callback(lambda sent: again.append(producer.send(b"second")))
        proxy.reset()  # so that it is the producer's own thread that calls back
        proxy.hold(False)
        first.result(DEADLINE)
        wait_until(lambda: bool(again))
        assert again[0].result(DEADLINE).offset == 2
        producer.flush(DEADLINE)


# ---------------------------------------------------------------- acks


class Gate:
    """In the place of a connection: notes what it is asked, and answers when it is opened."""

    timeout = DEADLINE
    start_id = "s"

    def __init__(self) -> None:
        self.open = threading.Event()
        self.asked: list[str] = []

    def call(self, method: str, request: bytes, timeout: float | None = None) -> bytes:
        self.asked.append(method)
        assert self.open.wait(DEADLINE)
        return b""

    def pause(self, seconds: float) -> bool:
        return False


def test_what_is_sent_by_two_threads_at_once_is_sent_once_each(client: mq.Client) -> None:
    client.create_group("c", "g")
    for number in range(200):
        client.publish("c", b"%d" % number)
    failures: list[BaseException] = []
    with client.consumer("c", "g", batch_size=1) as consumer:

        def work() -> None:
            try:
                for _ in range(25):
                    (message,) = consumer.fetch(1, timeout=DEADLINE)
                    message.ack()
                    consumer.flush(DEADLINE)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(2 * DEADLINE)
        assert not failures
        assert client.describe_group("c", "g").lag == 0
        assert consumer.lost == 0


def test_a_flush_that_gives_up_leaves_what_waits_to_the_next(client: mq.Client) -> None:
    gate = Gate()
    keeper = Keeper(gate, "c", "g", "m", 60.0)  # type: ignore[arg-type]
    client.create_group("c", "g")
    client.publish("c", b"1")
    client.publish("c", b"2")
    with client.consumer("c", "g", batch_size=1) as consumer:
        one, two = consumer.fetch(1, timeout=DEADLINE), consumer.fetch(1, timeout=DEADLINE)
        deliveries = [each[0]._delivery for each in (one, two)]
        keeper.hold(deliveries, "s")
        keeper.ack([(deliveries[0], 0, 1)])
        wait_until(lambda: gate.asked == ["mq.MQService/Ack"])
        keeper.nack([(deliveries[1], 0, 1)], 0)
        with pytest.raises(mq.TimedOut):
            keeper.flush(0.1)
        gate.open.set()
        keeper.flush(DEADLINE)
        assert gate.asked == ["mq.MQService/Ack", "mq.MQService/Nack"]
        keeper.close(DEADLINE)


def test_who_is_interrupted_in_line_keeps_nobody_from_sending(client: mq.Client) -> None:
    gate = Gate()
    keeper = Keeper(gate, "c", "g", "m", 60.0)  # type: ignore[arg-type]
    client.publish("c", b"1")
    with client.consumer("c", "g") as consumer:
        delivery = consumer.fetch(1, timeout=DEADLINE)[0]._delivery
        keeper.hold([delivery], "s")
        keeper.ack([(delivery, 0, 1)])
        wait_until(lambda: gate.asked == ["mq.MQService/Ack"])
        with alarm(KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
            keeper.flush()
        gate.open.set()
        keeper.flush(DEADLINE)
        keeper.close(DEADLINE)


def test_all_requests_of_a_flush_share_its_time(client: mq.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    keeper = Keeper(gate, "c", "g", "m", 60.0)  # type: ignore[arg-type]
    given: list[float] = []

    def slowly(method: str, request: bytes, timeout: float) -> bytes:
        given.append(timeout)
        threading.Event().wait(0.1)
        return b""

    monkeypatch.setattr(gate, "call", slowly)
    for number in range(3):
        client.publish("c", b"%d" % number)
    with client.consumer("c", "g", batch_size=1) as consumer:
        deliveries = [consumer.fetch(1, timeout=DEADLINE)[0]._delivery for _ in range(3)]
        with monkeypatch.context() as patch:
            patch.setattr(keeper, "_thread", threading.current_thread())  # nobody else sends
            keeper.hold(deliveries, "s")
        for delay, delivery in enumerate(deliveries):
            keeper.nack([(delivery, 0, 1)], delay)  # a request for each
        keeper.flush(1.0)
    assert [round(seconds, 1) for seconds in given][:1] == [1.0]
    assert given == sorted(given, reverse=True)
    assert given[2] <= given[0] - 0.2


def test_an_act_that_fails_again_and_again_costs_no_leases(client: mq.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    asked: list[str] = []

    def refuse(method: str, request: bytes, timeout: float | None = None) -> bytes:
        asked.append(method)
        if method == "mq.MQService/Reject":
            raise mq.ResourceExhausted("not now")
        return b""

    monkeypatch.setattr(gate, "call", refuse)
    monkeypatch.setattr(gate, "pause", threading.Event().wait)
    keeper = Keeper(gate, "c", "g", "m", 0.01)  # type: ignore[arg-type]
    client.publish("c", b"1")
    client.publish("c", b"2")
    with client.consumer("c", "g", batch_size=1) as consumer:
        deliveries = [consumer.fetch(1, timeout=DEADLINE)[0]._delivery for _ in range(2)]
        keeper.hold(deliveries, "s")
        keeper.reject([(deliveries[0], 0, 1)], "no")
        wait_until(lambda: asked.count("mq.MQService/Reject") >= 2)
        after = len(asked)
        wait_until(lambda: "mq.MQService/Extend" in asked[after:])
        with pytest.raises(mq.ResourceExhausted):
            keeper.close(DEADLINE)


def test_messages_that_are_sent_by_themselves_after_a_refusal_share_its_time() -> None:
    slow = Slow()
    slow.open.set()
    connection = Connection(NOBODY[:1], timeout=1.0, connect=lambda address, timeout: slow)
    given: list[float] = []

    def call(method: str, request: bytes, limit: float) -> bytes:
        given.append(limit)
        threading.Event().wait(0.1)
        if len(given) == 1:
            raise mq.InvalidArgument("one of them is at fault")
        return pb.PublishBatchResponse(count=1).SerializeToString()

    slow.call = call  # type: ignore[method-assign, assignment]
    lane = Lane(connection, "c", PublishOptions())
    entries = [_Entry(X) for _ in range(3)]
    lane._send(entries, lane._free[0], None)
    assert [type(each.outcome) for each in entries] == [mq.Published] * 3
    assert given[1:] == sorted(given[1:], reverse=True)
    assert given[3] <= given[1] - 0.2


def test_a_consumer_keeps_the_client_that_it_needs(client: mq.Client) -> None:
    client.publish("c", b"x")
    address = str(client._connection._addresses[0])
    consumer = mq.Client(address).consumer("c", "g")
    gc.collect()
    with consumer:
        consumer.fetch(1, timeout=DEADLINE).ack()
        consumer.flush(DEADLINE)
    assert isinstance(consumer.keeps_open, mq.Client)
    consumer.keeps_open.close()
    assert client.describe_group("c", "g").lag == 0


def test_a_seek_in_a_callback_counts_for_what_came_with_it(client: mq.Client) -> None:
    for text in ("one", "two", "three"):
        client.publish("c", text)
    sought: list[frozenset[int]] = []

    def seek(assigned: frozenset[int]) -> None:
        if not sought:
            sought.append(assigned)
            consumer.seek(mq.at_offset(2))

    with client.consumer("c", "g", ordered=True, on_assigned=seek) as consumer:
        assert next(iter(consumer)).text() == "three"


# ---------------------------------------------------------------- signals and forks


def test_a_reader_is_stopped_whatever_lock_its_thread_has(client: mq.Client) -> None:
    client.publish("c", b"x")
    reader = client.read("c")
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.extend(each.content for each in reader))
    thread.start()
    wait_until(lambda: bool(found) and reader._connection._transport is not None)
    time.sleep(0.05)  # it waits for more
    with reader._connection._transport._lock, reader._connection._lock:  # type: ignore[union-attr]
        stopping = threading.Thread(target=reader.stop)
        stopping.start()
        stopping.join(DEADLINE)
        assert not stopping.is_alive()
    thread.join(DEADLINE)
    assert not thread.is_alive()


def test_a_reader_with_an_interval_is_stopped_at_once(client: mq.Client) -> None:
    client.publish("c", b"x")
    reader = client.read("c", interval=3_600.0)
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.extend(each.content for each in reader))
    thread.start()
    wait_until(lambda: bool(found))
    reader.stop()
    thread.join(DEADLINE)
    assert not thread.is_alive()


FORKED = """
import os, sys, mq, mq.client.unclosed
if child := os.fork():
    sys.exit(os.waitpid(child, 0)[1] != 0)
producer = mq.Client(sys.argv[1]).producer("c", linger_ms=600_000)
producer.send(b"not lost")
"""


def test_what_a_child_leaves_open_is_closed_at_its_end(client: mq.Client) -> None:
    address = str(client._connection._addresses[0])
    done = subprocess.run([sys.executable, "-c", FORKED, address], timeout=DEADLINE, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [each.content for each in client.read("c", follow=False)] == [b"not lost"]


def test_a_child_hears_at_once_that_a_producer_is_its_parents(client: mq.Client) -> None:
    with client.producer("c") as producer:
        with producer._lock:  # as another thread may have it at a fork
            child = os.fork()
            if not child:
                try:
                    producer.send(b"never")
                except mq.Unavailable:
                    os._exit(0)
                finally:
                    os._exit(1)
            deadline = time.monotonic() + DEADLINE
            while not (ended := os.waitpid(child, os.WNOHANG))[0]:
                assert time.monotonic() < deadline, "the child hangs"
                time.sleep(0.01)
        assert ended[1] == 0


# ---------------------------------------------------------------- in line


class Slow:
    """In the place of a transport: answers when it is opened."""

    is_usable = True
    start_id = ""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.sizes: list[int] = []
        self.limits: list[float] = []

    def call(self, method: str, request: bytes, timeout: float | None = None) -> bytes:
        count = len(pb.PublishBatchRequest.FromString(request).batch.messages)
        self.sizes.append(count)
        self.limits.append(timeout or 0.0)
        assert self.open.wait(DEADLINE)
        return pb.PublishBatchResponse(count=count).SerializeToString()

    def close(self) -> None:
        pass


def in_background(outcomes: list[Any], lane: Lane, timeout: float | None) -> threading.Thread:
    def publish() -> None:
        try:
            outcomes.append(lane.publish(X, timeout))
        except mq.MqError as error:
            outcomes.append(error)

    thread = threading.Thread(target=publish)
    thread.start()
    return thread


def test_who_stands_in_line_waits_no_longer_than_he_said_and_shares_no_request_with_the_hasty() -> None:
    slow = Slow()
    connection = Connection([Address("mq", "a", 1)], timeout=DEADLINE, connect=lambda address, timeout: slow)
    lane = Lane(connection, "c", PublishOptions())
    outcomes: list[Any] = []
    busy = [in_background(outcomes, lane, None) for _ in range(2)]
    wait_until(lambda: len(slow.sizes) == 2)
    hasty = in_background(outcomes, lane, 0.05)
    hasty.join(DEADLINE)
    assert [type(each) for each in outcomes] == [mq.TimedOut]
    outcomes.clear()
    waiting = [in_background(outcomes, lane, 5.0)]
    wait_until(lambda: len(lane._line) == 1)
    waiting += [in_background(outcomes, lane, None) for _ in range(2)]
    wait_until(lambda: len(lane._line) == 3)
    slow.open.set()
    for each in (*busy, *waiting):
        each.join(DEADLINE)
    assert [type(each) for each in outcomes] == [mq.Published] * 5
    assert sorted(slow.sizes) == [1, 1, 1, 2]
    assert min(slow.limits) <= 5.0
    assert sorted(slow.limits)[1] > 5.0


# ---------------------------------------------------------------- connecting


NOBODY = [Address("mq", name, 1) for name in ("a", "b")]


class Broker:
    """In the place of what there is to connect to: lets those in who are there when it is opened."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = [*failures]
        self.open = threading.Event()
        self.tried: list[tuple[str, float]] = []
        self.transport = Slow()
        self.transport.open.set()

    def connect(self, address: Address, timeout: float) -> Slow:
        self.tried.append((address.scheme, timeout))
        if not self.open.wait(timeout):
            raise mq.Unavailable("it does not greet")
        if self.failures:
            raise self.failures.pop(0)
        return self.transport

    def connection(self, addresses: Sequence[Address] = NOBODY[:1]) -> Connection:
        return Connection(addresses, timeout=DEADLINE, connect_timeout=5.0, connect=self.connect)


@contextmanager
def alarm(kind: type[BaseException]) -> Iterator[None]:
    """Soon a signal comes, whose handler raises."""

    def cry(*_: object) -> None:
        raise kind("enough")

    before = signal.signal(signal.SIGALRM, cry)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_who_has_to_connect_first_takes_no_longer_for_it_than_he_may() -> None:
    broker = Broker()
    connection = broker.connection()
    for _ in range(3):
        with pytest.raises(mq.TimedOut, match="no time to connect: nothing was sent"):
            connection.call("m", b"", timeout=0.05)
    assert broker.tried == [("mq", 5.0)]  # one try, which has all the time that it needs
    broker.open.set()
    assert connection.call("m", b"", timeout=DEADLINE) == b""
    assert connection.call("m", b"", timeout=0.001) == b""
    assert len(broker.tried) == 1


def test_each_address_is_tried_once() -> None:
    broker = Broker(mq.Unavailable("nobody is there"), mq.Unavailable("nor here"))
    broker.open.set()
    with pytest.raises(mq.Unavailable, match="nobody is there; nor here"):
        broker.connection(NOBODY).transport()
    assert [seconds for _, seconds in broker.tried] == [5.0, 5.0]


def test_the_hasty_do_not_spoil_it_for_the_patient() -> None:
    broker = Broker()
    connection, outcomes = broker.connection(), list[Any]()
    lane = Lane(connection, "c", PublishOptions())
    hasty = in_background(outcomes, lane, 0.2)
    wait_until(lambda: bool(broker.tried))
    patient = in_background(outcomes, lane, None)
    hasty.join(DEADLINE)
    broker.open.set()
    patient.join(DEADLINE)
    assert [type(each) for each in outcomes] == [mq.TimedOut, mq.Published]
    assert len(broker.tried) == 1


def test_the_hasty_move_nobody_to_another_protocol() -> None:
    broker = Broker()
    connection = broker.connection([Address("mq", "a", 1, is_default=True)])
    with pytest.raises(mq.TimedOut):
        connection.call("m", b"", timeout=0.02)
    broker.open.set()
    assert connection.call("m", b"", timeout=DEADLINE) == b""
    assert [scheme for scheme, _ in broker.tried] == ["mq"]


def test_a_mistake_in_a_try_is_told_and_the_next_call_tries_again() -> None:
    broker = Broker(ZeroDivisionError("a mistake"))
    broker.open.set()
    connection = broker.connection()
    with pytest.raises(ZeroDivisionError, match="a mistake"):
        connection.call("m", b"")
    assert connection.call("m", b"") == b""


def test_who_is_interrupted_while_it_connects_keeps_nobody_from_it() -> None:
    broker = Broker()
    connection = broker.connection()
    with alarm(KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        connection.call("m", b"")
    broker.open.set()
    assert connection.call("m", b"", timeout=DEADLINE) == b""


class Silent:
    """In the place of a transport: answers nobody, or everybody."""

    is_usable = True

    def __init__(self) -> None:
        self.answers = False
        self.is_closed = False

    def call(self, method: str, request: bytes, timeout: float) -> bytes:
        if self.answers:
            return b"answer"
        threading.Event().wait(timeout)
        raise mq.TimedOut("no answer")

    def close(self) -> None:
        self.is_closed = True


def test_the_hasty_cut_nobody_off_but_a_silence_ends_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq.client.connection.SILENCE_SECONDS", 0.2)
    silent = Silent()
    connection = Connection(NOBODY[:1], timeout=DEADLINE, connect=lambda address, timeout: silent)

    def hurry() -> None:
        with pytest.raises(mq.TimedOut):
            connection.call("m", b"", timeout=0.06)

    for _ in range(3):
        hurry()
        hurry()
        assert not silent.is_closed
        silent.answers = True
        assert connection.call("m", b"") == b"answer"
        silent.answers = False
    while not silent.is_closed:
        hurry()
    assert connection.reconnects == 1


def test_a_client_that_is_closed_while_it_connects_leaves_no_connection_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = Broker()
    is_closed = threading.Event()
    monkeypatch.setattr(broker.transport, "close", is_closed.set)
    connection, outcomes = broker.connection(), list[Any]()
    waiting = in_background(outcomes, Lane(connection, "c", PublishOptions()), None)
    wait_until(lambda: bool(broker.tried))
    connection.close()
    waiting.join(DEADLINE)
    assert [type(each) for each in outcomes] == [mq.Unavailable]  # at once, however long the try may take
    broker.open.set()
    assert is_closed.wait(DEADLINE)


def test_to_wake_somebody_twice_harms_nobody() -> None:
    call = _Call()
    call.ready = threading.Lock()
    call.ready.acquire()
    _wake(call)
    _wake(call)
    assert not call.ready.locked()
