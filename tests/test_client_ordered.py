"""Ordered groups: what an application sees is in order, whatever becomes of a pull and its answer."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from process import wait_until
from tcpproxy import Proxy, connected

import mq
from mq.client.backoff import Backoff
from mq.client.pulling import MemberPull
from mq.client.wire import WireTransport
from mq.errors import DataLoss, LeaseLost, MqError, ResourceExhausted, Unavailable
from mq.pb import mq_pb2 as pb

DEADLINE = 30.0


def fill(client: mq.Client, messages: int) -> None:
    with client.producer("c") as producer:
        producer.send_many([b"%d" % number for number in range(messages)])


@contextmanager
def ordered(directory: Path, messages: int) -> Iterator[tuple[mq.Client, Proxy, mq.Client]]:
    """A client behind a proxy, and one that is not, of a broker with an ordered group `g` of a channel `c`."""
    with connected(directory) as (client, proxy), mq.Client(f"mq://127.0.0.1:{proxy.target}") as direct:
        fill(direct, messages)
        direct.create_group("c", "g", ordered=True)
        yield client, proxy, direct


def pending(direct: mq.Client) -> int:
    return direct.describe_group("c", "g").pending


# ---------------------------------------------------------------- fetching


def test_an_ordered_group_keeps_its_order_where_an_answer_is_lost(tmp_path: Path) -> None:
    with (
        ordered(tmp_path, 8) as (client, proxy, direct),
        client.consumer("c", "g", ordered=True) as consumer,
        ThreadPoolExecutor() as pool,
    ):
        first = consumer.fetch(2, timeout=DEADLINE)
        first.ack()
        consumer.flush()
        proxy.swallow_answers()
        second = pool.submit(consumer.fetch, 2, DEADLINE)
        wait_until(lambda: pending(direct) == 2)
        proxy.heal()
        seen = [message.offset for message in (*first, *second.result())]
        while len(seen) < 8:
            seen += [message.offset for message in consumer.fetch(2, timeout=DEADLINE)]
    assert seen == list(range(8))


def test_an_ordered_group_keeps_its_order_where_an_answer_is_lost_to_a_task(tmp_path: Path) -> None:
    async def consume(address: str, proxy: Proxy, direct: mq.Client) -> list[int]:
        async with mq.AsyncClient(address) as client, await client.consumer("c", "g", ordered=True) as consumer:
            first = await consumer.fetch(2, DEADLINE)
            await first.ack()
            await consumer.flush()
            proxy.swallow_answers()
            fetch = asyncio.create_task(consumer.fetch(2, DEADLINE))
            await asyncio.to_thread(wait_until, lambda: pending(direct) == 2)
            proxy.heal()
            seen = [message.offset for message in (*first, *await fetch)]
            while len(seen) < 8:
                seen += [message.offset for message in await consumer.fetch(2, DEADLINE)]
            return seen

    with ordered(tmp_path, 8) as (_, proxy, direct):
        assert asyncio.run(consume(proxy.address, proxy, direct)) == list(range(8))


def pull_late(port: int, member: str, turn: int) -> None:
    """What a network does that kept a pull for so long: it arrives, and nobody hears the answer."""
    late = WireTransport("127.0.0.1", port)
    request = pb.PullRequest(channel="c", group="g", member=member, max_messages=2, turn=turn)
    try:
        with pytest.raises(LeaseLost, match="a later pull of member"):
            late.call("mq.MQService/Pull", request.SerializeToString(), DEADLINE)
    finally:
        late.close()


def test_an_ordered_group_keeps_its_order_where_a_pull_is_late(tmp_path: Path) -> None:
    with (
        ordered(tmp_path, 8) as (client, proxy, _),
        client.consumer("c", "g", ordered=True) as consumer,
        ThreadPoolExecutor() as pool,
    ):
        first = consumer.fetch(2, timeout=DEADLINE)
        first.ack()
        consumer.flush()
        proxy.swallow_requests()
        second = pool.submit(consumer.fetch, 2, DEADLINE)
        wait_until(lambda: proxy.swallowed_bytes > 0)
        turn = consumer._as.pull.turn
        proxy.heal()
        seen = [message.offset for message in (*first, *second.result())]
        pull_late(proxy.target, consumer.member, turn)
        while len(seen) < 8:
            batch = consumer.fetch(2, timeout=DEADLINE)
            seen += [message.offset for message in batch]
        batch.ack()
        consumer.flush()
        assert consumer.lost == 0
    assert seen == list(range(8))


def test_an_ordered_group_keeps_its_order_where_a_pull_of_a_task_is_late(tmp_path: Path) -> None:
    async def consume(address: str, proxy: Proxy) -> list[int]:
        async with mq.AsyncClient(address) as client, await client.consumer("c", "g", ordered=True) as consumer:
            first = await consumer.fetch(2, DEADLINE)
            await first.ack()
            await consumer.flush()
            proxy.swallow_requests()
            fetch = asyncio.create_task(consumer.fetch(2, DEADLINE))
            await asyncio.to_thread(wait_until, lambda: proxy.swallowed_bytes > 0)
            turn = consumer._as.pull.turn
            proxy.heal()
            seen = [message.offset for message in (*first, *await fetch)]
            await asyncio.to_thread(pull_late, proxy.target, consumer.member, turn)
            while len(seen) < 8:
                batch = await consumer.fetch(2, DEADLINE)
                seen += [message.offset for message in batch]
            await batch.ack()
            await consumer.flush()
            assert consumer.lost == 0
            return seen

    with ordered(tmp_path, 8) as (_, proxy, _direct):
        assert asyncio.run(consume(proxy.address, proxy)) == list(range(8))


# ---------------------------------------------------------------- iterating

COUNT, AT_ONCE, AHEAD = 40, 4, 12  # messages; of a pull; pulled when the first is handed out


def check_order(seen: list[int]) -> None:
    """Repeats apart, one after the other: after each comes the next, or one that was seen before."""
    assert seen[0] == 0
    assert all(after <= before + 1 for before, after in pairwise(seen)), seen
    assert set(seen) == set(range(COUNT))


def test_a_loop_sees_nothing_that_was_pulled_ahead_before_what_was_lost(tmp_path: Path) -> None:
    with (
        ordered(tmp_path, COUNT) as (client, proxy, direct),
        client.consumer("c", "g", ordered=True, batch_size=AT_ONCE) as consumer,
    ):
        messages = iter(consumer)
        first = [next(messages) for _ in range(AT_ONCE)]
        consumer.ack(first)
        seen = [message.offset for message in first]
        wait_until(lambda: consumer.held == AHEAD - AT_ONCE)
        consumer.flush()
        proxy.swallow_answers()
        message = next(messages)
        seen.append(message.offset)
        wait_until(lambda: pending(direct) == AHEAD)  # the answer to the next pull is lost
        proxy.heal()
        wait_until(lambda: consumer.lost == 1)
        message.ack()
        consumer.flush()
        while len(set(seen)) < COUNT:
            message = next(messages)
            seen.append(message.offset)
            message.ack()
        check_order(seen)
        assert consumer.lost == 1


def test_a_loop_of_a_task_sees_nothing_that_was_pulled_ahead_before_what_was_lost(tmp_path: Path) -> None:
    async def consume(proxy: Proxy, direct: mq.Client) -> list[int]:
        async with (
            mq.AsyncClient(proxy.address) as client,
            await client.consumer("c", "g", ordered=True, batch_size=AT_ONCE) as consumer,
        ):
            messages: AsyncIterator[mq.AsyncMessage] = aiter(consumer)
            first = [await anext(messages) for _ in range(AT_ONCE)]
            await consumer.ack(first)
            seen = [message.offset for message in first]
            await asyncio.to_thread(wait_until, lambda: consumer.held == AHEAD - AT_ONCE)
            await consumer.flush()
            proxy.swallow_answers()
            message = await anext(messages)
            seen.append(message.offset)
            await asyncio.to_thread(wait_until, lambda: pending(direct) == AHEAD)
            proxy.heal()
            await asyncio.to_thread(wait_until, lambda: consumer.lost == 1)
            await message.ack()
            await consumer.flush()
            while len(set(seen)) < COUNT:
                message = await anext(messages)
                seen.append(message.offset)
                await message.ack()
            assert consumer.lost == 1
            return seen

    with ordered(tmp_path, COUNT) as (_, proxy, direct):
        check_order(asyncio.run(consume(proxy, direct)))


# ---------------------------------------------------------------- a pull that was answered with an error


@pytest.mark.parametrize(
    ("error", "begins_afresh"),
    [
        (DataLoss("damaged"), False),
        (LeaseLost("gone"), False),
        (ResourceExhausted("too many"), False),
        (Unavailable("it broke"), True),
        (MqError("what is this"), True),
        (KeyboardInterrupt(), True),
    ],
)
def test_what_the_broker_answers_is_no_pull_without_an_answer(error: BaseException, begins_afresh: bool) -> None:
    pull = MemberPull("c", "g", "m", pb.Start(), turn=100)
    first = pb.PullRequest.FromString(pull.request(1, 0.0))
    assert (first.turn, first.afresh) == (101, False)
    pull.failed(101, error)
    assert pull.begins_afresh == begins_afresh
    for turn in (102, 103):  # until one is answered
        again = pb.PullRequest.FromString(pull.request(1, 0.0))
        assert (again.turn, again.since, again.afresh) == (turn, 101, begins_afresh)
    answer = pb.PullResponse(channel_id=1, group_id=1).SerializeToString()
    pull.answer(answer, 102, None)
    assert pull.begins_afresh == begins_afresh, "what that got is given back by the one after it"
    pull.answer(answer, 103, None)
    assert not pull.begins_afresh
    pull.failed(102, error)
    assert not pull.begins_afresh, "what that got was given back since"


def test_a_member_of_a_shared_group_numbers_nothing() -> None:
    pull = MemberPull("c", "g", "m", pb.Start())
    pull.failed(0, Unavailable("it broke"))
    request = pb.PullRequest.FromString(pull.request(1, 0.0))
    assert (request.turn, request.afresh) == (0, False)


def ask_of(consumer: mq.Consumer | mq.AsyncConsumer, channel: str) -> None:
    """Let the next pulls name another channel."""
    pull = consumer._as.pull
    pull.channel, pull._last = channel, ((), b"")


def test_an_error_that_the_broker_answered_gives_nothing_back(tmp_path: Path) -> None:
    with ordered(tmp_path, 6) as (client, _, direct), client.consumer("c", "g", ordered=True) as consumer:
        name = consumer.member
        first = consumer.fetch(2, timeout=DEADLINE)
        ask_of(consumer, "no-such")
        with pytest.raises(mq.ChannelNotFound):
            consumer.fetch(2, timeout=DEADLINE)
        ask_of(consumer, "c")
        assert [message.offset for message in consumer.fetch(2, timeout=DEADLINE)] == [2, 3]
        first.ack()
        consumer.flush()
        assert (consumer.member, consumer.lost, pending(direct)) == (name, 0, 2)


def test_an_error_that_the_broker_answered_a_task_gives_nothing_back(tmp_path: Path) -> None:
    async def consume(address: str) -> None:
        async with mq.AsyncClient(address) as client, await client.consumer("c", "g", ordered=True) as consumer:
            name = consumer.member
            first = await consumer.fetch(2, DEADLINE)
            ask_of(consumer, "no-such")
            with pytest.raises(mq.ChannelNotFound):
                await consumer.fetch(2, DEADLINE)
            ask_of(consumer, "c")
            assert [message.offset for message in await consumer.fetch(2, DEADLINE)] == [2, 3]
            await first.ack()
            await consumer.flush()
            assert (consumer.member, consumer.lost) == (name, 0)

    with ordered(tmp_path, 6) as (_, proxy, _direct):
        asyncio.run(consume(proxy.address))


# ---------------------------------------------------------------- two pulls of one consumer


async def fetch_all(consumer: mq.AsyncConsumer, messages: int) -> list[int]:
    seen: list[int] = []
    while len(seen) < messages:
        batch = await consumer.fetch(2, DEADLINE)
        seen += [message.offset for message in batch]
        await batch.ack()
        await consumer.flush()
    assert consumer.lost == 0
    return seen


def test_two_pulls_that_break_together_begin_afresh_and_lose_nothing(tmp_path: Path) -> None:
    async def consume(proxy: Proxy, direct: mq.Client) -> None:
        async with mq.AsyncClient(proxy.address) as client, await client.consumer("c", "g", ordered=True) as consumer:
            first = asyncio.create_task(consumer.fetch(2, DEADLINE))
            await asyncio.to_thread(wait_until, lambda: len(direct.describe_group("c", "g").members) == 1)
            first.cancel()  # its pull goes on
            proxy.swallow()
            second = asyncio.create_task(consumer.fetch(2))
            await asyncio.to_thread(wait_until, lambda: proxy.swallowed_bytes > 0)
            assert len(consumer._pulls) == 2
            proxy.heal()
            assert len(await second) == 0
            await asyncio.to_thread(fill, direct, 6)
            assert await fetch_all(consumer, 6) == list(range(6))
            assert [each.member for each in direct.describe_group("c", "g").members] == [consumer.member]

    with ordered(tmp_path, 0) as (_, proxy, direct):
        asyncio.run(consume(proxy, direct))


def test_what_another_pull_has_given_back_is_not_handed_out(tmp_path: Path) -> None:
    async def consume(proxy: Proxy, direct: mq.Client) -> None:
        async with mq.AsyncClient(proxy.address) as client, await client.consumer("c", "g", ordered=True) as consumer:
            transport: Any = await consumer._own.transport()
            calls, call, heard = count(), transport.call, asyncio.Event()

            async def called(method: str, request: bytes) -> Any:
                number = next(calls)
                if number == 1:
                    raise Unavailable("the broker is draining")
                answer = await call(method, request)
                if number == 0:
                    await heard.wait()
                return answer

            transport.call = called
            first = asyncio.create_task(consumer.fetch(2, DEADLINE))
            await asyncio.to_thread(wait_until, lambda: pending(direct) == 2)
            first.cancel()  # its pull goes on, and the answer is on its way
            again = await consumer.fetch(2)
            pulls = list(consumer._pulls)
            heard.set()
            await asyncio.gather(*pulls)
            await again.ack()
            assert [message.offset for message in again] + await fetch_all(consumer, 4) == list(range(6))

    with ordered(tmp_path, 6) as (_, proxy, direct):
        asyncio.run(consume(proxy, direct))


def test_who_asks_while_another_pull_gets_over_a_lost_answer_begins_afresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Backoff, "seconds", lambda self: 0.5)

    async def consume(proxy: Proxy, direct: mq.Client) -> None:
        async with mq.AsyncClient(proxy.address) as client, await client.consumer("c", "g", ordered=True) as consumer:
            assert len(await consumer.fetch(1, 0.0)) == 0  # it is connected, and a member
            await asyncio.to_thread(fill, direct, 6)
            proxy.swallow_answers()
            first = asyncio.create_task(consumer.fetch(2, DEADLINE))
            await asyncio.to_thread(wait_until, lambda: pending(direct) == 2)
            first.cancel()  # its pull goes on, and hears of the end of its connection
            proxy.heal()
            await asyncio.to_thread(wait_until, lambda: consumer._as.pull.begins_afresh)
            seen: list[int] = []
            while len(seen) < 6:
                batch = await consumer.fetch(2, 0.0)
                seen += [message.offset for message in batch]
                await batch.ack()
                await consumer.flush()
            assert seen == list(range(6))

    with ordered(tmp_path, 0) as (_, proxy, direct):
        asyncio.run(consume(proxy, direct))


# ---------------------------------------------------------------- names


def test_who_comes_later_under_a_name_takes_it_over(tmp_path: Path) -> None:
    with (
        ordered(tmp_path, 6) as (client, _, direct),
        client.consumer("c", "g", ordered=True, member="one") as before,
        direct.consumer("c", "g", ordered=True, member="one") as after,
    ):
        assert [message.offset for message in before.fetch(2, timeout=DEADLINE)] == [0, 1]
        first = after.fetch(2, timeout=DEADLINE)
        assert [(message.offset, message.delivery_count) for message in first] == [(0, 2), (1, 2)]
        with pytest.raises(LeaseLost, match="another goes by its name"):
            before.fetch(2, timeout=DEADLINE)
        before.close()
        assert [message.offset for message in after.fetch(4, timeout=DEADLINE)] == [2, 3, 4, 5]
        first.ack()
        after.flush()
        assert after.lost == 0


def test_a_pull_that_comes_after_its_member_has_left_brings_nobody_back(tmp_path: Path) -> None:
    with ordered(tmp_path, 4) as (client, proxy, direct):
        with client.consumer("c", "g", ordered=True) as consumer:
            assert len(consumer.fetch(2, timeout=DEADLINE)) == 2
            consumer._as.pull.request(2, 0.0)  # one that will be late
            turn = consumer._as.pull.turn
        pull_late(proxy.target, consumer.member, turn)
        assert not direct.describe_group("c", "g").members
        assert pending(direct) == 0
