"""Which member of an ordered group owns which partition: pure functions, chosen by name.

Each takes the members, the number of partitions and who owns what now, and gives an owner to every partition.
All of them are balanced within one partition and give the same result for the same input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

Assignment = Callable[[Sequence[str], int, Mapping[int, str]], dict[int, str]]


def sticky(members: Sequence[str], partitions: int, owned: Mapping[int, str]) -> dict[int, str]:
    """Everybody keeps what they have, as far as balance allows: only what must move moves."""
    if not members:
        return {}
    names = sorted(members)
    held: dict[str, list[int]] = {name: [] for name in names}
    for partition in range(partitions):
        owner = owned.get(partition)
        if owner in held:
            held[owner].append(partition)
    least, extra = divmod(partitions, len(names))
    # those that hold most keep the larger shares, so that fewer partitions move
    ranked = sorted(names, key=lambda name: (-len(held[name]), name))
    quota = {name: least + (rank < extra) for rank, name in enumerate(ranked)}
    result = {partition: name for name in names for partition in held[name][: quota[name]]}
    free = [partition for partition in range(partitions) if partition not in result]
    for name in names:
        for _ in range(quota[name] - min(quota[name], len(held[name]))):
            result[free.pop(0)] = name
    return result


def spans(members: Sequence[str], partitions: int, owned: Mapping[int, str]) -> dict[int, str]:
    """Neighbouring partitions go to one member."""
    names = sorted(members)
    return {partition: names[partition * len(names) // partitions] for partition in range(partitions)} if names else {}


def round_robin(members: Sequence[str], partitions: int, owned: Mapping[int, str]) -> dict[int, str]:
    """Partitions go to the members in turn."""
    names = sorted(members)
    return {partition: names[partition % len(names)] for partition in range(partitions)} if names else {}


ASSIGNMENTS: dict[str, Assignment] = {"sticky": sticky, "range": spans, "round-robin": round_robin}
