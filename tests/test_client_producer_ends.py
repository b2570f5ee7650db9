"""How a producer ends: whoever waits for it hears something, whatever became of the network, the loop or a callback."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from process import wait_until
from tcpproxy import Proxy, connected

import mq
from mq.client.outbox import OutBatch
from mq.client.resend import resend
from mq.client.sequence import Sequence

DEADLINE = 10.0
Scenario = Callable[[mq.AsyncClient], Awaitable[None]]


@pytest.fixture
def client(mq_client: mq.Client) -> mq.Client:
    mq_client.create_channel("c")
    return mq_client


def run(address: str, scenario: Scenario) -> None:
    async def main() -> None:
        async with asyncio.timeout(3 * DEADLINE), mq.AsyncClient(address) as client:
            await scenario(client)

    asyncio.run(main())


def in_background(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """A thread, and what came of its work: what it returned or raised."""
    outcome: list[object] = []

    def note() -> None:
        try:
            outcome.append(work())
        except mq.MqError as error:
            outcome.append(error)

    thread = threading.Thread(target=note, daemon=True)
    thread.start()
    return thread, outcome


async def until(condition: Callable[[], object]) -> None:
    await asyncio.to_thread(wait_until, lambda: bool(condition()), DEADLINE)


async def outcome_of(sent: Awaitable[mq.Published]) -> mq.Published:
    return await sent


def contents(client: mq.Client) -> list[bytes]:
    return [message.content for message in client.read("c", follow=False)]


# ---------------------------------------------------------------- a close that takes too long


@pytest.mark.parametrize("is_reset", [False, True], ids=["in flight", "sent again"])
def test_a_close_that_takes_too_long_leaves_nobody_waiting(is_reset: bool) -> None:
    with connected() as (client, proxy):
        producer = client.producer("c", linger_ms=0, buffer_bytes=150)
        producer.send(b"warm").result(DEADLINE)
        proxy.swallow()
        sent = producer.send(b"x" * 100)
        if is_reset:
            proxy.reset()
            wait_until(lambda: bool(producer._failed))
        later = producer.send(b"y" * 100)
        sender, blocked = in_background(lambda: producer.send(b"z"))
        flusher, flushed = in_background(producer.flush)
        wait_until(lambda: producer._is_flushing == 1)
        with pytest.raises(mq.TimedOut):
            producer.close(timeout=0.2)
        for each in (sent, later):
            assert type(each.exception(DEADLINE)) is mq.Unavailable
        for thread, outcome in ((sender, blocked), (flusher, flushed)):
            thread.join(DEADLINE)
            assert [type(told) for told in outcome] == [mq.Unavailable]


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["too long", "cancelled"])
@pytest.mark.parametrize("is_reset", [False, True], ids=["in flight", "sent again"])
def test_nor_does_one_of_asyncio(is_reset: bool, is_cancelled: bool) -> None:
    async def scenario(client: mq.AsyncClient) -> None:
        producer = await client.producer("c", linger_ms=0, batch_size=1, buffer_bytes=150)
        await (await producer.send(b"warm"))
        proxy.swallow()
        sent = await producer.send(b"x" * 100)
        if is_reset:
            proxy.reset()
            await until(lambda: producer._recovery)
        ready = await producer.send(b"y" * 100)
        tasks = [asyncio.create_task(work) for work in (producer.send(b"z"), producer.flush())]
        tasks += [asyncio.create_task(outcome_of(each)) for each in (sent, ready)]
        await asyncio.sleep(0)
        closing = asyncio.create_task(producer.close(timeout=None if is_cancelled else 0.2))
        if is_cancelled:
            await asyncio.sleep(0)
            closing.cancel()
        with pytest.raises(asyncio.CancelledError if is_cancelled else mq.TimedOut):
            await closing
        done, left = await asyncio.wait(tasks, timeout=DEADLINE)
        assert not left
        assert [type(each.exception()) for each in done] == [mq.Unavailable] * len(tasks)
        await producer.flush(DEADLINE)

    with connected() as (_, proxy):
        run(proxy.address, scenario)


# ---------------------------------------------------------------- callbacks


def fails(sent: mq.Sent) -> None:
    raise ZeroDivisionError("a mistake of the user's")


def test_a_callback_that_raises_holds_back_no_other_and_the_producer_goes_on(
    client: mq.Client, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[mq.Sent] = []
    with client.producer("c", linger_ms=60_000) as producer:
        for is_there in (True, False):
            sent = producer.send(b"x")
            sent.add_done_callback(fails)
            sent.add_done_callback(told.append)
            if is_there:
                producer.flush(DEADLINE)
            else:
                client.delete_channel("c")
                with pytest.raises(mq.ChannelNotFound):
                    producer.flush(DEADLINE)
            sent.add_done_callback(fails)
        assert len(told) == 2
        client.create_channel("c")
        after = producer.send(b"after")
    assert after.result().offset == 0
    assert len([each for each in caplog.records if each.name == "mq.client"]) == 4


def test_nor_does_one_of_asyncio_hold_back_an_await(mq_broker: str, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(client: mq.AsyncClient) -> None:
        await client.create_channel("c")
        async with await client.producer("c", linger_ms=60_000) as producer:
            for is_there in (True, False):
                first, second = await producer.send(b"1"), await producer.send(b"2")
                first.add_done_callback(fails)
                waiting = asyncio.create_task(outcome_of(second))
                await asyncio.sleep(0)
                if is_there:
                    await producer.flush(DEADLINE)
                    assert (await waiting).offset == 1
                else:
                    await client.delete_channel("c")
                    with pytest.raises(mq.ChannelNotFound):
                        await producer.flush(DEADLINE)
                    with pytest.raises(mq.ChannelNotFound):
                        await waiting
            await producer.flush(DEADLINE)
            await client.create_channel("c")
            after = await producer.send(b"after")
        assert (await after).offset == 0

    run(mq_broker, scenario)
    assert len([each for each in caplog.records if each.name == "mq.client"]) == 2


# ---------------------------------------------------------------- what no request can hold


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"ttl_ms": -1}, ValueError),
        ({"ttl_ms": 1.5}, TypeError),
        ({"durability": "tape"}, mq.InvalidArgument),
    ],
)
def test_what_no_request_can_hold_is_told_where_the_producer_is_made(
    client: mq.Client, mq_broker: str, options: dict[str, Any], error: type[Exception]
) -> None:
    async def scenario(tasks: mq.AsyncClient) -> None:
        with pytest.raises(error):
            await tasks.producer("c", **options)

    with pytest.raises(error):
        client.producer("c", **options)
    run(mq_broker, scenario)


def broken(*_: object) -> bytes:
    raise ValueError("can't be written")


def test_a_batch_that_cannot_be_written_ends_alone(client: mq.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    with client.producer("c", linger_ms=0) as producer:
        with monkeypatch.context() as patch:
            patch.setattr("mq.client.codec.publish_request", broken)
            sent = producer.send(b"x")
            assert "can't be written" in str(sent.exception(DEADLINE))
            with pytest.raises(mq.MqError):
                producer.flush(DEADLINE)
        assert producer.send(b"y").result(DEADLINE).offset == 0


def test_so_does_one_of_asyncio(mq_broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(client: mq.AsyncClient) -> None:
        await client.create_channel("c")
        async with await client.producer("c", linger_ms=0, batch_size=1) as producer:
            with monkeypatch.context() as patch:
                patch.setattr("mq.client.codec.publish_request", broken)
                sent = await producer.send(b"x")
                with pytest.raises(mq.MqError, match="can't be written"):
                    await asyncio.wait_for(outcome_of(sent), DEADLINE)
                with pytest.raises(mq.MqError):
                    await producer.flush(DEADLINE)
            assert (await asyncio.wait_for(outcome_of(await producer.send(b"y")), DEADLINE)).offset == 0

    run(mq_broker, scenario)


# ---------------------------------------------------------------- the end of the loop

LEFT_BEHIND = """
import asyncio, sys
import mq

async def produce(client, is_sending):
    async with await client.producer("c", linger_ms=0, batch_size=1) as producer:
        await (await producer.send(b"warm"))
        print("warm", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        for _ in range(3):
            await producer.send(b"lost")
        while producer._recovery is None:
            await asyncio.sleep(0.01)
        is_sending.set()
        await asyncio.sleep(3600)

async def main():
    client = await mq.AsyncClient(sys.argv[1]).connect()
    is_sending = asyncio.Event()
    task = asyncio.create_task(produce(client, is_sending))
    await is_sending.wait()

asyncio.run(main())
"""


def test_a_loop_comes_to_its_end_though_a_producer_was_left_behind_without_a_broker() -> None:
    with connected() as (_, proxy):
        process = subprocess.Popen(
            [sys.executable, "-c", LEFT_BEHIND, proxy.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "warm\n"
            proxy.swallow()
            proxy.reset()
            _, told = process.communicate("the network is gone\n", timeout=DEADLINE)
            assert process.returncode == 0, told
        finally:
            process.kill()
            process.communicate()


def test_a_producer_whose_retry_was_cancelled_says_so_and_goes_on() -> None:
    async def scenario(client: mq.AsyncClient) -> None:
        async with await client.producer("c", linger_ms=0, batch_size=1) as producer:
            await (await producer.send(b"warm"))
            proxy.swallow()
            proxy.reset()
            await until(lambda: producer._connection.ready is None)
            for is_begun in (False, True):
                sent = await producer.send(b"lost")
                assert producer._recovery is not None
                if is_begun:
                    await asyncio.sleep(0.05)
                producer._recovery.cancel()
                with pytest.raises(mq.Unavailable, match="cancelled"):
                    await asyncio.wait_for(outcome_of(sent), DEADLINE)
                with pytest.raises(mq.Unavailable, match="cancelled"):
                    await producer.flush(DEADLINE)
            proxy.heal()
            assert (await outcome_of(await producer.send(b"after"))).offset == 1

    with connected() as (client, proxy):
        run(proxy.address, scenario)
        assert contents(client) == [b"warm", b"after"]


# ---------------------------------------------------------------- numbers after an outcome that nobody knows

REFUSALS = [mq.MqError("may be anything"), mq.PermissionDenied("not any more")]


@pytest.mark.parametrize("refusal", REFUSALS, ids=["anything", "refused"])
def test_the_number_of_a_batch_that_may_be_stored_is_not_given_to_another(
    refusal: mq.MqError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> bytes:
        raise refusal

    with connected() as (client, proxy), client.producer("c", linger_ms=0) as producer:
        producer.send(b"warm").result(DEADLINE)
        lose_the_answer(proxy)
        sent = producer.send(b"same")
        wait_until(lambda: bool(proxy.swallowed_bytes))
        with monkeypatch.context() as patch:
            patch.setattr(producer._connection, "call", refuse)
            proxy.heal()
            assert type(sent.exception(DEADLINE)) is type(refusal)
        with pytest.raises(type(refusal)):
            producer.flush(DEADLINE)
        assert producer.send(b"same").result(DEADLINE).offset == 2  # another message, though it has the same bytes
        assert contents(client) == [b"warm", b"same", b"same"]


@pytest.mark.parametrize("refusal", REFUSALS, ids=["anything", "refused"])
def test_nor_by_a_producer_of_asyncio(refusal: mq.MqError, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> bytes:
        raise refusal

    async def scenario(client: mq.AsyncClient) -> None:
        async with await client.producer("c", linger_ms=0, batch_size=1) as producer:
            await (await producer.send(b"warm"))
            lose_the_answer(proxy)
            sent = await producer.send(b"same")
            await until(lambda: proxy.swallowed_bytes)
            with monkeypatch.context() as patch:
                patch.setattr(producer._connection, "call", refuse)
                proxy.heal()
                with pytest.raises(type(refusal)):
                    await outcome_of(sent)
            with pytest.raises(type(refusal)):
                await producer.flush(DEADLINE)
            assert (await outcome_of(await producer.send(b"same"))).offset == 2

    with connected() as (client, proxy):
        run(proxy.address, scenario)
        assert contents(client) == [b"warm", b"same", b"same"]


def lose_the_answer(proxy: Proxy) -> None:
    proxy.swallowed_bytes = 0
    proxy.swallow_answers()


def sent_again(
    first: list[mq.MqError], outcomes: dict[bytes, mq.MqError]
) -> tuple[list[tuple[bytes, int]], dict[bytes, str], Sequence]:
    """What was sent under which number, what became of each batch, and the numbers after it."""
    sequence = Sequence()
    batches = []
    for number, _ in enumerate(first):
        batch = OutBatch("c", None, 0.0)
        batch.add(b"%d" % number)
        batch.sequence = sequence.next = number
        batches.append(batch)
    sequence.next += 1
    names = {id(batch): batch.pieces[0] for batch in batches}
    tries: list[tuple[bytes, int]] = []
    told: dict[bytes, str] = {}

    def finish(batch: OutBatch, outcome: bytes | mq.MqError) -> None:
        told[names[id(batch)]] = type(outcome).__name__

    plan = resend(list(zip(batches, first, strict=True)), sequence, finish)
    batch = next(plan, None)
    while batch is not None:
        name = names[id(batch)]
        tries.append((name, batch.sequence))
        try:
            batch = plan.send(outcomes.get(name, b""))
        except StopIteration:
            break
    return tries, told, sequence


def test_what_can_never_succeed_leaves_its_number_to_the_next_also_after_a_try_without_an_answer() -> None:
    tries, told, sequence = sent_again([mq.Unavailable("lost")] * 3, {b"0": mq.InvalidArgument("too large")})
    assert tries == [(b"0", 0), (b"1", 0), (b"2", 1)]
    assert told == {b"0": "InvalidArgument", b"1": "bytes", b"2": "bytes"}
    assert sequence.next == 2


def test_after_one_that_may_be_stored_nothing_is_sent_under_a_number_that_may_be_taken() -> None:
    gap = mq.SequenceRefused("a gap")
    for first, last in (
        (mq.MqError("may be anything"), mq.MqError("may be anything")),
        (mq.Unavailable("lost"), mq.PermissionDenied("not any more")),
    ):
        tries, told, sequence = sent_again([first, gap], {b"0": last})
        assert tries == [(b"0", 0)]
        assert told == {b"0": type(last).__name__, b"1": type(last).__name__}
        assert sequence.next == 0


def test_an_error_that_may_be_anything_is_sent_again_under_its_number() -> None:
    tries, told, sequence = sent_again([mq.MqError("may be anything"), mq.Unavailable("lost")], {})
    assert tries == [(b"0", 0), (b"1", 1)]
    assert told == {b"0": "bytes", b"1": "bytes"}
    assert sequence.next == 2


# ---------------------------------------------------------------- a flush while others send


def test_a_flush_does_not_wait_for_what_is_sent_after_it() -> None:
    with connected() as (client, proxy):
        with client.producer("c", linger_ms=60_000) as producer:
            producer.send(b"warm")
            producer.flush(DEADLINE)
            proxy.hold()
            first = producer.send(b"first")
            flusher, flushed = in_background(lambda: producer.flush(DEADLINE))
            wait_until(lambda: bool(producer._in_flight))
            second = producer.send(b"second")
            proxy.hold(False)
            flusher.join(2 * DEADLINE)
            assert flushed == [None]
            assert first.done()
            assert not second.done()
        assert contents(client) == [b"warm", b"first", b"second"]  # a close waits for all


def test_nor_does_one_of_asyncio_wait_for_it() -> None:
    async def scenario(client: mq.AsyncClient) -> None:
        async with await client.producer("c", linger_ms=60_000) as producer:
            await producer.send(b"warm")
            await producer.flush(DEADLINE)
            proxy.hold()
            first = await producer.send(b"first")
            flushing = asyncio.create_task(producer.flush(DEADLINE))
            await until(lambda: producer._in_flight)
            second = await producer.send(b"second")
            proxy.hold(False)
            await flushing
            assert first.done()
            assert not second.done()

    with connected() as (client, proxy):
        run(proxy.address, scenario)
        assert contents(client) == [b"warm", b"first", b"second"]


# ---------------------------------------------------------------- silence


def test_a_batch_that_nobody_answers_is_sent_again_on_another_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq.client.producer.ATTEMPT_SECONDS", 0.1)
    with connected() as (client, proxy), client.producer("c") as producer:
        producer.send(b"warm").result(DEADLINE)
        proxy.swallow_answers()
        sent = producer.send(b"once")
        wait_until(lambda: proxy.swallowed_bytes > 0)
        proxy.let_pass()  # the connection stays, and says nothing of what it was asked
        assert sent.result(DEADLINE).offset == 1
        assert contents(client) == [b"warm", b"once"]


def test_nor_does_one_of_asyncio_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq.client.aio_producer.ATTEMPT_SECONDS", 0.1)

    async def scenario(client: mq.AsyncClient) -> None:
        async with await client.producer("c") as producer:
            await (await producer.send(b"warm"))
            proxy.swallow_answers()
            sent = await producer.send(b"once")
            await until(lambda: proxy.swallowed_bytes)
            proxy.let_pass()
            assert (await sent).offset == 1

    with connected() as (client, proxy):
        run(proxy.address, scenario)
        assert contents(client) == [b"warm", b"once"]


def test_a_producer_that_is_answered_keeps_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mq.client.producer.ATTEMPT_SECONDS", 0.02)
    with connected() as (client, proxy), client.producer("c") as producer:
        producer.send(b"warm").result(DEADLINE)
        before = proxy.connections
        for _ in range(50):
            producer.send(b"x").result(DEADLINE)
            time.sleep(0.005)
        assert proxy.connections == before
