"""python -m compare [--peers mq,Redis] [--rounds 3] [--durability fsync,cache] [--seconds 5] [--stored 1000000]"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import native
from .peers import PEERS
from .progress import say, told
from .quiet import Result
from .report import machine, write
from .run import Scale, measure
from .server import CACHE, FSYNC
from .syncs import syncs_per_message

CLIENTS, TOOLS, SYNCS = "by its Python client", "by its own tool", "counting fsyncs"
Runs = dict[str, dict[str, list[Result]]]  # durability -> broker -> a result for each round


def main() -> int:
    parser = argparse.ArgumentParser(prog="compare", description="mq beside other brokers, on this machine")
    parser.add_argument("--peers", default=",".join(PEERS), help="which; those that are not installed are left out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--durability", default=f"{FSYNC},{CACHE}")
    parser.add_argument("--seconds", type=float, default=Scale.seconds, help="of each timed work")
    parser.add_argument("--stored", type=int, default=Scale.stored, help="messages that lie there at the kill")
    parser.add_argument("--json", type=Path, default=Path("docs/benchmarks.json"))
    options = parser.parse_args()
    asked = options.peers.split(",")
    peers = [name for name in asked if PEERS[name].server.version()]
    missing = [name for name in asked if name not in peers]
    if missing:
        say(f"NOT INSTALLED, left out: {', '.join(missing)} (make compare-install)")
    tools = [name for name in peers if name in native.TOOLS and native.TOOLS[name].is_there()]
    scale = Scale(options.seconds, options.stored)
    durabilities = options.durability.split(",")
    facts = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": " ".join(["make compare", *(f"ARGS='{' '.join(sys.argv[1:])}'" for _ in sys.argv[1:2])]),
        "machine": machine(),
        "seconds": scale.seconds,
        "stored": scale.stored,
        "rounds": options.rounds,
        "peers": {name: _about(name) for name in peers},
        "tools": {name: {"name": native.TOOLS[name].name, "how": native.TOOLS[name].how} for name in tools},
        "missing": missing,
        **_run(peers, tools, durabilities, options.rounds, scale),
    }
    options.json.write_text(json.dumps(facts, indent=1) + "\n")
    write(facts, options.json.parent)
    for line in facts["failed"]:
        say(f"FAILED: {line}")
    return 1 if facts["failed"] else 0


def _about(name: str) -> dict[str, Any]:
    server = PEERS[name].server
    return {
        "version": server.version(),
        "client": server.client,
        "settings": server.settings,
        "best_batch": PEERS[name].best_batch,
    }


def _run(
    peers: Sequence[str], tools: Sequence[str], durabilities: Sequence[str], rounds: int, scale: Scale
) -> dict[str, Any]:
    """Everybody, in every class and round; who fails is told, and the others go on."""
    runs: Runs = {durability: {name: [] for name in peers} for durability in durabilities}
    natives: Runs = {durability: {name: [] for name in tools} for durability in durabilities}
    syncs: dict[str, dict[str, float | None]] = {durability: {} for durability in durabilities}
    failed: list[str] = []
    for kind, (name, durability, number) in told(_steps(peers, tools, durabilities, rounds)):
        try:
            if kind.endswith(CLIENTS):
                runs[durability][name].append(measure(PEERS[name], durability, scale))
            elif kind.endswith(TOOLS):
                natives[durability][name].append(native.measure(name, durability, scale))
            else:
                syncs[durability][name] = syncs_per_message(PEERS[name], durability)
        except Exception:
            failed.append(f"{kind} ({durability}, round {number})")
            traceback.print_exc()
    return {"runs": runs, "native": natives, "syncs": syncs, "failed": failed}


def _steps(
    peers: Sequence[str], tools: Sequence[str], durabilities: Sequence[str], rounds: int
) -> list[tuple[str, tuple[str, str, int]]]:
    """The brokers take turns, and nobody is always first."""
    steps = []
    for durability in durabilities:
        for number in range(rounds):
            first = number % len(peers)
            turn = [*peers[first:], *peers[:first]]
            for kind, names in ((CLIENTS, peers), (TOOLS, tools)):
                steps += [(f"{name} {kind}", (name, durability, number + 1)) for name in turn if name in names]
        steps += [(f"{name} {SYNCS}", (name, durability, 1)) for name in peers]
    return steps


if __name__ == "__main__":
    sys.exit(main())
