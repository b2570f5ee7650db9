"""`mq server`: ask a broker how it is."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import click

from mq.cli import output as out
from mq.cli.failure import say
from mq.cli.option import connect, output_option, server_option
from mq.config import Config, ConfigError

# a server listens on all addresses by these; a client needs one
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1", "[::]": "::1"}  # noqa: S104


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
@click.option("--local", is_flag=True, help="the broker that the settings of this environment start here")
@server_option
def check(timeout: float, local: bool, server: str | None) -> None:
    """Exit with 0 where a broker answers, with 6 where none is, with 7 where it is there and does not answer.

    \b
    Examples:
      mq server check --server mq://db1 || alert
      SERVER_PORT=7000 mq server check --local
    """
    if local and server:
        raise click.UsageError("--local says which broker: leave out --server")
    if local:
        server = _local_address()
    begin = time.perf_counter()
    with connect(server, timeout) as client:
        found = client.server_info()
    say(f"it serves: mq {found.version}, answered in {(time.perf_counter() - begin) * 1e3:.0f} ms")
    sys.exit(0)


def _local_address() -> str:
    """Where `mq serve` listens by the same environment and .env; a container's health check knows no more than that."""
    env_file = Path(".env")
    try:
        config = Config.load(environment=os.environ, env_file=env_file if env_file.is_file() else None)
    except ConfigError as error:
        raise click.UsageError("; ".join(error.problems)) from None
    host = LOOPBACK.get(config.host, config.host)
    if host.count(":") > 1 and not host.startswith("["):
        host = f"[{host}]"
    if config.wire_port == 0:
        return f"grpc://{host}:{config.port}"
    return f"mq://{host}:{config.wire_port if config.wire_port > 0 else config.port + 1}"
