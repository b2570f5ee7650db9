"""The ledger of replays: what makes a replay publish each message once, however often it is run.

A channel of the target broker holds an entry for each step of a replay, under the replay's id: what is replayed, how
far it is, how many messages that were. A step's messages and its entry are published in one transaction, so whoever
reads the ledger knows what was published, however the last run ended, and also when the broker has long forgotten its
producers.

Every step is numbered, and the number is the name of the producer that the broker knows the transaction by: a request
that comes late from a process that died, or the same step from a second process, is stored once or refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from mq.errors import ChannelNotFound, MqError
from mq.pb import mq_pb2 as pb

if TYPE_CHECKING:
    from mq.client.client import Client
    from wal.spark.replay import Place, Selected

CHANNEL = "mq.replays"
_TRANSACT = "mq.MQService/Transact"


class ReplayConflict(MqError):
    """A replay of that id is something else."""

    status = "FAILED_PRECONDITION"


@dataclass(frozen=True, slots=True)
class Entry:
    """How far a replay is."""

    replay: str
    selection: dict[str, Any]
    target: str
    through: int  # the last sequence of the log that belongs to it: what came later does not
    step: int = 0
    place: Place | None = None  # of the last message that is published; None: none is
    published: int = 0
    is_done: bool = False


class Ledger:
    """One replay's entries."""

    def __init__(self, client: Client, replay: str) -> None:
        self._client = client
        self._replay = replay

    def last(self) -> Entry | None:
        """Where the replay is; None: it never began."""
        found = None
        try:
            for message in self._client.read(CHANNEL, "earliest", follow=False):
                if message.key == self._replay.encode():
                    found = message.value
        except ChannelNotFound:
            return None
        if found is None:
            return None
        told = json.loads(found)
        return Entry(**{**told, "place": tuple(told["place"]) if told["place"] else None})

    def begin(self, entry: Entry) -> Entry:
        """The entry to go on from: the last one, or this one where there is none. Raises ReplayConflict."""
        present = self.last()
        if present is None:
            # whatever the broker's defaults are, a ledger that forgets is none
            self._client.create_channel(CHANNEL, exist_ok=True, max_age_ms=0, max_bytes=0, max_messages=0, ttl_ms=0)
            self._write(entry, ())
            return entry
        if (present.selection, present.target) != (entry.selection, entry.target):
            raise ReplayConflict(f"replay {self._replay!r} is of another selection; give this one another id")
        return present

    def publish(self, entry: Entry, messages: Sequence[Selected]) -> Entry:
        """Publish the next messages of a replay, and note that, in one step. Raises MqError."""
        done = replace(entry, step=entry.step + 1, place=messages[-1].place, published=entry.published + len(messages))
        self._write(done, messages)
        return done

    def finish(self, entry: Entry) -> Entry:
        done = replace(entry, step=entry.step + 1, is_done=True)
        self._write(done, ())
        return done

    def _write(self, entry: Entry, messages: Sequence[Selected]) -> None:
        told = pb.BatchMessage(content=json.dumps(asdict(entry)).encode(), key=self._replay.encode())
        # The ledger comes first: the first channel remembers the transaction, and the target has producers of its own.
        publishes = [pb.PublishBatchRequest(channel=CHANNEL, batch=pb.Batch(messages=[told]))]
        if messages:
            batch = pb.Batch(messages=map(_message, messages))
            publishes.append(pb.PublishBatchRequest(channel=entry.target, batch=batch))
        producer = f"replay-{self._replay}-{entry.step}"
        request = pb.TransactRequest(publishes=publishes, producer_id=producer, sequence=0)
        self._client._call(_TRANSACT, request.SerializeToString())


def _message(message: Selected) -> pb.BatchMessage:
    headers = [pb.Header(name=name, value=value) for name, value in message.headers]
    return pb.BatchMessage(content=message.value, key=message.key, headers=headers)
