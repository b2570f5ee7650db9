"""What clients saw, and the rules that it must keep. The checker knows nothing of the broker.

A publish is *ok* (answered), *failed* (certainly not stored) or *unknown* (no answer: it may be stored). One that is ok
and has no place was delayed: it gets its offset when it is due. Contents are unique, so a content names its publish.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from threading import Lock

OK, FAILED, UNKNOWN = "ok", "failed", "unknown"
Place = tuple[int, int]  # partition, offset


@dataclass
class History:
    """Filled by any number of threads; `check` at the end."""

    publishes: dict[bytes, tuple[str, Place | None, bool]] = field(default_factory=dict)  # outcome, place, idempotent
    deliveries: list[tuple[bytes, Place, int, str]] = field(default_factory=list)  # content, place, count, group
    acks: list[tuple[int, Place, str, str, bytes]] = field(default_factory=list)  # when, place, group, outcome, receipt
    said: dict[tuple[str, bytes], set[Place]] = field(default_factory=dict)  # by group and receipt: what it stands for
    stored: dict[Place, bytes] = field(default_factory=dict)  # what a reader found in the end
    ranges: dict[int, tuple[int, int]] = field(default_factory=dict)  # start and next offset of each partition
    lost: set[Place] = field(default_factory=set)  # reported as damaged, trimmed, expired or compacted
    breaks: list[tuple[int, str | None]] = field(default_factory=list)  # when, and whose answer was lost; None: a start
    _lock: Lock = field(default_factory=Lock)

    def published(
        self, content: bytes, outcome: str, place: Place | None = None, *, is_idempotent: bool = False
    ) -> None:
        with self._lock:
            self.publishes[content] = (outcome, place, is_idempotent)

    def delivered(self, content: bytes, place: Place, count: int, group: str = "", receipt: bytes = b"") -> int:
        """Returns the moment, for acks."""
        with self._lock:
            self.deliveries.append((content, place, count, group))
            if receipt:
                self.said.setdefault((group, receipt), set()).add(place)
            return len(self.deliveries)

    def acked(self, place: Place, group: str, outcome: str, receipt: bytes) -> None:
        with self._lock:
            self.acks.append((len(self.deliveries), place, group, outcome, receipt))

    def lost_an_answer(self, group: str) -> None:
        """Of a pull: whatever was in it counts as delivered, and nobody saw it."""
        with self._lock:
            self.breaks.append((len(self.deliveries), group))

    def started_again(self) -> None:
        """A broker that was killed forgets what it had given out."""
        with self._lock:
            self.breaks.append((len(self.deliveries), None))

    def check(self, groups: list[str], ordered: list[str] | None = None) -> list[str]:
        """Every rule that is broken, one line each. `ordered`: groups whose acks were noted in the order of sending."""
        return [
            *self._check_stored(),
            *self._check_deliveries(),
            *self._check_order(),
            *self._check_acks(),
            *(line for group in groups for line in self._check_drained(group)),
            *(line for group in ordered or () for line in self._check_ordered(group)),
        ]

    def _check_stored(self) -> list[str]:
        broken = []
        places = defaultdict(list)
        for place, content in self.stored.items():
            places[content].append(place)
            outcome = self.publishes.get(content, (None,))[0]
            if outcome is None:
                broken.append(f"{place} holds {content!r}, which was never sent")
            elif outcome == FAILED:
                broken.append(f"{place} holds {content!r}, whose publish failed")
        for content, (outcome, place, is_idempotent) in self.publishes.items():
            found = places[content]
            if outcome == OK and not found and place not in self.lost:
                broken.append(f"{content!r} was answered with {place} and is gone")
            if outcome == OK and found and place is not None and place not in found:
                broken.append(f"{content!r} was answered with {place} and is at {found}")
            if place is not None and outcome == OK and self.stored.get(place, content) != content:
                broken.append(f"{content!r} was answered with {place}, which holds {self.stored[place]!r}")
            if len(found) > 1 and (is_idempotent or outcome == OK):
                broken.append(f"{content!r} is stored {len(found)} times: {found}")
        for partition, (start, end) in self.ranges.items():
            for offset in range(start, end):
                if (partition, offset) not in self.stored and (partition, offset) not in self.lost:
                    broken.append(f"offset {offset} of partition {partition} is missing")
        return broken

    def _check_deliveries(self) -> list[str]:
        broken = []
        contents: dict[Place, bytes] = {}
        for content, place, _, _ in self.deliveries:
            if contents.setdefault(place, content) != content:
                broken.append(f"{place} was delivered as {contents[place]!r} and as {content!r}")
            if place in self.stored and self.stored[place] != content:
                broken.append(f"{place} was delivered as {content!r} and holds {self.stored[place]!r}")
            outcome, answered, _ = self.publishes.get(content, (None, None, False))
            if outcome in (None, FAILED):
                broken.append(f"{content!r} was delivered and never published")
            if answered is not None and outcome == OK and answered != place:
                broken.append(f"{content!r} was answered with {answered} and delivered as {place}")
        return broken

    def _check_order(self) -> list[str]:
        """First deliveries of one group follow the offsets of each partition.

        A message that is seen first with a count of 2 was delivered before, in an answer that got lost. Where a later
        answer arrived, and then the broker was killed, it is seen first with a count of 1, and after what followed it.
        """
        broken = []
        last: dict[tuple[str, int], int] = {}
        seen: set[tuple[str, Place]] = set()
        lost: set[str] = set()  # groups an answer to which was lost
        behind: set[str] = set()  # those that got another after it
        breaks = deque(self.breaks)
        for moment, (_, place, count, group) in enumerate(self.deliveries):
            while breaks and breaks[0][0] <= moment:
                _, whose = breaks.popleft()
                if whose is not None:
                    lost.add(whose)
                    continue
                last = {key: offset for key, offset in last.items() if key[0] not in behind}
                lost, behind = set(), set()
            if group in lost:
                behind.add(group)
            if (group, place) in seen or count > 1:
                continue
            seen.add((group, place))
            if place[1] < last.get((group, place[0]), -1):
                broken.append(f"{group}: {place} was first delivered after {last[group, place[0]]}")
            last[group, place[0]] = max(place[1], last.get((group, place[0]), -1))
        return broken

    def _check_acks(self) -> list[str]:
        """After a confirmed ack nothing is delivered again, and nobody else's ack is taken."""
        broken = []
        confirmed: dict[tuple[str, Place], int] = {}
        holder: dict[tuple[str, Place], bytes] = {}
        for when, place, group, outcome, receipt in self.acks:
            if outcome != OK:
                continue
            if place not in self.said.get((group, receipt), {place}):
                broken.append(f"{group}: {place} was acked by a receipt for {self.said[group, receipt]}")
            if holder.setdefault((group, place), receipt) != receipt:
                broken.append(f"{group}: {place} was acked by two holders")
            confirmed.setdefault((group, place), when)
        for moment, (_, place, _, group) in enumerate(self.deliveries):
            if moment >= confirmed.get((group, place), len(self.deliveries)):
                broken.append(f"{group}: {place} was delivered after its ack was confirmed")
        return broken

    def _check_ordered(self, group: str) -> list[str]:
        """Whoever owned a partition when, its messages were done one after the other, and none was left out."""
        broken = []
        unknown = {place for _, place, name, outcome, _ in self.acks if name == group and outcome == UNKNOWN}
        done: dict[int, int] = {}  # by partition: everything before it
        for _, (partition, offset), name, outcome, _ in self.acks:
            if name != group or outcome != OK:
                continue
            before = done.get(partition, self.ranges.get(partition, (0, 0))[0])
            if offset < before:
                broken.append(f"{group}: {(partition, offset)} was acked after {before - 1}")
            for skipped in range(before, offset):
                if (partition, skipped) not in unknown and (partition, skipped) not in self.lost:
                    broken.append(f"{group}: {(partition, skipped)} was not acked before {offset}")
            done[partition] = max(before, offset + 1)
        for partition, (start, end) in self.ranges.items():
            for offset in range(done.get(partition, start), end):
                if (partition, offset) not in unknown and (partition, offset) not in self.lost:
                    broken.append(f"{group}: {(partition, offset)} was never acked")
        return broken

    def _check_drained(self, group: str) -> list[str]:
        reached = {place for _, place, _, name in self.deliveries if name == group}
        return [
            f"{group}: {place} was never delivered"
            for place in self.stored
            if place not in reached and place not in self.lost
        ]
