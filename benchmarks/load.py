"""One client process of the benchmark: does one kind of work against one address and prints what it reached.

It drives the broker and the bare server alike. Requests are serialized once, answers are not parsed (except where
messages are counted), so that the client costs both of them the same and as little as Python allows.

    python benchmarks/load.py '{"work": "publish_batch", "address": "127.0.0.1:50051", "seconds": 3, ...}'
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable

import grpc
import uvloop

from mq.pb import mq_pb2 as pb

WARM_UP_SECONDS = 0.5
OPTIONS = [
    ("grpc.use_local_subchannel_pool", 1),  # one TCP connection for each channel object
    ("grpc.max_receive_message_length", 64 << 20),
]


def batch(count: int, size: int) -> pb.Batch:
    return pb.Batch(messages=[pb.BatchMessage(content=b"%08d" % index + b"x" * (size - 8)) for index in range(count)])


class Tally:
    """Calls and latencies after the warm-up."""

    def __init__(self, seconds: float) -> None:
        self.begin = time.perf_counter() + WARM_UP_SECONDS
        self.end = self.begin + seconds
        self.latencies: list[float] = []

    def is_over(self) -> bool:
        return time.perf_counter() >= self.end

    def add(self, started: float) -> None:
        now = time.perf_counter()
        if self.begin <= now <= self.end:
            self.latencies.append(now - started)

    def result(self, messages_per_call: int = 1) -> dict[str, float]:
        calls = len(self.latencies)
        seconds = self.end - self.begin
        ordered = sorted(self.latencies) or [0.0]
        return {
            "calls_per_second": calls / seconds,
            "messages_per_second": calls * messages_per_call / seconds,
            "p50_ms": ordered[calls // 2] * 1e3,
            "p99_ms": ordered[calls * 99 // 100] * 1e3,
        }


async def unary(spec: dict, method: str, request_of: Callable[[int, int], bytes], messages: int) -> dict[str, float]:
    """`connections` channels with `in_flight` calls each, every call followed by the next."""
    tally = Tally(spec["seconds"])
    channels = [grpc.aio.insecure_channel(spec["address"], OPTIONS) for _ in range(spec["connections"])]

    async def worker(number: int, call: grpc.aio.UnaryUnaryMultiCallable) -> None:
        turn = 0
        while not tally.is_over():
            started = time.perf_counter()
            await call(request_of(number, turn))
            tally.add(started)
            turn += 1

    calls = [channel.unary_unary(f"/mq.MQService/{method}") for channel in channels]
    await asyncio.gather(*(worker(n, call) for n, call in enumerate(calls * spec["in_flight"])))
    for channel in channels:
        await channel.close()
    return tally.result(messages)


async def publish_batch(spec: dict) -> dict[str, float]:
    """Batches of `count` messages of `size` bytes, over `channels` channels in turn."""
    content = batch(spec["count"], spec["size"])
    requests = [
        pb.PublishBatchRequest(channel=name, batch=content, durability=spec["durability"]).SerializeToString()
        for name in spec["channels"]
    ]
    return await unary(
        spec, "PublishBatch", lambda number, turn: requests[(number + turn * 7) % len(requests)], spec["count"]
    )


async def publish(spec: dict) -> dict[str, float]:
    request = pb.PublishRequest(channel=spec["channels"][0], content=b"x" * spec["size"]).SerializeToString()
    return await unary(spec, "Publish", lambda number, turn: request, 1)


async def pull(spec: dict) -> dict[str, float]:
    """Reads `stored` messages from `first` on, `count` at a time, each worker from its own place, round and round."""
    first, steps = spec.get("first", 0), spec["stored"] // spec["count"]
    requests = [
        pb.PullRequest(
            channel=spec["channels"][0],
            partition=0,
            max_messages=spec["count"],
            positions=[pb.Position(partition=0, offset=first + step * spec["count"])],
        ).SerializeToString()
        for step in range(steps)
    ]
    return await unary(spec, "Pull", lambda number, turn: requests[(number * steps // 4 + turn) % steps], spec["count"])


async def subscribe(spec: dict) -> dict[str, float]:
    """Items of one stream a second; the channel holds more than can be read in the time."""
    request = pb.SubscribeRequest(channel=spec["channels"][0], offset=pb.SubscribeRequest.OFFSET_BEGINNING)
    async with grpc.aio.insecure_channel(spec["address"], OPTIONS) as channel:
        stream = channel.unary_stream("/mq.MQService/Subscribe")(request.SerializeToString())
        for _ in range(2_000):  # warm-up
            await stream.read()
        begin, items = time.perf_counter(), spec["items"] - 2_000
        for _ in range(items):
            await stream.read()
        seconds = time.perf_counter() - begin
        stream.cancel()
    return {"messages_per_second": items / seconds}


async def paced(spec: dict) -> dict[str, float]:
    """Publishes single messages at `rate` a second, whatever the answers take; the content is the time of sending."""
    failures: list[BaseException] = []
    pending: set[asyncio.Task] = set()
    async with grpc.aio.insecure_channel(spec["address"], OPTIONS) as channel:
        call = channel.unary_unary("/mq.MQService/Publish")

        async def send() -> None:
            content = b"%d" % time.monotonic_ns()
            await call(pb.PublishRequest(channel=spec["channels"][0], content=content).SerializeToString())

        begin = time.perf_counter()
        for number in range(int(spec["rate"] * spec["seconds"])):
            delay = begin + number / spec["rate"] - time.perf_counter()
            if delay > 0:
                await asyncio.sleep(delay)
            task = asyncio.ensure_future(send())
            pending.add(task)
            task.add_done_callback(pending.discard)
        failures = [each for each in await asyncio.gather(*pending, return_exceptions=True) if each is not None]
    return {"failures": len(failures), "seconds": time.perf_counter() - begin}


async def latency(spec: dict) -> dict[str, float]:
    """Pulls what `paced` publishes and tells how old each message was on arrival."""
    ages: list[float] = []
    offset, wanted = 0, int(spec["rate"] * spec["seconds"])
    async with grpc.aio.insecure_channel(spec["address"], OPTIONS) as channel:
        call = channel.unary_unary("/mq.MQService/Pull", response_deserializer=pb.PullResponse.FromString)
        print("ready", flush=True)
        while offset < wanted:
            position = pb.Position(partition=0, offset=offset)
            request = pb.PullRequest(
                channel=spec["channels"][0], partition=0, max_messages=500, max_wait_ms=10_000, positions=[position]
            )
            answer = await call(request.SerializeToString())
            now = time.monotonic_ns()
            for pulled in answer.batches:
                ages += [(now - int(message.content)) / 1e6 for message in pulled.batch.messages]
            offset = answer.next_offset
    ages = sorted(ages[len(ages) // 10 :])  # the first tenth warms up
    return {"messages": len(ages), "p50_ms": ages[len(ages) // 2], "p99_ms": ages[len(ages) * 99 // 100]}


async def wait(spec: dict) -> dict[str, float]:
    """Holds `connections` x `in_flight` pulls open on empty channels, again and again, until killed."""
    channels = [grpc.aio.insecure_channel(spec["address"], OPTIONS) for _ in range(spec["connections"])]

    async def worker(number: int, call: grpc.aio.UnaryUnaryMultiCallable) -> None:
        name = spec["channels"][number % len(spec["channels"])]
        request = pb.PullRequest(channel=name, partition=0, max_wait_ms=60_000, start=pb.Start(latest=True))
        while True:
            await call(request.SerializeToString())

    calls = [channel.unary_unary("/mq.MQService/Pull") for channel in channels]
    workers = [asyncio.ensure_future(worker(n, call)) for n, call in enumerate(calls * spec["in_flight"])]
    await asyncio.sleep(1.0)  # all of them are on their way; nothing tells a client that its pull waits
    print("ready", flush=True)
    await asyncio.gather(*workers)
    return {}


WORKS: dict[str, Callable[[dict], Awaitable[dict[str, float]]]] = {
    "publish_batch": publish_batch,
    "publish": publish,
    "pull": pull,
    "subscribe": subscribe,
    "paced": paced,
    "latency": latency,
    "wait": wait,
}

if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    print(json.dumps(uvloop.run(WORKS[asked["work"]](asked))), flush=True)
