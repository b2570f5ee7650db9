"""The pieces of a page: its style, sections, tables, plots as inline SVG, and values as text for human eyes.

Values in, text out.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape

MOST_ROWS = 50  # of a table on the page; the Parquet files have all
_DAY_US = 86_400_000_000

WIDTH, HEIGHT = 640, 220  # of a plot
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 8, 10, 26
_LABELS = 6  # below a plot at most

STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --soft: #5d6778; --paper: #f7f8fa; --card: #fff; --rule: #dfe3ea;
  --good: #18794e; --bad: #c4302b; --c0: #2f6fde; --c1: #d9730d; --c2: #18794e; --c3: #9a3fd1; --c4: #c4302b;
  --c5: #0b8a94 }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #9aa5b8; --paper: #12151b; --card: #1b2029;
  --rule: #2d3442; --good: #4cc38a; --bad: #ff6b63; --c0: #6ea8fe; --c1: #ffa657; --c2: #4cc38a; --c3: #c792ea;
  --c4: #ff6b63; --c5: #56c8d3 } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1rem; max-width: 60rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif }
h1 { font-size: 1.4rem; margin: .2rem 0; overflow-wrap: anywhere }
h2 { font-size: 1.1rem; margin: 0 0 .6rem }
h3 { font-size: .95rem; margin: 1rem 0 .3rem }
p { margin: .3rem 0 }
code { font-size: .92em }
section { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 1rem; margin: 1rem 0 }
.verdict { font-size: 1.2rem; font-weight: 650 }
.good { color: var(--good) }
.bad { color: var(--bad) }
.soft { color: var(--soft) }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.5rem, 1fr)); gap: .7rem; margin-top: .8rem }
.facts b { display: block; font-size: 1.15rem; font-variant-numeric: tabular-nums }
.facts span { color: var(--soft); font-size: .85rem }
.wide { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-size: .88rem; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .55rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--rule) }
th { color: var(--soft); font-weight: 600 }
th.t, td.t { text-align: left }
td.t { white-space: normal; overflow-wrap: anywhere; min-width: 7rem }
svg { width: 100%; height: auto; display: block }
svg text { fill: var(--soft); font-size: 12px }
@media (max-width: 30rem) { svg text { font-size: 20px } }
.grid { stroke: var(--rule) }
.bar { fill: var(--c0) }
.line { fill: none; stroke-width: 2; stroke-linejoin: round }
.dot { fill: none; stroke-width: 3 }
.legend { font-size: .85rem; color: var(--soft) }
.key { margin-right: 1rem; white-space: nowrap }
.key i { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .35em }
.c0 { stroke: var(--c0); background: var(--c0) }
.c1 { stroke: var(--c1); background: var(--c1) }
.c2 { stroke: var(--c2); background: var(--c2) }
.c3 { stroke: var(--c3); background: var(--c3) }
.c4 { stroke: var(--c4); background: var(--c4) }
.c5 { stroke: var(--c5); background: var(--c5) }
"""


def document(title: str, *parts: str) -> str:
    """A whole page, in one file that needs no network."""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width, initial-scale=1"><title>{escape(title)}</title><style>{STYLE}</style>'
        f"<body>{''.join(parts)}</body></html>\n"
    )


def section(title: str, *parts: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns that end in `:t` hold text; the others are numbers."""
    kinds = [' class="t"' if column.endswith(":t") else "" for column in columns]
    heads = "".join(
        f"<th{kind}>{escape(column.removesuffix(':t'))}</th>" for column, kind in zip(columns, kinds, strict=True)
    )
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{escape(cell)}</td>" for cell, kind in zip(row, kinds, strict=True)) + "</tr>"
        for row in rows[:MOST_ROWS]
    )
    more = f'<p class="soft">and {len(rows) - MOST_ROWS:,} more</p>' if len(rows) > MOST_ROWS else ""
    return f'<div class="wide"><table><tr>{heads}</tr>{body}</table></div>{more}'


def time_labels(times: Sequence[int]) -> list[str]:
    is_long = len(times) > 1 and times[-1] - times[0] > _DAY_US
    return [datetime.fromtimestamp(at / 1e6, UTC).strftime("%m-%d %H:%M" if is_long else "%H:%M") for at in times]


def when(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S")


def span(microseconds: float | None) -> str:
    """A duration for human eyes."""
    if microseconds is None:
        return "-"
    for unit, name in ((86_400e6, "d"), (3_600e6, "h"), (60e6, "min"), (1e6, "s"), (1e3, "ms")):
        if microseconds >= unit:
            return f"{microseconds / unit:.3g} {name}"
    return f"{microseconds:.0f} µs"


def size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size_or_none(value: float | None) -> str:
    return "-" if value is None else size(int(value))


def ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}x"


def count_or_none(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return key.hex()


def bars(labels: Sequence[str], values: Sequence[float], title: str) -> str:
    """One bar for each value, with its label below where there is room."""
    plot = _Plot(title, max(values, default=0), len(values))
    for at, (label, value) in enumerate(zip(labels, values, strict=True)):
        x, width = plot.x(at), plot.step
        y = plot.y(value)
        plot.add(
            f'<rect class="bar" x="{x + width * 0.08:.1f}" y="{y:.1f}" width="{width * 0.84:.1f}" '
            f'height="{plot.bottom - y:.1f}"><title>{escape(label)}: {number(value)}</title></rect>'
        )
    return plot.finished(labels)


def lines(labels: Sequence[str], series: Sequence[tuple[str, Sequence[float | None]]], title: str) -> str:
    """A line for each series; None is a time that nothing is known of."""
    highest = max((value for _, values in series for value in values if value is not None), default=0)
    plot = _Plot(title, highest, len(labels))
    for place, (name, values) in enumerate(series):
        for points in _unbroken(values):
            path = " ".join(f"{plot.x(at) + plot.step / 2:.1f},{plot.y(value):.1f}" for at, value in points)
            if len(points) == 1:
                x, y = path.split(",")
                plot.add(f'<circle class="dot c{place % 6}" cx="{x}" cy="{y}" r="3"/>')
            plot.add(f'<polyline class="line c{place % 6}" points="{path}"><title>{escape(name)}</title></polyline>')
    legend = "".join(
        f'<span class="key"><i class="c{place % 6}"></i>{escape(name)}</span>' for place, (name, _) in enumerate(series)
    )
    return plot.finished(labels) + f'<p class="legend">{legend}</p>'


class _Plot:
    def __init__(self, title: str, highest: float, columns: int) -> None:
        self.bottom = HEIGHT - _BOTTOM
        self.step = (WIDTH - _LEFT - _RIGHT) / max(1, columns)
        self._highest = _round_up(highest)
        self._parts = [
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
            f"<title>{escape(title)}</title>"
        ]
        for share in (0, 0.5, 1):
            value = self._highest * share
            y = self.y(value)
            self.add(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            self.add(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(value)}</text>')

    def x(self, column: int) -> float:
        return _LEFT + column * self.step

    def y(self, value: float) -> float:
        return self.bottom - (self.bottom - _TOP) * (value / self._highest)

    def add(self, part: str) -> None:
        self._parts.append(part)

    def finished(self, labels: Sequence[str]) -> str:
        every = max(1, -(-len(labels) // _LABELS))
        for at in range(0, len(labels), every):
            x = self.x(at) + self.step / 2
            self.add(f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(labels[at])}</text>')
        return "".join([*self._parts, "</svg>"])


def number(value: float) -> str:
    """A number in little room: 12, 3.4k, 5M."""
    for unit, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"


def _round_up(value: float) -> float:
    """The next 1, 2 or 5 of its power of ten: an axis should end with a round number."""
    if value <= 0:
        return 1.0
    power = 10.0 ** (len(f"{int(value)}") - 1) if value >= 1 else 1.0
    return next(power * step for step in (1, 2, 5, 10) if value <= power * step)


def _unbroken(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    found: list[list[tuple[int, float]]] = [[]]
    for at, value in enumerate(values):
        if value is not None:
            found[-1].append((at, value))
        elif found[-1]:
            found.append([])
    return [points for points in found if points]
