"""The snapshot of a large channel, encoded ahead a bit at a time and put right in its turn. Pure: no I/O, no clock.

The parts of a snapshot follow each other in the log and tell of one place there, and a channel may have a million
answers, delayed publishes or ranges: to encode them in one turn would hold up everybody else for seconds. So that is
done ahead, while records go on changing the channel. What they change of what is encoded is noted, and encoded again,
until little of it is left. The turn itself costs that little, and no more than to string together what there is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Protocol

from mq import snapshot
from mq.channel import Channel
from mq.cursor import Cursor
from mq.group import Group
from mq.ranges import END
from wal.pb.wal_pb2 import ChannelSnapshot
from wal.record import CHANNEL_SNAPSHOT, Encoded

STEP = 512  # answers, ranges, … that are encoded at a time: about a millisecond
CHUNK = 128  # of them that are encoded again where one has changed
AGAIN = 4  # chunks that are encoded again at a time
ROUNDS = 256  # of encoding again: where as much changes meanwhile, the rest is left to the turn
FEW = 16  # partitions or producers, with 64 marks or answers each at most, or so


def is_large(channel: Channel) -> bool:
    """Whether to encode it in one turn takes longer than others should wait."""
    if max(len(channel.partitions), len(channel.producers)) > FEW or len(channel.schedules) > STEP:
        return True
    if len(channel.groups) * len(channel.partitions) > CHUNK:
        return True
    cursors = [cursor for group in channel.groups.values() for cursor in group.cursors]
    return sum(len(cursor.acked) + len(cursor.retries) for cursor in cursors) > STEP


class Section(Protocol):
    """What a draft has of one kind."""

    def step(self) -> bool:
        """Encode the next few; false: there were none."""
        ...

    def again(self, most: int) -> int:
        """Encode so many chunks again that have changed; returns how many are left."""
        ...

    def pieces(self) -> list[bytes]:
        """Everything as it is now, where `again` left nothing. Pieces may be empty."""
        ...

    def give_up(self) -> None:
        """Note no more changes."""
        ...


class Draft:
    """Call `step` until it is false, then at once `finish`."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._partitions = _Partitions(channel)
        self._groups = _Groups(channel)
        self._producers = _Producers(channel)
        self._schedules = _Schedules(channel)
        self._rounds = 0

    def step(self) -> bool:
        """Encode the next few ahead; false: there is nothing more to gain by that."""
        # Groups come last: where ranges become many that were few, a chunk becomes large.
        first = (self._producers, self._schedules, self._partitions, self._groups)
        if not self._rounds and any(section.step() for section in first):
            return True
        self._rounds += 1  # from here on what is new counts as changed, or there might be no end
        left = sum([section.again(AGAIN) for section in self._sections()])
        return left > 0 and self._rounds < ROUNDS

    def finish(self, most_bytes: int) -> list[Encoded]:
        """The channel as it is now, in records of about so many bytes."""
        pieces = []
        for section in self._sections():
            section.again(END)
            pieces += section.pieces()
        self.give_up()
        return _records(self.channel, pieces, most_bytes)

    def give_up(self) -> None:
        for section in self._sections():
            section.give_up()

    def _sections(self) -> list[Section]:
        """In the order of their fields."""
        return [self._partitions, self._groups, self._producers, self._schedules]


def _records(channel: Channel, pieces: list[bytes], most_bytes: int) -> list[Encoded]:
    """Bytes of a message that follow each other are one message."""
    parts: list[list[bytes]] = [[]]
    size = 0
    for piece in pieces:
        if size + len(piece) > most_bytes and size:
            parts.append([])
            size = 0
        if piece:
            parts[-1].append(piece)
            size += len(piece)
    told = []
    for number, part in enumerate(parts):
        head = ChannelSnapshot(channel_id=channel.channel_id)
        tail = ChannelSnapshot(part=number, more=number < len(parts) - 1)
        if not number:
            head.name = channel.name
            head.settings.CopyFrom(channel.settings)
            tail.created_us = channel.created_us
        pieces = [head.SerializeToString(), *part, tail.SerializeToString()]
        told.append(Encoded(CHANNEL_SNAPSHOT, channel.channel_id, pieces))
    return told


class _Partitions:
    """They have changed where their ends have: only publishes and trims change anything."""

    def __init__(self, channel: Channel) -> None:
        self._partitions = channel.partitions
        self._ends: list[tuple[int, int]] = []
        self._pieces: list[bytes] = []

    def step(self) -> bool:
        at = len(self._pieces)
        if at == len(self._partitions):
            return False
        self._ends.append((0, 0))
        self._pieces.append(b"")
        self._encode(at)
        return True

    def again(self, most: int) -> int:
        while self.step():  # some are new
            pass
        ends = [(partition.start_offset, partition.next_offset) for partition in self._partitions]
        stale = [] if ends == self._ends else [at for at, known in enumerate(self._ends) if known != ends[at]]
        for at in stale[:most]:
            self._encode(at)
        return len(stale[most:])

    def pieces(self) -> list[bytes]:
        return self._pieces

    def give_up(self) -> None:
        pass

    def _encode(self, at: int) -> None:
        told, partition = ChannelSnapshot(), self._partitions[at]
        snapshot.add_partition(told, partition)
        self._ends[at] = (partition.start_offset, partition.next_offset)
        self._pieces[at] = told.SerializeToString()


class _Producers:
    """All that were known at the beginning, as they were, and then each answer since: noted again in that order, they
    make the same producers, in the same order, and forget the same ones."""

    def __init__(self, channel: Channel) -> None:
        self._producers = channel.producers
        self._known = channel.producers.watch()
        self._at = 0  # the next of them
        self._noted = 0  # of those since
        self._pieces: list[bytes] = []

    def step(self) -> bool:
        told, answers = ChannelSnapshot(), 0
        while self._at < len(self._known) and answers < STEP:
            name, producer = self._known[self._at]
            snapshot.add_answers(told, name, producer.seen_us, producer.answers)
            answers += len(producer.answers)
            self._at += 1
        if answers:
            self._pieces.append(told.SerializeToString())
        return answers > 0

    def again(self, most: int) -> int:
        noted = self._producers.noted or []
        told = ChannelSnapshot()
        for name, answer, seen_us in noted[self._noted : self._noted + most * CHUNK]:
            snapshot.add_answers(told, name, seen_us, [answer])
            self._noted += 1
        self._pieces.append(told.SerializeToString())
        return -(-(len(noted) - self._noted) // CHUNK)

    def pieces(self) -> list[bytes]:
        return self._pieces

    def give_up(self) -> None:
        self._producers.noted = None


class _Schedules:
    """By their ids, which only rise: those that are planned meanwhile come last."""

    def __init__(self, channel: Channel) -> None:
        self._schedules = channel.schedules
        self._schedules.changed = set()
        self._ids = list(channel.schedules)
        self._is_sorted = False
        self._pieces: list[bytes] = []
        self._stale: set[int] = set()

    def step(self) -> bool:
        if not self._is_sorted:
            self._ids.sort()
            self._is_sorted = True
            return True
        at = len(self._pieces)
        for chunk in range(at, min(at + STEP // CHUNK, -(-len(self._ids) // CHUNK))):
            self._encode(chunk)
        return len(self._pieces) > at

    def again(self, most: int) -> int:
        changed, self._schedules.changed = sorted(self._schedules.changed or ()), set()
        for number in changed:
            at = bisect_left(self._ids, number)
            if at == len(self._ids):
                self._ids.append(number)
            self._stale.add(at // CHUNK)
        for chunk in sorted(self._stale)[:most]:  # in order: each new one is the next
            self._encode(chunk)
            self._stale.discard(chunk)
        return len(self._stale)

    def pieces(self) -> list[bytes]:
        return self._pieces

    def give_up(self) -> None:
        self._schedules.changed = None

    def _encode(self, chunk: int) -> None:
        told = ChannelSnapshot()
        for number in self._ids[chunk * CHUNK : (chunk + 1) * CHUNK]:
            planned = self._schedules.get(number)
            if planned is not None:
                snapshot.add_schedule(told, number, planned)
        self._pieces[chunk : chunk + 1] = [told.SerializeToString()]


class _Groups:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._left = list(channel.groups.values())
        self._cursors: dict[Group, list[_Cursor]] = {}
        self._changed: dict[_Cursor, None] = {}

    def step(self) -> bool:
        while self._left:
            if self._encode_more(self._left[-1]):
                return True
            self._left.pop()
        return False

    def again(self, most: int) -> int:
        for group in self._channel.groups.values():
            while self._encode_more(group):  # it is new, or has new partitions
                pass
        for cursor in list(self._changed):
            most -= cursor.again(most)
            if cursor.stale:
                break
            del self._changed[cursor]
        return sum(len(cursor.stale) for cursor in self._changed)

    def pieces(self) -> list[bytes]:
        pieces = []
        for group in self._channel.groups.values():
            told = ChannelSnapshot()
            snapshot.add_group(told, group)
            pieces.append(told.SerializeToString())
            for cursor in self._cursors[group]:
                pieces += cursor.pieces
        return pieces

    def give_up(self) -> None:
        for group in self._cursors:
            for cursor in group.cursors:
                cursor.on_change = None

    def _encode_more(self, group: Group) -> bool:
        """Of its cursors; false: that was all."""
        cursors = self._cursors.setdefault(group, [])
        if cursors and cursors[-1].step():
            return True
        if len(cursors) == len(group.cursors):
            return False
        number = len(cursors)
        cursors.append(_Cursor(group.group_id, number, group.cursors[number], self._changed))
        return True


class _Cursor:
    """In chunks of offsets, few or many, that hold about as many ranges each; the first tells where the cursor is."""

    __slots__ = ("_changed", "_cursor", "_end", "_group_id", "_number", "_starts", "pieces", "stale")

    def __init__(self, group_id: int, number: int, cursor: Cursor, changed: dict[_Cursor, None]) -> None:
        """`changed`: where to enter it when chunks become stale."""
        self._group_id = group_id
        self._number = number
        self._cursor = cursor
        self._changed = changed
        self._starts: list[int] = []  # of the chunks, each of which ends where the next one starts
        self._end = 0  # of the last one so far
        self.pieces: list[bytes] = []
        self.stale: set[int] = set()
        self.step()
        cursor.on_change = self._note

    def step(self) -> bool:
        start = self._end
        if start == END:
            return False
        cursor = self._cursor
        self._end = min(cursor.acked.start_of(start, CHUNK, END), cursor.retries.start_of(start, CHUNK, END))
        self._starts.append(start)
        self.pieces.append(b"")
        self._encode(len(self.pieces) - 1)
        return True

    def again(self, most: int) -> int:
        """Returns how many chunks that were."""
        chunks = sorted(self.stale)[:most]
        for at in chunks:
            self._encode(at)
        self.stale.difference_update(chunks)
        return len(chunks)

    def _note(self, start: int, end: int) -> None:
        self._changed[self] = None
        self.stale.add(0)
        self.stale.update(range(bisect_right(self._starts, start) - 1, bisect_left(self._starts, end)))

    def _encode(self, at: int) -> None:
        end = self._starts[at + 1] if at + 1 < len(self._starts) else self._end
        told = snapshot.cursor_of(self._number, self._cursor, self._starts[at], end)
        group = ChannelSnapshot.Group(group_id=self._group_id, cursors=[told])
        empty = at and not (told.acked or told.retries)
        self.pieces[at] = b"" if empty else ChannelSnapshot(groups=[group]).SerializeToString()
