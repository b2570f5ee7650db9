"""Makes proposals as a compaction does, in this process and without Spark: for tests of what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from mq.cli.spark.present import present_state
from mq.rules import Rules, grounds
from wal.proposal import Offer
from wal.spark.compact.job import Plan, candidates, plan
from wal.spark.compact.staging import stage


class OneHand:
    """Implements `wal.spark.compact.hands.Hands`: one item after the other."""

    count = 2  # so that there is something to put together

    def each(self, items: Sequence[Any], work: Callable[[Any], Any]) -> list[Any]:
        return [work(item) for item in items]

    def combine(
        self,
        items: Sequence[Any],
        work: Callable[[Any], Iterable[tuple[int, bytes]]],
        buckets: int,
        gather: Callable[[tuple[int, Iterable[bytes]]], Any],
    ) -> list[Any]:
        numbers: dict[int, list[bytes]] = {}
        for item in items:
            for number, blob in work(item):
                numbers.setdefault(number, []).append(blob)
        return [gather(each) for each in numbers.items()]


def planned(directory: Path, now_us: int, worth: float = 0.0) -> Plan:
    manifest, state = present_state(str(directory))
    return plan(OneHand(), candidates(str(directory), manifest), Rules(state, now_us), worth=worth)


def propose(directory: Path, now_us: int, worth: float = 0.0) -> list[Offer]:
    """Stage what a compaction would, by the state that the log tells."""
    root = str(directory)
    manifest, state = present_state(root)
    rules = Rules(state, now_us)
    found = plan(OneHand(), candidates(root, manifest), rules, worth=worth)
    return stage(OneHand(), root, manifest, found, rules, lambda keys: grounds(state, keys), lambda: now_us)
