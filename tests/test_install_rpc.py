"""Install by a running broker, over each door, by each client and by the command."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from proposer import propose

import mq
import mq.testing
from mq.cli import main
from mq.testing import Running

KEYS, ROUNDS = 30, 60


def filled(directory: Path) -> Path:
    """A stopped log of which half may go: each clean stop leaves a snapshot run."""
    with mq.testing.broker(directory) as address, mq.Client(address) as client:
        client.create_channel("prices", latest_per_key=True)
        for at in range(ROUNDS):
            client.publish("prices", f"{at}", key=f"k{at % KEYS}")
    for number in range(2):
        with mq.testing.broker(directory) as address, mq.Client(address) as client:
            client.create_channel(f"filler-{number}")
            client.rotate_segment()
    return directory


def by_wire(address: Running, proposal: str) -> int:
    with mq.Client(str(address)) as client:
        return client.install_segments(proposal).dropped_messages


def by_grpc(address: Running, proposal: str) -> int:
    with mq.Client(f"grpc://{address.address}") as client:
        return client.install_segments(proposal).dropped_messages


def by_async(address: Running, proposal: str) -> int:
    async def install() -> int:
        async with mq.AsyncClient(str(address)) as client:
            return (await client.install_segments(proposal)).dropped_messages

    return asyncio.run(install())


def by_command(address: Running, proposal: str) -> int:
    asked = ["wal", "install", proposal, "--server", str(address), "-o", "json"]
    answer = CliRunner().invoke(main, asked, catch_exceptions=False)
    assert answer.exit_code == 0, answer.stderr
    return int(json.loads(answer.stdout)["dropped_messages"])


@pytest.mark.parametrize("install", [by_wire, by_grpc, by_async, by_command])
def test_a_proposal_is_installed_by_whoever_asks(tmp_path: Path, install: Callable[[Running, str], int]) -> None:
    directory = filled(tmp_path / "log")
    with mq.testing.broker(directory) as address, mq.Client(address) as client:
        (offer,) = propose(directory, time.time_ns() // 1_000)
        assert install(address, offer.id) == ROUNDS - KEYS
        assert [message.text() for message in client.read("prices", follow=False)] == [
            str(at) for at in range(ROUNDS - KEYS, ROUNDS)
        ]
        with pytest.raises(mq.ProposalNotFound):
            client.install_segments(offer.id)


def test_what_is_refused_is_said_in_one_line_with_a_code(tmp_path: Path) -> None:
    directory = filled(tmp_path / "log")
    with mq.testing.broker(directory) as address, mq.Client(address) as client:
        (offer,) = propose(directory, time.time_ns() // 1_000)
        client.create_group("prices", "late")
        answer = CliRunner().invoke(main, ["wal", "install", offer.id, "--server", str(address)])
        assert answer.exit_code == 4
        assert answer.stderr.startswith("mq: partition 0 of channel 'prices': offset ")
        assert answer.stderr.endswith(" would go, and a group is not past it\n")
        unknown = CliRunner().invoke(main, ["wal", "install", "0" * 16, "--server", str(address)])
        assert (unknown.exit_code, unknown.stderr) == (3, f"mq: there is no proposal {'0' * 16}\n")
