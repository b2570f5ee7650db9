"""Compaction, by one hand and without Spark: what it plans while the log goes on, and what it claims meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filebroker import LATEST, FileBroker
from handbroker import all_stopped
from proposer import OneHand, planned, propose
from test_install_offer import everything, fill

import mq.judge
from mq.cli.spark.compact import run
from mq.cli.spark.present import present_state
from mq.command import DeleteChannel
from mq.rules import Rules, grounds
from wal.disk import DirectDisk
from wal.pb.wal_pb2 import ChannelSettings
from wal.proposal import CLAIM_US, claimed
from wal.segment import SegmentFile
from wal.spark.compact import intact, job, selection, staging
from wal.spark.compact.staging import stage
from wal.spark.export.job import lost, pending
from wal.spark.read.listing import Segment, visible

__all__ = ["all_stopped"]


@pytest.fixture
def broker(tmp_path: Path) -> FileBroker:
    return FileBroker(tmp_path / "log")


def publish_each_key_twice(broker: FileBroker) -> None:
    """Of 800 messages the first 400 are replaced."""
    broker.create("prices", LATEST)
    for _ in range(2):
        for at in range(0, 400, 10):
            broker.put("prices", *((f"k{key}", "x" * 300) for key in range(at, at + 10)))
    broker.settle_history()


def test_no_proposal_replaces_more_keys_than_a_broker_takes(
    broker: FileBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_each_key_twice(broker)
    monkeypatch.setattr(mq.judge, "MOST_KEYS", 250)
    monkeypatch.setattr(job, "MOST_REPLACED", 200)
    offers = propose(broker.directory, broker.clock.us)
    assert len(offers) > 1
    for offer in offers:
        broker.install(offer.id)
    assert list(everything(broker, "prices")) == list(range(400, 800))


def test_a_segment_that_replaces_more_keys_than_a_broker_takes_is_compacted_bit_by_bit(
    broker: FileBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_each_key_twice(broker)
    monkeypatch.setattr(mq.judge, "MOST_KEYS", 45)
    monkeypatch.setattr(job, "MOST_REPLACED", 30)
    monkeypatch.setattr(selection, "MOST_REPLACED", 30)
    rounds = 0
    while offers := propose(broker.directory, broker.clock.us):
        for offer in offers:
            broker.install(offer.id)
        rounds += 1
    assert rounds > 1
    assert list(everything(broker, "prices")) == list(range(400, 800))


def test_files_of_one_run_agree_on_what_a_tombstone_ends(broker: FileBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """As much is replaced as one proposal may: if one file kept what another has no tombstone for, it would be back."""
    broker.create("prices", LATEST)

    def put(letter: str, count: int, content: str) -> None:
        for at in range(0, count, 10):
            broker.put("prices", *((f"{letter}{key}", content) for key in range(at, min(count, at + 10))))

    for letter, count, size in (("a", 60, 80), ("a", 60, 80), ("s", 30, 300), ("a", 60, 0), ("b", 60, 80)):
        put(letter, count, "x" * size)
    for letter, count, size in (("u", 60, 300), ("b", 60, 0), ("v", 60, 300), ("u", 20, 300), ("z", 2, 300)):
        put(letter, count, "x" * size)
    broker.clock.pass_ms(600_000)
    broker.settle_history()
    monkeypatch.setattr(job, "MOST_REPLACED", 200)
    monkeypatch.setattr(selection, "MOST_REPLACED", 200)
    offers = propose(broker.directory, broker.clock.us)
    assert any(len(offer.outputs) > 1 for offer in offers)
    for offer in offers:
        broker.install(offer.id)


def test_a_segment_that_left_the_log_is_left_alone_and_no_message_goes_for_one_that_may_be_in_it(
    broker: FileBroker,
) -> None:
    fill(broker)
    broker.settle_history()
    root = str(broker.directory)
    manifest, state = present_state(root)
    segments, rules = job.candidates(root, manifest), Rules(state, broker.clock.us)
    first = replace(planned(broker.directory, broker.clock.us), runs=[segments[:1]])
    made = stage(OneHand(), root, manifest, first, rules, lambda keys: grounds(state, keys), lambda: broker.clock.us)
    broker.install(made[0].id)
    (broker.directory / segments[0].name).unlink(missing_ok=True)  # its grace is over

    late = job.plan(OneHand(), segments, rules, worth=0)
    assert not late.is_damaged
    assert segments[0].name not in {segment.name for run in late.runs for segment in run}
    assert late.dropped.total() == 0
    assert planned(broker.directory, broker.clock.us).dropped.total() > 0, "the next one finds all of it"


def test_segments_are_claimed_from_when_they_are_written_anew_however_long_the_look_took(broker: FileBroker) -> None:
    fill(broker)
    broker.settle_history()
    root, clock = str(broker.directory), broker.clock

    class SlowHand(OneHand):
        def each(self, items: Sequence[Any], work: Callable[[Any], Any]) -> list[Any]:
            clock.us += CLAIM_US - 1
            claims.append(claimed(DirectDisk(), root, clock.us))
            return super().each(items, work)

    claims: list[frozenset[str]] = []
    manifest, state = present_state(root)
    rules = Rules(state, clock.us)
    found = job.plan(SlowHand(), job.candidates(root, manifest), rules, worth=0)
    (offer,) = stage(SlowHand(), root, manifest, found, rules, lambda keys: grounds(state, keys), lambda: clock.us)
    assert claims == [frozenset(), frozenset(offer.inputs)]
    clock.us += CLAIM_US - 1
    assert claimed(DirectDisk(), root, clock.us) == frozenset(offer.inputs)


def test_an_export_that_comes_after_a_compaction_can_tell_that_something_went(broker: FileBroker) -> None:
    fill(broker, rounds=10)
    through = visible(str(broker.directory))[-1].last_sequence  # so far it is exported
    fill(broker, "trimmed", 200, ChannelSettings())
    fill(broker, "more", 60)
    broker.ask(DeleteChannel("trimmed"))
    broker.settle_history()
    before = pending(str(broker.directory), through)
    assert lost(before, through) == (0, 0)
    for offer in propose(broker.directory, broker.clock.us):
        broker.install(offer.id)
    after = pending(str(broker.directory), through)
    assert lost(after, through) == (0, sum(each.generation > 0 for each in after))
    assert lost(after, through)[1] > 0
    assert lost(before[1:3] + before[4:], through) == (
        before[1].first_sequence - through - 1 + before[4].first_sequence - before[3].first_sequence,
        0,
    )


def test_only_what_is_exported_goes_where_somebody_exports(broker: FileBroker) -> None:
    fill(broker)
    broker.settle_history()
    root = str(broker.directory)
    first = job.candidates(root, present_state(root)[0])[0]
    assert run(root, dry_run=True, through=first.last_sequence - 1)["segments"] == 0


# ---------------------------------------------------------------- a look at heads, and the damage that it does not see


@pytest.fixture
def half_gone(broker: FileBroker) -> FileBroker:
    """Of two channels that share every segment one is deleted."""
    for channel in ("stays", "deleted"):
        broker.create(channel)
    for number in range(300):
        broker.put("stays", f"{number} " + "x" * 150)
        broker.put("deleted", *["y" * 100] * 3)
        broker.put("stays", f"{number}", delay_ms=3_600_000)
    broker.ask(DeleteChannel("deleted"))
    broker.settle_history()
    return broker


def looked_at(broker: FileBroker) -> tuple[Rules, list[Segment]]:
    manifest, state = present_state(str(broker.directory))
    return Rules(state, broker.clock.us), job.candidates(str(broker.directory), manifest)


def flip(broker: FileBroker, segment: Segment, what: bytes, by: int = 0) -> None:
    """Change a byte of the first frame in the middle of a segment that holds these bytes."""
    path = broker.directory / segment.name
    data = bytearray(path.read_bytes())
    data[data.index(what, len(data) // 2) + by] ^= 1
    path.write_bytes(data)


def test_a_look_at_the_heads_tells_what_reading_all_tells(half_gone: FileBroker) -> None:
    rules, segments = looked_at(half_gone)
    looks = [job._skimmed(rules, segment) for segment in segments]
    assert looks == [job._surveyed(rules, {}, segment) for segment in segments]
    assert sum(each.dropped_messages for each in looks) == 900


def test_where_heads_are_damaged_the_segment_is_read_and_left_alone(half_gone: FileBroker) -> None:
    rules, segments = looked_at(half_gone)
    flip(half_gone, segments[2], segments[2].salt[:4], 4)
    found = job.plan(OneHand(), segments, rules, worth=0)
    assert [each.is_damaged for each in found.surveys].index(True) == 2
    assert segments[2] not in {segment for run in found.runs for segment in run}


def test_damage_behind_a_head_is_found_by_whoever_writes_and_only_that_segment_is_left_alone(
    half_gone: FileBroker,
) -> None:
    rules, segments = looked_at(half_gone)
    before = everything(half_gone, "stays")
    root = str(half_gone.directory)
    manifest, state = present_state(root)
    victims = [segments[2], segments[-3]]
    for victim in victims:
        flip(half_gone, victim, b"y" * 100)
    found = job.plan(OneHand(), segments, rules, worth=0)
    told: list[str] = []
    offers = stage(
        OneHand(),
        root,
        manifest,
        found,
        rules,
        lambda keys: grounds(state, keys),
        lambda: half_gone.clock.us,
        told.append,
    )
    assert [text.split(",")[0] for text in told] == [victim.name for victim in victims]
    inputs = [name for offer in offers for name in offer.inputs]
    planned_names = [segment.name for run in found.runs for segment in run]
    assert inputs == [name for name in planned_names if name not in {victim.name for victim in victims}]
    assert len(offers) >= 3
    assert not list((half_gone.directory / "staging").glob("*.part")), "nothing is left of what was given up"
    for offer in offers:
        half_gone.install(offer.id)
    assert {victim.name for victim in victims} <= set(half_gone.names())
    assert everything(half_gone, "stays") == before


def test_a_run_of_which_every_segment_is_damaged_is_not_claimed_any_longer(half_gone: FileBroker) -> None:
    rules, segments = looked_at(half_gone)
    root = str(half_gone.directory)
    manifest, state = present_state(root)
    found = replace(job.plan(OneHand(), segments, rules, worth=0), runs=[segments[2:3]])
    flip(half_gone, segments[2], b"y" * 100)
    made = stage(OneHand(), root, manifest, found, rules, lambda keys: grounds(state, keys), lambda: half_gone.clock.us)
    assert made == []
    assert claimed(DirectDisk(), root, half_gone.clock.us) == frozenset()


def test_segments_of_which_nothing_stays_can_be_proposed_after_one_that_is_damaged(broker: FileBroker) -> None:
    """Outputs begin where their inputs begin, so the empty ones are a proposal of their own."""
    for channel in ("stays", "deleted"):
        broker.create(channel)
    for channel, count in (("stays", 50), ("deleted", 100), ("stays", 100)):
        for _ in range(count):
            broker.put(channel, "y" * 200)
            broker.put("deleted", "y" * 100)
    broker.ask(DeleteChannel("deleted"))
    broker.settle_history()
    before = everything(broker, "stays")
    rules, segments = looked_at(broker)
    root = str(broker.directory)
    manifest, state = present_state(root)
    found = job.plan(OneHand(), segments, rules, worth=0)
    empty = next(at for at, each in enumerate(found.surveys) if not each.kept_bytes)
    flip(broker, segments[empty], b"y" * 100)
    offers = stage(OneHand(), root, manifest, found, rules, lambda keys: grounds(state, keys), lambda: broker.clock.us)
    assert any(not offer.outputs for offer in offers)
    for offer in offers:
        broker.install(offer.id)
    assert everything(broker, "stays") == before


def test_no_message_goes_for_a_later_one_once_damage_is_found(broker: FileBroker) -> None:
    fill(broker)
    broker.settle_history()
    rules, segments = looked_at(broker)
    root = str(broker.directory)
    manifest, state = present_state(root)
    found = job.plan(OneHand(), segments, rules, worth=0)
    data = bytearray((broker.directory / segments[1].name).read_bytes())
    data[len(data) // 2] ^= 1
    (broker.directory / segments[1].name).write_bytes(data)
    with pytest.raises(job.SegmentDamaged, match=segments[1].name):
        stage(OneHand(), root, manifest, found, rules, lambda keys: grounds(state, keys), lambda: broker.clock.us)


def test_a_frame_that_is_gone_from_a_rewritten_segment_is_missed(half_gone: FileBroker) -> None:
    """Sequences there have holes, so that nothing but the seal tells."""
    for offer in propose(half_gone.directory, half_gone.clock.us):
        half_gone.install(offer.id)
    rules, segments = looked_at(half_gone)
    victim = next(each for each in segments if each.generation)
    path = half_gone.directory / victim.name
    with SegmentFile(DirectDisk(), str(path), victim.salt) as file:
        first, second = list(file.walk(victim.first_sequence, is_dense=False))[:2]
    data = path.read_bytes()
    path.write_bytes(data[: first.position] + data[second.position :])
    assert job.survey(rules, {}, victim).is_damaged


def test_frames_larger_than_a_window_and_windows_that_end_in_one_are_written_as_they_are(
    half_gone: FileBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = everything(half_gone, "stays")
    monkeypatch.setattr(intact, "WINDOW_BYTES", 100)
    monkeypatch.setattr(staging, "SEND_BYTES", 1_000)
    offers = propose(half_gone.directory, half_gone.clock.us)
    assert sum(offer.dropped_messages for offer in offers) == 900
    for offer in offers:
        half_gone.install(offer.id)
    assert everything(half_gone, "stays") == before


def test_what_the_quick_walk_finds_wrong_is_told_as_the_thorough_one_tells_it(half_gone: FileBroker) -> None:
    _, segments = looked_at(half_gone)
    flip(half_gone, segments[2], b"y" * 100)
    with pytest.raises(intact.NotClear):
        list(intact.intact_frames(segments[2], lambda: None))
    with pytest.raises(job.SegmentDamaged, match="damaged bytes"):
        list(staging._frames(segments[2], lambda: None))
