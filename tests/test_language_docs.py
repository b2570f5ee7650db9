"""docs/languages.md tells writers of clients what is so: each rule, tried with plain generated stubs."""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from mq import errors
from mq.errors import MqError
from mq.limits import Limits
from mq.pb import mq_pb2 as pb
from mq.pb.mq_pb2_grpc import AdminServiceStub, MQServiceStub
from mq.service.edge import Edge
from mq.testing import Running, broker

DEADLINE = 30.0
DAY_US = 24 * 3600 * 1_000_000


@pytest.fixture(scope="module")
def page(root: Path) -> str:
    return (root / "docs" / "languages.md").read_text()


@pytest.fixture(scope="module")
def connection() -> Iterator[grpc.Channel]:
    running: Running
    with broker() as running, grpc.insecure_channel(running.address) as made:
        yield made


@pytest.fixture
def stub(connection: grpc.Channel) -> MQServiceStub:
    return MQServiceStub(connection)


_numbers = itertools.count()


@pytest.fixture
def channel(stub: MQServiceStub) -> str:
    name = f"docs-{next(_numbers)}"
    stub.CreateChannel(pb.CreateChannelRequest(channel=name, partitions=3), timeout=DEADLINE)
    return name


def batch(*contents: bytes) -> pb.Batch:
    return pb.Batch(messages=[pb.BatchMessage(content=content) for content in contents])


def test_the_table_of_errors_is_that_of_the_code(page: str) -> None:
    told = {}
    for names, status, again in re.findall(r"^\| ([A-Z][\w, ]+) \| ([A-Z_]+) \|([^|]*)\|", page, re.MULTILINE):
        for name in names.split(", "):
            told[name] = (status, again.strip().startswith("yes"))
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, MqError)]
    assert told == {kind.__name__: (kind.status, kind.retryable) for kind in kinds if kind is not MqError}


def test_the_limits_are_those_of_the_code(page: str) -> None:
    limits, edge = Limits(), Edge()
    assert f"{edge.batch_messages:,} messages and {edge.request_bytes >> 20} MiB" in page.replace("\n", " ")
    assert f"up to {edge.wait_ms:,}" in page
    assert f"last {limits.producer_window} numbers" in page.replace("\n", " ")
    assert f"{limits.producer_expiry_us // DAY_US} days" in page


def test_a_retry_with_the_same_sequence_is_stored_once(stub: MQServiceStub, channel: str) -> None:
    request = pb.PublishBatchRequest(channel=channel, partition=0, producer_id="p", sequence=0, batch=batch(b"a", b"b"))
    first, second = (stub.PublishBatch(request, timeout=DEADLINE) for _ in range(2))
    assert (first.duplicate, second.duplicate) == (False, True)
    assert first.base_offset == second.base_offset
    pulled = stub.Pull(pb.PullRequest(channel=channel, partition=0), timeout=DEADLINE)
    assert [message.content for each in pulled.batches for message in each.batch.messages] == [b"a", b"b"]


def test_a_key_goes_to_the_partition_of_its_crc(stub: MQServiceStub, channel: str) -> None:
    keys = [b"key %d" % number for number in range(20)]
    messages = [pb.BatchMessage(content=b"x", key=key) for key in keys]
    request = pb.PublishBatchRequest(channel=channel, batch=pb.Batch(messages=messages))
    placements = stub.PublishBatch(request, timeout=DEADLINE).placements
    found = {index: placement.partition for placement in placements for index in placement.indexes}
    assert found == {index: zlib.crc32(key) % 3 for index, key in enumerate(keys)}


def test_positions_follow_from_answer_to_answer(stub: MQServiceStub, channel: str) -> None:
    for number in range(6):
        request = pb.PublishBatchRequest(channel=channel, partition=number % 3, batch=batch(b"%d" % number))
        stub.PublishBatch(request, timeout=DEADLINE)
    seen: list[bytes] = []
    pull = pb.PullRequest(channel=channel, max_messages=1, start=pb.Start(earliest=True))
    while (answer := stub.Pull(pull, timeout=DEADLINE)).batches:
        seen += [message.content for each in answer.batches for message in each.batch.messages]
        pull = pb.PullRequest(channel=channel, max_messages=1, positions=answer.next)
    assert sorted(seen) == [b"%d" % number for number in range(6)]


def test_what_a_member_leaves_is_there_for_the_next_at_once(stub: MQServiceStub, channel: str) -> None:
    stub.PublishBatch(pb.PublishBatchRequest(channel=channel, partition=0, batch=batch(b"x")), timeout=DEADLINE)
    first = stub.Pull(pb.PullRequest(channel=channel, group="g", member="one"), timeout=DEADLINE)
    assert not stub.Pull(pb.PullRequest(channel=channel, group="g", member="two"), timeout=DEADLINE).batches
    stub.Leave(pb.LeaveRequest(channel=channel, group="g", member="one"), timeout=DEADLINE)
    pull = pb.PullRequest(channel=channel, group="g", member="two", max_wait_ms=10_000)
    second = stub.Pull(pull, timeout=DEADLINE)
    contents = [[m.content for each in answer.batches for m in each.batch.messages] for answer in (first, second)]
    assert contents == [[b"x"], [b"x"]]
    receipts = [pb.Receipt(receipt=each.receipt) for each in second.batches]
    ack = pb.AckRequest(channel=channel, group="g", member="two", receipts=receipts)
    for _ in range(2):
        stub.Ack(ack, timeout=DEADLINE)  # an ack may be repeated


def test_an_owner_of_a_partition_commits_with_its_generation(connection: grpc.Channel, channel: str) -> None:
    stub, admin = MQServiceStub(connection), AdminServiceStub(connection)
    ordered = pb.GroupSettings(mode=pb.GroupSettings.ORDERED)
    admin.CreateGroup(pb.CreateGroupRequest(channel=channel, group="g", settings=ordered), timeout=DEADLINE)
    stub.PublishBatch(pb.PublishBatchRequest(channel=channel, partition=1, batch=batch(b"x", b"y")), timeout=DEADLINE)
    pulled = stub.Pull(pb.PullRequest(channel=channel, group="g", member="m", max_wait_ms=10_000), timeout=DEADLINE)
    commit = pb.CommitRequest(channel=channel, group="g", member="m", generation=pulled.generation)
    commit.positions.add(partition=1, offset=2)
    stub.Commit(commit, timeout=DEADLINE)
    assert admin.DescribeGroup(pb.DescribeGroupRequest(channel=channel, group="g"), timeout=DEADLINE).lag == 0


def test_an_error_carries_its_name(stub: MQServiceStub) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.Pull(pb.PullRequest(channel="nosuch"), timeout=DEADLINE)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    assert ("mq-reason", "ChannelNotFound") in [tuple(each) for each in caught.value.trailing_metadata()]
