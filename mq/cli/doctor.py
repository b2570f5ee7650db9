"""`mq doctor`: look at everything that can be wrong on this machine, and say what to do."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import click

from mq import __version__
from mq.cli import output as out
from mq.cli.option import output_option, server_option
from mq.config import Config, ConfigError
from mq.errors import MqError

OK, WARN, FAIL = "ok", "warn", "FAIL"
LITTLE_DISK = 1 << 30
SLOW_SYNC_SECONDS = 0.02
SYNCS = 20
CLOCKS_APART_SECONDS = 1.0


class Finding(NamedTuple):
    """One thing that was looked at."""

    check: str
    state: str
    found: str
    hint: str = ""


@click.command(short_help="check settings, ports, disk and broker")
@click.option("--data-dir", type=click.Path(path_type=Path), help="where the log is, or will be  [WAL_DIR_PATH]")
@server_option
@output_option
def doctor(data_dir: Path | None, server: str | None, output: str) -> None:
    """Check settings, versions, ports, disk space, fsync, permissions and the broker; say what to do.

    Exits with 1 where something has to be done before a broker can work here.

    \b
    Example:
      mq doctor --data-dir /var/lib/mq
    """
    config, findings = _settings(data_dir)
    directory = data_dir or Path(config.wal_dir)
    for check in (_versions, _clock, lambda: _directory(directory), lambda: _ports(config), lambda: _broker(server)):
        findings += check()
    rows = [finding._asdict() for finding in findings]
    out.show_rows(rows, ["check", "state", "found", "hint"], output)
    sys.exit(1 if any(finding.state == FAIL for finding in findings) else 0)


def _settings(data_dir: Path | None) -> tuple[Config, list[Finding]]:
    env_file = Path(".env") if Path(".env").is_file() else None
    try:
        config = Config.load({}, os.environ, env_file)
    except ConfigError as error:
        hint = "mq serve would refuse to start; .env.sample lists all settings"
        return Config(), [Finding("settings", FAIL, problem, hint) for problem in error.problems]
    notes = [Finding("settings", WARN, note) for note in config.notes]
    return config, notes or [Finding("settings", OK, f"from {env_file or 'the environment'}")]


def _versions() -> Iterator[Finding]:
    found = [f"mq {__version__}", f"Python {platform.python_version()}"]
    for name in ("protobuf", "grpcio", "google-crc32c", "uvloop"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            state = WARN if name == "uvloop" else FAIL
            yield Finding("versions", state, f"{name} is missing", "pip install mq-broker brings it")
    yield Finding("versions", OK, ", ".join(found))


def _clock() -> Iterator[Finding]:
    year = time.gmtime().tm_year
    if year < 2024:
        yield Finding("clock", FAIL, f"it is {year} here", "set the clock: times of messages come from it")
    else:
        yield Finding("clock", OK, time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()))


def _directory(directory: Path) -> Iterator[Finding]:
    place = directory
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        yield Finding("data directory", FAIL, f"{place} is no directory", "name another with WAL_DIR_PATH")
        return
    if not os.access(place, os.W_OK | os.X_OK):
        yield Finding("data directory", FAIL, f"{place} is not writable", "chown it to the user of the broker")
        return
    yield Finding("data directory", OK, str(directory) if directory.exists() else f"{directory} will be made")
    free = shutil.disk_usage(place).free
    hint = "" if free >= LITTLE_DISK else "the log keeps a reserve of one segment; give it more room"
    yield Finding("disk space", OK if free >= LITTLE_DISK else WARN, f"{out.size(free)} free", hint)
    seconds = _sync_seconds(place)
    hint = "" if seconds < SLOW_SYNC_SECONDS else "every answered publish waits for this; a local SSD does it in 1 ms"
    state = OK if seconds < SLOW_SYNC_SECONDS else WARN
    yield Finding("fsync", state, f"{seconds * 1e3:.2f} ms at the median of {SYNCS}", hint)


def _sync_seconds(directory: Path) -> float:
    """How long one small write takes to be durable there."""
    sync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)
    taken = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(SYNCS):
            begin = time.perf_counter()
            file.write(b"x" * 4096)
            file.flush()
            sync(file.fileno())
            taken.append(time.perf_counter() - begin)
    return sorted(taken)[SYNCS // 2]


def _ports(config: Config) -> Iterator[Finding]:
    wire = config.wire_port if config.wire_port >= 0 else config.port + 1
    for name, port in (("gRPC port", config.port), ("wire port", wire)):
        if not port:
            yield Finding(name, OK, "any free one" if name == "gRPC port" else "off")
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                yield Finding(name, OK, f"{port} is free")
            except OSError:
                hint = "fine where that is your broker; else name another with SERVER_PORT"
                yield Finding(name, WARN, f"{port} is in use", hint)


def _broker(server: str | None) -> Iterator[Finding]:
    from mq.cli.option import connect

    try:
        with connect(server, timeout=5.0) as client:
            begin = time.time()
            info = client.server_info()
            end = time.time()
    except MqError as error:
        yield Finding("broker", WARN, str(error), "start one with mq serve, or name it with MQ_SERVER")
        return
    same = info.version == __version__
    hint = "" if same else f"this command is {__version__}: bring both to one version"
    yield Finding("broker", OK if same else WARN, f"mq {info.version} serves {info.channels} channels", hint)
    if info.now_us:  # an older broker does not tell
        yield _clock_of_broker(info.now_us / 1e6, begin, end)


def _clock_of_broker(its: float, begin: float, end: float) -> Finding:
    """It answered somewhere between begin and end by this machine's clock; only what lies outside is a difference."""
    apart = max(begin - its, its - end, 0.0)
    if apart < CLOCKS_APART_SECONDS:
        return Finding("broker's clock", OK, "agrees with the one here")
    which = "behind" if its < begin else "ahead of"
    hint = "start a time service on both: delays, ages and times to seek to go by the broker's clock"
    return Finding("broker's clock", WARN, f"{apart:.1f} s {which} the one here", hint)
