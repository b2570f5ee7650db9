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
from wal.spark.compact import job
from wal.spark.export.job import lost, pending
from wal.spark.read.listing import visible

__all__ = ["all_stopped"]


@pytest.fixture
def broker(tmp_path: Path) -> FileBroker:
    return FileBroker(tmp_path / "log")


def test_no_proposal_replaces_more_keys_than_a_broker_takes(
    broker: FileBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create("prices", LATEST)
    for _ in range(2):
        for at in range(0, 400, 10):
            broker.put("prices", *((f"k{key}", "x" * 300) for key in range(at, at + 10)))
    broker.settle_history()
    monkeypatch.setattr(mq.judge, "MOST_KEYS", 250)
    monkeypatch.setattr(job, "MOST_REPLACED", 200)
    offers = propose(broker.directory, broker.clock.us)
    assert len(offers) > 1
    for offer in offers:
        broker.install(offer.id)
    assert list(everything(broker, "prices")) == list(range(400, 800))


def test_a_segment_that_left_the_log_is_left_alone_and_no_message_goes_for_one_that_may_be_in_it(
    broker: FileBroker,
) -> None:
    fill(broker)
    broker.settle_history()
    root = str(broker.directory)
    manifest, state = present_state(root)
    segments, rules = job.candidates(root, manifest), Rules(state, broker.clock.us)
    first = replace(planned(broker.directory, broker.clock.us), runs=[segments[:1]])
    made = job.stage(
        OneHand(), root, manifest, first, rules, lambda keys: grounds(state, keys), lambda: broker.clock.us
    )
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
    (offer,) = job.stage(SlowHand(), root, manifest, found, rules, lambda keys: grounds(state, keys), lambda: clock.us)
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
