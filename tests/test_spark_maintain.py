"""`mq spark maintain` with a real Spark and a real broker: all in one go, told in a line, and never twice at once."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner
from test_spark_compact import settled

import mq
import mq.testing
from mq.cli import main
from mq.cli.spark.history import CHECKED, HISTORY
from mq.cli.spark.maintain import LOCK
from wal.disk import DirectDisk
from wal.proposal import STAGING, path_in_staging
from wal.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
TOTAL, KEYS = 3_000, 20


@pytest.fixture
def log(tmp_path: Path, spark: SparkSession) -> Path:
    """A stopped log of which most may go."""
    directory = tmp_path / "log"
    with mq.testing.broker(directory) as address, mq.Client(address) as client:
        client.create_channel("prices", latest_per_key=True)
        with client.producer("prices") as producer:
            for number in range(TOTAL):
                producer.send(f"{number} " + "x" * 300, key=f"k{number % KEYS}")
    settled(directory)
    return directory


def maintain(log: Path, *arguments: str, code: int = 0, **variables: str) -> dict[str, Any]:
    """What a run says, which is what its line in the history says."""
    out = log.parent / "out"
    asked = ["spark", "maintain", "-d", str(log), "--out", str(out), "-o", "json", *arguments]
    answer = CliRunner().invoke(main, asked, env=variables, catch_exceptions=False)
    assert answer.exit_code == code, answer.output
    line: dict[str, Any] = json.loads(answer.stdout)
    assert json.loads((out / HISTORY).read_text().splitlines()[-1]) == line
    return line


def test_a_run_beside_a_broker_does_everything_and_the_next_only_what_is_new(log: Path) -> None:
    with mq.testing.broker(log) as address, mq.Client(address) as client:
        client.publish("prices", "young", key="k0")
        first = maintain(log, "--pays", "1KiB", MQ_SERVER=str(address))
        assert first["rotate"] == {"rotated": False}, "the segment is young"
        assert (log.parent / "out" / "audit" / "report.html").exists()
        assert first["audit"]["damage"] == []
        assert first["compact"]["freed_bytes"] > 300_000
        assert first["export"]["messages"] == TOTAL + 1, "what goes is exported first"

        second = maintain(log, "--pays", "1KiB", MQ_SERVER=str(address))
        assert second["audit"]["report"] == ""
        assert second["audit"]["segments"] == 1, "the compacted one"
        assert second["compact"]["rewritten"] == 0
        assert second["export"]["messages"] == 0

        client.publish("prices", "younger", key="k1")
        third = maintain(log, "--rotate-after", "0", "--no-compact", MQ_SERVER=str(address))
        assert third["rotate"] == {"rotated": True}
        assert third["audit"]["segments"] == 1
        assert third["export"]["messages"] == 1
    assert verify(str(log)).is_intact
    assert ds.dataset(log.parent / "out" / "lake", partitioning="hive").count_rows() == TOTAL + 2
    assert "checked" not in (log.parent / "out" / HISTORY).read_text(), "that grows with the log"


def test_two_never_run_at_once(log: Path) -> None:
    disk = DirectDisk()
    disk.make_directory(str(log / STAGING))
    held = disk.lock(path_in_staging(str(log), LOCK))
    answer = CliRunner().invoke(main, ["spark", "maintain", "-d", str(log)], catch_exceptions=False)
    assert (answer.exit_code, answer.stderr) == (4, f"mq: another maintenance of {log} is running\n")
    disk.close(held)


def test_a_damaged_log_is_told_of_in_every_run_and_not_compacted_and_the_rest_is_done(log: Path) -> None:
    maintain(log, "--no-compact", "--no-export")
    victim = sorted(log.glob("*-0.wal"))[0]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 0xFF
    victim.write_bytes(data + b"!")  # its size tells that it is another one than was checked
    line = maintain(log, "--report-every", "0", "--pays", "1KiB", code=1)
    assert line["ok"] is False
    assert victim.name in line["audit"]["damage"][0]
    assert line["compact"] == {"skipped": "the log is damaged"}
    assert line["export"]["messages"] > TOTAL / 2
    assert all(victim.name in each for each in line["export"]["damage"])
    assert line["export"]["damage"][0] in line["export"]["error"]
    again = maintain(log, "--pays", "1KiB", code=1)
    assert again["audit"]["damage"] == line["audit"]["damage"]
    assert again["audit"]["report"], "only a whole audit tells that all is well again"
    assert again["export"]["damage"] == [], "nothing is exported twice"
    assert again["compact"] == line["compact"]
    assert victim.exists()


def test_damage_in_a_new_segment_is_found_again_until_it_is_gone(log: Path) -> None:
    maintain(log, "--no-compact", "--no-export")
    victim = sorted(log.glob("*-0.wal"))[0]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 0xFF
    victim.write_bytes(data)
    checked = log.parent / "out" / CHECKED
    checked.write_text(json.dumps({**json.loads(checked.read_text()), victim.name: 0}))  # of another size: not this one
    for _ in range(2):
        line = maintain(log, "--no-export", "--pays", "1KiB", code=1)
        assert (line["audit"]["segments"], line["audit"]["report"]) == (1, "")
        assert line["compact"] == {"skipped": "the log is damaged"}
    assert victim.exists()


def test_too_little_room_fails_the_compaction_and_nothing_else(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    line = maintain(log, "--no-audit", "--offline", "--pays", "1KiB", code=1)
    assert "has 0 B free" in line["compact"]["error"]
    assert line["export"]["messages"] == TOTAL


def test_a_step_that_fails_does_not_keep_the_others(log: Path) -> None:
    with mq.testing.broker(log) as address, mq.Client(address) as client:
        client.publish("prices", "young", key="k0")
        line = maintain(log, "--rotate-after", "0", "--no-audit", code=1, MQ_SERVER="mq://127.0.0.1:1")
    assert "error" in line["rotate"]
    assert line["export"]["messages"] == TOTAL + 1
