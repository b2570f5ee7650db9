"""A harness that drives a log on the model disk and cuts the power before every operation that changes something.

`Workload` appends, rotates, snapshots, installs, closes, is killed and opens again, all by a seeded generator. Ahead
of each storage operation it forks the disk into the states that a restart might find, and `Trial` opens each of them:
it has to open without a word about damage, hold everything that was ever reported synced or served by an earlier
opening, byte for byte and without holes, hold nothing that was not appended, and take new records that survive too.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from random import Random
from unittest.mock import patch

from logowner import DIRECTORY, SMALL, History, Owner, Violation, content_of, refusing_disk
from loguru import logger
from modeldisk import ModelDisk, PowerCut

from wal.chain import walk_chain
from wal.errors import WalError
from wal.filelog import FileLog
from wal.frame import Frame
from wal.options import Options
from wal.record import PUBLISHED, Published, SnapshotBegin


@dataclass
class Trial:
    """Opens crash states and judges them."""

    rng: Random
    options: Options = SMALL
    refusals: float = 0.0  # how often the disk takes nothing in the place where it was
    states: int = 0
    cut: Counter[str] = field(default_factory=Counter)  # operations that power was cut at, by kind
    loop: asyncio.Runner = field(default_factory=asyncio.Runner)

    def judge(self, disk: ModelDisk, history: History, *, depth: int = 0) -> None:
        """Open the disk as a process would that starts after the crash; go on from there; sometimes crash again."""
        self.states += 1
        if self.rng.random() < 0.2:
            disk = self._crash_while_opening(disk, history)
        owner = self.open(disk, history)
        if self.rng.random() < 0.15:
            self._check_reads(owner)
        owner.publish(self.rng.randint(1, 3), sync=self.rng.random() < 0.8)
        owner.log.pump()
        if owner.history.floor != len(owner.history.contents):
            raise Violation("an idle log left records unsynced")
        if depth < 2 and self.rng.random() < 0.25:
            self._go_on(owner, depth)

    def open(self, disk: ModelDisk, history: History) -> Owner:
        """A restart: whatever it finds and serves, it has to keep from then on."""
        try:
            with refusing_disk() if self.rng.random() < self.refusals else nullcontext():
                owner = Owner(disk, History(), self.rng, self.options)
        except (OSError, WalError) as error:
            raise Violation(f"refused to open: {error!r}") from error
        self._check_content(owner.log, disk, history)
        owner.history = history.up_to(owner.log.last_sequence)
        return owner

    def _check_content(self, log: FileLog, disk: ModelDisk, history: History) -> None:
        if log.report.damage:
            raise Violation(f"damage where there is none: {log.report.damage}")
        if not history.floor <= log.last_sequence <= len(history.contents):
            raise Violation(f"{log.last_sequence} records; {history.floor} were safe, {len(history.contents)} appended")
        expected = 1
        for _, item in walk_chain(disk, DIRECTORY, log.manifest):
            if not isinstance(item, Frame):
                raise Violation(f"a gap: {item}")
            if item.sequence != expected or (item.type, item.payload) != history.contents[expected - 1]:
                raise Violation(f"sequence {item.sequence} where {expected} belongs, or with another content")
            expected += 1
        if expected != log.last_sequence + 1:
            raise Violation(f"{expected - 1} records are there, {log.last_sequence} were promised")
        live = log.segments()[-1]
        if any(disk.names[f"{DIRECTORY}/{live.name}"].cache[live.bytes :]):
            raise Violation(f"{live.name} has something behind its end")
        if (
            log.report.torn_bytes
            and disk.free_bytes("")
            and not disk.failed
            and not any(".torn-" in name for name in disk.list(DIRECTORY))
        ):
            raise Violation("a torn tail was not kept")

    def _check_reads(self, owner: Owner) -> None:
        """Replay, and reads by offset and by sequence, tell the same as the frames."""
        log, contents = owner.log, owner.history.contents
        replayed = list(log.replay())
        first = replayed[0][0] if replayed else 1
        if first != 1 and not isinstance(replayed[0][1], SnapshotBegin):
            raise Violation("replay starts in the middle")
        found = [(sequence, content_of(record)) for sequence, record in replayed]
        if found != list(enumerate(contents[first - 1 :], first)):
            raise Violation("replay differs from what was appended")
        publishes = [Published.FromString(payload) for type_, payload in contents if type_ == PUBLISHED]
        for partition in range(2):
            wanted = [published for published in publishes if published.partition == partition]
            if self.loop.run(log.read(1, partition, 0, 1 << 20)) != wanted:
                raise Violation("a read by offset differs from what was appended")
        if contents:
            sequence = self.rng.randint(1, len(contents))
            record = self.loop.run(log.read_sequence(sequence))
            if record is None or content_of(record) != contents[sequence - 1]:
                raise Violation(f"a read of sequence {sequence} differs from what was appended")

    def _crash_while_opening(self, disk: ModelDisk, history: History) -> ModelDisk:
        disk.cut_at(self.rng.randint(1, 30))
        disk.before = lambda kind, path: self.cut.update([kind])
        try:
            self.open(disk, history).log.close()
        except PowerCut:
            self.states += 1
            return disk.crashed_at_random(self.rng)
        disk.kill()
        disk.cut_at(0)
        return disk

    def _go_on(self, owner: Owner, depth: int) -> None:
        """What the log took after the crash survives the next one: a power cut, a kill, or a kill and then a cut."""
        if self.rng.random() < 0.5:
            owner.publish(2)  # in the queue, perhaps never written
        if self.rng.random() < 0.5:
            self.judge(owner.disk.crashed_at_random(self.rng), owner.history, depth=depth + 1)
        else:
            owner.disk.kill()
            self.judge(owner.disk, owner.history, depth=depth + 1)


class Workload:
    """A random life of a log on one disk; every operation in it is a place where the power fails."""

    def __init__(self, trial: Trial) -> None:
        self.trial, self.rng = trial, trial.rng
        self.disk = ModelDisk()
        self.owner = self._open(History())

    def _open(self, history: History) -> Owner:
        self._history = history  # of the opening: what it serves counts when it is open
        self.disk.before = self._cut
        owner = self.trial.open(self.disk, history)
        self._history = owner.history
        return owner

    def _cut(self, kind: str, path: str) -> None:
        self.trial.cut[kind] += 1
        count = 1 if kind == "close" else 4  # closing changes nothing on the platter
        for state in self.disk.crash_states(self.rng, count):
            self.trial.judge(state, self._history)
        if self.rng.random() < 0.3:
            self._kill_then_cut()

    def _kill_then_cut(self) -> None:
        """The process dies, another opens what the machine still remembers, and then the power fails."""
        disk = self.disk.fork()
        served = self.trial.open(disk, self._history)
        if self.rng.random() < 0.5:
            served.publish(self.rng.randint(1, 4))
            served.log.pump()
        for state in disk.crash_states(self.rng, 2):
            self.trial.judge(state, served.history)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._step()
        self.owner.log.close()
        if self.disk.files:
            raise Violation(f"{len(self.disk.files)} files are open after close")

    def _step(self) -> None:
        owner, rng = self.owner, self.rng
        owner.clock.seconds += rng.choice((0, 0, 0.3))
        match rng.choices(range(9), (6, 3, 3, 2, 1, 1, 1, 1, 1))[0]:
            case 0:
                owner.publish(sync=True)
            case 1:
                owner.publish(rng.randint(2, 8), sync=rng.random() < 0.5)
            case 2:
                owner.publish(sync=False)
                return  # stays in the queue
            case 3:
                owner.snapshot(between=rng.random() < 0.5)
            case 4:
                owner.log.rotate()
            case 5:
                owner.publish(size=3000)  # larger than a segment
            case 6:
                owner.log.close()
                if owner.history.floor != len(owner.history.contents):
                    raise Violation("close left records unsynced")
                self.owner = self._open(owner.history)
            case 7:
                self.disk.kill()
                self.owner = self._open(owner.history)
            case 8:
                owner.install()
        self.owner.log.pump()


@contextmanager
def small_world() -> Iterator[None]:
    """What is large elsewhere has to be small where segments are."""
    with patch("wal.index.MARK_EVERY_BYTES", 200), patch("wal.writer.SMALL_BYTES", 300):
        yield


def search(seed: int, states: int) -> Trial:
    """Run workloads until so many states were judged. Raises Violation, naming the seed."""
    trial = Trial(Random(seed), refusals=0.2)
    logger.disable("wal")  # a crash state is nothing to warn about here, and words cost more than states
    try:
        with trial.loop, small_world():
            while trial.states < states:
                Workload(trial).run(20)
    except Violation as violation:
        raise Violation(f"seed {seed}, state {trial.states}: {violation}") from violation
    finally:
        logger.enable("wal")
    return trial
