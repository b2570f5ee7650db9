"""Settings between the API's messages and the log's: the same fields under the same numbers. Pure."""

from __future__ import annotations

from mq.errors import InvalidArgument
from mq.pb import mq_pb2 as pb
from mq.service.checks import LONGEST_MS
from wal.pb import wal_pb2

LARGEST = 1 << 62  # of counts and bytes: sums of a few still fit 64 bits
BACKOFFS = 32
ASSIGNMENTS = ("", "sticky", "range", "round-robin")


def channel_settings(settings: pb.ChannelSettings) -> wal_pb2.ChannelSettings:
    if settings.keep not in (pb.ChannelSettings.KEEP_ALL, pb.ChannelSettings.KEEP_LATEST_PER_KEY):
        raise InvalidArgument(f"settings.keep {settings.keep} is unknown")
    _check_range(settings, ("max_age_ms", "ttl_ms", "tombstone_grace_ms"), LONGEST_MS)
    _check_range(settings, ("max_bytes", "max_messages"), LARGEST)
    return wal_pb2.ChannelSettings.FromString(settings.SerializeToString())


def group_settings(settings: pb.GroupSettings) -> wal_pb2.GroupSettings:
    if settings.mode not in (pb.GroupSettings.SHARED, pb.GroupSettings.ORDERED):
        raise InvalidArgument(f"settings.mode {settings.mode} is unknown")
    if settings.assignment not in ASSIGNMENTS:
        raise InvalidArgument("settings.assignment is none of sticky, range, round-robin")
    if len(settings.backoff_ms) > BACKOFFS:
        raise InvalidArgument(f"settings.backoff_ms has more than {BACKOFFS} steps")
    if any(step > LONGEST_MS for step in settings.backoff_ms):
        raise InvalidArgument("settings.backoff_ms is more than a hundred years")
    _check_range(settings, ("ack_wait_ms", "expire_after_ms", "session_timeout_ms"), LONGEST_MS)
    return wal_pb2.GroupSettings.FromString(settings.SerializeToString())


def public_channel_settings(settings: wal_pb2.ChannelSettings) -> pb.ChannelSettings:
    return pb.ChannelSettings.FromString(settings.SerializeToString())


def public_group_settings(settings: wal_pb2.GroupSettings) -> pb.GroupSettings:
    return pb.GroupSettings.FromString(settings.SerializeToString())


def _check_range(settings: pb.ChannelSettings | pb.GroupSettings, names: tuple[str, ...], most: int) -> None:
    for name in names:
        if getattr(settings, name) > most:
            raise InvalidArgument(f"settings.{name} is more than {most}")
