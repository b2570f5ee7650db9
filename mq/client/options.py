"""How a message is to be published, as a user says it and as the API takes it. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from mq.errors import InvalidArgument
from mq.pb import mq_pb2 as pb

_DURABILITY: dict[str | None, pb.Durability] = {None: pb.DURABILITY_DEFAULT, "fsync": pb.FSYNC, "os": pb.OS}


class PublishOptions(NamedTuple):
    """What a batch shares. Messages go into one request where these are equal."""

    partition: int | None = None
    durability: str | None = None  # fsync or os; None: the server's default
    delay_ms: int = 0
    deliver_at: datetime | None = None  # UTC where it has no zone
    ttl_ms: int = 0  # 0: the channel's

    def most_messages(self, most: int) -> int:
        """How many messages, of up to `most`, may share a request. A delayed one goes alone: it is cancelled alone."""
        return 1 if self.delay_ms or self.deliver_at else most

    def request(self, channel: str, producer_id: str = "", sequence: int = 0) -> bytes:
        """A PublishBatchRequest without its batch. Raises InvalidArgument."""
        if self.durability not in _DURABILITY:
            raise InvalidArgument(f"durability is 'fsync' or 'os', not {self.durability!r}")
        asked = pb.PublishBatchRequest(
            channel=channel,
            producer_id=producer_id,
            sequence=sequence,
            durability=_DURABILITY[self.durability],
            delay_ms=self.delay_ms,
            ttl_ms=self.ttl_ms,
        )
        if self.partition is not None:
            asked.partition = self.partition
        if self.deliver_at is not None:
            when = self.deliver_at if self.deliver_at.tzinfo else self.deliver_at.replace(tzinfo=UTC)
            asked.deliver_at_us = round(when.timestamp() * 1_000_000)
        return asked.SerializeToString()


PLAIN = PublishOptions()
