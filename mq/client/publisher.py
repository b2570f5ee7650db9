"""Publishing one message at a time, from many threads: those who come while requests are in flight share the next.

There is no thread and no delay here. Whoever finds the lane free sends at once, alone. Whoever finds it busy stands in
line; when an answer is there, the first of the line sends for all who stand in it.
"""

from __future__ import annotations

import threading
import time

from mq.client import codec
from mq.client.connection import Connection
from mq.client.message import Published, published, published_alone
from mq.client.options import PublishOptions
from mq.client.sequence import Sequence
from mq.client.transport import TimedOut, same
from mq.errors import InvalidArgument, MqError, SequenceRefused, Unavailable
from mq.pb import mq_pb2 as pb

PUBLISH_BATCH = "mq.MQService/PublishBatch"
MOST_MESSAGES = 5_000  # of one request
MOST_BYTES = 1 << 20
REQUESTS = 2  # in flight: who comes while the disk works for one need not wait for it; more would only be smaller


class _Entry:
    """A message that waits for its answer, in the thread that published it."""

    __slots__ = ("duty", "message", "outcome", "timeout", "turn")

    def __init__(self, message: bytes, timeout: float | None = None) -> None:
        self.message = message
        self.timeout = timeout
        self.outcome: Published | MqError | None = None
        self.duty: tuple[list[_Entry], Sequence] | None = None  # whom to send for, itself among them
        self.turn = threading.Lock()  # released when there is an outcome or a duty
        self.turn.acquire()


class Lane:
    """The publishes to one channel with the same options, two requests at a time."""

    def __init__(self, connection: Connection, channel: str, options: PublishOptions) -> None:
        self._connection = connection
        self._channel = channel
        self._options = options
        self._lock = threading.Lock()
        self._line: list[_Entry] = []
        self._free = [Sequence() for _ in range(REQUESTS)]  # of the requests that are not in flight

    def publish(self, message: bytes, timeout: float | None) -> Published:
        """One message, durable when this returns. Raises MqError."""
        self._connection.check_usable()  # after a fork nobody sends for those who stand in line
        sequence: Sequence | None = None
        try:
            with self._lock:
                if self._free:  # then nobody stands in line
                    sequence = self._free[-1]
                    del self._free[-1]  # pop() is a call, after which an interrupt would lose what it returned
            if sequence is not None:
                return published_alone(self._channel, self._call([message], sequence, timeout))
        except MqError:
            raise
        except BaseException:  # an interrupt: nobody knows whether the number was taken
            if sequence is not None:
                sequence.renew()
            raise
        finally:
            if sequence is not None:
                self._end(sequence)
        return self._stand_in_line(message, timeout)

    def _stand_in_line(self, message: bytes, timeout: float | None) -> Published:
        entry = _Entry(message, timeout)
        try:
            with self._lock:
                self._line.append(entry)
                self._assign()
            if not entry.turn.acquire(timeout=self._connection.timeout if timeout is None else timeout):
                raise TimedOut("others were still publishing: it is not stored, or it is on its way with theirs")
            if entry.duty is not None:
                self._send_all(entry, timeout)
        except BaseException:  # an interrupt
            self._resign(entry)
            raise
        outcome = entry.outcome
        assert outcome is not None
        if isinstance(outcome, MqError):
            raise outcome
        return outcome

    def _end(self, sequence: Sequence) -> None:
        """A request is not in flight any more."""
        with self._lock:
            self._free.append(sequence)
            if self._line:
                self._assign()

    def _assign(self) -> None:
        """Let the first of the line send for all who stand in it, while a request is free."""
        while self._line and self._free:
            taken = self._take()
            taken[0].duty = taken, self._free.pop()
            taken[0].turn.release()

    def _take(self) -> list[_Entry]:
        size = 0
        for count, entry in enumerate(self._line):
            size += len(entry.message)
            is_of_them = entry.timeout == self._line[0].timeout  # one request has one deadline
            if not is_of_them or count >= self._options.most_messages(MOST_MESSAGES) or (count and size > MOST_BYTES):
                taken, self._line = self._line[:count], self._line[count:]
                return taken
        taken, self._line = self._line, []
        return taken

    def _resign(self, entry: _Entry) -> None:
        """Leave the line; somebody else has to do what may be its duty by now."""
        with self._lock:
            if entry in self._line:
                self._line.remove(entry)
            if entry.duty is not None:
                entries, sequence = entry.duty
                entry.duty = None
                self._line[:0] = entries[1:]
                self._free.append(sequence)
                self._assign()

    def _send_all(self, entry: _Entry, timeout: float | None) -> None:
        assert entry.duty is not None
        entries, sequence = entry.duty
        try:
            self._send(entries, sequence, timeout)
        finally:
            entry.duty = None  # it is done; and an entry that holds itself would stay in memory for long
            for each in entries:  # nobody is left without an answer, also after an interrupt
                if each.outcome is None:
                    each.outcome = Unavailable("the publish was interrupted: it may be stored or not")
                    sequence.renew()
            try:
                self._end(sequence)
            finally:
                for each in entries:
                    each.turn.release()

    def _send(self, entries: list[_Entry], sequence: Sequence, timeout: float | None) -> None:
        try:
            answer = self._call([entry.message for entry in entries], sequence, timeout)
        except InvalidArgument as error:
            if len(entries) == 1:
                entries[0].outcome = error
                return
            end = time.monotonic() + (self._connection.timeout if timeout is None else timeout)
            for entry in entries:  # one of them is at fault, and only that one shall hear of it
                if error.went_unanswered:
                    entry.outcome = unclear(error)
                else:
                    self._send([entry], sequence, max(0.001, end - time.monotonic()))
        except MqError as error:
            for entry in entries:
                entry.outcome = same(error)
        else:
            for entry, outcome in zip(entries, published(self._channel, answer, len(entries)), strict=True):
                entry.outcome = outcome

    def _call(self, messages: list[bytes], sequence: Sequence, timeout: float | None) -> pb.PublishBatchResponse:
        for is_last in (False, True):
            head = sequence.head(self._channel, self._options, sequence.next)
            try:
                data = self._connection.call(
                    PUBLISH_BATCH, codec.publish_request(head, messages), timeout=timeout, patient=True
                )
            except SequenceRefused:
                # Forgotten after days, or by a broker that keeps nothing. After a break nobody knows whether it is
                # stored; but then the broker would have known the producer.
                is_new = sequence.next == 0
                sequence.renew()
                if is_last or is_new:
                    raise
            except MqError as error:
                if error.leaves_open:
                    sequence.renew()
                raise
            else:
                sequence.next += 1
                return pb.PublishBatchResponse.FromString(data)
        raise AssertionError


def unclear(refusal: InvalidArgument) -> Unavailable:
    """For messages that were sent together, at first without an answer: to send each by itself could store it twice."""
    return Unavailable(f"a try had no answer, and the next was refused ({refusal}): it may be stored or not")
