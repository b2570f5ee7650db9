"""The API's table and the raw forms of its messages, compared with the public definition."""

import pytest

from mq.pb import mq_pb2 as pb
from mq.pb import raw_pb2 as raw
from mq.service import METHODS, Kind

BYTES, STRING, MESSAGE = 12, 9, 11  # of FieldDescriptor.type


def test_every_method_of_the_definition_is_served_and_no_other() -> None:
    declared = {
        f"{service.full_name}/{method.name}"
        for service in pb.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert METHODS.keys() == declared


def test_every_method_streams_as_it_is_declared() -> None:
    for service in pb.DESCRIPTOR.services_by_name.values():
        for method in service.methods:
            kind = METHODS[f"{service.full_name}/{method.name}"].kind
            assert method.client_streaming == (kind is Kind.PUBLISH_STREAM)
            assert method.server_streaming == (kind in (Kind.PUBLISH_STREAM, Kind.SUBSCRIBE))


@pytest.mark.parametrize("name", [name for name in raw.DESCRIPTOR.message_types_by_name if name != "MergedBatch"])
def test_a_raw_message_has_the_field_numbers_of_the_public_one(name: str) -> None:
    ours = raw.DESCRIPTOR.message_types_by_name[name].fields_by_name
    public = pb.DESCRIPTOR.message_types_by_name[name].fields_by_name
    assert ours.keys() == public.keys()
    for field, theirs in public.items():
        mine = ours[field]
        assert mine.number == theirs.number, field
        assert mine.is_repeated == theirs.is_repeated, field
        assert mine.has_presence or not theirs.has_presence or theirs.type == MESSAGE, field
        if mine.type != theirs.type:
            assert (mine.type, theirs.type) == (BYTES, MESSAGE), field


def test_merging_a_batch_counts_all_its_headers() -> None:
    headers = [pb.Header(name="a", value=b"1"), pb.Header(name="b")]
    batch = pb.Batch(messages=[pb.BatchMessage(content=b"x", headers=headers)] * 3)
    assert len(raw.MergedBatch.FromString(batch.SerializeToString()).messages.headers) == 6


def test_the_first_brokers_messages_keep_their_numbers() -> None:
    numbers = {
        "CreateChannelRequest": {"channel": 1},
        "PublishRequest": {"channel": 1, "content": 2},
        "SubscribeRequest": {"channel": 1, "offset": 2, "pull_interval": 3},
        "Message": {"id": 1, "content": 2, "created_at": 3},
    }
    for name, fields in numbers.items():
        declared = pb.DESCRIPTOR.message_types_by_name[name].fields_by_name
        assert {field: declared[field].number for field in fields} == fields
    offsets = pb.SubscribeRequest.Offset.items()
    assert dict(offsets) == {"OFFSET_UNKNOWN": 0, "OFFSET_BEGINNING": 1, "OFFSET_LATEST": 2}
