"""The work, for one broker: two lives of it, one for speed and one for what it keeps through a kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .peers import Peer
from .quiet import Result, measured, settle, together, undisturbed
from .server import Server

PRODUCERS = 4
RATE = 1_000.0
PATIENCE_SECONDS = 300.0  # then a client hangs, and its round has failed


@dataclass(frozen=True)
class Scale:
    seconds: float = 5.0  # of each work that runs for a time
    stored: int = 1_000_000


def measure(peer: Peer, durability: str, scale: Scale) -> Result:
    """Everything once, or again where it was disturbed; a name for each figure."""
    with alive(peer, durability) as server:
        idle = {"memory_idle": server.memory()}
        lively = [
            undisturbed(partial(measured, partial(work, server, scale)))
            for work in (
                _end_to_end,
                partial(_publish, name="publish_500x512", size=512, batch=500),
                partial(_publish, name="publish_100", size=100, batch=peer.best_batch),
                partial(_one_at_a_time, processes=1, callers=1),
                partial(_one_at_a_time, processes=PRODUCERS, callers=32),
            )
        ]

    def live_again() -> Result:
        with alive(peer, durability) as server:
            return measured(partial(_store_and_kill, server, scale))

    return together(idle, *lively, undisturbed(live_again))


@contextmanager
def alive(peer: Peer, durability: str) -> Any:
    """A broker with an empty directory, on a machine at rest; its queue is made."""
    settle()
    with tempfile.TemporaryDirectory(prefix="mq-compare-", dir=os.environ.get("COMPARE_DIR")) as scratch:
        server = peer.server(Path(scratch) / "data", durability)
        server.start()
        try:
            clients(server, [{"work": "store", "size": 1, "count": 0}])  # makes the queue
            yield server
        finally:
            server.remove()


def _publish(server: Server, scale: Scale, name: str, size: int, batch: int) -> Result:
    spec = {"work": "publish", "size": size, "batch": batch, "seconds": scale.seconds}
    answers = clients(server, [spec] * PRODUCERS)
    return {name: sum(each["count"] for each in answers) / max(each["seconds"] for each in answers)}


def _one_at_a_time(server: Server, scale: Scale, processes: int, callers: int) -> Result:
    spec = {"work": "singles", "size": 100, "callers": callers // processes, "seconds": scale.seconds}
    answers = clients(server, [spec] * processes)
    taken = sorted(second for each in answers for second in each["taken"])
    rate = len(taken) / max(each["seconds"] for each in answers)
    name = f"one_at_a_time_{callers}"
    return {name: rate, f"{name}_p50": percentile(taken, 0.5), f"{name}_p99": percentile(taken, 0.99)}


def _end_to_end(server: Server, scale: Scale) -> Result:
    specs = [
        {"work": "arrive", "seconds": scale.seconds},
        {"work": "paced", "size": 100, "rate": RATE, "seconds": 3_600},  # until the other one has enough
    ]
    taken = sorted(clients(server, specs, awaited=1)[0]["taken"])
    return {"end_to_end_p50": percentile(taken, 0.5), "end_to_end_p99": percentile(taken, 0.99)}


def _store_and_kill(server: Server, scale: Scale) -> Result:
    spec = {"work": "store", "size": 100, "count": scale.stored // PRODUCERS}
    clients(server, [spec] * PRODUCERS)
    found: Result = {"memory_stored": server.memory(), "disk_per_message": server.disk() / scale.stored}
    began = 0.0

    def restart() -> None:
        nonlocal began
        server.kill()
        began = time.perf_counter()
        server.launch()

    spec = {"work": "consume", "count": scale.stored, "seconds": 2 * scale.seconds, "connects_late": True}
    (answer,) = clients(server, [spec], when_ready=restart)
    found["first_after_kill"] = answer["first_at"] - began
    found["consume"] = answer["count"] / answer["seconds"]
    return found


def clients(
    server: Server,
    specs: Sequence[dict[str, Any]],
    awaited: int | None = None,
    when_ready: Callable[[], None] = lambda: None,
) -> list[Any]:
    """A process for each; they begin together when all are connected. Only the first so many are awaited."""
    with tempfile.TemporaryDirectory(prefix="mq-compare-") as scratch:
        common = {"peer": server.name, "port": server.port, "durability": server.durability}
        answers = [Path(scratch) / str(number) for number in range(len(specs))]
        workers = [
            _worker({**common, "number": number, "answer": str(answers[number]), **spec})
            for number, spec in enumerate(specs)
        ]
        deadline = threading.Timer(PATIENCE_SECONDS, _kill, [workers])
        deadline.start()
        try:
            for each in workers:
                _expect(each, "ready", f"a client of {server.name} did not connect")
            when_ready()
            for each in workers:
                assert each.stdin
                each.stdin.write("go\n")
                each.stdin.flush()
            for each in workers[:awaited]:
                _expect(each, "done", f"a client of {server.name} failed")
            return [json.loads(each.read_text()) for each in answers[:awaited]]
        finally:
            deadline.cancel()
            _kill(workers)
            for each in workers:
                each.communicate()


def _worker(spec: dict[str, Any]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "compare.worker", json.dumps(spec)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _expect(worker: subprocess.Popen[str], word: str, otherwise: str) -> None:
    assert worker.stdout
    if worker.stdout.readline() != f"{word}\n":
        raise RuntimeError(otherwise)


def _kill(workers: Sequence[subprocess.Popen[str]]) -> None:
    for each in workers:
        each.kill()


def percentile(ordered: Sequence[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")
