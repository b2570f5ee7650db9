"""What production asks of the client: delayed messages by their ids, dead letters at a pace, channels that go."""

from __future__ import annotations

import asyncio
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from process import Process, wait_until

import mq
from mq.client.redriving import Redriving
from mq.pb import mq_pb2 as pb
from mq.testing import broker
from wal.disk import DirectDisk
from wal.proposal import Offer, read_offer

HOUR_MS = 3_600_000
DEADLINE = 30.0


# ---------------------------------------------------------------- delayed messages


def test_delayed_messages_are_listed_the_soonest_first_a_page_at_a_time(mq_client: mq.Client) -> None:
    mq_client.create_channel("c")
    numbers = [mq_client.publish("c", b"x", delay_ms=HOUR_MS * hours).schedule_id for hours in (3, 1, 2)]
    assert [each.schedule_id for each in mq_client.list_schedules("c")] == [numbers[1], numbers[2], numbers[0]]
    first = mq_client.list_schedules("c", max_schedules=2)
    rest = mq_client.list_schedules("c", max_schedules=2, after=first[-1])
    assert [each.schedule_id for each in first + rest] == [numbers[1], numbers[2], numbers[0]]
    assert mq_client.describe_channel("c").scheduled == 3
    mq_client.cancel_schedule("c", numbers[2])
    with pytest.raises(mq.ScheduleNotFound):
        mq_client.cancel_schedule("c", numbers[2])
    assert [each.schedule_id for each in mq_client.list_schedules("c")] == [numbers[1], numbers[0]]


def test_each_part_of_a_delayed_batch_over_several_partitions_is_told_and_can_be_cancelled(
    mq_client: mq.Client,
) -> None:
    mq_client.create_channel("c", partitions=4)
    messages = [pb.BatchMessage(content=b"%d" % number, key=b"%d" % number) for number in range(20)]
    request = pb.PublishBatchRequest(channel="c", delay_ms=HOUR_MS, batch=pb.Batch(messages=messages))
    answer = pb.PublishBatchResponse.FromString(
        mq_client._call("mq.MQService/PublishBatch", request.SerializeToString())
    )
    assert sorted(index for at in answer.placements for index in at.indexes) == list(range(20))
    numbers = {at.schedule_id for at in answer.placements}
    assert len(numbers) == len(answer.placements) == 4
    assert {each.schedule_id for each in mq_client.list_schedules("c")} == numbers
    assert answer.schedule_id == answer.placements[0].schedule_id
    for number in numbers:
        mq_client.cancel_schedule("c", number)
    assert mq_client.list_schedules("c") == []


def test_a_delayed_message_shares_its_id_with_no_other_so_that_it_is_cancelled_alone(mq_client: mq.Client) -> None:
    mq_client.create_channel("c")
    barrier = threading.Barrier(8)

    def publish(number: int) -> int:
        barrier.wait(DEADLINE)
        return mq_client.publish("c", b"%d" % number, delay_ms=HOUR_MS).schedule_id

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(publish, range(8)))) == 8


def test_what_is_due_comes_also_where_nobody_asks_for_anything_else(tmp_path: Path) -> None:
    """The timer of a broker is not lost between two ticks, whatever its loop's clock says: nothing else wakes it."""
    process = Process(tmp_path)
    try:
        with mq.Client(f"mq://127.0.0.1:{process.wait_for_port('wire')}") as client:
            client.create_channel("c")
            first = datetime.now(UTC) + timedelta(milliseconds=300)
            spaced = [first + timedelta(microseconds=7_310 * number) for number in range(60)]
            for number, when in enumerate(spaced):
                client.publish("c", b"%d" % number, deliver_at=when)
            messages = iter(client.read("c"))
            assert [next(messages).content for _ in spaced] == [b"%d" % number for number in range(60)]
    finally:
        process.signal(signal.SIGKILL)
        process.wait()


def test_asyncio_lists_and_cancels_and_sends_back_as_well(mq_broker: str) -> None:
    async def main() -> None:
        async with mq.AsyncClient(mq_broker) as client:
            await client.create_channel("c")
            made = await asyncio.gather(*(client.publish("c", b"x", delay_ms=HOUR_MS) for _ in range(8)))
            found = await client.list_schedules("c")
            assert {each.schedule_id for each in found} == {each.schedule_id for each in made}
            assert len(found) == 8
            for each in found:
                await client.cancel_schedule("c", each.schedule_id)
            assert await client.list_schedules("c") == []
            await client.publish("c", b"ill")
            async with await client.consumer("c", "g") as consumer:
                async for message in consumer:
                    await message.reject()
                    break
            told = await client.redrive_all("c", rate=1_000)
            assert (told.moved, told.left, told.done) == (1, 0, True)

    asyncio.run(main())


# ---------------------------------------------------------------- dead letters


def reject_all(client: mq.Client, count: int, reason: str = "bad") -> None:
    with client.consumer("c", "g") as consumer:
        left = count
        while left:
            batch = consumer.fetch(left, timeout=DEADLINE)
            batch.reject(reason)
            left -= len(batch)


def test_all_dead_letters_are_sent_back_by_reason_and_age(mq_client: mq.Client) -> None:
    mq_client.create_channel("c")
    with mq_client.producer("c") as producer:
        producer.send_many(b"%d" % number for number in range(100))
    reject_all(mq_client, 100)
    assert mq_client.redrive_all("c", reason="other").left == 100
    assert mq_client.redrive_all("c", min_age_ms=HOUR_MS).moved == 0
    told = mq_client.redrive_all("c", max_age_ms=HOUR_MS, reason="bad", rate=10_000)
    assert (told.moved, told.left, told.done) == (100, 0, True)
    assert mq_client.describe_channel("c.dlq").messages == 0
    assert mq_client.redrive_all("c").moved == 0


def test_a_pace_is_kept_and_what_dies_meanwhile_is_for_the_next_time() -> None:
    work = Redriving("c", "", "", 0, 0, rate=50, begin=100.0)
    work.find_end(pb.ChannelInfo(partitions=[pb.PartitionInfo(next_offset=12)]))
    now, moved, moments = 100.0, 0, [100.0]
    while not work.told.done:
        asked = pb.RedriveRequest.FromString(work.request())
        assert asked.channel == "c.dlq"
        assert asked.start_offset == moved
        assert asked.max_messages == min(5, 12 - moved)
        moved += asked.max_messages
        # the channel grows as fast as it is emptied: it is never done by itself
        slice_of = pb.RedriveResponse(moved=asked.max_messages, next_offset=moved, done=False)
        now += work.take(slice_of.SerializeToString(), now)
        moments.append(now)
    assert (work.told.moved, work.told.next_offset) == (12, 12)
    assert [round(after - before, 6) for before, after in pairwise(moments)] == [0.1, 0.1, 0.0]


def test_without_a_pace_the_last_slice_ends_where_the_channel_ended_too() -> None:
    work = Redriving("c", "", "", 0, 0, rate=0, begin=0.0)
    work.find_end(pb.ChannelInfo(partitions=[pb.PartitionInfo(next_offset=501)]))
    assert pb.RedriveRequest.FromString(work.request()).max_messages == 500
    work.take(pb.RedriveResponse(moved=500, next_offset=500).SerializeToString(), 0.0)
    assert pb.RedriveRequest.FromString(work.request()).max_messages == 1


def test_what_is_not_asked_for_costs_no_time() -> None:
    work = Redriving("c", "", "odd", 0, 0, rate=10, begin=0.0)
    work.find_end(pb.ChannelInfo(partitions=[pb.PartitionInfo(next_offset=1_000)]))
    assert work.take(pb.RedriveResponse(left=1, next_offset=1).SerializeToString(), 0.0) == 0.0
    assert work.take(pb.RedriveResponse(moved=1, next_offset=2).SerializeToString(), 0.0) == pytest.approx(0.1)


# ---------------------------------------------------------------- channels that come and go


def recreate(client: mq.Client) -> None:
    client.delete_channel("c")
    client.create_channel("c")
    client.publish("c", b"of another channel")


@pytest.mark.parametrize("follow", [True, False])
def test_a_reader_is_told_that_its_channel_was_deleted_though_another_has_its_name(
    mq_client: mq.Client, follow: bool
) -> None:
    mq_client.create_channel("c")
    mq_client.publish("c", b"old")
    reader = mq_client.read("c", follow=follow)
    messages = iter(reader)
    assert next(messages).content == b"old"
    recreate(mq_client)
    with pytest.raises(mq.ChannelNotFound, match="deleted"):
        next(messages)
    assert [each.content for each in mq_client.read("c", follow=False)] == [b"of another channel"]


def test_a_consumer_is_told_so_too_and_makes_no_group_on_the_other(mq_client: mq.Client) -> None:
    mq_client.create_channel("c")
    mq_client.publish("c", b"old")
    with mq_client.consumer("c", "g") as consumer:
        (message,) = consumer.fetch(1, timeout=DEADLINE)
        recreate(mq_client)
        message.ack()  # goes nowhere
        with pytest.raises(mq.ChannelNotFound, match="deleted"):
            consumer.fetch(1, timeout=DEADLINE)
    assert mq_client.list_groups("c") == []


def test_the_bytes_in_memory_are_told(mq_client: mq.Client) -> None:
    mq_client.create_channel("c")
    before = mq_client.server_info().buffered_bytes
    mq_client.publish("c", bytes(100_000))
    assert 100_000 <= mq_client.server_info().buffered_bytes - before < 110_000
    mq_client.delete_channel("c")
    wait_until(lambda: mq_client.server_info().buffered_bytes == before)


def test_an_install_that_takes_long_is_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Asked again, the broker would say that there is no such proposal: it has installed and forgotten it.
    asked: list[str] = []
    is_asked_again = threading.Event()

    def slow(disk: object, directory: str, offer_id: str) -> Offer:
        asked.append(offer_id)
        if len(asked) > 1:
            is_asked_again.set()
        is_asked_again.wait(1.0)
        return read_offer(DirectDisk(), directory, offer_id)

    monkeypatch.setattr("wal.upkeep.read_offer", slow)
    with broker(tmp_path) as address, mq.Client(address) as client:
        client._connection._attempt_seconds = 0.1
        with pytest.raises(mq.ProposalNotFound):
            client.install_segments("0123456789abcdef")
    assert asked == ["0123456789abcdef"]
