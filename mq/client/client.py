"""`mq.Client`: everything a program does with a broker, from any number of threads."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
import warnings
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, TypeVar
from weakref import WeakSet

from mq.client import address as addresses
from mq.client.admin import Admin
from mq.client.codec import HeaderValue
from mq.client.connection import BUSY_POLL_SECONDS, CONNECT_SECONDS, Connection, connect
from mq.client.consumer import Consumer
from mq.client.message import Published
from mq.client.options import PLAIN, PublishOptions
from mq.client.position import Start, start_of
from mq.client.producer import Producer
from mq.client.publisher import Lane
from mq.client.pulling import Cursor, MemberPull, Membership, OnPartitions
from mq.client.reader import Reader
from mq.client.transaction import Numberings, Transaction
from mq.client.value import Codec, message_of
from mq.errors import InvalidArgument
from mq.pb import mq_pb2 as pb

T = TypeVar("T", Producer, Consumer)

TIMEOUT_SECONDS = 30.0
EXTEND_PART = 4  # leases are extended after this part of the time they last: well below a third
MOST_LANES = 1_000  # a lane for each channel and set of options; far more are a channel for each message


class Client(Admin):
    """A connection to a broker.

    >>> with mq.Client(address) as client:
    ...     ack = client.publish("orders", b"hello")
    >>> ack.offset
    3

    `address`: like mq://host, grpc://host:50051, several by comma; None takes MQ_SERVER. `timeout`: seconds that a call
    may take, with all its retries. `codec`: turns values into bytes and back, for everything made from this client.
    `busy_poll`: seconds that a thread looks on for its answer before it sleeps, where it is alone on its connection and
    the answer before came within twice that (over the wire); 0 where processor time is worth more than that.
    Raises Unavailable where no broker answers.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        timeout: float = TIMEOUT_SECONDS,
        connect_timeout: float = CONNECT_SECONDS,
        codec: Codec | None = None,
        busy_poll: float = BUSY_POLL_SECONDS,
    ) -> None:
        text = addresses.from_environment(os.environ) if address is None else address
        self._connection = Connection(
            addresses.parse(text),
            timeout=timeout,
            connect_timeout=connect_timeout,
            connect=partial(connect, busy_poll=busy_poll),
        )
        self._codec = codec
        self._lanes: dict[tuple[str, PublishOptions], Lane] = {}
        self._lock = threading.Lock()
        self._open: list[Producer | Consumer] = []
        self._readers: WeakSet[Reader] = WeakSet()  # they need no close: they hold nothing but while they read
        self._numberings = Numberings()
        self._is_closed = True  # until it was open
        self._connection.transport()
        self._is_closed = False

    # ------------------------------------------------------------ publishing

    def publish(
        self,
        channel: str,
        value: Any,
        key: str | bytes | None = None,
        headers: Mapping[str, HeaderValue] | None = None,
        *,
        partition: int | None = None,
        durability: str | None = None,
        delay_ms: int = 0,
        deliver_at: datetime | None = None,
        ttl_ms: int = 0,
        codec: Codec | None = None,
        timeout: float | None = None,
    ) -> Published:
        """Publish one message; returns when it is durable. Threads that publish at the same time share requests.

        >>> ack = client.publish("orders", {"item": 7}, key="c-42", headers={"source": "web"})
        >>> ack.offset, ack.durable
        (3, 'fsync')
        """
        message = message_of(value, key, headers, codec or self._codec)
        options = PLAIN
        if partition is not None or durability or delay_ms or deliver_at or ttl_ms:
            options = PublishOptions(partition, durability, delay_ms, deliver_at, ttl_ms)
        return self._lane(channel, options).publish(message, timeout)

    def producer(
        self,
        channel: str,
        *,
        linger_ms: float = 5,
        batch_size: int = 500,
        batch_bytes: int = 256 << 10,
        buffer_bytes: int = 32 << 20,
        durability: str | None = None,
        ttl_ms: int = 0,
        codec: Codec | None = None,
    ) -> Producer:
        """A producer: batches, back-pressure, each message stored once and in order. Leaving its block flushes.

        >>> with client.producer("orders") as producer:
        ...     for number in range(1_000):
        ...         sent = producer.send({"number": number}, key=f"customer-{number % 10}")
        >>> sent.result().offset
        1002
        """
        partitions = len(self.describe_channel(channel).partitions)
        made = Producer(
            self._connection.another(),
            channel,
            partitions,
            linger_ms=linger_ms,
            batch_size=batch_size,
            batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes,
            request_bytes=self._connection.request_bytes,
            options=PublishOptions(durability=durability, ttl_ms=ttl_ms),
            made_by=codec or self._codec,
        )
        return self._keep(made)

    def transaction(self, *, codec: Codec | None = None) -> Transaction:
        """Publishes to several channels and acks, all or nothing.

        >>> with client.consumer("orders", group="billing") as consumer:
        ...     message = consumer.fetch(1, timeout=5)[0]
        ...     with client.transaction() as tx:
        ...         tx.publish("invoices", {"for": message.text()})
        ...         tx.ack(message)
        """
        return Transaction(self._call, codec or self._codec, self._numberings)

    # ------------------------------------------------------------ consuming

    def consumer(
        self,
        channel: str,
        group: str,
        *,
        start: Start = "earliest",
        batch_size: int = 500,
        interval: float = 0.0,
        ordered: bool = False,
        member: str | None = None,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        codec: Codec | None = None,
    ) -> Consumer:
        """A member of a group, which is made where there is none. `interval`: seconds between pulls.

        `member`: its name. Where the group is ordered, who comes later under a name that is in use takes it over.

        >>> with client.consumer("orders", group="billing") as consumer:
        ...     for message in consumer:
        ...         with message.process():
        ...             print(message.text())
        ...         if message.offset == 2:
        ...             break
        one
        two
        three
        """
        settings = self._group_settings(channel, group, start, ordered)
        name = member or member_name()
        membership = Membership(
            MemberPull(channel, group, name, start_of(start), first_turn(settings)),
            batch_size,
            interval,
            codec or self._codec,
            on_assigned,
            on_revoked,
        )
        made = Consumer(self._connection, self._connection.another(), membership, extend_seconds(settings))
        made.keeps_open = self
        return self._keep(made)

    def read(
        self,
        channel: str,
        start: Start = "earliest",
        *,
        follow: bool = True,
        partition: int | None = None,
        batch_size: int = 5_000,
        max_bytes: int = 1 << 20,
        interval: float = 0.0,
        codec: Codec | None = None,
    ) -> Reader:
        """Read a channel without a group. `follow`: wait for more at the end, instead of ending there.

        >>> for message in client.read("orders", start=mq.last(2), follow=False):
        ...     print(message.offset, message.text())
        1 two
        2 three
        """
        cursor = Cursor(channel, start, partition, codec or self._codec)
        made = Reader(
            self._connection.another(),
            cursor,
            follow=follow,
            batch_size=batch_size,
            max_bytes=max_bytes,
            interval=interval,
        )
        with self._lock:
            self._readers.add(made)
        return made

    # ------------------------------------------------------------ the end

    def close(self, timeout: float | None = None) -> None:
        """Close what was made from this client, and the connection. Idempotent.

        >>> another = mq.Client(address)
        >>> another.close()
        """
        if self._is_closed:
            return
        self._is_closed = True
        try:
            with contextlib.ExitStack() as stack:
                for each in (*self._open, *self._readers):
                    stack.callback(each.close, timeout)
        finally:
            self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_is_closed", True):
            warnings.warn("an mq.Client was not closed: use `with`, or call close()", ResourceWarning, stacklevel=2)
            self._connection.close()

    # ------------------------------------------------------------ inside

    def _call(self, method: str, request: bytes, wait: float = 0.0) -> bytes:
        return self._connection.call(method, request, wait=wait)

    def _keep(self, made: T) -> T:
        with self._lock:
            self._open = [each for each in self._open if not each.is_closed]
            self._open.append(made)
        return made

    def _lane(self, channel: str, options: PublishOptions) -> Lane:
        lane = self._lanes.get((channel, options))
        if lane is None:
            with self._lock:
                if len(self._lanes) >= MOST_LANES:
                    self._lanes.clear()  # those in use live on in the threads that use them
                lane = self._lanes.setdefault((channel, options), Lane(self._connection, channel, options))
        return lane

    def _group_settings(self, channel: str, group: str, start: Start, ordered: bool) -> pb.GroupSettings:
        return settings_of(self.join_group(channel, group, start, ordered), ordered)


def settings_of(info: pb.GroupInfo, ordered: bool) -> pb.GroupSettings:
    """A group's settings. Raises InvalidArgument where it is not of the kind that was asked for."""
    is_ordered = info.settings.mode == pb.GroupSettings.ORDERED
    if ordered and not is_ordered:
        raise InvalidArgument(f"group {info.group!r} of {info.channel!r} is shared, not ordered")
    return info.settings


def extend_seconds(settings: pb.GroupSettings) -> float:
    """How often leases are extended."""
    return max(0.05, min(settings.ack_wait_ms, settings.session_timeout_ms) / 1_000 / EXTEND_PART)


def first_turn(settings: pb.GroupSettings) -> int:
    """Where a member's turns begin: where order counts, after those of whoever had its name before."""
    return time.time_ns() // 1_000 if settings.mode == pb.GroupSettings.ORDERED else 0


def member_name() -> str:
    """A name that says where a member runs, and is never given twice."""
    host = "".join(each for each in socket.gethostname() if each.isalnum() or each in ".-")[:40]
    return f"{host or 'member'}-{os.getpid()}-{secrets.token_hex(4)}"
