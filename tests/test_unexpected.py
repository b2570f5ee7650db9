"""What hostile calls found: a division by nothing, and a pull that nobody answered after it."""

from pathlib import Path

import pytest
from filebroker import FileBroker
from handbroker import all_stopped

from mq.command import Pull, Start
from mq.errors import MqError
from mq.ladder import Ladder
from mq.readback import Readback

__all__ = ["all_stopped"]


@pytest.mark.parametrize("method", ["positions", "read"])
def test_a_pull_is_answered_whatever_fails_in_its_task(
    method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def fail(*_: object) -> None:
        raise ZeroDivisionError

    broker = FileBroker(tmp_path)
    broker.create("a")
    for number in range(40):
        broker.put("a", f"{number}" * 400)
    monkeypatch.setattr(Readback, method, fail)
    start = Start("time", 1) if method == "positions" else Start("earliest")
    with pytest.raises(MqError, match="internal error"):
        broker.ask(Pull("a", partition=0, start=start))


def test_a_time_before_the_first_mark_is_that_of_the_start() -> None:
    ladder = Ladder()
    ladder.restore(10, 0, 100, 0)
    ladder.restore(20, 0, 200, 0)
    ladder.end_us = 300
    assert ladder.time_at(3, 10, 50) == 100
    assert ladder.time_at(10, 10, 50) == 100
    assert ladder.time_at(7, 5, 50) == 50 + 50 * 2 // 5
    assert ladder.time_at(2, 5, 50) == 50
