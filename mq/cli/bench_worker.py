"""One client process of `mq bench`. Takes its work as JSON, says "ready", starts at a line on stdin, prints a result.

python -m mq.cli.bench_worker '{"work": "pub", "server": "mq://localhost", …}'
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

from mq.client.client import Client
from mq.client.position import at_offset

Spec = dict[str, Any]
Result = dict[str, Any]
now = time.perf_counter


def begin() -> float:
    """Tell that everything is set up, and wait for the others."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    return now()


def pub(client: Client, spec: Spec) -> Result:
    if spec["style"] == "publish":
        return _publish(client, spec)
    body = b"x" * spec["size"]
    with client.producer(spec["channel"], batch_size=spec["batch"], durability=spec["durability"]) as producer:
        producer.send_many([body] * 100)
        producer.flush()
        start = begin()
        sent = 0
        for count in _portions(spec, start):
            if spec["style"] == "many":
                producer.send_many(repeat(body, count))
            else:
                for _ in repeat(None, count):
                    producer.send(body)
            sent += count
        producer.flush()
        return {"messages": sent, "seconds": now() - start}


def _portions(spec: Spec, start: float) -> Iterator[int]:
    """How many to send next: all there are, as many as the rate allows, until the time is over."""
    left = spec["msgs"] or sys.maxsize
    end = start + spec["duration"] if spec["duration"] else float("inf")
    step = min(20_000, max(1, int(spec["rate"] / 100))) if spec["rate"] else 20_000
    sent = 0
    while left > 0 and now() < end:
        if spec["rate"] and (ahead := start + sent / spec["rate"] - now()) > 0:
            time.sleep(ahead)
        count = min(step, left)
        yield count
        sent += count
        left -= count


def _publish(client: Client, spec: Spec) -> Result:
    """One message after the other, in each of several threads."""
    body, threads = b"x" * spec["size"], spec["threads"]
    client.publish(spec["channel"], body, durability=spec["durability"])
    taken: list[list[float]] = [[] for _ in range(threads)]
    start = begin()
    end = start + spec["duration"] if spec["duration"] else float("inf")
    share = spec["msgs"] // threads if spec["msgs"] else sys.maxsize

    def run(times: list[float]) -> None:
        for number in range(share):
            before = now()
            if before >= end:
                return
            if spec["rate"] and (ahead := start + number * threads / spec["rate"] - before) > 0:
                time.sleep(ahead)
                before = now()
            client.publish(spec["channel"], body, durability=spec["durability"])
            times.append(now() - before)

    workers = [threading.Thread(target=run, args=(times,)) for times in taken]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    seconds = now() - start
    latencies = [each for times in taken for each in times]
    return {"messages": len(latencies), "seconds": seconds, "latencies": latencies}


def sub(client: Client, spec: Spec) -> Result:
    wanted, found = spec["msgs"], 0
    if spec["style"] == "read":
        reader = client.read(spec["channel"], batch_size=spec["batch"], follow=False)
        start = begin()
        for batch in reader.batches():
            found += len(batch.contents())
        return {"messages": found, "seconds": now() - start}
    with client.consumer(spec["channel"], spec["group"], batch_size=spec["batch"]) as consumer:
        start = begin()
        if spec["style"] == "batches":
            for pulled in consumer.batches():
                found += len(pulled)
                pulled.ack()
                if found >= wanted:
                    break
        else:
            for message in consumer:
                message.ack()
                found += 1
                if found >= wanted:
                    break
        consumer.flush()
        return {"messages": found, "seconds": now() - start}


def e2e_reader(client: Client, spec: Spec) -> Result:
    """Takes what `e2e_writer` publishes, and tells how old each message was on arrival."""
    ages: list[float] = []
    wanted = spec["msgs"]
    reader = client.read(spec["channel"], at_offset(0), batch_size=spec["batch"])
    begin()
    for batch in reader.batches():
        arrived = time.monotonic_ns()
        ages += [(arrived - int(content[:20])) / 1e9 for content in batch.contents()]
        if len(ages) >= wanted:
            break
    return {"messages": len(ages), "seconds": 0.0, "latencies": ages[len(ages) // 10 :]}  # the first tenth warms up


def e2e_writer(client: Client, spec: Spec) -> Result:
    """Publishes at a rate, whatever the answers take; each message is the time of its sending."""
    pad = b"x" * max(0, spec["size"] - 20)
    start = begin()
    with client.producer(spec["channel"], linger_ms=0, durability=spec["durability"]) as producer:
        for number in range(spec["msgs"]):
            if (ahead := start + number / spec["rate"] - now()) > 0:
                time.sleep(ahead)
            producer.send(b"%020d" % time.monotonic_ns() + pad)
    return {"messages": spec["msgs"], "seconds": now() - start}


def bare(spec: Spec) -> Result:
    """The yardstick of a round trip: bytes over TCP to a thread that writes, syncs and answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    body, taken = b"x" * spec["size"], []
    threading.Thread(target=_sync_and_answer, args=(listener, spec), daemon=True).start()
    with socket.create_connection(listener.getsockname()) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        start = begin()
        end = start + spec["duration"] if spec["duration"] else float("inf")
        for _ in range(spec["msgs"] or sys.maxsize):
            before = now()
            if before >= end:
                break
            client.sendall(body)
            client.recv(1)
            taken.append(now() - before)
    return {"messages": len(taken), "seconds": now() - start, "latencies": taken}


def _sync_and_answer(listener: socket.socket, spec: Spec) -> None:
    peer, _ = listener.accept()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)
    with tempfile.TemporaryFile(dir=spec["directory"] or None, buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, 64 << 20)
        while data := peer.recv(1 << 16):
            os.write(file.fileno(), data)
            if spec["durability"] != "os":
                sync(file.fileno())
            peer.sendall(b"k")


WORKS: dict[str, Callable[[Client, Spec], Result]] = {
    "pub": pub,
    "sub": sub,
    "e2e-reader": e2e_reader,
    "e2e-writer": e2e_writer,
}


def main() -> None:
    spec = json.loads(sys.argv[1])
    if spec["work"] == "bare":
        result = bare(spec)
    else:
        with Client(spec["server"]) as client:
            result = WORKS[spec["work"]](client, spec)
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
