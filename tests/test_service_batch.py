"""Published batches at the edge: counted and checked without an object for each message."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from mq.errors import InvalidArgument, MessageTooLarge
from mq.pb import mq_pb2 as pb
from mq.pb import raw_pb2 as raw
from mq.service.batch import check, of_one, split, varint
from mq.service.edge import Edge

EDGE = Edge()
# The same rules with every size small, so that each path is taken by small examples too.
TINY = Edge(request_bytes=(64 << 10) + 200, shallow_bytes=0, batch_messages=5, headers=4)

messages = st.builds(
    pb.BatchMessage,
    content=st.binary(max_size=60),
    key=st.none() | st.binary(max_size=10),
    headers=st.lists(st.builds(pb.Header, name=st.text(max_size=5), value=st.binary(max_size=5)), max_size=3),
)
batches = st.builds(pb.Batch, messages=st.lists(messages, max_size=7))


def hostile(tag: bytes, size: int) -> bytes:
    return (tag + b"\x00") * (size // 2)


@given(batches)
def test_a_batch_counts_its_messages_on_both_paths(batch: pb.Batch) -> None:
    data = batch.SerializeToString()
    deep = Edge(shallow_bytes=0)
    if batch.messages:
        assert check(data, EDGE) == check(data, deep) == len(batch.messages)
    else:
        for edge in (EDGE, deep):
            with pytest.raises(InvalidArgument):
                check(data, edge)


@given(st.binary(max_size=200))
def test_random_bytes_are_counted_or_refused_and_both_paths_agree(data: bytes) -> None:
    results = []
    for edge in (EDGE, Edge(shallow_bytes=0)):
        try:
            results.append(check(data, edge))
        except InvalidArgument:
            results.append(-1)
    assert results[0] == results[1]
    if results[0] > 0:
        assert len(pb.Batch.FromString(data).messages) == results[0]


requests = st.builds(
    raw.PublishBatchRequest,
    channel=st.text(max_size=200),
    partition=st.none() | st.integers(0, 2**32 - 1),
    producer_id=st.text(max_size=5),
    sequence=st.integers(0, 2**64 - 1),
    deliver_at_us=st.integers(-(2**63), 2**63 - 1),
    batch=st.binary(max_size=300),
)


@given(requests)
def test_a_request_is_split_into_what_parsing_it_would_give(request: raw.PublishBatchRequest) -> None:
    parts = split(request.SerializeToString())
    if parts is None:
        assert not request.batch
    else:
        head = raw.PublishBatchRequest.FromString(parts[0])
        assert not head.batch
        head.batch = parts[1]
        assert head == request


@given(st.binary(max_size=60) | requests.map(lambda request: request.SerializeToString()), st.binary(max_size=5))
def test_splitting_odd_bytes_gives_nothing_or_what_parsing_them_gives(data: bytes, more: bytes) -> None:
    parts = split(data + more)
    if parts is not None:
        try:
            head = raw.PublishBatchRequest.FromString(parts[0])
        except DecodeError:
            return
        whole = raw.PublishBatchRequest.FromString(data + more)
        head.batch = parts[1]
        assert head == whole


@pytest.mark.parametrize("size", [2_000, 2_000_000])
def test_too_many_messages_are_refused_before_they_are_parsed(size: int) -> None:
    data = hostile(b"\x0a", size * 2)
    if size <= EDGE.batch_messages:
        assert check(data, EDGE) == size
    else:
        with pytest.raises(InvalidArgument, match="from 1 to 10000 messages; this one has 2000000"):
            check(data, EDGE)


def test_too_many_headers_are_refused_before_they_are_parsed() -> None:
    headers = hostile(b"\x1a", 2_000_000)
    data = b"\x0a" + varint(len(headers)) + headers
    with pytest.raises(InvalidArgument, match="at most 100000 headers; this one has 1000000"):
        check(data * 1, EDGE)


@given(batches)
def test_small_limits_hold_in_the_same_way(batch: pb.Batch) -> None:
    data = batch.SerializeToString()
    headers = sum(len(message.headers) for message in batch.messages)
    try:
        count = check(data, TINY)
    except MessageTooLarge:
        assert max(message.ByteSize() for message in batch.messages) > 200
    except InvalidArgument:
        assert len(batch.messages) not in range(1, 6) or headers > 4
    else:
        assert count == len(batch.messages)
        assert headers <= 4


def test_a_header_that_is_not_well_formed_is_refused_on_both_paths() -> None:
    message = raw.BatchMessage(content=b"x", headers=[b"\x0a\x05abc"]).SerializeToString()
    data = raw.Batch(messages=[message]).SerializeToString()
    for edge in (EDGE, Edge(shallow_bytes=0)):
        with pytest.raises(InvalidArgument, match="not well-formed"):
            check(data, edge)


def test_a_message_larger_than_a_record_may_hold_is_refused() -> None:
    data = pb.Batch(messages=[pb.BatchMessage(content=b"x" * EDGE.message_bytes)]).SerializeToString()
    with pytest.raises(MessageTooLarge):
        check(data, EDGE)
    with pytest.raises(MessageTooLarge):
        of_one(b"x" * EDGE.message_bytes, None, [], EDGE)


@given(messages)
def test_a_single_message_becomes_the_batch_that_protobuf_would_write(message: pb.BatchMessage) -> None:
    key = message.key if message.HasField("key") else None
    single = of_one(message.content, key, [header.SerializeToString() for header in message.headers], EDGE)
    assert pb.Batch.FromString(single) == pb.Batch(messages=[message])


@given(st.integers(0, 1 << 70))
def test_a_varint_reads_back(value: int) -> None:
    read = sum((byte & 0x7F) << 7 * index for index, byte in enumerate(varint(value)))
    assert read == value
