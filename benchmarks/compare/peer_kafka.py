"""Kafka on one node (KRaft), by confluent-kafka: acks=all, consumer groups with committed offsets."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from .driver import GROUP, QUEUE, Driver, batches_until, stamped
from .server import CACHE, FSYNC, Server, free_port

JARS = Path(__file__).parents[2] / ".peers" / "kafka"
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qk"
FETCH = 5_000


class KafkaServer(Server):
    name = "Kafka"
    client = "confluent-kafka"
    settings: ClassVar = {
        FSYNC: "log.flush.interval.messages=1, acks=all, 1 GB heap, linger 5 ms (0 for one at a time)",
        CACHE: "acks=all, 1 GB heap, linger 5 ms (0 for one at a time)",
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
        self._one = self._producer(linger=0)

    def _producer(self, linger: float, batch: int = 10_000) -> Any:
        settings: ClassVar = {
            "acks": "all",
            "linger.ms": linger,
            "batch.num.messages": batch,
            "batch.size": 1_000_000,
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 65_536,
        }
        return self.kafka.Producer({**self.base, **settings})

    def create(self) -> None:
        admin = self.kafka.admin.AdminClient(self.base)
        for made in admin.create_topics([self.kafka.admin.NewTopic(QUEUE, 1, 1)]).values():
            try:
                made.result(60)
            except self.kafka.KafkaException as error:
                if error.args[0].code() != self.kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                    raise

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

    def publish(self, body: bytes, batch: int, end: float) -> int:
        """No callback for each message: that would be the client's limit. `flush` tells what is not confirmed."""
        producer, count = self._producer(5, batch), 0
        for _ in batches_until(end):
            for _ in range(batch):
                self._put(producer, body)
            count += batch
        left: int = producer.flush(60)
        return count - left

    def publish_count(self, body: bytes, count: int) -> None:
        producer = self._producer(5)
        for _ in range(count):
            self._put(producer, body)
        if producer.flush(120) or self._stored() < count:
            raise RuntimeError("Kafka did not confirm everything")

    def publish_one(self, body: bytes) -> None:
        done = threading.Event()
        self._one.produce(QUEUE, body, on_delivery=lambda *_: done.set())
        while not done.is_set():
            self._one.poll(1.0)

    def paced(self, size: int, rate: float, end: float) -> None:
        producer = self._producer(5)
        due = time.perf_counter()
        while due < end:
            time.sleep(max(0.0, due - time.perf_counter()))
            producer.produce(QUEUE, stamped(size))
            producer.poll(0)
            due += 1 / rate
        producer.flush(60)

    def consume(self) -> Iterator[list[bytes]]:
        settings: ClassVar = {"group.id": GROUP, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = self.kafka.Consumer({**self.base, **settings, "fetch.wait.max.ms": 10})
        consumer.subscribe([QUEUE])
        while True:
            messages = consumer.consume(FETCH, timeout=0.001) or consumer.consume(1, timeout=1.0)
            bodies = [each.value() for each in messages if each.error() is None]
            if bodies:
                yield bodies
                consumer.commit(asynchronous=True)
