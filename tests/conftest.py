"""Shared by all tests: the hypothesis profiles, the root of the repository, and one Spark for all that need it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torture
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest_plugins = ["mq.pytest_plugin"]  # also where the project is only on the path, not installed

# A failing example prints the line that reproduces it. No deadline: a busy machine is not a failure.
settings.register_profile("dev", deadline=None, print_blob=True)
# The same examples on every run, so that a red build is about the change and not about luck.
settings.register_profile(
    "ci", deadline=None, print_blob=True, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What a test that is marked `shows` did: its seed, and counts by what they count."""
    return torture.figures_of(request.node)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    torture.note(item, report)  # type: ignore[arg-type]
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if lines := torture.told(terminalreporter.config):
        terminalreporter.section("what was shown")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session of this process: starting a JVM takes as long as many tests."""
    from wal.spark.session import session

    spark = session("tests", master="local[2]")
    yield spark
    spark.stop()
