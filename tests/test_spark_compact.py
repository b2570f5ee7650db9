"""`mq spark compact` with a real Spark: the same as without one, beside a running broker and on a stopped log."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from filebroker import FileBroker
from handbroker import all_stopped, durable
from process import wait_until
from proposer import OneHand, planned
from test_install_offer import everything, fill, latest

import mq
import mq.testing
from mq.cli import main
from mq.cli.spark.present import present_state
from mq.command import CreateGroup, DeleteChannel, PurgeChannel, Start
from mq.rules import Rules
from wal.disk import DirectDisk
from wal.pb.wal_pb2 import ChannelSettings
from wal.proposal import STAGING, path_in_staging, waiting_offers
from wal.spark.compact.job import LOCK, candidates, plan
from wal.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["all_stopped"]
pytestmark = pytest.mark.spark


@pytest.fixture
def broker(tmp_path: Path) -> FileBroker:
    """Three channels: one keeps the latest of each key, one is partly trimmed, one deleted."""
    made = FileBroker(tmp_path / "log")
    fill(made)
    for channel in ("trimmed", "deleted"):
        fill(made, channel, 20, ChannelSettings())
    made.ask(CreateGroup("prices", "g", start=Start("latest")))
    made.ask(PurgeChannel("trimmed", before_offset=50))
    made.ask(DeleteChannel("deleted"))
    made.settle_history()
    return made


def compact(directory: Path, *arguments: str, code: int = 0, **variables: str) -> dict[str, Any]:
    """What the command says, as JSON."""
    asked = ["spark", "compact", "-d", str(directory), "-o", "json", *arguments]
    answer = CliRunner().invoke(main, asked, env=variables, catch_exceptions=False)
    assert answer.exit_code == code, answer.output
    return json.loads(answer.stdout) if answer.stdout else {"said": answer.stderr}  # type: ignore[no-any-return]


def test_the_state_that_a_log_tells_is_the_broker_s(broker: FileBroker) -> None:
    _, state = present_state(str(broker.directory))
    assert durable(state) == durable(broker.state)


def test_spark_plans_what_one_hand_plans(broker: FileBroker, spark: SparkSession) -> None:
    from wal.spark.compact.hands import SparkHands

    root = str(broker.directory)
    manifest, state = present_state(root)
    rules = Rules(state, broker.clock.us)
    mine, theirs = (plan(hands, candidates(root, manifest), rules, worth=0) for hands in (OneHand(), SparkHands(spark)))
    assert (mine.surveys, mine.runs, mine.dropped) == (theirs.surveys, theirs.runs, theirs.dropped)
    assert mine.latest.keys() == theirs.latest.keys()
    for key, found in mine.latest.items():
        assert all((ours == other).all() for ours, other in zip(found, theirs.latest[key], strict=True))


def test_a_stopped_log_is_compacted_in_one_go(broker: FileBroker, spark: SparkSession) -> None:
    prices, trimmed = everything(broker, "prices"), everything(broker, "trimmed")
    broker.stop()
    files = {path.name: path.stat().st_size for path in broker.directory.rglob("*")}
    would = compact(broker.directory, "--dry-run", "--worth", "0")
    assert {path.name: path.stat().st_size for path in broker.directory.rglob("*")} == files, "it only looked"
    assert {row["channel"]: row["messages"] for row in would["channels"]}["prices"] == len(prices) - len(latest(prices))
    done = compact(broker.directory, "--install", "--offline", "--worth", "0")
    assert {row["state"] for row in done["proposals"]} == {"installed"}
    assert done["freed_bytes"] >= would["droppable_bytes"] - 1_000 > 0
    assert waiting_offers(DirectDisk(), str(broker.directory)) == []
    again = FileBroker(broker.directory, broker.clock)
    assert everything(again, "prices") == latest(prices)
    assert everything(again, "trimmed") == trimmed
    assert verify(str(broker.directory)).is_intact


def test_a_proposal_waits_for_its_install_and_the_next_compaction_gives_it_up(
    broker: FileBroker, spark: SparkSession
) -> None:
    broker.stop()
    first = compact(broker.directory, "--worth", "0")["proposals"]
    second = compact(broker.directory, "--worth", "0")["proposals"]
    assert waiting_offers(DirectDisk(), str(broker.directory)) == sorted(row["proposal"] for row in second)
    gone = CliRunner().invoke(main, ["wal", "install", first[0]["proposal"], "--offline", str(broker.directory)])
    assert gone.exit_code == 3
    for row in second:
        asked = ["wal", "install", row["proposal"], "--offline", str(broker.directory), "-o", "json"]
        answer = CliRunner().invoke(main, asked, catch_exceptions=False)
        assert json.loads(answer.stdout)["dropped_messages"] == row["messages"]


def test_what_another_compaction_left_takes_no_room_from_the_next(
    broker: FileBroker, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.stop()
    left = broker.directory / STAGING / f"{'a' * 16}-{'b' * 32}.part"
    left.parent.mkdir(exist_ok=True)
    left.write_bytes(b"x")
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0 if left.exists() else 1 << 40))
    assert compact(broker.directory, "--worth", "0")["proposals"]
    assert not left.exists()
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    assert "has 0 B free" in compact(broker.directory, "--worth", "0", code=6)["said"]


def test_a_compaction_that_fails_leaves_nothing_behind(
    broker: FileBroker, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.stop()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("wal.spark.compact.staging.write_offer", full)
    compact(broker.directory, "--worth", "0", code=6)
    assert [path.name for path in (broker.directory / STAGING).iterdir()] == [LOCK]


def test_without_a_broker_nothing_is_installed_unless_that_is_asked_for(
    broker: FileBroker, spark: SparkSession
) -> None:
    """A log that nobody has open may be one whose broker is just starting again."""
    broker.stop()
    names = broker.names()
    asked = ["spark", "compact", "-d", str(broker.directory), "--install", "--worth", "0"]
    answer = CliRunner().invoke(main, asked, env={"MQ_SERVER": "mq://127.0.0.1:1"}, catch_exceptions=False)
    assert answer.exit_code == 6
    assert "where no broker has the log, take --offline" in answer.stderr
    assert sorted(path.name for path in broker.directory.glob("*.wal")) == names
    assert waiting_offers(DirectDisk(), str(broker.directory)), "what was made waits for its install"
    answer = CliRunner().invoke(main, ["spark", "compact", "-d", str(broker.directory), "--offline"])
    assert (answer.exit_code, "goes with --install" in answer.stderr) == (2, True)


def test_errors_are_one_line(broker: FileBroker, tmp_path: Path, spark: SparkSession) -> None:
    def say(*arguments: str) -> tuple[int, str]:
        answer = CliRunner().invoke(main, ["spark", "compact", *arguments], catch_exceptions=False)
        return answer.exit_code, answer.stderr.strip().splitlines()[-1]

    assert "no directory of this machine" in say("-d", "s3://bucket/log")[1]
    (tmp_path / "empty").mkdir()
    assert say("-d", str(tmp_path / "empty")) == (3, f"mq: {tmp_path}/empty holds no log: there is no MANIFEST in it")
    young = FileBroker(tmp_path / "young")
    assert say("-d", str(young.directory))[1] == (
        "mq: nothing may go yet: segments are compacted once two snapshots lie behind them"
    )
    disk = DirectDisk()
    disk.make_directory(str(broker.directory / STAGING))
    held = disk.lock(path_in_staging(str(broker.directory), LOCK))
    assert say("-d", str(broker.directory)) == (4, f"mq: another compaction of {broker.directory} is running")
    disk.close(held)
    answer = CliRunner().invoke(main, ["wal", "install", "0" * 16, "--offline", str(broker.directory)])
    assert (answer.exit_code, "is in use" in answer.stderr) == (4, True)


def test_a_damaged_segment_is_left_alone_and_no_message_goes_for_a_later_one(
    broker: FileBroker, spark: SparkSession
) -> None:
    broker.stop()
    before = planned(broker.directory, broker.clock.us)
    victim = broker.directory / before.surveys[1].name
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 0xFF
    victim.write_bytes(data)
    would = compact(broker.directory, "--dry-run", "--worth", "0")
    assert "prices" not in {row["channel"] for row in would["channels"]}
    assert would["rewritten"] < len(before.surveys)


# ---------------------------------------------------------------- beside a running broker


def settled(directory: Path, **settings: str) -> None:
    """Two clean stops: each leaves a snapshot run, and what came before is needed by no replay."""
    for number in range(2):
        with mq.testing.broker(directory, **settings) as address, mq.Client(address) as client:
            client.create_channel(f"filler-{number}", exist_ok=True)
            client.rotate_segment()


def test_consumers_notice_nothing_of_a_compaction_beside_them(tmp_path: Path, spark: SparkSession) -> None:
    """An ordered group in the middle, and a reader from the beginning: every message once, in order."""
    directory = tmp_path / "log"
    small = {"WAL_SEGMENT_SIZE": "1MiB", "SERVER_MAX_RECV_MSG_SIZE": "256KiB", "SERVER_MAX_MEMORY": "16MiB"}
    total, keys, passed = 12_000, 50, 6_000
    with mq.testing.broker(directory, **small) as address, mq.Client(address) as client:
        client.create_channel("prices", latest_per_key=True)
        with client.producer("prices") as producer:
            for number in range(total):
                producer.send(f"{number} " + "x" * 200, key=f"k{number % keys}")
        client.create_group("prices", "g", ordered=True, start=mq.at_offset(passed))
    settled(directory, **small)
    with mq.testing.broker(directory, **small) as address, mq.Client(address) as client:
        seen: list[int] = []
        read: list[int] = []
        is_installed = threading.Event()

        def consume() -> None:
            with mq.Client(address) as mine, mine.consumer("prices", "g", ordered=True) as consumer:
                for message in consumer:
                    seen.append(message.offset)
                    message.ack()
                    if len(seen) == 1_000:
                        assert is_installed.wait(120)
                    if message.offset == total - 1:
                        return

        def follow() -> None:
            with mq.Client(address) as mine:
                for message in mine.read("prices", batch_size=100):
                    read.append(message.offset)
                    if len(read) == 1_000:
                        assert is_installed.wait(120)
                    if message.offset == total - 1:
                        return

        threads = [threading.Thread(target=work, daemon=True) for work in (consume, follow)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(seen) == len(read) == 1_000)
        done = compact(directory, "--install", "--worth", "0", MQ_SERVER=str(address))
        is_installed.set()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert {row["state"] for row in done["proposals"]} == {"installed"}
        gone = sum(row["messages"] for row in done["proposals"])
        assert gone > 3_000
        assert seen == list(range(passed, total)), "the group was not past these"
        assert read[:1_000] == list(range(1_000))
        assert read == sorted(set(read))
        acked = 1_000  # when it was compacted; whether that was known then is a matter of moments
        assert set(range(passed + acked, total)) <= set(read)
        assert len(read) <= total - 1_000, "what went is not read, unless it was in memory"


def test_a_broker_of_another_log_is_not_asked(broker: FileBroker, spark: SparkSession) -> None:
    with mq.testing.broker() as address:
        answer = CliRunner().invoke(
            main, ["spark", "compact", "-d", str(broker.directory), "--install", "--worth", "0"],
            env={"MQ_SERVER": str(address)}, catch_exceptions=False,
        )  # fmt: skip
    assert answer.exit_code == 6
    assert "another broker has this log" in answer.stderr


@pytest.mark.slow
def test_a_compaction_killed_while_it_writes_leaves_the_log_as_it_was(tmp_path: Path, spark: SparkSession) -> None:
    directory = tmp_path / "log"
    with mq.testing.broker(directory) as address, mq.Client(address) as client:
        client.create_channel("prices", latest_per_key=True)
        with client.producer("prices") as producer:
            for number in range(60_000):
                producer.send("x" * 400, key=f"k{number % 30_000}")
    settled(directory)
    before = {path.name: path.read_bytes() for path in directory.glob("*.wal")}
    command = [sys.executable, "-m", "mq.cli", "spark", "compact", "-d", str(directory), "--install", "--offline"]
    job = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        wait_for(lambda: job.poll() is not None or any((directory / STAGING).glob("*.part")), 180)
        assert job.poll() is None, "it was over too soon"
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    assert {path.name: path.read_bytes() for path in directory.glob("*.wal")} == before
    assert verify(str(directory)).is_intact
    assert waiting_offers(DirectDisk(), str(directory)) == []
    done = compact(directory, "--install", "--offline")
    assert {row["state"] for row in done["proposals"]} == {"installed"}
    assert list((directory / STAGING).iterdir()) == [directory / STAGING / LOCK], "what was left is cleared"


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    """A cold JVM takes long to say its first word."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.005)
