"""Bytes joined by hand against protobuf's own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mq.client import codec
from mq.client.options import PublishOptions
from mq.client.pulling import MemberPull
from mq.client.sequence import Sequence
from mq.pb import mq_pb2 as pb

contents = st.lists(st.binary(max_size=300), min_size=1, max_size=40)
names = st.text(st.characters(codec="utf-8"), max_size=10)
headers = st.dictionaries(names, st.binary(max_size=20) | names, max_size=3)
messages = st.tuples(st.binary(max_size=200), st.none() | st.binary(max_size=20), headers)


def as_protobuf(content: bytes, key: bytes | None, given_headers: dict[str, str | bytes]) -> pb.BatchMessage:
    made = pb.BatchMessage(content=content, key=key)
    for name, value in given_headers.items():
        made.headers.add(name=name, value=value.encode() if isinstance(value, str) else value)
    return made


@given(st.lists(messages, min_size=1, max_size=20))
def test_messages_are_the_bytes_that_protobuf_writes(given_messages: list) -> None:
    joined = b"".join(codec.message(content, key, codec.headers_of(each)) for content, key, each in given_messages)
    expected = pb.Batch(messages=[as_protobuf(*each) for each in given_messages])
    assert joined == expected.SerializeToString()


@given(contents)
def test_joined_contents_are_the_bytes_that_protobuf_writes(given_contents: list[bytes]) -> None:
    expected = pb.Batch(messages=[pb.BatchMessage(content=content) for content in given_contents])
    assert codec.join(given_contents) == expected.SerializeToString()


@pytest.mark.parametrize("length", [0, 1, 123, 124, 125, 126, 127, 128, 129, 16_379, 16_384, 70_000])
@pytest.mark.parametrize("count", [1, 3])
def test_heads_are_right_where_lengths_grow_by_a_byte(length: int, count: int) -> None:
    given_contents = [b"c" * length] * count
    expected = pb.Batch(messages=[pb.BatchMessage(content=content) for content in given_contents]).SerializeToString()
    assert codec.join(given_contents) == expected
    assert codec.split(expected, count) == (given_contents if length else None)


@given(st.lists(messages, min_size=1, max_size=5), st.booleans())
def test_a_split_gives_what_a_parse_gives_or_nothing(given_messages: list, is_repeated: bool) -> None:
    if is_repeated:
        given_messages = given_messages[:1] * 7
    batch = pb.Batch(messages=[as_protobuf(*each) for each in given_messages])
    found = codec.split(batch.SerializeToString(), len(given_messages))
    assert found is None or found == [each.content for each in batch.messages]
    is_plain = all(content and key is None and not each for content, key, each in given_messages)
    if is_plain and len({len(content) for content, _, _ in given_messages}) == 1:
        assert found is not None


@given(st.binary(max_size=60), st.integers(0, 6))
def test_a_split_of_any_bytes_never_invents_messages(data: bytes, count: int) -> None:
    found = codec.split(data, count)
    if found is not None:
        assert found == [message.content for message in pb.Batch.FromString(data).messages]


@given(contents)
def test_a_request_is_the_bytes_that_protobuf_writes(given_contents: list[bytes]) -> None:
    head = pb.PublishBatchRequest(channel="orders", producer_id="p", sequence=7)
    expected = pb.PublishBatchRequest(channel="orders", producer_id="p", sequence=7)
    for content in given_contents:
        expected.batch.messages.add(content=content)
    pieces = [codec.message(content) for content in given_contents]
    assert codec.publish_request(head.SerializeToString(), pieces) == expected.SerializeToString()


@given(st.integers(0, 1 << 40), st.none() | st.integers(0, 1000), st.sampled_from([None, "os", "fsync"]))
def test_a_request_head_made_once_says_the_same(number: int, partition: int | None, durability: str | None) -> None:
    sequence = Sequence()
    options = PublishOptions(partition, durability, ttl_ms=5)
    for each in (number, number + 1):
        made = pb.PublishBatchRequest.FromString(sequence.head("c", options, each))
        assert made == pb.PublishBatchRequest.FromString(options.request("c", sequence.producer_id, each))
        assert (made.sequence, made.HasField("partition")) == (each, partition is not None)


@given(st.integers(0, 1 << 50), st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3), st.booleans()), max_size=8))
def test_pulls_that_share_a_head_say_what_they_ask_for(turn: int, pulls: list[tuple[int, int, bool]]) -> None:
    pull = MemberPull("c", "g", "m", pb.Start(earliest=True), turn)
    ids = 0, 0
    for number, (count, id_, is_lost) in enumerate(pulls, 1):
        if is_lost:
            pull.lost(pull.turn)
        expected = pb.PullRequest(channel="c", group="g", member="m", max_messages=count, max_wait_ms=2_500)
        expected.start.earliest = True
        expected.channel_id, expected.group_id = ids
        if turn:
            expected.turn, expected.since, expected.afresh = turn + number, turn + 1, is_lost
        assert pb.PullRequest.FromString(pull.request(count, 2.5)) == expected
        ids = id_, id_ + 1
        pull.answer(pb.PullResponse(channel_id=ids[0], group_id=ids[1]).SerializeToString(), pull.turn, None)


@pytest.mark.parametrize("value", [1, None, 2.5])
def test_a_header_of_another_type_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="header 'a'"):
        codec.headers_of({"a": value})  # type: ignore[dict-item]
