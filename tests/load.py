"""Mixed work on a broker that is killed, starved, paused or cut off meanwhile: clients go on, and note what they see.

Publishers send small batches: plain ones, idempotent ones (sent again until they are answered), delayed ones of both
kinds. A shared group acks most of what it gets and nacks some; an ordered group does it with two members, of which one
leaves now and then. Both members are driven by one thread, so what is noted is in the order in which it happened.
"""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from collections.abc import Callable
from itertools import count

from history import FAILED, OK, UNKNOWN, History
from process import DEADLINE, wait_until

from mq.client.wire import WireTransport
from mq.errors import MqError, ResourceExhausted, Unavailable
from mq.pb import mq_pb2 as pb

CHANNEL, PARTITIONS = "orders", 2
SHARED, ORDERED = "billing", "ledger"
SETTINGS = {
    "WAL_SEGMENT_SIZE": "1MiB",
    "SERVER_MAX_RECV_MSG_SIZE": "256KiB",
    "GROUP_MAX_DELIVER": "1000000",
    "GROUP_ACK_WAIT": "2s",
    "GROUP_SESSION_TIMEOUT": "2s",
}


class Load:
    """`start`, do harm to the broker, `drain`, `stop`; then `check` tells which promises were broken."""

    def __init__(self, seed: int, *, call_seconds: float = 10.0, content_bytes: int = 0, pause: float = 0.0) -> None:
        self.seed = seed
        self.port = 0
        self.direct_port = 0  # for questions that must get through, where `port` is a proxy's
        self.call_seconds = call_seconds
        self.content_bytes = content_bytes
        self.pause = pause
        self.forgets_sequences = False  # a planted bug
        self.history = History()
        self.answered = 0
        self.handled = 0  # deliveries that were acked or nacked
        self.retried = 0  # idempotent publishes that were sent again
        self.refused = 0  # publishes that certainly were not stored
        self.errors: Counter[str] = Counter()  # of publishes, by what they were told
        self.is_over = threading.Event()
        self.is_publishing = threading.Event()
        self.is_publishing.set()
        self._threads: list[threading.Thread] = []
        self._turns: Counter[str] = Counter()  # of each member of the ordered group
        self.crashes: list[BaseException] = []

    def prepare(self) -> None:
        """The channel and its groups, before anything is published."""
        channel = pb.CreateChannelRequest(channel=CHANNEL, partitions=PARTITIONS)
        self.ask("MQService/CreateChannel", channel)
        self.ask("AdminService/CreateGroup", pb.CreateGroupRequest(channel=CHANNEL, group=SHARED))
        settings = pb.GroupSettings(mode=pb.GroupSettings.ORDERED)
        self.ask("AdminService/CreateGroup", pb.CreateGroupRequest(channel=CHANNEL, group=ORDERED, settings=settings))

    def start(self) -> None:
        for number in range(2):
            self._run(self._publish, f"p{number}", number)
            self._run(self._publish, f"i{number}", number, is_idempotent=True)
        self._run(self._publish, "d", 0, is_delayed=True)
        self._run(self._publish, "e", 1, is_idempotent=True, is_delayed=True)
        self._run(self._consume, SHARED, ["one"])
        self._run(self._consume, ORDERED, ["left", "right"])

    def wait_for(self, answered: int, handled: int = 0) -> None:
        """Until so many more publishes are answered, and batches acked or nacked."""
        answered, handled = self.answered + answered, self.handled + handled
        wait_until(lambda: bool(self.crashes) or (self.answered >= answered and self.handled >= handled))

    def drain(self) -> None:
        """Publish no more, and wait until both groups are done with everything, as long as it becomes less."""
        self.is_publishing.clear()
        left = sys.maxsize
        while left and not self.crashes:
            before = left
            wait_until(lambda before=before: bool(self.crashes) or self._left() < before, 2 * DEADLINE)
            left = self._left()

    def stop(self) -> None:
        self.is_over.set()
        for thread in self._threads:
            thread.join(DEADLINE)
            assert not thread.is_alive(), "a client hangs"
        assert not self.crashes, self.crashes

    def check(self) -> list[str]:
        """Read everything; the broken rules."""
        self._read_everything()
        return self.history.check([SHARED, ORDERED], ordered=[ORDERED])

    def figures(self) -> dict[str, int]:
        outcomes = [outcome for outcome, _, _ in list(self.history.publishes.values())]
        return {
            "messages sent": len(outcomes),
            "answered": outcomes.count(OK),
            "stored": len(self.history.stored),
            "deliveries": len(self.history.deliveries),
            "publishes retried": self.retried,
        }

    def ask(self, method: str, request: object) -> bytes:
        transport = WireTransport("127.0.0.1", self.direct_port or self.port)
        try:
            return transport.call(f"mq.{method}", request.SerializeToString(), DEADLINE)  # type: ignore[attr-defined]
        finally:
            transport.close()

    # ------------------------------------------------------------ clients

    def _run(self, work: Callable[..., None], name: str, *args: object, **kind: bool) -> None:
        def guarded() -> None:
            try:
                work(name, *args, random.Random(f"{self.seed} {name}"), **kind)
            except BaseException as error:
                self.crashes.append(error)

        self._threads.append(threading.Thread(target=guarded, daemon=True, name=name))
        self._threads[-1].start()

    def _connect(self) -> WireTransport | None:
        """A connection, as soon as there is a broker; None where the load is over."""
        while not self.is_over.is_set():
            try:
                return WireTransport("127.0.0.1", self.port, connect_timeout=self.call_seconds)
            except MqError:
                self.is_over.wait(0.01)
        return None

    def _publish(
        self, name: str, number: int, rng: random.Random, *, is_idempotent: bool = False, is_delayed: bool = False
    ) -> None:
        numbers, sequence = count(), 0
        unanswered: tuple[bytes, list[bytes]] | None = None
        while (transport := self._connect()) is not None:
            try:
                while self.is_publishing.is_set() or unanswered:
                    self.retried += unanswered is not None
                    if unanswered is None:
                        contents = [self._content(name, next(numbers)) for _ in range(rng.randint(1, 5))]
                        batch = pb.Batch(messages=[pb.BatchMessage(content=content) for content in contents])
                        request = pb.PublishBatchRequest(channel=CHANNEL, partition=number, batch=batch)
                        if is_idempotent and not self.forgets_sequences:
                            request.producer_id, request.sequence = name, sequence
                        if is_delayed:
                            request.delay_ms = rng.randint(1, 300)
                        unanswered = (request.SerializeToString(), contents)
                        self._note(contents, UNKNOWN, is_idempotent)
                    data, contents = unanswered
                    reply = pb.PublishBatchResponse.FromString(
                        transport.call("mq.MQService/PublishBatch", data, self.call_seconds)
                    )
                    place = None if is_delayed else (reply.partition, reply.base_offset)
                    self._note(contents, OK, is_idempotent, place)
                    unanswered = None
                    sequence += 1
                    self.answered += 1
                    if self.is_over.wait(0.02 if is_delayed else self.pause):
                        break
                self.is_over.wait(0.01)
            except ResourceExhausted as error:
                self.errors[str(error)] += 1
                self.refused += 1
                if not is_idempotent and unanswered:
                    self._note(unanswered[1], FAILED, is_idempotent)
                    unanswered = None
                self.is_over.wait(0.05)
            except MqError as error:
                self.errors[str(error)] += 1
                unanswered = unanswered if is_idempotent else None
                self.is_over.wait(0.01)
            finally:
                transport.close()

    def _content(self, name: str, number: int) -> bytes:
        return f"{name}-{number}".encode().ljust(self.content_bytes, b".")

    def _note(
        self, contents: list[bytes], outcome: str, is_idempotent: bool, place: tuple[int, int] | None = None
    ) -> None:
        for at, content in enumerate(contents):
            where = None if place is None else (place[0], place[1] + at)
            self.history.published(content, outcome, where, is_idempotent=is_idempotent)

    def _consume(self, group: str, names: list[str], rng: random.Random) -> None:
        astray: set[str] = set()  # an answer of theirs may have been lost, or a pull may still be on its way
        while (transport := self._connect()) is not None:
            try:
                while not self.is_over.is_set():
                    for member in names:
                        self._turn(transport, group, member, rng, afresh=member in astray)
                        astray.discard(member)
                    if group == ORDERED and rng.random() < 0.02:
                        self._leave(transport, group, rng.choice(names))
                return
            except MqError as error:
                astray.update(names)
                if isinstance(error, Unavailable):
                    self.history.lost_an_answer(group)
                self.is_over.wait(0.01)
            finally:
                transport.close()

    def _leave(self, transport: WireTransport, group: str, member: str) -> None:
        leave = pb.LeaveRequest(channel=CHANNEL, group=group, member=member, turn=self._turns[member])
        transport.call("mq.MQService/Leave", leave.SerializeToString(), self.call_seconds)

    def _turn(self, transport: WireTransport, group: str, member: str, rng: random.Random, *, afresh: bool) -> None:
        who = {"channel": CHANNEL, "group": group, "member": member}
        wait_ms = 200 if group == SHARED else 20
        pull = pb.PullRequest(**who, max_messages=200, max_wait_ms=wait_ms)
        if group == ORDERED:
            self._turns[member] += 1
            pull.turn, pull.afresh = self._turns[member], afresh
        answer = transport.call("mq.MQService/Pull", pull.SerializeToString(), self.call_seconds)
        batches = pb.PullResponse.FromString(answer).batches
        for batch in batches:
            for place, message in zip(places_of(batch), batch.batch.messages, strict=True):
                self.history.delivered(message.content, place, batch.delivery_count, group, batch.receipt)
        for at, batch in enumerate(batches):
            self.handled += 1
            if rng.random() < 0.05:
                # an ordered group goes on where it stopped: what came behind goes back, too
                back = [pb.Receipt(receipt=each.receipt) for each in (batches[at:] if group == ORDERED else [batch])]
                nack = pb.NackRequest(**who, receipts=back, delay_ms=rng.randint(1, 20))
                transport.call("mq.MQService/Nack", nack.SerializeToString(), self.call_seconds)
                if group == ORDERED:
                    return
                continue
            outcome = UNKNOWN
            try:
                ack = pb.AckRequest(**who, receipts=[pb.Receipt(receipt=batch.receipt)])
                transport.call("mq.MQService/Ack", ack.SerializeToString(), self.call_seconds)
                outcome = OK
            finally:
                for place in places_of(batch):
                    self.history.acked(place, group, outcome, batch.receipt)

    # ------------------------------------------------------------ what is there in the end

    def _left(self) -> int:
        """Delayed messages that are not due, and messages that a group is not done with."""
        try:
            describe = pb.DescribeChannelRequest(channel=CHANNEL)
            left = 3 * pb.ChannelInfo.FromString(self.ask("AdminService/DescribeChannel", describe)).scheduled
            for group in (SHARED, ORDERED):  # each gets one more to do when a delayed one is out
                request = pb.DescribeGroupRequest(channel=CHANNEL, group=group)
                left += pb.GroupInfo.FromString(self.ask("AdminService/DescribeGroup", request)).lag
        except Unavailable:
            return sys.maxsize
        return left

    def _read_everything(self) -> None:
        """What a reader without a group finds, and which offsets there are."""
        describe = pb.DescribeChannelRequest(channel=CHANNEL)
        info = pb.ChannelInfo.FromString(self.ask("AdminService/DescribeChannel", describe))
        for partition in info.partitions:
            self.history.ranges[partition.partition] = (partition.start_offset, partition.next_offset)
            at = partition.start_offset
            while at < partition.next_offset:
                pull = pb.PullRequest(channel=CHANNEL, partition=partition.partition, start=pb.Start(offset=at))
                answer = pb.PullResponse.FromString(self.ask("MQService/Pull", pull))
                assert answer.batches, f"nothing at {at} of {partition}"
                for batch in answer.batches:
                    for place, message in zip(places_of(batch), batch.batch.messages, strict=True):
                        self.history.stored[place] = message.content
                at = answer.next_offset


def places_of(batch: pb.PulledBatch) -> list[tuple[int, int]]:
    deltas = batch.offset_deltas or range(len(batch.batch.messages))
    return [(batch.partition, batch.base_offset + delta) for delta in deltas]
