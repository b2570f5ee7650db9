"""What one call costs, layer by layer, in CPU time: so it says the same on a busy machine as on a quiet one.

Reading the request and writing the answer are timed alone. Broker and log are timed together, writer thread included,
with as many calls in flight as the benchmark has. The doors are timed as bare servers that answer at once
(benchmarks/bare.py, benchmarks/bare_wire.py), network included; the last column is the wire with one connection that
has many calls in flight.

    python benchmarks/layers.py [--dir DIR]
"""

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import uvloop
from google.protobuf.message import Message
from load import batch
from processes import HERE, bare_process, load
from wire import client, cpu_us

from mq import reply
from mq.broker import Broker
from mq.command import Position
from mq.limits import Limits
from mq.pb import mq_pb2 as pb
from mq.service import METHODS, Connection, Edge, Service
from mq.service.info import Facts
from wal import FileLog
from wal.clock import SystemClock

ROUNDS = 7
EDGE = Edge()


def microseconds(act: Callable[[], object], times: int) -> float:
    """The best of some rounds: whatever disturbs, only ever adds."""
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.process_time()
        for _ in range(times):
            act()
        best = min(best, (time.process_time() - begin) / times)
    return best * 1e6


async def answered(service: Service, method: str, request: Message) -> None:
    future = asyncio.get_running_loop().create_future()
    entry = METHODS[f"mq.MQService/{method}"]
    service.call(entry, Connection(""), request.SerializeToString(), future.set_result)
    assert isinstance(await future, list)


async def served(service: Service, method: str, request: bytes, times: int, in_flight: int) -> float:
    """CPU of a call from its bytes to its answer's bytes, on all threads."""
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.process_time()
        for _ in range(times // in_flight):
            future = asyncio.get_running_loop().create_future()
            left = in_flight

            def done(answer: object, future: asyncio.Future = future) -> None:
                nonlocal left
                assert isinstance(answer, list), answer
                left -= 1
                if not left:
                    future.set_result(None)

            for _ in range(in_flight):
                service.call(METHODS[f"mq.MQService/{method}"], Connection(""), request, done)
            await future
        best = min(best, (time.process_time() - begin) / times)
    return best * 1e6


def grpc_microseconds(method: str, count: int, size: int, in_flight: int, answer: bytes) -> float:
    """CPU of the bare server for the same call."""
    with bare_process(pull_answer=answer) as (process, address):

        def cpu() -> int:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
            return int(fields[11]) + int(fields[12])

        work = {"Publish": "publish", "PublishBatch": "publish_batch", "Pull": "pull"}[method]
        spec = {"work": work, "channels": ["bench"], "count": count, "size": size, "stored": 100_000}
        best = float("inf")
        for _ in range(3):
            begin = cpu()
            got = load(address, connections=4, in_flight=in_flight // 4, seconds=2.0, **spec)
            best = min(best, (cpu() - begin) * 1e4 / (got["calls_per_second"] * 2.5))  # the warm-up's calls count too
    return best


def wire_microseconds(answer: bytes, **spec: object) -> float:
    """CPU of the bare door of the wire for the same call."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "answer")
        file.write_bytes(answer)
        process = subprocess.Popen([sys.executable, HERE / "bare_wire.py", file], stdout=subprocess.PIPE)
        try:
            port = int(process.stdout.readline())
            best = float("inf")
            for _ in range(3):
                begin = cpu_us(process)
                with client(door="wire", port=port, seconds=2.0, **spec) as loading:
                    got = json.loads(loading.stdout.read())
                best = min(best, (cpu_us(process) - begin) / (got["calls_per_second"] * 2.5))
        finally:
            process.kill()
            process.wait()
    return best


async def main(directory: Path) -> None:
    log = FileLog.open(directory)
    broker = Broker(log, SystemClock(), Limits(), on_health=lambda is_serving: None)
    await broker.start()
    service = Service(broker, log, EDGE, Facts("", "", "", 0, "wal", 0))
    hundred = batch(500, 100)
    for name in ("bench", "pulled"):
        await answered(service, "CreateChannel", pb.CreateChannelRequest(channel=name))
    await answered(service, "PublishBatch", pb.PublishBatchRequest(channel="pulled", batch=hundred))
    published = reply.PublishReply(0, 1_000_000, 500, 1_700_000_000_000_000)
    pulled = reply.PulledBatch(0, 0, 500, 1_700_000_000_000_000, [], hundred.SerializeToString())
    pull = pb.PullRequest(channel="pulled", partition=0, max_messages=500, positions=[pb.Position(offset=0)])
    works = {
        "Publish": (pb.PublishRequest(channel="bench", content=b"x" * 100), published, 2_000, 32, 1, 100),
        "PublishBatch": (pb.PublishBatchRequest(channel="bench", batch=batch(500, 512)), published, 100, 4, 500, 512),
        "Pull": (pull, reply.PullReply([pulled], [Position(0, 500)]), 1_000, 4, 500, 100),
    }
    heads = ("read request", "broker, log", "write answer", "gRPC alone", "wire alone", "pipelined")
    print(f"{'CPU µs per call':<26}" + "".join(f"{head:>13}" for head in heads))
    for method, (message, answer, times, in_flight, count, size) in works.items():
        entry = METHODS[f"mq.MQService/{method}"]
        request = message.SerializeToString()
        decode = microseconds(lambda: entry.decode(request, EDGE), times)  # noqa: B023
        encode = microseconds(lambda: b"".join(entry.encode(answer)), times)  # noqa: B023
        whole = await served(service, method, request, times, in_flight)
        words = b"".join(entry.encode(answer))
        grpc = await asyncio.to_thread(grpc_microseconds, method, count, size, in_flight, words)
        spec = {"connections": 4, "in_flight": in_flight // 4, "count": count, "size": size, "stored": 100_000}
        work = {"Publish": "messages", "PublishBatch": "batches", "Pull": "pulls"}[method]
        wire = await asyncio.to_thread(wire_microseconds, words, work=work, **spec)
        figures = [f"{each:>13.1f}" for each in (decode, whole - decode - encode, encode, grpc, wire)]
        if method == "Publish":
            many = await served(service, method, request, 20_000, 2_000)
            door = await asyncio.to_thread(wire_microseconds, words, work="pipelined", in_flight=4_000, size=size)
            figures.append(f"{f'{door:.1f} + {many:.1f}':>13}")
        print(f"{f'{method} {count} x {size} B':<26}" + "".join(figures), flush=True)
    await broker.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=HERE.parent / "build" / "bench", help="on the disk to measure")
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=options.dir))
    try:
        uvloop.run(main(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
