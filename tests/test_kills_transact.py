"""Consume, process, produce, each in one transaction, while the real broker is killed: everything exactly once."""

from __future__ import annotations

import random
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from process import DEADLINE, Process, wait_until
from torture import seed_of_run, sized

from mq.client.wire import WireTransport
from mq.errors import LeaseLost, MqError, SequenceRefused
from mq.pb import mq_pb2 as pb

KILLS = sized(10, 100)
MESSAGES = 300 * KILLS
CALL_SECONDS = 10.0


class Pipelines:
    """Two workers: one acks what it took and retries by producer sequence, one commits in an ordered group."""

    def __init__(self) -> None:
        self.port = 0
        self.is_over = threading.Event()
        self.transactions = 0
        self.duplicates = 0
        self.refused = 0
        self.crashes: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in (self._ack, self._commit)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self.is_over.set()
        for thread in self._threads:
            thread.join(DEADLINE)
            assert not thread.is_alive()
        assert not self.crashes, self.crashes

    def _run(self, work: Callable[[WireTransport], None]) -> None:
        while not self.is_over.is_set():
            try:
                transport = WireTransport("127.0.0.1", self.port)
            except MqError:
                self.is_over.wait(0.01)
                continue
            try:
                while not self.is_over.is_set():
                    work(transport)
            except MqError:
                pass  # killed: the outcome is not known, and nothing here depends on it
            except BaseException as error:
                self.crashes.append(error)
                return
            finally:
                transport.close()

    # ------------------------------------------------------------ acks, with a producer's numbers

    _sequence = 0
    _unanswered: bytes | None = None

    def _ack(self, transport: WireTransport) -> None:
        if self._unanswered is None:
            who = {"channel": "in", "group": "shared", "member": "one"}
            pulled = pull(transport, who)
            if not pulled.batches:
                return
            receipts = [pb.Receipt(receipt=batch.receipt) for batch in pulled.batches]
            request = pb.TransactRequest(
                publishes=[processed(pulled, "out-acks")],
                acks=[pb.AckRequest(**who, receipts=receipts)],
                producer_id="worker",
                sequence=self._sequence,
            )
            self._unanswered = request.SerializeToString()
        try:
            answer = transport.call("mq.MQService/Transact", self._unanswered, CALL_SECONDS)
        except LeaseLost:
            self._unanswered = None  # it never took place, and these receipts are of another start
            self.refused += 1
            return
        except SequenceRefused as error:
            raise AssertionError(str(error)) from error
        self._unanswered = None
        self._sequence += 1
        self.transactions += 1
        self.duplicates += pb.TransactResponse.FromString(answer).duplicate

    # ------------------------------------------------------------ commits

    def _commit(self, transport: WireTransport) -> None:
        who = {"channel": "in", "group": "ordered", "member": "one"}
        pulled = pull(transport, who)
        if not pulled.batches:
            return
        last = pulled.batches[-1]
        to = pb.Position(partition=0, offset=last.base_offset + len(last.batch.messages))
        request = pb.TransactRequest(
            publishes=[processed(pulled, "out-commits")],
            commits=[pb.CommitRequest(**who, generation=pulled.generation, positions=[to])],
        )
        transport.call("mq.MQService/Transact", request.SerializeToString(), CALL_SECONDS)
        self.transactions += 1


def pull(transport: WireTransport, who: dict[str, str]) -> pb.PullResponse:
    request = pb.PullRequest(**who, max_messages=random.randint(1, 20), max_wait_ms=200)
    return pb.PullResponse.FromString(transport.call("mq.MQService/Pull", request.SerializeToString(), CALL_SECONDS))


def processed(pulled: pb.PullResponse, channel: str) -> pb.PublishBatchRequest:
    contents = [b"done " + message.content for batch in pulled.batches for message in batch.batch.messages]
    batch = pb.Batch(messages=[pb.BatchMessage(content=content) for content in contents])
    return pb.PublishBatchRequest(channel=channel, batch=batch)


def prepare(transport: WireTransport) -> None:
    for name in ("in", "out-acks", "out-commits"):
        transport.call("mq.MQService/CreateChannel", pb.CreateChannelRequest(channel=name).SerializeToString())
    ordered = pb.GroupSettings(mode=pb.GroupSettings.ORDERED)
    for group in (
        pb.CreateGroupRequest(channel="in", group="shared"),
        pb.CreateGroupRequest(channel="in", group="ordered", settings=ordered),
    ):
        transport.call("mq.AdminService/CreateGroup", group.SerializeToString())
    for start in range(0, MESSAGES, 100):
        contents = [b"%d" % number for number in range(start, start + 100)]
        batch = pb.Batch(messages=[pb.BatchMessage(content=content) for content in contents])
        request = pb.PublishBatchRequest(channel="in", batch=batch)
        transport.call("mq.MQService/PublishBatch", request.SerializeToString())


def lag(port: int, group: str) -> int:
    transport = WireTransport("127.0.0.1", port)
    try:
        request = pb.DescribeGroupRequest(channel="in", group=group).SerializeToString()
        return pb.GroupInfo.FromString(transport.call("mq.AdminService/DescribeGroup", request)).lag
    finally:
        transport.close()


def read_all(port: int, channel: str) -> list[bytes]:
    transport = WireTransport("127.0.0.1", port)
    found: list[bytes] = []
    try:
        while True:
            request = pb.PullRequest(channel=channel, partition=0, start=pb.Start(offset=len(found)))
            answer = pb.PullResponse.FromString(transport.call("mq.MQService/Pull", request.SerializeToString()))
            if not answer.batches:
                return found
            found += [message.content for batch in answer.batches for message in batch.batch.messages]
    finally:
        transport.close()


@pytest.mark.shows("T1", "consume, process, produce in transactions: each effect once")
def test_a_pipeline_of_transactions_has_each_effect_once_however_often_the_broker_is_killed(
    tmp_path: Path, figures: dict[str, int]
) -> None:
    seed = seed_of_run()
    figures |= {"seed": seed, "kills": KILLS}
    rng = random.Random(seed)
    settings = {"GROUP_ACK_WAIT": "2s", "GROUP_MAX_DELIVER": "1000000"}
    work = Pipelines()
    process = Process(tmp_path, **settings)
    work.port = process.wait_for_port("wire")
    first = WireTransport("127.0.0.1", work.port)
    prepare(first)
    first.close()
    work.start()
    try:
        for _ in range(KILLS):
            reached = work.transactions + rng.randrange(20)
            wait_until(lambda reached=reached: work.transactions > reached or work.crashes)  # type: ignore[misc]
            process.signal(signal.SIGKILL)
            process.wait()
            process = Process(tmp_path, **settings)
            work.port = process.wait_for_port("wire")
        for group in ("shared", "ordered"):
            wait_until(lambda group=group: not lag(work.port, group) or work.crashes)  # type: ignore[misc]
    finally:
        work.stop()
    expected = [b"done %d" % number for number in range(MESSAGES)]
    acks, commits = read_all(work.port, "out-acks"), read_all(work.port, "out-commits")
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    figures |= {"transactions": work.transactions, "told twice": work.duplicates}
    assert Counter(acks) == Counter(expected), f"seed {seed}"
    assert commits == expected, f"seed {seed}: in the order of the input, each once"
