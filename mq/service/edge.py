"""What a caller may ask for at most, and what one connection has open. The broker has limits of its own."""

from __future__ import annotations

from dataclasses import dataclass

from mq.errors import ResourceExhausted


@dataclass(frozen=True, slots=True)
class Edge:
    """Limits that hold before the broker sees a request. Every default with its reason."""

    request_bytes: int = 4 << 20  # of a publish; SERVER_MAX_RECV_MSG_SIZE
    other_request_bytes: int = 256 << 10  # of everything else: its nested messages are parsed, so they must be few
    shallow_bytes: int = 256 << 10  # a full batch of our clients; hostile nesting below it costs 12 ms at most
    batch_messages: int = 10_000  # of one publish
    headers: int = 100_000  # of one publish, all messages together: what a parse may cost (10 ms)
    transact_items: int = 1_000  # publishes, acks or commits of one transaction
    receipts: int = 10_000  # of one ack; also the ranges in one receipt
    batch_size: int = 500  # messages that Subscribe reads at once; STORAGE_BATCH_SIZE
    subscribe_bytes: int = 1 << 20  # bytes that Subscribe reads at once: what a reader that stops costs
    wait_ms: int = 60_000  # a longer poll is answered empty after this, so that dead peers do not pile up
    long_polls: int = 2_000  # of one connection, waiting at the same time
    streams: int = 500  # of one connection
    stream_batches: int = 1_024  # of one PublishStream in flight, then it is not read from
    stream_bytes: int = 16 << 20  # likewise
    backup_dir: str = ""  # the only place for backups; without one none are made; BACKUP_DIR

    @property
    def message_bytes(self) -> int:
        """A message leaves room for the rest of its request and its record."""
        return self.request_bytes - (64 << 10)


class Connection:
    """One peer's connection to a door: what it has open at the moment."""

    __slots__ = ("calls", "holds_answers", "long_polls", "peer", "streams")

    def __init__(self, peer: str, *, holds_answers: bool = False) -> None:
        """`holds_answers`: what its door is told goes into the broker's post, and no further by itself."""
        self.peer = peer
        self.holds_answers = holds_answers
        self.calls = 0  # for a door that knows its connections only by their calls
        self.long_polls = 0
        self.streams = 0

    def open_long_poll(self, edge: Edge) -> None:
        if self.long_polls >= edge.long_polls:
            raise ResourceExhausted(f"this connection has {self.long_polls} pulls waiting, the most it may have")
        self.long_polls += 1

    def open_stream(self, edge: Edge) -> None:
        if self.streams >= edge.streams:
            raise ResourceExhausted(f"this connection has {self.streams} streams open, the most it may have")
        self.streams += 1
