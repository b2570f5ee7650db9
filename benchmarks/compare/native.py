"""The load tools that the brokers ship, each in its own language, on the same kinds of work.

They take the Python client out of the figure. What they send and how they count is theirs, and not quite alike: so
they have a table of their own. A tool that can't do a work leaves its cell empty.
"""

from __future__ import annotations

import csv
import json
import os
import random
import re
import string
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .driver import QUEUE
from .peer_kafka import JARS
from .peers import PEERS
from .quiet import Result
from .run import PATIENCE_SECONDS, PRODUCERS, Scale, alive, clients
from .server import FSYNC, Server, found

PERF_TEST = Path(__file__).parents[2] / ".peers" / "rabbitmq"
WARM_SECONDS = 5.0  # a JVM compiles while it runs: less would measure that
BATCHES = {"publish_500x512": (512, 500), "publish_100": (100, 0)}  # figure -> size, batch (0: the broker's best)
Work = Callable[[Server, Scale], float]


@dataclass(frozen=True)
class Tool:
    name: str
    how: str  # for the reader
    is_there: Callable[[], bool]
    works: dict[str, Work]
    fill: float = 0.0  # of `Scale.stored`: what must lie there for its consumer


def measure(name: str, durability: str, scale: Scale) -> Result:
    """Everything that the broker's tool can do; the consumer first, while only its messages are there."""
    tool = TOOLS[name]
    with alive(PEERS[name], durability) as server:
        if count := int(tool.fill * scale.stored) // PRODUCERS:
            clients(server, [{"work": "store", "size": 100, "count": count}] * PRODUCERS)
        return {figure: work(server, scale) for figure, work in tool.works.items()}


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}: {done.stdout[-500:]}")
    return done.stdout


def _batch(figure: str, name: str) -> tuple[int, int]:
    size, batch = BATCHES[figure]
    return size, batch or PEERS[name].best_batch


def _text(size: int, seed: int) -> str:
    return "".join(random.Random(seed).choices(string.ascii_letters + string.digits, k=size))


def _number(pattern: str, text: str) -> float:
    match = re.search(pattern, text)
    if not match:
        raise RuntimeError(f"no figure in: {text[-500:]}")
    return float(match[1])


# ---------------------------------------------------------------- mq bench


def _mq(server: Server, *options: str) -> float:
    command = [sys.executable, "-m", "mq.cli", "bench", *options, "-s", f"mq://127.0.0.1:{server.port}", "-o", "json"]
    return float(json.loads(_output(command))["msgs_per_second"])


def _mq_publish(figure: str) -> Work:
    size, batch = _batch(figure, "mq")
    options = ["pub", "--clients", str(PRODUCERS), "--size", f"{size}B", "--batch", str(batch)]
    return lambda server, scale: _mq(server, *options, "--duration", f"{scale.seconds * 1_000:.0f}ms")


def _mq_callers(server: Server, scale: Scale) -> float:
    callers = ["--style", "publish", "--clients", str(PRODUCERS), "--threads", str(32 // PRODUCERS)]
    return _mq(server, "pub", *callers, "--size", "100B", "--duration", f"{scale.seconds * 1_000:.0f}ms")


def _mq_consume(server: Server, scale: Scale) -> float:
    return _mq(server, "sub", "--msgs", str(scale.stored), "--size", "100B", "--batch", "5000")


# ---------------------------------------------------------------- redis-benchmark


def _redis(server: Server, size: int, connections: int, pipeline: int, count: float) -> float:
    """It has no end by time: the count is what about so many seconds take."""
    program = found("redis-benchmark", "REDIS_BENCHMARK")
    assert program
    body = _text(size - 12, 0) + "__rand_int__"
    load = ["-c", str(connections), "-P", str(pipeline), "-n", f"{count:.0f}", "-r", "999999999999", "--csv"]
    text = _output([program, "-p", str(server.port), *load, "XADD", QUEUE, "*", "b", body])
    return float(list(csv.reader(text.strip().splitlines()))[-1][1])


def _redis_publish(figure: str) -> Work:
    size, batch = _batch(figure, "Redis")
    return lambda server, scale: _redis(server, size, PRODUCERS, batch, 150_000 * scale.seconds)


def _redis_callers(server: Server, scale: Scale) -> float:
    return _redis(server, 100, 32, 1, (20_000 if server.durability == FSYNC else 50_000) * scale.seconds)


# ---------------------------------------------------------------- PerfTest of RabbitMQ


def _rabbit(server: Server, *options: str) -> str:
    base = ["-h", f"amqp://127.0.0.1:{server.port}", "-p", "-u", QUEUE, "-f", "persistent", "-ad", "false"]
    jars = f"{os.environ.get('RABBITMQ_PERF_TEST', PERF_TEST)}/*"
    return _output(["java", "-cp", jars, "com.rabbitmq.perf.PerfTest", *base, *options])


def _rabbit_publish(size: int, producers: int, unconfirmed: int) -> Work:
    load = ["-x", str(producers), "-y", "0", "-s", str(size), "-c", str(unconfirmed)]

    def run(server: Server, scale: Scale) -> float:
        seconds = max(scale.seconds, WARM_SECONDS)
        return _number(r"sending rate avg: (\d+)", _rabbit(server, *load, "-z", f"{seconds:.0f}"))

    return run


def _rabbit_consume(server: Server, scale: Scale) -> float:
    count = int(TOOLS["RabbitMQ"].fill * scale.stored)
    return _number(
        r"receiving rate avg: (\d+)",
        _rabbit(server, "-x", "0", "-y", "1", "-q", "5000", "-A", "1000", "-D", str(count)),
    )


# ---------------------------------------------------------------- the performance tools of Kafka


def _kafka(tool: str, *options: str) -> list[str]:
    jars = os.environ.get("KAFKA_LIBS", JARS)
    return ["java", "-Xmx256m", "-cp", f"{jars}/*", f"org.apache.kafka.tools.{tool}", "--topic", QUEUE, *options]


def _kafka_publish(figure: str, rate: float) -> Work:
    size, batch = _batch(figure, "Kafka")

    def run(server: Server, scale: Scale) -> float:
        count = rate * max(scale.seconds, WARM_SECONDS)
        bodies = server.directory.parent / f"bodies-{size}"  # made ahead: to make them is slower than to send them
        bodies.write_text("\n".join(_text(size, number) for number in range(10_000)))
        load = ["--num-records", f"{count:.0f}", "--payload-file", str(bodies), "--throughput", "-1"]
        room = f"batch.size={min(batch * (size + 8), 1_000_000)}"
        settings = [f"bootstrap.servers=127.0.0.1:{server.port}", "acks=all", "linger.ms=5", room]
        command = _kafka("ProducerPerformance", *load, "--producer-props", *settings)
        return _number(r"([\d.]+) records/sec", _output(command).strip().splitlines()[-1])

    return run


def _kafka_consume(server: Server, scale: Scale) -> float:
    options = ["--bootstrap-server", f"127.0.0.1:{server.port}", "--messages", str(scale.stored)]
    text = _output(_kafka("ConsumerPerformance", *options, "--hide-header"))
    return float(text.strip().splitlines()[-1].split(",")[-1])  # without its way into the group


TOOLS = {
    "mq": Tool(
        "mq bench",
        "`pub` and `sub` with 4 client processes; for 32 callers 8 threads in each",
        lambda: True,
        {
            "consume": _mq_consume,
            "publish_500x512": _mq_publish("publish_500x512"),
            "publish_100": _mq_publish("publish_100"),
            "one_at_a_time_32": _mq_callers,
        },
    ),
    "Redis": Tool(
        "redis-benchmark",
        "XADD with `-c 4 -P 500`, `-c 4 -P 1000`, `-c 32 -P 1`; it can't ack what it reads",
        lambda: found("redis-benchmark", "REDIS_BENCHMARK") is not None,
        {
            "publish_500x512": _redis_publish("publish_500x512"),
            "publish_100": _redis_publish("publish_100"),
            "one_at_a_time_32": _redis_callers,
        },
    ),
    "RabbitMQ": Tool(
        "PerfTest",
        "`-x 4 -c 2000` for batches, `-x 32 -c 1` for callers, `-y 1 -q 5000 -A 1000` to consume",
        lambda: any(Path(os.environ.get("RABBITMQ_PERF_TEST", PERF_TEST)).glob("perf-test-*.jar")),
        {
            "consume": _rabbit_consume,
            "publish_500x512": _rabbit_publish(512, PRODUCERS, 2_000),
            "publish_100": _rabbit_publish(100, PRODUCERS, 4_000),
            "one_at_a_time_32": _rabbit_publish(100, 32, 1),
        },
        fill=0.25,
    ),
    "Kafka": Tool(
        "ProducerPerformance, ConsumerPerformance",
        "one process (several JVMs are slower here), acks=all, linger 5 ms, batches of "
        "500 x 512 B or of 1 MB; it never waits for one message's answer",
        lambda: any(Path(os.environ.get("KAFKA_LIBS", JARS)).glob("kafka-tools-[0-9]*.jar")),
        {
            "consume": _kafka_consume,
            "publish_500x512": _kafka_publish("publish_500x512", 300_000),
            "publish_100": _kafka_publish("publish_100", 1_000_000),
        },
        fill=1.0,
    ),
}
