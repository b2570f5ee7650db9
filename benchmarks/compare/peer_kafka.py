"""Kafka on one node (KRaft), by confluent-kafka: acks=all, consumer groups with committed offsets."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, ClassVar

from .driver import GROUP, QUEUE, Driver, batches_until, due_until, stamped
from .server import CACHE, FSYNC, Server, free_port

JARS = Path(__file__).parents[2] / ".peers" / "kafka"
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"
FETCH = 5_000


class KafkaServer(Server):
    name = "Kafka"
    client = "confluent-kafka"
    settings: ClassVar = {
        FSYNC: "log.flush.interval.messages=1, acks=all, 1 GB heap; linger 5 ms for batches, 0 for one caller, 1 ms "
        "for many, 2 ms for end to end (with 0 it can't keep up)",
        CACHE: "acks=all, 1 GB heap; linger 5 ms for batches, 0 for one caller, else 1 ms",
    }

    @classmethod
    def version(cls) -> str | None:
        jars = Path(os.environ.get("KAFKA_LIBS", JARS))
        names = [each.name for each in jars.glob("kafka_2.13-*.jar")]
        return re.sub(r"kafka_2.13-|\.jar", "", names[0]) if names and shutil.which("java") else None

    @property
    def _java(self) -> list[str]:
        return ["java", "-Xms1g", "-Xmx1g", "-cp", f"{os.environ.get('KAFKA_LIBS', JARS)}/*"]

    @property
    def _properties(self) -> Path:
        return self.directory.parent / "kafka.properties"

    def prepare(self) -> None:
        controller = free_port()
        lines = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": self.directory / "data",
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "num.partitions": 1,
        }
        if self.durability == FSYNC:
            lines["log.flush.interval.messages"] = 1
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        command = [*self._java, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(self._properties)]
        subprocess.run(command, check=True, capture_output=True)

    def command(self) -> list[str]:
        return [*self._java, "kafka.Kafka", str(self._properties)]


class KafkaDriver(Driver):
    def __init__(self, port: int, durability: str) -> None:
        import confluent_kafka
        import confluent_kafka.admin

        self.kafka = confluent_kafka
        self.base = {"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0}
        self.durability = durability

    def _producer(self, linger: float, batch: int = 10_000, **more: Any) -> Any:
        settings = {
            "acks": "all",
            "linger.ms": linger,
            "batch.num.messages": batch,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 65_536,
            **more,
        }
        return self.kafka.Producer({**self.base, **settings})

    def _batches(self, batch: int = 10_000) -> tuple[Any, list[object]]:
        """A producer, and what was refused: a callback for each message would be the client's limit."""
        refused: list[object] = []
        wanted = {"delivery.report.only.error": True, "on_delivery": lambda error, _: refused.append(error)}
        return self._producer(5, batch, **wanted), refused

    def create(self) -> None:
        admin = self.kafka.admin.AdminClient(self.base)
        for made in admin.create_topics([self.kafka.admin.NewTopic(QUEUE, 1, 1)]).values():
            try:
                made.result(60)
            except self.kafka.KafkaException as error:
                if error.args[0].code() != self.kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        while not self._has_leader(admin):
            time.sleep(0.01)

    def _has_leader(self, admin: Any) -> bool:
        """A topic is made before it can be used."""
        topic = admin.list_topics(QUEUE, timeout=60).topics[QUEUE]
        return topic.error is None and any(each.leader >= 0 for each in topic.partitions.values())

    def _stored(self) -> int:
        consumer = self.kafka.Consumer({**self.base, "group.id": "counter"})
        _, high = consumer.get_watermark_offsets(self.kafka.TopicPartition(QUEUE, 0), timeout=60)
        consumer.close()
        return int(high)

    def _put(self, producer: Any, body: bytes) -> None:
        while True:
            try:
                producer.produce(QUEUE, body)
                return
            except BufferError:
                producer.poll(0.01)

    def publish(self, batches: list[list[bytes]], end: float) -> int:
        (producer, refused), count = self._batches(len(batches[0])), 0
        for bodies in batches_until(batches, end):
            for body in bodies:
                self._put(producer, body)
            count += len(bodies)
        left: int = producer.flush(60)
        return count - left - len(refused)

    def publish_all(self, bodies: list[bytes]) -> None:
        producer, refused = self._batches()
        for body in bodies:
            self._put(producer, body)
        if producer.flush(120) or refused or (bodies and self._stored() < len(bodies)):
            raise RuntimeError("Kafka did not confirm everything")

    def singles(self, bodies: list[bytes], callers: int, end: float) -> list[float]:
        """Callers whose next message leaves when the last one's callback came; many of them gather for a moment."""
        producer, turn = self._producer(1 if callers > 1 else 0), cycle(bodies)
        taken: list[float] = []
        waiting = 0

        def send() -> None:
            nonlocal waiting
            begin = time.perf_counter()
            if begin < end:
                waiting += 1
                producer.produce(QUEUE, next(turn), on_delivery=lambda error, _: confirmed(begin, error))

        def confirmed(begin: float, error: object) -> None:
            nonlocal waiting
            if error is not None:
                raise RuntimeError(f"Kafka refused a message: {error}")
            waiting -= 1
            taken.append(time.perf_counter() - begin)
            send()

        for _ in range(callers):
            send()
        while waiting:
            producer.poll(1.0)
        return taken

    def paced(self, bodies: list[bytes], rate: float, end: float) -> None:
        producer, turn = self._producer(2 if self.durability == FSYNC else 1), cycle(bodies)
        for _ in due_until(time.perf_counter(), 1 / rate, end):
            producer.produce(QUEUE, stamped(next(turn)))
            producer.poll(0)
        producer.flush(60)

    def consume(self) -> Iterator[list[bytes]]:
        settings = {"group.id": GROUP, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = self.kafka.Consumer({**self.base, **settings, "fetch.wait.max.ms": 10})
        consumer.subscribe([QUEUE])
        while True:
            messages = consumer.consume(FETCH, timeout=0.001) or consumer.consume(1, timeout=1.0)
            bodies = [each.value() for each in messages if each.error() is None]
            if bodies:
                yield bodies
                consumer.commit(asynchronous=True)
