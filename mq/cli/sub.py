"""`mq sub`: read a channel, or consume it as a member of a group."""

from __future__ import annotations

import json
import re
import signal
import sys
import time
from collections.abc import Callable, Generator
from contextlib import closing
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from mq.cli.option import DURATION, connect, server_option
from mq.client.batch import Batch

if TYPE_CHECKING:
    from mq.client.batch import Views
    from mq.client.client import Client
    from mq.client.message import View
    from mq.client.position import Start

Write = Callable[["Views[Any]"], bytes]
Pulls = Generator["Views[Any]", None, None]
TOKEN = re.compile(r"%([okvpctThd%])|\\(n|t|r|0|\\)")
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}


@click.command(short_help="read or consume messages")
@click.argument("channel")
@click.option("-g", "--group", help="consume as a member of this group; without it nothing is acked")
@click.option("--all", "from_start", is_flag=True, help="from the first message on (the default)")
@click.option("--new", is_flag=True, help="only what comes from now on")
@click.option("--last", type=click.IntRange(0), metavar="N", help="from N messages before the end")
@click.option("--since", type=DURATION, metavar="DURATION", help="from so long ago")
@click.option("--offset", type=click.IntRange(0), metavar="N", help="from this offset")
@click.option("-p", "--partition", type=click.IntRange(0), help="only this partition")
@click.option("-c", "--count", type=click.IntRange(1), metavar="N", help="end after so many messages")
@click.option("-e", "--exit-at-end", is_flag=True, help="end when there is nothing more")
@click.option("--batch", type=click.IntRange(1, 10_000), default=None, metavar="N", help="messages of one pull")
@click.option("--interval", type=DURATION, default=0, metavar="DURATION", help="time between pulls")
@click.option("--ack/--no-ack", default=True, help="with a group: ack what was written  [ack]")
@click.option("-f", "--format", "form", metavar="FORMAT", help=r"like '%o %k %v\n'; see above")
@click.option("-J", "--json", "as_json", is_flag=True, help="one JSON object a line")
@click.option("-r", "--raw", is_flag=True, help="bodies only, each with a newline: the fastest")
@server_option
def sub(
    channel: str,
    group: str | None,
    from_start: bool,
    new: bool,
    last: int | None,
    since: int | None,
    offset: int | None,
    partition: int | None,
    count: int | None,
    exit_at_end: bool,
    batch: int | None,
    interval: int,
    ack: bool,
    form: str | None,
    as_json: bool,
    raw: bool,
    server: str | None,
) -> None:
    """Write the messages of CHANNEL to stdout, and wait for more until Ctrl-C.

    In a FORMAT, %o is the offset, %k the key, %v the value, %p the partition, %c the channel, %t the time in
    milliseconds, %T the time as text, %h the headers, %d the delivery count.

    \b
    Examples:
      mq sub orders --last 10 -e
      mq sub orders -g billing --batch 100 --interval 1s
      mq sub orders --since 1h -e -J | jq .value
      mq sub orders -e --raw > orders.txt
    """
    if sum(map(bool, (form, as_json, raw))) > 1:
        raise click.UsageError("--format, --json and --raw exclude each other")
    if group and partition is not None:
        raise click.UsageError("--partition is for reading without a group, which gives its members what they get")
    start = _start(from_start, new, last, since, offset)
    write = _raw if raw else _lines(_json_line if as_json else _formatted(form or "%o\t%k\t%v\\n"))
    with connect(server) as client:
        if group:
            source: Pulls = _consumed(client, channel, group, start, batch or 500, interval, exit_at_end, count)
        else:
            source = _read(client, channel, start, partition, batch or 5_000, interval, exit_at_end)
        copy(source, write, count, sys.stdout.buffer, ack=bool(group) and ack)


def copy(source: Pulls, write: Write, count: int | None, target: BinaryIO, *, ack: bool = False) -> None:
    """Write batches until the count is reached. What is acked has been written."""
    left = sys.maxsize if count is None else count
    with closing(source):
        for pulled in source:
            found = pulled if len(pulled) <= left else type(pulled)(_cut(pulled.parts(), left))
            target.write(write(found))
            target.flush()
            if ack and isinstance(found, Batch):
                found.ack()
            left -= len(found)
            if left <= 0:
                return


def _cut(parts: Any, left: int) -> list[Any]:
    kept = []
    for delivery, start, end in parts:
        kept.append((delivery, start, min(end, start + left)))
        left -= end - start
        if left <= 0:
            break
    return kept


def _start(from_start: bool, new: bool, last: int | None, since: int | None, offset: int | None) -> Start:
    from mq.client.position import at_offset, at_time
    from mq.client.position import last as last_messages

    given = [each for each in (from_start or None, new or None, last, since, offset) if each is not None]
    if len(given) > 1:
        raise click.UsageError("--all, --new, --last, --since and --offset exclude each other")
    if new:
        return "latest"
    if last is not None:
        return last_messages(last)
    if since is not None:
        return at_time(time.time() - since / 1_000)
    return "earliest" if offset is None else at_offset(offset)


def _read(
    client: Client, channel: str, start: Start, partition: int | None, batch: int, interval: int, exit_at_end: bool
) -> Pulls:
    reader = client.read(
        channel,
        start,
        partition=partition,
        batch_size=batch,
        interval=interval / 1_000,
        follow=not exit_at_end,
    )
    _on_signals(reader.stop)
    with reader:
        yield from reader.batches()


def _consumed(
    client: Client,
    channel: str,
    group: str,
    start: Start,
    batch: int,
    interval: int,
    exit_at_end: bool,
    count: int | None,
) -> Pulls:
    size = min(batch, count) if count else batch
    with client.consumer(channel, group, start=start, batch_size=size, interval=interval / 1_000) as consumer:
        _on_signals(consumer.stop)
        if exit_at_end or count:
            left = count
            while found := consumer.fetch(min(size, left or size), timeout=0.0 if exit_at_end else 3600.0):
                yield found
                left = None if left is None else left - len(found)
                if interval:
                    time.sleep(interval / 1_000)
        else:
            yield from consumer.batches()


def _on_signals(stop: Callable[[], None]) -> None:
    """The first signal ends in good order, the second at once."""

    def first(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        stop()

    signal.signal(signal.SIGINT, first)
    signal.signal(signal.SIGTERM, first)


# ---------------------------------------------------------------- forms


def _raw(found: Views[Any]) -> bytes:
    return b"\n".join(found.contents()) + b"\n"


def _lines(write: Callable[[Any], bytes]) -> Write:
    return lambda found: b"".join([write(message) for message in found])


def _json_line(message: View) -> bytes:
    value, encoding = _text(message.content)
    fields: dict[str, Any] = {
        "channel": message.channel,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp.isoformat(),
        "key": None if message.key is None else _text(message.key)[0],
        "headers": message.headers,
        "value": value,
    }
    if encoding:
        fields["encoding"] = encoding
    if message.delivery_count:
        fields["delivery_count"] = message.delivery_count
    return json.dumps(fields, ensure_ascii=False, default=str).encode(errors="surrogateescape") + b"\n"


def _text(data: bytes) -> tuple[str, str]:
    """Text where it is text, else hexadecimal digits, and a word that says so."""
    try:
        return data.decode(), ""
    except UnicodeDecodeError:
        return data.hex(), "hex"


def _formatted(form: str) -> Callable[[Any], bytes]:
    pieces: list[str | bytes] = []
    place = 0
    for match in TOKEN.finditer(form):
        pieces.append(form[place : match.start()].encode())
        place = match.end()
        token = match[1]
        pieces.append(b"%" if token == "%" else token or ESCAPES[match[2]].encode())  # noqa: S105
    pieces.append(form[place:].encode())

    def write(message: View) -> bytes:
        return b"".join([_field(message, piece) if isinstance(piece, str) else piece for piece in pieces])

    return write


def _field(message: View, token: str) -> bytes:
    if token == "v":  # noqa: S105
        return message.content
    if token == "k":  # noqa: S105
        return message.key or b""
    if token == "h":  # noqa: S105
        return ",".join(f"{name}={value}" for name, value in message.headers.items()).encode(errors="surrogateescape")
    if token == "T":  # noqa: S105
        return message.timestamp.isoformat().encode()
    found = {
        "o": message.offset,
        "p": message.partition,
        "c": message.channel,
        "t": round(message.timestamp.timestamp() * 1_000),
        "d": message.delivery_count,
    }[token]
    return str(found).encode()
