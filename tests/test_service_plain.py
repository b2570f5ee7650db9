"""The short way of the smallest publish, compared with protobuf's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.command import Position, Publish
from mq.errors import MqError
from mq.pb import mq_pb2 as pb
from mq.reply import PublishReply, PulledBatch, PullReply
from mq.service import Edge, batch, plain, request, response

EDGE = Edge()


def parsed(data: bytes) -> Publish | str:
    try:
        return request._any_publish(data, EDGE)
    except MqError as error:
        return f"{type(error).__name__}: {error}"


def plain_request(channel: str, content: bytes) -> bytes:
    return pb.PublishRequest(channel=channel, content=content).SerializeToString()


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", fullmatch=True), st.binary(max_size=20_000))
def test_a_plain_publish_is_read_as_protobuf_reads_it(channel: str, content: bytes) -> None:
    data = plain_request(channel, content)
    expected = parsed(data)
    assert plain.read(data, EDGE) in (None, expected)
    if 0 < len(content) < 10_000:
        assert plain.read(data, EDGE) == expected


@given(st.data())
def test_a_changed_request_is_read_as_protobuf_reads_it_or_not_at_all(data: st.DataObject) -> None:
    good = bytearray(plain_request("orders", b"x" * data.draw(st.sampled_from([1, 5, 126, 127, 128, 300]))))
    parsed(bytes(good))
    for _ in range(data.draw(st.integers(1, 3))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(good[: data.draw(st.integers(0, len(good)))]) + data.draw(st.binary(max_size=4))
    short = plain.read(cut, EDGE)
    assert short is None or short == parsed(cut)


@pytest.mark.parametrize(
    "message",
    [
        pb.PublishRequest(channel="orders"),
        pb.PublishRequest(channel="orders", content=b"x", key=b"k"),
        pb.PublishRequest(channel="orders", content=b"x", headers=[pb.Header(name="a")]),
        pb.PublishRequest(channel="orders", content=b"x", partition=0),
        pb.PublishRequest(channel="orders", content=b"x", delay_ms=5),
        pb.PublishRequest(channel="orders", content=b"x", durability=pb.OS),
        pb.PublishRequest(content=b"x"),
    ],
)
def test_what_says_more_is_left_to_protobuf(message: pb.PublishRequest) -> None:
    parsed(plain_request("orders", b"x"))
    assert plain.read(message.SerializeToString(), EDGE) is None


def test_a_message_that_is_too_large_is_left_to_protobuf() -> None:
    small = Edge(request_bytes=70_000)
    data = plain_request("orders", b"x" * 5_000)
    parsed(data)
    assert plain.read(data, EDGE) is not None
    assert plain.read(data, small) is None


def test_only_valid_names_are_remembered() -> None:
    data = plain_request("no name", b"x")
    assert "is no name" in str(parsed(data))
    assert plain.read(data, EDGE) is None


@given(
    st.integers(0, 2**63), st.integers(0, 2**50), st.integers(0, 3), st.integers(0, 2), st.booleans(), st.integers(0, 1)
)
def test_an_answer_is_what_protobuf_reads_as_that(
    offset: int, time: int, durable: int, partition: int, duplicate: bool, schedule: int
) -> None:
    reply = PublishReply(partition, offset, 1, time, durable, schedule, duplicate)
    expected = pb.PublishResponse(
        partition=partition,
        offset=offset,
        timestamp_us=time,
        durable=durable,  # type: ignore[arg-type]
        schedule_id=schedule,
        duplicate=duplicate,
    )
    assert pb.PublishResponse.FromString(b"".join(response.publish(reply))) == expected
    batched = pb.PublishBatchResponse(
        partition=partition,
        base_offset=offset,
        count=1,
        timestamp_us=time,
        durable=durable,  # type: ignore[arg-type]
        schedule_id=schedule,
        duplicate=duplicate,
    )
    assert pb.PublishBatchResponse.FromString(b"".join(response.publish_batch(reply))) == batched


numbers = st.one_of(st.integers(0, 200), st.integers(0, 2**63 - 1))
small = st.one_of(st.integers(0, 200), st.integers(0, 2**32 - 1))
pulled_batches = st.builds(
    PulledBatch,
    partition=small,
    base_offset=numbers,
    count=small,
    timestamp_us=numbers,
    offset_deltas=st.lists(small, max_size=3),
    batch=st.one_of(st.just(b""), st.binary(max_size=40).map(lambda content: batch.of_one(content, None, [], EDGE))),
    receipt=st.binary(max_size=20),
    delivery_count=small,
    lease_until_us=numbers,
)
pull_replies = st.builds(
    PullReply,
    st.lists(pulled_batches, max_size=3),
    next=st.lists(st.builds(Position, small, numbers), max_size=2),
    generation=numbers,
    assigned=st.lists(small, max_size=2),
    channel_id=numbers,
    group_id=numbers,
)


@given(pull_replies)
def test_an_answer_to_a_pull_is_what_protobuf_reads_as_that(reply: PullReply) -> None:
    expected = pb.PullResponse(
        next_offset=reply.next[0].offset if len(reply.next) == 1 else 0,
        next=[pb.Position(partition=each.partition, offset=each.offset) for each in reply.next],
        generation=reply.generation,
        assigned=reply.assigned if reply.generation else [],  # only ordered groups have both
        channel_id=reply.channel_id,
        group_id=reply.group_id,
    )
    reply.assigned = list(expected.assigned)
    for each in reply.batches:
        if not each.receipt:
            each.delivery_count = each.lease_until_us = 0  # nothing is leased
        fields = {slot: getattr(each, slot) for slot in PulledBatch.__slots__}
        expected.batches.add(**{**fields, "batch": pb.Batch.FromString(each.batch)})
    assert pb.PullResponse.FromString(b"".join(response.pull(reply))) == expected
