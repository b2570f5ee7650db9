"""Answers: from replies to bytes, in pieces, so that stored batches are copied by nobody but the socket. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

from mq import reply
from mq.command import Position
from mq.errors import MqError
from mq.pb import mq_pb2 as pb
from mq.pb import raw_pb2 as raw
from mq.service import plain
from mq.service.convert import public_channel_settings, public_group_settings
from wal.varint import varint

Pieces = list[bytes]

_BATCHES_TAG = b"\x0a"  # PullResponse.batches = 1
_EMPTY: Pieces = [b""]


class Delivery(Pieces):
    """An answer that leases messages. A door that can't send it calls `release`, and they go to another member."""

    __slots__ = ("release",)

    def __init__(self, pieces: Iterable[bytes], release: Callable[[], None]) -> None:
        super().__init__(pieces)
        self.release = release


def empty(answer: object) -> Pieces:
    return _EMPTY


def create_channel(answer: reply.CreateChannelReply) -> Pieces:
    return [pb.CreateChannelResponse(created=answer.created).SerializeToString()]


def publish(answer: reply.PublishReply) -> Pieces:
    if short := plain.answer(answer):
        return [short]
    response = pb.PublishResponse(
        partition=answer.partition,
        offset=answer.base_offset,
        timestamp_us=answer.timestamp_us,
        durable=answer.durable,  # type: ignore[arg-type]
        schedule_id=answer.schedule_id,
        duplicate=answer.duplicate,
    )
    return [response.SerializeToString()]


def publish_batch(answer: reply.PublishReply) -> Pieces:
    return [plain.batch_answer(answer) or _publish_batch(answer).SerializeToString()]


def _publish_batch(answer: reply.PublishReply) -> pb.PublishBatchResponse:
    return pb.PublishBatchResponse(
        partition=answer.partition,
        base_offset=answer.base_offset,
        count=answer.count,
        timestamp_us=answer.timestamp_us,
        durable=answer.durable,  # type: ignore[arg-type]
        schedule_id=answer.schedule_id,
        duplicate=answer.duplicate,
        placements=[
            pb.Placement(
                partition=place.partition,
                base_offset=place.base_offset,
                indexes=place.indexes,
                schedule_id=place.schedule_id,
            )
            for place in answer.placements
        ],
    )


def refused_batch(error: MqError) -> Pieces:
    """The answer to one batch of a PublishStream that was refused while the stream goes on."""
    response = pb.PublishBatchResponse(error=str(error) or type(error).__name__, error_reason=type(error).__name__)
    return [response.SerializeToString()]


def pull(answer: reply.PullReply) -> Pieces:
    pieces: Pieces = []
    for pulled in answer.batches:
        head, batch = plain.pulled(pulled), pulled.batch
        pieces += (_BATCHES_TAG + varint(len(head) + len(batch)) + head, batch)
    if answer.next or answer.generation:
        tail = raw.PullResponse(
            next_offset=answer.next[0].offset if len(answer.next) == 1 else 0,
            next=_positions(answer.next),
            generation=answer.generation,
            assigned=answer.assigned,
            channel_id=answer.channel_id,
            group_id=answer.group_id,
        )
        pieces.append(tail.SerializeToString())
    else:
        pieces.append(_ids(answer.channel_id, answer.group_id))
    return pieces


@lru_cache(1_024)  # all that is said to a shared group beside its messages
def _ids(channel_id: int, group_id: int) -> bytes:
    return raw.PullResponse(channel_id=channel_id, group_id=group_id).SerializeToString()


def ack(answer: reply.AckReply) -> Pieces:
    return [pb.AckResponse(acked=answer.acked).SerializeToString()]


def reject(answer: reply.RejectReply) -> Pieces:
    return [pb.RejectResponse(rejected=answer.rejected).SerializeToString()]


def extend(answer: reply.ExtendReply) -> Pieces:
    return [pb.ExtendResponse(lease_until_us=answer.lease_until_us).SerializeToString()]


def seek(answer: reply.SeekReply) -> Pieces:
    response = pb.SeekResponse(positions=_positions(answer.positions), before=_positions(answer.before))
    return [response.SerializeToString()]


def transact(answer: reply.TransactReply) -> Pieces:
    publishes = [_publish_batch(each) for each in answer.publishes]
    return [pb.TransactResponse(publishes=publishes, duplicate=answer.duplicate).SerializeToString()]


def channel_info(answer: reply.ChannelInfo) -> Pieces:
    return [_channel_info(answer).SerializeToString()]


def list_channels(answer: reply.ListChannelsReply) -> Pieces:
    return [pb.ListChannelsResponse(channels=map(_channel_info, answer.channels)).SerializeToString()]


def _channel_info(answer: reply.ChannelInfo) -> pb.ChannelInfo:
    return pb.ChannelInfo(
        channel=answer.channel,
        settings=public_channel_settings(answer.settings),
        partitions=[
            pb.PartitionInfo(
                partition=each.partition,
                start_offset=each.start_offset,
                next_offset=each.next_offset,
                bytes=each.bytes,
                damaged=[pb.OffsetRange(start=start, end=end) for start, end in each.damaged],
            )
            for each in answer.partitions
        ],
        messages=answer.messages,
        bytes=answer.bytes,
        groups=answer.groups,
        created_us=answer.created_us,
        scheduled=answer.scheduled,
        expired=answer.expired,
    )


def purge_channel(answer: reply.PurgeChannelReply) -> Pieces:
    return [pb.PurgeChannelResponse(purged=answer.purged).SerializeToString()]


def redrive(answer: reply.RedriveReply) -> Pieces:
    response = pb.RedriveResponse(
        moved=answer.moved, left=answer.left, next_offset=answer.next_offset, done=answer.is_done
    )
    return [response.SerializeToString()]


def list_schedules(answer: reply.ListSchedulesReply) -> Pieces:
    found = [
        pb.ScheduleInfo(schedule_id=each.schedule_id, due_us=each.due_us, count=each.count) for each in answer.schedules
    ]
    return [pb.ListSchedulesResponse(schedules=found).SerializeToString()]


def group_info(answer: reply.GroupInfo) -> Pieces:
    return [_group_info(answer).SerializeToString()]


def list_groups(answer: reply.ListGroupsReply) -> Pieces:
    return [pb.ListGroupsResponse(groups=map(_group_info, answer.groups)).SerializeToString()]


def _group_info(answer: reply.GroupInfo) -> pb.GroupInfo:
    return pb.GroupInfo(
        channel=answer.channel,
        group=answer.group,
        settings=public_group_settings(answer.settings),
        positions=[pb.GroupPosition(**each._asdict()) for each in answer.positions],
        members=[pb.MemberInfo(**each._asdict()) for each in answer.members],
        lag=answer.lag,
        lag_us=answer.lag_us,
        pending=answer.pending,
        skipped=answer.skipped,
        pending_ranges=[pb.PendingRange(**each._asdict()) for each in answer.pending_ranges],
        generation=answer.generation,
        created_us=answer.created_us,
    )


def _positions(positions: Iterable[Position]) -> list[pb.Position]:
    return [pb.Position(partition=each.partition, offset=each.offset) for each in positions]


def install_segments(answer: reply.InstallReply) -> Pieces:
    response = pb.InstallSegmentsResponse(
        segments=answer.segments,
        bytes_before=answer.bytes_before,
        bytes_after=answer.bytes_after,
        dropped_records=answer.dropped_records,
        dropped_messages=answer.dropped_messages,
    )
    return [response.SerializeToString()]
