"""Who owns which partition of an ordered group, and the generation that fences those who no longer do.

Pure: no I/O, no clock. Volatile: a restart begins with no members and with generations of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mq.assignment import ASSIGNMENTS
from mq.errors import LeaseLost


class Ownership:
    def __init__(self, generation: int) -> None:
        self.generation = generation
        self._owners: dict[int, str] = {}
        self._since: dict[int, int] = {}  # the generation in which the owner got the partition
        self._target: dict[int, str] = {}

    def settle(
        self, members: Iterable[str], partitions: int, assignment: str, is_busy: Callable[[str, int], bool]
    ) -> None:
        """Give partitions to those who should have them; one with work out at a live owner moves later."""
        live = set(members)
        current = {number: name for number, name in self._owners.items() if name in live}
        self._target = ASSIGNMENTS[assignment or "sticky"](sorted(live), partitions, current)
        moving = [
            number
            for number in range(partitions)
            if self._owners.get(number) != self._target.get(number)
            and not (number in current and is_busy(current[number], number))
        ]
        if not moving:
            return
        self.generation += 1
        for number in moving:
            self._owners.pop(number, None)
            if number in self._target:
                self._owners[number] = self._target[number]
                self._since[number] = self.generation

    def owner_of(self, partition: int) -> str:
        return self._owners.get(partition, "")

    def owned_by(self, member: str) -> list[int]:
        return sorted(number for number, name in self._owners.items() if name == member)

    def pulled_by(self, member: str) -> list[int]:
        """The partitions a member may get more from: its own, but for those it is about to lose."""
        return [number for number in self.owned_by(member) if self._target.get(number) == member]

    def check(self, member: str, partition: int, generation: int) -> None:
        """Raises LeaseLost where the member does not own the partition, or did so only before it lost it once."""
        if self._owners.get(partition) != member or not self._since[partition] <= generation <= self.generation:
            raise LeaseLost(f"partition {partition} is not owned by this member in generation {generation}")
