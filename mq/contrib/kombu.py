"""A transport for kombu, so that Celery runs on mq: importing this module makes `mq://host` a broker URL.

    import mq.contrib.kombu
    app = Celery(broker="mq://localhost")

A queue of kombu is a channel of mq with one group; a message is leased until it is acked, and the lease is extended
while the worker lives. A rejected message goes to the dead-letter channel. What a fanout exchange sends (Celery's
remote control), and what may be lost on a topic exchange (its events), is in a channel that all who listen read for
themselves, from now on.

A thread for each consumed queue pulls when there is room for more, and not before: a busy worker holds no more than
its prefetch count. They hand over through one queue: `drain_events` waits on it, and Celery's event loop hears a bell.
"""

from __future__ import annotations

import re
import socket
import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from kombu.transport import TRANSPORT_ALIASES, virtual
from kombu.utils.json import dumps, loads

from mq import __version__
from mq.client.client import Client
from mq.client.consumer import Consumer
from mq.client.message import Message, View
from mq.client.position import at_offset
from mq.contrib.puller import CLOSE_SECONDS, Listener, Puller, share_out
from mq.errors import ChannelNotFound, GroupExists, GroupNotFound, MqError, Unavailable

TRANSPORT_ALIASES["mq"] = "mq.contrib.kombu:Transport"

PREFIX = "kombu."  # of channels: what else is on the broker is no queue
FANOUT = "fanout."
GROUP = "kombu"
FANOUT_AGE_MS = 60_000  # who was not there to hear it missed it
MOST_AT_ONCE = 100  # where the prefetch count sets no limit
TRANSIENT = 1  # delivery_mode of messages that may be lost


class QoS(virtual.QoS):  # type: ignore[misc]
    """What was delivered and not settled. The broker has it leased, so nothing is put back by publishing it again.

    What was fanned out is leased to nobody: there is nothing to settle, and it is not counted here."""

    def ack(self, delivery_tag: str) -> None:
        if leased := self.channel.take_lease(delivery_tag):
            leased.ack()
            self._settled(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if leased := self.channel.take_lease(delivery_tag):
            if requeue:
                leased.nack(delay_ms=0)
            else:
                leased.reject("rejected by the consumer")
            self._settled(delivery_tag)

    def _settled(self, delivery_tag: str) -> None:
        super().ack(delivery_tag)
        self.channel.close_ended()
        self.channel.ask()  # there is room now, and whoever waits in drain_events may wait for long

    def restore_unacked(self) -> list[Any]:
        self._flush()
        for delivery_tag in list(self._delivered):
            self.reject(delivery_tag, requeue=True)
        return []


class Channel(virtual.Channel):  # type: ignore[misc]
    """A channel of kombu: the queues that it consumes, and what of them is leased."""

    QoS = QoS
    supports_fanout = True
    do_restore = False  # the end of the consumer gives back
    from_transport_options = (*virtual.Channel.from_transport_options, "visibility_timeout", "max_deliver")
    #: seconds after which the messages of a worker that was killed are given to another; 0: the server's default
    visibility_timeout = 0.0
    #: how often a message is given out before it is a dead letter; 0: the server's default
    max_deliver = 0

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        assert connection.mq_client is not None
        self._client = connection.mq_client
        self._pullers: dict[str, Puller | Listener] = {}
        self._ended: list[tuple[str, Puller | Listener]] = []  # cancelled; what they gave may still be acked
        self._getters: dict[str, Consumer] = {}
        self._leased: dict[str, Message] = {}
        self._no_ack: set[str] = set()
        self._asking = threading.Lock()  # what there is room for is shared out once

    # ------------------------------------------------------------ queues

    def _make(self, queue: str) -> str:
        """The channel of a queue and its group. Made when something is sent, bound or consumed: a declaration alone
        may be of a queue that only gets what is fanned out."""
        name = channel_of(queue)
        if name not in self.connection.made:
            self._client.create_channel(name, exist_ok=True, drop_acked=True)
            with suppress(GroupExists):  # with other settings: those that it has count
                wait_ms = round(float(self.visibility_timeout) * 1_000)
                self._client.create_group(name, GROUP, ack_wait_ms=wait_ms, max_deliver=int(self.max_deliver))
            self.connection.made.add(name)
        return name

    def _make_fanout(self, exchange: str) -> str:
        name = channel_of(FANOUT + exchange)
        if name not in self.connection.made:
            self._client.create_channel(name, exist_ok=True, max_age_ms=FANOUT_AGE_MS)
            self.connection.made.add(name)
        return name

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        try:
            self._client.describe_channel(channel_of(queue))
        except ChannelNotFound:
            return False
        return True

    def _size(self, queue: str) -> int:
        try:
            return self._client.describe_group(channel_of(queue), GROUP).lag
        except (ChannelNotFound, GroupNotFound):
            return 0

    def _purge(self, queue: str) -> int:
        return self._client.purge_channel(self._make(queue))

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        for of_queue, puller in [*self._pullers.items(), *self._ended]:
            if of_queue == queue:
                puller.close()
        self._pullers.pop(queue, None)
        self.connection.made.discard(channel_of(queue))
        with suppress(ChannelNotFound):
            self._client.delete_channel(channel_of(queue))

    def queue_declare(self, queue: str | None = None, passive: bool = False, **kwargs: Any) -> Any:
        declared = super().queue_declare(queue, passive, **kwargs)
        if kwargs.get("auto_delete"):
            self.connection.passing.add(declared.queue)
        return declared

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        kind = self.typeof(exchange).type
        if kind == "fanout" or (kind == "topic" and queue in self.connection.passing):
            self.connection.hears[queue] = (exchange, re.compile(pattern or ""))
        else:
            self._make(queue)

    def _lookup(self, exchange: str, routing_key: str, default: str | None = None) -> Any:
        found = super()._lookup(exchange, routing_key, default)
        if not found and exchange.startswith("reply."):
            # a binding lives in the process that made it; of the queue for answers kombu's names tell enough
            return [f"{routing_key}.{exchange}"]
        return found

    # ------------------------------------------------------------ sending

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> None:
        super().basic_publish(message, exchange, routing_key, **kwargs)
        if exchange and self.typeof(exchange).type == "topic" and _is_transient(message):
            self._put_fanout(exchange, message, routing_key)  # an event: who listens filters by its topic

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        ttl_ms = int(message["properties"].get("expiration") or 0)
        content = dumps(message).encode()
        if _is_transient(message):
            with suppress(ChannelNotFound):  # an answer that nobody waits for any more
                self._client.publish(channel_of(queue), content, ttl_ms=ttl_ms)
            return
        try:
            self._client.publish(self._make(queue), content, ttl_ms=ttl_ms)
        except ChannelNotFound:  # somebody deleted it
            self.connection.made.discard(channel_of(queue))
            self._client.publish(self._make(queue), content, ttl_ms=ttl_ms)

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any) -> None:
        self._client.publish(self._make_fanout(exchange), dumps(message).encode(), durability="os")

    # ------------------------------------------------------------ receiving

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any) -> None:
        no_ack = no_ack or queue in self.connection.hears
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        if no_ack:
            self._no_ack.add(queue)
        if queue not in self._pullers:
            self._pullers[queue] = self._puller(queue)

    def _puller(self, queue: str) -> Puller | Listener:
        def give(message: View | MqError) -> None:
            transport.give(self, queue, message)

        transport = self.connection
        if queue not in transport.hears:
            return Puller(self._client.consumer(self._make(queue), GROUP), give, self.ask)
        name = self._make_fanout(transport.hears[queue][0])
        now = self._client.describe_channel(name).partitions[0].next_offset
        return Listener(self._client.read(name, start=at_offset(now)), give)

    def basic_cancel(self, consumer_tag: str) -> None:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue is not None and queue not in self._active_queues:
            self._no_ack.discard(queue)
            if puller := self._pullers.pop(queue, None):
                puller.cancel()
                self._ended.append((queue, puller))
                self.close_ended()

    def close_ended(self) -> None:
        """Close the pullers that were cancelled and of which nothing is leased any more."""
        for ended in list(self._ended):
            if ended[1].close_if_idle():
                with suppress(ValueError):  # another thread did it too
                    self._ended.remove(ended)

    def ask(self) -> None:
        """Let the pullers fetch as much as the prefetch count leaves room for. Any thread may call this."""
        transport = self.connection  # None, where another thread closes the channel just now
        if transport is None or not transport.arrived.empty():
            return  # what is there comes first, and more would be beyond the prefetch count
        limit, limited = self.qos.prefetch_count, []
        with self._asking:
            for queue, puller in list(self._pullers.items()):
                if queue in self._no_ack or not limit:
                    puller.ask(MOST_AT_ONCE)
                elif isinstance(puller, Puller):
                    limited.append(puller)
            ended = [puller for _, puller in self._ended if isinstance(puller, Puller)]
            held = sum(each.load for each in (*limited, *ended)) + sum(each.held for each in self._getters.values())
            share_out(limit - held, limited)

    def deliver(self, queue: str, message: View) -> None:
        """Hand a message to the consumer of its queue; one that came after the cancel goes back."""
        if queue not in self._active_queues:
            if isinstance(message, Message) and not self.closed:
                message.nack(delay_ms=0)
                self.close_ended()
        elif payload := self._payload(message, queue in self._no_ack):
            topic = payload["properties"]["delivery_info"].get("routing_key", "")
            if queue not in self.connection.hears or self.connection.hears[queue][1].match(topic):
                self.connection._deliver(payload, queue)

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        if queue not in self._getters:
            self._getters[queue] = self._client.consumer(self._make(queue), GROUP)
        for message in self._getters[queue].fetch(1, timeout or 0.0):
            if payload := self._payload(message, no_ack=False):
                return payload
        raise Empty

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        message = super().basic_get(queue, no_ack=False, **kwargs)
        if message is not None and no_ack:
            self.qos.ack(message.delivery_tag)
        return message

    def _payload(self, message: View, no_ack: bool) -> dict[str, Any] | None:
        """A message as kombu has it, under a tag of this delivery; None, and a dead letter, where it is none."""
        tag = self._next_delivery_tag()
        try:
            payload: dict[str, Any] = loads(message.content.decode())
            payload["properties"]["delivery_tag"] = tag
            payload["properties"]["delivery_info"]["redelivered"] = message.delivery_count > 1
        except (ValueError, KeyError, TypeError):
            if isinstance(message, Message):
                message.reject("no message of kombu")
            return None
        if isinstance(message, Message):
            if no_ack:
                message.ack()
            else:
                self._leased[tag] = message
        return payload

    def take_lease(self, delivery_tag: str) -> Message | None:
        """What is leased under a tag, for its end; None: nothing is. Raises Unavailable where it was given back."""
        if self.closed:
            raise Unavailable("the channel is closed: what it delivered and was not acked comes again")
        return self._leased.pop(delivery_tag, None)

    def close(self) -> None:
        """Send the acks, and give back what is not acked."""
        if self.closed:
            return
        super().close()  # cancels the consumers
        for _, puller in self._ended:
            puller.close()
        for consumer in self._getters.values():
            with suppress(MqError):
                consumer.close(CLOSE_SECONDS)


class Transport(virtual.Transport):  # type: ignore[misc]
    """A connection of kombu: one client, shared by its channels."""

    Channel = Channel
    default_port = 50052
    driver_type = driver_name = "mq"
    connection_errors = (*virtual.Transport.connection_errors, Unavailable)
    channel_errors = (*virtual.Transport.channel_errors, MqError)
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"])
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.arrived: SimpleQueue[tuple[Channel, str, View | MqError]] = SimpleQueue()
        self.made: set[str] = set()  # channels that are known to exist
        self.passing: set[str] = set()  # queues that go with their consumer
        self.hears: dict[str, tuple[str, re.Pattern[str]]] = {}  # queue -> the exchange that it hears, and which topics
        self.mq_client: Client | None = None
        self._loop: Any = None  # Celery's, where it drives this
        self._bell: tuple[socket.socket, socket.socket] | None = None  # read in the loop, rung by pullers

    def driver_version(self) -> str:
        return __version__

    def establish_connection(self) -> Any:
        here = self.client
        address = f"mq://{here.hostname or 'localhost'}:{here.port or self.default_port}"
        self.mq_client = Client(here.transport_options.get("address") or address)
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        self._leave_loop()
        super().close_connection(connection)
        client, self.mq_client = self.mq_client, None
        if client is not None:
            client.close(CLOSE_SECONDS)

    # ------------------------------------------------------------ from the pullers to the channels

    def give(self, channel: Any, queue: str, message: View | MqError) -> None:
        """Hand over what a puller found. Its thread calls this."""
        self.arrived.put((channel, queue, message))
        if self._bell is not None:
            with suppress(OSError):  # full: it is rung already; closed: nobody listens
                self._bell[1].send(b"!")

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver what comes first, within a time. Raises TimeoutError."""
        self._ask()
        try:
            channel, queue, message = self.arrived.get(timeout=timeout)
        except Empty:
            raise TimeoutError from None
        if isinstance(message, MqError):
            # whatever it was, a new connection is the way out: it makes its queues again
            raise Unavailable(f"queue {queue!r} can't be consumed: {message}") from message
        channel.deliver(queue, message)

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Be driven by Celery's event loop: it asks at each turn, and delivers when the bell rings."""
        self._leave_loop()
        self._bell = socket.socketpair()
        for end in self._bell:
            end.setblocking(False)
        self._loop = loop
        loop.add_reader(self._bell[0], self._on_bell)
        loop.on_tick.add(self._ask)

    def _on_bell(self) -> None:
        if self._bell is not None:
            with suppress(BlockingIOError):
                self._bell[0].recv(4_096)
        while not self.arrived.empty():
            self.drain_events(None, timeout=0)

    def _ask(self) -> None:
        for channel in list(self.channels):
            channel.ask()

    def _leave_loop(self) -> None:
        loop, self._loop, bell, self._bell = self._loop, None, self._bell, None
        if loop is not None and bell is not None:
            loop.on_tick.discard(self._ask)
            loop.remove_reader(bell[0])
            for end in bell:
                end.close()


def channel_of(queue: str) -> str:
    """The channel of a queue: what a channel's name may not hold is written as a number."""
    return PREFIX + re.sub(r"[^A-Za-z0-9.-]", lambda found: f"_{ord(found[0]):x}", queue)


def _is_transient(message: dict[str, Any]) -> bool:
    found: bool = message["properties"].get("delivery_mode") == TRANSIENT
    return found
