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

MOST_KEYS = 5_000_000  # remembered at once; 64 bytes each


class Judge:
    """One proposal's."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._open: dict[Key, set[int]] = {key: set() for key in rules.latest}  # went, and nothing replaced it yet
        self._ended: dict[Key, set[int]] = {key: set() for key in rules.latest}  # of those: by a tombstone, long ago
        self.relied: dict[Key, int] = {}  # groups must be past this offset, or what went would be missing
        self.replaced: set[Key] = set()  # where something went that a later message replaced

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
        """Whether every message of a record that is not kept may go; what is kept counts as seen."""
        key = (record.channel_id, record.partition)
        start = self._rules.start_of(*key)
        for offset, message in zip(offsets_of(record), _messages(record), strict=True):
            if offset in kept:
                self._stays(key, message)
            elif offset >= start and not self._is_replaced(key, record, offset, message):
                return False
        return True

    def _is_replaced(self, key: Key, record: Published, offset: int, message: BatchMessage) -> bool:
        """Whether a message may go if a later one of its key stays, or because it ended its key long ago."""
        before_us = self._rules.tombstones_before(*key)
        if before_us is None or not message.HasField("key"):
            return False
        if offset >= self._rules.passed(*key):
            channel = self._rules.names.get(key[0], "")
            raise InstallRefused(
                f"offset {offset} of partition {key[1]} of channel {channel!r} would go, and a group is not past it"
            )
        number = hash(message.key)
        self._open[key].add(number)
        if not message.content and record.max_timestamp_us <= before_us:
            self._ended[key].add(number)
        else:
            self._ended[key].discard(number)
        if sum(map(len, self._open.values())) > MOST_KEYS:
            raise InstallRefused(f"more than {MOST_KEYS} keys at once: propose fewer segments at a time")
        self._rely_on(record, offset + 1)
        self.replaced.add(key)
        return True

    def _rely_on(self, record: Published, end: int) -> None:
        key = (record.channel_id, record.partition)
        if end > self._rules.start_of(*key):
            self.relied[key] = max(end, self.relied.get(key, 0))

    # ---------------------------------------------------------------- what stays

    def sees(self, record: Message | Unknown) -> None:
        for published in published_in(record):
            key = (published.channel_id, published.partition)
            if self._open.get(key):
                for message in _messages(published):
                    self._stays(key, message)

    def _stays(self, key: Key, message: BatchMessage) -> None:
        still_open = self._open.get(key)
        if still_open and message.HasField("key"):
            number = hash(message.key)
            still_open.discard(number)
            self._ended[key].discard(number)

    @property
    def is_in_doubt(self) -> bool:
        return any(self._open.values())

    def conclude(self, earlier: Iterable[Message | Unknown]) -> None:
        for key, still_open in self._open.items():
            if still_open - self._ended[key]:
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
    return set(new_offsets) if after.count == len(new_offsets) else None


def _frame_of(record: Published) -> bytes:
    """All that dropping messages leaves as it is."""
    frame = Published()
    frame.CopyFrom(record)
    for name in ("base_offset", "count", "offset_deltas", "batch"):
        frame.ClearField(name)
    return frame.SerializeToString(deterministic=True)
