"""`mq group`: list, make, inspect and move groups."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from mq.cli import output as out
from mq.cli.failure import say
from mq.cli.option import DURATION, TIME, confirm, connect, force_option, output_option, server_option
from mq.pb import mq_pb2 as pb
from mq.units import format_duration

if TYPE_CHECKING:
    from mq.client.position import Start

COLUMNS = ["channel", "group", "mode", "lag", "oldest", "pending", "members"]


@click.group(short_help="list, make, inspect and move groups")
def group() -> None:
    """List, make, inspect and move groups."""


@group.command("ls", short_help="list groups")
@click.argument("channel", default="")
@server_option
@output_option
def list_(channel: str, server: str | None, output: str) -> None:
    """List all groups, or those of CHANNEL."""
    with connect(server) as client:
        found = client.list_groups(channel)
    out.show_rows([_row(each) for each in found], COLUMNS, output, map(out.as_dict, found))


@group.command(short_help="describe a group")
@click.argument("channel")
@click.argument("name")
@server_option
@output_option
def info(channel: str, name: str, server: str | None, output: str) -> None:
    """Tell where the group NAME of CHANNEL is, who its members are and how it is set."""
    with connect(server) as client:
        found = client.describe_group(channel, name)
    if output != "table":
        out.show_one({}, output, out.as_dict(found))
        return
    settings = found.settings
    backoff = ", ".join(format_duration(each) for each in settings.backoff_ms)
    more = {
        "skipped": found.skipped,
        "ack wait": format_duration(settings.ack_wait_ms),
        "max deliver": settings.max_deliver,
        "backoff": backoff,
        "session timeout": format_duration(settings.session_timeout_ms),
    }
    out.show_one({**_row(found), **more}, output)
    click.echo()
    columns = ["partition", "offset", "next offset", "lag", "owner"]
    values = [(each.partition, each.offset, each.next_offset, each.lag, each.owner) for each in found.positions]
    out.show_table([dict(zip(columns, each, strict=True)) for each in values], columns)
    if found.members:
        click.echo()
        columns = ["member", "seen", "leased"]
        members = [(each.member, out.when(each.seen_us), each.leased) for each in found.members]
        out.show_table([dict(zip(columns, each, strict=True)) for each in members], columns)


@group.command(short_help="make a group")
@click.argument("channel")
@click.argument("name")
@click.option("--ordered", is_flag=True, help="each partition has one member at a time")
@click.option("--new", is_flag=True, help="begin after everything published so far")
@click.option("--ack-wait", type=DURATION, default=0, metavar="DURATION", help="then a message goes out again")
@click.option("--max-deliver", type=click.IntRange(0), default=0, metavar="N", help="then it is a dead letter")
@click.option("--backoff", type=DURATION, multiple=True, metavar="DURATION", help="before the next delivery; again")
@click.option("--max-pending", type=click.IntRange(0), default=0, metavar="N", help="out or waiting at the same time")
@click.option("--expire-after", type=DURATION, default=0, metavar="DURATION", help="without a member for so long")
@server_option
def add(
    channel: str,
    name: str,
    ordered: bool,
    new: bool,
    ack_wait: int,
    max_deliver: int,
    backoff: tuple[int, ...],
    max_pending: int,
    expire_after: int,
    server: str | None,
) -> None:
    """Make the group NAME of CHANNEL.

    \b
    Example:
      mq group add orders billing --ack-wait 1m --max-deliver 10 --backoff 1s --backoff 1m
    """
    with connect(server) as client:
        client.create_group(
            channel,
            name,
            start="latest" if new else "earliest",
            ordered=ordered,
            ack_wait_ms=ack_wait,
            max_deliver=max_deliver,
            backoff_ms=backoff,
            max_pending=max_pending,
            expire_after_ms=expire_after,
        )
    say(f"group {name} of {channel} is made")


@group.command(short_help="delete a group")
@click.argument("channel")
@click.argument("name")
@force_option
@server_option
def rm(channel: str, name: str, force: bool, server: str | None) -> None:
    """Delete the group NAME of CHANNEL, and its position."""
    with connect(server) as client:
        found = client.describe_group(channel, name)
        confirm(f"delete group {name} of {channel}, {found.lag:,} messages behind?", force)
        client.delete_group(channel, name)
    say(f"group {name} of {channel} is deleted")


@group.command(short_help="show who holds what")
@click.argument("channel")
@click.argument("name")
@server_option
@output_option
def pending(channel: str, name: str, server: str | None, output: str) -> None:
    """Show the messages that are out with members of NAME, or wait for their next delivery."""
    with connect(server) as client:
        found = client.describe_group(channel, name, pending=True).pending_ranges
    columns = ["partition", "first", "last", "member", "deliveries", "until"]
    rows = [
        dict(
            zip(
                columns,
                (
                    each.partition,
                    each.start,
                    each.end - 1,
                    each.member or "(waits)",
                    each.delivery_count,
                    out.when(each.until_us),
                ),
                strict=True,
            )
        )
        for each in found
    ]
    out.show_rows(rows, columns, output, map(out.as_dict, found))


@group.command(short_help="move a group")
@click.argument("channel")
@click.argument("name")
@click.option("--to-earliest", is_flag=True, help="to the first message")
@click.option("--to-latest", is_flag=True, help="after the last message")
@click.option("--to-offset", type=click.IntRange(0), metavar="N", help="to this offset")
@click.option("--to-datetime", type=TIME, metavar="TIME", help="to the first message not older than this")
@click.option("--shift-by", type=int, metavar="N", help="so many messages forward, or back if negative")
@click.option("-p", "--partition", type=click.IntRange(0), help="only of this partition")
@click.option("--execute", is_flag=True, help="do it; without this, only show what would be")
@click.option("--force", is_flag=True, help="also while ordered members are live")
@server_option
@output_option
def reset(
    channel: str,
    name: str,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: datetime | None,
    shift_by: int | None,
    partition: int | None,
    execute: bool,
    force: bool,
    server: str | None,
    output: str,
) -> None:
    """Move the group NAME of CHANNEL. Shows the new positions; --execute takes them.

    \b
    Examples:
      mq group reset orders billing --to-earliest
      mq group reset orders billing --shift-by -100 --execute
    """
    start = _start(to_earliest, to_latest, to_offset, to_datetime)
    if (start is None) == (shift_by is None):
        raise click.UsageError("say where to, once: --to-earliest, --to-latest, --to-offset, --to-datetime, --shift-by")
    with connect(server) as client:
        found = client.seek_group(
            channel, name, start, shift=shift_by, partition=partition, force=force, dry_run=not execute
        )
    columns = ["partition", "before", "after"]
    rows = [
        {"partition": after.partition, "before": before.offset, "after": after.offset}
        for before, after in zip(found.before, found.positions, strict=True)
    ]
    out.show_rows(rows, columns, output)
    say(f"group {name} of {channel} is moved" if execute else "nothing was changed: --execute does it")


def _start(earliest: bool, latest: bool, offset: int | None, when: datetime | None) -> Start | None:
    from mq.client.position import at_offset, at_time

    if sum((earliest, latest, offset is not None, when is not None)) > 1:
        raise click.UsageError("one goal is enough")
    if offset is not None:
        return at_offset(offset)
    if when is not None:
        return at_time(when)
    return "earliest" if earliest else "latest" if latest else None


def _row(found: pb.GroupInfo) -> dict[str, object]:
    return {
        "channel": found.channel,
        "group": found.group,
        "mode": pb.GroupSettings.Mode.Name(found.settings.mode).lower(),
        "lag": out.count(found.lag),
        "oldest": format_duration(found.lag_us // 1_000) if found.lag_us >= 1_000 else "",
        "pending": out.count(found.pending),
        "members": len(found.members),
    }
