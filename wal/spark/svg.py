"""Plots as inline SVG: bars and lines, in the colours of the page around them. Values in, text out."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH, HEIGHT = 640, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 8, 10, 26
_LABELS = 6  # below a plot at most


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
