"""What of a segment stays when it is rewritten, frame by frame. Imports no pyspark; no I/O here.

Whoever knows the broker's state gives the rules. Records that they do not need go whole. Of a publish to a channel that
keeps the latest message of each key, what a later one replaced goes, and the record tells the offsets of the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
from google.protobuf.message import DecodeError, Message
from numpy.typing import NDArray

from wal.frame import HEADER_BYTES as FRAME_BYTES
from wal.frame import Frame
from wal.record import PUBLISHED, Published, Unknown, decode, head_of, published_in
from wal.spark.read.decode import keyed

HEAD_BYTES = 512  # in which most batches begin
MOST_REPLACED = 4_000_000  # messages that a proposal drops for later ones' sake: a broker remembers 5 million keys

Key = tuple[int, int]  # channel id and partition
Offsets = NDArray[np.int64]


class Rules(Protocol):
    """What is needed, as the log's owner saw it at one moment; small enough to travel to the workers."""

    def start_of(self, channel_id: int, partition: int) -> int: ...

    def needs(self, record: Message | Unknown) -> bool:
        """Of records that no replay will see. A publish may come without its batch."""
        ...

    def passed(self, channel_id: int, partition: int) -> int:
        """Every group is done with all that lies before this offset."""
        ...

    def tombstones_before(self, channel_id: int, partition: int) -> int | None:
        """Where the latest of each key is kept: tombstones older than this time may go. None: where all is kept."""
        ...

    @property
    def latest(self) -> list[Key]:
        """The partitions that keep the latest of each key."""
        ...


class Latest(NamedTuple):
    """The messages of one partition that are the last of their key: offsets, rising."""

    offsets: Offsets
    tombstones: Offsets  # those of them that may go all the same, if everything of their key before them goes
    firsts: Offsets  # for each tombstone, the first message of its key


class Cut(NamedTuple):
    """What becomes of a frame."""

    payload: bytes | None  # None: it goes
    dropped: dict[Key, int]  # messages


class Selection:
    """Says of each frame what of it stays. One for each stretch of the log that is rewritten as a whole.

    `floors` tells where that stretch begins in each partition; where it does not, it begins with what is met first. A
    tombstone goes if nothing of its key lies before the stretch: that would be back. `is_alone`: the stretch is one
    segment, so that nobody else can take less of it. When so much went for later messages' sake that a broker could
    remember no more, the rest stays, for the next compaction.
    """

    def __init__(
        self,
        rules: Rules,
        latest: Mapping[Key, Latest],
        floors: Mapping[Key, int] | None = None,
        *,
        is_alone: bool = True,
    ) -> None:
        self._rules = rules
        self._latest = latest
        self.floors: dict[Key, int] = dict(floors or {})
        self._tombstones: dict[Key, Offsets] = {}
        self._is_alone = is_alone
        self._replaced = 0  # messages that went for later ones' sake

    def cut(self, frame: Frame) -> Cut:
        try:
            start = bytes(frame.payload[:HEAD_BYTES])
            record = head_of(frame.type, start, len(frame.payload)) or decode(frame.type, bytes(frame.payload))
        except DecodeError:
            return Cut(frame.payload, {})
        if not self._rules.needs(record):
            return Cut(None, dropped_in(record))
        if frame.type != PUBLISHED:
            return Cut(frame.payload, {})
        assert isinstance(record, Published)
        return self._cut_published(frame, record)

    def _cut_published(self, frame: Frame, record: Published) -> Cut:
        key = (record.channel_id, record.partition)
        latest = self._latest.get(key)
        if latest is None or (self._is_alone and self._replaced >= MOST_REPLACED):
            return Cut(frame.payload, {})
        offsets = offsets_of(record)
        stays = _within(latest.offsets, offsets)
        stays &= ~_within(self._droppable(key, latest, record.base_offset), offsets)
        stays |= offsets >= self._rules.passed(*key)
        if stays.all():
            return Cut(frame.payload, {})
        record = Published.FromString(bytes(frame.payload))
        batch = record.batch
        known = keyed(batch)
        if known is None or len(known[0]) != len(offsets):
            return Cut(frame.payload, {})  # of no usual form: nothing of it is worth a risk
        ends, has_key = known
        stays |= ~has_key
        gone = int(len(stays) - stays.sum())
        if not gone:
            return Cut(frame.payload, {})
        self._replaced += gone
        return Cut(shortened(record, batch, offsets, ends, stays) if stays.any() else None, {key: gone})

    def _droppable(self, key: Key, latest: Latest, offset: int) -> Offsets:
        found = self._tombstones.get(key)
        if found is None:
            floor = self.floors.setdefault(key, offset)
            found = self._tombstones[key] = latest.tombstones[latest.firsts >= floor]
        return found


def dropped_in(record: Message | Unknown) -> dict[Key, int]:
    """The messages that go with a record, by partition."""
    if isinstance(record, Published):
        return {(record.channel_id, record.partition): record.count}
    found: dict[Key, int] = {}
    for each in published_in(record):
        key = (each.channel_id, each.partition)
        found[key] = found.get(key, 0) + each.count
    return found


def offsets_of(record: Published) -> Offsets:
    if record.offset_deltas:
        return np.fromiter(record.offset_deltas, np.int64, len(record.offset_deltas)) + record.base_offset
    return np.arange(record.base_offset, record.base_offset + record.count, dtype=np.int64)


def shortened(record: Published, batch: bytes, offsets: Offsets, ends: Offsets, stays: NDArray[np.bool_]) -> bytes:
    """The same record with fewer messages; their bytes, offsets and times stay what they were."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], stays, [False])).astype(np.int8)))
    starts, stops = edges[0::2], edges[1::2]
    kept = offsets[stays]
    deltas = kept - kept[0]
    made = Published()
    made.CopyFrom(record)
    made.base_offset = int(kept[0])
    made.count = len(kept)
    made.ClearField("offset_deltas")
    if deltas[-1] != len(kept) - 1:
        made.offset_deltas.extend(deltas.tolist())
    bounds = np.concatenate(([0], ends))
    made.batch = b"".join(
        batch[start:stop] for start, stop in zip(bounds[starts].tolist(), bounds[stops].tolist(), strict=True)
    )
    return made.SerializeToString()


def frame_bytes(payload: bytes) -> int:
    return FRAME_BYTES + len(payload)


def _within(known: Offsets, offsets: Offsets) -> NDArray[np.bool_]:
    """Which of some rising offsets are among the known, rising as well."""
    if not len(known):
        return np.zeros(len(offsets), np.bool_)
    at = np.searchsorted(known, offsets)
    return np.asarray(known.take(at, mode="clip") == offsets)
