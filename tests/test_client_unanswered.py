"""Requests without an answer: they are done once or not at all, nobody waits for ever, nothing is left open."""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from process import wait_until
from tcpproxy import Proxy, connected

import mq
from mq.client import aio_connection
from mq.client.address import Address
from mq.client.aio_publisher import AsyncLane
from mq.client.connection import Connection
from mq.client.grpc import AsyncGrpcTransport
from mq.client.options import PublishOptions
from mq.client.publisher import PUBLISH_BATCH, Lane, _Entry
from mq.client.sequence import Sequence
from mq.client.transport import same
from mq.client.value import message_of
from mq.errors import InvalidArgument, MessageTooLarge, MqError, Unavailable
from mq.pb import mq_pb2 as pb
from mq.testing import broker

DEADLINE = 30.0
X = message_of(b"x", None, None, None)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[tuple[mq.Client, Proxy]]:
    with connected(tmp_path) as (client, proxy):
        yield client, proxy


def contents(client: mq.Client, channel: str = "c") -> list[bytes]:
    return [message.content for message in client.read(channel, follow=False)]


# ---------------------------------------------------------------- transactions


def test_what_was_committed_is_not_committed_again_at_the_end_of_the_block(client: tuple[mq.Client, Proxy]) -> None:
    direct, _ = client
    direct.publish("c", b"in")
    with direct.consumer("c", "g") as consumer:
        with direct.transaction() as tx:
            tx.publish("c", b"one")
            tx.ack(consumer.fetch(1, timeout=DEADLINE))
            assert [each.offset for each in tx.commit()] == [1]
            assert [each.offset for each in tx.published] == [1]
        with direct.transaction() as tx:
            tx.publish("c", b"two")
            tx.commit()
            tx.publish("c", b"three")  # the next one, which the end of the block commits
    assert contents(direct) == [b"in", b"one", b"two", b"three"]


def test_the_same_with_asyncio(client: tuple[mq.Client, Proxy]) -> None:
    direct, proxy = client

    async def main() -> None:
        async with asyncio.timeout(DEADLINE), mq.AsyncClient(proxy.address) as other:
            async with other.transaction() as tx:
                tx.publish("c", b"one")
                await tx.commit()
            async with other.transaction() as tx:
                tx.publish("c", b"two")

    asyncio.run(main())
    assert contents(direct) == [b"one", b"two"]


def test_a_commit_without_an_answer_can_be_repeated_and_is_done_once(client: tuple[mq.Client, Proxy]) -> None:
    _, proxy = client
    with mq.Client(proxy.address, timeout=0.5) as hasty:
        tx = hasty.transaction()
        tx.publish("c", b"once")
        proxy.swallow_answers()
        with pytest.raises((mq.Unavailable, mq.TimedOut)):
            tx.commit()
        with pytest.raises(mq.InvalidArgument, match="not known"):
            tx.publish("c", b"what would this be part of?")
        proxy.heal()
        assert [each.offset for each in tx.commit()] == [0]
        tx.publish("c", b"next")
        tx.commit()
        assert contents(hasty) == [b"once", b"next"]


def test_a_commit_without_an_answer_is_done_once_with_asyncio_too(client: tuple[mq.Client, Proxy]) -> None:
    direct, proxy = client

    async def main() -> None:
        async with asyncio.timeout(DEADLINE), mq.AsyncClient(proxy.address, timeout=0.5) as hasty:
            tx = hasty.transaction()
            tx.publish("c", b"once")
            proxy.swallow_answers()
            with pytest.raises((mq.Unavailable, mq.TimedOut)):
                await tx.commit()
            proxy.heal()
            assert [each.offset for each in await tx.commit()] == [0]

    asyncio.run(main())
    assert contents(direct) == [b"once"]


def test_a_transaction_that_was_refused_can_be_mended_and_committed(client: tuple[mq.Client, Proxy]) -> None:
    direct, _ = client
    tx = direct.transaction()
    tx.publish("later", b"patient")
    with pytest.raises(mq.ChannelNotFound):
        tx.commit()
    direct.create_channel("later")
    tx.publish("later", b"another")
    assert [each.offset for each in tx.commit()] == [0, 1]


# ---------------------------------------------------------------- moving a group


class Unheard:
    """A connection whose first answer to one method is lost."""

    def __init__(self, method: str) -> None:
        self._method = method
        self.is_lost = False

    def judge(self, method: str) -> None:
        if method == self._method and not self.is_lost:
            self.is_lost = True
            raise mq.Unavailable("the answer was lost")


def test_what_is_nacked_twice_costs_nothing_of_the_rest(client: tuple[mq.Client, Proxy]) -> None:
    mq_client, _ = client
    with mq_client.producer("c") as producer:
        producer.send_many([b"0", b"1", b"2"])
    with mq_client.consumer("c", "g") as consumer:
        first, *rest = consumer.fetch(3, timeout=DEADLINE)
        call, unheard = consumer._shared.call, Unheard("mq.MQService/Nack")

        def lossy(method: str, request: bytes, **options: Any) -> bytes:
            answer = call(method, request, **options)
            unheard.judge(method)
            return answer

        consumer._shared.call = lossy  # type: ignore[method-assign]
        first.nack(delay_ms=60_000)
        with suppress(mq.Unavailable):  # the keeper's thread may have heard of it first
            consumer.flush()
        consumer.flush()
        assert unheard.is_lost
        assert (consumer.held, consumer.lost) == (2, 0)
        consumer.ack(rest)
        consumer.flush()
        assert mq_client.describe_group("c", "g").lag == 1


def test_nor_does_it_with_asyncio(client: tuple[mq.Client, Proxy]) -> None:
    mq_client, proxy = client
    with mq_client.producer("c") as producer:
        producer.send_many([b"0", b"1", b"2"])

    async def main() -> None:
        async with mq.AsyncClient(proxy.address) as tasks, await tasks.consumer("c", "g") as consumer:
            first, *rest = await consumer.fetch(3, timeout=DEADLINE)
            call, unheard = consumer._shared.call, Unheard("mq.MQService/Nack")

            async def lossy(method: str, request: bytes, **options: Any) -> bytes:
                answer = await call(method, request, **options)
                unheard.judge(method)
                return answer

            consumer._shared.call = lossy  # type: ignore[method-assign]
            await first.nack(delay_ms=60_000)
            with suppress(mq.Unavailable):
                await consumer.flush()
            await consumer.flush()
            assert unheard.is_lost
            assert (consumer.held, consumer.lost) == (2, 0)
            for each in rest:
                await each.ack()
            await consumer.flush()
            assert mq_client.describe_group("c", "g").lag == 1

    within_the_deadline(main())


def test_a_group_is_shifted_once_though_the_answer_was_lost(client: tuple[mq.Client, Proxy]) -> None:
    direct, proxy = client
    for number in range(10):
        direct.publish("c", b"%d" % number)
    direct.create_group("c", "g", start="latest")
    heard = threading.Event()

    def heal() -> None:
        wait_until(lambda: proxy.swallowed_bytes > 0)
        proxy.heal()
        heard.set()

    with mq.Client(proxy.address) as other:
        other.server_info()
        seen = 0
        honest = other._connection.call

        def call(method: str, data: bytes, **options: Any) -> bytes:
            """The answer to the request that moves it is lost, whichever that is."""
            nonlocal seen
            if method.endswith("Seek") and not pb.SeekRequest.FromString(data).dry_run:
                seen += 1
                if seen == 1:
                    proxy.swallow_answers()
                    threading.Thread(target=heal).start()
            return honest(method, data, **options)

        other._connection.call = call  # type: ignore[method-assign, assignment]
        found = other.seek_group("c", "g", shift=-3)
        assert heard.wait(DEADLINE)
        assert [each.offset for each in found.positions] == [7]
        assert [each.offset for each in found.before] == [10]
    assert [each.offset for each in direct.describe_group("c", "g").positions] == [7]


# ---------------------------------------------------------------- names and numbers


class Script:
    """In the place of a transport: stores nothing, and answers what it was told to."""

    is_usable = True
    start_id = ""

    def __init__(self, *answers: MqError) -> None:
        self.answers = list(answers)
        self.requests: list[pb.PublishBatchRequest] = []

    def answer(self, request: bytes) -> bytes | MqError:
        asked = pb.PublishBatchRequest.FromString(request)
        self.requests.append(asked)
        if self.answers:
            return self.answers.pop(0)
        return pb.PublishBatchResponse(count=len(asked.batch.messages)).SerializeToString()

    def call(self, method: str, request: bytes, timeout: float | None = None) -> bytes:
        answer = self.answer(request)
        if isinstance(answer, MqError):
            raise answer
        return answer

    def close(self) -> None:
        pass


class AsyncScript(Script):
    async def call(self, method: str, request: bytes) -> bytes:  # type: ignore[override]
        return super().call(method, request)

    def send(self, method: str, request: bytes, done: Callable[[Any], None]) -> None:
        asyncio.get_running_loop().call_soon(done, self.answer(request))

    async def close(self) -> None:  # type: ignore[override]
        pass


LOST = [
    pytest.param([MqError("the proxy says something")], id="an error of no known class"),
    pytest.param([Unavailable("no answer"), MessageTooLarge("since the restart")], id="refused, after no answer"),
]


def lane_of(script: Script) -> Lane:
    connection = Connection([Address("mq", "a", 1)], timeout=DEADLINE, connect=lambda address, timeout: script)
    return Lane(connection, "c", PublishOptions())


@pytest.mark.parametrize("answers", LOST)
def test_a_number_whose_fate_is_not_known_is_not_used_for_the_next_message(answers: list[MqError]) -> None:
    script = Script(*map(same, answers))
    lane = lane_of(script)
    with pytest.raises(type(answers[-1])):
        lane.publish(X, None)
    lane.publish(X, None)
    first, second = script.requests[0], script.requests[-1]
    assert (first.producer_id, first.sequence) != (second.producer_id, second.sequence)


@pytest.mark.parametrize("answers", LOST)
def test_nor_with_asyncio(answers: list[MqError], monkeypatch: pytest.MonkeyPatch) -> None:
    script = AsyncScript(*map(same, answers))
    with_script(script, monkeypatch)

    async def main() -> None:
        lane = await async_lane()
        with pytest.raises(type(answers[-1])):
            await lane.publish(X)
        await lane.publish(X)

    within_the_deadline(main())
    first, second = script.requests[0], script.requests[-1]
    assert (first.producer_id, first.sequence) != (second.producer_id, second.sequence)


def with_script(script: AsyncScript, monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(address: Address, seconds: float) -> AsyncScript:
        return script

    monkeypatch.setattr(aio_connection, "connect", connect)


async def async_lane() -> AsyncLane:
    connection = aio_connection.AsyncConnection([Address("mq", "a", 1)], timeout=DEADLINE)
    await connection.transport()
    return AsyncLane(connection, "c", PublishOptions())


def test_those_who_share_a_request_without_an_answer_are_not_sent_one_by_one() -> None:
    script = Script(Unavailable("no answer"), InvalidArgument("one of them is at fault"))
    lane = lane_of(script)
    entries = [_Entry(X), _Entry(X)]
    lane._send(entries, Sequence(), None)
    assert [type(each.outcome) for each in entries] == [Unavailable, Unavailable]
    assert len(script.requests) == 2


def test_nor_are_they_with_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    script = AsyncScript(Unavailable("no answer"), InvalidArgument("one of them is at fault"))
    with_script(script, monkeypatch)

    async def main() -> None:
        lane = await async_lane()
        outcomes = await asyncio.gather(lane.publish(X), lane.publish(X), return_exceptions=True)
        assert [type(each) for each in outcomes] == [Unavailable, Unavailable]

    within_the_deadline(main())
    assert len(script.requests) == 2


def test_those_who_share_a_request_that_was_refused_at_once_are(monkeypatch: pytest.MonkeyPatch) -> None:
    script = AsyncScript(InvalidArgument("one is"), InvalidArgument("one is"), InvalidArgument("this one"))
    with_script(script, monkeypatch)

    async def main() -> None:
        lane = await async_lane()
        outcomes = await asyncio.gather(lane.publish(X), lane.publish(X), return_exceptions=True)
        assert [type(each) for each in outcomes] == [InvalidArgument, mq.Published]

    within_the_deadline(main())


def test_who_publishes_while_the_loop_ends_gets_an_answer_and_a_number_of_his_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = AsyncScript(*(Unavailable("no answer") for _ in range(3)))
    with_script(script, monkeypatch)

    async def main() -> None:
        lane = await async_lane()
        first = lane.publish(X)
        for _ in range(10):
            await asyncio.sleep(0)
        assert lane._task is not None, "it does not try again"
        script.answers = []
        lane._task.cancel()
        last = lane.publish(X)
        await last
        assert first.cancelled()

    within_the_deadline(main())
    assert script.requests[0].producer_id != script.requests[-1].producer_id


# ---------------------------------------------------------------- connecting


class Mute:
    """Takes connections, and never says a word."""

    def __init__(self) -> None:
        self.sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                self.sockets.append(self._listener.accept()[0])

    def is_left(self) -> bool:
        """Whether all who connected have gone."""
        for each in self.sockets:
            each.settimeout(DEADLINE)
            while each.recv(1 << 16):
                pass
        return True

    def close(self) -> None:
        self._listener.close()
        for each in self.sockets:
            each.close()


@pytest.fixture
def mute() -> Iterator[Mute]:
    made = Mute()
    yield made
    made.close()


def test_a_caller_that_is_cancelled_while_it_connects_leaves_the_try_to_the_next_and_a_close_ends_it(
    mute: Mute,
) -> None:
    async def main() -> None:
        connection = aio_connection.AsyncConnection([Address("mq", "127.0.0.1", mute.port)], timeout=DEADLINE)
        for _ in range(3):
            task = asyncio.create_task(connection.call(PUBLISH_BATCH, b""))
            await asyncio.to_thread(wait_until, lambda: bool(mute.sockets))
            await asyncio.sleep(0.01)  # it has connected, and waits to be welcomed
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        waiting = asyncio.create_task(connection.call(PUBLISH_BATCH, b""))
        await asyncio.sleep(0.01)
        await connection.close()
        with pytest.raises(mq.Unavailable, match="the client was closed"):
            await waiting
        assert await asyncio.to_thread(mute.is_left)

    within_the_deadline(main())
    assert len(mute.sockets) == 1


class Reached:
    """In the place of a transport for tasks."""

    is_usable = True
    start_id = ""

    def __init__(self) -> None:
        self.is_closed = False

    async def call(self, method: str, request: bytes) -> bytes:
        return b"answer"

    async def close(self) -> None:
        self.is_closed = True


def test_tasks_in_a_hurry_cut_nobody_off_but_a_silence_ends_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio_connection, "SILENCE_SECONDS", 0.2)
    silent = Reached()
    answers = False

    async def call(method: str, request: bytes) -> bytes:
        if not answers:
            await asyncio.sleep(DEADLINE)
        return b"answer"

    async def connect(address: Address, seconds: float) -> Reached:
        return silent

    async def hurry(connection: aio_connection.AsyncConnection) -> None:
        with pytest.raises(mq.TimedOut):
            await connection.call("m", b"", timeout=0.06)

    async def main() -> None:
        nonlocal answers
        connection = aio_connection.AsyncConnection([Address("mq", "a", 1)], timeout=DEADLINE)
        for _ in range(3):
            await hurry(connection)
            await hurry(connection)
            assert not silent.is_closed
            answers = True
            assert await connection.call("m", b"") == b"answer"
            answers = False
        while not silent.is_closed:
            await hurry(connection)
        assert connection.reconnects == 1

    monkeypatch.setattr(silent, "call", call)
    monkeypatch.setattr(aio_connection, "connect", connect)
    within_the_deadline(main())


def test_tasks_in_a_hurry_find_the_address_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    async def connect(address: Address, seconds: float) -> Reached:
        tried.append(address.host)
        if address.host == "b":
            return Reached()
        await asyncio.sleep(seconds)
        raise mq.Unavailable("nobody is there")

    async def main() -> None:
        nowhere = [Address("mq", host, 1) for host in ("a", "b")]
        connection = aio_connection.AsyncConnection(nowhere, timeout=DEADLINE, connect_timeout=0.2)
        with pytest.raises(mq.TimedOut):
            await connection.call("m", b"", timeout=0.02)
        while True:
            with suppress(mq.TimedOut):
                assert await connection.call("m", b"", timeout=0.05) == b"answer"
                return

    monkeypatch.setattr(aio_connection, "connect", connect)
    within_the_deadline(main())
    assert tried == ["a", "b"]


# ---------------------------------------------------------------- a broker that is about to start

DEFAULT = Address("mq", "a", 1, is_default=True)


class Starting:
    """Refuses the wire at first; gRPC waits until there is a broker."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.tried: list[str] = []
        self.made: list[Any] = []
        self._make = make

    def connect(self, address: Address, timeout: float, **_: object) -> Any:
        self.tried.append(address.scheme)
        if self.tried == ["mq"]:
            raise mq.Unavailable("nobody listens")
        self.made.append(self._make())
        return self.made[-1]


class Named:
    """In the place of a transport for threads."""

    is_usable = True

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_who_connects_while_the_broker_starts_stays_with_the_wire() -> None:
    starting = Starting(Named)
    connection = Connection([DEFAULT], timeout=DEADLINE, connect=starting.connect)
    transport = connection.transport()
    assert starting.tried == ["mq", "grpc", "mq"]
    assert [each is transport for each in starting.made] == [False, True]
    assert [each.is_closed for each in starting.made] == [True, False]
    assert connection.another()._addresses == [DEFAULT]


def test_a_task_that_connects_while_the_broker_starts_stays_with_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    starting = Starting(Reached)

    async def connect(address: Address, seconds: float) -> Any:
        return starting.connect(address, seconds)

    async def main() -> None:
        connection = aio_connection.AsyncConnection([DEFAULT], timeout=DEADLINE)
        transport = await connection.transport()
        assert [each is transport for each in starting.made] == [False, True]
        assert [each.is_closed for each in starting.made] == [True, False]
        assert connection.another()._addresses == [DEFAULT]

    monkeypatch.setattr(aio_connection, "connect", connect)
    within_the_deadline(main())


def test_callers_who_wait_for_one_connection_share_its_failure(mute: Mute) -> None:
    address = Address("mq", "127.0.0.1", mute.port)

    async def main() -> None:
        connection = aio_connection.AsyncConnection([address], timeout=0.4, connect_timeout=0.2)
        calls = [connection.call(PUBLISH_BATCH, b"") for _ in range(20)]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, (mq.Unavailable, mq.TimedOut)), outcome

    within_the_deadline(main())
    assert len(mute.sockets) < 10


def test_threads_who_wait_for_one_connection_share_its_failure(mute: Mute) -> None:
    connection = Connection([Address("mq", "127.0.0.1", mute.port)], timeout=0.4, connect_timeout=0.2)
    outcomes: list[MqError] = []

    def call() -> None:
        try:
            connection.call(PUBLISH_BATCH, b"")
        except MqError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=call) for _ in range(20)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(DEADLINE)
    assert len(outcomes) == 20
    assert len(mute.sockets) < 10


def test_a_producer_that_could_not_be_made_leaves_no_connection_behind(client: tuple[mq.Client, Proxy]) -> None:
    _, proxy = client

    async def main() -> None:
        async with mq.AsyncClient(proxy.address) as other:
            made: list[aio_connection.AsyncConnection] = []
            honest = other._connection.another

            def another() -> aio_connection.AsyncConnection:
                made.append(honest())
                return made[-1]

            other._connection.another = another  # type: ignore[method-assign]
            with pytest.raises(mq.InvalidArgument):
                await other.producer("c", batch_size=0)
            (connection,) = made
            assert connection.ready is None

    within_the_deadline(main())


def within_the_deadline(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, DEADLINE))


def test_who_is_cancelled_when_the_transport_is_closed_is_cancelled(tmp_path: Path) -> None:
    async def main() -> None:
        with broker(tmp_path, LOG_LEVEL="ERROR") as running:
            transport = await AsyncGrpcTransport.connect("127.0.0.1", running.server.grpc.port)
            pull = pb.PullRequest(channel="c", max_messages=1, max_wait_ms=20_000).SerializeToString()
            async with mq.AsyncClient(str(running)) as client:
                await client.create_channel("c")
            cancelled = asyncio.create_task(transport.call("mq.MQService/Pull", pull))
            left = asyncio.create_task(transport.call("mq.MQService/Pull", pull))
            await asyncio.sleep(0.1)
            cancelled.cancel()
            await transport.close()
            outcomes = await asyncio.gather(cancelled, left, return_exceptions=True)
            assert [type(each) for each in outcomes] == [asyncio.CancelledError, Unavailable]

    within_the_deadline(main())
