"""How far each group was behind over time, from notes that segments made apart. Pure: no I/O, no pyspark.

The head of a partition at a time is the end of what was published until then. What a group has done by then is told in
absolute terms at times, and by acks between. Until it is told for the first time, nobody knows, and nothing is shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

Row: TypeAlias = dict[str, Any]
_MOST_POINTS = 200  # of a curve: more than a screen shows


def width_for(first_us: int, last_us: int, widths: Iterable[int]) -> int:
    """The narrowest width of buckets that makes no more points than can be shown."""
    choice = sorted(widths)
    for width in choice:
        if (last_us - first_us) // width < _MOST_POINTS:
            return width
    return choice[-1]


def lags(rates: Iterable[Row], progress: Iterable[Row], starts: Iterable[Row], width_us: int) -> list[Row]:
    """Rows of channel_id, group_id, start_us, lag: messages that were not done at the end of that time.

    `progress` comes in the order of the log; `starts` tells what retention has taken, which waits for nobody.
    """
    heads = _highest(rates, "start_us", "end_offset", width_us)
    taken = _highest(starts, "time_us", "start_offset", width_us)
    done = _done(progress, width_us)
    times = sorted({at for series in [*heads.values(), *done.values()] for at in series})
    total: dict[tuple[int, int, int], int] = {}
    for (channel_id, group_id, partition), series in done.items():
        head, gone = heads.get((channel_id, partition), {}), taken.get((channel_id, partition), {})
        reached: int | None = None
        start = end = 0
        for at in times:
            reached = series.get(at, reached)
            start, end = max(start, gone.get(at, 0)), max(end, head.get(at, 0))
            if reached is not None:
                key = (channel_id, group_id, at)
                total[key] = total.get(key, 0) + max(0, end - max(reached, start))
    names = ("channel_id", "group_id", "start_us", "lag")
    return [dict(zip(names, (*key, lag), strict=True)) for key, lag in sorted(total.items())]


def _highest(rows: Iterable[Row], time: str, value: str, width_us: int) -> dict[tuple[int, int], dict[int, int]]:
    found: dict[tuple[int, int], dict[int, int]] = {}
    for row in rows:
        series = found.setdefault((row["channel_id"], row["partition"]), {})
        at = row[time] // width_us * width_us
        series[at] = max(series.get(at, 0), row[value])
    return found


def _done(progress: Iterable[Row], width_us: int) -> dict[tuple[int, int, int], dict[int, int]]:
    """For each group and partition what was done at the end of each time, from where it is known on."""
    now: dict[tuple[int, int, int], int] = {}
    series: dict[tuple[int, int, int], dict[int, int]] = {}
    for row in progress:
        key = (row["channel_id"], row["group_id"], row["partition"])
        if row["reset"] is not None:
            now[key] = row["reset"] + row["done"]
        elif key in now:
            now[key] += row["done"]
        else:
            continue
        series.setdefault(key, {})[row["start_us"] // width_us * width_us] = now[key]
    return series


def opened(commits: Iterable[Row]) -> list[Row]:
    """What cumulative acks covered whose beginning stands in an earlier segment than they do.

    Rows of channel_id, group_id, partition, start, end, time_us; `commits` comes in the order of the log.
    """
    positions: dict[tuple[int, int, int], int] = {}
    found: list[Row] = []
    for row in commits:
        key = (row["channel_id"], row["group_id"], row["partition"])
        before, end = positions.get(key), row["first_offset"]
        if end is not None and before is not None and end > before:
            names = ("channel_id", "group_id", "partition", "start", "end", "time_us")
            found.append(dict(zip(names, (*key, before, end, row["first_us"]), strict=True)))
        positions[key] = row["last_offset"]
    return found
