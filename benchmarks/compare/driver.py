"""What a client of a broker can do, as far as the comparison asks for it. One subclass for each broker.

A driver lives in a worker process of its own. It uses the broker's best Python client in the way that its authors
advise for speed, and counts a message as published only when the broker has confirmed it. Where a client can be used in
several ways, the fastest that was measured is the one in the subclass.
"""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import cycle
from typing import Any

QUEUE = "compare"
GROUP = "workers"
STAMP = struct.Struct("<q")  # a message whose way is timed begins with when it left
PACERS = 4


class Driver:
    """One client. All messages go to, and come from, one queue."""

    def __init__(self, port: int, durability: str) -> None:
        self.port = port

    def create(self) -> None:
        """Make the queue, and the group that will consume it, where there is none."""
        raise NotImplementedError

    def publish(self, batches: list[list[bytes]], end: float) -> int:
        """These again and again, as fast as they are confirmed, until the time; returns how many were confirmed."""
        raise NotImplementedError

    def publish_all(self, bodies: list[bytes]) -> None:
        """Each once, as fast as the client can; all confirmed at the return."""
        raise NotImplementedError

    def publish_one(self, body: bytes) -> None:
        """One message; returns when it is confirmed. Called by several threads."""
        raise NotImplementedError

    def consume(self) -> Iterator[list[bytes]]:
        """Bodies as they come, in batches as the client likes them; a batch is acked when the next is asked for."""
        raise NotImplementedError

    def close(self) -> None:
        pass

    # ------------------------------------------------------------ by threads, where a client has no better way

    def singles(self, bodies: list[bytes], callers: int, end: float) -> list[float]:
        """So many callers, each with one message at a time; returns the seconds that each publish took."""
        taken: list[float] = []
        turn = cycle(bodies)

        def call() -> None:
            mine = []
            begin = time.perf_counter()
            while begin < end:
                self.publish_one(next(turn))
                now = time.perf_counter()
                mine.append(now - begin)
                begin = now
            taken.extend(mine)

        together([call] * callers)
        return taken

    def paced(self, bodies: list[bytes], rate: float, end: float) -> None:
        """Stamped messages at an even rate, each published by itself."""
        turn = cycle(bodies)

        def call(first: float) -> None:
            for _ in due_until(first, PACERS / rate, end):
                self.publish_one(stamped(next(turn)))

        begin = time.perf_counter()
        together([lambda first=begin + number / rate: call(first) for number in range(PACERS)])


def together(calls: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=each) for each in calls]
    for each in threads:
        each.start()
    for each in threads:
        each.join()


async def tasks(
    publish: Callable[[bytes], Awaitable[Any]], bodies: list[bytes], callers: int, end: float
) -> list[float]:
    """What `Driver.singles` does, with a task for each caller."""
    taken: list[float] = []
    turn = cycle(bodies)

    async def call() -> None:
        begin = time.perf_counter()
        while begin < end:
            await publish(next(turn))
            now = time.perf_counter()
            taken.append(now - begin)
            begin = now

    await asyncio.gather(*(call() for _ in range(callers)))
    return taken


def stamped(body: bytes) -> bytes:
    return STAMP.pack(time.time_ns()) + body[STAMP.size :]


def stamp_of(body: bytes) -> float:
    """When a stamped message left, in seconds as `time.time` counts them."""
    left: int = STAMP.unpack_from(body)[0]
    return left / 1e9


def batches_until(batches: list[list[bytes]], end: float) -> Iterator[list[bytes]]:
    for batch in cycle(batches):
        if time.perf_counter() >= end:
            return
        yield batch


def due_until(first: float, step: float, end: float) -> Iterator[None]:
    """Sleeps to each time when something is due; who is late is not waited for."""
    due = first
    while due < end:
        time.sleep(max(0.0, due - time.perf_counter()))
        yield
        due += step


def parts(bodies: list[bytes], size: int) -> Iterator[list[bytes]]:
    for begin in range(0, len(bodies), size):
        yield bodies[begin : begin + size]
