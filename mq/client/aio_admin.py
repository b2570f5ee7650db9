"""Channels, groups and the server: the part of `mq.AsyncClient` that moves no messages. As `mq.client.admin`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from mq.client import backup, request
from mq.client.backup import OnProgress
from mq.client.position import Start, at_offset
from mq.client.redriving import SUFFIX, Redriving
from mq.client.request import ADMIN, INSTALL_SECONDS, SERVICE
from mq.errors import GroupExists
from mq.pb import mq_pb2 as pb


class AsyncAdmin:
    """Methods for administration; answers are the messages of the API."""

    async def _call(self, method: str, request: bytes, wait: float = 0.0) -> bytes:
        """`wait`: seconds that the broker may need for its answer, beyond what any answer may take."""
        raise NotImplementedError

    # ------------------------------------------------------------ channels

    async def create_channel(
        self,
        channel: str,
        *,
        partitions: int = 1,
        exist_ok: bool = False,
        max_age_ms: int | None = None,
        max_bytes: int | None = None,
        max_messages: int | None = None,
        ttl_ms: int | None = None,
        drop_acked: bool | None = None,
        latest_per_key: bool | None = None,
        tombstone_grace_ms: int | None = None,
    ) -> bool:
        """Make a channel; false where it was there already. Raises ChannelExists, unless `exist_ok`.

        `latest_per_key`: compaction may drop a message that a later one of its key replaced; one without content, a
        tombstone, goes as well after its grace (0: a day).

        client.create_channel("orders", partitions=8, exist_ok=True)
        """
        settings = request.channel_settings(
            max_age_ms, max_bytes, max_messages, ttl_ms, drop_acked, latest_per_key, tombstone_grace_ms
        )
        asked = request.create_channel(channel, partitions, exist_ok, settings)
        return pb.CreateChannelResponse.FromString(await self._call(SERVICE + "CreateChannel", asked)).created

    async def list_channels(self, prefix: str = "") -> list[pb.ChannelInfo]:
        """All channels, by name."""
        asked = pb.ListChannelsRequest(prefix=prefix).SerializeToString()
        return list(pb.ListChannelsResponse.FromString(await self._call(ADMIN + "ListChannels", asked)).channels)

    async def describe_channel(self, channel: str) -> pb.ChannelInfo:
        """Offsets, sizes and settings. Raises ChannelNotFound."""
        asked = pb.DescribeChannelRequest(channel=channel).SerializeToString()
        return pb.ChannelInfo.FromString(await self._call(ADMIN + "DescribeChannel", asked))

    async def update_channel(
        self,
        channel: str,
        *,
        partitions: int = 0,
        max_age_ms: int | None = None,
        max_bytes: int | None = None,
        max_messages: int | None = None,
        ttl_ms: int | None = None,
        drop_acked: bool | None = None,
        latest_per_key: bool | None = None,
        tombstone_grace_ms: int | None = None,
    ) -> pb.ChannelInfo:
        """Change what is given; the rest stays. Partitions only grow."""
        base = (await self.describe_channel(channel)).settings
        settings = request.channel_settings(
            max_age_ms, max_bytes, max_messages, ttl_ms, drop_acked, latest_per_key, tombstone_grace_ms, base=base
        )
        asked = pb.UpdateChannelRequest(channel=channel, partitions=partitions)
        if settings is not None:
            asked.settings.CopyFrom(settings)
        return pb.ChannelInfo.FromString(await self._call(ADMIN + "UpdateChannel", asked.SerializeToString()))

    async def delete_channel(self, channel: str) -> None:
        """The channel, its messages and its groups are gone. Raises ChannelNotFound."""
        await self._call(ADMIN + "DeleteChannel", pb.DeleteChannelRequest(channel=channel).SerializeToString())

    async def purge_channel(self, channel: str, *, before_offset: int = 0, partition: int | None = None) -> int:
        """Drop the messages before an offset, or all; returns how many."""
        asked = request.purge(channel, before_offset, partition)
        return pb.PurgeChannelResponse.FromString(await self._call(ADMIN + "PurgeChannel", asked)).purged

    async def redrive(
        self,
        channel: str,
        *,
        to: str = "",
        reason: str = "",
        min_age_ms: int = 0,
        max_age_ms: int = 0,
        max_messages: int = 0,
        start_offset: int = 0,
    ) -> pb.RedriveResponse:
        """Send a slice of the dead letters of a channel back, each once; go on at `next_offset` until it is `done`.

        Ages count from when a message was dead-lettered; 0 is no limit.
        """
        asked = pb.RedriveRequest(
            channel=channel + SUFFIX,
            to=to,
            reason=reason,
            min_age_ms=min_age_ms,
            max_age_ms=max_age_ms,
            max_messages=max_messages,
            start_offset=start_offset,
        )
        return pb.RedriveResponse.FromString(await self._call(ADMIN + "Redrive", asked.SerializeToString()))

    async def redrive_all(
        self,
        channel: str,
        *,
        to: str = "",
        reason: str = "",
        min_age_ms: int = 0,
        max_age_ms: int = 0,
        rate: float = 0.0,
    ) -> pb.RedriveResponse:
        """Send all dead letters that a channel has now back, at most `rate` a second; returns when it is done."""
        work = Redriving(channel, to, reason, min_age_ms, max_age_ms, rate, time.monotonic())
        work.find_end(await self.describe_channel(channel + SUFFIX))
        while not work.told.done:
            wait = work.take(await self._call(ADMIN + "Redrive", work.request()), time.monotonic())
            await asyncio.sleep(wait)
        return work.told

    async def list_schedules(
        self, channel: str, *, max_schedules: int = 0, after: pb.ScheduleInfo | None = None
    ) -> list[pb.ScheduleInfo]:
        """Delayed messages that are not due yet, the soonest first; `after`: the last one of the list before."""
        asked = request.list_schedules(channel, max_schedules, after)
        return list(pb.ListSchedulesResponse.FromString(await self._call(ADMIN + "ListSchedules", asked)).schedules)

    async def cancel_schedule(self, channel: str, schedule_id: int) -> None:
        """A delayed message is not delivered after all. Raises ScheduleNotFound where it is out already."""
        asked = pb.CancelScheduleRequest(channel=channel, schedule_id=schedule_id)
        await self._call(ADMIN + "CancelSchedule", asked.SerializeToString())

    # ------------------------------------------------------------ groups

    async def create_group(
        self,
        channel: str,
        group: str,
        *,
        start: Start = "earliest",
        ordered: bool = False,
        ack_wait_ms: int = 0,
        max_deliver: int = 0,
        backoff_ms: Sequence[int] = (),
        max_pending: int = 0,
        max_pending_per_member: int = 0,
        expire_after_ms: int = 0,
        session_timeout_ms: int = 0,
    ) -> pb.GroupInfo:
        """Make a group; 0 is the server's default. Raises GroupExists where there is one with other settings."""
        settings = request.group_settings(
            ordered,
            ack_wait_ms,
            max_deliver,
            backoff_ms,
            max_pending,
            max_pending_per_member,
            expire_after_ms,
            session_timeout_ms,
        )
        asked = request.create_group(channel, group, settings, start)
        return pb.GroupInfo.FromString(await self._call(ADMIN + "CreateGroup", asked))

    async def list_groups(self, channel: str = "") -> list[pb.GroupInfo]:
        """The groups of a channel, or of all."""
        asked = pb.ListGroupsRequest(channel=channel).SerializeToString()
        return list(pb.ListGroupsResponse.FromString(await self._call(ADMIN + "ListGroups", asked)).groups)

    async def describe_group(self, channel: str, group: str, *, pending: bool = False) -> pb.GroupInfo:
        """Positions, lag and members; with `pending` also who holds what. Raises GroupNotFound."""
        asked = pb.DescribeGroupRequest(channel=channel, group=group, pending=pending).SerializeToString()
        return pb.GroupInfo.FromString(await self._call(ADMIN + "DescribeGroup", asked))

    async def delete_group(self, channel: str, group: str) -> None:
        """The group and its position are gone. Raises GroupNotFound."""
        await self._call(ADMIN + "DeleteGroup", pb.DeleteGroupRequest(channel=channel, group=group).SerializeToString())

    async def seek_group(
        self,
        channel: str,
        group: str,
        start: Start | None = None,
        *,
        shift: int | None = None,
        partition: int | None = None,
        force: bool = False,
        dry_run: bool = False,
    ) -> pb.SeekResponse:
        """Move a group to a place, or by so many messages; `dry_run` only tells where it would be."""
        told = dry_run or shift is not None
        asked = request.seek(channel, group, start, shift, partition, force, told)
        answer = pb.SeekResponse.FromString(await self._call(SERVICE + "Seek", asked))
        if told and not dry_run:
            # To shift once more, after an answer that was lost, would move it twice; to go to a place does not.
            for at in answer.positions:
                await self._call(
                    SERVICE + "Seek", request.seek(channel, group, at_offset(at.offset), None, at.partition, force)
                )
        return answer

    async def join_group(self, channel: str, group: str, start: Start, ordered: bool) -> pb.GroupInfo:
        """The group, made where there is none; one that exists keeps its settings."""
        try:
            return await self.create_group(channel, group, start=start, ordered=ordered)
        except GroupExists:
            return await self.describe_group(channel, group)

    # ------------------------------------------------------------ the server

    async def server_info(self) -> pb.ServerInfoResponse:
        """Version, sizes and health of the broker."""
        asked = pb.ServerInfoRequest().SerializeToString()
        return pb.ServerInfoResponse.FromString(await self._call(ADMIN + "ServerInfo", asked))

    async def list_segments(self) -> list[pb.SegmentInfo]:
        """The files of the log."""
        asked = pb.ListSegmentsRequest().SerializeToString()
        return list(pb.ListSegmentsResponse.FromString(await self._call(ADMIN + "ListSegments", asked)).segments)

    async def rotate_segment(self) -> None:
        """Seal the current file of the log, and begin the next."""
        await self._call(ADMIN + "RotateSegment", pb.RotateSegmentRequest().SerializeToString())

    async def install_segments(self, proposal: str) -> pb.InstallSegmentsResponse:
        """Put the files that a compaction has staged in the place of others; `timeout` of the client must suffice."""
        asked = pb.InstallSegmentsRequest(proposal=proposal).SerializeToString()
        return pb.InstallSegmentsResponse.FromString(
            await self._call(ADMIN + "InstallSegments", asked, INSTALL_SECONDS)
        )

    async def create_backup(self, directory: str, on_progress: OnProgress | None = None) -> pb.BackupInfo:
        """Bring a backup in the broker's BACKUP_DIR to what is durable now; returns when it is complete."""
        return await backup.create_async(self._call, directory, on_progress)

    async def describe_backup(self, backup_id: str) -> pb.BackupInfo:
        """How far a backup is, or what came of it. Raises BackupNotFound."""
        return pb.BackupInfo.FromString(await self._call(ADMIN + "DescribeBackup", backup.describe_request(backup_id)))
