"""`mq top`: a live table of channels and groups."""

from __future__ import annotations

import time
from typing import Any

import click

from mq.cli import output as out
from mq.cli.option import connect, server_option
from mq.pb import mq_pb2 as pb

CHANNELS = ["channel", "messages", "size", "in/s", "groups"]
GROUPS = ["channel", "group", "lag", "acked/s", "pending", "members"]


@click.command(short_help="watch channels and groups")
@click.option("--interval", type=float, default=1.0, show_default=True, metavar="SECONDS", help="between two looks")
@click.option("-n", "--count", type=click.IntRange(1), metavar="N", help="end after so many looks")
@server_option
def top(interval: float, count: int | None, server: str | None) -> None:
    """Watch channels and groups: sizes, rates, lag. The busiest first; Ctrl-C ends it.

    \b
    Example:
      mq top --interval 5
    """
    with connect(server) as client:
        before = _Look(client.list_channels(), client.list_groups())
        if not out.is_terminal():
            for _ in range(count or 1):
                time.sleep(interval)
                before = _show_plain(before, _Look(client.list_channels(), client.list_groups()))
            return
        from rich.live import Live

        with Live(screen=True, auto_refresh=False) as live:
            looks = 0
            try:
                while count is None or looks < count:
                    time.sleep(interval)
                    now = _Look(client.list_channels(), client.list_groups())
                    live.update(_panel(before, now), refresh=True)
                    before = now
                    looks += 1
            except KeyboardInterrupt:
                return


class _Look:
    """What was there at one moment."""

    def __init__(self, channels: list[pb.ChannelInfo], groups: list[pb.GroupInfo]) -> None:
        self.at = time.monotonic()
        self.channels = channels
        self.groups = groups
        self.ends = {each.channel: sum(part.next_offset for part in each.partitions) for each in channels}
        self.acked = {(each.channel, each.group): self.ends.get(each.channel, 0) - each.lag for each in groups}


def rows_between(before: _Look, now: _Look) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """The two tables, the busiest first."""
    seconds = max(1e-9, now.at - before.at)
    rates = {name: (end - before.ends.get(name, end)) / seconds for name, end in now.ends.items()}
    acks = {name: (done - before.acked.get(name, done)) / seconds for name, done in now.acked.items()}
    channels = sorted(now.channels, key=lambda each: (-rates[each.channel], each.channel))
    groups = sorted(now.groups, key=lambda each: (-each.lag, each.channel, each.group))
    return [
        {
            "channel": each.channel,
            "messages": out.count(each.messages),
            "size": out.size(each.bytes),
            "in/s": out.count(rates[each.channel]),
            "groups": each.groups,
        }
        for each in channels
    ], [
        {
            "channel": each.channel,
            "group": each.group,
            "lag": out.count(each.lag),
            "acked/s": out.count(max(0.0, acks[each.channel, each.group])),
            "pending": out.count(each.pending),
            "members": len(each.members),
        }
        for each in groups
    ]


def _show_plain(before: _Look, now: _Look) -> _Look:
    channels, groups = rows_between(before, now)
    out.show_table(channels, CHANNELS)
    click.echo()
    out.show_table(groups, GROUPS)
    return now


def _panel(before: _Look, now: _Look) -> Any:
    from rich.console import Group

    tables = []
    for rows, columns in zip(rows_between(before, now), (CHANNELS, GROUPS), strict=True):
        lines = [[str(row[column]) for column in columns] for row in rows[:30]]
        tables.append(out.rich_table(columns, lines, [column not in ("channel", "group") for column in columns]))
    return Group(*tables)
