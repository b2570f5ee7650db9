"""A broker driven by hand: its own loop, a clock that moves when told to, a log that syncs when told to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from mq import snapshot
from mq.broker import Broker
from mq.command import Command, Publish, Receipt
from mq.commitqueue import Done
from mq.company import Company
from mq.errors import MqError
from mq.limits import Limits
from mq.state import State
from wal.memory import MemoryLog
from wal.pb.wal_pb2 import Batch, BatchMessage, ChannelSnapshot

ALIVE: list[HandBroker] = []
SECRETS = count(1)  # each start has its own, as it has in life


class HandClock:
    def __init__(self) -> None:
        self.us = 1_700_000_000_000_000

    def now_us(self) -> int:
        return self.us

    def monotonic(self) -> float:
        return self.us / 1e6

    def pass_ms(self, ms: float) -> None:
        self.us += int(ms * 1000)


class Asked:
    """A command under way: its answers, of which there must never be more than one."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.waiter: Any = None

    def __call__(self, answer: Any) -> None:
        self.answers.append(answer)
        assert len(self.answers) == 1, "answered twice"

    @property
    def is_answered(self) -> bool:
        return bool(self.answers)

    @property
    def answer(self) -> Any:
        assert self.answers, "not answered"
        return self.answers[0]


class HandPost:
    """A door's post: what it is told leaves when it is sent, at the latest at the end of the turn, or is burnt."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.lying: list[tuple[Asked, Any]] = []
        self.burnt: list[Any] = []

    def put(self, asked: Asked, answer: Any) -> None:
        self.lying.append((asked, answer))
        self._loop.call_soon(self.send)

    def send(self) -> None:
        lying, self.lying = self.lying, []
        for asked, answer in lying:
            asked(answer)

    def burn(self) -> None:
        self.burnt += [answer for _, answer in self.lying]
        self.lying = []


class HandBroker:
    """`ask` syncs and answers; `send` only decides, and `settle` syncs later."""

    def __init__(self, log: Any = None, clock: HandClock | None = None, limits: Limits | None = None) -> None:
        self.log = MemoryLog(is_held=True) if log is None else log
        self.clock = clock or HandClock()
        self.limits = limits or Limits()
        self.health: list[bool] = []
        self.loop = asyncio.new_event_loop()
        self.broker = Broker(self.log, self.clock, self.limits, secret=new_secret(), on_health=self.health.append)
        ALIVE.append(self)
        self.recovered = self.loop.run_until_complete(self.broker.start())
        self.broker.owner.queue._company = Company(count(1.0).__next__)  # a group never waits for others

    @property
    def state(self) -> State:
        return self.broker.state

    def spin(self) -> None:
        """Let everything happen that needs no sync."""

        async def turns() -> None:
            for _ in range(8):
                await asyncio.sleep(0)
            while self.broker.owner.tasks:
                await asyncio.wait(list(self.broker.owner.tasks))

        self.loop.run_until_complete(turns())

    def send(self, command: Command) -> Asked:
        asked = Asked()

        async def submit() -> None:
            asked.waiter = self.broker.submit(command, self.done(asked))

        self.loop.run_until_complete(submit())
        self.spin()
        return asked

    def done(self, asked: Asked) -> Done:
        """What the broker is to call."""
        return asked

    def settle(self) -> None:
        """Everything becomes durable."""
        for _ in range(4):
            self.spin()
            if isinstance(self.log, MemoryLog) and self.log.is_held and self.log.synced < self.log.last_sequence:
                self.log.release()
        self.spin()

    def ask(self, command: Command) -> Any:
        """The reply, once durable. Raises the MqError it gets."""
        asked = self.send(command)
        self.settle()
        if isinstance(asked.answer, MqError):
            raise asked.answer
        return asked.answer

    def tick(self, ms: float = 0) -> None:
        self.clock.pass_ms(ms)
        self.loop.call_soon(self.broker.tick)
        self.settle()

    def crash(self) -> HandBroker:
        """The broker as the next start finds it."""
        self.stop()
        return HandBroker(self.log.crash(), self.clock, self.limits)

    def restart(self) -> HandBroker:
        """A clean stop, and the next start."""
        if self.log.is_held:
            self.log.is_held = False
            self.log.release()
        self.loop.run_until_complete(self.broker.close())
        self.stop()
        return HandBroker(self.log.crash(), self.clock, self.limits)

    def stop(self) -> None:
        if self in ALIVE:
            ALIVE.remove(self)
        if self.loop.is_closed():
            return
        self.broker._agenda.stop()
        for task in list(self.broker.owner.tasks):
            task.cancel()
        self.spin_quietly()
        self.loop.close()

    def spin_quietly(self) -> None:
        self.loop.run_until_complete(asyncio.sleep(0))


@pytest.fixture(autouse=True)
def all_stopped() -> Iterator[None]:
    """Import it: whatever a test starts is stopped at its end."""
    yield
    for hand in list(ALIVE):
        hand.stop()


def new_secret() -> bytes:
    return next(SECRETS).to_bytes(32, "little")


def batch(*contents: bytes | str, key: bytes | None = None) -> bytes:
    messages = [
        BatchMessage(content=content if isinstance(content, bytes) else content.encode(), key=key)
        for content in contents
    ]
    return Batch(messages=messages).SerializeToString()


def publish(channel: str, *contents: bytes | str, **fields: Any) -> Publish:
    return Publish(channel, batch(*contents), len(contents), **fields)


def contents(reply: Any) -> list[str]:
    """What a pull gave, in order."""
    return [message.content.decode() for pulled in reply.batches for message in Batch.FromString(pulled.batch).messages]


def offsets(reply: Any) -> list[int]:
    return [offset for pulled in reply.batches for offset in offsets_of(pulled)]


def offsets_of(pulled: Any) -> list[int]:
    deltas = pulled.offset_deltas or range(pulled.count)
    return [pulled.base_offset + delta for delta in deltas]


def receipts(reply: Any) -> list[Receipt]:
    return [Receipt(pulled.receipt) for pulled in reply.batches]


def durable(state: State) -> dict[str, ChannelSnapshot]:
    """All that a restart must bring back, comparable."""
    found = {}
    for name, channel in state.channels.items():
        kept = snapshot.take(channel)
        for group in kept.groups:
            group.seen_us = 0
        found[name] = kept
    return found


def replayed(log: Any, limits: Limits) -> State:
    """The state that the durable part of a log gives."""
    state = State(limits, new_secret())
    state.synced = 1 << 62
    for sequence, record in log.replay():
        state.apply(sequence, record)
    return state
