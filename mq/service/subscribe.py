"""Subscribe: a channel's messages one by one, without a group. The first broker's way of reading, made to keep up.

The interval is the least time between two reads. Without a batch_size a full read is followed by the next at once, so
a backlog drains at full speed; with one, no more than that many messages come in an interval. After the interval the
subscription waits inside the broker until there is something to read: nobody polls an empty channel.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from hashlib import blake2b
from typing import cast
from uuid import UUID

from mq.broker import Broker
from mq.command import Command, DescribeChannel, Position, Pull
from mq.errors import InvalidArgument, MqError, OffsetOutOfRange
from mq.pb import mq_pb2 as pb
from mq.reply import ChannelInfo, PulledBatch, PullReply, Reply
from mq.service import checks
from mq.service.edge import Edge

DEFAULT_INTERVAL_MS = 100
LONGEST_INTERVAL_MS = 24 * 3600 * 1_000  # whoever asks for more gets this: the loop's timers are not made for 2^63


class Subscription:
    """One call of Subscribe. `open` finds the place, then iterating gives lists of serialized messages."""

    def __init__(self, broker: Broker, log_uuid: UUID, request: bytes, edge: Edge) -> None:
        message = checks.parse(pb.SubscribeRequest, request)
        self._channel = checks.channel(message.channel)
        if message.offset not in (pb.SubscribeRequest.OFFSET_BEGINNING, pb.SubscribeRequest.OFFSET_LATEST):
            raise InvalidArgument("offset is neither BEGINNING nor LATEST")
        self._broker = broker
        self._edge = edge
        self._log_uuid = log_uuid
        self._is_latest = message.offset == pb.SubscribeRequest.OFFSET_LATEST
        self._interval = min(message.pull_interval or DEFAULT_INTERVAL_MS, LONGEST_INTERVAL_MS) / 1_000
        self._is_paced = message.batch_size > 0
        self._batch_size = min(message.batch_size or edge.batch_size, edge.batch_size)
        self._id_prefix = ""
        self._channel_id = 0
        self._next: dict[int, int] = {}  # partition -> offset

    async def open(self) -> None:
        """Find where to start: LATEST is after everything published before this call."""
        info = await self._describe()
        at = "next_offset" if self._is_latest else "start_offset"
        self._channel_id = info.channel_id
        self._next = {each.partition: getattr(each, at) for each in info.partitions}
        # A channel that is deleted and made again has other messages, so the id must differ: names are not enough.
        seed = f"{self._log_uuid}/{info.channel}/{info.created_us}".encode()
        self._id_prefix = blake2b(seed, digest_size=8).hexdigest()

    async def __aiter__(self) -> AsyncIterator[list[bytes]]:
        while True:
            pulled = await self._pull()
            count = sum(each.count for each in pulled.batches)
            for each in pulled.batches:
                yield self._items(each)
            if not count:
                await self._find_new_partitions()
            elif self._is_paced or not self._is_full(count, pulled):
                await asyncio.sleep(self._interval)

    def _is_full(self, count: int, pulled: PullReply) -> bool:
        size = sum(len(each.batch) for each in pulled.batches)
        return count >= self._batch_size or size * 2 >= self._edge.subscribe_bytes

    async def _pull(self) -> PullReply:
        while True:
            positions = [Position(partition, offset) for partition, offset in self._next.items()]
            command = Pull(
                self._channel,
                max_messages=self._batch_size,
                max_bytes=self._edge.subscribe_bytes,
                max_wait_ms=self._edge.wait_ms,
                positions=positions,
                channel_id=self._channel_id,
            )
            try:
                pulled = cast(PullReply, await self._ask(command))
            except OffsetOutOfRange:
                await self._skip_trimmed()
                continue
            self._next.update(pulled.next)
            return pulled

    async def _skip_trimmed(self) -> None:
        """Retention overtook this reader: go on with what is left."""
        for each in (await self._describe()).partitions:
            offset = self._next.get(each.partition, each.start_offset)
            self._next[each.partition] = min(max(offset, each.start_offset), each.next_offset)

    async def _find_new_partitions(self) -> None:
        for each in (await self._describe()).partitions:
            self._next.setdefault(each.partition, each.start_offset)

    async def _describe(self) -> ChannelInfo:
        return cast(ChannelInfo, await self._ask(DescribeChannel(self._channel)))

    async def _ask(self, command: Command) -> Reply:
        future: asyncio.Future[Reply | MqError] = asyncio.get_running_loop().create_future()
        waiter = self._broker.submit(command, lambda answer: None if future.done() else future.set_result(answer))
        try:
            answer = await future
        except asyncio.CancelledError:
            if waiter is not None:
                waiter.cancel()
            raise
        if isinstance(answer, MqError):
            raise answer
        return answer

    def _items(self, pulled: PulledBatch) -> list[bytes]:
        seconds = pulled.timestamp_us // 1_000_000
        prefix = f"{self._id_prefix}-{pulled.partition}-"
        items = []
        for index, message in enumerate(pb.Batch.FromString(pulled.batch).messages):
            offset = pulled.base_offset + (pulled.offset_deltas[index] if pulled.offset_deltas else index)
            item = pb.Message(
                id=f"{prefix}{offset}",
                content=message.content,
                created_at=seconds,
                partition=pulled.partition,
                offset=offset,
                timestamp_us=pulled.timestamp_us,
            )
            if message.HasField("key"):
                item.key = message.key
            if message.headers:
                item.headers.extend(message.headers)
            items.append(item.SerializeToString())
        return items
