"""The state that a compaction goes by, where the log is damaged: the one that a broker would start with."""

from __future__ import annotations

from pathlib import Path

import pytest
from filebroker import FileBroker
from handbroker import all_stopped, durable
from test_install_offer import fill

from mq.cli.spark.present import present_state
from wal.frame import Frame
from wal.spark.read.listing import manifest_of, visible
from wal.spark.read.scan import read

__all__ = ["all_stopped"]


@pytest.fixture
def broker(tmp_path: Path) -> FileBroker:
    """A log with two snapshot runs, the newer one in the middle of a segment."""
    broker = FileBroker(tmp_path / "log")
    fill(broker, rounds=20)
    broker.settle_history()
    for number in range(5):
        broker.put("filler", f"before the run {number}")

    async def snapshot() -> None:
        broker.broker._snapshotter.finish()

    broker.loop.run_until_complete(snapshot())
    broker.settle()
    broker.put("prices", ("k0", "after the run"))
    return broker


def damage(directory: Path, sequence: int) -> None:
    """One byte of the frame that has this sequence."""
    for segment in visible(str(directory)):
        for item in read(segment):
            if isinstance(item, Frame) and item.sequence == sequence:
                path = directory / segment.name
                data = bytearray(path.read_bytes())
                data[item.position + 40] ^= 0xFF
                path.write_bytes(data)
                return
    raise AssertionError(f"there is no frame {sequence}")


def test_damage_before_the_newest_snapshot_run_is_no_part_of_the_state(broker: FileBroker) -> None:
    broker.stop()
    begin = manifest_of(str(broker.directory)).snapshots[-1].begin
    holder = next(each for each in visible(str(broker.directory)) if each.last_sequence >= begin)
    assert holder.first_sequence < begin - 1, "the run begins in the middle of its segment"
    damage(broker.directory, begin - 1)
    _, state = present_state(str(broker.directory))
    assert not state.damaged
    assert durable(state) == durable(broker.state)


def test_a_snapshot_run_that_is_damaged_gives_way_to_the_older_one(broker: FileBroker) -> None:
    broker.stop()
    run = manifest_of(str(broker.directory)).snapshots[-1]
    damage(broker.directory, run.begin + 1)
    _, state = present_state(str(broker.directory))
    assert {*state.channels} == {*broker.state.channels}
    assert durable(state) == durable(FileBroker(broker.directory, broker.clock).state)
