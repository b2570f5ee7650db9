"""Measures what a queue needs in production: delays, ordered groups, acks out of order, idempotence, retention.

Each figure stands beside its yardstick from the same run: the same broker without the feature, or with less of it. The
broker is a process of its own; the client is this one, over the wire.

    python benchmarks/features.py [--seconds S] [--rounds N] [--only NAME[,NAME]]
        [--delayed N] [--dir DIR] [-o table|json]
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from load import batch
from processes import HERE, Broker, broker, free_port
from wire import cpu_us

from mq.client.wire_async import AsyncWireTransport
from mq.pb import mq_pb2 as pb

HOUR_MS = 3_600_000
IN_FLIGHT = 1_000


class Row(NamedTuple):
    work: str
    reached: str
    yardstick: str
    target: str
    is_met: bool


class Client:
    """Requests over one connection of the wire."""

    def __init__(self, transport: AsyncWireTransport) -> None:
        self._transport = transport

    async def ask(self, method: str, request: Any, answer: Any) -> Any:
        return answer.FromString(await self._transport.call(f"mq.{method}", request.SerializeToString()))

    async def pipeline(self, method: str, requests: Iterator[Any]) -> list[bytes]:
        """Many requests, some of them always in flight; returns their answers in order."""
        answers: list[asyncio.Future[bytes]] = []
        for number, request in enumerate(requests):
            answers.append(self._transport.submit(f"mq.{method}", request.SerializeToString()))
            if number >= IN_FLIGHT:
                await answers[number - IN_FLIGHT]
        return [await answer for answer in answers]

    async def create(self, channel: str, partitions: int = 1, **settings: Any) -> None:
        asked = pb.CreateChannelRequest(channel=channel, partitions=partitions)
        if settings:
            asked.settings.CopyFrom(pb.ChannelSettings(**settings))
        await self.ask("MQService/CreateChannel", asked, pb.CreateChannelResponse)


@contextmanager
def served(options: argparse.Namespace, **environment: str) -> Iterator[tuple[Broker, int]]:
    port = free_port()
    with broker(options.dir, SERVER_WIRE_PORT=str(port), **environment) as server:
        yield server, port


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Client]:
    transport = await AsyncWireTransport.connect("127.0.0.1", port)
    try:
        yield Client(transport)
    finally:
        await transport.close()


# ---------------------------------------------------------------- delays


async def delayed(options: argparse.Namespace) -> list[Row]:
    return await waiting(options, 500, 100.0)


async def delayed_singles(options: argparse.Namespace) -> list[Row]:
    return await waiting(options, 1, 400.0)


async def waiting(options: argparse.Namespace, count: int, most_mb: float) -> list[Row]:
    """Many that wait, in batches or one by one; then how punctual those are that come due among them."""
    with served(options) as (server, port):
        async with connected(port) as client:
            await client.create("bench")
            await client.pipeline("MQService/PublishBatch", due_in_an_hour(2_000, 1))  # what a first use costs
            before = server.resident_mb()
            begin = time.perf_counter()
            await client.pipeline("MQService/PublishBatch", due_in_an_hour(options.delayed, count))
            rate = options.delayed / (time.perf_counter() - begin)
            grown = server.resident_mb() - before
            due, plain = await lateness(port, client, max(2.0, options.seconds))
            looks = await look(client)
    work = f"{options.delayed / 1e6:g} M delayed messages " + ("in batches of 500" if count > 1 else "one by one")
    (p50, p99), (plain_p50, plain_p99) = ((each[len(each) // 2], each[len(each) * 99 // 100]) for each in (due, plain))
    punctual = f"p50 {p50:.1f} ms, p99 {p99:.1f} ms late"
    beside = f"plain: {plain_p50:.1f} ms, {plain_p99:.1f} ms"
    # a disk that is slow at the moment is slow for those that are published at once as well
    is_punctual = p99 <= 50
    return [
        Row(work, f"+{grown:.0f} MB, {rate:,.0f} msg/s", "", f"< {most_mb:.0f} MB", grown < most_mb),
        Row("others that come due among them", punctual, beside, "p99 within 50 ms", is_punctual),
        Row("describe the channel; list the next of them", looks, "", "", True),
    ]


def due_in_an_hour(messages: int, count: int) -> Iterator[pb.PublishBatchRequest]:
    content = batch(count, 100)
    for number in range(messages // count):
        yield pb.PublishBatchRequest(channel="bench", batch=content, delay_ms=HOUR_MS + number)


async def lateness(port: int, client: Client, seconds: float) -> tuple[list[float], list[float]]:
    """Milliseconds until a waiting reader had a message: since it was due, or since a plain one in between was sent."""
    late: dict[bytes, list[float]] = {b"due": [], b"plain": []}
    wanted = int(seconds * 100)
    first = time.time_ns() // 1_000 + 500_000

    async def read() -> None:
        async with connected(port) as reader:
            offset = 0
            while offset < 2 * wanted:
                at = pb.Position(partition=0, offset=offset)
                asked = pb.PullRequest(channel="bench", partition=0, positions=[at], max_wait_ms=1_000)
                answer = await reader.ask("MQService/Pull", asked, pb.PullResponse)
                now = time.time_ns() // 1_000
                for each in (message for pulled in answer.batches for message in pulled.batch.messages):
                    kind, _, since = each.content.partition(b" ")
                    late[kind].append((now - int(since)) / 1e3)
                offset = answer.next_offset

    reading = asyncio.create_task(read())
    due = (of_one(b"due", first + number * 10_000, is_delayed=True) for number in range(wanted))
    await client.pipeline("MQService/PublishBatch", due)
    for number in range(wanted):
        await asyncio.sleep(max(0.0, (first + number * 10_000 + 5_000) / 1e6 - time.time()))
        plain = of_one(b"plain", time.time_ns() // 1_000, is_delayed=False)
        await client.ask("MQService/PublishBatch", plain, pb.PublishBatchResponse)
    await reading
    return sorted(late[b"due"]), sorted(late[b"plain"])


def of_one(kind: bytes, time_us: int, *, is_delayed: bool) -> pb.PublishBatchRequest:
    messages = [pb.BatchMessage(content=b"%s %d" % (kind, time_us))]
    deliver_at_us = time_us if is_delayed else 0
    return pb.PublishBatchRequest(channel="bench", batch=pb.Batch(messages=messages), deliver_at_us=deliver_at_us)


async def look(client: Client) -> str:
    """How long a look at them holds up everybody else."""
    begin = time.perf_counter()
    await client.ask("AdminService/DescribeChannel", pb.DescribeChannelRequest(channel="bench"), pb.ChannelInfo)
    described = (time.perf_counter() - begin) * 1e3
    begin = time.perf_counter()
    await client.ask("AdminService/ListSchedules", pb.ListSchedulesRequest(channel="bench"), pb.ListSchedulesResponse)
    return f"{described:.1f} ms; {(time.perf_counter() - begin) * 1e3:.1f} ms"


# ---------------------------------------------------------------- ordered groups

MEMBERS, PARTITIONS = 16, 64


class Member:
    """Pulls and acks as fast as it can, and notes what it got."""

    def __init__(self, name: str, client: Client, got: list[tuple[int, int, int]]) -> None:
        self._who = {"channel": "bench", "group": "g", "member": name}
        self._client = client
        self._got = got
        self.is_leaving = False

    async def run(self) -> None:
        pull = pb.PullRequest(**self._who, max_messages=100, max_wait_ms=50)
        while not self.is_leaving:
            answer = await self._client.ask("MQService/Pull", pull, pb.PullResponse)
            if answer.batches:
                receipts = [pb.Receipt(receipt=each.receipt) for each in answer.batches]
                await self._client.ask("MQService/Ack", pb.AckRequest(**self._who, receipts=receipts), pb.AckResponse)
            for each in answer.batches:
                self._got += [
                    (each.partition, each.base_offset + index, each.delivery_count) for index in range(each.count)
                ]
        await self._client.ask("MQService/Leave", pb.LeaveRequest(**self._who), pb.LeaveResponse)


async def ordered(options: argparse.Namespace) -> list[Row]:
    """The 16th member joins, and leaves again, while all partitions are published to."""
    joins, leaves = [], []
    with served(options) as (_, port):
        async with asyncio.TaskGroup() as group, connected(port) as admin:
            await admin.create("bench", PARTITIONS)
            settings = pb.GroupSettings(mode=pb.GroupSettings.ORDERED)
            made = pb.CreateGroupRequest(channel="bench", group="g", settings=settings)
            await admin.ask("AdminService/CreateGroup", made, pb.GroupInfo)
            got: list[tuple[int, int, int]] = []
            over = asyncio.Event()
            group.create_task(publish_everywhere(port, over))
            connections = [connected(port) for _ in range(MEMBERS)]
            clients = [await each.__aenter__() for each in connections]
            members = [Member(f"m{number}", client, got) for number, client in enumerate(clients)]
            tasks = [group.create_task(member.run()) for member in members[:-1]]
            await balanced(admin, MEMBERS - 1)
            for _ in range(options.rounds):
                last = Member(f"m{MEMBERS - 1}", clients[-1], got)
                begin = time.perf_counter()
                running = group.create_task(last.run())
                await balanced(admin, MEMBERS)
                joins.append(time.perf_counter() - begin)
                await asyncio.sleep(options.seconds / 10)  # all of them work for a while
                last.is_leaving = True
                await running
                begin = time.perf_counter()
                await balanced(admin, MEMBERS - 1)
                leaves.append(time.perf_counter() - begin)
            over.set()
            for member in members:
                member.is_leaving = True
            await asyncio.gather(*tasks)
            for each in connections:
                await each.__aexit__(None, None, None)
    twice = len(got) - len({(partition, offset) for partition, offset, _ in got})
    again = sum(count > 1 for _, _, count in got)
    worst = max(joins + leaves)
    reached = f"join {max(joins) * 1e3:.0f} ms, leave {max(leaves) * 1e3:.0f} ms, {twice + again} of {len(got):,} twice"
    work = f"{MEMBERS} members on {PARTITIONS} partitions: one joins, one leaves"
    return [Row(work, reached, "", "< 1 s, none twice", worst < 1 and not twice + again)]


async def publish_everywhere(port: int, over: asyncio.Event) -> None:
    async with connected(port) as client:
        requests = [
            pb.PublishBatchRequest(channel="bench", partition=at, batch=batch(2, 100)) for at in range(PARTITIONS)
        ]
        while not over.is_set():
            await client.pipeline("MQService/PublishBatch", iter(requests))
            await asyncio.sleep(0.01)


async def balanced(client: Client, members: int) -> None:
    """Until every partition has an owner, and all own alike."""
    least = PARTITIONS // members
    while True:
        asked = pb.DescribeGroupRequest(channel="bench", group="g")
        info = await client.ask("AdminService/DescribeGroup", asked, pb.GroupInfo)
        owned = [sum(at.owner == member.member for at in info.positions) for member in info.members]
        if len(owned) == members and sum(owned) == PARTITIONS and least <= min(owned) <= max(owned) <= least + 1:
            return
        await asyncio.sleep(0.002)


# ---------------------------------------------------------------- acks


async def acks(options: argparse.Namespace) -> list[Row]:
    """Single acks anywhere in a backlog that is out: with few ranges of acked messages, or with a hundred thousand."""
    ranges, sample, turns = 100_000, 2_000, 9
    spent: dict[str, list[float]] = {"few": [], "many": []}
    leases = {}
    with served(options, GROUP_ACK_WAIT="1h") as (server, port):
        async with connected(port) as client:
            publish = [pb.PublishBatchRequest(channel=name, batch=batch(500, 100)) for name in spent]
            for name, request in zip(spent, publish, strict=True):
                await client.create(name)
                await client.pipeline("MQService/PublishBatch", (request for _ in range(2 * ranges // 500)))
                leases[name] = await take_all(client, name, 2 * ranges)
            odd = (leases["many"].ack(range(start + 1, start + 500, 2)) for start in range(0, 2 * ranges, 500))
            await client.pipeline("MQService/Ack", odd)
            chosen = random.Random(1).sample(range(0, 2 * ranges, 2), sample * turns)
            for turn in range(turns):
                for name, figures in spent.items():
                    requests = [leases[name].ack([offset]) for offset in chosen[turn * sample : (turn + 1) * sample]]
                    begin = cpu_us(server.process)
                    await client.pipeline("MQService/Ack", iter(requests))
                    figures.append((cpu_us(server.process) - begin) / sample)
    few, many = (statistics.median(spent[name]) for name in ("few", "many"))
    work = f"ack one message with {ranges:,} acked ranges around it"
    return [Row(work, f"CPU {many:.0f} µs = {many / few:.2f} x", f"{few:.0f} µs", "<= 1.3 x", many <= 1.3 * few)]


class Leases(NamedTuple):
    channel: str
    receipts: dict[int, bytes]  # by the first offset, each of `span` messages
    span: int

    def ack(self, offsets: Any) -> pb.AckRequest:
        found: dict[bytes, list[pb.OffsetRange]] = {}
        for offset in offsets:
            receipt = self.receipts[offset // self.span * self.span]
            found.setdefault(receipt, []).append(pb.OffsetRange(start=offset, end=offset + 1))
        receipts = [pb.Receipt(receipt=receipt, ranges=ranges) for receipt, ranges in found.items()]
        return pb.AckRequest(channel=self.channel, group="g", member="m", receipts=receipts)


async def take_all(client: Client, channel: str, messages: int) -> Leases:
    receipts: dict[int, bytes] = {}
    while len(receipts) * 500 < messages:
        asked = pb.PullRequest(channel=channel, group="g", member="m", max_messages=500)
        for each in (await client.ask("MQService/Pull", asked, pb.PullResponse)).batches:
            assert (each.base_offset % 500, each.count) == (0, 500)
            receipts[each.base_offset] = each.receipt
    return Leases(channel, receipts, 500)


# ---------------------------------------------------------------- idempotence


async def idempotence(options: argparse.Namespace) -> list[Row]:
    """Batches with and without a producer's numbers, in turn."""
    rates: dict[str, list[float]] = {"plain": [], "numbered": []}
    with served(options) as (_, port):
        async with connected(port) as client:
            await client.create("bench")
            content = batch(500, 100)
            sequence = 0
            for turn in range(2 * max(3, options.rounds) + 1):
                for name, figures in rates.items():
                    begin, done = time.perf_counter(), 0
                    while time.perf_counter() < begin + options.seconds / 4:
                        requests = []
                        for _ in range(200):
                            asked = pb.PublishBatchRequest(channel="bench", batch=content)
                            if name == "numbered":
                                asked.producer_id, asked.sequence = "p", sequence
                                sequence += 1
                            requests.append(asked)
                        await client.pipeline("MQService/PublishBatch", iter(requests))
                        done += len(requests) * 500
                    if turn:  # the first warms up
                        figures.append(done / (time.perf_counter() - begin))
    ratio = statistics.median(a / b for a, b in zip(rates["numbered"], rates["plain"], strict=True))
    plain, numbered = (statistics.median(rates[name]) for name in ("plain", "numbered"))
    reached = f"{numbered:,.0f} msg/s = {ratio:.2f}"
    return [
        Row("idempotent PublishBatch 500 x 100 B", reached, f"{plain:,.0f} msg/s", ">= 0.95 of plain", ratio >= 0.95)
    ]


# ---------------------------------------------------------------- retention

CHANNELS, RATE = 1_000, 200


async def retention(options: argparse.Namespace) -> list[Row]:
    """The CPU of two brokers side by side under the same light load, one with an age that ends its messages."""
    seconds = 5 * max(2.0, options.seconds)
    with served(options) as (plain, plain_port), served(options) as (aging, aging_port):
        async with connected(plain_port) as one, connected(aging_port) as other:
            for number in range(CHANNELS):
                await one.create(f"c{number}")
                await other.create(f"c{number}", max_age_ms=3_000)
            await publish_slowly([one, other], 5.0)  # until messages come of age as fast as they come
            begin = [cpu_us(server.process) for server in (plain, aging)]
            await publish_slowly([one, other], seconds)
            end = [cpu_us(server.process) for server in (plain, aging)]
    without, with_age = ((after - before) / 1e6 / seconds for before, after in zip(begin, end, strict=True))
    work = f"retention by age on {CHANNELS:,} channels, {RATE} messages a second"
    cost = with_age - without
    return [Row(work, f"{cost:.2%} of a core", f"{without:.1%} without", "< 1 %", cost < 0.01)]


async def publish_slowly(clients: list[Client], seconds: float) -> None:
    """To all channels in turn, some at a time."""
    begin, at_once = time.perf_counter(), RATE // 4
    for first in range(0, int(seconds * RATE), at_once):
        await asyncio.sleep(max(0.0, begin + first / RATE - time.perf_counter()))
        names = [f"c{(first + index) % CHANNELS}" for index in range(at_once)]
        requests = [pb.PublishBatchRequest(channel=name, batch=batch(1, 100)) for name in names]
        await asyncio.gather(*(client.pipeline("MQService/PublishBatch", iter(requests)) for client in clients))


PARTS: dict[str, Callable[[argparse.Namespace], Coroutine[Any, Any, list[Row]]]] = {
    "delayed": delayed,
    "delayed-singles": delayed_singles,
    "ordered": ordered,
    "acks": acks,
    "idempotence": idempotence,
    "retention": retention,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(PARTS), help=f"any of {', '.join(PARTS)}")
    parser.add_argument("--delayed", type=int, default=1_000_000, help="messages that wait at the same time")
    parser.add_argument("--dir", type=Path, default=HERE.parent / "build" / "bench", help="on the disk to measure")
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table")
    options = parser.parse_args()
    rows: list[Row] = []
    for name in options.only.split(","):
        print(f"{name} …", file=sys.stderr, flush=True)
        rows += asyncio.run(PARTS[name](options))
    if options.output == "json":
        print(json.dumps([row._asdict() for row in rows], indent=1))
    else:
        print_table(rows)
    sys.exit(not all(row.is_met for row in rows))


def print_table(rows: list[Row]) -> None:
    lines = [
        ("work", "reached", "yardstick", "target", ""),
        *((*row[:4], ("ok" if row.is_met else "MISSED") if row.target else "") for row in rows),
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(5)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
