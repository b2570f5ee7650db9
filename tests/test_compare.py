"""The comparison with other brokers: what its page says of figures that are known. No broker runs here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psutil")
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def facts(mq: float, redis: float) -> dict[str, Any]:
    """Every figure of mq the one, every figure of Redis the other; a second round is twice as high."""
    from compare.report import NATIVE, ROWS

    def rounds(value: float, figures: list[str]) -> list[dict[str, float]]:
        return [dict.fromkeys(figures, value), dict.fromkeys(figures, 2 * value)]

    every = [row.figure for row in ROWS]
    peer = {"version": "1", "client": "c", "settings": {"fsync": "f", "cache": "c"}, "best_batch": 7}
    return {
        "date": "2026-01-01",
        "command": "make compare",
        "machine": {"cpu": "a", "cores": 2, "memory_gib": 1, "system": "s", "python": "3"},
        "seconds": 1.0,
        "stored": 1_000,
        "rounds": 2,
        "peers": {"mq": peer, "Redis": peer, "NATS": peer},
        "tools": {"Redis": {"name": "redis-benchmark", "how": "-P"}},
        "missing": ["Kafka"],
        "failed": ["NATS by its Python client (fsync, round 1)"],
        "runs": {"fsync": {"mq": rounds(mq, every), "Redis": rounds(redis, every), "NATS": []}},
        "native": {"fsync": {"mq": rounds(mq, NATIVE), "Redis": rounds(redis, NATIVE[:1])}},
        "syncs": {"fsync": {"mq": 1.0, "Redis": None}},
    }


def line(page: str, begin: str) -> str:
    return next(each for each in page.splitlines() if each.startswith(f"| {begin}"))


def test_the_page_says_where_mq_wins_and_where_it_loses() -> None:
    from compare.report import page

    text = page(facts(mq=1_000.0, redis=2_000.0))
    more_is_better = line(text, "publish one at a time, 1 caller")
    less_is_better = line(text, "resident memory, idle")
    assert more_is_better.endswith("| 0.50 |")
    assert less_is_better.endswith("| **0.50** |")
    assert "1.5 k/s (1.0 k/s to 2.0 k/s)" in more_is_better  # the median, and how far the rounds lie apart


def test_our_own_settings_are_compared_with_others_and_not_with_each_other() -> None:
    from compare.report import page

    known = facts(mq=1_000.0, redis=2_000.0)
    known["runs"]["fsync"]["mq busy-poll"] = facts(mq=4_000.0, redis=0.0)["runs"]["fsync"]["mq"]
    text = page(known)
    assert "| mq / best | mq busy-poll / best |" in text
    assert line(text, "publish one at a time, 1 caller").endswith("| 0.50 | **2.00** |")


def test_our_servers_are_those_of_the_page() -> None:
    from compare.peer_mq import AwakeMqServer, MqServer
    from compare.report import OURS

    assert (MqServer.name, AwakeMqServer.name) == OURS


def test_the_page_says_what_is_not_there() -> None:
    from compare.report import page

    text = page(facts(mq=1_000.0, redis=2_000.0))
    assert "not compared: Kafka." in text
    assert "not counted: NATS by its Python client (fsync, round 1)." in text
    assert "not by this tool" in text
    assert "| NATS | 7 | not installed here |" in text
    assert "counted with strace: mq 1.00." in text


def test_work_that_others_disturbed_is_done_again_and_the_quietest_try_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    from compare import quiet

    monkeypatch.setattr(quiet, "settle", lambda: None)
    monkeypatch.setattr(quiet.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(quiet, "CAN_TELL", True)

    def tried(*stolen_percents: float) -> dict[str, float]:
        at, stolen, tries = 0.0, 0.0, 0

        def work() -> dict[str, float]:
            nonlocal at, stolen, tries
            at += 10.0
            stolen += 2 * 10.0 * stolen_percents[tries] / 100
            tries += 1
            return {"rate": float(tries)}

        return quiet.undisturbed(lambda: quiet.measured(work, lambda: quiet.Look(at, 0, stolen)))

    assert tried(0.5) == {"rate": 1.0, "stolen_percent": pytest.approx(0.5)}
    assert tried(30.0, 0.0)["rate"] == 2.0
    assert tried(30.0, 4.0, 20.0, 9.0) == {"rate": 2.0, "stolen_percent": pytest.approx(4.0)}
    monkeypatch.setattr(quiet, "CAN_TELL", False)
    assert tried(30.0) == {"rate": 1.0}
    assert quiet.together({"a": 1.0}, {"b": 2.0, "stolen_percent": 3.0}) == {"a": 1.0, "b": 2.0, "stolen_percent": 3.0}
    assert quiet.together({"a": 1.0}, {"b": 2.0}) == {"a": 1.0, "b": 2.0}


def test_the_page_says_how_much_others_had_of_the_machine() -> None:
    from compare.report import page

    known = facts(mq=1_000.0, redis=2_000.0)
    assert "(steal)" not in page(known)  # a system that does not tell
    for percent, found in zip((0.0, 0.5), known["runs"]["fsync"]["mq"], strict=True):
        found["stolen_percent"] = percent
    known["runs"]["fsync"]["Redis"][0]["stolen_percent"] = 7.25
    assert "In 2 of 3 rounds all of it was quiet in the end; the worst had lost 7.2 % (Redis)." in page(known)


def test_bodies_are_distinct_and_the_same_for_every_broker() -> None:
    from compare.worker import bodies_of

    spec = {"size": 100, "count": 1_000, "number": 3}
    bodies = bodies_of({"peer": "mq", **spec})
    assert bodies == bodies_of({"peer": "Redis", **spec})
    assert len(set(bodies)) == 1_000
    assert not set(bodies) & set(bodies_of({**spec, "number": 4}))


def test_calls_of_fsync_are_counted_from_what_strace_tells() -> None:
    from compare.syncs import counted

    table = """% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 90.00    0.123456         290       425         1 fdatasync
 10.00    0.001000          10         3           fsync
------ ----------- ----------- --------- --------- ----------------
100.00    0.124456         290       428         1 total
"""
    assert counted(table) == 428


def test_what_is_left_is_told_from_what_the_same_work_took() -> None:
    from compare.progress import seconds_left

    took = {"mq": [10.0, 20.0], "Kafka": [45.0]}
    assert seconds_left(["mq", "mq", "Kafka"], took) == 75.0
    assert seconds_left(["NATS"], took) == 30.0  # as long as the others do
    assert seconds_left(["mq"], {}) == 0.0


def test_everybody_runs_in_every_round_and_nobody_is_always_first() -> None:
    from compare.__main__ import CLIENTS, _steps

    steps = _steps(["mq", "NATS", "Redis"], ["mq"], ["fsync", "cache"], rounds=3)
    firsts = [
        next(name for kind, (name, d, n) in steps if kind.endswith(CLIENTS) and (d, n) == ("fsync", number))
        for number in (1, 2, 3)
    ]
    assert firsts == ["mq", "NATS", "Redis"]
    assert len(steps) == 2 * (3 * (3 + 1) + 3)
