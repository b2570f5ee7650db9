"""The broker's state as a log tells it, without a broker and without a lock: what a compaction goes by.

It may be a moment old. That does no harm: whoever installs what comes of it asks the state of that moment.
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from mq.limits import Limits
from mq.state import State
from wal.chain import replay_start
from wal.frame import Frame
from wal.manifest import Manifest
from wal.reader import damaged
from wal.record import decode
from wal.segment import Gap
from wal.spark.read.listing import SegmentGone, manifest_of, visible
from wal.spark.read.scan import read
from wal.spark.read.storage import storage

LOOKS = 3  # at a log whose segments are replaced while we read
BUFFER_BYTES = 1 << 20  # no message is ever asked for


def present_state(root: str) -> tuple[Manifest, State]:
    """The chain of record, and the state after the last durable record. Raises SegmentGone, NotALog, OSError."""
    for look in range(LOOKS):
        try:
            return _replayed(root)
        except SegmentGone:
            if look == LOOKS - 1:
                raise
    raise AssertionError


def _replayed(root: str) -> tuple[Manifest, State]:
    manifest = manifest_of(root)
    begin = replay_start(*storage(root), manifest)  # as a broker begins: not with a run that is damaged
    state = State(Limits(buffer_bytes=BUFFER_BYTES), bytes(32))
    state.synced = 1 << 62  # everything that is replayed is durable
    for segment in visible(root):
        if segment.last_sequence < begin:
            continue
        for item in read(segment):
            if isinstance(item, Gap):
                if item.last_sequence >= begin:
                    state.apply(item.last_sequence, damaged(item, segment.name))
            elif item.sequence >= begin:
                _apply(state, segment.name, item)
    return manifest, state


def _apply(state: State, name: str, frame: Frame) -> None:
    try:
        state.apply(frame.sequence, decode(frame.type, frame.payload))
    except DecodeError:
        gap = Gap(frame.position, frame.position, frame.sequence, frame.sequence, "the record can't be decoded")
        state.apply(frame.sequence, damaged(gap, name, len(frame.payload)))
