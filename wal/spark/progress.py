"""A progress bar over the tasks of Spark's jobs, and Ctrl-C that ends them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from uuid import uuid4

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.util import InheritableThread

T = TypeVar("T")

_POLL_SECONDS = 0.1
_LINGER_SECONDS = 10.0  # for a cancelled query to come back


def run(spark: SparkSession, what: str, work: Callable[[], T], *, is_shown: bool | None = None) -> T:
    """The result of `work`, which runs queries of this session; a bar on stderr tells how many of their tasks are done.

    By default it is shown where stderr is a terminal. An interrupt cancels the jobs and is raised again.
    """
    group = f"mq-{uuid4()}"
    context = spark.sparkContext
    job = _Job(context, group, what, work)
    job.start()
    with _Bar(what, sys.stderr.isatty() if is_shown is None else is_shown) as bar:
        try:
            while job.is_running(_POLL_SECONDS):
                bar.show(*tasks(context, group))
        except KeyboardInterrupt:
            context.cancelJobGroup(group)
            job.is_running(_LINGER_SECONDS)
            raise
    return job.result()


def tasks(context: SparkContext, group: str) -> tuple[int, int]:
    """How many tasks of a job group are done, and how many there are as far as Spark knows yet."""
    tracker = context.statusTracker()
    done = total = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage in info.stageIds if info else ():
            state = tracker.getStageInfo(stage)
            if state is not None:
                done += state.numCompletedTasks
                total += state.numTasks
    return done, total


class _Job(Generic[T]):
    """Work in a thread of its own, which Spark knows as a job group."""

    def __init__(self, context: SparkContext, group: str, what: str, work: Callable[[], T]) -> None:
        self._context, self._group, self._what, self._work = context, group, what, work
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._thread = InheritableThread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def is_running(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return self._thread.is_alive()

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _run(self) -> None:
        try:
            self._context.setJobGroup(self._group, self._what, interruptOnCancel=True)
            self._results.append(self._work())
        except BaseException as error:
            self._error = error


class _Bar:
    def __init__(self, what: str, is_shown: bool) -> None:
        self._what = what
        self._is_shown = is_shown
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> _Bar:
        if self._is_shown:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self._what, total=None)
        return self

    def show(self, done: int, total: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total or None)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
