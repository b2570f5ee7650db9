"""Reads from the log what has left memory: batches, positions by time, the content of delayed publishes."""

from __future__ import annotations

from loguru import logger

from mq.channel import Channel, Missing, Partition
from mq.command import Command, CreateGroup, Position, Pull, Seek
from mq.decision import Decision
from mq.errors import Unavailable
from mq.publication import decide_due
from mq.state import State
from wal.errors import CorruptSegment
from wal.log import Log
from wal.pb.wal_pb2 import Atomic, Published, Scheduled
from wal.record import items_of

RETRY_US = 1_000_000  # what could not be read at the moment is tried again after this
RETRY_LOST_US = 3_600_000_000  # and what seems to be lost after this: somebody may have repaired the log


class Readback:
    """Everything here leaves what it read in the state; deciding is up to the caller."""

    def __init__(self, log: Log, state: State) -> None:
        self._log = log
        self._state = state

    async def read(self, missing: Missing, max_bytes: int = 0) -> None:
        """Make the batch at an offset available, or note that it is lost. Raises Unavailable."""
        partition, offset = missing.partition, missing.offset
        floor = partition.buffer.floor
        try:
            found = await self._read(partition, offset, max_bytes or self._state.limits.read_bytes)
        except CorruptSegment as error:
            partition.unreadable.add(*await self._lost(partition, offset, error))
            return
        partition.is_in_doubt = self._log.has_gaps
        self._state.fetched(partition, offset, found, floor)

    async def _read(self, partition: Partition, offset: int, max_bytes: int) -> list[Published]:
        try:
            return await self._log.read(partition.channel_id, partition.number, offset, max_bytes)
        except CorruptSegment:
            raise
        except Exception as error:
            # Files, memory and threads run out in many ways, and whoever asked gets an answer in all of them.
            logger.warning("partition {} can't be read at {}: {!r}", partition.number, offset, error)
            raise Unavailable("the log can't be read at the moment") from error

    async def _lost(self, partition: Partition, offset: int, error: CorruptSegment) -> tuple[int, int]:
        """The offsets that are lost around a damaged one: as the log says, or by a search."""
        start, end = error.offsets or (offset, 0)
        if end <= offset:
            end = await self._damage_end(partition, offset)
        return min(offset, max(start, partition.first)), end

    async def _damage_end(self, partition: Partition, offset: int) -> int:
        """The first offset after a damaged one that can be read again."""
        low, high = offset, partition.visible
        while high - low > 1:
            middle = (low + high) // 2
            try:
                found = await self._read(partition, middle, 1)
            except CorruptSegment:
                low = middle
            else:
                high = min(high, max(middle, found[0].base_offset)) if found else middle
                if found and found[0].base_offset <= middle:
                    high = max(low + 1, found[0].base_offset)
        return high

    # ---------------------------------------------------------------- times

    @staticmethod
    def is_time_asked(command: Command) -> bool:
        """Whether a time has to be looked up before a command can be decided."""
        return (
            isinstance(command, (Pull, CreateGroup, Seek))
            and command.start is not None
            and command.start.at == "time"
            and not command.positions
        )

    async def positions(self, command: Pull | CreateGroup | Seek) -> list[Position]:
        """Where the first messages are that are not older than the time asked for."""
        channel = self._state.channel(command.channel)
        assert command.start is not None
        if isinstance(command, CreateGroup) or command.partition is None:
            partitions = list(channel.partitions)
        else:
            partitions = [channel.partition(command.partition)]
        return [Position(at.number, await self._at_time(at, command.start.value)) for at in partitions]

    async def _at_time(self, partition: Partition, time_us: int) -> int:
        first = next(iter(partition.buffer), None)
        if partition.buffer.floor > partition.first and (first is None or first.timestamp_us >= time_us):
            found = await self._search(partition, time_us)
            if found is not None:
                return found
        for batch in partition.buffer:
            if batch.max_timestamp_us >= time_us:
                return max(batch.base, partition.first)
        return partition.next_offset

    async def _search(self, partition: Partition, time_us: int) -> int | None:
        """The same in what has left memory, by halves; None: it is younger than all of that."""
        low, high = partition.first, partition.buffer.floor
        answer: int | None = None
        while low < high:
            middle = (low + high) // 2
            try:
                found = await self._read(partition, middle, 1)
            except CorruptSegment:
                low = middle + 1
                continue
            if found and found[0].max_timestamp_us < time_us:
                low = max(middle, found[0].base_offset + found[0].count - 1) + 1
            else:
                if found and found[0].base_offset < partition.buffer.floor:
                    answer = max(found[0].base_offset, partition.first)
                high = min(middle, found[0].base_offset) if found else middle
        return answer

    # ---------------------------------------------------------------- delayed publishes

    async def due(self, now: int) -> Decision | None:
        """What publishes the next schedule that is due; None: it can't be read yet."""
        entry = self._state.schedules.first
        self._state.schedules.remove(entry)
        _, schedule_id, channel_id = entry
        channel = self._state.channels_by_id.get(channel_id)
        planned = channel.schedules.get(schedule_id) if channel else None
        if channel is None or planned is None:
            return Decision([], None)
        if planned.sequence > self._state.synced:
            self._state.schedules.add(entry)
            return None
        try:
            record = await self._log.read_sequence(planned.sequence)
        except CorruptSegment as error:
            self._keep_lost(channel, schedule_id, now, str(error))
            return Decision([], None)
        except Exception as error:
            # Whatever it was, the publish was promised: it is tried until it is out or cancelled.
            text = "delayed publish {} of channel {!r} can't be read at the moment, it is tried again: {!r}"
            logger.warning(text, schedule_id, channel.name, error)
            self._state.schedules.add((now + RETRY_US, schedule_id, channel_id))
            return Decision([], None)
        found = [record] if not isinstance(record, Atomic) else list(items_of(record))
        for item in found:
            if isinstance(item, Scheduled) and item.schedule_id == schedule_id:
                return self._decide_due(channel, item, now)
        self._keep_lost(channel, schedule_id, now, f"record {planned.sequence} of the log does not hold it")
        return Decision([], None)

    def _keep_lost(self, channel: Channel, schedule_id: int, now: int, reason: str) -> None:
        """It stays among the channel's schedules, where anybody sees it, until the log is repaired or it is cancelled.

        To cancel it here would let the log forget what is left of it.
        """
        if self._state.channels_by_id.get(channel.channel_id) is not channel or schedule_id not in channel.schedules:
            return  # deleted or cancelled while it was read
        text = "delayed publish {} of channel {!r} is overdue and can't be read; cancel it to give it up: {}"
        logger.error(text, schedule_id, channel.name, reason)
        self._state.schedules.add((now + RETRY_LOST_US, schedule_id, channel.channel_id))

    def _decide_due(self, channel: Channel, scheduled: Scheduled, now: int) -> Decision:
        if self._state.channels_by_id.get(channel.channel_id) is not channel:
            return Decision([], None)
        return decide_due(self._state, channel, scheduled, now)
