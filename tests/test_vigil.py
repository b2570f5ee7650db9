"""The vigil after an answer: short, never two at once, and given up where nobody comes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import pytest

from mq.commitqueue import CommitQueue
from mq.limits import Limits
from mq.reply import LeaveReply
from mq.vigil import LONGEST_REST, SECONDS, Vigil
from wal import MemoryLog
from wal.pb.wal_pb2 import ChannelCreated

TURN = SECONDS / 10


class Loop:
    """A loop without a network: each call that it makes takes a turn's time."""

    def __init__(self) -> None:
        self.now = 1.0
        self.calls: deque[Callable[[], None]] = deque()
        self.vigil = Vigil(self.calls.append, lambda: self.now)

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


def test_what_can_wait_is_left_to_whatever_comes() -> None:
    loop, done = Loop(), []
    loop.vigil.begin(lambda: done.append(1))
    loop.turn()
    loop.vigil.end()
    loop.sleep()
    assert not done
