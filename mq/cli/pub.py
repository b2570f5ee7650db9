"""`mq pub`: publish messages, one or a file full of them."""

from __future__ import annotations

import os
import signal
import stat
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from mq.cli.failure import say
from mq.cli.option import DURATION, RATE, TIME, connect, output_option, server_option
from mq.cli.progress import Advance, progress

if TYPE_CHECKING:
    from mq.client.client import Client

PIECE_BYTES = 4 << 20
TELL_EVERY = 1_024  # messages between two updates of the progress bar


@click.command(short_help="publish messages")
@click.argument("channel")
@click.argument("body", required=False)
@click.option("-k", "--key", help="key of the messages: those of one key stay in order")
@click.option("-H", "--header", "headers", multiple=True, metavar="NAME:VALUE", help="header; may be given again")
@click.option("--count", type=click.IntRange(1), default=1, help="publish the body so many times")
@click.option("--rate", type=RATE, metavar="N/s", help="at most so many a second")
@click.option("--delay", type=DURATION, default=0, metavar="DURATION", help="deliver only after this time")
@click.option("--at", type=TIME, metavar="TIME", help="deliver only at this time")
@click.option("--ttl", type=DURATION, default=0, metavar="DURATION", help="deliver only within this time")
@click.option(
    "--send-on",
    type=click.Choice(["newline", "eof"]),
    default="newline",
    show_default=True,
    help="what ends a message on stdin",
)
@click.option("-l", "--lines", type=click.File("rb"), metavar="FILE", help="publish each line of a file; - is stdin")
@click.option("--durability", type=click.Choice(["fsync", "os"]), help="what to wait for; default: the server's")
@click.option("--create", is_flag=True, help="make the channel where there is none")
@server_option
@output_option
def pub(
    channel: str,
    body: str | None,
    key: str | None,
    headers: tuple[str, ...],
    count: int,
    rate: float | None,
    delay: int,
    at: datetime | None,
    ttl: int,
    send_on: str,
    lines: BinaryIO | None,
    durability: str | None,
    create: bool,
    server: str | None,
    output: str,
) -> None:
    """Publish BODY to CHANNEL, or what comes on stdin. Returns when everything is durable.

    \b
    Examples:
      mq pub orders '{"item": 7}' -k customer-42 -H source:web
      mq pub orders -l messages.txt
      tail -f app.log | mq pub logs
      mq pub reminders 'wake up' --delay 1h30m
    """
    if body is not None and lines is not None:
        raise click.UsageError("BODY and --lines exclude each other")
    if delay and at:
        raise click.UsageError("--delay and --at exclude each other")
    if (delay or at) and (lines is not None or count != 1):
        raise click.UsageError("--delay and --at are for one message: not with --lines or --count")
    with connect(server) as client:
        if create:
            client.create_channel(channel, exist_ok=True)
        how: dict[str, Any] = {"key": key, "headers": _headers(headers)}
        if delay or at:
            content = sys.stdin.buffer.read() if body is None else body.encode()
            found = client.publish(
                channel, content, delay_ms=delay, deliver_at=at, ttl_ms=ttl, durability=durability, **how
            )
            _tell(channel, 1, output, {"schedule_id": found.schedule_id})
            return
        if body is not None and count == 1:
            found = client.publish(channel, body.encode(), ttl_ms=ttl, durability=durability, **how)
            _tell(channel, 1, output, {"partition": found.partition, "offset": found.offset})
            return
        with progress(f"publishing to {channel}") as advance:
            if body is not None:
                messages = _repeated(body.encode(), count, advance)
            else:
                messages = _stdin(send_on, lines, advance)
            # whole files leave in large pieces: a line at a time would be paced by this loop
            is_plain = lines is not None and not any(how.values()) and not rate
            pieces = _pieces(lines, advance) if lines is not None and is_plain else None
            total = _stream(client, channel, pieces, messages, how, rate, ttl, durability)
        _tell(channel, total, output, {})


def _stream(
    client: Client,
    channel: str,
    pieces: Iterator[list[bytes]] | None,
    messages: Iterator[bytes],
    how: dict[str, Any],
    rate: float | None,
    ttl: int,
    durability: str | None,
) -> int:
    """Publish until the source ends or Ctrl-C comes; what was taken from it is durable then."""
    total = 0
    is_over = False

    def stop(*_: object) -> None:
        nonlocal is_over
        if is_over:
            sys.exit(1)
        is_over = True
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    with client.producer(channel, ttl_ms=ttl, durability=durability) as producer:
        try:
            if pieces is not None:
                for piece in pieces:
                    total += producer.send_many(piece)
            else:
                begin = time.monotonic()
                for message in messages:
                    producer.send(message, **how)
                    total += 1
                    if rate and (ahead := begin + total / rate - time.monotonic()) > 0:
                        time.sleep(ahead)
        except KeyboardInterrupt:
            say(f"stopped after {total:,} messages")
    return total


def _repeated(body: bytes, count: int, advance: Advance) -> Iterator[bytes]:
    for number in range(count):
        if not number % TELL_EVERY:
            advance(number, count)
        yield body


def _stdin(send_on: str, lines: BinaryIO | None, advance: Advance) -> Iterator[bytes]:
    source = lines or sys.stdin.buffer
    if send_on == "eof" and lines is None:
        yield source.read()
        return
    done, total = 0, _size(source)
    for number, line in enumerate(source):
        if not number % TELL_EVERY:
            advance(done, total)
        done += len(line)
        yield line.rstrip(b"\r\n")


def _pieces(source: BinaryIO, advance: Advance) -> Iterator[list[bytes]]:
    """The lines of a file, many at a time."""
    rest = b""
    done, total = 0, _size(source)
    while piece := source.read(PIECE_BYTES):
        found = (rest + piece).split(b"\n")
        rest = found.pop()
        yield [line[:-1] if line.endswith(b"\r") else line for line in found] if b"\r" in piece else found
        done += len(piece)
        advance(done, total)
    if rest:
        yield [rest]


def _size(source: BinaryIO) -> int:
    """Of a plain file; 0 for a pipe, which ends when it ends."""
    try:
        status = os.fstat(source.fileno())
    except OSError:  # nothing of the operating system's
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _headers(pairs: tuple[str, ...]) -> dict[str, str]:
    headers = {}
    for pair in pairs:
        name, separator, value = pair.partition(":")
        if not separator or not name:
            raise click.UsageError(f"--header is NAME:VALUE, not {pair!r}")
        headers[name.strip()] = value.strip()
    return headers


def _tell(channel: str, total: int, output: str, more: dict[str, int]) -> None:
    if output != "table":
        from mq.cli.output import show_json, show_line

        (show_json if output == "json" else show_line)({"channel": channel, "messages": total, **more})
        return
    where = "".join(f", {name.replace('_', ' ')} {number}" for name, number in more.items())
    say(f"published {total:,} message{'s' if total != 1 else ''} to {channel}{where}")
