"""A large proposal is checked by another process: what that finds, refuses or leaves undone is what counts here."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from filebroker import FileBroker
from handbroker import all_stopped
from process import wait_until
from proposer import propose
from test_install_offer import everything, fill, latest

import mq.installer
import wal.apart
import wal.upkeep
from mq.command import CreateGroup, Start
from mq.errors import ProposalRefused, Unavailable
from mq.rules import Rules
from wal.install import Judge

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
        log._closing.set()  # type: ignore[attr-defined]

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
