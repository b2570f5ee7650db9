"""SIGKILL of the real broker at each step of a redrive, a trim and a deletion: done, or as if it had not begun.

Steps are the changes that the broker makes to the disk (tests/dyingserve.py). The n-th life of a broker dies at the
n-th change after the request came, until one life answers it; what is found after each restart is checked.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from process import Process, wait_until

from mq.client.wire import WireTransport
from mq.errors import ChannelNotFound, OffsetOutOfRange, Unavailable
from mq.pb import mq_pb2 as pb

CALL_SECONDS = 10.0
LIVES = 40  # more than any of these operations has steps


class Broker:
    """One directory, many lives. Whatever is asked is asked once: no client tries again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fuse = directory / "fuse"
        self._start()

    def _start(self) -> None:
        self._process = self._begin()
        self._transport = WireTransport("127.0.0.1", self._process.wait_for_port("wire"))

    def _begin(self) -> Process:
        class Dying(Process):
            entry = (str(Path(__file__).with_name("dyingserve.py")), str(self._fuse))

        settings = {"WAL_SEGMENT_SIZE": "1MiB", "SERVER_MAX_RECV_MSG_SIZE": "256KiB", "WAL_RETIRE_GRACE": "0"}
        return Dying(self._directory, LOG_LEVEL="DEBUG", **settings)

    def live_until(self, step: int) -> bool:
        """A life that dies at this change of the disk, counted from its start: while it recovers, or cleans up.

        False: it lived until it had cleaned up.
        """
        self._transport.close()
        self._process.signal(signal.SIGTERM)  # it leaves a snapshot: what lies before is needed no more
        assert self._process.wait() == 0
        self.arm(step)
        self._process = self._begin()
        wait_until(lambda: self.is_dead() or "freed" in self._process.output)
        has_died = self.is_dead()
        self.restart()
        return has_died

    def ask(self, method: str, request: object) -> bytes:
        data: bytes = request.SerializeToString()  # type: ignore[attr-defined]
        return self._transport.call(f"mq.{method}", data, CALL_SECONDS)

    def arm(self, step: int) -> None:
        """Die at this change of the disk, counted from now."""
        aside = self._fuse.with_suffix(".new")
        aside.write_text(str(step))
        aside.rename(self._fuse)  # whole, or not there: the broker looks at any moment

    def restart(self) -> None:
        """After its death; one that still lives is killed where it is."""
        self._transport.close()
        self._fuse.unlink(missing_ok=True)
        self._process.signal(signal.SIGKILL)
        self._process.wait()
        self._start()

    def close(self) -> None:
        self._transport.close()
        self._process.signal(signal.SIGKILL)
        self._process.wait()

    def is_dead(self) -> bool:
        return self._process.process.poll() is not None

    # ------------------------------------------------------------ what tests ask for

    def create(self, channel: str) -> None:
        self.ask("MQService/CreateChannel", pb.CreateChannelRequest(channel=channel, fail_if_exists=True))
        self.ask("AdminService/CreateGroup", pb.CreateGroupRequest(channel=channel, group="g"))

    def publish(self, channel: str, contents: list[bytes]) -> None:
        batch = pb.Batch(messages=[pb.BatchMessage(content=content) for content in contents])
        self.ask("MQService/PublishBatch", pb.PublishBatchRequest(channel=channel, batch=batch))

    def pull(self, channel: str, group: str = "", offset: int = 0) -> pb.PullResponse:
        request = pb.PullRequest(channel=channel, partition=0)
        if group:
            request.group, request.member = group, "m"
        else:
            request.start.offset = offset
        return pb.PullResponse.FromString(self.ask("MQService/Pull", request))

    def range_of(self, channel: str) -> tuple[int, int]:
        answer = self.ask("AdminService/DescribeChannel", pb.DescribeChannelRequest(channel=channel))
        (partition,) = pb.ChannelInfo.FromString(answer).partitions
        return partition.start_offset, partition.next_offset

    def read(self, channel: str) -> list[bytes]:
        """Everything that is there, and that nothing in between is missing."""
        offset, end = self.range_of(channel)
        found: list[bytes] = []
        while offset < end:
            answer = self.pull(channel, offset=offset)
            assert answer.batches[0].base_offset == offset
            found += contents_of(answer)
            offset = answer.next_offset
        return found

    def channels(self) -> set[str]:
        answer = self.ask("AdminService/ListChannels", pb.ListChannelsRequest())
        return {info.channel for info in pb.ListChannelsResponse.FromString(answer).channels}


def contents_of(answer: pb.PullResponse) -> list[bytes]:
    return [message.content for batch in answer.batches for message in batch.batch.messages]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path)
    yield made
    made.close()


def test_a_redrive_killed_at_any_step_leaves_each_dead_letter_in_exactly_one_place(broker: Broker) -> None:
    letters = [b"%d" % number for number in range(60)]
    broker.create("a")
    broker.publish("a", letters)
    got = broker.pull("a", "g")
    receipts = [pb.Receipt(receipt=batch.receipt) for batch in got.batches]
    broker.ask("MQService/Reject", pb.RejectRequest(channel="a", group="g", member="m", receipts=receipts))
    assert broker.read("a.dlq") == letters

    deaths = 0
    said = 0  # letters that are back, as far as anybody was told
    for step in count(1):
        broker.arm(step)
        offset, is_done = 0, False
        try:
            while not is_done:
                request = pb.RedriveRequest(channel="a.dlq", max_messages=3, start_offset=offset)
                reply = pb.RedriveResponse.FromString(broker.ask("AdminService/Redrive", request))
                said, offset, is_done = said + reply.moved, reply.next_offset, reply.done
        except Unavailable:
            deaths += 1
        broker.restart()
        back, dead = broker.read("a")[len(letters) :], broker.read("a.dlq")
        assert Counter(back + dead) == Counter(letters), f"killed at step {step}"
        assert back == letters[: len(back)]
        assert len(back) >= said, f"killed at step {step}: what was said to be back is not"
        said = len(back)
        if is_done:
            break
    assert deaths >= 5
    delivered = []
    while answer := contents_of(broker.pull("a", "g")):
        delivered += answer
    assert delivered == letters, "each is delivered again, once"


def test_a_trim_killed_at_any_step_is_done_or_not_begun(broker: Broker) -> None:
    contents = [b"%d" % number for number in range(300)]
    broker.create("a")
    broker.publish("a", contents)
    start = deaths = 0
    for step in range(1, LIVES):
        broker.arm(step)
        is_said, to = False, start + 5
        try:
            broker.ask("AdminService/PurgeChannel", pb.PurgeChannelRequest(channel="a", before_offset=to))
            is_said = True
        except Unavailable:
            deaths += 1
        broker.restart()
        first, end = broker.range_of("a")
        assert first in ({to} if is_said else {start, to}), f"killed at step {step}"
        assert end == len(contents)
        assert broker.read("a") == contents[first:]
        assert contents_of(broker.pull("a", "g"))[0] == contents[first], "a group begins there, too"
        if first:
            with pytest.raises(OffsetOutOfRange):
                broker.pull("a", offset=first - 1)
        start = first
        if is_said:
            break
    assert is_said
    assert deaths >= 2


def test_a_deletion_killed_at_any_step_leaves_a_channel_whole_or_gone_and_its_name_free(broker: Broker) -> None:
    broker.create("other")
    broker.publish("other", [b"stays"])
    deaths = 0
    for step in range(1, LIVES):
        contents = [b"%d of life %d" % (number, step) for number in range(20)]
        if "a" not in broker.channels():
            broker.create("a")
            broker.publish("a", contents)
        before = broker.read("a")
        broker.arm(step)
        is_said = False
        try:
            broker.ask("AdminService/DeleteChannel", pb.DeleteChannelRequest(channel="a"))
            is_said = True
        except Unavailable:
            deaths += 1
        broker.restart()
        if "a" in broker.channels():
            assert not is_said, f"killed at step {step}: what was said to be gone is there"
            assert broker.read("a") == before
            assert contents_of(broker.pull("a", "g")) == before, "with its group, where it was"
        else:
            with pytest.raises(ChannelNotFound):
                broker.pull("a")
            broker.create("a")
            assert broker.range_of("a") == (0, 0)
            assert contents_of(broker.pull("a", "g")) == []
            broker.publish("a", contents)
            assert broker.read("a") == contents
        assert broker.read("other") == [b"stays"]
        if is_said:
            break
    assert is_said
    assert deaths >= 2


@pytest.mark.slow
def test_space_given_back_is_given_back_whole_or_not_yet_whenever_the_broker_dies(broker: Broker) -> None:
    """The steps behind a trim and a deletion: segments in which nothing is live are retired when a broker starts."""
    broker.create("kept")
    broker.create("trimmed")
    has_died, step, lives = True, 0, 0
    while has_died:
        broker.create("deleted")
        for _ in range(12):
            for channel in ("trimmed", "deleted"):
                broker.publish(channel, [bytes(100_000)])
            broker.publish("kept", [b"kept"])
        broker.ask("AdminService/PurgeChannel", pb.PurgeChannelRequest(channel="trimmed"))
        broker.ask("AdminService/DeleteChannel", pb.DeleteChannelRequest(channel="deleted"))
        lives, step = lives + 1, step + 5
        has_died = broker.live_until(step)
        assert broker.range_of("trimmed") == (12 * lives, 12 * lives)
        assert broker.read("kept") == [b"kept"] * 12 * lives
        with pytest.raises(ChannelNotFound):
            broker.pull("deleted", "g")
    assert lives > 3  # how many steps there are depends on when the cleaner came by
