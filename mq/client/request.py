"""Administration as the API takes it: requests from what a user says. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from mq.client.position import Start, start_of
from mq.pb import mq_pb2 as pb

ADMIN = "mq.AdminService/"
SERVICE = "mq.MQService/"
INSTALL_SECONDS = 86_400.0  # every frame is read on both sides; asked again, the broker knows nothing of it any more


def channel_settings(
    max_age_ms: int | None = None,
    max_bytes: int | None = None,
    max_messages: int | None = None,
    ttl_ms: int | None = None,
    drop_acked: bool | None = None,
    latest_per_key: bool | None = None,
    tombstone_grace_ms: int | None = None,
    base: pb.ChannelSettings | None = None,
) -> pb.ChannelSettings | None:
    """Settings where at least one is given, on top of others; else None: the server's defaults, or as they are."""
    given = {
        "max_age_ms": max_age_ms,
        "max_bytes": max_bytes,
        "max_messages": max_messages,
        "ttl_ms": ttl_ms,
        "drop_acked": drop_acked,
        "tombstone_grace_ms": tombstone_grace_ms,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    if not chosen and latest_per_key is None:
        return None
    settings = pb.ChannelSettings()
    if base is not None:
        settings.CopyFrom(base)
    for name, value in chosen.items():
        setattr(settings, name, value)
    if latest_per_key is not None:
        settings.keep = pb.ChannelSettings.KEEP_LATEST_PER_KEY if latest_per_key else pb.ChannelSettings.KEEP_ALL
    return settings


def group_settings(
    ordered: bool = False,
    ack_wait_ms: int = 0,
    max_deliver: int = 0,
    backoff_ms: Sequence[int] = (),
    max_pending: int = 0,
    max_pending_per_member: int = 0,
    expire_after_ms: int = 0,
    session_timeout_ms: int = 0,
    assignment: str = "",
) -> pb.GroupSettings | None:
    """Settings where at least one is given; what is not is the server's default."""
    settings = pb.GroupSettings(
        mode=pb.GroupSettings.ORDERED if ordered else pb.GroupSettings.SHARED,
        ack_wait_ms=ack_wait_ms,
        max_deliver=max_deliver,
        backoff_ms=backoff_ms,
        max_pending=max_pending,
        max_pending_per_member=max_pending_per_member,
        expire_after_ms=expire_after_ms,
        session_timeout_ms=session_timeout_ms,
        assignment=assignment,
    )
    return settings if settings.ByteSize() else None


def create_channel(channel: str, partitions: int, exist_ok: bool, settings: pb.ChannelSettings | None) -> bytes:
    request = pb.CreateChannelRequest(channel=channel, partitions=partitions, fail_if_exists=not exist_ok)
    if settings is not None:
        request.settings.CopyFrom(settings)
    return request.SerializeToString()


def create_group(channel: str, group: str, settings: pb.GroupSettings | None, start: Start) -> bytes:
    request = pb.CreateGroupRequest(channel=channel, group=group, start=start_of(start))
    if settings is not None:
        request.settings.CopyFrom(settings)
    return request.SerializeToString()


def seek(
    channel: str,
    group: str,
    start: Start | None,
    shift: int | None,
    partition: int | None,
    force: bool,
    dry_run: bool = False,
) -> bytes:
    request = pb.SeekRequest(channel=channel, group=group, force=force, dry_run=dry_run)
    if partition is not None:
        request.partition = partition
    if shift is not None:
        request.shift = shift
    elif start is not None:
        request.start.CopyFrom(start_of(start))
    return request.SerializeToString()


def purge(channel: str, before_offset: int, partition: int | None) -> bytes:
    request = pb.PurgeChannelRequest(channel=channel, before_offset=before_offset)
    if partition is not None:
        request.partition = partition
    return request.SerializeToString()


def list_schedules(channel: str, max_schedules: int, after: pb.ScheduleInfo | None) -> bytes:
    request = pb.ListSchedulesRequest(channel=channel, max_schedules=max_schedules)
    if after is not None:
        request.after_due_us, request.after_schedule_id = after.due_us, after.schedule_id
    return request.SerializeToString()
