"""Channels, rule by rule: partitions and keys, delays, time to live, trimming, producers, damage."""

import zlib

import pytest
from handbroker import HandBroker, all_stopped, contents, durable, offsets, publish, receipts, replayed

from mq.command import (
    Ack,
    CancelSchedule,
    CreateChannel,
    CreateGroup,
    DeleteChannel,
    DescribeChannel,
    DescribeGroup,
    ListChannels,
    Position,
    Publish,
    Pull,
    PurgeChannel,
    Start,
    Transact,
    UpdateChannel,
)
from mq.errors import (
    ChannelExists,
    DataLoss,
    InvalidArgument,
    OffsetOutOfRange,
    ResourceExhausted,
    ScheduleNotFound,
    SequenceRefused,
)
from mq.limits import Limits
from wal.errors import CorruptSegment
from wal.pb.wal_pb2 import Acked, Batch, BatchMessage, ChannelSettings, Damaged, Skipped

__all__ = ["all_stopped"]


@pytest.fixture
def hand() -> HandBroker:
    hand = HandBroker()
    hand.ask(CreateChannel("a"))
    return hand


def keyed(*keys: str | None) -> bytes:
    messages = [BatchMessage(content=str(n).encode(), key=key and key.encode()) for n, key in enumerate(keys)]
    return Batch(messages=messages).SerializeToString()


def test_an_empty_channel_survives_a_crash_and_is_made_once(hand: HandBroker) -> None:
    hand = hand.crash()
    assert hand.ask(CreateChannel("a")).created is False
    with pytest.raises(ChannelExists):
        hand.ask(CreateChannel("a", fail_if_exists=True))
    assert [info.channel for info in hand.ask(ListChannels()).channels] == ["a"]


def test_there_are_only_so_many_channels() -> None:
    hand = HandBroker(limits=Limits(channels=1))
    hand.ask(CreateChannel("a"))
    with pytest.raises(ResourceExhausted, match="channels"):
        hand.ask(CreateChannel("b"))


@pytest.mark.parametrize("limit", ["max_bytes", "max_messages"])
def test_latest_messages_are_not_dropped_for_their_number_or_size(hand: HandBroker, limit: str) -> None:
    """What compaction drops still counts, so these limits would take what it keeps."""
    latest = ChannelSettings(keep=ChannelSettings.KEEP_LATEST_PER_KEY, max_age_ms=1000)
    both = ChannelSettings(keep=ChannelSettings.KEEP_LATEST_PER_KEY, **{limit: 1_000_000})  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="latest message of each key"):
        hand.ask(CreateChannel("new", settings=both))
    hand.ask(CreateChannel("new", settings=latest))
    with pytest.raises(InvalidArgument, match="latest message of each key"):
        hand.ask(UpdateChannel("new", both))
    assert hand.ask(UpdateChannel("new", partitions=2)).settings == latest


def test_a_deleted_name_is_free_again_and_gets_another_id(hand: HandBroker) -> None:
    hand.ask(publish("a", "x"))
    hand.ask(DeleteChannel("a"))
    hand.ask(CreateChannel("a"))
    assert hand.ask(publish("a", "y")).base_offset == 0
    hand = hand.crash()
    assert contents(hand.ask(Pull("a"))) == ["y"]
    assert hand.state.channels["a"].channel_id == 2


def test_a_keyed_batch_is_split_by_crc32_and_the_reply_says_where_everything_went() -> None:
    hand = HandBroker()
    hand.ask(CreateChannel("a", partitions=3))
    keys = ["k1", "k2", "k3", None, "k1"]
    command = Publish("a", keyed(*keys), 5, producer_id="p", crc=4)
    reply = hand.ask(command)
    for placement in reply.placements:
        got = contents(hand.ask(Pull("a", partition=placement.partition)))
        assert got == [str(index) for index in placement.indexes]
        for index in placement.indexes:
            key = keys[index]
            assert key is None or zlib.crc32(key.encode()) % 3 == placement.partition
    assert sorted(index for placement in reply.placements for index in placement.indexes) == [0, 1, 2, 3, 4]
    again = hand.crash().ask(command)
    assert again.duplicate
    assert [(p.partition, p.base_offset) for p in again.placements] == [
        (p.partition, p.base_offset) for p in reply.placements
    ]


def test_batches_without_keys_go_round() -> None:
    hand = HandBroker()
    hand.ask(CreateChannel("a", partitions=3))
    assert [hand.ask(publish("a", "x")).partition for _ in range(4)] == [0, 1, 2, 0]
    with pytest.raises(InvalidArgument):
        hand.ask(publish("a", "x", partition=3))


def test_partitions_can_be_added_and_groups_see_them(hand: HandBroker) -> None:
    hand.ask(CreateGroup("a", "g"))
    info = hand.ask(UpdateChannel("a", partitions=2, settings=ChannelSettings(ttl_ms=1000)))
    assert (len(info.partitions), info.settings.ttl_ms) == (2, 1000)
    hand.ask(publish("a", "x", partition=1))
    assert contents(hand.ask(Pull("a", "g", "m"))) == ["x"]
    with pytest.raises(InvalidArgument):
        hand.ask(UpdateChannel("a", partitions=1))


def test_a_delayed_batch_has_no_offset_until_it_is_due_also_after_a_crash(hand: HandBroker) -> None:
    planned = hand.ask(publish("a", "late", delay_ms=5000, producer_id="p", crc=1))
    assert planned.schedule_id == 1
    hand.ask(publish("a", "early"))
    hand = hand.crash()
    hand.tick(4999)
    assert contents(hand.ask(Pull("a"))) == ["early"]
    assert hand.ask(publish("a", "late", delay_ms=5000, producer_id="p", crc=1)).schedule_id == 1
    hand.tick(1)
    hand.settle()
    assert contents(hand.ask(Pull("a"))) == ["early", "late"]
    assert contents(hand.crash().ask(Pull("a"))) == ["early", "late"]
    assert hand.state.channels["a"].schedules == {}


def test_a_clock_that_jumps_back_delivers_nothing_early_and_nothing_twice(hand: HandBroker) -> None:
    hand.ask(publish("a", "late", deliver_at_us=hand.clock.us + 5_000_000))
    hand.clock.pass_ms(-60_000)
    hand.tick(60_000)
    assert hand.ask(Pull("a")).batches == []
    hand.tick(5000)
    hand.clock.pass_ms(-60_000)
    hand.tick(65_000)
    hand.settle()
    assert contents(hand.ask(Pull("a"))) == ["late"]


def test_a_delayed_batch_can_be_cancelled_once(hand: HandBroker) -> None:
    planned = hand.ask(publish("a", "late", delay_ms=5000))
    assert hand.ask(DescribeChannel("a")).scheduled == 1
    hand.ask(CancelSchedule("a", planned.schedule_id))
    with pytest.raises(ScheduleNotFound):
        hand.ask(CancelSchedule("a", planned.schedule_id))
    hand.tick(6000)
    assert hand.ask(Pull("a")).batches == []


def test_what_has_expired_is_skipped_and_counted(hand: HandBroker) -> None:
    hand.ask(CreateGroup("a", "g"))
    hand.ask(publish("a", "1", "2", ttl_ms=1000))
    hand.ask(publish("a", "3"))
    hand.tick(1000)
    assert contents(hand.ask(Pull("a", "g", "m"))) == ["3"]
    assert contents(hand.ask(Pull("a"))) == ["3"]
    assert hand.ask(DescribeGroup("a", "g")).skipped == 2
    assert hand.ask(DescribeChannel("a")).expired == 2
    assert durable(replayed(hand.log, hand.limits)) == durable(hand.state)


def test_a_group_whose_position_was_purged_goes_on_at_the_start(hand: HandBroker) -> None:
    hand.ask(publish("a", *"012345"))
    got = hand.ask(Pull("a", "g", "m", max_messages=2))
    assert hand.ask(PurgeChannel("a", before_offset=4)).purged == 4
    assert offsets(hand.ask(Pull("a", "g", "m"))) == [4, 5]
    assert hand.ask(DescribeGroup("a", "g")).skipped == 4
    with pytest.raises(OffsetOutOfRange) as error:
        hand.ask(Pull("a", start=Start("offset", 3)))
    assert (error.value.start_offset, error.value.next_offset) == (4, 6)
    assert got.batches


def test_a_producer_is_held_to_its_sequence(hand: HandBroker) -> None:
    def send(sequence: int, text: str, crc: int, producer: str = "p"):  # type: ignore[no-untyped-def]
        return hand.ask(publish("a", text, producer_id=producer, sequence=sequence, crc=crc))

    for number in range(3):
        assert send(number, str(number), number).base_offset == number
    assert send(0, "0", 0).base_offset == 0
    with pytest.raises(SequenceRefused, match="after"):
        send(4, "4", 4)
    with pytest.raises(SequenceRefused, match="other content"):
        send(1, "x", 99)
    with pytest.raises(SequenceRefused, match="starts at 0"):
        send(1, "x", 1, "stranger")
    hand = hand.crash()
    assert send(2, "2", 2).duplicate


def test_a_retried_transaction_has_its_effect_once(hand: HandBroker) -> None:
    hand.ask(CreateChannel("b"))
    hand.ask(publish("a", "in"))
    got = hand.ask(Pull("a", "g", "m"))
    command = Transact(
        [publish("b", "out1"), publish("a", "out2"), publish("b", "out3")],
        [Ack("a", "g", "m", receipts(got))],
        producer_id="p",
        crc=1,
    )
    first = hand.ask(command)
    hand = hand.crash()
    again = hand.ask(command)
    assert again.duplicate
    assert [reply.base_offset for reply in again.publishes] == [r.base_offset for r in first.publishes] == [0, 1, 1]
    assert contents(hand.ask(Pull("b"))) == ["out1", "out3"]
    assert contents(hand.ask(Pull("a", "g", "m"))) == ["out2"]


def test_pulls_over_all_partitions_go_on_where_they_stopped() -> None:
    hand = HandBroker()
    hand.ask(CreateChannel("a", partitions=3))
    for number in range(9):
        hand.ask(publish("a", str(number)))
    seen: list[str] = []
    positions: list[Position] = []
    for _ in range(6):
        reply = hand.ask(Pull("a", max_messages=2, positions=positions))
        seen += contents(reply)
        positions = reply.next
    assert sorted(seen) == [str(number) for number in range(9)]


# ---------------------------------------------------------------- damage


def test_a_damaged_range_is_reported_exactly_and_no_offset_is_used_twice(hand: HandBroker) -> None:
    hand.ask(publish("a", "0", "1"))
    hand.log.append([Damaged(first_sequence=9, last_sequence=9, skip=5, reason="flipped bit", segment="s")])
    hand.log.release()
    hand = hand.crash()
    assert len(hand.recovered.damaged) == 1
    assert hand.ask(publish("a", "7")).base_offset == 7
    assert contents(hand.ask(Pull("a"))) == ["0", "1"]
    with pytest.raises(DataLoss) as loss:
        hand.ask(Pull("a", positions=[Position(0, 2)]))
    assert (loss.value.start, loss.value.end) == (2, 7)
    assert contents(hand.ask(Pull("a", positions=[Position(0, 7)]))) == ["7"]
    assert hand.state.channels["a"].channel_id < hand.state.next_channel_id - 4


def test_a_damaged_partition_does_not_fail_a_pull_over_the_others() -> None:
    hand = HandBroker()
    hand.ask(CreateChannel("a", partitions=2))
    hand.state.channels["a"].partitions[0].unreadable.add(0, 1)
    hand.ask(publish("a", "lost", partition=0))
    hand.ask(publish("a", "good", partition=1))
    assert contents(hand.ask(Pull("a"))) == ["good"]
    assert contents(hand.ask(Pull("a", "g", "m"))) == ["good"]
    with pytest.raises(DataLoss):
        hand.ask(Pull("a", "g", "m"))


def test_a_skipped_range_is_only_a_hole(hand: HandBroker) -> None:
    hand.ask(publish("a", "0"))
    hand.log.append([Skipped(skip=5)])
    hand.log.release()
    hand = hand.crash()
    hand.ask(publish("a", "6"))
    got = hand.ask(Pull("a", "g", "m"))
    assert offsets(got) == [0, 6]
    hand.ask(Ack("a", "g", "m", receipts(got)))
    assert hand.ask(DescribeGroup("a", "g")).lag == 0


def test_what_the_log_can_not_read_back_is_data_loss_with_its_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    hand = HandBroker(limits=Limits(buffer_bytes=1))
    hand.ask(CreateChannel("a"))
    for number in range(6):
        hand.ask(publish("a", str(number), str(number)))
    honest = hand.log.read

    async def damaged(channel_id: int, partition: int, offset: int, max_bytes: int):  # type: ignore[no-untyped-def]
        if 4 <= offset < 8:
            raise CorruptSegment("s", 0, "flipped bit")
        return await honest(channel_id, partition, offset, 1)

    monkeypatch.setattr(hand.log, "read", damaged)
    with pytest.raises(DataLoss) as loss:
        hand.ask(Pull("a", positions=[Position(0, 4)]))
    assert (loss.value.start, loss.value.end) == (4, 8)
    assert offsets(hand.ask(Pull("a", positions=[Position(0, 8)]))) == [8, 9]


def test_a_record_for_what_is_not_there_is_set_aside(hand: HandBroker) -> None:
    hand.log.append([Acked(channel_id=99), Acked(channel_id=1, group_id=5), Acked(channel_id=1, partition=7)])
    hand.log.release()
    assert hand.crash().recovered.set_aside == 3
