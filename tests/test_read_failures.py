"""A read of the log that fails costs nobody an answer, and no delayed publish that was promised."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from handbroker import Asked, HandBroker, all_stopped, contents, publish, receipts
from loguru import logger

from mq.command import (
    OS,
    CancelSchedule,
    CreateChannel,
    CreateGroup,
    DescribeChannel,
    DescribeGroup,
    Leave,
    ListSchedules,
    Publish,
    Pull,
    Reject,
    Seek,
    Start,
)
from mq.errors import DataLoss, Unavailable
from mq.limits import Limits
from wal.errors import CorruptSegment, LogBusy
from wal.memory import MemoryLog

__all__ = ["all_stopped"]

TINY = Limits(buffer_bytes=1, read_bytes=16, fetched_bytes=16)  # everything has to be read back
TOO_MANY_FILES = OSError(errno.EMFILE, "Too many open files")
PASSING = [TOO_MANY_FILES, LogBusy("full"), RuntimeError("can't start new thread")]


class FlakyLog(MemoryLog):
    """Reads raise what `errors` holds, one each; `damage` is asked first, for the offset that is read."""

    def __init__(self) -> None:
        super().__init__(is_held=True)
        self.errors: list[Exception] = []
        self.damage: Callable[[int], Exception | None] = lambda offset: None
        self.reads = 0
        self.gate: asyncio.Event | None = None  # reads wait for it
        self.syncs: list[bool] = []  # what was asked of each group

    def append(self, records: Any, *, sync: bool = True, essential: bool = False, **_: Any) -> int:
        self.syncs.append(sync)
        return super().append(records, sync=sync, essential=essential)

    async def read(self, channel_id: int, partition: int, offset: int, max_bytes: int) -> Any:
        await self._stumble()
        if error := self.damage(offset):
            raise error
        return await super().read(channel_id, partition, offset, max_bytes)

    async def read_sequence(self, sequence: int) -> Any:
        await self._stumble()
        return await super().read_sequence(sequence)

    async def _stumble(self) -> None:
        self.reads += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.errors:
            raise self.errors.pop(0)


@pytest.fixture
def log() -> FlakyLog:
    return FlakyLog()


@pytest.fixture
def hand(log: FlakyLog) -> HandBroker:
    hand = HandBroker(log, limits=TINY)
    hand.ask(CreateChannel("a"))
    return hand


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What is logged meanwhile."""
    found: list[str] = []
    sink = logger.add(found.append, format="{level} {message}", diagnose=False)
    yield found
    logger.remove(sink)


def fill(hand: HandBroker, count: int) -> None:
    for number in range(count):
        hand.ask(publish("a", str(number)))
        hand.clock.pass_ms(1000)


def listed(hand: HandBroker) -> list[int]:
    return [planned.schedule_id for planned in hand.ask(ListSchedules("a")).schedules]


# ---------------------------------------------------------------- delayed publishes


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
def test_a_delayed_publish_that_can_not_be_read_at_the_moment_comes_out_later(
    hand: HandBroker, log: FlakyLog, lines: list[str], error: Exception
) -> None:
    hand.ask(publish("a", "late", delay_ms=5000))
    log.errors.append(error)
    hand.tick(5000)
    assert hand.ask(Pull("a")).batches == []
    assert [line for line in lines if line.startswith("WARNING delayed publish 1 of channel 'a'")]
    hand.tick(500)
    assert hand.ask(Pull("a")).batches == [], "it is not tried all the time"
    hand.tick(500)
    assert contents(hand.ask(Pull("a"))) == ["late"]
    assert listed(hand) == []


def test_what_is_due_behind_an_unreadable_delayed_publish_does_not_wait_for_it(hand: HandBroker, log: FlakyLog) -> None:
    hand.ask(publish("a", "first", delay_ms=4000))
    hand.ask(publish("a", "second", delay_ms=5000))
    log.errors.append(TOO_MANY_FILES)
    hand.tick(5000)
    assert contents(hand.ask(Pull("a"))) == ["second"]
    hand.tick(1000)
    assert hand.state.channels["a"].partitions[0].next_offset == 2


def test_a_delayed_publish_lost_to_damage_is_told_and_stays_until_the_log_is_repaired(
    hand: HandBroker, log: FlakyLog, lines: list[str]
) -> None:
    hand.ask(publish("a", "late", delay_ms=5000))
    log.errors.append(CorruptSegment("1.wal", 64, "the checksum is wrong"))
    hand.tick(5000)
    assert any(line.startswith("ERROR delayed publish 1 of channel 'a'") and "1.wal" in line for line in lines)
    reads = log.reads
    hand.tick(60_000)
    assert (log.reads, listed(hand)) == (reads, [1])
    hand.tick(3_600_000)
    assert contents(hand.ask(Pull("a"))) == ["late"]


def test_a_delayed_publish_that_the_log_no_longer_holds_is_told_and_can_be_given_up(
    hand: HandBroker, log: FlakyLog, lines: list[str]
) -> None:
    hand.ask(publish("a", "late", delay_ms=5000))
    log._records[log.last_sequence] = log._records[1]
    hand.tick(5000)
    assert any(line.startswith("ERROR delayed publish 1 of channel 'a'") for line in lines)
    assert listed(hand) == [1]
    hand.ask(CancelSchedule("a", 1))
    lines.clear()
    hand.tick(3_600_000)
    assert (listed(hand), lines) == ([], [])


def test_a_delayed_publish_that_is_cancelled_while_it_turns_out_damaged_is_not_tried_again(
    hand: HandBroker, log: FlakyLog, lines: list[str]
) -> None:
    hand.ask(publish("a", "late", delay_ms=5000))
    log.gate = asyncio.Event()
    log.errors.append(CorruptSegment("1.wal", 64, "the checksum is wrong"))
    hand.clock.pass_ms(5000)
    begin(hand, hand.broker.tick)
    asked = Asked()
    begin(hand, lambda: hand.broker.submit(CancelSchedule("a", 1), asked))
    log.gate.set()
    hand.settle()
    assert asked.is_answered
    assert (list(hand.state.schedules), [line for line in lines if "delayed" in line]) == ([], [])


# ---------------------------------------------------------------- commands


@pytest.mark.parametrize("error", PASSING, ids=lambda error: type(error).__name__)
def test_a_failed_read_is_answered_and_the_next_try_succeeds(hand: HandBroker, log: FlakyLog, error: Exception) -> None:
    fill(hand, 3)
    held = receipts(hand.ask(Pull("a", "g", "m", max_messages=1)))
    start = Start("time", hand.clock.now_us() - 2_500_000)
    hand.ask(CreateGroup("a", "h"))
    hand.state.channels["a"].partitions[0].fetched.clear()
    commands = [Pull("a"), Pull("a", start=start), Seek("a", "h", start=start), Reject("a", "g", "m", held)]
    for command in commands:
        log.errors.append(error)
        asked = hand.send(command)
        hand.settle()
        assert isinstance(asked.answer, Unavailable), command
        assert not log.errors, "nothing was read"
    for command in commands:
        hand.ask(command)


@pytest.mark.parametrize("is_range_known", [True, False])
def test_damage_is_told_with_all_the_offsets_it_took(hand: HandBroker, log: FlakyLog, is_range_known: bool) -> None:
    fill(hand, 60)

    def damage(offset: int) -> CorruptSegment | None:
        known = (10, 50) if is_range_known else None
        return CorruptSegment("1.wal", 64, "wrong", "", known) if 10 <= offset < 50 else None

    log.damage, log.reads = damage, 0
    asked = hand.send(Pull("a", start=Start("offset", 20)))
    hand.settle()
    assert isinstance(asked.answer, DataLoss)
    assert (asked.answer.start, asked.answer.end) == (10 if is_range_known else 20, 50)
    assert (log.reads == 1) == is_range_known
    assert contents(hand.ask(Pull("a", start=Start("offset", 50))))[0] == "50"


def test_damage_behind_a_hole_ends_the_search_for_what_comes_next(hand: HandBroker, log: FlakyLog) -> None:
    """The log kept nothing of what was asked for, and the first that it kept behind is damaged."""
    fill(hand, 10)
    log.damage = lambda offset: CorruptSegment("1.wal", 64, "wrong", "", (5, 7)) if 3 <= offset < 7 else None
    asked = hand.send(Pull("a", start=Start("offset", 3)))
    hand.settle()
    assert isinstance(asked.answer, DataLoss)
    assert (asked.answer.start, asked.answer.end) == (3, 7)


def pass_a_hole(hand: HandBroker, log: FlakyLog) -> HandBroker:
    """A group pulls a channel of which the log kept nothing; returns the next start, behind a crash."""
    hand.ask(publish("a", "dropped later"))
    hand.ask(CreateGroup("a", "g"))
    for ends, sequences in log._offsets.values():
        ends.clear()
        sequences.clear()
    assert hand.ask(Pull("a", "g", "m")).batches == []
    return hand.crash()


def test_a_group_is_done_with_what_was_dropped(hand: HandBroker, log: FlakyLog) -> None:
    hand = pass_a_hole(hand, log)
    assert hand.ask(DescribeGroup("a", "g")).lag == 0


def test_a_group_is_not_done_with_what_may_be_lost_to_damage(
    hand: HandBroker, log: FlakyLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may repair the log: the next start looks again."""
    monkeypatch.setattr(FlakyLog, "has_gaps", True)
    hand = pass_a_hole(hand, log)
    assert hand.ask(DescribeGroup("a", "g")).lag == 1


def test_what_leaves_memory_while_the_log_finds_nothing_is_not_passed_over(hand: HandBroker, log: FlakyLog) -> None:
    """The log answers before the message is synced, and is heard after the message has left memory."""
    hand.ask(publish("a", "dropped later"))
    hand.ask(CreateGroup("a", "g"))
    for ends, sequences in log._offsets.values():
        ends.clear()
        sequences.clear()
    asked, read, gate = Asked(), log.read, asyncio.Event()

    async def read_and_wait(*args: int) -> Any:
        found = await read(*args)
        await gate.wait()
        return found

    log.read = read_and_wait  # type: ignore[method-assign]
    begin(hand, lambda: hand.broker.submit(publish("a", "kept"), Asked()))
    begin(hand, lambda: hand.broker.submit(Pull("a", "g", "m"), asked))
    begin(hand, log.release)
    assert hand.state.channels["a"].partitions[0].buffer.floor == 2, "it has left memory"
    assert not asked.is_answered
    begin(hand, gate.set)
    hand.settle()
    assert contents(asked.answer) + contents(hand.ask(Pull("a", "g", "m"))) == ["kept"]


def test_a_member_that_leaves_while_its_pull_reads_the_log_stays_away(hand: HandBroker, log: FlakyLog) -> None:
    fill(hand, 3)
    hand.ask(CreateGroup("a", "g"))
    log.gate, asked = asyncio.Event(), Asked()
    begin(hand, lambda: hand.broker.submit(Pull("a", "g", "m", max_wait_ms=60_000), asked))
    begin(hand, lambda: hand.broker.submit(Leave("a", "g", "m"), Asked()))
    begin(hand, log.gate.set)
    hand.settle()
    assert asked.answer.batches == []
    assert not hand.state.channels["a"].groups["g"].members
    assert contents(hand.ask(Pull("a", "g", "other"))) == ["0"]


def begin(hand: HandBroker, call: Callable[[], object]) -> None:
    """Let something run that is going to wait for a read."""

    async def turns() -> None:
        call()
        for _ in range(8):
            await asyncio.sleep(0)

    hand.loop.run_until_complete(turns())


@pytest.mark.parametrize("group", ["", "g"])
def test_a_failure_while_a_time_is_looked_up_ends_the_pull(hand: HandBroker, log: FlakyLog, group: str) -> None:
    fill(hand, 3)
    log.gate = asyncio.Event()
    asked = Asked()
    # Nothing is younger than this: decided, the pull would wait for it.
    pull = Pull("a", group, "m", start=Start("time", hand.clock.now_us() - 500_000), max_wait_ms=60_000)
    begin(hand, lambda: hand.broker.submit(pull, asked))
    begin(hand, lambda: hand.broker._queue.fail(OSError(errno.EIO, "Input/output error")))
    assert not asked.is_answered
    log.gate.set()
    hand.spin()
    assert asked.answer is hand.broker.failed


# ---------------------------------------------------------------- syncs


def with_os(*contents: str) -> Publish:
    return publish("a", *contents, durability=OS)


def test_an_answer_that_waits_for_nothing_makes_nobody_sync(hand: HandBroker, log: FlakyLog) -> None:
    hand.ask(DescribeChannel("a"))
    hand.send(with_os("x"))
    assert log.syncs[-1] is False


def test_an_answer_that_waits_for_a_sync_under_way_asks_for_no_other(hand: HandBroker, log: FlakyLog) -> None:
    hand.send(publish("a", "x"))
    late = hand.send(DescribeChannel("a"))
    hand.send(with_os("y"))
    assert log.syncs[-2:] == [True, False]
    assert not late.is_answered
    hand.settle()
    assert late.is_answered


def test_an_answer_behind_a_group_that_nobody_syncs_asks_for_the_sync(hand: HandBroker, log: FlakyLog) -> None:
    hand.send(with_os("x"))
    hand.send(DescribeChannel("a"))
    hand.send(with_os("y"))
    assert log.syncs[-2:] == [False, True]
