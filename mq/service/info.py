"""What the server says about itself: ServerInfo, ListSegments. Pure: values in, bytes out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mq.pb import mq_pb2 as pb
from mq.reply import ListChannelsReply
from mq.service.response import Pieces
from wal.log import SegmentInfo, Usage


@dataclass(frozen=True, slots=True)
class Facts:
    """What does not change while the server runs."""

    version: str
    log_uuid: str
    start_id: str
    started_us: int
    storage_mode: str
    max_request_bytes: int


def server_info(facts: Facts, usage: Usage, listed: ListChannelsReply, buffered_bytes: int, now_us: int) -> Pieces:
    response = pb.ServerInfoResponse(
        version=facts.version,
        log_uuid=facts.log_uuid,
        start_id=facts.start_id,
        started_us=facts.started_us,
        storage_mode=facts.storage_mode,
        channels=len(listed.channels),
        groups=sum(each.groups for each in listed.channels),
        messages=sum(each.messages for each in listed.channels),
        buffered_bytes=buffered_bytes,
        log_bytes=usage.bytes,
        log_segments=usage.segments,
        last_sequence=usage.last_sequence,
        synced_sequence=usage.synced,
        free_bytes=usage.free_bytes,
        fsync_mean_seconds=usage.fsync_seconds / usage.fsync_count if usage.fsync_count else 0.0,
        max_request_bytes=facts.max_request_bytes,
        now_us=now_us,
    )
    return [response.SerializeToString()]


def list_segments(segments: Sequence[SegmentInfo]) -> Pieces:
    response = pb.ListSegmentsResponse(
        segments=[
            pb.SegmentInfo(
                name=each.name,
                first_sequence=each.first_sequence,
                last_sequence=each.last_sequence,
                generation=each.generation,
                bytes=each.bytes,
                sealed=each.is_sealed,
            )
            for each in segments
        ]
    )
    return [response.SerializeToString()]
