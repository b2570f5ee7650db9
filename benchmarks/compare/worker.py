"""One client process: connects, says that it is ready, waits for the word, works, leaves what came of it in a file.

python -m compare.worker '{"peer": "mq", "port": 50052, "durability": "fsync", "work": "publish", ...}'
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from .driver import Driver, parts, stamp_of
from .peers import PEERS
from .server import LOOK_SECONDS, is_open

WARM_SECONDS = 3.0
POOL = 20_000  # distinct bodies of a client that publishes for a time


def bodies_of(spec: dict[str, Any]) -> list[bytes]:
    """Random bytes, so that nobody's compression tells; made ahead, the same in every run and for every broker."""
    if "size" not in spec:
        return []
    source = random.Random(spec["number"])
    return [source.randbytes(spec["size"]) for _ in range(spec.get("count", POOL))]


def publish(driver: Driver, spec: dict[str, Any], bodies: list[bytes]) -> dict[str, Any]:
    batches = list(parts(bodies, spec["batch"]))
    begin = time.perf_counter()
    count = driver.publish(batches, begin + spec["seconds"])
    return {"count": count, "seconds": time.perf_counter() - begin}


def store(driver: Driver, spec: dict[str, Any], bodies: list[bytes]) -> dict[str, Any]:
    begin = time.perf_counter()
    driver.publish_all(bodies)
    return {"count": len(bodies), "seconds": time.perf_counter() - begin}


def singles(driver: Driver, spec: dict[str, Any], bodies: list[bytes]) -> dict[str, Any]:
    begin = time.perf_counter()
    taken = driver.singles(bodies, spec["callers"], begin + spec["seconds"])
    return {"count": len(taken), "seconds": time.perf_counter() - begin, "taken": taken}


def paced(driver: Driver, spec: dict[str, Any], bodies: list[bytes]) -> dict[str, Any]:
    driver.paced(bodies, spec["rate"], time.perf_counter() + spec["seconds"])
    return {}


def arrive(driver: Driver, spec: dict[str, Any], _: list[bytes]) -> dict[str, Any]:
    """How old stamped messages are when they arrive: those that left some seconds after the first arrival, so that
    nobody's way into a group counts, nor what a broker compiles when it is new.
    """
    ages: list[float] = []
    begin = end = 0.0
    for bodies in driver.consume():
        now = time.time()
        if not begin:
            begin, end = now + WARM_SECONDS, now + WARM_SECONDS + spec["seconds"]
        ages += [now - left for left in map(stamp_of, bodies) if left > begin]
        if now > end:
            return {"taken": ages}
    raise AssertionError("consume never ends by itself")


def consume(driver: Driver, spec: dict[str, Any], _: list[bytes]) -> dict[str, Any]:
    """When the first message came, and the rate from there on: so that nobody's way into a group counts."""
    seen = before = 0
    first = last = 0.0
    for bodies in driver.consume():
        last = time.perf_counter()
        seen += len(bodies)
        if not first:
            first, before = last, seen
        if seen >= spec["count"] or last - first > spec["seconds"]:
            break
    return {"first_at": first, "count": seen - before, "seconds": last - first}


WORKS = {work.__name__: work for work in (publish, store, singles, paced, arrive, consume)}


def _connected(spec: dict[str, Any]) -> Driver:
    driver = PEERS[spec["peer"]].driver(spec["port"], spec["durability"])
    driver.create()
    return driver


def main() -> None:
    spec = json.loads(sys.argv[1])
    driver = _connected(spec)
    bodies = bodies_of(spec)
    if spec.get("connects_late"):
        driver.close()  # the broker will be gone; all that a client loads is loaded
    print("ready", flush=True)
    sys.stdin.readline()
    if spec.get("connects_late"):
        while not is_open(spec["port"]):
            time.sleep(LOOK_SECONDS)
        driver = _connected(spec)
    Path(spec["answer"]).write_text(json.dumps(WORKS[spec["work"]](driver, spec, bodies)))
    print("done", flush=True)
    driver.close()


if __name__ == "__main__":
    main()
