"""How large a run is, its seed, and what it showed.

`make test` runs everything small. `make torture` sets MQ_TORTURE, the scale of the large size, and has each test that
is marked `shows` write down what it did; `python tests/torture.py` makes docs/reliability.md of that. The page is never
typed by hand, and nothing is left out: what failed or could not be shown on a machine is on it as such.
"""

from __future__ import annotations

import json
import os
import platform
import random
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

ROWS = {
    "T1": "SIGKILL of the real broker under load, restart, drain, check the history",
    "T2": "power cuts at every storage operation, with none, all and random parts of what was not synced",
    "T3": "every byte of every kind of file changed, zeroed, cut; records and files deleted, doubled, swapped",
    "T4": "errors of fsync and write, a full disk, a paused broker, a clock that jumps",
    "T5": "hostile input: to the readers of the log, and to a live broker",
    "T6": "a power cut or a kill at each step of the install of rewritten segments",
    "T7": "soak at 70 % of the maximum, with a kill each minute, while segments are cleaned",
    "T8": "recovery: what a start costs",
    "T9": "network faults between client and broker",
}
ROOT = Path(__file__).resolve().parent.parent
SOURCE, PAGE = ROOT / "docs" / "reliability.jsonl", ROOT / "docs" / "reliability.md"
_figures = pytest.StashKey[dict[str, Any]]()
_told = pytest.StashKey[list[str]]()


def sized(small: int, large: int) -> int:
    """`small` in `make test`; in `make torture` `large`, times the scale, and never less than `small`."""
    scale = float(os.environ.get("MQ_TORTURE") or 0)
    return max(small, int(large * scale)) if scale else small


def seed_of_run() -> int:
    """MQ_SEED, or a new one for each run of a test."""
    return int(os.environ.get("MQ_SEED") or random.SystemRandom().randrange(1 << 32))


# ------------------------------------------------------------ writing down


def figures_of(item: pytest.Item) -> dict[str, Any]:
    return item.stash.setdefault(_figures, {})


def note(item: pytest.Item, report: pytest.TestReport) -> None:
    """After each phase of a test: tell what it showed, and write it down where MQ_RECORD says."""
    mark = item.get_closest_marker("shows")
    if mark is None or not (report.when == "call" or (report.when == "setup" and not report.passed)):
        return
    row, words = mark.args
    assert row in ROWS, row
    figures = figures_of(item)
    file, _, test = item.nodeid.partition("::")
    command = os.environ.get("MQ_COMMAND", "pytest -k {test}")
    line = {
        "row": row,
        "test": test,
        "file": file,
        "shows": words,
        "outcome": report.outcome,
        "reason": reason_of(report),
        "seed": figures.pop("seed", None),
        "counts": figures,
        "seconds": round(report.duration, 1),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": command.format(test=test.partition("[")[0]),
        "machine": f"{os.cpu_count()} cores, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}",
    }
    seed = "" if line["seed"] is None else f", seed {line['seed']}"
    words = f"{row} {line['test']}: {describe(figures)}{seed}, {line['seconds']} s"
    item.config.stash.setdefault(_told, []).append(words)
    if "MQ_RECORD" in os.environ:
        with open(os.environ["MQ_RECORD"], "a") as file:
            file.write(json.dumps(line) + "\n")


def reason_of(report: pytest.TestReport) -> str:
    if report.passed:
        return ""
    if isinstance(report.longrepr, tuple):  # a skip: file, line, words
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message).splitlines()[0][:200] if crash else "failed"


def told(config: pytest.Config) -> list[str]:
    return config.stash.setdefault(_told, [])


def describe(counts: dict[str, Any]) -> str:
    return ", ".join(
        f"{value:,} {name}" if isinstance(value, int) else f"{name} {value}" for name, value in counts.items()
    )


# ------------------------------------------------------------ the page


def merge(before: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A run replaces what an earlier one said of the same test, and leaves the rest with its date."""
    latest = {(line["file"], line["test"]): line for line in [*before, *new]}
    return sorted(latest.values(), key=lambda line: (line["row"], line["file"], line["test"]))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def render(lines: list[dict[str, Any]]) -> str:
    out = [
        "# Reliability",
        "",
        "What `make torture` and `make soak` did to mq, and what came of it. This page is made by those runs from what "
        "each test wrote down ([reliability.jsonl](reliability.jsonl)); a test checks that both agree. Where messages "
        "go in and out, one [checker of histories](../tests/history.py) judges. A command repeats its line, with "
        "`MQ_SEED` also the seed; `SCALE=1` is the full size.",
    ]
    for row, words in ROWS.items():
        out += ["", f"## {row}: {words}", ""]
        found = [line for line in lines if line["row"] == row]
        if not found:
            out.append("Not run yet.")
            continue
        out += ["| shown | result | counts | seed | seconds | date | command |", "|---|---|---|---|---|---|---|"]
        out += [_table_line(group) for group in _by_function(found)]
    machines = sorted({line["machine"] for line in lines})
    out += ["", "## Where", "", *(f"* {machine}" for machine in machines)]
    return "\n".join(out) + "\n"


def _by_function(lines: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The cases of a parametrised test share a line."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault((line["file"], line["test"].partition("[")[0]), []).append(line)
    return list(groups.values())


def _table_line(group: list[dict[str, Any]]) -> str:
    ran = [line for line in group if line["outcome"] != "skipped"]
    failed = [line for line in group if line["outcome"] == "failed"]
    if failed:
        result = f"**failed**: {failed[0]['reason']}"
    elif not ran:
        result = group[0]["reason"]
    else:
        result = "kept"
    seeds = sorted({str(line["seed"]) for line in ran if line["seed"] is not None}, key=lambda seed: (len(seed), seed))
    first = group[0]
    cells = [
        first["shows"],
        result.replace("|", "/"),
        describe(_sum(ran)) or "-",
        ", ".join(seeds) or "-",
        f"{sum(line['seconds'] for line in group):,.0f}",
        max(line["date"] for line in group),
        f"`{first['command']}`",
    ]
    return "| " + " | ".join(cells) + " |"


def _sum(lines: list[dict[str, Any]]) -> dict[str, Any]:
    counts: dict[str, Any] = {"cases": len(lines)} if len(lines) > 1 else {}
    for line in lines:
        for name, value in line["counts"].items():
            if isinstance(value, int) and not isinstance(value, bool):
                counts[name] = counts.get(name, 0) + value
            elif str(value) not in str(counts.get(name, "")):
                counts[name] = f"{counts[name]}, {value}" if name in counts else value
    return counts


def main(recorded: Path) -> None:
    lines = merge(read(SOURCE), read(recorded))
    write(SOURCE, lines)
    PAGE.write_text(render(lines))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
