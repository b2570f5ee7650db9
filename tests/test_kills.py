"""SIGKILL of the real broker under load, again and again; then everything is read back and the history checked."""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from history import OK, UNKNOWN, History
from process import DEADLINE, Process

from mq.client.wire import WireTransport
from mq.errors import LeaseLost, MqError, ResourceExhausted
from mq.pb import mq_pb2 as pb

CHANNEL, GROUP, PARTITIONS = "orders", "billing", 2
KILLS = 1_000 if os.environ.get("MQ_TORTURE") else int(os.environ.get("MQ_KILLS", "50"))
CALL_SECONDS = 10.0


class Load:
    """Clients that go on through every kill: they reconnect, and note what they were told."""

    def __init__(self) -> None:
        self.history = History()
        self.port = 0
        self.is_over = threading.Event()
        self.is_publishing = threading.Event()
        self.is_publishing.set()
        self.answered = 0
        self._threads: list[threading.Thread] = []
        self.crashes: list[BaseException] = []

    def start(self) -> None:
        for number in range(3):
            self._run(self._publish, number, False)
            self._run(self._publish, number, True)
        self._run(self._consume)

    def _run(self, work: Callable[..., None], *args: object) -> None:
        def guarded() -> None:
            try:
                work(*args)
            except BaseException as error:
                self.crashes.append(error)

        self._threads.append(threading.Thread(target=guarded, daemon=True))
        self._threads[-1].start()

    def stop(self) -> None:
        self.is_over.set()
        for thread in self._threads:
            thread.join(DEADLINE)
            assert not thread.is_alive()
        assert not self.crashes, self.crashes

    def connect(self) -> WireTransport | None:
        """A connection, as soon as there is a broker; None where the load is over."""
        while not self.is_over.is_set():
            try:
                return WireTransport("127.0.0.1", self.port)
            except MqError:
                self.is_over.wait(0.01)
        return None

    def _publish(self, number: int, is_idempotent: bool) -> None:
        """Small batches, one after the other. An idempotent one is sent again until it is answered."""
        name = f"{'i' if is_idempotent else 'p'}{number}"
        numbers = count()
        sequence = 0
        unanswered: tuple[bytes, list[bytes]] | None = None
        while (transport := self.connect()) is not None:
            try:
                while self.is_publishing.is_set() or unanswered:
                    if unanswered is None:
                        contents = [f"{name}-{next(numbers)}".encode() for _ in range(random.randint(1, 5))]
                        request = pb.PublishBatchRequest(
                            channel=CHANNEL,
                            partition=number % PARTITIONS,
                            batch=pb.Batch(messages=[pb.BatchMessage(content=content) for content in contents]),
                        )
                        if is_idempotent:
                            request.producer_id, request.sequence = name, sequence
                        unanswered = (request.SerializeToString(), contents)
                        for content in contents:
                            self.history.published(content, UNKNOWN, is_idempotent=is_idempotent)
                    data, contents = unanswered
                    reply = pb.PublishBatchResponse.FromString(
                        transport.call("mq.MQService/PublishBatch", data, CALL_SECONDS)
                    )
                    for at, content in enumerate(contents):
                        place = (reply.partition, reply.base_offset + at)
                        self.history.published(content, OK, place, is_idempotent=is_idempotent)
                    unanswered = None
                    sequence += 1
                    self.answered += 1
                self.is_over.wait(0.01)
            except MqError:
                unanswered = unanswered if is_idempotent else None
            finally:
                transport.close()

    def _consume(self) -> None:
        """One member of a shared group: first deliveries must come in order. Some nacks, mostly acks."""
        pull = pb.PullRequest(
            channel=CHANNEL, group=GROUP, member="one", max_messages=200, max_wait_ms=200
        ).SerializeToString()
        while (transport := self.connect()) is not None:
            try:
                while not self.is_over.is_set():
                    answer = transport.call("mq.MQService/Pull", pull, CALL_SECONDS)
                    for batch in pb.PullResponse.FromString(answer).batches:
                        self._handle(transport, batch)
            except MqError:
                pass
            finally:
                transport.close()

    def _handle(self, transport: WireTransport, batch: pb.PulledBatch) -> None:
        deltas = batch.offset_deltas or range(len(batch.batch.messages))
        places = [(batch.partition, batch.base_offset + delta) for delta in deltas]
        for place, message in zip(places, batch.batch.messages, strict=True):
            self.history.delivered(message.content, place, batch.delivery_count, GROUP)
        receipts = [pb.Receipt(receipt=batch.receipt)]
        if random.random() < 0.05:
            nack = pb.NackRequest(channel=CHANNEL, group=GROUP, member="one", receipts=receipts, delay_ms=1)
            transport.call("mq.MQService/Nack", nack.SerializeToString(), CALL_SECONDS)
            return
        ack = pb.AckRequest(channel=CHANNEL, group=GROUP, member="one", receipts=receipts)
        outcome = UNKNOWN
        try:
            transport.call("mq.MQService/Ack", ack.SerializeToString(), CALL_SECONDS)
            outcome = OK
        except (LeaseLost, ResourceExhausted):
            return
        finally:
            for place in places:
                self.history.acked(place, GROUP, outcome, batch.receipt)


def test_kills_under_load_lose_nothing_and_invent_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("MQ_SEED", random.randrange(1 << 32)))
    rng = random.Random(seed)
    began = time.monotonic()
    load = Load()
    settings = {
        "WAL_SEGMENT_SIZE": "1MiB",
        "SERVER_MAX_RECV_MSG_SIZE": "256KiB",
        "GROUP_MAX_DELIVER": "1000000",
        "GROUP_ACK_WAIT": "2s",
    }
    process = serve(tmp_path, load, settings)
    first = load.connect()
    assert first is not None
    channel = pb.CreateChannelRequest(channel=CHANNEL, partitions=PARTITIONS)
    first.call("mq.MQService/CreateChannel", channel.SerializeToString())
    group = pb.CreateGroupRequest(channel=CHANNEL, group=GROUP)
    first.call("mq.AdminService/CreateGroup", group.SerializeToString())
    first.close()
    load.start()
    try:
        for _ in range(KILLS):
            answered = load.answered
            wait_for(lambda answered=answered: load.answered > answered + rng.randrange(200))  # type: ignore[misc]
            process.signal(signal.SIGKILL)
            process.wait()
            process = serve(tmp_path, load, settings)
        load.is_publishing.clear()
        wait_for(lambda: lag(load) == 0)
    finally:
        load.stop()
    read_everything(load)
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    broken = load.history.check([GROUP])
    told = load.history
    print(
        f"\n{KILLS} kills, seed {seed}, {time.monotonic() - began:.0f} s: {len(told.publishes)} messages sent, ", end=""
    )
    print(f"{len(told.stored)} stored, {len(told.deliveries)} deliveries")
    assert not broken, f"seed {seed}: {broken[:10]}"
    assert sum(outcome == OK for outcome, _, _ in load.history.publishes.values()) > KILLS


def serve(directory: Path, load: Load, settings: dict[str, str]) -> Process:
    process = Process(directory, **settings)
    load.port = process.wait_for_port("wire")
    return process


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.005)


def lag(load: Load) -> int:
    transport = load.connect()
    assert transport is not None
    try:
        request = pb.DescribeGroupRequest(channel=CHANNEL, group=GROUP).SerializeToString()
        return pb.GroupInfo.FromString(transport.call("mq.AdminService/DescribeGroup", request)).lag
    finally:
        transport.close()


def read_everything(load: Load) -> None:
    """What a reader without a group finds, and which offsets there are."""
    transport = WireTransport("127.0.0.1", load.port)
    describe = pb.DescribeChannelRequest(channel=CHANNEL).SerializeToString()
    info = pb.ChannelInfo.FromString(transport.call("mq.AdminService/DescribeChannel", describe))
    for partition in info.partitions:
        load.history.ranges[partition.partition] = (partition.start_offset, partition.next_offset)
        at = partition.start_offset
        while at < partition.next_offset:
            pull = pb.PullRequest(channel=CHANNEL, partition=partition.partition, start=pb.Start(offset=at))
            answer = pb.PullResponse.FromString(transport.call("mq.MQService/Pull", pull.SerializeToString()))
            assert answer.batches, f"nothing at {at} of {partition}"
            for batch in answer.batches:
                deltas = batch.offset_deltas or range(len(batch.batch.messages))
                for delta, message in zip(deltas, batch.batch.messages, strict=True):
                    load.history.stored[batch.partition, batch.base_offset + delta] = message.content
            at = answer.next_offset
    transport.close()


@pytest.mark.torture
def test_a_thousand_kills(tmp_path: Path) -> None:
    test_kills_under_load_lose_nothing_and_invent_nothing(tmp_path)
