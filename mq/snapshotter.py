"""Writes snapshot runs, a slice at a time between other work, so that a start never replays more than a bit of log."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from loguru import logger

from mq import snapshot
from mq.commitqueue import CommitQueue
from mq.draft import Draft, is_large
from mq.limits import Limits
from mq.state import State
from wal.pb.wal_pb2 import ChannelSnapshot, SnapshotBegin, SnapshotEnd
from wal.record import Encoded


class Stopwatch(Protocol):
    def now_us(self) -> int: ...

    def monotonic(self) -> float: ...


class Snapshotter:
    def __init__(self, state: State, queue: CommitQueue, clock: Stopwatch, limits: Limits) -> None:
        self._state = state
        self._queue = queue
        self._clock = clock
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._left: list[int] = []  # channels that the run still has to write
        self._draft: Draft | None = None  # of the one that it writes next, where that is large
        self._begin_sequence = 0  # of the run under way; 0: none is
        self._bytes = 0  # of its records
        self._last_end = 0  # the sequence of the last SnapshotEnd
        self._last_bytes = 0  # of the run that it ended
        self._is_finished = False
        queue.on_snapshot_refused = self._abandon

    def step(self) -> None:
        """Begin a run if enough log has come together since the last one.

        A run counts as log itself: a state larger than `snapshot_bytes` would be written again and again.
        """
        if self._begin_sequence or self._is_finished:
            return
        if self._queue.replay_bytes >= max(self._limits.snapshot_bytes, 2 * self._last_bytes):
            self._begin()
            self._loop.call_soon(self._slice)

    def finish(self) -> None:
        """Write a whole run at once, if there is anything that the last one does not hold. No other comes after it."""
        self._is_finished = True
        if not self._begin_sequence:
            if self._queue.last == self._last_end or not self._queue.last:
                return
            self._begin()
        while self._begin_sequence:
            self._next()
        self._queue.flush()

    def _begin(self) -> None:
        state = self._state
        self._left = list(state.channels_by_id)
        self._queue.replay_bytes = self._bytes = 0
        self._begin_sequence = self._put(
            SnapshotBegin(
                channel_ids=self._left,
                next_channel_id=state.next_channel_id,
                next_group_id=state.next_group_id,
                next_schedule_id=state.next_schedule_id,
                timestamp_us=self._clock.now_us(),
            )
        )

    def _slice(self) -> None:
        end = self._clock.monotonic() + self._limits.snapshot_slice_seconds
        while self._begin_sequence:
            self._next()
            if self._clock.monotonic() >= end:
                break
        if self._begin_sequence:
            self._loop.call_later(self._limits.snapshot_slice_seconds, self._slice)

    def _next(self) -> None:
        """The next channel or a bit of it, or the end of the run. It changes nothing, so nothing is applied."""
        try:
            self._write_on()
        except Exception as error:
            self._abandon(error)

    def _write_on(self) -> None:
        if self._draft is not None:
            self._go_on_with(self._draft)
            return
        while self._left:
            channel = self._state.channels_by_id.get(self._left.pop())
            if channel is not None:
                if is_large(channel):
                    self._draft = Draft(channel)
                else:
                    whole = snapshot.take(channel)
                    self._put_parts(snapshot.split(whole, self._limits.snapshot_record_bytes))
                return
        self._last_end = self._put(SnapshotEnd(begin_sequence=self._begin_sequence))
        self._last_bytes = self._bytes
        self._begin_sequence = 0

    def _go_on_with(self, draft: Draft) -> None:
        channel = draft.channel
        if self._state.channels_by_id.get(channel.channel_id) is not channel:
            self._draft = None  # it was deleted meanwhile
        elif not draft.step():
            parts = draft.finish(self._limits.snapshot_record_bytes)
            self._draft = None
            self._put_parts(parts)

    def _put_parts(self, parts: Sequence[ChannelSnapshot | Encoded]) -> None:
        """All in one turn: nothing may come between them, for they tell of one place in the log."""
        for part in parts:
            self._put(part)

    def _abandon(self, error: Exception) -> None:
        """Leave the run under way as it is: a start goes by the one before. The next comes when it is due."""
        logger.warning("a snapshot run is given up, a start will replay more: {}", error)
        self._left.clear()
        if self._draft is not None:
            self._draft.give_up()
            self._draft = None
        self._begin_sequence = 0

    def _put(self, record: SnapshotBegin | ChannelSnapshot | Encoded | SnapshotEnd) -> int:
        self._bytes += record.ByteSize()
        return self._queue.put(record)
