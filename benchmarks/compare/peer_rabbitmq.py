"""RabbitMQ, by pika: publisher confirms on a connection driven by callbacks, acks of many at once."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count, cycle
from typing import Any, ClassVar

from .driver import QUEUE, Driver, batches_until, parts
from .server import CACHE, FSYNC, Server, free_port, output_of

IN_FLIGHT = 4  # batches that are not confirmed yet
BATCH = 1_000
PREFETCH = 5_000


class RabbitServer(Server):
    name = "RabbitMQ"
    client = "pika"
    settings: ClassVar = {
        FSYNC: "quorum queue of one node, publisher confirms",
        CACHE: "the same: its durable classic queues sync for one caller too; they and its streams take batches more "
        "slowly here, though a classic queue has the shorter way end to end",
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
        # after a kill its port is open for most of a minute before it serves
        self.parameters = pika.ConnectionParameters(
            "127.0.0.1", port, heartbeat=0, connection_attempts=180, retry_delay=1
        )
        self.arguments = {"x-queue-type": "quorum"}
        self.persistent = pika.BasicProperties(delivery_mode=2)
        self._local = threading.local()
        self._opened: Any = None

    def create(self) -> None:
        connection = self.pika.BlockingConnection(self.parameters)
        connection.channel().queue_declare(QUEUE, durable=True, arguments=self.arguments)
        connection.close()

    # ------------------------------------------------------------ driven by callbacks

    def _open(self, prefetch: int = 0, on_confirm: Callable[[int, bool], None] | None = None) -> Any:
        """A channel on a connection of its own; confirmed counts how many publishes the broker has confirmed."""
        self.confirmed = 0
        ready: list[Any] = []

        def confirm(frame: Any) -> None:
            if isinstance(frame.method, self.pika.spec.Basic.Nack):
                raise RuntimeError("RabbitMQ refused a message")
            tag, is_multiple = frame.method.delivery_tag, frame.method.multiple
            if on_confirm:
                on_confirm(tag, is_multiple)
                return
            self.confirmed = self._contiguous(tag, is_multiple)
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

    def _contiguous(self, tag: int, is_multiple: bool) -> int:
        """Confirms come in any order: everything up to here is confirmed."""
        upto = self.confirmed
        if is_multiple:
            upto = max(upto, tag)
            self._early = {each for each in self._early if each > upto}
        else:
            self._early.add(tag)
        while upto + 1 in self._early:
            upto += 1
            self._early.discard(upto)
        return upto

    def _send(self, channel: Any, bodies: list[bytes]) -> int:
        for body in bodies:
            channel.basic_publish("", QUEUE, body, self.persistent)
        return len(bodies)

    def _wait(self, upto: int) -> None:
        while self.confirmed < upto:
            self._opened.ioloop.start()

    def publish(self, batches: list[list[bytes]], end: float) -> int:
        channel, sent = self._open(), 0
        for bodies in batches_until(batches, end):
            sent += self._send(channel, bodies)
            self._wait(sent - IN_FLIGHT * len(bodies))
        self._wait(sent)
        return sent

    def publish_all(self, bodies: list[bytes]) -> None:
        channel, sent = self._open(), 0
        for part in parts(bodies, BATCH):
            sent += self._send(channel, part)
            self._wait(sent - IN_FLIGHT * BATCH)
        self._wait(sent)

    def publish_one(self, body: bytes) -> None:
        if not hasattr(self._local, "channel"):
            connection = self.pika.BlockingConnection(self.parameters)
            self._local.connection = connection
            self._local.channel = connection.channel()
            self._local.channel.confirm_delivery()
        self._local.channel.basic_publish("", QUEUE, body, self.persistent)

    def singles(self, bodies: list[bytes], callers: int, end: float) -> list[float]:
        """Many callers share a connection driven by callbacks; for one, the blocking client is faster."""
        if callers == 1:
            return super().singles(bodies, callers, end)
        taken: list[float] = []
        left: dict[int, float] = {}  # tag -> when it was published
        turn, tags = cycle(bodies), count(1)

        def send() -> None:
            now = time.perf_counter()
            if now < end:
                left[next(tags)] = now
                channel.basic_publish("", QUEUE, next(turn), self.persistent)
            elif not left:
                self._opened.ioloop.stop()

        def on_confirm(tag: int, is_multiple: bool) -> None:
            now = time.perf_counter()
            confirmed = [each for each in left if each <= tag] if is_multiple else [tag]
            taken.extend(now - left.pop(each) for each in confirmed)
            for _ in confirmed:  # each caller goes on with its next one
                send()

        channel = self._open(on_confirm=on_confirm)
        for _ in range(callers):
            send()
        self._opened.ioloop.start()
        return taken

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
