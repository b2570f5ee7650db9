"""Consumers at their ends: waits, callbacks, closes and keepers that end badly leave nobody waiting, nothing leased."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from process import wait_until

import mq
from mq.client.message import Delivery
from mq.client.settling import ACK, NACK, Settlement
from mq.pb import mq_pb2 as pb
from mq.pb import raw_pb2 as raw
from mq.testing import broker

DEADLINE = 10.0
NUMBERS = count()  # of channels
GONE = (mq.ChannelNotFound, mq.GroupNotFound)
FOREIGN = {"name": b"caf\xe9"}  # headers whose text has a lone surrogate
Scenario = Callable[[mq.AsyncClient], Awaitable[None]]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with broker(LOG_LEVEL="ERROR") as running:
        yield str(running)


@pytest.fixture
def client(address: str) -> Iterator[mq.Client]:
    with mq.Client(address) as client:
        yield client


@pytest.fixture
def channel(client: mq.Client) -> str:
    name = f"c{next(NUMBERS)}"
    client.create_channel(name)
    return name


def fill(client: mq.Client, channel: str, messages: int) -> None:
    with client.producer(channel) as producer:
        producer.send_many([b"%d" % number for number in range(messages)])  # as one batch, and delivered as one


def run(address: str, scenario: Scenario) -> None:
    async def main() -> None:
        async with asyncio.timeout(DEADLINE), mq.AsyncClient(address) as client:
            await scenario(client)

    asyncio.run(main())


async def turns(number: int = 5) -> None:
    """Of the loop: whoever was started waits now."""
    for _ in range(number):
        await asyncio.sleep(0)


async def next_of(messages: AsyncIterator[mq.AsyncMessage]) -> mq.AsyncMessage:
    return await anext(messages)


def lag(client: mq.Client, channel: str) -> int:
    return client.describe_group(channel, "g").lag


def is_member(client: mq.Client, channel: str) -> bool:
    return bool(client.describe_group(channel, "g").members)


# ---------------------------------------------------------------- waits that a seek or an error ends


def test_a_seek_of_another_task_moves_who_waits(address: str, client: mq.Client, channel: str) -> None:
    fill(client, channel, 3)

    async def scenario(tasks: mq.AsyncClient) -> None:
        async with await tasks.consumer(channel, "g") as consumer:
            messages = aiter(consumer)
            for _ in range(3):
                await (await anext(messages)).ack()
            waits = asyncio.create_task(next_of(messages))
            await turns()
            await consumer.seek("earliest")
            assert (await waits).offset == 0

    run(address, scenario)


def test_a_fetch_that_waits_gets_nothing_of_where_the_group_was_before_a_seek(
    address: str, client: mq.Client, channel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, channel, 3)
    leave = mq.AsyncConsumer._leave

    async def slow(self: mq.AsyncConsumer) -> None:
        await leave(self)
        await asyncio.sleep(0.2)  # what was held could be pulled again now

    async def scenario(tasks: mq.AsyncClient) -> None:
        async with await tasks.consumer(channel, "g") as consumer:
            assert len(await consumer.fetch(3, DEADLINE)) == 3  # and none of them is acked
            fetching = asyncio.create_task(consumer.fetch(1, DEADLINE))
            await turns()
            with monkeypatch.context() as patch:
                patch.setattr(mq.AsyncConsumer, "_leave", slow)
                await consumer.seek("latest")
            await tasks.publish(channel, b"new")
            assert (await fetching).contents() == [b"new"]

    run(address, scenario)


def test_a_loop_hands_out_nothing_while_another_task_seeks(address: str, client: mq.Client, channel: str) -> None:
    fill(client, channel, 3)

    async def scenario(tasks: mq.AsyncClient) -> None:
        async with await tasks.consumer(channel, "g") as consumer:
            messages = aiter(consumer)
            assert (await anext(messages)).offset == 0
            seeking = asyncio.create_task(consumer.seek(mq.at_offset(2)))
            await turns(1)  # it has begun, and the rest of the delivery is still there
            assert (await anext(messages)).offset == 2
            await seeking

    run(address, scenario)


def test_seeks_that_are_cancelled_leave_who_waits_able_to_go_on(address: str, client: mq.Client, channel: str) -> None:
    client.create_group(channel, "g", ack_wait_ms=500)

    async def scenario(tasks: mq.AsyncClient) -> None:
        async with await tasks.consumer(channel, "g") as consumer:
            waits = asyncio.create_task(next_of(aiter(consumer)))
            for _ in range(3):  # more often than there is room for answers
                await turns()
                seeking = asyncio.create_task(consumer.seek("earliest"))
                await turns(1)
                seeking.cancel()
                with suppress(asyncio.CancelledError):
                    await seeking
            await tasks.publish(channel, b"x")
            assert (await waits).content == b"x"

    run(address, scenario)


def test_a_bad_place_is_told_before_anything_is_given_back(address: str, client: mq.Client, channel: str) -> None:
    fill(client, channel, 2)

    async def scenario(tasks: mq.AsyncClient) -> None:
        async with await tasks.consumer(channel, "g") as consumer:
            messages = aiter(consumer)
            assert (await anext(messages)).offset == 0
            with pytest.raises(mq.InvalidArgument, match="start"):
                await consumer.seek("nowhere")
            assert (await anext(messages)).offset == 1

    run(address, scenario)


def test_all_tasks_that_iterate_hear_of_the_error_that_ends_it(address: str, client: mq.Client, channel: str) -> None:
    async def scenario(tasks: mq.AsyncClient) -> None:
        async with await tasks.consumer(channel, "g") as consumer:
            both = [asyncio.create_task(next_of(aiter(consumer))) for _ in range(2)]
            await asyncio.to_thread(wait_until, lambda: is_member(client, channel))
            await tasks.delete_channel(channel)
            for each in both:
                with pytest.raises(GONE):
                    await each

    run(address, scenario)


def unreadable(*_: object) -> None:
    raise ValueError("what is this")


def test_an_answer_that_cant_be_read_ends_a_loop_of_a_task(
    address: str, client: mq.Client, channel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, channel, 1)

    async def scenario(tasks: mq.AsyncClient) -> None:
        async with await tasks.consumer(channel, "g") as consumer:
            with monkeypatch.context() as patch:
                patch.setattr("mq.client.pulling.read_answer", unreadable)
                with pytest.raises(ValueError, match="what is this"):
                    await anext(aiter(consumer))
            await tasks.publish(channel, b"next")
            assert (await anext(aiter(consumer))).content == b"next"

    run(address, scenario)


def test_an_answer_that_cant_be_read_ends_a_loop(
    client: mq.Client, channel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, channel, 1)
    with ThreadPoolExecutor(1) as pool, client.consumer(channel, "g") as consumer:
        with monkeypatch.context() as patch:
            patch.setattr("mq.client.pulling.read_answer", unreadable)
            with pytest.raises(mq.MqError, match="what is this"):
                pool.submit(next, iter(consumer)).result(DEADLINE)
        client.publish(channel, b"next")
        assert pool.submit(next, iter(consumer)).result(DEADLINE).content == b"next"


def unreached(*_: object, **__: object) -> None:
    raise mq.Unavailable("nobody is there")


def test_a_seek_that_fails_keeps_nothing_that_nobody_will_be_handed(
    client: mq.Client, channel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, channel, 3)
    client.create_group(channel, "g", ack_wait_ms=500, backoff_ms=[1])
    with client.consumer(channel, "g") as consumer:
        first = next(iter(consumer))
        assert consumer.held == 3
        with monkeypatch.context() as patch:
            patch.setattr(consumer, "_leave", unreached)
            with pytest.raises(mq.Unavailable):
                consumer.seek("latest")
        assert consumer.held == 1
        first.ack()
        messages = iter(consumer)
        assert [next(messages).text() for _ in range(2)] == ["1", "2"]


def test_order_is_kept_through_a_seek_that_fails(
    client: mq.Client, channel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, channel, 3)
    with client.consumer(channel, "g", ordered=True) as consumer:
        assert next(iter(consumer)).text() == "0"
        with monkeypatch.context() as patch:
            patch.setattr(consumer._keeper, "flush", unreached)
            with pytest.raises(mq.Unavailable):
                consumer.seek("latest")
        client.publish(channel, b"3")
        messages = iter(consumer)
        assert [next(messages).text() for _ in range(4)] == ["0", "1", "2", "3"]


def test_order_is_kept_through_a_seek_of_a_task_that_fails(
    address: str, client: mq.Client, channel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        client.publish(channel, b"%d" % number)

    async def scenario(tasks: mq.AsyncClient) -> None:
        async with await tasks.consumer(channel, "g", ordered=True, batch_size=1) as consumer:
            assert (await anext(aiter(consumer))).text() == "0"
            await asyncio.to_thread(wait_until, lambda: consumer.held >= 3)
            await asyncio.sleep(0.05)  # no pull is under way: what was pulled ahead waits for its turn
            with monkeypatch.context() as patch:
                patch.setattr(consumer._keeper, "flush", unreached)
                with pytest.raises(mq.Unavailable):
                    await consumer.seek("latest")
            messages = aiter(consumer)
            assert [(await anext(messages)).text() for _ in range(6)] == ["0", "1", "2", "3", "4", "5"]

    run(address, scenario)


def test_what_comes_in_the_moment_of_a_seek_is_not_kept(
    client: mq.Client, channel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, channel, 3)
    with client.consumer(channel, "g") as consumer:
        add = consumer._waiting.add

        def crossed(deliveries: list[Delivery]) -> None:
            """Another thread's seek forgets what waits: it has looked before this came, and clears after it."""
            own, consumer._own = consumer._own, consumer._own.another()
            consumer._ahead = consumer._pulling_ahead()
            own.close()
            add(deliveries)
            consumer._waiting.clear()

        monkeypatch.setattr(consumer._waiting, "add", crossed)
        assert len(consumer.fetch(3)) == 0
        assert consumer.held == 0


def test_a_seek_that_is_interrupted_keeps_nothing_that_nobody_will_be_handed(client: mq.Client, channel: str) -> None:
    fill(client, channel, 3)
    with client.consumer(channel, "g") as consumer:
        next(iter(consumer))

        def interrupted(timeout: float | None) -> None:
            raise KeyboardInterrupt

        consumer._ahead.end = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            consumer.seek("latest")
        assert consumer.held == 1


def test_a_leave_has_time_for_an_answer_also_where_a_close_has_used_it_up(
    client: mq.Client, channel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = client.consumer(channel, "g")
    given: list[float] = []
    monkeypatch.setattr(consumer._shared, "call", lambda method, request, timeout: given.append(timeout))
    consumer._leave(0.0)
    assert given == [0.1]  # a broker that is there answers in less
    monkeypatch.undo()
    consumer.close()


def test_a_seek_of_a_task_that_fails_keeps_nothing_that_nobody_will_be_handed(
    address: str, client: mq.Client, channel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, channel, 3)
    client.create_group(channel, "g", ack_wait_ms=500, backoff_ms=[1])

    async def scenario(tasks: mq.AsyncClient) -> None:
        async with await tasks.consumer(channel, "g") as consumer:
            first = await anext(aiter(consumer))
            assert consumer.held == 3
            with monkeypatch.context() as patch:
                patch.setattr(consumer, "_leave", unreached)
                with pytest.raises(mq.Unavailable):
                    await consumer.seek("latest")
            assert consumer.held == 1
            await first.ack()
            messages = aiter(consumer)
            assert [(await anext(messages)).text() for _ in range(2)] == ["1", "2"]

    run(address, scenario)


def test_who_seeks_misses_no_ack_of_what_he_was_not_handed(client: mq.Client, channel: str) -> None:
    fill(client, channel, 3)
    with client.consumer(channel, "g") as consumer:
        next(iter(consumer)).ack()
        consumer.seek("latest")
        assert (consumer.held, consumer.lost) == (0, 0)


# ---------------------------------------------------------------- what a request can't hold


@pytest.mark.parametrize("delay", [-1, 0.5, "1", 2**64])
def test_a_delay_that_is_none_is_told_at_once_and_the_message_can_still_be_acked(
    client: mq.Client, channel: str, delay: Any
) -> None:
    fill(client, channel, 2)
    with client.consumer(channel, "g") as consumer:
        first, second = consumer.fetch(1, timeout=DEADLINE)[0], consumer.fetch(1, timeout=DEADLINE)[0]
        with pytest.raises(mq.InvalidArgument, match="delay_ms"):
            first.nack(delay_ms=delay)
        consumer.ack([first, second])
        consumer.flush()
        assert (lag(client, channel), consumer.lost, consumer.held) == (0, 0, 0)


def test_a_delay_that_is_none_is_told_a_task_at_once(address: str, client: mq.Client, channel: str) -> None:
    fill(client, channel, 2)

    async def scenario(tasks: mq.AsyncClient) -> None:
        async with await tasks.consumer(channel, "g") as consumer:
            first, second = (await consumer.fetch(1, DEADLINE))[0], (await consumer.fetch(1, DEADLINE))[0]
            with pytest.raises(mq.InvalidArgument, match="delay_ms"):
                await first.nack(delay_ms=-1)
            await consumer.ack([first, second])
            await consumer.flush()
            assert (consumer.lost, consumer.held) == (0, 0)

    run(address, scenario)
    assert lag(client, channel) == 0


def check_buried(client: mq.Client, channel: str) -> None:
    (dead,) = client.read(f"{channel}.dlq", follow=False)
    assert dead.content == b"x"
    assert dead.headers["mq-reason"] == "not known: caf\\udce9"
    assert lag(client, channel) == 0


def test_a_reason_may_quote_what_is_no_text(client: mq.Client, channel: str) -> None:
    client.publish(channel, b"x", headers=FOREIGN)
    with client.consumer(channel, "g") as consumer:
        message = consumer.fetch(1, timeout=DEADLINE)[0]
        with pytest.raises(mq.InvalidArgument, match="a reason is text"):
            message.reject(ValueError("no text at all"))  # type: ignore[arg-type]
        message.reject(f"not known: {message.headers['name']}")
        consumer.flush()
        check_buried(client, channel)


def test_a_reason_of_a_task_may_quote_what_is_no_text(address: str, client: mq.Client, channel: str) -> None:
    client.publish(channel, b"x", headers=FOREIGN)

    async def scenario(tasks: mq.AsyncClient) -> None:
        async with await tasks.consumer(channel, "g") as consumer:
            message = (await consumer.fetch(1, DEADLINE))[0]
            await message.reject(f"not known: {message.headers['name']}")
            await consumer.flush()

    run(address, scenario)
    check_buried(client, channel)


# ---------------------------------------------------------------- keepers


@pytest.fixture
def unmade(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request of a nack can be made."""
    request = Settlement.request

    def made(self: Settlement, *place: str) -> bytes:
        if self.act == NACK:
            raise ValueError("what is this")
        return request(self, *place)

    monkeypatch.setattr(Settlement, "request", made)


@pytest.mark.usefixtures("unmade")
def test_a_request_that_cant_be_made_holds_up_no_other(client: mq.Client, channel: str) -> None:
    fill(client, channel, 2)
    with client.consumer(channel, "g") as consumer:
        first, second = consumer.fetch(1, timeout=DEADLINE)[0], consumer.fetch(1, timeout=DEADLINE)[0]
        first.nack()
        second.ack()
        consumer.flush()
        assert (lag(client, channel), consumer.lost) == (1, 1)


@pytest.mark.usefixtures("unmade")
def test_a_request_that_cant_be_made_for_a_task_holds_up_no_other(
    address: str, client: mq.Client, channel: str
) -> None:
    fill(client, channel, 2)

    async def scenario(tasks: mq.AsyncClient) -> None:
        async with await tasks.consumer(channel, "g") as consumer:
            first, second = (await consumer.fetch(1, DEADLINE))[0], (await consumer.fetch(1, DEADLINE))[0]
            await first.nack()
            await second.ack()
            await consumer.flush()
            assert consumer.lost == 1

    run(address, scenario)
    assert lag(client, channel) == 1


def test_a_mistake_does_not_end_a_keeper(client: mq.Client, channel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(client, channel, 1)
    failed = threading.Event()
    with client.consumer(channel, "g") as consumer:
        settle = consumer._keeper._settle

        def failing(*arguments: Any) -> None:
            if not failed.is_set():
                failed.set()
                raise ZeroDivisionError
            settle(*arguments)

        monkeypatch.setattr(consumer._keeper, "_settle", failing)
        consumer.fetch(1, timeout=DEADLINE).ack()
        wait_until(lambda: lag(client, channel) == 0, DEADLINE)
        assert failed.is_set()


def test_a_mistake_does_not_end_a_keeper_of_a_task(
    address: str, client: mq.Client, channel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, channel, 1)

    async def scenario(tasks: mq.AsyncClient) -> None:
        async with await tasks.consumer(channel, "g") as consumer:
            settle, failed = consumer._keeper._settle, asyncio.Event()

            async def failing(settlement: Settlement) -> None:
                if not failed.is_set():
                    failed.set()
                    raise ZeroDivisionError
                await settle(settlement)

            monkeypatch.setattr(consumer._keeper, "_settle", failing)
            await (await consumer.fetch(1, DEADLINE)).ack()
            await asyncio.to_thread(wait_until, lambda: lag(client, channel) == 0, DEADLINE / 2)
            assert failed.is_set()

    run(address, scenario)


def of_starts(*start_ids: str) -> Settlement:
    deliveries = []
    for number, start_id in enumerate(start_ids):
        deliveries.append(Delivery(raw.PulledBatch(receipt=b"%d" % number, count=1), "c", "g"))
        deliveries[-1].start_id = start_id
    return Settlement(ACK, [pb.Receipt(receipt=each.receipt) for each in deliveries], deliveries)


@pytest.mark.parametrize(
    ("start_id", "earlier"),
    [
        ("now", [b"1"]),
        ("", []),  # gRPC does not tell, nor does a connection that broke just now
    ],
)
def test_what_nobody_tells_the_start_of_is_not_of_an_earlier_one(start_id: str, earlier: list[bytes]) -> None:
    settlement = of_starts("now", "before", "")
    new, old = settlement.of_start(start_id)
    assert [each.receipt for each in old.receipts] == [each.receipt for each in old.deliveries] == earlier
    assert [each.receipt for each in new.receipts] == [each.receipt for each in new.deliveries]
    assert len(new.receipts) + len(old.receipts) == 3


# ---------------------------------------------------------------- closing


def keepers() -> list[str]:
    """Tasks that keep leases."""
    names = [getattr(task.get_coro(), "__qualname__", "") for task in asyncio.all_tasks()]
    return [name for name in names if name.startswith("AsyncKeeper")]


def test_a_close_that_is_cancelled_gives_everything_back(address: str, client: mq.Client, channel: str) -> None:
    fill(client, channel, 3)

    async def scenario(tasks: mq.AsyncClient) -> None:
        consumer = await tasks.consumer(channel, "g")
        messages = aiter(consumer)
        await (await anext(messages)).ack()
        assert len(keepers()) == 1
        closing = asyncio.create_task(consumer.close())
        await turns(1)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await consumer.close()
        assert keepers() == []
        with pytest.raises(mq.Unavailable, match="closed"):
            await consumer._own.transport()
        assert [message async for message in messages] == []
        async with await tasks.consumer(channel, "g") as other:
            assert (await other.fetch(3, DEADLINE / 2)).contents() == [b"1", b"2"]

    run(address, scenario)


def test_a_close_whose_end_is_cancelled_can_be_called_again(
    address: str, client: mq.Client, channel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, channel, 3)

    async def never(self: mq.AsyncConsumer) -> None:
        await asyncio.Event().wait()

    async def scenario(tasks: mq.AsyncClient) -> None:
        consumer = await tasks.consumer(channel, "g")
        await (await consumer.fetch(3, DEADLINE))[0].ack()
        with monkeypatch.context() as patch:
            patch.setattr(mq.AsyncConsumer, "_leave", never)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await consumer.close()
        await consumer.close()
        async with await tasks.consumer(channel, "g") as other:
            assert (await other.fetch(3, DEADLINE / 2)).contents() == [b"1", b"2"]

    run(address, scenario)


def test_all_steps_of_a_close_share_its_timeout(
    client: mq.Client, channel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = client.consumer(channel, "g")
    now, given = [100.0], []

    def takes(seconds: float) -> Callable[[float | None], None]:
        def step(timeout: float | None = None) -> None:
            given.append(timeout)
            now[0] += seconds

        return step

    with monkeypatch.context() as patch:
        patch.setattr("mq.client.consumer.time", SimpleNamespace(monotonic=lambda: now[0]))
        patch.setattr(consumer._ahead, "end", takes(0.5))
        patch.setattr(consumer._keeper, "close", takes(1.25))
        patch.setattr(consumer, "_leave", takes(0))
        consumer.close(2.0)
    assert given == [2.0, 1.5, 0.25]
    consumer._keeper.close()


def test_a_close_that_is_interrupted_gives_everything_back(client: mq.Client, channel: str) -> None:
    fill(client, channel, 3)
    consumer = client.consumer(channel, "g")
    consumer.fetch(3, timeout=DEADLINE)[0].ack()

    def interrupted(timeout: float | None) -> None:
        raise KeyboardInterrupt

    consumer._ahead.end = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        consumer.close()
    assert consumer._keeper._thread is not None
    assert not consumer._keeper._thread.is_alive()
    with client.consumer(channel, "g") as other:
        assert other.fetch(3, timeout=DEADLINE / 2).contents() == [b"1", b"2"]


# ---------------------------------------------------------------- callbacks


class Heard:
    """Callbacks that note what they hear; one of them raises when it is called first."""

    def __init__(self, failing: str) -> None:
        self.failing = failing
        self.calls: list[str] = []

    def on_assigned(self, numbers: frozenset[int]) -> None:
        self._hear("on_assigned")

    def on_revoked(self, numbers: frozenset[int]) -> None:
        self._hear("on_revoked")

    def _hear(self, name: str) -> None:
        self.calls.append(name)
        if name == self.failing:
            raise ZeroDivisionError(name)


WHICH = ["on_assigned", "on_revoked"]
BEFORE = frozenset({9})  # partitions that are no longer there, so that some are revoked as well


@pytest.mark.parametrize("failing", WHICH)
@pytest.mark.parametrize("way", ["fetch", "iterate"])
def test_what_came_with_a_callback_that_raises_is_handed_out_next(
    client: mq.Client, channel: str, failing: str, way: str
) -> None:
    fill(client, channel, 2)
    heard = Heard(failing)
    with client.consumer(
        channel, "g", ordered=True, on_assigned=heard.on_assigned, on_revoked=heard.on_revoked
    ) as consumer:
        consumer._assigned = BEFORE
        with pytest.raises(ZeroDivisionError, match=failing):
            _ = consumer.fetch(2, timeout=DEADLINE) if way == "fetch" else next(iter(consumer))
        assert consumer.fetch(2, timeout=DEADLINE / 2).contents() == [b"0", b"1"]
        assert heard.calls == ["on_revoked", "on_assigned"]


@pytest.mark.parametrize("failing", WHICH)
@pytest.mark.parametrize("way", ["fetch", "iterate"])
def test_what_came_to_a_task_with_a_callback_that_raises_is_handed_out_next(
    address: str, client: mq.Client, channel: str, failing: str, way: str
) -> None:
    fill(client, channel, 2)
    heard = Heard(failing)

    async def scenario(tasks: mq.AsyncClient) -> None:
        async with await tasks.consumer(
            channel, "g", ordered=True, on_assigned=heard.on_assigned, on_revoked=heard.on_revoked
        ) as consumer:
            consumer._assigned = BEFORE
            with pytest.raises(ZeroDivisionError, match=failing):
                await (consumer.fetch(2, DEADLINE) if way == "fetch" else next_of(aiter(consumer)))
            assert (await consumer.fetch(2, DEADLINE / 2)).contents() == [b"0", b"1"]
            assert heard.calls == ["on_revoked", "on_assigned"]

    run(address, scenario)
