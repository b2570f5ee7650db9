"""An ordered group whose members are killed, paused past their session, resumed and joined by others: one owner each.

The members are processes (tests/groupmember.py) and the broker is one, too. What they wrote down is put together by the
clock that all of them share, and checked as a history.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
from groupmember import ACKED, ACKING, CHANNEL, DELIVERED, GROUP, LOST
from history import OK, UNKNOWN, History
from process import DEADLINE, Process, wait_until

import mq
from mq.pb import mq_pb2 as pb

PARTITIONS, KEYS = 6, 24
SESSION_MS = 1_000
PIECE = 10  # messages that a step of the test waits for


class Fact(NamedTuple):
    when: int
    member: str
    kind: str
    place: tuple[int, int]
    delivery_count: int
    content: bytes


class Member:
    def __init__(self, name: str, address: str, directory: Path) -> None:
        self.name = name
        self._file = directory / name
        script = Path(__file__).with_name("groupmember.py")
        self.process = subprocess.Popen([sys.executable, str(script), address, name, str(self._file)])

    def facts(self) -> list[Fact]:
        """What it wrote down; a line that a SIGKILL cut never happened."""
        lines = self._file.read_bytes().split(b"\n")[:-1] if self._file.exists() else []
        found = []
        for line in lines:
            kind, when, partition, offset, delivery_count, content = line.split(b" ", 5)
            place = (int(partition), int(offset))
            found.append(Fact(int(when), self.name, kind.decode(), place, int(delivery_count), content))
        return found

    def acked(self) -> int:
        return sum(fact.kind == ACKED for fact in self.facts())

    def wait_for_more(self) -> None:
        reached = self.acked() + PIECE
        wait_until(lambda: self.acked() >= reached)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)
        if number == signal.SIGKILL:
            self.process.wait(DEADLINE)


class Scene:
    """A broker, a publisher that never rests, and members."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.broker = Process(directory)
        self.address = f"mq://127.0.0.1:{self.broker.wait_for_port('wire')}"
        self.client = mq.Client(self.address)
        self.client.create_channel(CHANNEL, partitions=PARTITIONS)
        self.client.create_group(
            CHANNEL, GROUP, ordered=True, session_timeout_ms=SESSION_MS, ack_wait_ms=60_000, max_deliver=1_000_000
        )
        self.history = History()
        self.members: dict[str, Member] = {}
        self._is_over = threading.Event()
        self._publisher = threading.Thread(target=self._publish)
        self._publisher.start()

    def _publish(self) -> None:
        for number in count():
            if self._is_over.wait(0.002):
                return
            content = b"%d:%d" % (number % KEYS, number // KEYS)
            done = self.client.publish(CHANNEL, content, key=b"%d" % (number % KEYS))
            self.history.published(content, OK, (done.partition, done.offset), is_idempotent=True)

    def join(self, name: str) -> Member:
        member = self.members[name] = Member(name, self.address, self._directory)
        return member

    def owners(self) -> set[str]:
        return {at.owner for at in self.describe().positions}

    def describe(self) -> pb.GroupInfo:
        return self.client.describe_group(CHANNEL, GROUP)

    def finish(self) -> None:
        """Publish no more, let the group come to the end, and read what is stored."""
        self._is_over.set()
        self._publisher.join(DEADLINE)
        wait_until(lambda: self.describe().lag == 0)
        for member in self.members.values():
            member.process.terminate()
            member.process.wait(DEADLINE)
        for at in self.client.describe_channel(CHANNEL).partitions:
            self.history.ranges[at.partition] = (at.start_offset, at.next_offset)
        for message in self.client.read(CHANNEL, follow=False):
            self.history.stored[message.partition, message.offset] = message.content
        self._tell()

    def _tell(self) -> None:
        """What the members wrote down, in the order in which it happened; acks by when they were sent.

        What a member was handed by a lease that was gone already does not count as delivered by the broker.
        """
        facts = sorted(fact for member in self.members.values() for fact in member.facts())
        ends = {fact[1:2] + fact[3:5]: fact.kind for fact in facts if fact.kind in (ACKED, LOST)}
        for number, fact in enumerate(facts):
            end = ends.get(fact[1:2] + fact[3:5])
            if fact.kind == DELIVERED and end != LOST:
                self.history.delivered(fact.content, fact.place, fact.delivery_count, GROUP)
            elif fact.kind == ACKING:
                outcome = OK if end == ACKED else UNKNOWN
                self.history.acked(fact.place, GROUP, outcome, b"%d" % number)

    def close(self) -> None:
        self._is_over.set()
        self._publisher.join(DEADLINE)
        for member in self.members.values():
            if member.process.poll() is None:
                member.signal(signal.SIGKILL)
        self.client.close()
        self.broker.signal(signal.SIGKILL)
        self.broker.wait()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.close()


@pytest.mark.shows("T1", "members of an ordered group killed, paused past their session, joined by others")
def test_each_message_has_one_owner_whoever_is_killed_paused_or_joins(scene: Scene, figures: dict[str, int]) -> None:
    first, second, third = (scene.join(name) for name in ("one", "two", "three"))
    wait_until(lambda: scene.owners() == {"one", "two", "three"})
    for member in (first, second, third):
        member.wait_for_more()

    first.signal(signal.SIGKILL)
    wait_until(lambda: scene.owners() == {"two", "three"})
    second.wait_for_more()
    third.wait_for_more()

    second.signal(signal.SIGSTOP)
    wait_until(lambda: scene.owners() == {"three"})
    third.wait_for_more()
    second.signal(signal.SIGCONT)
    wait_until(lambda: scene.owners() == {"two", "three"})
    second.wait_for_more()

    fourth = scene.join("four")
    wait_until(lambda: scene.owners() == {"two", "three", "four"})
    fourth.wait_for_more()
    third.signal(signal.SIGSTOP)
    second.signal(signal.SIGKILL)
    wait_until(lambda: scene.owners() == {"four"})
    fifth = scene.join("five")
    third.signal(signal.SIGCONT)
    wait_until(lambda: scene.owners() == {"three", "four", "five"})
    for member in (third, fourth, fifth):
        member.wait_for_more()

    scene.finish()
    figures |= {"members": len(scene.members), "messages": len(scene.history.stored)}
    assert scene.history.check([GROUP], ordered=[GROUP]) == []
    by_key: dict[bytes, list[int]] = {}
    for _, place, _, outcome, _ in scene.history.acks:
        key, _, number = scene.history.stored[place].partition(b":")
        if outcome == OK:
            by_key.setdefault(key, []).append(int(number))
    assert all(numbers == sorted(set(numbers)) for numbers in by_key.values()), "the order of a key"
    assert len(by_key) == KEYS
