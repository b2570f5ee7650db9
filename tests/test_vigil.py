"""The vigil after an answer: short, never two at once, and given up where nobody comes."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable

import pytest

from mq.commitqueue import CommitQueue
from mq.config import Config
from mq.limits import Limits
from mq.reply import LeaveReply
from mq.server import limits
from mq.vigil import LONGEST_REST, SECONDS, Vigil, times_displaced
from wal import MemoryLog
from wal.pb.wal_pb2 import ChannelCreated

TURN = SECONDS / 10


class Loop:
    """A loop without a network: each call that it makes takes a turn's time."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.now = 1.0
        self.displaced = 0
        self.calls: deque[Callable[[], None]] = deque()
        self.vigil = Vigil(self.calls.append, lambda: self.now, seconds, lambda: self.displaced)

    def turn(self) -> None:
        self.now += TURN
        self.calls.popleft()()

    def sleep(self) -> int:
        """Make all calls there are; returns how many that were."""
        turns = 0
        while self.calls:
            self.turn()
            turns += 1
            assert turns < 1_000, "it never sleeps again"
        return turns

    def answer(self) -> bool:
        """Answer, and let nothing come; returns whether there was a vigil."""
        self.vigil.begin()
        return self.sleep() > 0


def test_it_looks_on_for_its_time_and_then_lets_the_loop_sleep() -> None:
    loop = Loop()
    loop.vigil.begin()
    assert loop.sleep() in (10, 11)


def test_a_request_ends_it_at_once() -> None:
    loop = Loop()
    loop.vigil.begin()
    loop.turn()
    loop.vigil.end()
    assert loop.sleep() == 1


def test_there_is_one_at_a_time_however_quickly_answers_follow() -> None:
    loop = Loop()
    for _ in range(100):
        loop.vigil.begin()
        loop.vigil.end()
        loop.vigil.begin()
        assert len(loop.calls) == 1
        loop.turn()
    loop.sleep()


def test_where_nobody_comes_it_is_seldom_tried() -> None:
    loop = Loop()
    vigils = sum(loop.answer() for _ in range(100 * LONGEST_REST))
    assert vigils < 100 + 2 * LONGEST_REST.bit_length()


def test_where_somebody_comes_it_follows_every_answer() -> None:
    loop = Loop()
    while loop.answer():
        pass  # until it rests
    for _ in range(2 * LONGEST_REST):
        loop.vigil.begin()
        if loop.calls:
            break
    loop.vigil.end()
    loop.sleep()
    for _ in range(1_000):
        loop.vigil.begin()
        assert loop.calls
        loop.vigil.end()
        loop.sleep()
    assert loop.answer()
    assert loop.answer(), "one in vain counts like the first"


def test_where_others_need_the_processor_it_is_seldom_tried_though_somebody_comes() -> None:
    loop, vigils = Loop(seconds=10 * SECONDS), 0
    for _ in range(100 * LONGEST_REST):
        loop.vigil.begin()
        vigils += bool(loop.calls)
        loop.displaced += 1
        loop.vigil.end()
        loop.sleep()
    assert vigils < 100 + 2 * LONGEST_REST.bit_length()


def test_a_thread_that_works_beside_others_is_displaced_and_knows_it() -> None:
    if not hasattr(resource, "RUSAGE_THREAD"):
        pytest.skip("this system does not count for each thread")
    before = times_displaced()
    rivals = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        deadline = time.monotonic() + 30
        while times_displaced() == before:
            assert time.monotonic() < deadline, "nobody else ever got this processor"
    finally:
        for each in rivals:
            each.kill()
            each.wait()


def test_a_longer_one_lasts_as_long_as_it_was_asked_for() -> None:
    loop = Loop(seconds=10 * SECONDS)
    loop.vigil.begin()
    assert loop.sleep() in (100, 101)


def test_to_look_on_is_told_apart_from_work() -> None:
    loop = Loop()
    loop.vigil.begin()
    loop.sleep()
    assert loop.vigil.watched == pytest.approx(SECONDS, abs=2 * TURN)
    watched = loop.vigil.watched
    while not loop.calls:
        loop.vigil.begin()
    loop.now += 5 * SECONDS  # something came at once, and took long
    loop.vigil.end()
    loop.sleep()
    assert loop.vigil.watched == watched


def test_a_group_made_durable_in_the_loop_is_followed_by_one_and_the_next_record_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[str] = []
    monkeypatch.setattr(Vigil, "begin", lambda self: heard.append("begin"))
    monkeypatch.setattr(Vigil, "end", lambda self: heard.append("end"))

    async def main() -> None:
        queue = CommitQueue(MemoryLog(), Limits(), lambda synced: None, lambda error: None)
        for number in range(1, 4):
            queue.put(ChannelCreated(channel_id=number, name=f"c{number}", partitions=1))
            queue.answer(lambda reply: heard.append("answer"), LeaveReply())
            await queue.drained()

    asyncio.run(main())
    assert heard == 3 * ["end", "answer", "begin"]


def test_a_broker_that_is_to_stay_awake_does() -> None:
    async def worked(within: Limits) -> float:
        queue = CommitQueue(MemoryLog(), within, lambda synced: None, lambda error: None)
        queue.put(ChannelCreated(channel_id=1, name="c", partitions=1))
        queue.answer(lambda reply: None, LeaveReply())
        await queue.drained()
        before = time.thread_time()
        await asyncio.sleep(0.2)
        return time.thread_time() - before

    asleep = asyncio.run(worked(limits(Config())))
    awake = asyncio.run(worked(limits(Config.from_env({"SERVER_BUSY_POLL": "300ms"}))))
    assert awake > 5 * asleep


def test_what_can_wait_is_done_when_nothing_came() -> None:
    loop, done = Loop(), []
    loop.vigil.begin(lambda: done.append(loop.now))
    loop.sleep()
    assert len(done) == 1
    assert done[0] >= 1.0 + SECONDS
    assert [loop.answer() for _ in range(3)] == [True, False, True]  # in vain, so that it rests for longer
    loop.vigil.begin(lambda: done.append(loop.now))
    assert loop.sleep() == 1, "a vigil is not worth it: it is done at once"
    assert len(done) == 2


def test_what_can_wait_does_not_wait_for_a_longer_one() -> None:
    loop, done = Loop(seconds=10 * SECONDS), []
    loop.vigil.begin(lambda: done.append(loop.now))
    assert loop.sleep() in (100, 101)
    assert done == [pytest.approx(1.0 + SECONDS, abs=2 * TURN)]


def test_what_can_wait_is_left_to_whatever_comes() -> None:
    loop, done = Loop(), []
    loop.vigil.begin(lambda: done.append(1))
    loop.turn()
    loop.vigil.end()
    loop.sleep()
    assert not done
