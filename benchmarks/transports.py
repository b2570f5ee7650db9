"""One client process of the wire's benchmark: one kind of work through one of the client's transports.

The same code drives both doors, so that they differ in nothing but the transport.

    python benchmarks/transports.py '{"work": "singly", "door": "wire", "port": 50052, "seconds": 3, ...}'
"""

import asyncio
import json
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop
from load import WARM_UP_SECONDS, Tally, batch

from mq import wire
from mq.client.grpc import AsyncGrpcTransport, GrpcTransport
from mq.client.wire import WireTransport
from mq.client.wire_async import AsyncWireTransport
from mq.pb import mq_pb2 as pb

PUBLISH, BATCH, PULL = "mq.MQService/Publish", "mq.MQService/PublishBatch", "mq.MQService/Pull"
HOST = "127.0.0.1"


def publish(spec: dict[str, Any]) -> bytes:
    return pb.PublishRequest(channel="bench", content=b"x" * spec["size"]).SerializeToString()


def singly(spec: dict[str, Any]) -> dict[str, float]:
    """One connection, one message at a time, in one thread."""
    request = publish(spec)
    tally = Tally(spec["seconds"])
    if spec["door"] == "echo":
        with socket.create_connection((HOST, spec["port"])) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while not tally.is_over():
                started = time.perf_counter()
                connection.sendall(request)
                connection.recv(4_096)
                tally.add(started)
        return tally.result()
    transport = (WireTransport if spec["door"] == "wire" else GrpcTransport)(HOST, spec["port"])
    while not tally.is_over():
        started = time.perf_counter()
        transport.call(PUBLISH, request, 30.0)
        tally.add(started)
    transport.close()
    return tally.result()


async def connect(spec: dict[str, Any]) -> Any:
    cls = AsyncWireTransport if spec["door"] == "wire" else AsyncGrpcTransport
    return await cls.connect(HOST, spec["port"])


async def side_by_side(spec: dict[str, Any], method: str, requests: list[bytes], messages: int) -> dict[str, float]:
    """`connections` of them, with `in_flight` calls each, every call followed by the next."""
    transports = [await connect(spec) for _ in range(spec["connections"])]
    tally = Tally(spec["seconds"])

    async def work(number: int, transport: Any) -> None:
        turn = number * len(requests) // 4
        while not tally.is_over():
            started = time.perf_counter()
            await transport.call(method, requests[turn % len(requests)])
            tally.add(started)
            turn += 1

    await asyncio.gather(*(work(n, transport) for n, transport in enumerate(transports * spec["in_flight"])))
    for transport in transports:
        await transport.close()
    return tally.result(messages)


async def pipelined(spec: dict[str, Any]) -> dict[str, float]:
    """One connection, `in_flight` single messages on it at any moment, and no task for any of them."""
    transport, request = await connect(spec), publish(spec)
    done, count, left = asyncio.Event(), 0, spec["in_flight"]
    begin = time.perf_counter() + WARM_UP_SECONDS
    end = begin + spec["seconds"]

    def again(answer: asyncio.Future[bytes]) -> None:
        nonlocal count, left
        answer.result()
        now = time.perf_counter()
        if now < end:
            count += now >= begin
            transport.submit(PUBLISH, request).add_done_callback(again)
            return
        left -= 1
        if not left:
            done.set()

    for _ in range(spec["in_flight"]):
        transport.submit(PUBLISH, request).add_done_callback(again)
    await done.wait()
    await transport.close()
    return {"messages_per_second": count / spec["seconds"], "calls_per_second": count / spec["seconds"]}


async def batches(spec: dict[str, Any]) -> dict[str, float]:
    request = pb.PublishBatchRequest(channel="bench", batch=batch(spec["count"], spec["size"])).SerializeToString()
    return await side_by_side(spec, BATCH, [request], spec["count"])


async def pulls(spec: dict[str, Any]) -> dict[str, float]:
    """Reads a channel of `stored` messages, `count` at a time, round and round."""
    requests = [
        pb.PullRequest(
            channel="bench", max_messages=spec["count"], positions=[pb.Position(partition=0, offset=offset)]
        ).SerializeToString()
        for offset in range(0, spec["stored"], spec["count"])
    ]
    return await side_by_side(spec, PULL, requests, spec["count"])


async def messages(spec: dict[str, Any]) -> dict[str, float]:
    return await side_by_side(spec, PUBLISH, [publish(spec)], 1)


def idle(spec: dict[str, Any]) -> dict[str, float]:
    """Opens `connections` with a waiting pull on each, says so, and holds them until killed."""
    hello = wire.MAGIC + wire.pack(0, wire.HELLO, 0, pb.WireHello(version=1).SerializeToString())
    pull = pb.PullRequest(channel="quiet", partition=0, max_wait_ms=60_000, start=pb.Start(latest=True))
    opening = hello + wire.pack(1, wire.METHODS[PULL], 0, pull.SerializeToString())
    held = []
    for _ in range(spec["connections"]):
        held.append(socket.create_connection((HOST, spec["port"])))
        held[-1].sendall(opening)
    for each in held:
        each.recv(1_000)
    print("ready", flush=True)
    time.sleep(600)
    return {}


ALONE: dict[str, Callable[[dict[str, Any]], dict[str, float]]] = {"singly": singly, "idle": idle}
WORKS: dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, float]]]] = {
    "messages": messages,
    "pipelined": pipelined,
    "batches": batches,
    "pulls": pulls,
}

if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    if asked["work"] in ALONE:
        print(json.dumps(ALONE[asked["work"]](asked)), flush=True)
    else:
        print(json.dumps(uvloop.run(WORKS[asked["work"]](asked))), flush=True)
