"""The figures as a page with tables and charts. Nothing in it is typed by hand."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from .quiet import MOST_STOLEN_PERCENT, MOST_TRIES, STOLEN
from .server import CACHE, FSYNC

TITLES = {
    FSYNC: "An answer means that it is on disk (fsync before the answer)",
    CACHE: "An answer means that it is in memory or in the page cache",
}


class Row(NamedTuple):
    """One kind of work in the table."""

    figure: str
    title: str
    is_more_better: bool
    text: Callable[[float], str]


def _rate(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.2f} M/s"
    return f"{value / 1e3:.1f} k/s" if value >= 1e3 else f"{value:.0f} /s"


def _milliseconds(value: float) -> str:
    return f"{value * 1e3:.1f} ms" if value < 1 else f"{value:.2f} s"


def _megabytes(value: float) -> str:
    return f"{value / 1e6:.0f} MB"


def _bytes(value: float) -> str:
    return f"{value:.0f} B"


ROWS = [
    Row("publish_500x512", "publish batches of 500 x 512 B, 4 producers", True, _rate),
    Row("publish_100", "publish 100 B, each broker's best batch, 4 producers", True, _rate),
    Row("one_at_a_time_1", "publish one at a time, 1 caller", True, _rate),
    Row("one_at_a_time_1_p50", "… half of them within", False, _milliseconds),
    Row("one_at_a_time_1_p99", "… 99 % of them within", False, _milliseconds),
    Row("one_at_a_time_32", "publish one at a time, 32 callers in 4 processes", True, _rate),
    Row("one_at_a_time_32_p50", "… half of them within", False, _milliseconds),
    Row("one_at_a_time_32_p99", "… 99 % of them within", False, _milliseconds),
    Row("consume", "consume 100 B with acks, 1 consumer", True, _rate),
    Row("end_to_end_p50", "end to end at 1,000 msg/s, half within", False, _milliseconds),
    Row("end_to_end_p99", "end to end at 1,000 msg/s, 99 % within", False, _milliseconds),
    Row("first_after_kill", "kill -9, start again, first message", False, _milliseconds),
    Row("memory_idle", "resident memory, idle", False, _megabytes),
    Row("memory_stored", "resident memory, {stored:,} x 100 B stored", False, _megabytes),
    Row("disk_per_message", "disk for a message of 100 B", False, _bytes),
]
NATIVE = ["publish_500x512", "publish_100", "one_at_a_time_32", "consume"]  # what the brokers' own tools are asked for
OURS = ("mq", "mq busy-poll")  # each beside the best of the others
CHARTED = ["publish_500x512", "publish_100", "one_at_a_time_32", "consume"]


def machine() -> dict[str, str | int]:
    """Where this ran."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line.split(":")[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0] if names else cpu
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": cpu,
        "cores": os.cpu_count() or 0,
        "memory_gib": round(memory / 2**30),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
    }


def write(facts: dict[str, Any], directory: Path) -> None:
    """benchmarks.md, and an SVG for each class of durability."""
    (directory / "benchmarks.md").write_text(page(facts))
    for durability in facts["runs"]:
        (directory / f"benchmarks-{durability}.svg").write_text(chart(facts, durability))


def page(facts: dict[str, Any]) -> str:
    where = facts["machine"]
    lines = [
        "# Benchmarks",
        "",
        "<!-- written by `make compare`; changes here are lost -->",
        "",
        f"Measured on {facts['date']} by `{facts['command']}`, all brokers on one machine in one run: {where['cpu']}, "
        f"{where['cores']} cores, {where['memory_gib']} GiB, {where['system']}, Python {where['python']}. Each figure "
        f"is the median of {facts['rounds']} rounds, with the lowest and the highest; the brokers take turns, and each "
        "begins with an empty directory, on a machine at rest. Clients share the cores with the broker. Every broker "
        "is driven by the best Python client that it has: the figures are those that a Python service sees, not those "
        "of the broker alone.",
        "",
    ]
    if facts["missing"]:
        lines += [f"Not installed here, and so not compared: {', '.join(facts['missing'])}.", ""]
    if facts["failed"]:
        lines += [f"Rounds that failed, and are not counted: {', '.join(facts['failed'])}.", ""]
    lines += _strangers(facts)
    for durability, runs in facts["runs"].items():
        lines += [f"## {TITLES[durability]}", "", f"![{TITLES[durability]}](benchmarks-{durability}.svg)", ""]
        lines += [*table(facts, runs, ROWS), ""]
        if any(facts["native"][durability].values()):
            lines += ["Driven by the tool that each broker ships (mq's is its Python client); only rates:", ""]
            rows = [row for row in ROWS if row.figure in NATIVE]
            lines += [*table(facts, facts["native"][durability], rows), ""]
        lines += [*_syncs(facts["syncs"][durability])]
    return "\n".join([*lines, *_setup(facts), *_method(facts)]) + "\n"


def _strangers(facts: dict[str, Any]) -> list[str]:
    """How much the host of this machine gave to others meanwhile."""
    stolen = sorted(
        (found[STOLEN], name)
        for peers in facts["runs"].values()
        for name, rounds in peers.items()
        for found in rounds
        if STOLEN in found
    )
    if not stolen:
        return []
    disturbed = [name for percent, name in stolen if percent > MOST_STOLEN_PERCENT]
    return [
        f"Work by the Python clients during which the host of this machine gave more than {MOST_STOLEN_PERCENT:g} % of "
        f"its processors to others (steal) was tried again, {MOST_TRIES} times in all, and the least disturbed try "
        f"counts; what the tries before had published stays with the broker. Steal is what a machine wanted and did "
        f"not get, so that work which leaves processors idle suffers less from it. "
        f"In {len(stolen) - len(disturbed)} of {len(stolen)} rounds all of it was quiet in the end; the worst had "
        f"lost {stolen[-1][0]:.1f} % ({stolen[-1][1]}).",
        "",
    ]


def _syncs(counts: dict[str, float | None]) -> list[str]:
    told = [f"{name} {count:.2f}" for name, count in counts.items() if count is not None]
    if not told:
        return []
    return [f"Calls of fsync or the like for each message of one caller, counted with strace: {', '.join(told)}.", ""]


def _setup(facts: dict[str, Any]) -> list[str]:
    lines = [
        "## How each was set up",
        "",
        "| broker | version | Python client | fsync before the answer | answer from the cache |",
        "|---|---|---|---|---|",
    ]
    for name, peer in facts["peers"].items():
        settings = peer["settings"]
        lines.append(f"| {name} | {peer['version']} | {peer['client']} | {settings[FSYNC]} | {settings[CACHE]} |")
    lines += ["", "| broker | its best batch of 100 B | its own tool |", "|---|---|---|"]
    for name, peer in facts["peers"].items():
        tool = facts["tools"].get(name)
        how = f"{tool['name']}: {tool['how']}" if tool else "not installed here"
        lines.append(f"| {name} | {peer['best_batch']:,} | {how} |")
    return [*lines, ""]


def _method(facts: dict[str, Any]) -> list[str]:
    return [
        f"Timed work runs for {facts['seconds']:g} s in each round. Bodies are random bytes, made before the clock "
        "starts, the same for every broker: nobody gains by compression. A message counts as published when the broker "
        "confirmed it.",
        "",
        "One caller uses each broker's blocking client (NATS has none; Kafka's callback comes to the thread that "
        "waits). Of the 32, each process has 8, in the way that was fastest of those tried: asyncio with uvloop "
        "for mq, NATS and Redis, one connection with callbacks for RabbitMQ and Kafka. Redis' callers have a "
        "connection each, the others share one for each process; those of mq who wait at the same moment share "
        "requests, as its client does it by itself. They never have more than one message each on its way. End to "
        "end, messages leave one by one at an even rate, from 4 threads that wait for the answer (mq, Redis, "
        "RabbitMQ) or from one that does not (NATS, Kafka): of the ways tried for each, none was clearly faster; the "
        "time is from just before the publish to when the consumer has it, after 3 s of the same work. RabbitMQ has "
        "quorum queues in both classes, and syncs in both: a classic queue takes batches more slowly here, but is "
        "quicker end to end and after a kill. mq hands out only what is synced, also where its answer to the publisher "
        "did not wait for that, because an offset that somebody has seen is never used again: so its way end to end "
        "has a sync in it in both classes, which that of NATS, Redis and Kafka has not in the second.",
        "",
        "The consumer's rate is taken from its first batch on, so that nobody's way into a group counts; the first "
        "message is in the row of the kill. There the consumer's process has loaded its client before the kill, and "
        "connects as soon as the port is open, which with mq and Redis is before the log is read. Acks are what "
        "each has: of every message (Redis), of all up to one (mq's batches, NATS, RabbitMQ), a committed offset "
        "(Kafka). Disk is what `du` tells, files that were made ahead included. `mq` is as installed; "
        "`mq busy-poll` is the same broker with a processor for itself while messages come, told apart since no other "
        "has that. The columns at the end compare each with the best of the others: above 1 is better where more is "
        "better, below 1 where less is; bold where mq is not behind.",
    ]


def table(facts: dict[str, Any], runs: dict[str, list[dict[str, float]]], rows: Sequence[Row]) -> list[str]:
    names = [name for name, rounds in runs.items() if rounds]
    heads = [*names, *(f"{name} / best" for name in names if name in OURS)]
    lines = [f"| work | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for row in rows:
        values = {name: sorted(each[row.figure] for each in runs[name] if row.figure in each) for name in names}
        cells = [_cell(row, each) for each in values.values()]
        cells += [_ratio(row, name, values) for name in names if name in OURS]
        lines.append(f"| {row.title.format(stored=facts['stored'])} | {' | '.join(cells)} |")
    return lines


def _cell(row: Row, values: list[float]) -> str:
    if not values:
        return "not by this tool"
    return f"{row.text(median(values))} ({row.text(values[0])} to {row.text(values[-1])})"


def _ratio(row: Row, ours: str, values: dict[str, list[float]]) -> str:
    others = [median(each) for name, each in values.items() if name not in OURS and each]
    if not values[ours] or not others:
        return ""
    best = max(others) if row.is_more_better else min(others)
    ratio = median(values[ours]) / best
    is_won = ratio >= 1 if row.is_more_better else ratio <= 1
    return f"**{ratio:.2f}**" if is_won else f"{ratio:.2f}"


# ---------------------------------------------------------------- the chart

WIDTH, LEFT, BAR, GAP, HEAD = 760, 96, 18, 6, 30
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f } .title { font-weight: 600 }
.bar { fill: #9aa5b1 } .mq { fill: #0b7a75 }
@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .bar { fill: #57606a } .mq { fill: #2dd4bf } }
"""


def chart(facts: dict[str, Any], durability: str) -> str:
    """Bars, one group for each rate that people ask for; longer is better."""
    runs = {name: rounds for name, rounds in facts["runs"][durability].items() if rounds}
    parts: list[str] = []
    top = 4
    for row in ROWS:
        if row.figure in CHARTED:
            parts += _group(
                row, {name: median(each[row.figure] for each in rounds) for name, rounds in runs.items()}, top
            )
            top += HEAD + len(runs) * (BAR + GAP) + 10
    size = f'viewBox="0 0 {WIDTH} {top}" role="img"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} aria-label="{escape(TITLES[durability])}">'
    return "\n".join([head, f"<style>{STYLE}</style>", *parts, "</svg>"]) + "\n"


def _group(row: Row, values: dict[str, float], top: int) -> Sequence[str]:
    room = WIDTH - LEFT - 90
    most = max(values.values(), default=1.0)
    lines = [f'<text class="title" x="0" y="{top + 16}">{escape(row.title)}</text>']
    for number, (name, value) in enumerate(sorted(values.items(), key=lambda item: -item[1])):
        y = top + HEAD + number * (BAR + GAP)
        width = max(1.0, room * value / most)
        kind = "mq" if name in OURS else "bar"
        lines.append(f'<text x="{LEFT - 8}" y="{y + 14}" text-anchor="end">{escape(name)}</text>')
        lines.append(f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" rx="2"/>')
        lines.append(f'<text x="{LEFT + width + 6:.1f}" y="{y + 14}">{row.text(value)}</text>')
    return lines
