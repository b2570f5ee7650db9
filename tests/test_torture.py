"""The page of what the torture showed is made from what the tests wrote down, and says what failed."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torture

LINE: dict[str, Any] = {
    "row": "T1", "test": "test_a", "file": "tests/test_x.py", "shows": "kills", "outcome": "passed", "reason": "",
    "seed": 7, "counts": {"kills": 1000, "file system": "ext4"}, "seconds": 3.0, "date": "2026-01-02",
    "command": "make torture SCALE=1 ARGS='-k test_a'", "machine": "2 cores",
}  # fmt: skip


def test_the_page_is_what_the_runs_wrote_down() -> None:
    assert torture.PAGE.read_text() == torture.render(torture.read(torture.SOURCE)), (
        "run `make torture`, do not edit it"
    )


def test_every_row_has_a_test_that_shows_it(root: Path) -> None:
    tests = "".join(path.read_text() for path in (root / "tests").glob("test_*.py") if path.name != "test_torture.py")
    assert set(re.findall(r'mark\.shows\("(T\d)"', tests)) == set(torture.ROWS)


def test_the_page_names_counts_seed_date_and_command() -> None:
    page = torture.render([LINE])
    assert "| kills | kept | 1,000 kills, file system ext4 | 7 | 3 | 2026-01-02 | " in page
    assert " | `make torture SCALE=1 ARGS='-k test_a'` |" in page
    assert page.count("Not run yet.") == len(torture.ROWS) - 1


def test_cases_share_a_line_and_one_that_failed_is_told() -> None:
    cases = [LINE | {"test": f"test_a[{seed}]", "seed": seed} for seed in (8, 9)]
    assert "| kills | kept | 2 cases, 2,000 kills, file system ext4 | 8, 9 | 6 |" in torture.render(cases)
    cases[1] |= {"outcome": "failed", "reason": "one is gone"}
    assert "| kills | **failed**: one is gone |" in torture.render(cases)
    skipped = LINE | {"outcome": "skipped", "reason": "NOT SHOWN on this machine: no strace", "counts": {}}
    assert "| kills | NOT SHOWN on this machine: no strace | - |" in torture.render([skipped])


def test_a_run_replaces_its_own_tests_only() -> None:
    other = LINE | {"test": "test_b"}
    again = LINE | {"date": "2026-02-03"}
    assert torture.merge([LINE, other], [again]) == [again, other]


def test_the_small_size_is_the_default_and_the_scale_never_goes_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MQ_TORTURE", raising=False)
    assert torture.sized(50, 1_000) == 50
    for scale, size in (("1", 1_000), ("0.5", 500), ("0.001", 50)):
        monkeypatch.setenv("MQ_TORTURE", scale)
        assert torture.sized(50, 1_000) == size


INNER = """
import pytest

@pytest.mark.shows("T1", "kills")
def test_that_passes(figures):
    figures |= {"seed": 7, "kills": 3}

@pytest.mark.shows("T2", "cuts")
def test_that_fails(figures):
    figures["cuts"] = 5
    assert not figures, "a history that is broken"

@pytest.mark.shows("T3", "flips")
def test_that_is_skipped(figures):
    pytest.skip("NOT SHOWN on this machine")

def test_of_something_else():
    pass
"""


def test_what_passed_failed_and_was_skipped_is_written_down(tmp_path: Path, root: Path) -> None:
    (tmp_path / "test_inner.py").write_text(INNER)
    record = tmp_path / "record"
    answer = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", root / "pyproject.toml", "--rootdir", tmp_path, "-p", "conftest",
         "-p", "no:cacheprovider", tmp_path / "test_inner.py"],
        env={"PATH": "", "PYTHONPATH": str(root / "tests"), "MQ_RECORD": str(record)},
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [(line["row"], line["outcome"], line["counts"]) for line in lines] == [
        ("T1", "passed", {"kills": 3}),
        ("T2", "failed", {"cuts": 5}),
        ("T3", "skipped", {}),
    ], answer.stdout
    assert "a history that is broken" in lines[1]["reason"]
    assert lines[2]["reason"] == "NOT SHOWN on this machine"
    assert "T1 test_that_passes: 3 kills, seed 7, " in answer.stdout
