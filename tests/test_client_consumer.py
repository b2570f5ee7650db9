"""Consumers: iterating, fetching, settling, steering, groups, and what a bad moment does to them."""

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from process import wait_until
from tcpproxy import connected

import mq

DEADLINE = 30.0


@pytest.fixture
def client(mq_client: mq.Client) -> mq.Client:
    mq_client.create_channel("c")
    return mq_client


def fill(client: mq.Client, count: int, channel: str = "c") -> list[bytes]:
    values = [b"%d" % number for number in range(count)]
    with client.producer(channel) as producer:
        producer.send_many(values)
    return values


def take(messages: Iterator[mq.Message], count: int) -> list[mq.Message]:
    return [next(messages) for _ in range(count)]


def lag(client: mq.Client, group: str = "g") -> int:
    return client.describe_group("c", group).lag


# ---------------------------------------------------------------- taking and settling


def test_iterating_is_consuming(client: mq.Client) -> None:
    values = fill(client, 2_345)
    with client.consumer("c", "g") as consumer:
        found = []
        for message in consumer:
            with message.process():
                found.append(message.value)
            if len(found) == len(values):
                break
    assert found == values
    assert (lag(client), consumer.lost) == (0, 0)


def test_what_was_not_acked_is_given_back_at_once_and_does_not_count(client: mq.Client) -> None:
    fill(client, 10)
    with client.consumer("c", "g") as consumer:
        for message in take(iter(consumer), 4):
            message.ack()
    with client.consumer("c", "g") as consumer:
        rest = consumer.fetch(100, timeout=DEADLINE)
        assert [message.offset for message in rest] == list(range(4, 10))
        assert {message.delivery_count for message in rest} == {1}


def test_an_exception_hands_the_message_back(client: mq.Client) -> None:
    client.create_group("c", "g", backoff_ms=[1])
    fill(client, 1)
    with client.consumer("c", "g") as consumer:
        messages = iter(consumer)
        with pytest.raises(ZeroDivisionError), next(messages).process():
            raise ZeroDivisionError
        again = next(messages)
        assert (again.offset, again.delivery_count) == (0, 2)
        again.ack()
        again.ack()  # once more is no mistake
    assert lag(client) == 0


def test_a_nack_waits_as_long_as_it_says(client: mq.Client) -> None:
    fill(client, 2)
    with client.consumer("c", "g") as consumer:
        first, second = consumer.fetch(2, timeout=DEADLINE)
        begin = time.monotonic()
        first.nack(delay_ms=300)
        second.nack(delay_ms=0)
        messages = iter(consumer)
        assert [next(messages).offset, next(messages).offset] == [1, 0]
        assert time.monotonic() - begin >= 0.29


def test_a_rejected_message_goes_to_the_dead_letters_with_its_reason(client: mq.Client) -> None:
    fill(client, 3)
    with client.consumer("c", "g") as consumer:
        batch = consumer.fetch(3, timeout=DEADLINE)
        batch[1].reject("poison")
        consumer.ack([batch[0], batch[2]])
    (dead,) = client.read("c.dlq", follow=False)
    assert dead.content == b"1"
    assert "poison" in dead.headers.values()
    assert lag(client) == 0


def test_fetching_takes_what_is_there_and_waits_for_what_is_not(client: mq.Client) -> None:
    with client.consumer("c", "g") as consumer:
        assert len(consumer.fetch(10)) == 0
        assert len(consumer.fetch(10, timeout=0.05)) == 0
        threading.Timer(0.1, client.publish, ("c", b"x")).start()
        batch = consumer.fetch(10, timeout=DEADLINE)
        assert batch.values() == [b"x"]
        fill(client, 20)
        assert len(consumer.fetch(5, timeout=DEADLINE)) == 5


def test_batches_have_one_ack(client: mq.Client) -> None:
    values = fill(client, 3_000)
    found: list[bytes] = []
    with client.consumer("c", "g", batch_size=700) as consumer:
        for batch in consumer.batches():
            assert 0 < len(batch) <= 700
            assert batch[0].content == batch.contents()[0]
            assert batch[-1].content == batch[len(batch) - 1].content == batch.contents()[-1]
            assert [message.content for message in batch[1:3]] == batch.contents()[1:3]
            with pytest.raises(IndexError):
                batch[len(batch)]
            found += batch.contents()
            batch.ack()
            if len(found) == len(values):
                break
    assert found == values
    assert lag(client) == 0


def test_acks_from_many_threads_are_all_counted(client: mq.Client) -> None:
    fill(client, 5_000)
    with client.consumer("c", "g") as consumer, ThreadPoolExecutor(16) as pool:
        messages = iter(consumer)
        list(pool.map(mq.Message.ack, take(messages, 5_000)))
        consumer.flush()
        assert lag(client) == 0


def test_single_acks_in_any_order_leave_exactly_the_rest(client: mq.Client) -> None:
    fill(client, 100)
    with client.consumer("c", "g") as consumer:
        batch = consumer.fetch(100, timeout=DEADLINE)
        for message in reversed(batch):
            if message.offset % 3:
                message.ack()
    with client.consumer("c", "g") as consumer:
        rest = consumer.fetch(100, timeout=DEADLINE)
        assert [message.offset for message in rest] == list(range(0, 100, 3))


def test_leases_are_kept_while_a_handler_runs(client: mq.Client) -> None:
    client.create_group("c", "g", ack_wait_ms=300, session_timeout_ms=300)
    fill(client, 2)
    with client.consumer("c", "g", batch_size=1) as slow, client.consumer("c", "g") as other:
        message = next(iter(slow))
        assert message.offset == 0
        taken = [each.offset for each in other.fetch(10, timeout=1.5)]
        assert 0 not in taken  # five times the ack wait has passed
        message.extend()
        message.ack()
        slow.flush()
        assert slow.lost == 0


@pytest.mark.parametrize("way", ["messages", "batches"])
def test_an_iteration_ends_quietly_when_its_consumer_is_closed(client: mq.Client, way: str) -> None:
    fill(client, 3)
    consumer = client.consumer("c", "g", batch_size=1)
    for each in consumer if way == "messages" else consumer.batches():
        each.ack()
        closer = threading.Thread(target=consumer.close)
        closer.start()
        closer.join(DEADLINE)
    assert lag(client) == 2
    with pytest.raises(mq.Unavailable, match="closed"):
        next(iter(consumer))


def test_a_paused_consumer_fetches_nothing_until_it_is_resumed(client: mq.Client) -> None:
    fill(client, 2)
    with client.consumer("c", "g") as consumer:
        consumer.pause()
        assert len(consumer.fetch(1, timeout=0.01)) == 0
        resumer = threading.Timer(0.05, consumer.resume)
        resumer.start()
        assert consumer.fetch(1, timeout=30)[0].value == b"0"
        resumer.join()


def test_an_interval_spreads_the_pulls(client: mq.Client) -> None:
    fill(client, 30)
    with client.consumer("c", "g", batch_size=10, interval=0.2) as consumer:
        begin = time.monotonic()
        take(iter(consumer), 30)
        assert time.monotonic() - begin >= 0.39


# ---------------------------------------------------------------- steering


def test_a_pause_hands_out_nothing_until_it_ends(client: mq.Client) -> None:
    fill(client, 5)
    with client.consumer("c", "g") as consumer:
        messages = iter(consumer)
        next(messages)
        consumer.pause()
        threading.Timer(0.1, consumer.resume).start()
        assert len(take(messages, 4)) == 4


def test_a_seek_moves_the_group(client: mq.Client) -> None:
    fill(client, 50)
    with client.consumer("c", "g", batch_size=10) as consumer:
        messages = iter(consumer)
        for message in take(messages, 20):
            message.ack()
        consumer.seek(mq.at_offset(5))
        assert next(iter(consumer)).offset == 5


def test_stop_ends_an_iteration_that_waits(client: mq.Client) -> None:
    with client.consumer("c", "g") as consumer:
        threading.Timer(0.1, consumer.stop).start()
        assert list(consumer) == []


def test_stop_may_be_called_by_a_signals_handler(client: mq.Client) -> None:
    fill(client, 10)
    with client.consumer("c", "g") as consumer:
        before = signal.signal(signal.SIGALRM, lambda *_: consumer.stop())
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            assert len(list(consumer)) == 10
        finally:
            signal.signal(signal.SIGALRM, before)


def test_closing_wakes_who_waits(client: mq.Client) -> None:
    consumer = client.consumer("c", "g")
    waiting = threading.Thread(target=lambda: list(consumer))
    waiting.start()
    wait_until(lambda: consumer._ahead.is_at_work)
    consumer.close()
    consumer.close()
    waiting.join(DEADLINE)
    assert not waiting.is_alive()
    with pytest.raises(mq.Unavailable, match="closed"):
        consumer.fetch(1)


def test_a_channel_that_goes_away_ends_the_iteration_with_its_error(client: mq.Client) -> None:
    with client.consumer("c", "g") as consumer:
        threading.Timer(0.1, client.delete_channel, ("c",)).start()
        with pytest.raises((mq.ChannelNotFound, mq.GroupNotFound)):
            list(consumer)


# ---------------------------------------------------------------- ordered groups


def test_partitions_of_an_ordered_group_move_and_both_sides_hear_of_it(client: mq.Client) -> None:
    client.create_channel("p", partitions=4)
    heard: list[tuple[str, frozenset[int]]] = []
    first = client.consumer(
        "p",
        "g",
        ordered=True,
        on_assigned=lambda numbers: heard.append(("first gets", numbers)),
        on_revoked=lambda numbers: heard.append(("first loses", numbers)),
    )
    wait_until(lambda: first.fetch(1, timeout=0.01) is not None and len(first.assigned) == 4)
    second = client.consumer("p", "g", ordered=True)

    def both() -> bool:
        second.fetch(1, timeout=0.01)
        first.fetch(1, timeout=0.01)
        return len(first.assigned) == len(second.assigned) == 2

    wait_until(both)
    assert first.assigned | second.assigned == {0, 1, 2, 3}
    assert heard[0] == ("first gets", frozenset({0, 1, 2, 3}))
    assert ("first loses", second.assigned) in heard
    first.close()
    wait_until(lambda: second.fetch(1, timeout=0.01) is not None and len(second.assigned) == 4)


def test_a_shared_group_is_not_taken_for_an_ordered_one(client: mq.Client) -> None:
    client.create_group("c", "g")
    with pytest.raises(mq.InvalidArgument, match="shared"):
        client.consumer("c", "g", ordered=True)


def test_a_group_with_settings_of_its_own_is_joined_as_it_is(client: mq.Client) -> None:
    client.create_group("c", "g", ack_wait_ms=1_234, ordered=True)
    with client.consumer("c", "g") as consumer:
        consumer.fetch(1)
    assert client.describe_group("c", "g").settings.ack_wait_ms == 1_234


# ---------------------------------------------------------------- transactions


def test_a_transaction_publishes_and_acks_together(client: mq.Client) -> None:
    client.create_channel("out")
    fill(client, 3)
    with client.consumer("c", "g") as consumer:
        batch = consumer.fetch(3, timeout=DEADLINE)
        for turn in range(2):
            with client.transaction() as tx:
                tx.publish("out", b"made of %d" % turn)
                tx.publish("c", "again", key="k")
                tx.ack(batch[turn])
            assert [each.channel for each in tx.published] == ["out", "c"]
            assert tx.published[0].offset == turn
        tx = client.transaction()
        tx.publish("out", b"never")
        tx.ack(batch)
        with pytest.raises(mq.LeaseLost):  # two of the three are acked: nothing of this may take place
            tx.commit()
    assert [message.content for message in client.read("out", follow=False)] == [b"made of 0", b"made of 1"]


def abandon(transaction: mq.Transaction, message: mq.Message) -> None:
    with transaction as tx:
        tx.publish("c", b"never")
        tx.ack(message)
        raise ZeroDivisionError


def test_a_transaction_that_fails_changes_nothing(client: mq.Client) -> None:
    fill(client, 1)
    with client.consumer("c", "g") as consumer:
        (message,) = consumer.fetch(1, timeout=DEADLINE)
        with pytest.raises(ZeroDivisionError):
            abandon(client.transaction(), message)
        tx = client.transaction()
        tx.ack(message)
        tx.publish("no-such", b"never")
        with pytest.raises(mq.ChannelNotFound):
            tx.commit()
        assert client.transaction().commit() == []
    assert lag(client) == 1
    assert len(list(client.read("c", follow=False))) == 1


# ---------------------------------------------------------------- bad moments


def test_resets_while_consuming_lose_nothing(tmp_path: Path) -> None:
    with connected(tmp_path) as (client, proxy):
        # what was on its way when the connection broke comes again after the ack wait
        client.create_group("c", "g", ack_wait_ms=500, backoff_ms=[1])
        values = fill(client, 3_000)
        seen: set[bytes] = set()
        with client.consumer("c", "g", batch_size=100) as consumer:
            for number, message in enumerate(consumer):
                seen.add(message.content)
                message.ack()
                if number % 700 == 350:
                    proxy.reset()
                if len(seen) == len(values):
                    break
        assert seen == set(values)


def test_a_lease_that_is_gone_is_told_and_the_message_comes_again(
    client: mq.Client, caplog: pytest.LogCaptureFixture
) -> None:
    fill(client, 2)
    with client.consumer("c", "g") as consumer:
        batch = consumer.fetch(2, timeout=DEADLINE)
        client.seek_group("c", "g", "earliest", force=True)
        batch.ack()
        consumer.flush()
        assert consumer.lost == 2
        assert "delivered again" in caplog.text
        assert len(consumer.fetch(2, timeout=DEADLINE)) == 2
