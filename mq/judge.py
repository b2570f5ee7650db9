"""Judges a proposal by the present state: is everything that it drops droppable? Pure: no I/O, no clock.

Implements `wal.install.Judge`. A message that a later one of its key replaced may go, so the later one must be seen to
stay: the keys of what went are remembered, as hashes, until that has come. A tombstone that is the last of its key may
go after its grace, and then nothing that it ended may be left before it, or that would be back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from google.protobuf.message import DecodeError, Message

from mq.batch import message_bounds
from mq.rules import Key, Rules, grace_ms, keeps_latest, readers
from mq.state import State
from wal.errors import InstallRefused
from wal.pb.wal_pb2 import Batch, BatchMessage, Published
from wal.record import Unknown, end_offset, published_in

MOST_KEYS = 5_000_000  # that are remembered at once, of all partitions; 64 bytes each
PARTS = 512
NONE: frozenset[int] = frozenset()


class Keys:
    """A set of hashes in many small parts: one large one would stand still for long while it grows.

    A part is made when something comes into it: most partitions lose nothing, and many have few keys.
    """

    __slots__ = ("count", "parts")

    def __init__(self) -> None:
        self.parts: dict[int, set[int]] = {}
        self.count = 0

    def __len__(self) -> int:
        return self.count

    def __contains__(self, number: int) -> bool:
        return number in self.parts.get(number % PARTS, NONE)

    def discard(self, number: int) -> bool:
        """Whether it was in."""
        part = self.parts.get(number % PARTS)
        if part is None or number not in part:
            return False
        part.discard(number)
        self.count -= 1
        return True

    def add(self, number: int) -> bool:
        """Whether it is new."""
        part = self.parts.setdefault(number % PARTS, set())
        if number in part:
            return False
        part.add(number)
        self.count += 1
        return True

    def holds_more_than(self, other: Keys) -> bool:
        return any(mine - other.parts.get(at, NONE) for at, mine in self.parts.items())


class Judge:
    """One proposal's."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._open: dict[Key, Keys] = {}  # of what went, and nothing replaced it yet; by the partition that lost it
        self._ended: dict[Key, Keys] = {}  # of those: by a tombstone, long ago
        self._count = 0  # in all of `_open`
        self.relied: dict[Key, int] = {}  # groups must be past this offset, or what went would be missing
        self.replaced: set[Key] = set()  # where something went that a later message replaced

    @property
    def findings(self) -> tuple[dict[Key, int], set[Key]]:
        """What `confirm` goes by."""
        return self.relied, self.replaced

    @findings.setter
    def findings(self, found: tuple[dict[Key, int], set[Key]]) -> None:
        self.relied, self.replaced = found

    # ---------------------------------------------------------------- what goes or changes

    def approves(self, sequence: int, before: Message | Unknown, after: Message | Unknown | None) -> bool:
        if after is None and not self._rules.needs(before):
            for published in published_in(before):
                self._rely_on(published, end_offset(published))
            self.sees(before)  # it replaced what came before it, and has had its time
            return True
        if not isinstance(before, Published) or not (after is None or isinstance(after, Published)):
            return False
        kept = _kept(before, after) if after is not None else set()
        return kept is not None and self._all_may_go(before, kept)

    def _all_may_go(self, record: Published, kept: set[int]) -> bool:
        """Whether every message of a record that is not kept may go; what is kept counts as seen.

        A message may go if it is trimmed, if a later one of its key stays, or because it ended its key long ago.
        """
        key = (record.channel_id, record.partition)
        start, before_us = self._rules.start_of(*key), self._rules.tombstones_before(*key)
        if before_us is None:
            return all(offset in kept or offset < start for offset in offsets_of(record))
        still_open, ended = self._open.setdefault(key, Keys()), self._ended.setdefault(key, Keys())
        is_old = record.max_timestamp_us <= before_us
        last = -1
        for offset, message in zip(offsets_of(record), _messages(record), strict=True):
            if not message.HasField("key"):
                if offset not in kept and offset >= start:
                    return False
                continue
            number = hash(message.key)
            if offset in kept:
                self._count -= still_open.discard(number)
                ended.discard(number)
            elif offset >= start:
                last = offset
                self._count += still_open.add(number)
                if is_old and not message.content:
                    ended.add(number)
                else:
                    ended.discard(number)
        if last >= 0:
            self._note_replaced(key, record, last)
        return True

    def _note_replaced(self, key: Key, record: Published, last: int) -> None:
        if last >= self._rules.passed(*key):
            raise InstallRefused(f"{self._place(key)}: offset {last} would go, and a group is not past it")
        if self._count > MOST_KEYS:
            raise InstallRefused(f"{self._place(key)}: more than {MOST_KEYS} keys: propose fewer segments at a time")
        self._rely_on(record, last + 1)
        self.replaced.add(key)

    def _rely_on(self, record: Published, end: int) -> None:
        key = (record.channel_id, record.partition)
        if end > self._rules.start_of(*key):
            self.relied[key] = max(end, self.relied.get(key, 0))

    # ---------------------------------------------------------------- what stays

    def sees(self, record: Message | Unknown) -> None:
        for published in published_in(record):
            key = (published.channel_id, published.partition)
            still_open, ended = self._open.get(key), self._ended.get(key)
            if still_open and ended is not None:
                for message in _messages(published):
                    if message.HasField("key"):
                        number = hash(message.key)
                        self._count -= still_open.discard(number)
                        ended.discard(number)

    @property
    def is_in_doubt(self) -> bool:
        return self._count > 0

    def conclude(self, earlier: Iterable[Message | Unknown]) -> None:
        for key, still_open in self._open.items():
            if still_open.holds_more_than(self._ended[key]):
                raise InstallRefused(f"{self._place(key)}: something would go that no later message replaces")
        if not any(self._ended.values()):
            return
        for record in earlier:
            for published in published_in(record):
                key = (published.channel_id, published.partition)
                ended = self._ended.get(key)
                start = self._rules.start_of(*key)
                for offset, message in zip(offsets_of(published), _messages(published), strict=True) if ended else ():
                    if ended and offset >= start and message.HasField("key") and hash(message.key) in ended:
                        text = f"{self._place(key)}: offset {offset} would be back, without the tombstone that ended it"
                        raise InstallRefused(text)

    def _place(self, key: Key) -> str:
        return f"partition {key[1]} of channel {self._rules.names.get(key[0], '')!r}"

    # ---------------------------------------------------------------- at the last moment

    def confirm(self, state: State) -> None:
        """Whether it still holds: groups may have moved, and settings may be others. Raises InstallRefused."""
        for key, end in self.relied.items():
            channel = state.channels_by_id.get(key[0])
            if channel is None or channel.partitions[key[1]].start_offset >= end:
                continue
            if key in self.replaced and not (
                keeps_latest(channel) and self._rules.now - grace_ms(channel) * 1000 >= self._tombstones(key)
            ):
                raise InstallRefused(f"{self._place(key)}: the channel's settings are others now")
            for name, group in readers(channel).items():
                position = group.cursors[key[1]].offset
                if position < end:
                    text = f"{self._place(key)}: group {name!r} is at offset {position} now, and what it has still to"
                    raise InstallRefused(f"{text} see would go")

    def _tombstones(self, key: Key) -> int:
        return self._rules.tombstones_before(*key) or 0


def offsets_of(record: Published) -> Sequence[int]:
    if record.offset_deltas:
        return [record.base_offset + delta for delta in record.offset_deltas]
    return range(record.base_offset, record.base_offset + record.count)


def _messages(record: Published) -> Sequence[BatchMessage]:
    try:
        messages = Batch.FromString(record.batch).messages
    except DecodeError as error:
        raise InstallRefused(f"the batch at offset {record.base_offset} can't be decoded") from error
    if len(messages) != len(offsets_of(record)):
        raise InstallRefused(f"the batch at offset {record.base_offset} has other messages than its record tells")
    return messages


def _kept(before: Published, after: Published) -> set[int] | None:
    """The offsets that a shortened record keeps; None where it is not the same record with fewer messages."""
    if _frame_of(before) != _frame_of(after):
        return None
    old_batch, new_batch = before.batch, after.batch
    old_bounds, new_bounds = message_bounds(old_batch), message_bounds(new_batch)
    old_offsets, new_offsets = offsets_of(before), offsets_of(after)
    if len(old_bounds) != len(old_offsets) + 1 or len(new_bounds) != len(new_offsets) + 1 or not new_offsets:
        return None
    at = {offset: number for number, offset in enumerate(old_offsets)}
    last = -1
    for number, offset in enumerate(new_offsets):
        old = at.get(offset, -1)
        if old <= last:
            return None
        last = old
        piece = new_batch[new_bounds[number] : new_bounds[number + 1]]
        if old_batch[old_bounds[old] : old_bounds[old + 1]] != piece:
            return None
    is_told = after.count == len(new_offsets) and after.base_offset == new_offsets[0]  # others go by these two
    return set(new_offsets) if is_told else None


def _frame_of(record: Published) -> bytes:
    """All that dropping messages leaves as it is."""
    frame = Published()
    frame.CopyFrom(record)
    for name in ("base_offset", "count", "offset_deltas", "batch"):
        frame.ClearField(name)
    return frame.SerializeToString(deterministic=True)
