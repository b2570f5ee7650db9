"""A broker driven by hand whose log is in files, with the log's own thread; small segments and frequent snapshots."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from handbroker import Asked, HandBroker, HandClock
from process import wait_until
from waiting import DEADLINE_SECONDS

from mq.command import CreateChannel, Publish
from mq.errors import MqError
from mq.limits import Limits
from wal import FileLog, Options
from wal.pb.wal_pb2 import Batch, BatchMessage, ChannelSettings

OPTIONS = Options(segment_bytes=16 << 10, snapshot_bytes=16 << 10, soft_free_bytes=0)
LIMITS = Limits(snapshot_bytes=24 << 10, buffer_bytes=8 << 10, read_bytes=2 << 10)
LATEST = ChannelSettings(keep=ChannelSettings.KEEP_LATEST_PER_KEY, tombstone_grace_ms=60_000)


class FileBroker(HandBroker):
    def __init__(self, directory: Path, clock: HandClock | None = None) -> None:
        self._directory = directory
        clock = clock or HandClock()
        super().__init__(FileLog.open(directory, OPTIONS, clock=clock), clock, LIMITS)
        self.create("filler")

    @property
    def directory(self) -> Path:
        """For those who look at the files: with all that was answered. The mark that tells them how far a segment may
        be read is written a moment after the answer, when nothing else is to be written.
        """
        log = self.log
        assert isinstance(log, FileLog)
        wait_until(lambda: log._is_closed or log._drive.failure is not None or log._writer._marked >= log.synced)
        return self._directory

    def settle(self) -> None:
        async def drained() -> None:
            async with asyncio.timeout(DEADLINE_SECONDS):
                await self.broker.owner.queue.drained()

        for _ in range(2):
            self.spin()
            self.loop.run_until_complete(drained())
        self.spin()

    def install(self, proposal: str) -> Any:
        """The reply. Raises the MqError it gets."""
        asked = Asked()

        async def begin() -> None:
            self.broker.install(proposal, asked)

        self.loop.run_until_complete(begin())
        self.settle()
        if isinstance(asked.answer, MqError):
            raise asked.answer
        return asked.answer

    def again(self) -> FileBroker:
        """A clean stop, and the next start."""
        self.loop.run_until_complete(self.broker.close())
        self.stop()
        return FileBroker(self.directory, self.clock)

    def stop(self) -> None:
        super().stop()
        self.log.close()

    def create(self, channel: str, settings: ChannelSettings | None = None) -> None:
        self.ask(CreateChannel(channel, settings=settings))

    def put(self, channel: str, *messages: tuple[str, str] | str, **fields: Any) -> None:
        """A batch of (key, content), or of contents without a key."""
        made = [
            BatchMessage(content=each.encode())
            if isinstance(each, str)
            else BatchMessage(key=each[0].encode(), content=each[1].encode())
            for each in messages
        ]
        self.ask(Publish(channel, Batch(messages=made).SerializeToString(), len(made), **fields))

    def settle_history(self) -> None:
        """Two snapshot runs behind everything that was written: now no replay needs it."""

        async def run(act: Callable[[], None]) -> None:
            act()

        snapshotter = self.broker._snapshotter
        for act in (self.broker.rotate, snapshotter.finish, self.broker.rotate, snapshotter.finish):
            self.loop.run_until_complete(run(act))
            self.settle()
            self.put("filler", "x")  # so that there is something to tell in the next run

    def names(self) -> list[str]:
        return [segment.name for segment in self.log.segments()]
