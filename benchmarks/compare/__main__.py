"""python -m compare [--peers mq,Redis] [--rounds 3] [--durability fsync,cache] [--write]"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from datetime import UTC, datetime
from pathlib import Path

from .peers import PEERS
from .report import machine, write
from .run import Result, Scale, measure
from .server import CACHE, FSYNC


def main() -> int:
    parser = argparse.ArgumentParser(prog="compare", description="mq beside other brokers, on this machine")
    parser.add_argument("--peers", default=",".join(PEERS), help="which; those that are not installed are left out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--durability", default=f"{FSYNC},{CACHE}")
    parser.add_argument("--seconds", type=float, default=Scale.seconds, help="of each timed work")
    parser.add_argument("--stored", type=int, default=Scale.stored, help="messages that lie there at the kill")
    parser.add_argument("--json", type=Path, default=Path("docs/benchmarks.json"))
    options = parser.parse_args()
    peers, missing = [], []
    for name in options.peers.split(","):
        (peers if PEERS[name].server.version() else missing).append(name)
    if missing:
        say(f"NOT INSTALLED, left out: {', '.join(missing)} (make compare-install)")
    scale = Scale(options.seconds, options.stored)
    runs: dict[str, dict[str, list[Result]]] = {}
    failed: list[str] = []
    for durability in options.durability.split(","):
        runs[durability] = {name: [] for name in peers}
        for number in range(options.rounds):
            turn = peers[number % len(peers) :] + peers[: number % len(peers)]  # nobody is always first
            for name in turn:
                say(f"{durability}, round {number + 1} of {options.rounds}: {name}")
                try:
                    runs[durability][name].append(measure(PEERS[name], durability, scale))
                except Exception:
                    failed.append(f"{name} ({durability}, round {number + 1})")
                    traceback.print_exc()
    facts = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": " ".join(["make compare", *(f"ARGS='{' '.join(sys.argv[1:])}'" for _ in sys.argv[1:2])]),
        "machine": machine(),
        "seconds": scale.seconds,
        "stored": scale.stored,
        "rounds": options.rounds,
        "peers": {
            name: {
                "version": PEERS[name].server.version(),
                "client": PEERS[name].server.client,
                "settings": PEERS[name].server.settings,
                "best_batch": PEERS[name].best_batch,
            }
            for name in peers
        },
        "missing": missing,
        "failed": failed,
        "runs": runs,
    }
    options.json.write_text(json.dumps(facts, indent=1) + "\n")
    write(facts, options.json.parent)
    for line in failed:
        say(f"FAILED: {line}")
    return 1 if failed else 0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
