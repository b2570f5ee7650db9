"""Measures the wire beside gRPC: the same broker, the same work, the same run, one after the other in each round.

Every message is fsynced before its answer. Beside what was reached stands the CPU that the broker spent on each call,
which says the same on a busy machine as on a quiet one.

    python benchmarks/wire.py [--seconds S] [--rounds N] [--only NAME[,NAME]] [--dir DIR] [-o table|json]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from processes import HERE, Broker, broker, fill, free_port

IDLE = 10_000


class Row(NamedTuple):
    work: str
    wire: str
    grpc: str
    ratio: str
    target: str
    is_met: bool


class Figures(NamedTuple):
    """Medians over the rounds."""

    rate: float  # messages a second
    cpu_us: float  # of the broker, for each call
    p50_ms: float


@contextmanager
def served(options: argparse.Namespace) -> Iterator[tuple[Broker, dict[str, int]]]:
    """A broker with both doors, and their ports."""
    wire_port = free_port()
    with broker(options.dir, SERVER_WIRE_PORT=str(wire_port)) as server:
        server.create("bench", "quiet")
        yield server, {"wire": wire_port, "grpc": server.port}


@contextmanager
def echo(options: argparse.Namespace) -> Iterator[int]:
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        command = [sys.executable, HERE / "echo.py", Path(folder, "log")]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()
            process.wait()


@contextmanager
def client(**spec: object) -> Iterator[subprocess.Popen[str]]:
    whole = {"connections": 1, "in_flight": 1, "size": 100, **spec}
    command = [sys.executable, HERE / "transports.py", json.dumps(whole)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def cpu_us(process: subprocess.Popen[bytes]) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * 1e4


def compare(
    options: argparse.Namespace, server: Broker, ports: dict[str, int], **specs: dict[str, object]
) -> dict[str, Figures]:
    """Each door's work in turn, so that a slow moment hits all of them."""
    found: dict[str, list[Figures]] = {door: [] for door in specs}
    for _ in range(options.rounds):
        for door, spec in specs.items():
            begin = cpu_us(server.process)
            with client(door=door, port=ports[door], seconds=options.seconds, **spec) as process:
                got = json.loads(process.stdout.read())
            calls = got["calls_per_second"] * (options.seconds + 0.5)  # the warm-up's count too
            spent = (cpu_us(server.process) - begin) / max(calls, 1)
            found[door].append(Figures(got["messages_per_second"], spent, got.get("p50_ms", 0.0)))
    return {door: Figures(*map(statistics.median, zip(*rounds, strict=True))) for door, rounds in found.items()}


def row(work: str, got: dict[str, Figures], target: float, floor: float = 0.0) -> Row:
    ours, theirs = got["wire"], got["grpc"]
    ratio = ours.rate / theirs.rate
    wanted = f">= {target} x gRPC" + (f", >= {floor:,.0f} /s" if floor else "")
    shown = [f"{each.rate:,.0f} /s, CPU {each.cpu_us:,.0f} µs" for each in (ours, theirs)]
    return Row(work, *shown, f"{ratio:.1f}", wanted, ratio >= target and ours.rate >= floor)


def singly(options: argparse.Namespace) -> Iterator[Row]:
    with served(options) as (server, ports), echo(options) as echo_port:
        spec = {"work": "singly"}
        got = compare(options, server, {**ports, "echo": echo_port}, echo=spec, wire=spec, grpc=spec)
        yield row("1 connection, one at a time, 100 B", got, 2.0)
        part = got["wire"].rate / got["echo"].rate
        reached, bare = f"{got['wire'].rate:,.0f} /s", f"{got['echo'].rate:,.0f} /s (echo)"
        yield Row("the same, beside a bare echo that syncs", reached, bare, f"{part:.2f}", ">= 0.6 x echo", part >= 0.6)


def connections(options: argparse.Namespace) -> Iterator[Row]:
    with served(options) as (server, ports):
        spec = {"work": "messages", "connections": 32}
        yield row("32 connections, one at a time, 100 B", compare(options, server, ports, wire=spec, grpc=spec), 6.0)


def pipelined(options: argparse.Namespace) -> Iterator[Row]:
    with served(options) as (server, ports):
        one = {"work": "pipelined", "in_flight": 4_000}
        other = {"work": "messages", "in_flight": 32}
        got = compare(options, server, ports, wire=one, grpc=other)
        yield row("single messages pipelined, 1 connection (gRPC: 32 in flight)", got, 30.0, 80_000)


def batches(options: argparse.Namespace) -> Iterator[Row]:
    with served(options) as (server, ports):
        spec = {"work": "batches", "connections": 4, "count": 500, "size": 512}
        yield row("PublishBatch 500 x 512 B, 4 connections", compare(options, server, ports, wire=spec, grpc=spec), 1.8)


def pulls(options: argparse.Namespace) -> Iterator[Row]:
    with served(options) as (server, ports):
        fill(server, "bench", 200_000, 500, 100)
        spec = {"work": "pulls", "connections": 4, "count": 500, "stored": 200_000}
        yield row("Pull 500 x 100 B, 4 connections", compare(options, server, ports, wire=spec, grpc=spec), 1.5)


def idle(options: argparse.Namespace) -> Iterator[Row]:
    with served(options) as (server, ports):
        spec = {"work": "singly"}
        alone = compare(options, server, ports, wire=spec)["wire"]
        before = server.resident_mb()
        with client(work="idle", door="wire", port=ports["wire"], connections=IDLE) as crowd:
            assert crowd.stdout.readline() == "ready\n"
            each_kb = (server.resident_mb() - before) * 1_024 / IDLE
            among = compare(options, server, ports, wire=spec)["wire"]
        ratio = among.p50_ms / alone.p50_ms
        work = f"{IDLE:,} idle connections with a waiting pull each"
        yield Row(work, f"{each_kb:.1f} KB each", "", "", "< 12 KB each", each_kb < 12)
        latency = f"p50 {among.p50_ms:.2f} ms, alone {alone.p50_ms:.2f} ms"
        yield Row("a publish among them", latency, "", f"{ratio:.2f}", "<= 1.3 x alone", ratio <= 1.3)


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    "singly": singly,
    "connections": connections,
    "pipelined": pipelined,
    "batches": batches,
    "pulls": pulls,
    "idle": idle,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement, after a warm-up")
    parser.add_argument("--rounds", type=int, default=3, help="medians are over so many")
    parser.add_argument("--only", default=",".join(PARTS), help=f"any of {', '.join(PARTS)}")
    parser.add_argument("--dir", type=Path, default=HERE.parent / "build" / "bench", help="on the disk to measure")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in options.only.split(","):
        print(f"{name} …", file=sys.stderr, flush=True)
        rows += PARTS[name](options)
    if options.output == "json":
        print(json.dumps([each._asdict() for each in rows], indent=1))
    else:
        print_table(rows)
    sys.exit(not all(each.is_met for each in rows))


def print_table(rows: list[Row]) -> None:
    head = ("work", "wire", "gRPC", "ratio", "target", "")
    lines = [head, *((*each[:5], "ok" if each.is_met else "MISSED") for each in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(6)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
