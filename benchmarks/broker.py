"""Measures the broker through its gRPC door, each figure in the same run as its yardstick.

The yardstick is benchmarks/bare.py: the same requests, the same client, no broker. Broker, bare server and clients
are processes of their own. The log is on a real disk, in --dir; a disk in memory would make fsync free.

    python benchmarks/broker.py [--seconds S] [--rounds N] [--only NAME[,NAME]] [--dir DIR] [-o table|json]
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import grpc
from processes import HERE, bare, broker, client, fill, load

from mq.pb import mq_pb2 as pb


class Row(NamedTuple):
    work: str
    reached: str
    yardstick: str
    target: str
    is_met: bool


def compare(options: argparse.Namespace, addresses: dict[str, str], key: str, **spec: object) -> dict[str, float]:
    """Medians over rounds in which each address has its turn, so that a slow moment hits all of them."""
    figures: dict[str, list[float]] = {name: [] for name in addresses}
    for _ in range(options.rounds):
        for name, address in addresses.items():
            extra = {"durability": pb.OS} if name == "os" else {}
            figures[name].append(load(address, seconds=options.seconds, **spec, **extra)[key])
    return {name: statistics.median(values) for name, values in figures.items()}


def ratio_row(work: str, unit: str, ours: float, theirs: float, target: float, floor: float = 0.0) -> Row:
    wanted = f">= {target} of bare" + (f", >= {floor:,.0f} {unit}" if floor else "")
    return Row(
        work,
        f"{ours:,.0f} {unit} = {ours / theirs:.2f}",
        f"{theirs:,.0f} {unit}",
        wanted,
        ours >= target * theirs and ours >= floor,
    )


def disk(options: argparse.Namespace) -> Iterator[Row]:
    """What an answer that waits for the disk can't be faster than, at this moment."""
    options.dir.mkdir(parents=True, exist_ok=True)
    path = options.dir / "probe"
    for size in (512, 262_144):
        with path.open("wb", buffering=0) as file:
            file.write(bytes(100 * size))
            os.fsync(file.fileno())
            times, content = [], os.urandom(size)
            for index in range(100):
                begin = time.perf_counter()
                os.pwrite(file.fileno(), content, index * size)
                os.fdatasync(file.fileno())
                times.append((time.perf_counter() - begin) * 1e3)
        times.sort()
        yield Row(f"write and fdatasync {size:,} B", f"p50 {times[50]:.2f} ms, p99 {times[98]:.2f} ms", "", "", True)
    path.unlink()


def publish_batch(options: argparse.Namespace) -> Iterator[Row]:
    with broker(options.dir) as server, bare() as yardstick:
        server.create("bench")
        addresses = {"bare": yardstick, "fsync": server.address, "os": server.address}
        spec = {"work": "publish_batch", "channels": ["bench"], "count": 500, "size": 512, "connections": 4}
        got = compare(options, addresses, "messages_per_second", **spec)
        yield ratio_row("PublishBatch 500 x 512 B, 4 connections, fsync", "msg/s", got["fsync"], got["bare"], 0.55)
        yield ratio_row("the same, durability os", "msg/s", got["os"], got["bare"], 0.7)


def publish_large(options: argparse.Namespace) -> Iterator[Row]:
    with broker(options.dir) as server, bare() as yardstick:
        server.create("bench")
        addresses = {"bare": yardstick, "fsync": server.address}
        spec = {"work": "publish_batch", "channels": ["bench"], "count": 5_000, "size": 100, "connections": 4}
        got = compare(options, addresses, "messages_per_second", **spec)
        ours = got["fsync"]
        yield Row(
            "PublishBatch 5,000 x 100 B, 4 connections, fsync",
            f"{ours:,.0f} msg/s = {ours / got['bare']:.2f}",
            f"{got['bare']:,.0f} msg/s",
            ">= 1,200,000 msg/s",
            ours >= 1_200_000,
        )


def pull(options: argparse.Namespace) -> Iterator[Row]:
    stored = 200_000
    with broker(options.dir) as server:
        server.create("bench")
        fill(server, "bench", stored, 500, 100)
        request = pb.PullRequest(
            channel="bench", partition=0, max_messages=500, positions=[pb.Position(partition=0, offset=500)]
        )
        answer = server.call("MQService/Pull", request, pb.PullResponse)
        assert sum(len(each.batch.messages) for each in answer.batches) == 500
        with bare(pull_answer=answer.SerializeToString()) as yardstick:
            spec = {"work": "pull", "channels": ["bench"], "count": 500, "stored": stored, "connections": 4}
            addresses = {"bare": yardstick, "ours": server.address}
            got = compare(options, addresses, "messages_per_second", **spec)
        yield ratio_row("Pull 500 x 100 B, 4 connections, raw bytes", "msg/s", got["ours"], got["bare"], 0.7, 800_000)


def publish(options: argparse.Namespace) -> Iterator[Row]:
    with broker(options.dir) as server, bare() as yardstick:
        server.create("bench")
        spec = {"work": "publish", "channels": ["bench"], "size": 100, "connections": 4, "in_flight": 8}
        got = compare(options, {"bare": yardstick, "ours": server.address}, "calls_per_second", **spec)
        yield ratio_row("Publish 100 B, 4 connections x 8 in flight, fsync", "/s", got["ours"], got["bare"], 0.6)


def subscribe(options: argparse.Namespace) -> Iterator[Row]:
    items = 30_000
    with broker(options.dir) as server:
        server.create("bench")
        fill(server, "bench", items + 1_000, 500, 100)
        with grpc.insecure_channel(server.address) as channel:
            request = pb.SubscribeRequest(channel="bench", offset=pb.SubscribeRequest.OFFSET_BEGINNING)
            stream = channel.unary_stream("/mq.MQService/Subscribe")(request.SerializeToString())
            item = next(stream)
            stream.cancel()
        with bare(item=item) as yardstick:
            spec = {"work": "subscribe", "channels": ["bench"], "items": items}
            addresses = {"bare": yardstick, "ours": server.address}
            got = compare(options, addresses, "messages_per_second", **spec)
        yield ratio_row("Subscribe 100 B, one stream", "msg/s", got["ours"], got["bare"], 0.8)


def end_to_end(options: argparse.Namespace) -> Iterator[Row]:
    with broker(options.dir) as server:
        server.create("bench")
        spec = {"channels": ["bench"], "rate": 1_000, "seconds": max(5.0, options.seconds)}
        with client(server.address, work="latency", **spec) as reader:
            assert reader.stdout.readline() == "ready\n"
            load(server.address, work="paced", **spec)
            got = json.loads(reader.stdout.read())
        yield Row(
            "end to end at 1,000 msg/s, fsync",
            f"p50 {got['p50_ms']:.2f} ms, p99 {got['p99_ms']:.2f} ms",
            "",
            "p50 <= 3 ms, p99 <= 12 ms",
            got["p50_ms"] <= 3 and got["p99_ms"] <= 12,
        )


def flat_row(work: str, before: float, after: float) -> Row:
    return Row(
        work, f"{after:,.0f}/s = {before / after:.2f} x the cost", f"{before:,.0f}/s", "<= 1.3 x", before <= 1.3 * after
    )


def growth(options: argparse.Namespace) -> Iterator[Row]:
    """Also what is kept: memory and start-up with ten million messages."""
    most = options.messages
    publishing = {"work": "publish_batch", "channels": ["bench"], "count": 500, "size": 100, "connections": 4}
    pulling = {"work": "pull", "channels": ["bench"], "count": 500, "connections": 4}
    with broker(options.dir) as server:
        server.create("bench")
        fill(server, "bench", 1_000, 500, 100)
        ours = {"ours": server.address}
        pulls = compare(options, ours, "messages_per_second", stored=1_000, **pulling)["ours"]
        publishes = compare(options, ours, "messages_per_second", **publishing)["ours"]
        fill(server, "bench", most, 5_000, 100)
        after = compare(options, ours, "messages_per_second", **publishing)["ours"]
        yield flat_row(f"publish as the channel grows 1 k -> {most / 1e6:.0f} M", publishes, after)
        newest = {"first": (server.end_offset("bench") - 200_000) // 500 * 500, "stored": 200_000}
        after = compare(options, ours, "messages_per_second", **newest, **pulling)["ours"]
        yield flat_row(f"pull the newest as the channel grows 1 k -> {most / 1e6:.0f} M", pulls, after)
        after = compare(options, ours, "messages_per_second", stored=200_000, **pulling)["ours"]
        yield flat_row("pull the oldest, which are read back from disk", pulls, after)
        seconds = server.restart()
        yield Row(f"start with {most / 1e6:.0f} M messages kept", f"{seconds:.2f} s", "", "< 1.5 s", seconds < 1.5)


def width(options: argparse.Namespace) -> Iterator[Row]:
    names = [f"bench-{number}" for number in range(1_000)]
    publishing = {"work": "publish_batch", "count": 10, "size": 100, "connections": 4, "in_flight": 4}
    with broker(options.dir) as server:
        server.create(*names)
        ours = {"ours": server.address}
        one = compare(options, ours, "messages_per_second", channels=names[:1], **publishing)["ours"]
        many = compare(options, ours, "messages_per_second", channels=names, **publishing)["ours"]
        yield flat_row("publish over 1 -> 1,000 channels", one, many)
        figures = []
        for waiting in (1, 1_000):
            spec = {
                "work": "wait",
                "channels": names[1:],
                "connections": min(waiting, 4),
                "in_flight": max(1, waiting // 4),
            }
            with client(server.address, **spec) as waiters:
                assert waiters.stdout.readline() == "ready\n"
                figures.append(compare(options, ours, "messages_per_second", channels=names[:1], **publishing)["ours"])
        yield flat_row("publish with 1 -> 1,000 pulls waiting", *figures)


def memory(options: argparse.Namespace) -> Iterator[Row]:
    with broker(options.dir) as server:
        idle = server.resident_mb()
        yield Row("resident memory, idle", f"{idle:.0f} MB", "", "< 90 MB", idle < 90)
    with broker(options.dir, STORAGE_MAX_MEMORY_BYTES="64MiB") as server:
        server.create("bench")
        size = options.backlog_bytes
        fill(server, "bench", size // 512, 500, 512)
        load(server.address, work="pull", channels=["bench"], count=500, stored=200_000, connections=4, seconds=1)
        held = server.resident_mb()
        yield Row(
            f"resident memory, {size / 1e9:.0f} GB backlog, 64 MiB of buffers",
            f"{held:.0f} MB",
            "",
            "< 300 MB",
            held < 300,
        )


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    "disk": disk,
    "publish-batch": publish_batch,
    "publish-large": publish_large,
    "pull": pull,
    "publish": publish,
    "subscribe": subscribe,
    "end-to-end": end_to_end,
    "width": width,
    "growth": growth,
    "memory": memory,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement, after a warm-up")
    parser.add_argument("--rounds", type=int, default=3, help="medians are over so many")
    parser.add_argument("--only", default=",".join(PARTS), help=f"any of {', '.join(PARTS)}")
    parser.add_argument("--messages", type=int, default=10_000_000, help="kept in the channel that grows")
    parser.add_argument("--backlog-bytes", type=int, default=2_000_000_000)
    parser.add_argument("--dir", type=Path, default=HERE.parent / "build" / "bench", help="on the disk to measure")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    options = parser.parse_args()
    machine = {
        "machine": f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        **{name: version(name) for name in ("grpcio", "protobuf", "uvloop", "mq-broker")},
    }
    rows = []
    for name in options.only.split(","):
        print(f"{name} …", file=sys.stderr, flush=True)
        rows += PARTS[name](options)
    if options.output == "json":
        print(json.dumps({**machine, "rows": [row._asdict() for row in rows]}, indent=1))
    else:
        print_table(machine, rows)
    sys.exit(not all(row.is_met for row in rows))


def print_table(machine: dict[str, str], rows: list[Row]) -> None:
    print(", ".join(f"{name} {text}" for name, text in machine.items()))
    lines = [
        ("work", "reached", "yardstick", "target", ""),
        *((*row[:4], ("ok" if row.is_met else "MISSED") if row.target else "") for row in rows),
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(5)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
