"""docs/tutorial.md, followed line by line with a real broker; its question to Spark is asked of a small log."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from walkthrough import BLOCK, Walk, commands, matches

import mq
from mq.testing import broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.slow
def test_the_tutorial_does_what_it_says(root: Path, tmp_path: Path) -> None:
    with Walk(tmp_path) as walk:
        walk.follow((root / "docs" / "tutorial.md").read_text())
        assert len(walk.ran) > 20
        assert walk.ran.count("make run") == 2


@pytest.mark.spark
def test_its_question_to_spark_is_answered(
    root: Path, tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    with broker(tmp_path) as address, mq.Client(address) as client:
        client.create_channel("orders")
        for number in range(3):
            client.publish("orders", b"x", key=f"table-{number % 2}")
    text = (root / "docs" / "tutorial.md").read_text()
    (program,) = [block for _, _, _, title, block in BLOCK.findall(text) if title == "ask.py"]
    assert '"data"' in program
    exec(program.replace('"data"', repr(str(tmp_path))), {})  # with the session that all tests share
    assert re.search(r"\|\s*orders\|\s*3\|\s*2\|", capsys.readouterr().out)


def test_a_page_that_shows_something_else_is_noticed() -> None:
    assert matches("a …\n…\nz\n", "a b\nc\nd\nz\n")
    assert not matches("a …\nz\n", "a b\nc\nz\n")
    assert not matches("lag  6\n", "lag  7\n")
    assert matches("b\na\n", "a\nb\n", in_any_order=True)
    assert not matches("b\na\n", "a\na\nb\n", in_any_order=True)


def test_commands_are_told_from_what_they_print() -> None:
    first, second = commands("$ mq pub a \\\n  b\nprinted\n$ python x.py\none\nKilled\n")
    assert (first.line, first.shown, first.exit_code) == ("mq pub a   b", "printed\n", 0)
    assert (second.line, second.exit_code) == ("python x.py", -9)
    (third,) = commands("$ mq wal verify data\n", "exits with 1")
    assert third.exit_code == 1
