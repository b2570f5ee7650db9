"""Steady work at a chosen rate, checked in epochs: large batches, each of which counts as one publish in the history.

All messages of a batch have the same content, which names the batch, so that its bytes can be compared as a whole and
the clients cost little beside the broker. A batch is as large as a record may be, so batches are never merged or cut.
"""

from __future__ import annotations

import threading
import time
from itertools import count

from history import OK, UNKNOWN, History
from process import DEADLINE, wait_until

from mq.client.wire import WireTransport
from mq.errors import MqError, OffsetOutOfRange
from mq.pb import mq_pb2 as pb

CHANNEL, KEPT, GROUP = "stream", "kept", "readers"
BATCH, CONTENT_BYTES = 500, 100
PUBLISHERS = 2
RETAINED_BYTES = 64 << 20
AHEAD = RETAINED_BYTES // (3 * BATCH * CONTENT_BYTES)  # batches that may wait for the consumer


def batch_named(name: bytes) -> pb.Batch:
    one = pb.Batch(messages=[pb.BatchMessage(content=name.ljust(CONTENT_BYTES, b"."))]).SerializeToString()
    return pb.Batch.FromString(one * BATCH)


class Soak:
    """Publishers, one for each partition, and a consumer; `begin_epoch`, work, `end_epoch` tells what was broken."""

    def __init__(self) -> None:
        self.port = 0
        self.batches_per_second = 0.0  # of each publisher; 0: as fast as it goes
        self.published = 0  # batches that were answered
        self.consumed = 0
        self.kept: list[bytes] = []  # of the channel that is never trimmed, in order
        self.crashes: list[BaseException] = []
        self.history = History()
        self._starts = [0] * PUBLISHERS  # of the epoch, in batches
        self._is_over = threading.Event()
        self._works = threading.Event()
        self._idle = [threading.Event() for _ in range(PUBLISHERS)]
        names = [threading.Thread(target=self._guard, args=(self._publish, n), daemon=True) for n in range(PUBLISHERS)]
        self._threads = [*names, threading.Thread(target=self._guard, args=(self._consume,), daemon=True)]

    def prepare(self) -> None:
        settings = pb.ChannelSettings(max_bytes=RETAINED_BYTES)
        request = pb.CreateChannelRequest(channel=CHANNEL, partitions=PUBLISHERS, settings=settings)
        self.ask("MQService/CreateChannel", request)
        self.ask("MQService/CreateChannel", pb.CreateChannelRequest(channel=KEPT))
        self.ask("AdminService/CreateGroup", pb.CreateGroupRequest(channel=CHANNEL, group=GROUP))
        for thread in self._threads:
            thread.start()

    def begin_epoch(self) -> None:
        self.history = History()
        for idle in self._idle:
            idle.clear()
        self._works.set()

    def end_epoch(self) -> list[str]:
        """Come to rest and check. The broken rules."""
        self._works.clear()
        wait_until(lambda: bool(self.crashes) or all(idle.is_set() for idle in self._idle), 2 * DEADLINE)
        wait_until(lambda: bool(self.crashes) or self._lag() == 0, 2 * DEADLINE)
        assert not self.crashes, self.crashes
        return self._check()

    def pause(self, seconds: float) -> None:
        """Let it work."""
        self._is_over.wait(seconds)

    def give_up(self) -> None:
        self._is_over.set()

    def stop(self) -> None:
        self.give_up()
        for thread in self._threads:
            thread.join(DEADLINE)
            assert not thread.is_alive(), "a client hangs"
        assert not self.crashes, self.crashes

    def ask(self, method: str, request: object) -> bytes:
        transport = WireTransport("127.0.0.1", self.port)
        try:
            return transport.call(f"mq.{method}", request.SerializeToString(), DEADLINE)  # type: ignore[attr-defined]
        finally:
            transport.close()

    def keep(self) -> None:
        """A message among all the others that stays for ever: segments are mostly dead, never all."""
        content = b"%d" % len(self.kept)
        sequence = len(self.kept)
        request = pb.PublishRequest(channel=KEPT, content=content, producer_id="k", sequence=sequence)
        self.ask("MQService/Publish", request)
        self.kept.append(content)

    def read_kept(self) -> list[bytes]:
        found: list[bytes] = []
        while True:
            request = pb.PullRequest(channel=KEPT, partition=0, start=pb.Start(offset=len(found)))
            answer = pb.PullResponse.FromString(self.ask("MQService/Pull", request))
            if not answer.batches:
                return found
            found += [message.content for batch in answer.batches for message in batch.batch.messages]

    # ------------------------------------------------------------ clients

    def _guard(self, work: object, *args: object) -> None:
        try:
            work(*args)  # type: ignore[operator]
        except BaseException as error:
            self.crashes.append(error)

    def _connect(self) -> WireTransport | None:
        while not self._is_over.is_set():
            try:
                return WireTransport("127.0.0.1", self.port)
            except MqError:
                self._is_over.wait(0.02)
        return None

    def _publish(self, number: int) -> None:
        numbers = count()
        unanswered: tuple[bytes, bytes] | None = None
        sequence, due = 0, 0.0
        while (transport := self._connect()) is not None:
            try:
                while not self._is_over.is_set():
                    if unanswered is None:
                        if not self._works.is_set():
                            self._idle[number].set()
                            self._works.wait(0.05)
                            due = time.monotonic()
                            continue
                        if self.batches_per_second:
                            due = max(due + 1 / self.batches_per_second, time.monotonic() - 0.5)
                            self._is_over.wait(max(0.0, due - time.monotonic()))
                        if self.published - self.consumed > AHEAD:
                            self._is_over.wait(0.001)
                            continue
                        name = b"%d-%d" % (number, next(numbers))
                        request = pb.PublishBatchRequest(
                            channel=CHANNEL,
                            partition=number,
                            producer_id=f"p{number}",
                            sequence=sequence,
                            batch=batch_named(name),
                        )
                        unanswered = name, request.SerializeToString()
                        self.history.published(name, UNKNOWN, is_idempotent=True)
                    name, data = unanswered
                    answer = transport.call("mq.MQService/PublishBatch", data, DEADLINE)
                    reply = pb.PublishBatchResponse.FromString(answer)
                    place = (reply.partition, whole(reply.base_offset))
                    self.history.published(name, OK, place, is_idempotent=True)
                    unanswered = None
                    sequence += 1
                    self.published += 1
            except MqError:
                self._is_over.wait(0.02)
            finally:
                transport.close()

    def _consume(self) -> None:
        who = {"channel": CHANNEL, "group": GROUP, "member": "one"}
        pull = pb.PullRequest(**who, max_messages=8 * BATCH, max_wait_ms=200).SerializeToString()
        while (transport := self._connect()) is not None:
            try:
                while not self._is_over.is_set():
                    answer = pb.PullResponse.FromString(transport.call("mq.MQService/Pull", pull, DEADLINE))
                    for batch in answer.batches:
                        place = (batch.partition, whole(batch.base_offset))
                        name = name_of(batch)
                        self.history.delivered(name, place, batch.delivery_count, GROUP, batch.receipt)
                        outcome = UNKNOWN
                        try:
                            ack = pb.AckRequest(**who, receipts=[pb.Receipt(receipt=batch.receipt)])
                            transport.call("mq.MQService/Ack", ack.SerializeToString(), DEADLINE)
                            outcome = OK
                        finally:
                            self.history.acked(place, GROUP, outcome, batch.receipt)
                        self.consumed += 1
            except MqError:
                self._is_over.wait(0.02)
            finally:
                transport.close()

    # ------------------------------------------------------------ the end of an epoch

    def _lag(self) -> int:
        request = pb.DescribeGroupRequest(channel=CHANNEL, group=GROUP)
        info = pb.GroupInfo.FromString(self.ask("AdminService/DescribeGroup", request))
        assert not info.skipped, "retention took what the group had not seen"
        return info.lag

    def _check(self) -> list[str]:
        """What retention has taken since is known by its delivery; the rest is read."""
        history = self.history
        history.stored = {place: name for name, place, _, _ in history.deliveries}
        describe = pb.DescribeChannelRequest(channel=CHANNEL)
        info = pb.ChannelInfo.FromString(self.ask("AdminService/DescribeChannel", describe))
        for partition in info.partitions:
            number, end = partition.partition, whole(partition.next_offset)
            history.ranges[number] = (self._starts[number], end)
            at = max(partition.start_offset, self._starts[number] * BATCH)
            while at < partition.next_offset:
                start = pb.Start(offset=at)
                pull = pb.PullRequest(channel=CHANNEL, partition=number, start=start, max_messages=8 * BATCH)
                try:
                    answer = pb.PullResponse.FromString(self.ask("MQService/Pull", pull))
                except OffsetOutOfRange:  # retention went on meanwhile
                    described = pb.ChannelInfo.FromString(self.ask("AdminService/DescribeChannel", describe))
                    at = described.partitions[number].start_offset
                    continue
                for batch in answer.batches:
                    if len(batch.batch.messages) == BATCH:  # retention may cut the first one
                        history.stored[number, whole(batch.base_offset)] = name_of(batch)
                at = answer.next_offset
            self._starts[number] = end
        return history.check([GROUP])


def whole(offset: int) -> int:
    assert offset % BATCH == 0, f"{offset} is inside of a batch"
    return offset // BATCH


def name_of(batch: pb.PulledBatch) -> bytes:
    """Checks every byte."""
    name = batch.batch.messages[0].content.rstrip(b".")
    assert batch.batch == batch_named(name), f"not what was sent: {batch.base_offset} of {batch.partition}"
    return name
