"""`mq dlq`: look at dead letters, send them back, or drop them."""

from __future__ import annotations

import sys

import click

from mq.cli import output as out
from mq.cli.failure import say
from mq.cli.option import DURATION, RATE, confirm, connect, force_option, output_option, server_option
from mq.cli.sub import _formatted, _json_line, _lines, copy

SUFFIX = ".dlq"


@click.group(short_help="look after dead-letter channels")
def dlq() -> None:
    """Dead letters are messages that no consumer got through: see them, send them back, drop them."""


@dlq.command("ls", short_help="list dead-letter channels")
@server_option
@output_option
def list_(server: str | None, output: str) -> None:
    """List the channels that have, or had, dead letters."""
    with connect(server) as client:
        found = [each for each in client.list_channels() if each.channel.endswith(SUFFIX)]
    rows = [{"channel": each.channel.removesuffix(SUFFIX), "dead letters": out.count(each.messages)} for each in found]
    out.show_rows(rows, ["channel", "dead letters"], output, map(out.as_dict, found))


@dlq.command(short_help="show dead letters")
@click.argument("channel")
@click.option("-n", "--last", type=click.IntRange(1), default=10, show_default=True, help="so many")
@click.option("-J", "--json", "as_json", is_flag=True, help="one JSON object a line")
@server_option
def view(channel: str, last: int, as_json: bool, server: str | None) -> None:
    """Show the last dead letters of CHANNEL, with what became of them in their headers."""
    from mq.client.position import last as last_messages

    write = _lines(_json_line if as_json else _formatted("%o  %T  %k  %v\n    %h\n"))
    with connect(server) as client:
        copy(client.read(channel + SUFFIX, last_messages(last), follow=False).batches(), write, None, sys.stdout.buffer)


@dlq.command(short_help="send dead letters back")
@click.argument("channel")
@click.option("--rate", type=RATE, metavar="N/s", help="at most so many a second")
@click.option("--to", default="", metavar="CHANNEL", help="to this channel, not where each came from")
@click.option("--reason", default="", help="only those that died of this")
@click.option("--min-age", type=DURATION, default=0, help="only those that died at least so long ago")
@click.option("--max-age", type=DURATION, default=0, help="only those that died at most so long ago")
@server_option
def redrive(
    channel: str, rate: float | None, to: str, reason: str, min_age: int, max_age: int, server: str | None
) -> None:
    """Publish the dead letters of CHANNEL again where they came from, each once.

    \b
    Example:
      mq dlq redrive orders --rate 100/s
    """
    with connect(server) as client:
        found = client.redrive_all(
            channel, to=to, reason=reason, min_age_ms=min_age, max_age_ms=max_age, rate=rate or 0.0
        )
    say(f"{found.moved:,} dead letters are sent back" + (f", {found.left:,} stay" if found.left else ""))


@dlq.command(short_help="drop dead letters")
@click.argument("channel")
@force_option
@server_option
def purge(channel: str, force: bool, server: str | None) -> None:
    """Drop the dead letters of CHANNEL for good."""
    with connect(server) as client:
        found = client.describe_channel(channel + SUFFIX)
        confirm(f"drop all {found.messages:,} dead letters of {channel}?", force)
        purged = client.purge_channel(channel + SUFFIX)
    say(f"{purged:,} dead letters of {channel} are dropped")
