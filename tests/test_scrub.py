"""The scrub: a running broker finds damage in what it keeps before anybody asks for it, and says so once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from handbroker import HandBroker, all_stopped, publish
from loguru import logger

from mq.command import CreateChannel
from mq.scrubber import PAUSE_SECONDS
from wal import FileLog, Options

__all__ = ["all_stopped"]

DEADLINE = 30.0


@pytest.fixture
def errors() -> Iterator[list[str]]:
    lines: list[str] = []
    sink = logger.add(lambda message: lines.append(str(message)), level="ERROR", format="{message}")
    yield lines
    logger.remove(sink)


def serve(directory: Path) -> HandBroker:
    """A broker with one sealed segment that holds a message."""
    hand = HandBroker(FileLog.open(directory, Options(segment_bytes=1 << 20, soft_free_bytes=0)))
    hand.send(CreateChannel("orders"))
    hand.send(publish("orders", "x" * 1000))
    hand.broker.rotate()
    end = time.monotonic() + DEADLINE
    while not hand.log.segments()[0].is_sealed:
        assert time.monotonic() < end
        hand.spin()
    return hand


def test_a_flipped_bit_in_a_sealed_segment_is_told_once(tmp_path: Path, errors: list[str]) -> None:
    hand = serve(tmp_path)
    path = tmp_path / hand.log.segments()[0].name
    damaged = bytearray(path.read_bytes())
    damaged[-500] ^= 1
    path.write_bytes(damaged)
    for _ in range(3):
        hand.tick(PAUSE_SECONDS * 1000)
    assert len([line for line in errors if path.name in line and "damaged" in line]) == 1
    hand.log.close()


def test_a_sound_log_is_silent(tmp_path: Path, errors: list[str]) -> None:
    hand = serve(tmp_path)
    for _ in range(3):
        hand.tick(PAUSE_SECONDS * 1000)
    assert errors == []
    hand.log.close()
