"""A producer's name and its next sequence: what the broker recognises a retry by. No I/O here."""

from __future__ import annotations

import uuid

from mq.client.codec import varint
from mq.client.options import PublishOptions

_SEQUENCE = b"\x20"  # PublishBatchRequest.sequence = 4


class Sequence:
    """One producer's numbering of its batches to one channel."""

    __slots__ = ("_heads", "next", "producer_id")

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Start over under another name: after an outcome that nobody knows, the old numbers can't be trusted."""
        self.producer_id = uuid.uuid4().hex
        self.next = 0
        self._heads: dict[PublishOptions, bytes] = {}

    def head(self, channel: str, options: PublishOptions, sequence: int) -> bytes:
        """A PublishBatchRequest without its batch. All but the number is made once. Raises InvalidArgument."""
        head = self._heads.get(options)
        if head is None:
            head = self._heads[options] = options.request(channel, self.producer_id)
        return head + _SEQUENCE + varint(sequence) if sequence else head
