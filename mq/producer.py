"""Idempotent producers: what a retried publish is recognised by. Pure: no I/O, no clock.

A producer numbers its batches to a channel 0, 1, 2, …. The last few answers are kept; a retry among them gets the
first answer again. Producers are forgotten by the times in the records, so live state and replayed state agree.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NamedTuple

from mq.errors import SequenceRefused


class Answer(NamedTuple):
    """What one publish was answered. A split batch has one for each partition, all with its sequence."""

    sequence: int
    crc: int
    partition: int
    base_offset: int
    messages: int
    timestamp_us: int
    schedule_id: int = 0


Noted = tuple[str, Answer, int]  # a producer's name, an answer, when it was seen


class Producer:
    __slots__ = ("answers", "seen_us")

    def __init__(self) -> None:
        self.seen_us = 0
        self.answers: deque[Answer] = deque()

    def copy(self) -> Producer:
        twin = Producer()
        twin.seen_us = self.seen_us
        twin.answers = self.answers.copy()
        return twin


class Producers:
    """The producers of one channel, the one longest unseen first."""

    __slots__ = ("_known", "_limit", "_window", "expiry_us", "noted")

    def __init__(self, limit: int, window: int, expiry_us: int) -> None:
        self._known: OrderedDict[str, Producer] = OrderedDict()
        self._limit = limit
        self._window = window
        self.expiry_us = expiry_us
        self.noted: list[Noted] | None = None  # since `watch`, in order; None: nobody wants to know

    def __len__(self) -> int:
        return len(self._known)

    def items(self) -> list[tuple[str, Producer]]:
        return list(self._known.items())

    def watch(self) -> list[tuple[str, Producer]]:
        """What is known now, which stays as it is from here on; what comes is in `noted`, until that is None again."""
        self.noted = []
        return self.items()

    def check(self, name: str, sequence: int, crc: int) -> list[Answer]:
        """The answers that a retry gets; none for a new publish. Raises SequenceRefused."""
        producer = self._known.get(name)
        if producer is None:
            if sequence:
                raise SequenceRefused(f"producer {name!r} is new here, so its sequence starts at 0, not {sequence}")
            return []
        last = producer.answers[-1].sequence
        if sequence == last + 1:
            return []
        if sequence > last:
            raise SequenceRefused(f"producer {name!r} sent sequence {sequence} after {last}")
        found = [answer for answer in producer.answers if answer.sequence == sequence]
        if not found:
            oldest = producer.answers[0].sequence
            raise SequenceRefused(f"sequence {sequence} of producer {name!r} is older than {oldest}, the last one kept")
        if found[0].crc != crc:
            raise SequenceRefused(f"sequence {sequence} of producer {name!r} was used for other content")
        return found

    def note(self, name: str, answer: Answer, seen_us: int) -> None:
        """Remember an answer, and forget whom it is time to forget."""
        known = self._known
        producer = known.get(name)
        if producer is None:
            producer = known[name] = Producer()
        if self.noted is not None:
            self.noted.append((name, answer, seen_us))
            producer = known[name] = producer.copy()  # whoever watches has the other
        known.move_to_end(name)
        producer.seen_us = seen_us
        answers = producer.answers
        answers.append(answer)
        oldest = answer.sequence - self._window
        while answers[0].sequence <= oldest:
            answers.popleft()
        while len(known) > self._limit or next(iter(known.values())).seen_us < seen_us - self.expiry_us:
            known.popitem(last=False)
