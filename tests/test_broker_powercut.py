"""Power cuts under a whole broker on the model disk: commands, a cut at any storage operation, a start, more of it.

The log's own promises are judged by `powercut`; here what clients were told is: publishes of every kind, deliveries and
acks go into one history, through all cuts, and it must keep the rules.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from handbroker import Asked, HandBroker, HandClock, HandPost, all_stopped, offsets_of
from history import OK, UNKNOWN, History
from logowner import DIRECTORY, SMALL
from loguru import logger
from modeldisk import ModelDisk, PowerCut
from torture import seed_of_run, sized

from mq.command import (
    Ack,
    CreateChannel,
    CreateGroup,
    DescribeChannel,
    DescribeGroup,
    Nack,
    Publish,
    Pull,
    Receipt,
    Start,
)
from mq.commitqueue import CommitQueue, Done, Early, Leisure
from mq.company import Company
from mq.errors import MqError
from mq.limits import Limits
from mq.vigil import Vigil
from wal import FileLog
from wal.frame import crc32c
from wal.pb.wal_pb2 import Batch, BatchMessage

__all__ = ["all_stopped"]

CUTS = sized(200, 10_000)
CUTS_OF_A_LIFE = 20
CHANNEL, GROUP, PARTITIONS = "c", "g", 2
LIMITS = Limits(snapshot_bytes=3 << 10, buffer_bytes=4 << 10, read_bytes=2 << 10, clean_bytes=0)
OPTIONS = replace(SMALL, segment_bytes=4 << 10, max_record_bytes=16 << 10)


@pytest.fixture(autouse=True)
def _quiet():
    logger.disable("wal")
    logger.disable("mq")
    yield
    logger.enable("wal")
    logger.enable("mq")


class CutDisk(ModelDisk):
    """Loses its power when something is changed. Readers close files, too, in threads where nobody takes the cut."""

    def _step(self, kind: str, path: str, halfway: Callable[[], None] | None = None) -> int:
        due = self._cut_at
        if kind == "close":
            self._cut_at = 0
        try:
            return super()._step(kind, path, halfway)
        finally:
            self._cut_at = due and max(due, self.operations + 1)


class Moody(Leisure):
    """The loop waits for the disk itself, or does not."""

    def __init__(self, vigil: Vigil, rng: Random) -> None:
        super().__init__(vigil)
        self._rng = rng

    def patience(self) -> float:
        return self._rng.choice([0.0, 10.0, 10.0])


class DiskBroker(HandBroker):
    """Writes and syncs when it is told to settle, in the test's own thread."""

    def __init__(self, disk: ModelDisk, clock: HandClock, rng: Random) -> None:
        log = FileLog.open(DIRECTORY, OPTIONS, disk=disk, clock=clock, random=rng.randbytes, is_threaded=False)
        super().__init__(log, clock, LIMITS)
        self._disk = disk
        self._post = HandPost(self.loop)
        self.broker.send_by(self._post)
        queue = self.broker.owner.queue
        queue._leisure = Moody(queue._vigil, rng)
        queue._company = Company(clock.monotonic)
        self.loop.set_exception_handler(lambda loop, context: None)  # reads of a machine that is off

    def done(self, asked: Asked) -> Done:
        return Early(self._post.put, asked)  # as on the wire: answers are made ready while the disk works

    def settle(self) -> None:
        for _ in range(3):
            self._spin_under_power()
            self.log.pump()
        self._spin_under_power()

    def _spin_under_power(self) -> None:
        self.spin()
        if self._disk.is_off:
            raise PowerCut  # which the owner met in a commit of its own, or a reader that wrote an index


class Life:
    """One directory, through many cuts."""

    def __init__(self, rng: Random, disk: ModelDisk) -> None:
        self.rng, self.disk = rng, disk
        self.clock = HandClock()
        self.history = History()
        self.kinds: set[str] = set()  # of the operations that were cut
        self._number = 0
        self._sequence = 0
        self._unanswered: tuple[list[bytes], Publish] | None = None  # an idempotent publish
        self._asked: list[tuple[list[bytes], Asked, bool, bool]] = []
        self._acking: list[tuple[Any, Asked]] = []
        self.broker = DiskBroker(disk, self.clock, rng)
        self.broker.ask(CreateChannel(CHANNEL, PARTITIONS))
        self.broker.ask(CreateGroup(CHANNEL, GROUP))

    def cut(self) -> None:
        """Work until the power fails, and start again on what is left."""
        self.disk.cut_at(self.rng.randint(1, 40))
        self.disk.before = lambda kind, path: self.kinds.add(kind)
        with suppress(PowerCut):
            for _ in range(self.rng.randint(3, 12)):
                self._step()
        found = self.disk.crashed_at_random(self.rng)
        # What was durable by then may have been told; the old machine only reads any more.
        self.disk.is_off, self.disk.before = False, None
        self.broker.spin()
        self._hear()
        self._asked.clear()
        self._acking.clear()
        self.broker.stop()
        self._start(found)

    def _start(self, found: ModelDisk) -> None:
        while True:
            self.disk = found
            if self.rng.random() < 0.2:
                self.disk.cut_at(self.rng.randint(1, 30))
            try:
                self.broker = DiskBroker(self.disk, self.clock, self.rng)
            except PowerCut:  # while it was starting
                found = self.disk.crashed_at_random(self.rng)
                continue
            self.disk.cut_at(0)
            assert not self.broker.log.report.damage
            return

    # ------------------------------------------------------------ clients

    def _step(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            self._publish()
        if self.rng.random() < 0.5:
            self._consume()
        self.clock.pass_ms(self.rng.choice((0, 1, 50)))
        if self.rng.random() < 0.3:
            self.broker.tick()
        self.broker.settle()
        self._hear()

    def _publish(self) -> None:
        rng = self.rng
        kind = rng.choice(("plain", "plain", "idempotent", "delayed"))
        if kind == "idempotent":
            if self._unanswered is None:
                contents, command = self._command(rng.randrange(PARTITIONS))
                command.producer_id, command.sequence, command.crc = "p", self._sequence, crc32c(command.batch)
                self._unanswered = contents, command
                self._note(contents, UNKNOWN, is_idempotent=True)
            contents, command = self._unanswered
            self._asked.append((contents, self.broker.send(command), True, False))
            return
        contents, command = self._command(rng.randrange(PARTITIONS))
        if kind == "delayed":
            command.delay_ms = rng.randint(1, 200)
        self._note(contents, UNKNOWN)
        self._asked.append((contents, self.broker.send(command), False, kind == "delayed"))

    def _command(self, partition: int) -> tuple[list[bytes], Publish]:
        contents = []
        for _ in range(self.rng.randint(1, 3)):
            self._number += 1
            contents.append(b"%d" % self._number + b"." * self.rng.choice((0, 50, 400)))
        batch = Batch(messages=[BatchMessage(content=content) for content in contents]).SerializeToString()
        return contents, Publish(CHANNEL, batch, len(contents), partition)

    def _consume(self) -> None:
        asked = self.broker.send(Pull(CHANNEL, GROUP, "m", max_messages=self.rng.randint(1, 20)))
        self.broker.settle()
        assert not isinstance(asked.answer, MqError), f"a pull got {asked.answer!r}"
        for pulled in asked.answer.batches:
            places = [(pulled.partition, offset) for offset in offsets_of(pulled)]
            for place, message in zip(places, Batch.FromString(pulled.batch).messages, strict=True):
                self.history.delivered(message.content, place, pulled.delivery_count, GROUP, pulled.receipt)
            receipts = [Receipt(pulled.receipt)]
            if self.rng.random() < 0.15:
                self.broker.send(Nack(CHANNEL, GROUP, "m", receipts, delay_ms=self.rng.randint(0, 5)))
                continue
            self._acking.append(((places, pulled.receipt), self.broker.send(Ack(CHANNEL, GROUP, "m", receipts))))

    def _hear(self) -> None:
        """Note the answers that have come."""
        for contents, asked, is_idempotent, is_delayed in self._asked:
            if not asked.is_answered or isinstance(asked.answer, MqError):
                continue
            reply = asked.answer
            place = None if is_delayed else (reply.partition, reply.base_offset)
            self._note(contents, OK, place, is_idempotent=is_idempotent)
            if is_idempotent and self._unanswered is not None and contents is self._unanswered[0]:
                self._unanswered = None
                self._sequence += 1
        for (places, receipt), asked in self._acking:
            is_ok = asked.is_answered and not isinstance(asked.answer, MqError)
            for place in places:
                self.history.acked(place, GROUP, OK if is_ok else UNKNOWN, receipt)
        self._asked = [each for each in self._asked if not each[1].is_answered]
        self._acking.clear()

    def _note(
        self, contents: list[bytes], outcome: str, place: tuple[int, int] | None = None, *, is_idempotent: bool = False
    ) -> None:
        for at, content in enumerate(contents):
            where = None if place is None else (place[0], place[1] + at)
            self.history.published(content, outcome, where, is_idempotent=is_idempotent)

    # ------------------------------------------------------------ the end

    def finish(self) -> list[str]:
        """Drain, read, and check. The broken rules."""
        for _ in range(10):
            if self._unanswered is None:
                break
            contents, command = self._unanswered
            asked = self.broker.send(command)
            self._asked.append((contents, asked, True, False))
            self.broker.settle()
            self._hear()
        if self._unanswered is not None:
            return [f"the broker has forgotten its producer: {asked.answer!r}"]
        for _ in range(1_000):
            self.broker.tick(100)
            self._consume()
            self.broker.settle()
            self._hear()
            lag = self.broker.ask(DescribeGroup(CHANNEL, GROUP)).lag
            if not lag and not self.broker.ask(DescribeChannel(CHANNEL)).scheduled:
                break
        else:
            return ["the drain does not end"]
        for info in self.broker.ask(DescribeChannel(CHANNEL)).partitions:
            self.history.ranges[info.partition] = (info.start_offset, info.next_offset)
            at = info.start_offset
            while at < info.next_offset:
                reply = self.broker.ask(Pull(CHANNEL, partition=info.partition, start=Start("offset", at)))
                for pulled in reply.batches:
                    messages = Batch.FromString(pulled.batch).messages
                    for offset, message in zip(offsets_of(pulled), messages, strict=True):
                        self.history.stored[pulled.partition, offset] = message.content
                at = reply.next[0].offset
        self.broker.stop()
        return self.history.check([GROUP])


def search(seed: int, cuts: int, disk: type[ModelDisk] = CutDisk) -> dict[str, int]:
    """Lives of some cuts each. Raises AssertionError, naming the seed of the life."""
    done = messages = deliveries = 0
    kinds: set[str] = set()
    for number in range(1_000_000):
        if done >= cuts:
            break
        life = Life(Random(f"{seed} {number}"), disk())
        for _ in range(CUTS_OF_A_LIFE):
            life.cut()
        done += CUTS_OF_A_LIFE
        broken = life.finish()
        assert not broken, f"seed {seed}, life {number}: {broken[:5]}"
        messages += len(life.history.publishes)
        deliveries += len(life.history.deliveries)
        kinds |= life.kinds
    return {"cuts": done, "messages sent": messages, "deliveries": deliveries, "kinds of operation cut": len(kinds)}


@pytest.mark.shows("T2", "power cuts under a whole broker on the model disk: its clients' history")
def test_whatever_a_power_cut_leaves_clients_find_what_they_were_told(figures: dict[str, Any]) -> None:
    figures["seed"] = seed_of_run()
    began = time.monotonic()
    figures |= search(figures["seed"], CUTS)
    print(f"{figures}, {time.monotonic() - began:.0f} s")
    assert figures["kinds of operation cut"] >= 6


class LyingDisk(CutDisk):
    """Says of segments that it has synced them."""

    def sync(self, fd: int) -> None:
        if not self._paths[fd].endswith(".wal"):
            super().sync(fd)


def test_a_disk_that_does_not_sync_is_caught() -> None:
    with pytest.raises(AssertionError):
        search(1, 200, LyingDisk)


def test_a_broker_that_answers_before_the_sync_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CommitQueue, "answer", lambda self, done, reply, durability=0: done(reply))
    with pytest.raises(AssertionError, match=r"is gone|which holds|and is at|has forgotten"):
        search(1, 200)


def test_a_broker_whose_answers_leave_though_the_sync_failed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HandPost, "burn", HandPost.send)
    with pytest.raises(AssertionError, match=r"is gone|which holds|and is at|has forgotten|was confirmed"):
        search(1, 200)
