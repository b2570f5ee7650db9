"""Who is compared, and with what batch each is fastest for small messages (tried, not assumed)."""

from __future__ import annotations

from dataclasses import dataclass

from .driver import Driver
from .peer_kafka import KafkaDriver, KafkaServer
from .peer_mq import AwakeMqServer, MqDriver, MqServer
from .peer_nats import NatsDriver, NatsServer
from .peer_rabbitmq import RabbitDriver, RabbitServer
from .peer_redis import RedisDriver, RedisServer
from .server import Server


@dataclass(frozen=True)
class Peer:
    server: type[Server]
    driver: type[Driver]
    best_batch: int


PEERS = {
    peer.server.name: peer
    for peer in (
        Peer(MqServer, MqDriver, 5_000),
        Peer(AwakeMqServer, MqDriver, 5_000),
        Peer(NatsServer, NatsDriver, 1_000),
        Peer(RedisServer, RedisDriver, 1_000),
        Peer(RabbitServer, RabbitDriver, 1_000),
        Peer(KafkaServer, KafkaDriver, 10_000),
    )
}
