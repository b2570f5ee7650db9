"""A large proposal is checked by another process: what that finds, refuses or leaves undone is what counts here."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from filebroker import FileBroker
from handbroker import all_stopped
from process import Process, wait_until
from proposer import propose
from test_install_offer import everything, fill, latest

import mq.installer
import mq.testing
import wal.apart
import wal.upkeep
from mq.client.wire import WireTransport
from mq.command import CreateGroup, Start
from mq.errors import ProposalRefused, Unavailable
from mq.pb import mq_pb2 as pb
from mq.rules import Rules
from wal.disk import DirectDisk
from wal.install import Judge
from wal.manifest import Manifest, read_manifest

__all__ = ["all_stopped"]


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileBroker:
    monkeypatch.setattr(wal.upkeep, "APART_BYTES", 0)
    monkeypatch.setattr(wal.upkeep, "examine", lambda *args: pytest.fail("it is checked in this process"))
    broker = FileBroker(tmp_path / "log")
    fill(broker)
    broker.settle_history()
    return broker


def test_what_another_process_checked_is_installed(broker: FileBroker) -> None:
    before = everything(broker, "prices")
    (offer,) = propose(broker.directory, broker.clock.us)
    assert broker.install(offer.id).dropped_messages > 0
    assert everything(broker.again(), "prices") == latest(before)


def test_a_group_that_begins_while_it_is_checked_is_seen_at_the_swap(
    broker: FileBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The findings of the other process came back: what is confirmed in the end goes by them."""
    place = wal.upkeep.place

    command = CreateGroup("prices", "new", start=Start("earliest"))

    async def submit() -> None:
        broker.broker.submit(command, lambda answer: None)

    def late(*args: Any) -> None:
        place(*args)
        asyncio.run_coroutine_threadsafe(submit(), broker.loop).result(30)

    monkeypatch.setattr(wal.upkeep, "place", late)
    (offer,) = propose(broker.directory, broker.clock.us)
    with pytest.raises(ProposalRefused, match="'new' is at offset 0"):
        broker.install(offer.id)


def test_a_state_larger_than_a_pipe_gets_there(broker: FileBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    (offer,) = propose(broker.directory, broker.clock.us)
    rules = mq.installer.Rules

    def large(*args: Any) -> Rules:
        made = rules(*args)
        made.names |= dict.fromkeys(range(1000, 21000), "x" * 100)
        return made

    monkeypatch.setattr(mq.installer, "Rules", large)
    assert broker.install(offer.id).dropped_messages > 0


def test_it_says_nothing_by_itself_and_needs_no_permission(
    broker: FileBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A unit of systemd may forbid to change priorities."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n\ndef nice(by):\n    raise PermissionError('planted')\n\nos.nice = nice\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (offer,) = propose(broker.directory, broker.clock.us)
    capfd.readouterr()
    assert broker.install(offer.id).dropped_messages > 0
    assert "Warning" not in capfd.readouterr().err


def test_what_the_other_process_refuses_is_refused(broker: FileBroker) -> None:
    (offer,) = propose(broker.directory, broker.clock.us)
    staged = next((broker.directory / "staging").glob("*.staged"))
    data = bytearray(staged.read_bytes())
    data[-40] ^= 1
    staged.write_bytes(data)
    with pytest.raises(ProposalRefused):
        broker.install(offer.id)


class Deadly:
    """A judge whose process dies when he gets there."""

    findings = None

    def __reduce__(self) -> tuple[object, ...]:
        return os.kill, (0, signal.SIGKILL)


def test_a_process_that_dies_leaves_everything_as_it_was(broker: FileBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    (offer,) = propose(broker.directory, broker.clock.us)
    before = everything(broker, "prices")

    def dying(directory: object, manifest: object, offer: object, judge: Judge, closing: object) -> object:
        return examine_apart(directory, manifest, offer, Deadly(), closing)  # type: ignore[arg-type]

    examine_apart = wal.apart.examine_apart
    monkeypatch.setattr(wal.upkeep, "examine_apart", dying)
    with pytest.raises(Unavailable) as refused:
        broker.install(offer.id)
    assert "ended with -9" in str(refused.value.__cause__)
    assert everything(broker.again(), "prices") == before


def test_a_log_that_is_closed_does_not_wait_for_the_other_process(
    broker: FileBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "slow").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "slow").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "slow"))
    (offer,) = propose(broker.directory, broker.clock.us)
    log = broker.log

    def close_when_it_runs() -> None:
        wait_until(lambda: any("sleep" in child.name() for child in psutil.Process().children()))
        log.end_examining()

    closer = threading.Thread(target=close_when_it_runs)
    closer.start()
    with pytest.raises(Unavailable):
        broker.install(offer.id)
    closer.join()
    assert not any("sleep" in child.name() for child in psutil.Process().children())


def test_without_another_process_it_is_checked_in_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal.upkeep, "APART_BYTES", 0)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    broker = FileBroker(tmp_path / "log")
    fill(broker)
    broker.settle_history()
    (offer,) = propose(broker.directory, broker.clock.us)
    assert broker.install(offer.id).dropped_messages > 0


# ---------------------------------------------------------------- a real broker


def manifest_of(directory: Path) -> Manifest:
    manifest = read_manifest(DirectDisk(), str(directory))
    assert manifest is not None
    return manifest


def fill_largely(directory: Path) -> None:
    """More than is checked in the broker's own process; each clean stop leaves a snapshot run."""
    with mq.testing.broker(directory) as address, mq.Client(address) as client:
        client.create_channel("prices", latest_per_key=True)
        for at in range(40):
            client.publish("prices", f"{at} " + "x" * 500_000, key=f"k{at % 4}")
    for number in range(2):
        with mq.testing.broker(directory) as address, mq.Client(address) as client:
            client.create_channel(f"filler-{number}")
            client.rotate_segment()


def test_a_stop_gives_up_the_examination_and_is_a_clean_one(tmp_path: Path) -> None:
    """The child stands still for ever, and the grace is longer than anybody waits here."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "if any('wal.apart' in each for each in sys.orig_argv):\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
    )
    directory = tmp_path / "data"
    fill_largely(directory)
    (offer,) = propose(directory, time.time_ns() // 1_000)
    served = Process(tmp_path, SERVER_GRACEFUL_SHUTDOWN_TIMEOUT="10m", PYTHONPATH=str(tmp_path))
    transport = WireTransport("127.0.0.1", served.wait_for_port("wire"))
    before = manifest_of(directory)
    answers: list[object] = []

    def install() -> None:
        request = pb.InstallSegmentsRequest(proposal=offer.id)
        try:
            answers.append(transport.call("mq.AdminService/InstallSegments", request.SerializeToString(), 30.0))
        except Exception as error:
            answers.append(error)

    def examining() -> list[psutil.Process]:
        children = psutil.Process(served.process.pid).children()
        return [child for child in children if child.status() == psutil.STATUS_STOPPED]

    caller = threading.Thread(target=install)
    caller.start()
    try:
        wait_until(lambda: bool(examining() or answers))
        (child,) = examining()
        served.signal()
        assert served.wait() == 0, served.output
        assert not child.is_running()
    finally:
        if served.process.poll() is None:  # whoever stands still outlives the broker
            for each in examining():
                each.kill()
        served.signal(signal.SIGKILL)
        caller.join()
        transport.close()
    (answer,) = answers
    assert isinstance(answer, Unavailable)
    assert str(answer) == "the broker is shutting down"
    assert "in time" not in served.output
    after = manifest_of(directory)
    assert after.segments[: len(before.segments) - 1] == before.segments[:-1]
    assert after.snapshots[-1].begin > before.snapshots[-1].end
    with mq.testing.broker(directory) as address, mq.Client(address) as client:
        assert client.install_segments(offer.id).dropped_messages == 36
