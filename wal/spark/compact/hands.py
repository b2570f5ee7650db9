"""Who does the work of a compaction: Spark's executors."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession

TASKS_EACH = 4  # at most: so that no hand waits long for another's last one
ITEMS_EACH = 16  # at least, where a hand has more than one task: each costs as much as reading a hundred megabytes

T = TypeVar("T")
R = TypeVar("R")


class Hands(Protocol):
    """Runs plain functions over items, side by side. What travels between is pickled."""

    @property
    def count(self) -> int:
        """How many work at once."""
        ...

    def each(self, items: Sequence[T], work: Callable[[T], R]) -> list[R]:
        """The results, in the order of the items."""
        ...

    def combine(
        self,
        items: Sequence[T],
        work: Callable[[T], Iterable[tuple[int, bytes]]],
        buckets: int,
        gather: Callable[[tuple[int, Iterable[bytes]]], R],
    ) -> list[R]:
        """What the items give, put together by number, and what comes of each number."""
        ...


class SparkHands:
    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext

    @property
    def count(self) -> int:
        return self._context.defaultParallelism

    def each(self, items: Sequence[T], work: Callable[[T], R]) -> list[R]:
        if not items:
            return []
        return self._spread(items).map(partial(_calmly, work)).collect()

    def combine(
        self,
        items: Sequence[T],
        work: Callable[[T], Iterable[tuple[int, bytes]]],
        buckets: int,
        gather: Callable[[tuple[int, Iterable[bytes]]], R],
    ) -> list[R]:
        met: Any = self._spread(items).flatMap(partial(_calmly, work))
        found: list[R] = met.groupByKey(buckets).map(gather).collect()
        return found

    def _spread(self, items: Sequence[Any]) -> RDD[Any]:
        each = min(TASKS_EACH, max(1, len(items) // (ITEMS_EACH * self.count)))
        return self._context.parallelize(items, min(len(items), each * self.count))


def _calmly(work: Callable[[T], R], item: T) -> R:
    """Spark collects garbage after each task, and everything that is imported is looked at each time."""
    _freeze_once()
    return work(item)


@cache  # to ask whether it is done takes milliseconds: what is frozen is counted
def _freeze_once() -> None:
    gc.freeze()
