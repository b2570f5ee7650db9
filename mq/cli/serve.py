"""`mq serve`: start the broker."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import click

from mq.config import Config, ConfigError
from mq.doors.listening import wire_sockets


@click.command(short_help="start the broker")
@click.option("--addr", metavar="HOST:PORT", help="where to listen, in one piece")
@click.option("--host", help="address to listen on  [SERVER_HOST]")
@click.option("--port", help="port to listen on; 0 takes a free one  [SERVER_PORT]")
@click.option("--wire-port", help="port of the wire; 0 turns it off  [SERVER_WIRE_PORT]")
@click.option("--data-dir", help="where the log is kept  [WAL_DIR_PATH]")
@click.option("--env-file", type=click.Path(path_type=Path), help="settings file; default .env, if there is one")
@click.option("--check-config", is_flag=True, help="print the settings and exit")
def serve(
    addr: str | None,
    host: str | None,
    port: str | None,
    wire_port: str | None,
    data_dir: str | None,
    env_file: Path | None,
    check_config: bool,
) -> None:
    """Start the broker and serve until SIGTERM or Ctrl-C.

    Settings come from flags, then the environment, then .env; .env.sample lists them all.
    """
    if addr:
        if host or port:
            raise click.UsageError("--addr says it all: leave out --host and --port")
        host, _, port = addr.rpartition(":")
        if not host or not port:
            raise click.UsageError("--addr is HOST:PORT")
    given = {"SERVER_HOST": host, "SERVER_PORT": port, "SERVER_WIRE_PORT": wire_port, "WAL_DIR_PATH": data_dir}
    flags = {name: value for name, value in given.items() if value is not None}
    if env_file is None and Path(".env").is_file():
        env_file = Path(".env")
    try:
        config = Config.load(flags, os.environ, env_file)
    except ConfigError as error:
        for problem in error.problems:
            click.echo(f"mq: {problem}", err=True)
        sys.exit(2)
    if check_config:
        _print_config(config)
        return
    try:
        sockets = wire_sockets(config)  # before the broker is imported, which is half of a usual start
    except OSError as error:
        click.echo(f"mq: {error}", err=True)
        sys.exit(1)
    # gRPC's own lines would stand beside ours on stderr; what they say, errors here say in our words.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    gc.disable()  # until it serves: next to nothing of what is imported and recovered is garbage
    from mq.server import run

    sys.exit(run(config, sockets))


def _print_config(config: Config) -> None:
    for note in config.notes:
        click.echo(f"mq: {note}", err=True)
    for name, value in config.variables().items():
        click.echo(f"{name}={value}")
