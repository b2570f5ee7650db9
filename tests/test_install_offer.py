"""Install of what a compaction proposes: only what may go by the present state goes, and nobody else notices."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from filebroker import LATEST, FileBroker
from handbroker import all_stopped, contents, durable, offsets, receipts
from proposer import planned, propose

import mq.installer
import mq.judge
import wal.upkeep
from mq.command import (
    Ack,
    CreateGroup,
    DeleteChannel,
    DeleteGroup,
    DescribeGroup,
    Nack,
    Position,
    Publish,
    Pull,
    PurgeChannel,
    Receipt,
    Seek,
    Start,
    Transact,
    UpdateChannel,
)
from mq.errors import MqError, ProposalNotFound, ProposalRefused
from mq.reply import PullReply
from wal.disk import DirectDisk
from wal.pb.wal_pb2 import Batch, BatchMessage, ChannelSettings, GroupSettings
from wal.proposal import Offer, write_offer
from wal.verify import verify

__all__ = ["all_stopped"]

EARLIEST = Start("earliest")
KEYS = 7


@pytest.fixture
def broker(tmp_path: Path) -> FileBroker:
    return FileBroker(tmp_path / "log")


def fill(broker: FileBroker, channel: str = "prices", rounds: int = 60, settings: ChannelSettings = LATEST) -> None:
    """Every third batch of a key's own; keys change at different times, and some messages have none."""
    broker.create(channel, settings)
    for at in range(rounds):
        keyed = [(f"k{(at + each) % KEYS}", f"{channel} {at}.{each} " + "x" * 60) for each in range(5)]
        broker.put(channel, *keyed, *([f"{channel} {at} without a key"] if at % 10 == 0 else []))


def everything(broker: FileBroker, channel: str) -> dict[int, tuple[str, int]]:
    """What a reader gets from the beginning on: content and time by offset."""
    found: dict[int, tuple[str, int]] = {}
    place: list[Position] = []
    while True:
        reply = broker.ask(Pull(channel, max_messages=9, positions=place, start=None if place else EARLIEST))
        if not reply.batches:
            return found
        for pulled in reply.batches:
            one = PullReply([pulled])
            for offset, content in zip(offsets(one), contents(one), strict=True):
                assert offset not in found
                found[offset] = (content, pulled.timestamp_us)
        place = reply.next


def latest(before: dict[int, tuple[str, int]]) -> dict[int, tuple[str, int]]:
    """What must be left of messages whose key is told by their round and number."""
    last: dict[str, int] = {}
    for offset, (content, _) in before.items():
        last[key_in(content) or f"no key at {offset}"] = offset
    return {offset: before[offset] for offset in sorted(last.values())}


def key_in(content: str) -> str:
    words = content.split()
    if "without" in words:
        return ""
    at, each = words[1].split(".")
    return f"k{(int(at) + int(each)) % KEYS}"


def install_all(broker: FileBroker) -> list[Offer]:
    """What a compaction proposes now."""
    offers = propose(broker.directory, broker.clock.us)
    for offer in offers:
        reply = broker.install(offer.id)
        assert reply.dropped_messages == offer.dropped_messages
        assert reply.bytes_before - reply.bytes_after == offer.freed_bytes > 0
    return offers


def drain(broker: FileBroker, channel: str, group: str, *, most: int = 4) -> list[int]:
    """Everything that a group gets, in the order in which it comes; each message is acked by itself."""
    found: list[int] = []
    while True:
        reply = broker.ask(Pull(channel, group, "m", max_messages=most))
        if not reply.batches:
            return found
        for pulled in reply.batches:
            mine = offsets(PullReply([pulled]))
            found += mine
            for offset in mine:
                broker.ask(Ack(channel, group, "m", [Receipt(pulled.receipt, [(offset, offset + 1)])]))


def test_the_latest_of_each_key_stays_where_it_was(broker: FileBroker) -> None:
    fill(broker)
    fill(broker, "plain", settings=ChannelSettings())
    broker.settle_history()
    prices, plain, before = everything(broker, "prices"), everything(broker, "plain"), durable(broker.state)
    gone = sum(offer.dropped_messages for offer in install_all(broker))
    assert gone == len(prices) - len(latest(prices)) > 200
    assert durable(broker.state) == before
    broker = broker.again()
    assert everything(broker, "prices") == latest(prices)
    assert everything(broker, "plain") == plain
    assert verify(str(broker.directory)).is_intact
    assert planned(broker.directory, broker.clock.us).dropped.total() == 0, "nothing is left to be gained"


def test_a_group_that_comes_later_gets_what_is_left_once_and_in_order(broker: FileBroker) -> None:
    fill(broker)
    broker.settle_history()
    left = list(latest(everything(broker, "prices")))
    install_all(broker)
    broker = broker.again()
    for group, settings in [("shared", GroupSettings()), ("ordered", GroupSettings(mode=GroupSettings.ORDERED))]:
        broker.ask(CreateGroup("prices", group, settings))
        assert drain(broker, "prices", group) == left
        info = broker.ask(DescribeGroup("prices", group))
        assert (info.lag, info.pending) == (0, 0)


def test_a_group_in_the_middle_of_a_batch_goes_on_with_the_next_that_is_left(broker: FileBroker) -> None:
    fill(broker)
    broker.ask(CreateGroup("prices", "g", GroupSettings(mode=GroupSettings.ORDERED)))
    passed = 0
    while passed < 203:
        some = broker.ask(Pull("prices", "g", "m", max_messages=203 - passed))
        broker.ask(Ack("prices", "g", "m", receipts(some)))
        passed += len(offsets(some))
    held = broker.ask(Pull("prices", "g", "m", max_messages=1))
    broker.settle_history()
    before = everything(broker, "prices")
    install_all(broker)
    assert offsets(held) == [203]
    broker.ask(Ack("prices", "g", "m", receipts(held)))
    assert drain(broker, "prices", "g") == [offset for offset in before if offset > 203], "it was not past these"
    broker = broker.again()
    broker.ask(Seek("prices", "g", start=Start("offset", 1)))
    last_before = {key_in(content) or offset: offset for offset, (content, _) in before.items() if offset < 203}
    replaced = {key_in(content) for offset, (content, _) in before.items() if offset >= 203}
    kept = [offset for key, offset in last_before.items() if offset >= 1 and key not in replaced]
    assert drain(broker, "prices", "g") == sorted(kept) + [offset for offset in before if offset >= 203]


@pytest.mark.parametrize("mode", [GroupSettings.SHARED, GroupSettings.ORDERED])
def test_a_group_is_done_with_a_channel_that_ends_in_a_hole(broker: FileBroker, mode: GroupSettings.Mode) -> None:
    fill(broker)
    broker.put("prices", *[(f"k{each}", "") for each in range(KEYS)])
    broker.settle_history()
    broker.clock.pass_ms(120_000)
    left = {content for content, _ in everything(broker, "prices").values() if "without" in content}
    install_all(broker)
    broker = broker.again()
    assert {content for content, _ in everything(broker, "prices").values()} == left
    broker.ask(CreateGroup("prices", "late", GroupSettings(mode=mode)))
    assert len(drain(broker, "prices", "late")) == len(left)
    for _ in range(2):
        info = broker.ask(DescribeGroup("prices", "late"))
        assert (info.lag, info.pending) == (0, 0)
        broker = broker.again()
    broker.put("prices", ("k1", "new"))
    assert len(drain(broker, "prices", "late")) == 1
    assert broker.ask(DescribeGroup("prices", "late")).lag == 0


@pytest.mark.parametrize("mode", [GroupSettings.SHARED, GroupSettings.ORDERED])
def test_what_is_to_come_again_and_is_gone_holds_nothing_up(broker: FileBroker, mode: GroupSettings.Mode) -> None:
    """What is in memory is given out as it was, though it was dropped from the log meanwhile."""
    broker.create("prices", LATEST)
    broker.put("prices", *[(f"k{each}", "first") for each in range(5)])
    broker.put("prices", *[(f"k{each}", "second") for each in range(1, 4)])
    broker.settle_history()
    assert sum(offer.dropped_messages for offer in install_all(broker)) == 3
    broker.ask(CreateGroup("prices", "g", GroupSettings(mode=mode)))
    reply = broker.ask(Pull("prices", "g", "m"))
    assert offsets(reply) == list(range(8))
    first, second = reply.batches
    broker.ask(Nack("prices", "g", "m", [Receipt(first.receipt, [(2, 3)])]))
    broker.ask(Ack("prices", "g", "m", [Receipt(first.receipt, [(0, 2)]), Receipt(second.receipt)]))
    broker = broker.again()
    broker.clock.pass_ms(60_000)
    assert drain(broker, "prices", "g") == [4], "3 was dropped as well"
    info = broker.ask(DescribeGroup("prices", "g"))
    assert (info.lag, info.pending) == (0, 0)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_a_shared_group_does_among_holes_it_gets_everything_that_is_left(
    broker: FileBroker, seed: int
) -> None:
    """Acks and nacks of single messages, out of order and by several members, seeks, expired leases."""
    random = Random(seed)
    fill(broker)
    broker.settle_history()
    left = list(latest(everything(broker, "prices")))
    install_all(broker)
    broker = broker.again()
    settings = GroupSettings(ack_wait_ms=1_000, backoff_ms=[1], max_deliver=1_000_000)
    broker.ask(CreateGroup("prices", "g", settings))
    acked: set[int] = set()
    for _ in range(60):
        member = random.choice("abc")
        reply = broker.ask(Pull("prices", "g", member, max_messages=random.randint(1, 9)))
        for pulled in reply.batches:
            for offset in offsets(PullReply([pulled])):
                part = [Receipt(pulled.receipt, [(offset, offset + 1)])]
                if random.random() < 0.4:
                    broker.ask(Ack("prices", "g", member, part))
                    acked.add(offset)
                elif random.random() < 0.5:
                    broker.ask(Nack("prices", "g", member, part))
        if random.random() < 0.1:
            to = random.randrange(left[-1])
            broker.ask(Seek("prices", "g", start=Start("offset", to)))
            acked = set(range(to))
        if random.random() < 0.2:
            broker.tick(1_500)
    broker.tick(1_500)
    broker.tick(1_500)
    rest = drain(broker, "prices", "g")
    assert set(rest) <= set(left)
    assert set(left) <= {*rest, *acked}
    assert broker.ask(DescribeGroup("prices", "g")).lag == 0, "nothing holds it up"


def refused(broker: FileBroker, proposal: str, match: str) -> None:
    """And the log is as it was."""
    names, manifest = broker.names(), broker.log.manifest.segments
    files = {path.name for path in broker.directory.glob("*.wal")}
    with pytest.raises(ProposalRefused, match=match):
        broker.install(proposal)
    assert (broker.names(), broker.log.manifest.segments) == (names, manifest)
    assert {path.name for path in broker.directory.glob("*.wal")} == files


CHANGES = {
    "a seek": (Seek("prices", "g", start=EARLIEST), "not past|'g' is at offset 0"),
    "a new group": (CreateGroup("prices", "new"), "not past|'new' is at offset 0"),
    "other settings": (UpdateChannel("prices", ChannelSettings()), "is live|settings"),
    "a longer grace": (
        UpdateChannel("prices", ChannelSettings(keep=LATEST.keep, tombstone_grace_ms=10**9)),
        "settings|no later message",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changed_since_the_proposal_is_seen(broker: FileBroker, change: str) -> None:
    command, match = CHANGES[change]
    propose_after_all_acked(broker)
    (offer,) = propose(broker.directory, broker.clock.us)
    before = everything(broker, "prices")
    broker.ask(command)
    refused(broker, offer.id, match)
    assert everything(broker, "prices") == before


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_while_it_is_checked_is_seen_at_the_swap(
    broker: FileBroker, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last thing before the swap is to give the files their names: here the change comes right after that."""
    command, match = CHANGES[change]
    propose_after_all_acked(broker)
    (offer,) = propose(broker.directory, broker.clock.us)
    before = everything(broker, "prices")
    place = wal.upkeep.place

    async def submit() -> None:
        broker.broker.submit(command, lambda answer: answers.append(answer))

    def place_and_change(*args: Any) -> None:
        place(*args)
        asyncio.run_coroutine_threadsafe(submit(), broker.loop).result(30)

    answers: list[Any] = []
    monkeypatch.setattr(wal.upkeep, "place", place_and_change)
    refused(broker, offer.id, match)
    assert answers
    assert not isinstance(answers[0], MqError)
    assert everything(broker, "prices") == before


def propose_after_all_acked(broker: FileBroker) -> None:
    fill(broker)
    for each in range(KEYS):
        broker.put("prices", (f"k{each}", ""))
    broker.put("prices", *[(f"k{each}", f"prices {each}.0 at last") for each in range(KEYS - 1)])
    broker.ask(CreateGroup("prices", "g", start=Start("latest")))
    broker.settle_history()
    broker.clock.pass_ms(120_000)


def test_a_deleted_group_holds_nothing_up(broker: FileBroker) -> None:
    propose_after_all_acked(broker)
    broker.ask(CreateGroup("prices", "old"))
    assert planned(broker.directory, broker.clock.us).dropped.total() == 0
    broker.ask(DeleteGroup("prices", "old"))
    assert planned(broker.directory, broker.clock.us).dropped.total() > 200


def test_an_id_that_is_none_and_one_that_nobody_knows(broker: FileBroker) -> None:
    for proposal in ("0" * 16, "../MANIFEST", "", "x" * 1000):
        with pytest.raises(ProposalNotFound):
            broker.install(proposal)


def test_nobody_looks_at_the_state_for_an_id_that_nobody_knows(
    broker: FileBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*args: Any) -> None:
        raise AssertionError("it takes long where there are many partitions")

    monkeypatch.setattr(mq.installer, "Rules", look)
    with pytest.raises(ProposalNotFound):
        broker.install("0" * 16)


def test_what_is_remembered_of_keys_is_bounded_for_all_partitions_together(
    broker: FileBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for channel in ("prices", "costs"):
        broker.create(channel, LATEST)
    for at in range(60):
        for channel in ("prices", "costs"):
            broker.put(channel, *[(f"k{each}", f"{at}.{each} " + "x" * 60) for each in range(KEYS)])
    broker.settle_history()
    (offer,) = propose(broker.directory, broker.clock.us)
    monkeypatch.setattr(mq.judge, "MOST_KEYS", 2 * KEYS - 1)
    refused(broker, offer.id, "fewer segments")
    monkeypatch.setattr(mq.judge, "MOST_KEYS", 2 * KEYS)
    assert broker.install(offer.id).dropped_messages > 500


def test_a_judge_remembers_nothing_of_partitions_that_lose_nothing() -> None:
    keys = mq.judge.Keys()
    assert not keys.parts
    assert keys.add(7)
    assert not keys.add(7)
    assert len(keys.parts) == len(keys) == 1
    assert keys.discard(7)
    assert not keys.discard(7)
    assert not keys


def test_a_proposal_is_installed_once(broker: FileBroker) -> None:
    fill(broker)
    broker.settle_history()
    (offer,) = propose(broker.directory, broker.clock.us)
    kept = [path.read_bytes() for path in (broker.directory / "staging").glob(f"{offer.id}*.proposal")]
    broker.install(offer.id)
    assert list((broker.directory / "staging").glob(f"{offer.id}*")) == []
    (broker.directory / "staging" / f"{offer.id}.proposal").write_bytes(kept[0])
    refused(broker, offer.id, "any more")


# ---------------------------------------------------------------- what may go


def test_what_is_trimmed_or_deleted_goes_and_what_is_acked_stays(broker: FileBroker) -> None:
    for channel in ("trimmed", "deleted", "acked"):
        fill(broker, channel, 30, ChannelSettings())
    broker.ask(CreateGroup("acked", "g"))
    drain(broker, "acked", "g", most=500)
    broker.ask(PurgeChannel("trimmed", before_offset=100))
    broker.ask(DeleteChannel("deleted"))
    broker.settle_history()
    acked, trimmed = everything(broker, "acked"), everything(broker, "trimmed")
    assert sum(offer.dropped_messages for offer in install_all(broker)) >= 200
    broker = broker.again()
    assert everything(broker, "acked") == acked
    assert everything(broker, "trimmed") == trimmed


def test_what_has_expired_goes_once_every_group_is_past_it(broker: FileBroker) -> None:
    broker.create("mixed")
    broker.ask(CreateGroup("mixed", "g"))
    broker.put("mixed", "stays for ever")
    for at in range(100):
        broker.put("mixed", f"short {at} " + "x" * 300, ttl_ms=1_000)
    broker.put("mixed", "stays too")
    broker.settle_history()
    broker.clock.pass_ms(5_000)
    assert planned(broker.directory, broker.clock.us).dropped.total() == 0, "the group is not told yet"
    assert drain(broker, "mixed", "g") == [0, 101]
    broker.settle_history()
    assert sum(offer.dropped_messages for offer in install_all(broker)) == 100
    broker = broker.again()
    assert list(everything(broker, "mixed")) == [0, 101]


def test_a_tombstone_stays_for_its_grace_and_goes_with_all_before_it(broker: FileBroker) -> None:
    broker.create("prices", LATEST)
    for at in range(40):
        broker.put("prices", ("gone", f"{at} " + "x" * 200), ("here", f"{at} " + "x" * 200))
    broker.put("prices", ("gone", ""))
    broker.settle_history()
    install_all(broker)
    broker = broker.again()
    assert list(everything(broker, "prices")) == [79, 80]
    broker.settle_history()
    broker.clock.pass_ms(60_001)
    install_all(broker)
    broker = broker.again()
    assert list(everything(broker, "prices")) == [79]


def test_what_a_transaction_published_is_never_cut_and_keeps_its_tombstone(broker: FileBroker) -> None:
    broker.create("prices", LATEST)
    batch = Batch(messages=[BatchMessage(key=b"k", content=b"1"), BatchMessage(key=b"k", content=b"2")])
    broker.ask(Transact([Publish("prices", batch.SerializeToString(), 2)]))
    for at in range(60):
        broker.put("prices", ("k", f"{at} " + "x" * 300))
    broker.put("prices", ("k", ""))
    broker.settle_history()
    broker.clock.pass_ms(120_000)
    install_all(broker)
    broker = broker.again()
    assert list(everything(broker, "prices")) == [0, 1, 62]


def test_a_delayed_message_stays_until_it_is_out(broker: FileBroker) -> None:
    fill(broker)
    broker.put("prices", ("late", "in time"), delay_ms=3_600_000)
    fill(broker, "others")
    broker.settle_history()
    install_all(broker)
    broker = broker.again()
    broker.tick(3_600_001)
    broker.tick()
    assert "in time" in [content for content, _ in everything(broker, "prices").values()]


def test_what_a_replay_needs_is_refused(broker: FileBroker) -> None:
    """A proposal for segments behind the older snapshot run, made as if there were newer ones."""
    fill(broker)
    broker.settle_history()
    (offer,) = propose(broker.directory, broker.clock.us)
    first = broker.log.manifest.snapshots[0].begin
    late = next(segment for segment in broker.log.segments() if segment.last_sequence >= first)
    assert late.is_sealed
    write_offer(DirectDisk(), str(broker.directory), replace(offer, inputs=(late.name,), outputs=()))
    refused(broker, offer.id, "replay")


def test_the_broker_serves_while_it_installs(broker: FileBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(broker)
    broker.settle_history()
    (offer,) = propose(broker.directory, broker.clock.us)
    answers: list[Any] = []
    examine = wal.upkeep.examine

    async def publish() -> None:
        batch = Batch(messages=[BatchMessage(content=b"meanwhile")]).SerializeToString()
        broker.broker.submit(Publish("prices", batch, 1), answers.append)
        broker.broker.submit(Pull("prices", start=EARLIEST), answers.append)

    def examine_and_publish(*args: Any) -> Any:
        asyncio.run_coroutine_threadsafe(publish(), broker.loop).result(30)
        return examine(*args)

    monkeypatch.setattr(wal.upkeep, "examine", examine_and_publish)
    broker.install(offer.id)
    assert [type(answer).__name__ for answer in answers] == ["PublishReply", "PullReply"]
    assert everything(broker, "prices")[answers[0].base_offset][0] == "meanwhile"


def test_the_broker_cleans_nothing_that_a_proposal_is_about(broker: FileBroker) -> None:
    """Else a compaction of a busy log would always come too late."""
    fill(broker, "gone")
    broker.ask(DeleteChannel("gone"))
    broker.settle_history()
    (offer,) = propose(broker.directory, broker.clock.us)
    for _ in range(5):
        broker.tick(20_000)
    assert set(offer.inputs) <= set(broker.names())
    broker.install(offer.id)
    assert not set(offer.inputs) & set(broker.names())


def test_a_proposal_that_nobody_comes_back_for_holds_the_cleaner_up_for_an_hour(broker: FileBroker) -> None:
    fill(broker, "gone")
    broker.ask(DeleteChannel("gone"))
    broker.settle_history()
    (offer,) = propose(broker.directory, broker.clock.us)
    broker.tick(3_600_001)
    for _ in range(5):
        broker.tick(20_000)
    assert not set(offer.inputs) & set(broker.names())
    with pytest.raises(ProposalRefused, match="any more"):
        broker.install(offer.id)
