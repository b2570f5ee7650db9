"""Offsets over many segments that are read side by side. Pure: no I/O, no pyspark.

`wal.verify` follows offsets through the whole log in order. Here each segment is read by whoever has time, so a worker
writes down what the judge of the whole needs, and nothing more: for each partition the runs of publishes that follow
each other, and what else happened between them, all numbered in the order in which it came. `Continuity` goes through
the notes of one segment after the other and comes to the same findings as `wal.verify`, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from wal.check import link_gap
from wal.continuity import Damage, Key, Loss, Offsets
from wal.manifest import SegmentEntry
from wal.segment import Gap


class Run(NamedTuple):
    """Publishes of one partition that follow each other; in a rewritten segment, over what was left out."""

    channel_id: int
    partition: int
    opened: int  # the number of its first publish
    closed: int  # and of its last
    base: int
    end: int
    position: int  # of the first publish's frame
    sequence: int
    is_first: bool  # of its partition in this segment: only the judge knows what should have come


class Finding(NamedTuple):
    """A damaged range, or (without a reason) a note that offsets may be missing here."""

    number: int
    position: int
    end: int
    first_sequence: int
    last_sequence: int
    reason: str
    losses: list[Loss]


class _Open:
    __slots__ = ("closed", "end", "run")

    def __init__(self, run: Run) -> None:
        self.run = run
        self.end = run.end
        self.closed = run.closed


class Runs:
    """The notes of one segment.

    `floors` tells, where it is known, which offset a partition had reached before the segment. Without it a publish
    that stands there again is only noticed by the judge, who then asks for the notes anew.
    """

    def __init__(self, is_dense: bool, floors: Mapping[Key, int] | None = None) -> None:
        self.findings: list[Finding] = []
        self._is_dense = is_dense
        self._number = 0
        self._runs: list[_Open] = []
        self._open: dict[Key, _Open] = {}
        self._expected: dict[Key, int] = dict(floors or {})
        self._met: set[Key] = set()

    def publish(self, key: Key, base: int, end: int, position: int, sequence: int) -> None:
        self._number += 1
        run = self._open.get(key)
        if run is not None and (base == run.end or (base > run.end and not self._is_dense)):
            run.end = end if end > run.end else run.end
            run.closed = self._number
            return
        expected = self._expected.get(key, base) if run is None else run.end
        number, is_first = self._number, key not in self._met
        self._met.add(key)
        made = _Open(Run(*key, number, number, base, end, position, sequence, is_first))
        self._runs.append(made)
        if base < expected:
            self._close_all()  # the judge will complain, and from there on that explains what is missing elsewhere
            self._expected[key] = max(expected, end)
        else:
            self._open[key] = made

    def damage(self, gap: Gap, losses: Iterable[Loss] = ()) -> None:
        self._note(Finding(0, *_range(gap), gap.reason, list(losses)))
        for loss in self.findings[-1].losses:
            self._expected[loss.channel_id, loss.partition] = loss.end
            self._met.add((loss.channel_id, loss.partition))

    def forgive(self) -> None:
        self._note(Finding(0, 0, 0, 0, 0, "", []))

    def runs(self) -> list[Run]:
        return [each.run._replace(end=each.end, closed=each.closed) for each in self._runs]

    def _note(self, finding: Finding) -> None:
        self._close_all()
        self._number += 1
        self.findings.append(finding._replace(number=self._number))

    def _close_all(self) -> None:
        for key, run in self._open.items():
            self._expected[key] = run.end
        self._open.clear()


class Continuity:
    """Goes through the notes of all segments in the order of the log."""

    def __init__(self, damage: list[Damage]) -> None:
        self._damage = damage
        self._offsets = Offsets(damage)
        self._before: SegmentEntry | None = None

    def floors(self, runs: Iterable[Run]) -> dict[Key, int]:
        """Partitions whose offsets stand in this segment again; notes that know of it are needed for these."""
        first = [run for run in runs if run.is_first]
        known = {(run.channel_id, run.partition): run.base for run in first}
        return {key: self._offsets.expected(key) for key, base in known.items() if self._offsets.expected(key) > base}

    def take(
        self,
        entry: SegmentEntry,
        name: str,
        runs: Iterable[Run],
        findings: Iterable[Finding],
        *,
        has_left: bool = False,
    ) -> None:
        """The next segment. `has_left`: it is none of the log's any more, and was not read."""
        if self._before is not None and entry.first_sequence != self._before.last_sequence + 1:
            self._offsets.forgive()  # what lay between was dropped: a manifest without it is its proof
        link = link_gap(self._before, entry)
        if link is not None:
            self._add(name, link)
        self._before = entry
        notes: list[tuple[int, int, Run | Finding]] = [(run.opened, 0, run) for run in runs]
        notes += [(note.closed, 1, note) for _, _, note in notes if isinstance(note, Run)]
        notes += [(finding.number, 0, finding) for finding in findings]
        for _, is_end, note in sorted(notes, key=lambda each: each[:2]):
            if isinstance(note, Finding):
                self._finding(name, note)
            elif is_end:
                self._offsets.reach((note.channel_id, note.partition), note.end)
            else:
                key = (note.channel_id, note.partition)
                self._offsets.meet(key, note.base, name, note.position, note.sequence, is_dense=entry.is_dense)
        if has_left or not entry.is_dense:
            self._offsets.forgive()

    def _finding(self, name: str, finding: Finding) -> None:
        if not finding.reason:
            self._offsets.forgive()
            return
        range_ = (finding.position, finding.end, finding.first_sequence, finding.last_sequence)
        self._offsets.lose(self._add(name, Gap(*range_, finding.reason)), finding.losses)

    def _add(self, name: str, gap: Gap) -> Damage:
        damage = Damage(name, *_range(gap), gap.reason)
        self._damage.append(damage)
        return damage


def _range(gap: Gap) -> tuple[int, int, int, int]:
    return gap.position, gap.end, gap.first_sequence, gap.last_sequence
