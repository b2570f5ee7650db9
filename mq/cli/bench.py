"""`mq bench`: how fast is this broker, from this machine. Clients are processes, so that Python is not the limit."""

from __future__ import annotations

import json
import os
import platform
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any, TypeVar

import click

from mq.cli import output as out
from mq.cli.failure import say
from mq.cli.option import DURATION, RATE, SIZE, connect, server_option

F = TypeVar("F", bound=Callable[..., Any])
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9}


@click.group(short_help="measure a broker")
def bench() -> None:
    """Measure a broker: publishing, consuming, end to end, round trips. Makes a channel and removes it."""


def common(command: F) -> F:
    for option in (
        click.option("--clients", type=click.IntRange(1), default=1, show_default=True, help="processes"),
        click.option("--msgs", type=click.IntRange(1), default=None, metavar="N", help="messages of all clients"),
        click.option("--size", type=SIZE, default="128B", show_default=True, help="of a message"),
        click.option("--batch", type=click.IntRange(1, 10_000), default=500, show_default=True, help="messages"),
        click.option("--durability", type=click.Choice(["fsync", "os"]), help="what a publish waits for"),
        click.option("--duration", type=DURATION, default=0, metavar="DURATION", help="instead of --msgs"),
        click.option("--rate", type=RATE, default=None, metavar="N/s", help="of all clients together"),
        click.option("--keep", is_flag=True, help="leave the channel there"),
        click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True),
    ):
        command = option(command)
    return server_option(command)


@bench.command(short_help="publish as fast as it goes")
@click.option(
    "--style",
    type=click.Choice(["many", "send", "publish"]),
    default="many",
    show_default=True,
    help="producer.send_many, producer.send, or client.publish one by one",
)
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="of each client, for publish")
@common
def pub(**options: Any) -> None:
    """Publish as fast as it goes.

    \b
    Examples:
      mq bench pub --msgs 5000000 --size 100B
      mq bench pub --style publish --threads 32 --duration 5s
    """
    with _channel(options) as spec:
        _share(spec, 1_000_000 if spec["style"] != "publish" else 10_000)
        _report("publish", spec, _run([{**spec, "work": "pub"}] * spec["clients"]))


@bench.command(short_help="consume as fast as it goes")
@click.option(
    "--style",
    type=click.Choice(["batches", "iterate", "read"]),
    default="batches",
    show_default=True,
    help="batches with one ack each, messages with their own, or no group at all",
)
@common
def sub(**options: Any) -> None:
    """Fill a channel, then consume it as fast as it goes.

    \b
    Example:
      mq bench sub --msgs 2000000 --style iterate
    """
    with _channel(options) as spec:
        _share(spec, 1_000_000)
        clients = spec["clients"]
        _run([{**spec, "work": "pub", "style": "send", "msgs": spec["msgs"] * clients, "rate": 0}])
        specs = [
            {**spec, "work": "sub", "group": f"bench-{number}", "msgs": spec["msgs"] * clients}
            for number in range(clients)
        ]
        _report("consume", spec, _run(specs))


@bench.command(short_help="age of messages on arrival")
@common
def e2e(**options: Any) -> None:
    """Publish at a rate (default 1,000/s) and tell how old messages are when a reader has them.

    \b
    Example:
      mq bench e2e --rate 1000 --msgs 10000
    """
    options["rate"] = options["rate"] or 1_000.0
    with _channel(options) as spec:
        _share(spec, int(spec["rate"] * (spec["duration"] or 5.0)))
        works = [{**spec, "work": "e2e-reader"}, {**spec, "work": "e2e-writer"}]
        reader, writer = _run(works)
        _report("end to end", spec, [{**writer, "latencies": reader["latencies"]}])


@bench.command(short_help="one publish after the other")
@click.option("--directory", default="", metavar="DIR", help="on the broker's disk, for the yardstick")
@common
def rt(**options: Any) -> None:
    """Publish one message after the other and compare with a bare TCP round trip and fdatasync in the same run.

    \b
    Example:
      mq bench rt --duration 5s --directory ./data
    """
    with _channel(options) as spec:
        _share(spec, 2_000)
        spec |= {"style": "publish", "threads": 1}
        ours = _run([{**spec, "work": "pub"}] * spec["clients"])
        yardstick = _run([{**spec, "work": "bare"}])
        ratio = _rate(ours) / spec["clients"] / _rate(yardstick)
        _report("round trip", spec, ours, {"bare_per_second": round(_rate(yardstick)), "of_bare": round(ratio, 3)})


# ---------------------------------------------------------------- clients


@contextmanager
def _channel(options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The work to do, on a channel of its own."""
    name = f"bench-{secrets.token_hex(4)}"
    spec = {"style": "", "threads": 1, "directory": "", **options, "channel": name}
    spec["server"] = spec["server"] or os.environ.get("MQ_SERVER") or "mq://localhost"
    spec["duration"] /= 1_000
    with connect(spec["server"]) as client:
        spec["version"] = client.server_info().version
        client.create_channel(name)
        try:
            yield spec
        finally:
            if not spec["keep"]:
                client.delete_channel(name)


def _share(spec: dict[str, Any], default: int) -> None:
    """Each client's part of the messages and of the rate."""
    if spec["msgs"] is None:
        spec["msgs"] = 0 if spec["duration"] else default
    spec["msgs"] //= spec["clients"]
    spec["rate"] = (spec["rate"] or 0) / spec["clients"]


def _run(specs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All clients at once: each gets ready, then they start together."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "mq.cli.bench_worker", json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for spec in specs
    ]
    try:
        for each in processes:
            assert each.stdout is not None
            if each.stdout.readline() != "ready\n":
                raise click.ClickException("a client of the benchmark ended before it began")
        for each in processes:
            assert each.stdin is not None
            each.stdin.write("go\n")
            each.stdin.flush()
        results = [json.loads(each.communicate()[0] or "null") for each in processes]
    finally:
        for each in processes:
            each.kill()
            each.wait()
    if None in results:
        raise click.ClickException("a client of the benchmark failed; its reason is above")
    return results


# ---------------------------------------------------------------- results


def _rate(results: list[dict[str, Any]]) -> float:
    return float(sum(each["messages"] for each in results) / max(1e-9, *(each["seconds"] for each in results)))


def percentile(ordered: list[float], part: float) -> float:
    """Exact, from all of them."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * part / 100))]


def _report(work: str, spec: dict[str, Any], results: list[dict[str, Any]], more: dict[str, Any] | None = None) -> None:
    rate = _rate(results)
    found: dict[str, Any] = {
        "work": work,
        "messages": sum(each["messages"] for each in results),
        "seconds": round(max(each["seconds"] for each in results), 3),
        "msgs_per_second": round(rate),
        "bytes_per_second": round(rate * spec["size"]),
        **(more or {}),
    }
    latencies = sorted(value for each in results for value in each.get("latencies", ()))
    if latencies:
        found["latency_ms"] = {
            name: round(percentile(latencies, part) * 1e3, 3) for name, part in PERCENTILES.items()
        } | {"max": round(latencies[-1] * 1e3, 3)}
    names = ("style", "clients", "threads", "size", "batch", "durability")
    found["settings"] = {name: spec[name] for name in names if spec[name]}
    found["machine"] = {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "protobuf": version("protobuf"),
        "mq": version("mq-broker"),
        "broker": spec["version"],
    }
    if spec["output"] == "json":
        out.show_json(found)
        return
    for name in ("machine", "settings"):
        say(", ".join(f"{key} {value}" for key, value in found[name].items()))
    line = f"{work}: {found['messages']:,} messages in {found['seconds']:.2f} s"
    click.echo(f"{line} ~ {found['msgs_per_second']:,} msgs/s ~ {out.size(found['bytes_per_second'])}/s")
    if more:
        click.echo("  ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in more.items()))
    if latencies:
        click.echo("  ".join(f"{name} {value:.2f} ms" for name, value in found["latency_ms"].items()))
