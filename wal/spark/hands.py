"""Who does the work of a compaction: Spark's executors, each item a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
        return self._context.parallelize(items, len(items)).map(work).collect()

    def combine(
        self,
        items: Sequence[T],
        work: Callable[[T], Iterable[tuple[int, bytes]]],
        buckets: int,
        gather: Callable[[tuple[int, Iterable[bytes]]], R],
    ) -> list[R]:
        met: Any = self._context.parallelize(items, len(items)).flatMap(work)
        found: list[R] = met.groupByKey(buckets).map(gather).collect()
        return found
