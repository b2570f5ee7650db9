"""What a consumer has pulled is handed out once and in order, however a loop is left and a fetch is cancelled."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from itertools import count
from typing import Any

import pytest

import mq
from mq.client.aio_connection import AsyncConnection
from mq.client.pulling import PULL
from mq.testing import broker

DEADLINE = 30.0
TURNS = range(8)  # of the loop, between an answer and a cancel: a fetch has returned before the last of them
NUMBERS = count()  # of channels
Scenario = Callable[[mq.AsyncClient], Awaitable[None]]


@pytest.fixture(scope="module", params=["wire", "grpc"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    with broker(LOG_LEVEL="ERROR") as running:
        yield str(running) if request.param == "wire" else f"grpc://{running.address}"


@pytest.fixture
def channel(address: str) -> str:
    name = f"c{next(NUMBERS)}"
    with mq.Client(address) as client:
        client.create_channel(name)
    return name


def fill(address: str, channel: str, messages: int) -> list[bytes]:
    values = [b"%d" % number for number in range(messages)]
    with mq.Client(address) as client, client.producer(channel) as producer:
        producer.send_many(values)
    return values


def run(address: str, scenario: Scenario) -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE), mq.AsyncClient(address) as client:
            await scenario(client)

    asyncio.run(main())


async def turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


# ---------------------------------------------------------------- a loop that is left


def test_a_loop_leaves_the_rest_of_its_delivery_to_fetches_of_exactly_so_many(address: str, channel: str) -> None:
    values = fill(address, channel, 40)
    with mq.Client(address) as client, client.consumer(channel, "g", batch_size=10) as consumer:
        found = [next(iter(consumer)).content, next(iter(consumer)).content]
        while len(found) < len(values):
            batch = consumer.fetch(3, timeout=DEADLINE)
            assert 0 < len(batch) <= 3
            found += batch.contents()
            batch.ack()
        assert found == values
        consumer.flush()
        assert client.describe_group(channel, "g").lag == 2


def test_a_task_that_leaves_its_loop_leaves_the_rest_to_fetches_too(address: str, channel: str) -> None:
    values = fill(address, channel, 40)

    async def scenario(client: mq.AsyncClient) -> None:
        async with await client.consumer(channel, "g", batch_size=10) as consumer:
            found = []
            async for message in consumer:
                found.append(message.content)
                break
            while len(found) < len(values):
                batch = await consumer.fetch(3, timeout=DEADLINE)
                assert 0 < len(batch) <= 3
                found += batch.contents()
                await batch.ack()
            assert found == values
            await consumer.flush()
            assert (await client.describe_group(channel, "g")).lag == 1

    run(address, scenario)


def test_after_a_loop_a_fetch_without_a_wait_returns_what_is_there(address: str, channel: str) -> None:
    values = fill(address, channel, 50)

    async def scenario(client: mq.AsyncClient) -> None:
        async with await client.consumer(channel, "g", batch_size=10) as consumer:
            async for message in consumer:
                found = [message.content]
                break
            while len(found) < len(values):
                found += (await consumer.fetch()).contents()
            assert found == values

    run(address, scenario)


def test_a_seek_within_a_loop_ends_the_delivery_under_way(address: str, channel: str) -> None:
    fill(address, channel, 10)
    with mq.Client(address) as client, client.consumer(channel, "g") as consumer:
        messages = iter(consumer)
        assert next(messages).offset == 0
        consumer.seek(mq.at_offset(7))
        assert next(messages).offset == 7


# ---------------------------------------------------------------- a pause


def test_a_pause_holds_within_a_delivery_and_a_stop_ends_it(address: str, channel: str) -> None:
    fill(address, channel, 5)
    with mq.Client(address) as client, client.consumer(channel, "g") as consumer:
        messages = iter(consumer)
        assert next(messages).offset == 0
        consumer.pause()
        threading.Timer(0.05, consumer.resume).start()
        assert next(messages).offset == 1
        consumer.pause()
        threading.Timer(0.05, consumer.stop).start()
        assert list(messages) == []


def test_a_pause_of_a_task_holds_within_a_delivery_and_a_stop_ends_it(address: str, channel: str) -> None:
    fill(address, channel, 5)

    async def scenario(client: mq.AsyncClient) -> None:
        loop = asyncio.get_running_loop()
        async with await client.consumer(channel, "g") as consumer:
            messages = aiter(consumer)
            assert (await anext(messages)).offset == 0
            consumer.pause()
            loop.call_later(0.05, consumer.resume)
            assert (await anext(messages)).offset == 1
            consumer.pause()
            loop.call_later(0.05, consumer.stop)
            assert [message async for message in messages] == []

    run(address, scenario)


# ---------------------------------------------------------------- a cancel


class Cancelling:
    """Cancels a task so many turns after the answer to a pull has come."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.task: asyncio.Task[None] | None = None
        self.after = 0
        monkeypatch.setattr(AsyncConnection, "call", self._patched(AsyncConnection.call))

    def _patched(self, call: Any) -> Any:
        async def patched(connection: AsyncConnection, method: str, request: bytes, **options: Any) -> bytes:
            answer: bytes = await call(connection, method, request, **options)
            if method == PULL:
                self._turn(self.after)
            return answer

        return patched

    def _turn(self, left: int) -> None:
        task = self.task
        if task is not None and left == 0:
            task.cancel()
        elif task is not None:
            asyncio.get_running_loop().call_soon(self._turn, left - 1)

    async def run(self, taking: Awaitable[None], after: int) -> None:
        self.after = after
        self.task = asyncio.ensure_future(taking)
        with suppress(asyncio.CancelledError):
            await self.task
        self.task = None


@pytest.mark.parametrize("is_iterated", [False, True])
def test_a_fetch_that_is_cancelled_in_any_turn_loses_nothing(
    address: str, channel: str, is_iterated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancelling = Cancelling(monkeypatch)

    async def scenario(client: mq.AsyncClient) -> None:
        found: list[bytes] = []
        async with await client.consumer(channel, "g", batch_size=1) as consumer:

            async def fetch(seconds: float) -> None:
                found.extend((await consumer.fetch(1, seconds)).contents())

            if is_iterated:
                await client.publish(channel, b"first")
                await anext(aiter(consumer))
            for turn in TURNS:
                fetching = asyncio.create_task(cancelling.run(fetch(DEADLINE), turn + 1))
                await turns(5)  # it waits now
                await client.publish(channel, b"%d" % turn)
                await fetching
                if len(found) <= turn:
                    await fetch(5.0)
                assert found == [b"%d" % each for each in range(turn + 1)]

    run(address, scenario)


def test_a_fetch_that_is_cancelled_before_its_answer_leaves_it_to_the_next(address: str, channel: str) -> None:
    values = fill(address, channel, 30)

    async def scenario(client: mq.AsyncClient) -> None:
        found: list[bytes] = []
        async with await client.consumer(channel, "g") as consumer:
            found += (await consumer.fetch(1, 5.0)).contents()  # it is connected
            while len(found) < len(values):
                fetching = asyncio.create_task(consumer.fetch(1, DEADLINE))
                await turns(len(found))
                fetching.cancel()
                with suppress(asyncio.CancelledError):
                    found += (await fetching).contents()
                if len(found) < len(values):
                    batch = await consumer.fetch(1, 5.0)
                    assert len(batch) == 1
                    found += batch.contents()
        assert found == values

    run(address, scenario)


def test_a_fetch_without_a_wait_sees_what_came_while_a_cancelled_one_waits(address: str, channel: str) -> None:
    async def scenario(client: mq.AsyncClient) -> None:
        async with await client.consumer(channel, "g") as consumer:
            with suppress(TimeoutError):
                async with asyncio.timeout(0.02):
                    await consumer.fetch(10, DEADLINE)
            await client.publish(channel, b"x")
            assert (await consumer.fetch(10)).contents() == [b"x"]
            assert len(await consumer.fetch(10)) == 0

    run(address, scenario)


def test_a_reader_that_is_cancelled_in_any_turn_skips_nothing(
    address: str, channel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = fill(address, channel, 2 * len(TURNS))
    cancelling = Cancelling(monkeypatch)

    async def scenario(client: mq.AsyncClient) -> None:
        found: list[bytes] = []
        async with client.read(channel, batch_size=1) as reader:

            async def read() -> None:
                async with aclosing(aiter(reader)) as messages:  # type: ignore[type-var]
                    found.append((await anext(messages)).content)

            for turn in TURNS:
                await cancelling.run(read(), turn)
                await read()
            while len(found) < len(values):
                await read()
        assert found == values

    run(address, scenario)
