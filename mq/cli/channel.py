"""`mq channel`: list, make, change, empty and browse channels."""

from __future__ import annotations

import sys

import click

from mq.cli import output as out
from mq.cli.failure import say
from mq.cli.option import DURATION, SIZE, F, confirm, connect, force_option, output_option, server_option
from mq.cli.sub import _formatted, _json_line, _lines, copy
from mq.pb import mq_pb2 as pb
from mq.units import format_duration

COLUMNS = ["channel", "partitions", "messages", "size", "groups", "kept"]


@click.group(short_help="list, make, change and browse channels")
def channel() -> None:
    """List, make, change and browse channels."""


def settings_options(command: F) -> F:
    for option in (
        click.option("--max-age", type=DURATION, metavar="DURATION", help="drop messages older than this; 0: never"),
        click.option("--max-bytes", type=SIZE, metavar="SIZE", help="drop the oldest beyond this; 0: never"),
        click.option("--max-messages", type=click.IntRange(0), metavar="N", help="drop the oldest beyond so many"),
        click.option("--ttl", type=DURATION, metavar="DURATION", help="messages are delivered only within this time"),
        click.option(
            "--latest-per-key/--keep-all",
            default=None,
            help="compaction may drop what a later message of its key replaced",
        ),
        click.option("--tombstone-grace", type=DURATION, metavar="DURATION", help="how long empty ones stay  [1d]"),
    ):
        command = option(command)
    return command


@channel.command("ls", short_help="list channels")
@click.argument("prefix", default="")
@server_option
@output_option
def list_(prefix: str, server: str | None, output: str) -> None:
    """List the channels, or those that begin with PREFIX.

    \b
    Example:
      mq channel ls -o json | jq '.[].channel'
    """
    with connect(server) as client:
        found = client.list_channels(prefix)
    out.show_rows([_row(each) for each in found], COLUMNS, output, map(out.as_dict, found))


@channel.command(short_help="make a channel")
@click.argument("name")
@click.option("-p", "--partitions", type=click.IntRange(1), default=1, show_default=True, help="how many partitions")
@click.option("--exist-ok", is_flag=True, help="it is fine where it is there already")
@settings_options
@server_option
def add(
    name: str,
    partitions: int,
    exist_ok: bool,
    max_age: int | None,
    max_bytes: int | None,
    max_messages: int | None,
    ttl: int | None,
    latest_per_key: bool | None,
    tombstone_grace: int | None,
    server: str | None,
) -> None:
    """Make the channel NAME.

    \b
    Example:
      mq channel add orders --partitions 8 --max-age 7d
    """
    with connect(server) as client:
        made = client.create_channel(
            name,
            partitions=partitions,
            exist_ok=exist_ok,
            max_age_ms=max_age,
            max_bytes=max_bytes,
            max_messages=max_messages,
            ttl_ms=ttl,
            latest_per_key=latest_per_key,
            tombstone_grace_ms=tombstone_grace,
        )
    say(f"channel {name} {'is made' if made else 'was there already'}")


@channel.command(short_help="describe a channel")
@click.argument("name")
@server_option
@output_option
def info(name: str, server: str | None, output: str) -> None:
    """Tell what the channel NAME holds and how it is set."""
    with connect(server) as client:
        found = client.describe_channel(name)
    if output != "table":
        out.show_one({}, output, out.as_dict(found))
        return
    out.show_one({**_row(found), "created": out.when(found.created_us), "scheduled": found.scheduled}, output)
    click.echo()
    columns = ["partition", "start offset", "next offset", "size", "damaged"]
    rows = []
    for each in found.partitions:
        lost = ", ".join(f"{gap.start}-{gap.end - 1}" for gap in each.damaged)
        values = (each.partition, each.start_offset, each.next_offset, out.size(each.bytes), lost)
        rows.append(dict(zip(columns, values, strict=True)))
    out.show_table(rows, columns)


@channel.command(short_help="change a channel's settings")
@click.argument("name")
@click.option("-p", "--partitions", type=click.IntRange(1), help="more partitions; never fewer")
@settings_options
@server_option
@output_option
def edit(
    name: str,
    partitions: int | None,
    max_age: int | None,
    max_bytes: int | None,
    max_messages: int | None,
    ttl: int | None,
    latest_per_key: bool | None,
    tombstone_grace: int | None,
    server: str | None,
    output: str,
) -> None:
    """Change what is given of the channel NAME; the rest stays.

    \b
    Example:
      mq channel edit orders --max-age 30d
    """
    with connect(server) as client:
        found = client.update_channel(
            name,
            partitions=partitions or 0,
            max_age_ms=max_age,
            max_bytes=max_bytes,
            max_messages=max_messages,
            ttl_ms=ttl,
            latest_per_key=latest_per_key,
            tombstone_grace_ms=tombstone_grace,
        )
    out.show_one(_row(found), output, out.as_dict(found) if output != "table" else None)


@channel.command(short_help="delete a channel")
@click.argument("name")
@force_option
@server_option
def rm(name: str, force: bool, server: str | None) -> None:
    """Delete the channel NAME with its messages and groups."""
    with connect(server) as client:
        found = client.describe_channel(name)
        confirm(f"delete {name} with {found.messages:,} messages and {found.groups} groups?", force)
        client.delete_channel(name)
    say(f"channel {name} is deleted")


@channel.command(short_help="drop a channel's messages")
@click.argument("name")
@click.option("--before", type=click.IntRange(0), default=0, metavar="OFFSET", help="only those before this offset")
@click.option("-p", "--partition", type=click.IntRange(0), help="only of this partition")
@force_option
@server_option
def purge(name: str, before: int, partition: int | None, force: bool, server: str | None) -> None:
    """Drop the messages of the channel NAME; the channel and its groups stay."""
    with connect(server) as client:
        found = client.describe_channel(name)
        confirm(f"drop {'messages' if before else f'all {found.messages:,} messages'} of {name}?", force)
        purged = client.purge_channel(name, before_offset=before, partition=partition)
    say(f"{purged:,} messages of {name} are dropped")


@channel.command(short_help="show a channel's last messages")
@click.argument("name")
@click.option("-n", "--last", type=click.IntRange(1), default=10, show_default=True, help="so many, of each partition")
@click.option("-J", "--json", "as_json", is_flag=True, help="one JSON object a line")
@server_option
def view(name: str, last: int, as_json: bool, server: str | None) -> None:
    """Show the last messages of the channel NAME, and change nothing."""
    from mq.client.position import last as last_messages

    write = _lines(_json_line if as_json else _formatted("%p/%o  %T  %k  %v\\n"))
    with connect(server) as client:
        copy(client.read(name, last_messages(last), follow=False).batches(), write, None, sys.stdout.buffer)


def _row(found: pb.ChannelInfo) -> dict[str, object]:
    settings = found.settings
    kept = []
    if settings.max_age_ms:
        kept.append(format_duration(settings.max_age_ms))
    if settings.max_bytes:
        kept.append(out.size(settings.max_bytes))
    if settings.max_messages:
        kept.append(f"{settings.max_messages:,} messages")
    if settings.keep == pb.ChannelSettings.KEEP_LATEST_PER_KEY:
        kept.append("latest per key")
    return {
        "channel": found.channel,
        "partitions": len(found.partitions),
        "messages": out.count(found.messages),
        "size": out.size(found.bytes),
        "groups": found.groups,
        "kept": ", ".join(kept) or "all",
    }
