"""Follows every partition's offsets through a log, and tells which ones a damaged range took. Pure: no I/O.

Offsets of a partition follow each other without a hole, but for good reasons: a rewritten segment left something out,
a segment was dropped from the chain, a Damaged or Skipped record tells of a loss.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

Key: TypeAlias = tuple[int, int]  # channel id and partition


@dataclass(frozen=True, slots=True)
class Loss:
    """Offsets of one partition that can't be read: start <= offset < end."""

    channel_id: int
    partition: int
    start: int
    end: int


@dataclass(slots=True)
class Damage:
    """A range of a file that is not what was written there."""

    segment: str
    position: int
    end: int
    first_sequence: int  # of what is lost; more than last_sequence where no frame is
    last_sequence: int
    reason: str
    offsets: list[Loss] = field(default_factory=list)


class Offsets:
    """Adds to the damage of a log what offsets tell. Everything must come in the order of the log."""

    def __init__(self, damage: list[Damage]) -> None:
        self._damage = damage
        self._next: dict[Key, tuple[int, int, int]] = {}  # next offset, damage and holes known then
        self._holes = 0  # places where offsets may be missing for a good reason

    def expected(self, key: Key) -> int:
        """The offset that should come next; 0 where nothing is known."""
        return self._next[key][0] if key in self._next else 0

    def forgive(self) -> None:
        """What was here may have been left out for a good reason."""
        self._holes += 1

    def meet(self, key: Key, base: int, segment: str, position: int, sequence: int, *, is_dense: bool) -> None:
        """A publish begins with this offset; `is_dense`: it lies in a segment that nothing was left out of."""
        expected, known_damage, holes = self._next.get(key, (base, 0, self._holes))
        loss = Loss(*key, expected, base)
        reason = ""
        if base < expected:
            reason = f"offsets from {base} on stand here again"
        elif base > expected and len(self._damage) > known_damage:
            since = self._damage[known_damage:]
            taken = next((damage for damage in since if damage.last_sequence >= damage.first_sequence), since[0])
            taken.offsets.append(loss)
        elif base > expected and is_dense and holes == self._holes:
            reason = f"offsets from {expected} on are missing"
        if reason:
            self._damage.append(Damage(segment, position, position, sequence, sequence, reason, [loss]))
        self._next[key] = (expected, len(self._damage), self._holes)

    def reach(self, key: Key, end: int) -> None:
        """What was met last goes on to here, without a hole."""
        self._next[key] = (max(self._next[key][0], end), len(self._damage), self._holes)

    def lose(self, damage: Damage, losses: list[Loss]) -> None:
        """It is known what lay in a damaged range."""
        damage.offsets += losses
        for loss in losses:
            self._next[loss.channel_id, loss.partition] = (loss.end, len(self._damage), self._holes)
