"""`mq server`: ask a broker how it is."""

from __future__ import annotations

import sys
import time

import click

from mq.cli import output as out
from mq.cli.failure import say
from mq.cli.option import connect, output_option, server_option


@click.group(short_help="ask a broker how it is")
def server() -> None:
    """Ask a broker how it is."""


@server.command(short_help="version, sizes, health")
@server_option
@output_option
def info(server: str | None, output: str) -> None:
    """Tell a broker's version, what it holds and how its disk does."""
    with connect(server) as client:
        found = client.server_info()
    fields = {
        "version": found.version,
        "started": out.when(found.started_us),
        "storage": found.storage_mode,
        "channels": found.channels,
        "groups": found.groups,
        "messages": out.count(found.messages),
        "log": f"{out.size(found.log_bytes)} in {found.log_segments} segments",
        "buffers": out.size(found.buffered_bytes),
        "free disk": out.size(found.free_bytes),
        "mean fsync": f"{found.fsync_mean_seconds * 1e3:.2f} ms",
        "not synced": found.last_sequence - found.synced_sequence,
        "log id": found.log_uuid,
    }
    out.show_one(fields, output, out.as_dict(found) if output != "table" else None)


@server.command(short_help="exit 0 where it serves")
@click.option("--timeout", type=float, default=5.0, show_default=True, metavar="SECONDS", help="how long to try")
@server_option
def check(timeout: float, server: str | None) -> None:
    """Exit with 0 where a broker answers, with 6 where it does not. For health checks.

    \b
    Example:
      mq server check --server mq://db1 || alert
    """
    begin = time.perf_counter()
    with connect(server, timeout) as client:
        found = client.server_info()
    say(f"it serves: mq {found.version}, answered in {(time.perf_counter() - begin) * 1e3:.0f} ms")
    sys.exit(0)
