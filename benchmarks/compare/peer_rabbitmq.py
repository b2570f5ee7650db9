"""RabbitMQ, by pika: publisher confirms on a connection driven by callbacks, acks of many at once."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

from .driver import QUEUE, Driver, batches_until
from .server import CACHE, FSYNC, Server, free_port, output_of

IN_FLIGHT = 4  # batches that are not confirmed yet
BATCH = 1_000
PREFETCH = 5_000


class RabbitServer(Server):
    name = "RabbitMQ"
    client = "pika"
    settings: ClassVar = {
        FSYNC: "quorum queue of one node, publisher confirms",
        CACHE: "durable classic queue, persistent messages, publisher confirms (it hardly syncs before it confirms)",
    }

    @classmethod
    def version(cls) -> str | None:
        if not shutil.which("dpkg-query") or not _program():
            return None
        return output_of("dpkg-query", "-W", "-f", "${Version}", "rabbitmq-server").split("-")[0] or "unknown"

    def command(self) -> list[str]:
        return [_program()]

    def environment(self) -> dict[str, str]:
        if not hasattr(self, "_distribution"):
            self._distribution = free_port()
        return {
            "HOME": str(self.directory),
            "RABBITMQ_NODENAME": f"compare{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_MNESIA_BASE": str(self.directory / "data"),
            "RABBITMQ_LOG_BASE": str(self.directory / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "plugins"),
            "RABBITMQ_PID_FILE": str(self.directory / "pid"),
        }


def _program() -> str:
    """The script itself: Debian's wrapper would change the user."""
    return shutil.which("rabbitmq-server", path="/usr/lib/rabbitmq/bin") or ""


class RabbitDriver(Driver):
    def __init__(self, port: int, durability: str) -> None:
        import pika

        self.pika = pika
        self.parameters = pika.ConnectionParameters(
            "127.0.0.1", port, heartbeat=0, connection_attempts=30, retry_delay=1
        )
        kind = "quorum" if durability == FSYNC else "classic"
        self.arguments = {"x-queue-type": kind}
        self.persistent = pika.BasicProperties(delivery_mode=2)
        self._local = threading.local()
        self._opened: Any = None

    def create(self) -> None:
        connection = self.pika.BlockingConnection(self.parameters)
        connection.channel().queue_declare(QUEUE, durable=True, arguments=self.arguments)
        connection.close()

    # ------------------------------------------------------------ driven by callbacks

    def _open(self, prefetch: int = 0) -> Any:
        """A channel on a connection of its own; confirmed counts how many publishes the broker has confirmed."""
        self.confirmed = 0
        ready: list[Any] = []

        def confirm(frame: Any) -> None:
            self.confirmed = (
                frame.method.delivery_tag
                if frame.method.multiple
                else max(self.confirmed, self._contiguous(frame.method.delivery_tag))
            )
            connection.ioloop.stop()

        def on_channel(channel: Any) -> None:
            ready.append(channel)
            if prefetch:
                channel.basic_qos(prefetch_count=prefetch, callback=lambda _: connection.ioloop.stop())
            else:
                channel.confirm_delivery(confirm, callback=lambda _: connection.ioloop.stop())

        connection = self.pika.SelectConnection(
            self.parameters, on_open_callback=lambda made: made.channel(on_open_callback=on_channel)
        )
        self._early: set[int] = set()
        connection.ioloop.start()
        self._opened = connection
        return ready[0]

    def _contiguous(self, tag: int) -> int:
        """Confirms come in any order: everything up to here is confirmed."""
        self._early.add(tag)
        upto = self.confirmed
        while upto + 1 in self._early:
            upto += 1
            self._early.discard(upto)
        return upto

    def _send(self, channel: Any, body: bytes, count: int) -> None:
        for _ in range(count):
            channel.basic_publish("", QUEUE, body, self.persistent)

    def _wait(self, upto: int) -> None:
        while self.confirmed < upto:
            self._opened.ioloop.start()

    def publish(self, body: bytes, batch: int, end: float) -> int:
        channel, sent = self._open(), 0
        for _ in batches_until(end):
            self._send(channel, body, batch)
            sent += batch
            self._wait(sent - IN_FLIGHT * batch)
        self._wait(sent)
        return sent

    def publish_count(self, body: bytes, count: int) -> None:
        channel, sent = self._open(), 0
        while sent < count:
            size = min(BATCH, count - sent)
            self._send(channel, body, size)
            sent += size
            self._wait(sent - IN_FLIGHT * BATCH)
        self._wait(sent)

    def publish_one(self, body: bytes) -> None:
        if not hasattr(self._local, "channel"):
            connection = self.pika.BlockingConnection(self.parameters)
            self._local.connection = connection
            self._local.channel = connection.channel()
            self._local.channel.confirm_delivery()
        self._local.channel.basic_publish("", QUEUE, body, self.persistent)

    def consume(self) -> Iterator[list[bytes]]:
        channel = self._open(PREFETCH)
        bodies: list[bytes] = []
        last = 0

        def on_message(_: Any, method: Any, __: Any, body: bytes) -> None:
            nonlocal last
            last = method.delivery_tag
            bodies.append(body)
            self._opened.ioloop.stop()

        channel.basic_consume(QUEUE, on_message)
        while True:
            self._opened.ioloop.start()
            if bodies:
                taken, bodies = bodies, []
                yield taken
                channel.basic_ack(last, multiple=True)
