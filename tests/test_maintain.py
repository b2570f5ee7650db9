"""`mq spark maintain` where no step comes to its Spark: what the failure of one means for the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from smalllog import make_log

from mq.cli import main
from mq.cli.spark.history import CHECKED, HISTORY
from mq.cli.spark.maintain import LOCK
from wal.disk import DirectDisk
from wal.proposal import STAGING, path_in_staging


class Enough(Exception):
    """It would go on for ever."""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return make_log(tmp_path / "log")


def maintain(log: Path, *arguments: str) -> dict[str, Any]:
    """What a run says in which something failed."""
    asked = ["spark", "maintain", "-d", str(log), "--out", str(log.parent / "out"), "-o", "json", *arguments]
    answer = CliRunner().invoke(main, asked, catch_exceptions=False)
    assert answer.exit_code == 1, answer.output
    line: dict[str, Any] = json.loads(answer.stdout)
    return line


def test_a_log_that_could_not_be_checked_is_not_compacted(log: Path) -> None:
    (log.parent / "out" / CHECKED).mkdir(parents=True)  # where a file is expected
    line = maintain(log, "--no-export")
    assert "error" in line["audit"]
    assert line["compact"] == {"skipped": "the log could not be checked"}


def test_a_log_that_could_not_be_exported_is_not_compacted(log: Path) -> None:
    (log.parent / "out").mkdir()
    (log.parent / "out" / "lake").write_text("where a directory is expected")
    line = maintain(log, "--no-audit")
    assert "error" in line["export"]
    assert line["compact"] == {"skipped": "what is new could not be exported"}


def test_one_that_goes_on_waits_for_another_to_end(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = DirectDisk()
    disk.make_directory(str(log / STAGING))
    held = [disk.lock(path_in_staging(str(log), LOCK))]
    history = log.parent / "out" / HISTORY

    def sleep(_: float) -> None:
        if not held:
            raise Enough
        assert not history.exists(), "it has done something beside the other"
        disk.close(held.pop())

    monkeypatch.setattr("mq.cli.spark.maintain.time.sleep", sleep)
    asked = ["spark", "maintain", "-d", str(log), "--out", str(log.parent / "out"), "--every", "1h"]
    with pytest.raises(Enough):
        CliRunner().invoke(main, [*asked, "--no-audit", "--no-export", "--no-compact"], catch_exceptions=False)
    assert len(history.read_text().splitlines()) == 1
