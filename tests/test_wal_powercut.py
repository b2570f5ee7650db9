"""Power cuts at every storage operation, on a disk that loses any part of what was not synced.

Rotation, snapshot runs, clean stops, the opening itself and both its ways after a kill are all steps of the workloads,
so a cut at every operation is a cut at each of their steps. `test_wal_planted_bugs` shows what this would catch.
"""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from powercut import Trial, search
from torture import sized

SEED = int(os.environ.get("MQ_SEED", "20"))
KINDS = {
    "make_directory", "create", "write", "allocate", "truncate", "sync", "close", "rename", "unlink", "sync_directory"
}  # fmt: skip


def survive(seed: int, states: int) -> Trial:
    started = time.monotonic()
    trial = search(seed, states)
    seconds = time.monotonic() - started
    print(f"{trial.states} states, seed {seed}, {seconds:.0f} s, cut at {dict(trial.cut)}")
    return trial


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEED, SEED + 4))
def test_whatever_a_power_cut_leaves_the_log_opens_and_holds_all_it_reported_synced(seed: int) -> None:
    trial = survive(seed, states=5_000)
    assert trial.states >= 5_000
    assert set(trial.cut) == KINDS, "some kind of operation was never cut"


def test_a_few_power_cuts_for_those_in_a_hurry() -> None:
    survive(SEED + 1000, states=500)


@pytest.mark.torture
@pytest.mark.shows("T2", "the log on a model disk, opened in every state that a cut may leave")
@pytest.mark.parametrize("seed", range(SEED + 100, SEED + 110))
def test_the_log_survives_a_hundred_thousand_power_cuts(seed: int, figures: dict[str, Any]) -> None:
    trial = survive(seed, states=sized(500, 10_000))
    figures |= {"seed": seed, "states": trial.states, "operations cut": sum(trial.cut.values())}
