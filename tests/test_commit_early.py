"""What is made ready while the disk works: it is ready when the disk is, and leaves only if it is true."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from handbroker import Asked, HandBroker, HandPost, all_stopped, contents, publish
from process import wait_until
from wirebroker import LOOPS, Broker, wire_broker
from wirepeer import DEADLINE, Closed, Peer, request

from mq import pulls, wire
from mq.command import OS, CreateChannel, CreateGroup, Pull
from mq.commitqueue import CommitQueue, Done, Early, Leisure
from mq.decision import Decision
from mq.doors.wire_outbox import Mail
from mq.errors import MqError, Unavailable
from mq.pb import mq_pb2 as pb
from mq.state import State
from wal import FileLog, Options
from wal.disk import DirectDisk
from wal.pb.wal_pb2 import Expired

__all__ = ["all_stopped"]

OPTIONS = Options(segment_bytes=1 << 20, snapshot_bytes=4096, soft_free_bytes=0)


class WatchedDisk(DirectDisk):
    """Tells of each sync of a segment, before it."""

    def __init__(self) -> None:
        super().__init__()
        self.on_sync: Callable[[], None] = lambda: None

    def sync(self, fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".wal"):
            self.on_sync()
        super().sync(fd)


class EarlyBroker(HandBroker):
    """Its log is in files and has no thread; half of those who ask can hold back an answer."""

    def __init__(self, directory: Path, disk: DirectDisk) -> None:
        super().__init__(FileLog.open(directory, OPTIONS, disk=disk, is_threaded=False))
        self.post = HandPost(self.loop)
        self.broker.send_by(self.post)
        self.is_early = True

    def done(self, asked: Asked) -> Done:
        return Early(self.post.put, asked) if self.is_early else asked

    def settle(self) -> None:
        for _ in range(3):
            self.spin()
            self.log.pump()
        self.spin()


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop always waits for the disk itself."""
    monkeypatch.setattr(Leisure, "patience", lambda self: 10.0)


@pytest.fixture
def disk() -> WatchedDisk:
    return WatchedDisk()


@pytest.fixture
def hand(tmp_path: Path, disk: WatchedDisk) -> EarlyBroker:
    hand = EarlyBroker(tmp_path / "log", disk)
    hand.ask(CreateChannel("a"))
    hand.ask(CreateGroup("a", "g"))
    return hand


def waiting_pull(hand: EarlyBroker) -> Asked:
    pulled = hand.send(Pull("a", "g", "m", max_wait_ms=60_000))
    assert not pulled.is_answered
    return pulled


def test_answers_are_ready_before_the_sync_and_leave_after_it(hand: EarlyBroker, disk: WatchedDisk) -> None:
    seen: list[Any] = []
    disk.on_sync = lambda: seen.append([answer for _, answer in hand.post.lying])
    asked = hand.send(publish("a", "x"))
    (published,) = seen[0]
    assert published.base_offset == 0
    assert asked.answer is published
    assert not hand.post.burnt


def test_messages_are_ready_before_the_sync_and_who_published_them_is_answered_after_they_have_left(
    hand: EarlyBroker, disk: WatchedDisk
) -> None:
    hand.ask(CreateGroup("a", "h"))
    pulled = [waiting_pull(hand), hand.send(Pull("a", "h", "m", max_wait_ms=60_000))]
    asked: list[Asked] = [Asked(), Asked()]
    ready: list[Any] = []
    sent: list[tuple[list[bool], list[bool]]] = []
    honest = hand.post.send

    def send() -> None:
        if hand.post.lying:
            honest()
            sent.append(([each.is_answered for each in pulled], [each.is_answered for each in asked]))

    def publish_both() -> None:
        for each in asked:
            hand.broker.submit(publish("a", "x"), hand.done(each))

    disk.on_sync = lambda: ready.append([contents(answer) for _, answer in hand.post.lying])
    hand.post.send = send  # type: ignore[method-assign]
    hand.loop.call_soon(publish_both)
    hand.settle()
    assert ready[0] == [["x", "x"]] * 2
    assert sent == [([True, True], [False, False]), ([True, True], [True, True])]
    assert [each.answer.base_offset for each in asked] == [0, 1]


def test_nothing_leaves_before_the_sync(hand: EarlyBroker, disk: WatchedDisk) -> None:
    pulled = waiting_pull(hand)
    asked = Asked()
    seen: list[bool] = []
    disk.on_sync = lambda: seen.append(asked.is_answered or pulled.is_answered)
    hand.loop.call_soon(lambda: hand.broker.submit(publish("a", "x"), hand.done(asked)))
    hand.settle()
    assert seen == [False]
    assert asked.is_answered


def test_who_can_not_hold_an_answer_back_gets_it_after_the_sync(hand: EarlyBroker, disk: WatchedDisk) -> None:
    hand.is_early = False
    asked = Asked()
    seen: list[Any] = []
    disk.on_sync = lambda: seen.append((asked.is_answered, hand.post.lying))
    hand.loop.call_soon(lambda: hand.broker.submit(publish("a", "x"), hand.done(asked)))
    hand.settle()
    assert seen == [(False, [])]
    assert asked.is_answered


def test_an_answer_that_needs_no_sync_leaves_before_it_and_the_message_after_it(
    hand: EarlyBroker, disk: WatchedDisk
) -> None:
    pulled = waiting_pull(hand)
    asked = Asked()
    seen: list[tuple[bool, bool, int]] = []
    disk.on_sync = lambda: seen.append((asked.is_answered, pulled.is_answered, len(hand.post.lying)))
    hand.loop.call_soon(lambda: hand.broker.submit(publish("a", "x", durability=OS), hand.done(asked)))
    wait_until(lambda: hand.spin() or pulled.is_answered)
    assert seen == [(True, False, 1)]
    assert asked.answer.durable == OS
    assert contents(pulled.answer) == ["x"]


def test_a_message_whose_sync_came_when_there_was_time_is_burnt_when_that_fails(
    hand: EarlyBroker, disk: WatchedDisk
) -> None:
    pulled = waiting_pull(hand)

    def fail() -> None:
        raise OSError(errno.EIO, "planted")

    disk.on_sync = fail
    asked = hand.send(publish("a", "x", durability=OS))
    wait_until(lambda: hand.spin() or hand.broker.failed is not None)
    assert asked.answer.durable == OS
    assert len(hand.post.burnt) == 1
    assert not pulled.is_answered


def test_a_record_that_is_made_meanwhile_does_not_burn_what_is_true(
    hand: EarlyBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pull may put on record that something has expired: that is not durable yet, all before it is."""
    pulled = waiting_pull(hand)
    queue = hand.broker.owner.queue
    honest = queue.on_written

    def show(last: int) -> None:
        honest(last)
        monkeypatch.setattr(queue, "on_written", honest)
        hand.broker.owner.note(Expired(channel_id=1, partition=0))

    monkeypatch.setattr(queue, "on_written", show)
    hand.send(publish("a", "x", durability=OS))
    wait_until(lambda: hand.spin() or pulled.is_answered)
    assert contents(pulled.answer) == ["x"]
    assert not hand.post.burnt


def test_nobody_waits_for_a_sync_because_a_message_was_delivered(
    hand: EarlyBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs: list[bool] = []
    honest = hand.log.append

    def append(records: Any, *, sync: bool, **how: Any) -> int:
        syncs.append(sync)
        return honest(records, sync=sync, **how)

    monkeypatch.setattr(hand.log, "append", append)
    for _ in range(4):
        pulled = waiting_pull(hand)
        hand.send(publish("a", "x", durability=OS))
        wait_until(lambda: hand.spin() or pulled.is_answered)  # noqa: B023
    assert syncs == [False] * 4


def test_the_watermark_tells_of_what_was_synced_when_there_was_time(hand: EarlyBroker) -> None:
    hand.send(publish("a", "x", durability=OS))
    wait_until(lambda: hand.spin() or hand.log.synced == hand.log.last_sequence)
    wait_until(lambda: hand.spin() or not hand.log._writer.has_news)


def test_what_was_made_ready_is_burnt_when_the_sync_fails(hand: EarlyBroker, disk: WatchedDisk) -> None:
    pulled = waiting_pull(hand)

    def fail() -> None:
        raise OSError(errno.EIO, "planted")

    disk.on_sync = fail
    asked = hand.send(publish("a", "x"))
    hand.spin()
    assert [contents(answer) for answer in hand.post.burnt] == [["x"]]
    assert not pulled.is_answered
    assert isinstance(asked.answer, Unavailable)  # it may be stored or not
    assert isinstance(hand.broker.failed, Unavailable)
    hand.is_early = False
    assert hand.send(publish("a", "y")).answer is hand.broker.failed


@pytest.mark.parametrize("is_early", [False, True])
def test_a_pull_that_can_not_be_decided_costs_nobody_else_anything(
    hand: EarlyBroker, monkeypatch: pytest.MonkeyPatch, is_early: bool
) -> None:
    hand.ask(CreateGroup("a", "h"))
    stumbling, other = waiting_pull(hand), hand.send(Pull("a", "h", "m", max_wait_ms=60_000))
    honest = pulls.decide_pull

    def stumble(state: State, pull: Pull, now: int) -> Decision:
        if pull.group == "g":
            raise RuntimeError("planted")
        return honest(state, pull, now)

    monkeypatch.setattr(pulls, "decide_pull", stumble)
    monkeypatch.setattr(Leisure, "patience", lambda self: 10.0 if is_early else 0.0)
    assert hand.ask(publish("a", "x")).base_offset == 0
    assert type(stumbling.answer) is MqError
    assert contents(other.answer) == ["x"]
    assert hand.broker.failed is None


def test_whatever_goes_wrong_after_a_sync_nobody_is_left_waiting(hand: EarlyBroker) -> None:
    told: list[dict[str, Any]] = []
    hand.loop.set_exception_handler(lambda loop, context: told.append(context))
    queue, asked = hand.broker.owner.queue, [Asked(), Asked()]

    def stumble(*_: object) -> None:
        raise RuntimeError("planted")

    def both() -> None:
        hand.broker.submit(publish("a", "x"), asked[0])
        queue.flush()  # it is handed over, and the next one waits for it
        hand.broker.submit(publish("a", "y"), asked[1])

    queue._on_synced = stumble
    hand.post.send = stumble  # type: ignore[method-assign]
    hand.loop.call_soon(both)
    hand.settle()
    assert all(each.is_answered for each in asked)
    assert {str(context["exception"]) for context in told} == {"planted"}


def test_a_log_that_fails_in_an_unknown_way_fails_for_good(hand: EarlyBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    hand.loop.set_exception_handler(lambda loop, context: None)

    def stumble(*_: object, **__: object) -> int:
        raise MemoryError("planted")

    monkeypatch.setattr(hand.log, "append", stumble)
    hand.is_early = False
    asked = hand.send(publish("a", "x"))
    assert isinstance(asked.answer, Unavailable)
    assert hand.send(publish("a", "y")).answer is hand.broker.failed


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_of_the_sync_burns_everything_too(
    hand: EarlyBroker, disk: WatchedDisk, error: type[BaseException]
) -> None:
    pulled, asked = waiting_pull(hand), Asked()

    def interrupt() -> None:
        disk.on_sync = lambda: None  # what follows would succeed, and prove nothing
        raise error

    disk.on_sync = interrupt
    hand.loop.call_soon(lambda: hand.broker.submit(publish("a", "x"), hand.done(asked)))
    with pytest.raises(error):
        hand.spin()
    hand.spin()
    assert len(hand.post.burnt) == 2
    assert not asked.is_answered
    assert not pulled.is_answered
    assert isinstance(hand.broker.failed, Unavailable)


def test_without_a_post_nobody_is_told_early(hand: EarlyBroker, disk: WatchedDisk) -> None:
    hand.broker.owner.queue.post = None
    seen: list[int] = []
    disk.on_sync = lambda: seen.append(len(hand.post.lying))
    asked = hand.send(publish("a", "x"))
    hand.spin()
    assert seen == [0]
    assert asked.is_answered


def test_a_small_group_waits_for_one_under_way_and_is_then_done_here(
    tmp_path: Path, disk: WatchedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand = EarlyBroker(tmp_path / "log", disk)
    hand.ask(CreateChannel("a"))
    handed: list[object] = []
    honest = hand.log._drive.hand
    monkeypatch.setattr(hand.log._drive, "hand", lambda item: (handed.append(item), honest(item)))
    first, second = Asked(), Asked()

    def both() -> None:
        hand.broker.submit(publish("a", "x"), hand.done(first))
        hand.broker.owner.queue.flush()  # without patience, as a rotation does
        hand.broker.submit(publish("a", "y"), hand.done(second))

    hand.loop.call_soon(both)
    hand.spin()
    assert (len(handed), first.is_answered) == (1, False)
    hand.settle()
    assert (len(handed), first.is_answered, second.is_answered) == (1, True, True)


def test_what_is_ready_leaves_before_anything_else_is_done(hand: EarlyBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked()
    seen: list[bool] = []
    monkeypatch.setattr(hand.broker.owner.queue, "_on_synced", lambda synced: seen.append(asked.is_answered))
    hand.loop.call_soon(lambda: hand.broker.submit(publish("a", "x"), hand.done(asked)))
    hand.spin()
    assert seen == [True]


def test_while_more_comes_its_frames_vouch_for_what_is_durable_and_the_watermark_waits(
    hand: EarlyBroker, disk: WatchedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[int] = []
    honest = hand.log.rest
    monkeypatch.setattr(hand.log, "rest", lambda *how: (rests.append(hand.log.synced), honest(*how)))
    left = list("xyz")

    def come() -> None:
        hand.broker.submit(publish("a", left.pop(0)), Asked())

    disk.on_sync = lambda: hand.loop.call_soon(come) if left else None
    hand.loop.call_soon(come)
    hand.spin()
    hand.spin()
    assert not left, "not all came"
    assert rests == []
    wait_until(lambda: hand.spin() or not hand.log._writer.has_news)
    assert rests == [hand.log.last_sequence]


def test_the_watermark_waits_for_a_silence(hand: EarlyBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[Callable[[], None]] = []
    wait_until(lambda: hand.spin() or not hand.broker.owner.queue._is_rest_planned)  # what was before
    monkeypatch.setattr(hand.loop, "call_later", lambda _, call, *how: planned.append(partial(call, *how)))
    hand.send(publish("a", "x"))
    for _ in range(3):
        hand.send(publish("a", "y"))
        (look,) = planned
        planned.clear()
        look()
        assert hand.log._writer.has_news, "something came meanwhile"
    (look,) = planned
    planned.clear()
    look()
    assert not hand.log._writer.has_news
    assert not planned


# ---------------------------------------------------------------- on the wire


class FailingDisk:
    """Every disk of the process, from a moment on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_failing = False
        honest = DirectDisk.sync

        def sync(disk: DirectDisk, fd: int) -> None:
            if self.is_failing:
                raise OSError(errno.EIO, "planted")
            honest(disk, fd)

        monkeypatch.setattr(DirectDisk, "sync", sync)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> FailingDisk:
    return FailingDisk(monkeypatch)


@pytest.fixture(params=LOOPS)
def broker(request: pytest.FixtureRequest, tmp_path: Path, failing: FailingDisk) -> Iterator[Broker]:
    with wire_broker(request.param, STORAGE_MODE="wal", WAL_DIR_PATH=str(tmp_path / "wal")) as broker:
        yield broker


def last_words(broker: Broker, failing: FailingDisk, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What one hears who publishes while the disk fails, and one who waits for that message, until each is cut off."""
    name = broker.create()
    publish_x = pb.PublishRequest(channel=name, content=b"x")
    burnt: list[object] = []
    honest = Mail.burn
    monkeypatch.setattr(Mail, "burn", lambda self: (burnt.append(self), honest(self)))
    with Peer(broker.port) as publisher, Peer(broker.port) as reader:
        publisher.send(request(1, "Publish", publish_x))
        assert publisher.take()[1] == wire.OK
        settle(broker.server.broker.log)
        position = pb.Position(partition=0, offset=1)
        reader.send(request(1, "Pull", pb.PullRequest(channel=name, positions=[position], max_wait_ms=20_000)))
        broker.wait_until(lambda: any(each._pending for each in broker.door.connections))
        failing.is_failing = True
        publisher.send(request(2, "Publish", publish_x))
        heard = []
        for peer in (publisher, reader):
            with suppress(Closed):
                heard.append(peer.take()[1])
        assert burnt, "the loop did not sync itself, so nothing was shown"
        return heard


def settle(log: Any) -> None:
    """Wait until the log's thread has nothing in its hands, so that the next group is the loop's."""
    done = threading.Event()
    log.run_between_groups(lambda writer: done.set())
    assert done.wait(DEADLINE)
    with log._drive._baton:
        pass


def test_neither_answer_nor_message_leaves_when_the_sync_failed(
    broker: Broker, failing: FailingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wire.OK not in last_words(broker, failing, monkeypatch)
    assert broker.do(lambda: broker.server.broker.failed) is not None


def test_planted_a_post_that_does_not_burn_is_caught(
    broker: Broker, failing: FailingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mail, "burn", lambda self: None)
    assert wire.OK in last_words(broker, failing, monkeypatch)


def test_planted_a_queue_that_sends_before_the_sync_is_caught(
    hand: EarlyBroker, disk: WatchedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = CommitQueue._make_ready

    def hasty(self: CommitQueue) -> None:
        honest(self)
        self.post.send()

    monkeypatch.setattr(CommitQueue, "_make_ready", hasty)
    with pytest.raises(AssertionError):
        test_nothing_leaves_before_the_sync(hand, disk)
