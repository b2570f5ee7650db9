"""The lane of a client of threads: two requests in flight, and nobody in line is forgotten."""

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from process import wait_until

from mq import Client, testing
from mq.client import publisher as publishing
from mq.client.publisher import PUBLISH_BATCH, Lane
from mq.errors import MqError, Unavailable


class Gate:
    """Stands between a lane and its connection: holds publishes back, and counts them."""

    def __init__(self, lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
        self.inside = 0
        self.most = 0
        self.error: BaseException | None = None
        self.open = threading.Event()
        self.sizes: list[int] = []
        honest = lane._connection.call
        lock = threading.Lock()

        def call(method: str, data: bytes, **options: Any) -> bytes:
            if method != PUBLISH_BATCH:
                return honest(method, data, **options)
            with lock:
                self.inside += 1
                self.most = max(self.most, self.inside)
                self.sizes.append(len(data))
                error, self.error = self.error, None
            try:
                assert self.open.wait(20)
                if error is not None:
                    raise error
                return honest(method, data, **options)
            finally:
                with lock:
                    self.inside -= 1

        monkeypatch.setattr(lane._connection, "call", call)


@pytest.fixture
def client() -> Iterator[Client]:
    with testing.broker() as broker, Client(broker.address) as client:
        client.create_channel("a")
        client.publish("a", b"first")
        yield client


@pytest.fixture
def lane(client: Client) -> Lane:
    (lane,) = client._lanes.values()
    return lane


@pytest.fixture
def gate(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(lane, monkeypatch)


class Publishers:
    """Threads that publish one message each."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._threads: list[threading.Thread] = []
        self.offsets: list[int] = []
        self.errors: list[BaseException] = []

    def start(self, content: bytes) -> None:
        def run() -> None:
            try:
                self.offsets.append(self._client.publish("a", content).offset)
            except BaseException as error:
                self.errors.append(error)

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive(), "somebody waits for ever"


@pytest.fixture
def publishers(client: Client, gate: Gate) -> Iterator[Publishers]:
    publishers = Publishers(client)
    yield publishers
    gate.open.set()
    publishers.join()


def crowd(gate: Gate, lane: Lane, publishers: Publishers, in_line: int) -> None:
    """Two who send and so many who stand in line; then let all of them through."""
    for number in range(publishing.REQUESTS):
        publishers.start(b"%d" % number)
        wait_until(lambda n=number: gate.inside == n + 1)  # type: ignore[misc]
    for number in range(in_line):
        publishers.start(b"%d" % number)
    wait_until(lambda: len(lane._line) == in_line)
    gate.open.set()
    publishers.join()


def test_two_requests_are_in_flight_and_the_rest_share_the_next(
    client: Client, gate: Gate, lane: Lane, publishers: Publishers
) -> None:
    crowd(gate, lane, publishers, in_line=8)
    assert not publishers.errors
    assert sorted(publishers.offsets) == list(range(1, 11))
    assert gate.most == publishing.REQUESTS
    assert len(gate.sizes) <= 4
    assert len(lane._free) == publishing.REQUESTS


def test_an_error_of_one_request_is_its_own(client: Client, gate: Gate, lane: Lane, publishers: Publishers) -> None:
    gate.error = Unavailable("planted")
    publishers.start(b"x")
    wait_until(lambda: gate.inside == 1)
    publishers.start(b"y")
    wait_until(lambda: gate.inside == 2)
    gate.open.set()
    publishers.join()
    assert [str(error) for error in publishers.errors] == ["planted"]
    assert publishers.offsets == [1]
    assert client.publish("a", b"z").offset == 2


def test_who_is_interrupted_while_he_sends_leaves_nobody_behind(
    client: Client, gate: Gate, lane: Lane, publishers: Publishers
) -> None:
    gate.error = KeyboardInterrupt()
    crowd(gate, lane, publishers, in_line=3)
    assert [type(error) for error in publishers.errors] == [KeyboardInterrupt]
    assert len(publishers.offsets) == 4
    assert len(lane._free) == publishing.REQUESTS


def test_who_is_interrupted_with_a_duty_hands_it_on(
    client: Client, lane: Lane, gate: Gate, publishers: Publishers, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = lane._send_all
    interrupted: list[object] = []

    def send_all(entry: Any, timeout: float | None) -> None:
        if len(entry.duty[0]) > 1 and not interrupted:
            interrupted.append(entry)
            raise KeyboardInterrupt
        honest(entry, timeout)

    monkeypatch.setattr(lane, "_send_all", send_all)
    crowd(gate, lane, publishers, in_line=4)
    assert interrupted
    assert [type(error) for error in publishers.errors] == [KeyboardInterrupt]
    assert len(publishers.offsets) == 5
    assert len(lane._free) == publishing.REQUESTS


def test_who_is_interrupted_alone_starts_over_under_another_name(client: Client, gate: Gate, lane: Lane) -> None:
    before = {each.producer_id for each in lane._free}
    gate.error = KeyboardInterrupt()
    gate.open.set()
    with pytest.raises(KeyboardInterrupt):
        client.publish("a", b"x")
    assert len(lane._free) == publishing.REQUESTS
    assert len(before - {each.producer_id for each in lane._free}) == 1
    assert client.publish("a", b"y").offset == 1


def test_who_finds_a_request_free_does_not_stand_in_line(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(publishing, "_Entry")
    assert client.publish("a", b"x").offset == 1


def test_what_was_published_is_not_kept_in_memory(
    gate: Gate, lane: Lane, publishers: Publishers, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[weakref.ref[Any]] = []

    class Entry(publishing._Entry):
        def __init__(self, message: bytes, timeout: float | None) -> None:
            super().__init__(message, timeout)
            alive.append(weakref.ref(self))

    monkeypatch.setattr(publishing, "_Entry", Entry)
    gc.disable()
    try:
        crowd(gate, lane, publishers, in_line=10)
    finally:
        gc.enable()
    assert len(alive) == 10
    assert not any(each() for each in alive)


def test_a_lane_of_a_closed_client_does_not_let_anybody_wait(client: Client, lane: Lane) -> None:
    lane._free.clear()  # as in a child of a fork, whose parent's threads were sending
    client.close()
    errors: list[MqError] = []

    def publish() -> None:
        try:
            lane.publish(b"x", None)
        except MqError as error:
            errors.append(error)

    thread = threading.Thread(target=publish, daemon=True)
    thread.start()
    thread.join(5)
    assert errors
