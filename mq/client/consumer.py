"""A consumer: iterate, or fetch by hand. A thread pulls the next batch while the current one is worked on, as long as
there is more than one batch holds; otherwise whoever iterates pulls himself.

Pulls have a connection of their own: closing it ends a pull that waits, and the broker gives out nothing more to it.
Nothing that `stop` touches takes a lock, so a signal's handler may call it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from queue import Empty, SimpleQueue
from types import TracebackType

from mq.client import unclosed
from mq.client.ahead import Ahead
from mq.client.batch import Batch, parts_of
from mq.client.connection import Connection
from mq.client.keeper import SHORTEST_SECONDS, Keeper
from mq.client.message import Delivery, Message
from mq.client.position import Start, start_of
from mq.client.pulling import LEAVE, LONGEST_WAIT_SECONDS, PULL, Membership, Pulled
from mq.client.waiting import Waiting
from mq.errors import MqError, Unavailable
from mq.pb import mq_pb2 as pb


class Consumer:
    """Made by `Client.consumer`. One thread iterates; acks may come from any.

    >>> with client.consumer("orders", "billing") as consumer:
    ...     for message in consumer:
    ...         print(message.text())
    ...         message.ack()
    ...         if message.offset == 1:
    ...             consumer.stop()
    one
    two
    """

    def __init__(self, shared: Connection, own: Connection, membership: Membership, extend_seconds: float) -> None:
        pull = membership.pull
        self.channel, self.group, self.member = pull.channel, pull.group, pull.member
        self._shared = shared  # acks, and all that is not a pull
        self._own, self._as = own, membership
        self._keeper = Keeper(shared, self.channel, self.group, self.member, extend_seconds)
        self._ahead = self._pulling_ahead()
        self._wakeups: SimpleQueue[None] = SimpleQueue()
        self._waiting = Waiting()
        self._assigned: frozenset[int] = frozenset()
        self._is_paused = self._is_seeking = self._is_stopping = self._is_closed = False
        self._pid = os.getpid()
        self.keeps_open: object = None  # whose connection it shares: that is not to be closed as long as this is used
        unclosed.opened(self)

    # ------------------------------------------------------------ taking messages

    def __iter__(self) -> Iterator[Message]:
        """Messages as they come, until `stop` or `close`."""
        self._check_usable()
        while (delivery := self._next()) is not None:
            while (index := delivery.given) < delivery.count:
                if self._is_paused or self._is_stopping or delivery.is_lost:
                    break
                delivery.given = index + 1
                yield Message(delivery, index)

    def batches(self) -> Iterator[Batch]:
        """The same in batches of up to `batch_size`, with one ack each.

        >>> with client.consumer("orders", "billing") as consumer:
        ...     for batch in consumer.batches():
        ...         print(batch.contents())
        ...         batch.ack()
        ...         consumer.stop()
        [b'one', b'two', b'three']
        """
        self._check_usable()
        while self._next() is not None:
            if parts := self._waiting.take(self._as.batch_size):
                yield Batch(parts)

    def fetch(self, max_messages: int | None = None, timeout: float = 0.0) -> Batch:
        """Up to so many messages: what is there, or what comes first within the timeout. Perhaps none.

        >>> with client.consumer("orders", "billing") as consumer:
        ...     batch = consumer.fetch(2, timeout=5)
        ...     batch.ack()
        >>> len(batch)
        2
        """
        self._check_usable()
        count = max_messages or self._as.batch_size
        end = time.monotonic() + timeout
        while self._is_resumed(left := max(0.0, end - time.monotonic())):
            waiting = len(self._waiting)
            ahead = self._ahead
            if ahead.is_at_work:
                while waiting < count and self._receive(ahead, 0.0 if waiting else max(0.0, end - time.monotonic())):
                    waiting = len(self._waiting)
            elif not waiting:
                self._pull_by_hand(ahead.own, count, min(LONGEST_WAIT_SECONDS, left), timeout)
            parts = [] if self._is_paused else self._waiting.take(count)
            if parts or time.monotonic() >= end or self._is_stopping:
                return Batch(parts)
        return Batch([])

    def ack(self, messages: Message | Sequence[Message] | Batch) -> None:
        """These are done. Sent with the next few; `flush` sends them now.

        >>> with client.consumer("orders", "billing") as consumer:
        ...     consumer.ack(consumer.fetch(3, timeout=5))
        >>> client.describe_group("orders", "billing").lag
        0
        """
        self._keeper.ack(parts_of(messages))

    def nack(self, messages: Message | Sequence[Message] | Batch, delay_ms: int | None = None) -> None:
        """Deliver these again.

        >>> with client.consumer("orders", "billing") as consumer:
        ...     consumer.nack(consumer.fetch(3, timeout=5), delay_ms=1_000)
        >>> client.describe_group("orders", "billing").lag
        3
        """
        self._keeper.nack(parts_of(messages), delay_ms)

    def reject(self, messages: Message | Sequence[Message] | Batch, reason: str = "") -> None:
        """These go to the dead-letter channel.

        >>> with client.consumer("orders", "billing") as consumer:
        ...     consumer.reject(consumer.fetch(1, timeout=5), "no such customer")
        >>> [each.text() for each in client.read("orders.dlq", follow=False)]
        ['one']
        """
        self._keeper.reject(parts_of(messages), reason)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all acks so far are durable.

        >>> with client.consumer("orders", "billing") as consumer:
        ...     consumer.fetch(1, timeout=5).ack()
        ...     consumer.flush()
        ...     client.describe_group("orders", "billing").lag
        2
        """
        self._keeper.flush(timeout)

    # ------------------------------------------------------------ steering

    def pause(self) -> None:
        """Hand out nothing more until `resume`; what was handed out stays leased.

        >>> with client.consumer("orders", "billing") as consumer:
        ...     consumer.pause()
        ...     len(consumer.fetch(1, timeout=0.01))
        ...     consumer.resume()
        ...     len(consumer.fetch(1, timeout=5))
        0
        1
        """
        self._is_paused = True

    def resume(self) -> None:
        """Go on after a `pause`."""
        self._is_paused = False
        self._wakeups.put(None)

    def seek(self, start: Start, *, partition: int | None = None) -> None:
        """Move the whole group; what this consumer holds is given back.

        >>> with client.consumer("orders", "billing") as consumer:
        ...     consumer.seek(mq.at_offset(2))
        ...     consumer.fetch(1, timeout=5)[0].text()
        'three'
        """
        request = pb.SeekRequest(channel=self.channel, group=self.group, start=start_of(start), force=True)
        if partition is not None:
            request.partition = partition
        self._is_seeking = True  # nobody pulls meanwhile: what is given back here would come from where the group was
        try:
            self._stop_pulling()
            self._keeper.flush()
            self._leave()
            self._shared.call("mq.MQService/Seek", request.SerializeToString())
        except BaseException:
            self._as.pull.lost(self._as.pull.turn)  # what is forgotten here is still leased: where order counts,
            raise  # the next pull gives it back first
        finally:
            self._is_seeking = False
            self._wakeups.put(None)

    def stop(self) -> None:
        """End the iteration after the message that is worked on. A signal's handler may call this."""
        self._is_stopping = True
        self._ahead.wake()
        self._wakeups.put(None)
        self._own.cut()

    @property
    def assigned(self) -> frozenset[int]:
        """Ordered groups: the partitions that this consumer owns."""
        return self._assigned

    @property
    def held(self) -> int:
        """Messages that are leased to this consumer: handed out and not settled, or pulled ahead.

        >>> with client.consumer("orders", "billing") as consumer:
        ...     consumer.fetch(3, timeout=5)[0].ack()
        ...     consumer.held
        2
        """
        return self._keeper.held

    @property
    def lost(self) -> int:
        """Messages whose lease was gone when they were acked: they are delivered again.

        >>> with client.consumer("orders", "billing") as consumer:
        ...     consumer.lost
        0
        """
        return self._keeper.lost

    def close(self, timeout: float | None = None) -> None:
        """Send the acks, give back what is not acked, leave the group, all within the timeout. Idempotent."""
        if self._is_closed or self._pid != os.getpid():
            return
        end = None if timeout is None else time.monotonic() + timeout
        self._is_closed = True
        unclosed.closed(self)
        self.stop()
        try:
            self._stop_pulling(_left(end))
            self._own.close()
            self.stop()  # once more: whoever waits in an iteration still has to hear of it
        finally:  # also where a signal's handler raises: nobody else would end what keeps the leases
            try:
                self._keeper.close(_left(end))
            finally:
                with contextlib.suppress(MqError):
                    self._leave(_left(end))

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    def __repr__(self) -> str:
        return f"<mq.Consumer {self.member} of {self.channel}/{self.group}>"

    # ------------------------------------------------------------ what comes

    def _next(self) -> Delivery | None:
        """The delivery to hand out of; None: stopped or closed."""
        if self._is_stopping and self._pid == os.getpid():
            return None
        self._check_usable()
        while self._is_resumed(None):
            if (delivery := self._waiting.first()) is not None:
                return delivery
            ahead = self._ahead
            if not ahead.is_at_work and ahead.is_needed:
                ahead.begin()
            if ahead.is_at_work:
                self._receive(ahead, None)
            else:
                self._pull_here(ahead)
        return None

    def _receive(self, ahead: Ahead, timeout: float | None) -> bool:
        """Take in the next answer that was pulled ahead; false: there is none in time, or a stop came."""
        if not ahead.is_at_work:
            return False
        try:
            pulled = ahead.take(timeout)
        except MqError:
            if self._is_over(ahead.own):
                return False
            raise
        if pulled is not None:
            self._enter(ahead.own, pulled)
        return pulled is not None and not self._is_stopping

    def _pull_here(self, ahead: Ahead) -> None:
        """Without a second try: that takes long, and is the other thread's, from which a stop can call away at once."""
        try:
            pulled = self._pull(ahead.own, self._as.batch_size, LONGEST_WAIT_SECONDS, float("inf"), once=True)
        except MqError as error:
            if self._is_over(ahead.own):
                return
            if not error.retryable:
                raise
            ahead.begin()
            return
        self._enter(ahead.own, pulled)
        if ahead.is_full(pulled):
            ahead.begin()

    def _pull_by_hand(self, own: Connection, count: int, wait: float, timeout: float) -> None:
        try:
            self._enter(own, self._pull(own, count, wait, timeout + own.timeout))
        except MqError:
            if not self._is_over(own):
                raise

    def _is_over(self, own: Connection) -> bool:
        """A stop, or a seek of another thread, has ended what was asked on this connection."""
        return self._is_stopping or own is not self._own

    def _is_resumed(self, timeout: float | None) -> bool:
        """Wait through a pause, also until a signal's handler ends it; false: it takes too long, or a stop came."""
        while (self._is_paused or self._is_seeking) and not self._is_stopping:
            try:
                self._wakeups.get(timeout=timeout)
            except Empty:
                return False
        return not self._is_stopping

    def _enter(self, own: Connection, pulled: Pulled) -> None:
        if own is not self._own:
            self._forget(pulled.deliveries)  # another thread seeks: these are from where the group was
            return
        try:
            if pulled.assigned != self._assigned:
                before, self._assigned = self._assigned, pulled.assigned
                self._as.tell(before, pulled.assigned)
        finally:
            self._waiting.add(pulled.deliveries)  # also where a callback raises: they are leased, and kept
            if own is not self._own:  # a seek came meanwhile, perhaps from a callback
                self._keeper.take([(each, 0, each.count) for each in pulled.deliveries])  # it may have passed them over
                self._forget_waiting()

    # ------------------------------------------------------------ pulling

    def _pulling_ahead(self) -> Ahead:
        def pull(own: Connection) -> Pulled:
            try:
                return self._pull(own, self._as.batch_size, LONGEST_WAIT_SECONDS, float("inf"))
            except MqError:
                raise
            except Exception as error:  # the thread hands on no other, and who iterates would wait for ever
                raise MqError(f"a pull failed: {error!r}") from error

        return Ahead(
            self._own, pull, self._check_waiting, batch_size=self._as.batch_size, interval=self._as.interval
        )  # fmt: skip

    def _stop_pulling(self, timeout: float | None = None) -> None:
        """End the pull that waits, and forget what was pulled and not handed out."""
        own, self._own = self._own, self._own.another()
        ahead, self._ahead = self._ahead, self._pulling_ahead()
        own.close()
        ahead.wake()
        try:
            ahead.end(timeout)
        finally:  # also where a signal's handler raises
            for pulled in ahead.left():
                self._forget(pulled.deliveries)
            self._forget_waiting()

    def _forget_waiting(self) -> None:
        self._forget(self._waiting.deliveries())
        self._waiting.clear()

    def _forget(self, deliveries: Sequence[Delivery]) -> None:
        """Of these nothing more is handed out. The broker is to be told, or else their leases run out: nobody extends
        them, and nobody's ack is missed.
        """
        self._keeper.take([(each, each.given, each.count) for each in deliveries])

    def _pull(self, own: Connection, count: int, wait: float, timeout: float, once: bool = False) -> Pulled:
        pull = self._as.pull

        def again() -> bytes:
            pull.lost(pull.turn)
            return self._request(count, wait)

        try:
            data = own.call(PULL, self._request(count, wait), wait=wait, timeout=timeout, before_retry=again, once=once)
            pulled = pull.answer(data, pull.turn, self._as.codec)
            self._keeper.hold(pulled.deliveries, own.start_id)
        except BaseException as error:
            pull.failed(pull.turn, error)
            raise
        return pulled

    def _request(self, count: int, wait: float) -> bytes:
        if self._as.pull.begins_afresh:
            self._keeper.lose_all()
        return self._as.pull.request(count, wait)

    def _check_waiting(self) -> None:
        """After a break: what waits here may be somebody else's by now, and is dropped then."""
        with contextlib.suppress(MqError, RuntimeError):
            self._keeper.check(self._waiting.deliveries())

    def _leave(self, timeout: float | None = None) -> None:
        timeout = None if timeout is None else max(SHORTEST_SECONDS, timeout)
        self._shared.call(LEAVE, self._as.pull.leave(), timeout=timeout)

    def _check_usable(self) -> None:
        if self._pid != os.getpid():
            raise Unavailable("this consumer was made before a fork: make a new one in the child")
        if self._is_closed:
            raise Unavailable("the consumer is closed")


def _left(end: float | None) -> float | None:
    """Seconds until then; None: as long as it takes."""
    return None if end is None else max(0.0, end - time.monotonic())
