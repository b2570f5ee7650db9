"""The client for asyncio against a real broker: the same names, with await."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from process import wait_until
from tcpproxy import Proxy, connected

import mq
from mq.testing import broker

DEADLINE = 30.0
Scenario = Callable[[mq.AsyncClient], Awaitable[None]]


def run(address: str, scenario: Scenario) -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE), mq.AsyncClient(address) as client:
            await client.create_channel("c", exist_ok=True)
            await scenario(client)

    asyncio.run(main())


@pytest.fixture(scope="module", params=["wire", "grpc"])
def address(request: pytest.FixtureRequest) -> Any:
    with broker(LOG_LEVEL="ERROR") as running:
        yield str(running) if request.param == "wire" else f"grpc://{running.address}"


async def contents(client: mq.AsyncClient, channel: str) -> list[bytes]:
    return [message.content async for message in client.read(channel, follow=False)]


def test_both_clients_have_the_same_names() -> None:
    pairs = [
        (mq.Client, mq.AsyncClient, {"connect"}),
        (mq.Producer, mq.AsyncProducer, set()),
        (mq.Consumer, mq.AsyncConsumer, set()),
        (mq.Transaction, mq.AsyncTransaction, set()),
        (mq.Message, mq.AsyncMessage, set()),
        (mq.Batch, mq.AsyncBatch, set()),
        (mq.Reader, mq.AsyncReader, set()),
    ]
    for threads, tasks, more in pairs:
        names = {name for name in dir(threads) if not name.startswith("_")} - {"stop"}
        assert names | more == {name for name in dir(tasks) if not name.startswith("_")} - {"stop"}
        for name in names:
            method = getattr(threads, name)
            if inspect.isfunction(method) and name not in ("close", "flush"):
                ours = list(inspect.signature(method).parameters)
                assert ours == list(inspect.signature(getattr(tasks, name)).parameters), name


def test_tasks_that_publish_at_once_share_requests(address: str) -> None:
    async def scenario(client: mq.AsyncClient) -> None:
        await client.create_channel("shared")
        values = [b"%d" % number for number in range(1_000)]
        answers = await asyncio.gather(*(client.publish("shared", value) for value in values))
        stored = await contents(client, "shared")
        assert [stored[answer.offset] for answer in answers] == values
        info = await client.describe_channel("shared")
        assert info.messages == 1_000

    run(address, scenario)


def test_publishes_that_are_answered_make_no_tasks() -> None:
    """They are callbacks of the loop; a task for each request cost a third of all that a busy client did."""

    async def main(address: str) -> None:
        loop, made = asyncio.get_running_loop(), 0

        def count(loop: asyncio.AbstractEventLoop, work: Any, **named: Any) -> asyncio.Task[Any]:
            nonlocal made
            made += 1
            return asyncio.Task(work, loop=loop, **named)

        async with mq.AsyncClient(address) as client:
            await client.create_channel("c")
            await client.publish("c", b"the first one")
            loop.set_task_factory(count)
            for number in range(20):
                await client.publish("c", b"%d" % number)
        assert made == 0

    with broker(LOG_LEVEL="ERROR") as running:
        asyncio.run(main(str(running)))


def test_a_publish_whose_answer_is_lost_is_sent_again_and_stored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection lives on, so that nothing but the time tells."""
    monkeypatch.setattr("mq.client.aio_publisher.ATTEMPT_SECONDS", 0.3)

    async def scenario(client: mq.AsyncClient) -> None:
        await client.publish("c", b"one")
        proxy.swallow_answers()
        late = [asyncio.create_task(client.publish("c", b"%d" % number)) for number in range(3)]
        await asyncio.to_thread(wait_until, lambda: bool(proxy.swallowed_bytes))
        proxy.let_pass()
        assert [(await each).offset for each in late] == [1, 2, 3]
        assert await contents(client, "c") == [b"one", b"0", b"1", b"2"]

    with connected() as (_, proxy):
        run(proxy.address, scenario)


def test_an_argument_that_no_request_can_hold_is_told_each_time(address: str) -> None:
    async def scenario(client: mq.AsyncClient) -> None:
        for _ in range(2):
            with pytest.raises(ValueError, match="range"):
                await client.publish("c", b"x", partition=-1)

    run(address, scenario)


def test_an_answer_that_makes_no_sense_is_an_error_and_the_next_publish_goes_on(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(client: mq.AsyncClient) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("mq.client.aio_publisher.published", lambda *_: [])
            with pytest.raises(ValueError, match="zip"):
                await client.publish("c", b"x")
        assert (await client.publish("c", b"y")).offset > 0

    run(address, scenario)


def test_a_publish_ends_with_the_clients_own_time_and_the_next_one_goes_on() -> None:
    async def main(proxy: Proxy) -> None:
        async with asyncio.timeout(DEADLINE), mq.AsyncClient(proxy.address, timeout=0.4) as client:
            await client.publish("c", b"one")
            proxy.swallow()
            with pytest.raises(mq.TimedOut):
                await client.publish("c", b"two")
            proxy.heal()
            await client.publish("c", b"three")
            assert await contents(client, "c") == [b"one", b"three"]  # the second one never got there

    with connected() as (_, proxy):
        asyncio.run(main(proxy))


def test_a_cancelled_publish_leaves_the_others_alone(address: str) -> None:
    async def scenario(client: mq.AsyncClient) -> None:
        await client.create_channel("cancelled")
        tasks = [asyncio.create_task(client.publish("cancelled", b"%d" % number)) for number in range(100)]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results[::2])
        assert all(isinstance(result, mq.Published) for result in results[1::2])
        assert (await client.publish("cancelled", b"after")).offset >= 50

    run(address, scenario)


def test_a_producer_batches_and_its_messages_can_be_awaited(address: str) -> None:
    async def scenario(client: mq.AsyncClient) -> None:
        await client.create_channel("produced", partitions=2)
        async with await client.producer("produced", linger_ms=1) as producer:
            sent = [await producer.send({"n": number}, key=str(number % 3)) for number in range(1_000)]
            assert await producer.send_many([b"a", b"b"]) == 2
            first = await sent[0]
            assert (first.channel, first.offset) == ("produced", 0)
        assert all(each.done() for each in sent)
        assert len(await contents(client, "produced")) == 1_002

    run(address, scenario)


def test_many_are_sent_in_order_in_batches_that_a_request_can_hold(address: str) -> None:
    async def scenario(client: mq.AsyncClient) -> None:
        await client.create_channel("many")
        async with await client.producer("many", batch_bytes=10_000, buffer_bytes=50_000) as producer:
            await producer.send(b"first")
            assert await producer.send_many(b"%d" % number for number in range(12_345)) == 12_345
            assert await producer.send_many(["text", {"a": 1}], key="k") == 2
            assert await producer.send_many([]) == 0
        found = await contents(client, "many")
        assert found == [b"first", *(b"%d" % number for number in range(12_345)), b"text", b'{"a":1}']

    run(address, scenario)


def test_an_iteration_ends_quietly_when_its_consumer_is_closed(address: str) -> None:
    async def scenario(client: mq.AsyncClient) -> None:
        await client.create_channel("closed")
        for number in range(3):
            await client.publish("closed", b"%d" % number)
        consumer = await client.consumer("closed", "g", batch_size=1)
        async for message in consumer:
            await message.ack()
            await consumer.close()
        assert (await client.describe_group("closed", "g")).lag == 2
        with pytest.raises(mq.Unavailable, match="closed"):
            async for _ in consumer:
                pass

    run(address, scenario)


def test_a_paused_consumer_fetches_nothing_until_it_is_resumed(address: str) -> None:
    async def scenario(client: mq.AsyncClient) -> None:
        await client.create_channel("paused")
        await client.publish("paused", b"1")
        async with await client.consumer("paused", "g") as consumer:
            consumer.pause()
            assert len(await consumer.fetch(1, timeout=0.01)) == 0
            asyncio.get_running_loop().call_later(0.05, consumer.resume)
            assert (await consumer.fetch(1, timeout=30))[0].value == b"1"

    run(address, scenario)


def test_a_consumer_iterates_acks_and_gives_back(address: str) -> None:
    async def scenario(client: mq.AsyncClient) -> None:
        await client.create_channel("consumed")
        async with await client.producer("consumed") as producer:
            await producer.send_many(b"%d" % number for number in range(1_500))
        async with await client.consumer("consumed", "g") as consumer:
            found = []
            async for message in consumer:
                async with message.process():
                    found.append(message.value)
                if len(found) == 1_000:
                    break
        assert found == [b"%d" % number for number in range(1_000)]
        async with await client.consumer("consumed", "g") as consumer:
            batch = await consumer.fetch(200, timeout=5)
            assert batch[0].offset == 1_000
            await batch.ack()
            async for rest in consumer.batches():
                await rest.ack()
                if rest[-1].offset == 1_499:
                    break
        assert (await client.describe_group("consumed", "g")).lag == 0

    run(address, scenario)


def test_a_failing_handler_hands_back_and_a_rejected_message_is_buried(address: str) -> None:
    async def scenario(client: mq.AsyncClient) -> None:
        await client.create_channel("failing")
        await client.create_group("failing", "g", backoff_ms=[1])
        await client.publish("failing", b"x")
        async with await client.consumer("failing", "g") as consumer:
            messages = aiter(consumer)
            with pytest.raises(ZeroDivisionError):
                async with (await anext(messages)).process():
                    raise ZeroDivisionError
            again = await anext(messages)
            assert again.delivery_count == 2
            await again.extend()
            await again.reject("poison")
            await consumer.flush()
            assert await contents(client, "failing.dlq") == [b"x"]

    run(address, scenario)


def test_stop_pause_and_seek_steer_the_iteration(address: str) -> None:
    async def scenario(client: mq.AsyncClient) -> None:
        await client.create_channel("steered")
        await client.publish("steered", b"a")
        await client.publish("steered", b"b")
        async with await client.consumer("steered", "g") as consumer:
            consumer.pause()
            asyncio.get_running_loop().call_later(0.05, consumer.resume)
            messages = aiter(consumer)
            assert (await anext(messages)).content == b"a"
            await consumer.seek(mq.at_offset(1))
            assert (await anext(aiter(consumer))).content == b"b"
            asyncio.get_running_loop().call_later(0.05, consumer.stop)
            assert [message async for message in consumer] == []

    run(address, scenario)


def test_a_cancelled_iteration_closes_cleanly(address: str) -> None:
    async def scenario(client: mq.AsyncClient) -> None:
        await client.create_channel("idle")
        consumer = await client.consumer("idle", "g")

        async def consume() -> None:
            async for _ in consumer:
                pass

        task = asyncio.create_task(consume())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await consumer.close()
        with pytest.raises(mq.Unavailable, match="closed"):
            await consumer.fetch(1)

    run(address, scenario)


def test_a_transaction_commits_or_leaves_everything(address: str) -> None:
    async def scenario(client: mq.AsyncClient) -> None:
        await client.create_channel("tx")
        await client.publish("tx", b"in")
        async with await client.consumer("tx", "g") as consumer:
            batch = await consumer.fetch(1, timeout=5)
            async with client.transaction() as tx:
                tx.publish("tx", b"out")
                tx.ack(batch)
            assert [each.offset for each in tx.published] == [1]
            with pytest.raises(mq.ChannelNotFound):
                async with client.transaction() as tx:
                    tx.publish("no-such", b"never")
        assert (await client.describe_group("tx", "g")).lag == 1

    run(address, scenario)


def test_errors_and_closed_clients_are_as_with_threads(address: str) -> None:
    async def scenario(client: mq.AsyncClient) -> None:
        with pytest.raises(mq.ChannelNotFound):
            await client.publish("no-such", b"x")
        with pytest.raises(mq.ChannelNotFound):
            await client.producer("no-such")
        await client.close()
        with pytest.raises(mq.Unavailable, match="closed"):
            await client.publish("c", b"x")

    run(address, scenario)
    with pytest.raises(mq.Unavailable):
        run("mq://127.0.0.1:1", scenario)


def test_resets_lose_nothing_and_double_nothing() -> None:
    with connected() as (_, proxy):
        run(proxy.address, lambda client: _disturbed(client, proxy))


async def _disturbed(client: mq.AsyncClient, proxy: Proxy) -> None:
    async with await client.producer("c", linger_ms=0, batch_size=10) as producer:
        for number in range(2_000):
            await producer.send(b"%d" % number)
            if number % 500 == 250:
                await asyncio.sleep(0)
                proxy.reset()
                await client.publish("c", b"single")
    stored = await contents(client, "c")
    assert [value for value in stored if value != b"single"] == [b"%d" % number for number in range(2_000)]
    assert stored.count(b"single") == 4


def test_a_deadline_of_a_publish_is_kept() -> None:
    async def scenario(client: mq.AsyncClient) -> None:
        proxy.swallow()
        with pytest.raises(mq.TimedOut):
            await client.publish("c", b"x", timeout=0.1)

    with connected() as (_, proxy):
        run(proxy.address, scenario)
