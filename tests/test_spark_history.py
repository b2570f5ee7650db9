"""What `mq spark maintain` remembers from run to run: read from its end, and never longer than it has to be."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.cli.spark import history as module
from mq.cli.spark.history import CHECKED, HISTORY, History


def test_lines_come_newest_first_and_one_that_was_cut_short_is_passed_over(tmp_path: Path) -> None:
    history = History(tmp_path / "new")
    assert list(history.lines()) == []
    for number in range(3):
        history.add({"at": number})
    with (tmp_path / "new" / HISTORY).open("a") as file:
        file.write('{"at": 3, "aud\n[]\n')
    history.add({"at": 4})
    assert [line["at"] for line in history.lines()] == [4, 2, 1, 0]


@given(sizes=st.lists(st.integers(0, 40), max_size=12), block=st.integers(1, 50))
def test_lines_of_all_lengths_are_whole_wherever_a_block_ends(
    sizes: list[int], block: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    history = History(tmp_path_factory.mktemp("out"))
    told = [{"number": number, "text": "é" * size} for number, size in enumerate(sizes)]
    for line in told:
        history.add(line)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_BYTES", block)
        assert list(history.lines()) == told[::-1]


def test_a_long_history_is_read_no_further_than_somebody_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", 16)
    history = History(tmp_path)
    for number in range(9):
        history.add({"at": number})
    lines = history.lines()
    assert next(lines) == {"at": 8}
    with (tmp_path / HISTORY).open("r+") as file:
        file.write('{"at": 7}')  # instead of the first line, which nobody has read so far
    assert list(lines)[-1] == {"at": 7}


def test_the_last_report_tells_when_and_whether_all_was_intact(tmp_path: Path) -> None:
    history = History(tmp_path)
    assert history.last_report() is None
    for day, damage in ((1, []), (2, ["a.wal, byte 7: torn"])):
        history.add({"at": f"2026-05-0{day}T00:00:00+00:00", "audit": {"report": "report.html", "damage": damage}})
        history.add({"at": f"2026-05-0{day}T12:00:00+00:00", "audit": {"report": "", "damage": []}})
        history.add({"at": f"2026-05-0{day}T13:00:00+00:00", "audit": {"error": "no Java"}})
        at = datetime(2026, 5, day, tzinfo=UTC).timestamp()
        assert history.last_report() == (at, not damage)


def test_what_is_checked_is_replaced_and_a_broken_file_means_nothing_is(tmp_path: Path) -> None:
    history = History(tmp_path / "new")
    assert history.checked() == {}
    history.keep_checked({"a.wal": 1, "b.wal": 2})
    history.keep_checked({"b.wal": 2})
    assert history.checked() == {"b.wal": 2}
    assert [path.name for path in (tmp_path / "new").iterdir()] == [CHECKED]
    for broken in ("", '{"a', json.dumps(["a.wal"])):
        (tmp_path / "new" / CHECKED).write_text(broken)
        assert history.checked() == {}
