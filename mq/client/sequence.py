"""A producer's name and its next sequence: what the broker recognises a retry by. No I/O here."""

from __future__ import annotations

import uuid


class Sequence:
    """One producer's numbering of its batches to one channel."""

    __slots__ = ("next", "producer_id")

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """Start over under another name: after an outcome that nobody knows, the old numbers can't be trusted."""
        self.producer_id = uuid.uuid4().hex
        self.next = 0
