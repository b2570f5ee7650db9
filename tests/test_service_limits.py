"""What the broker may be filled with: channels, groups, members, partitions. Beyond that it refuses in words."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

import mq.server
from mq.limits import Limits
from mq.pb import mq_pb2 as pb
from mq.pb import mq_pb2_grpc
from mq.testing import broker

DEADLINE = 20.0


@pytest.fixture
def stubs(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, Any]]:
    small = Limits(is_memory=True, channels=3, groups=2, members=2, partitions=4, unsynced_bytes=1 << 20)
    monkeypatch.setattr(mq.server, "limits", lambda config: small)
    with broker() as running, grpc.insecure_channel(running.address) as channel:
        yield mq_pb2_grpc.MQServiceStub(channel), mq_pb2_grpc.AdminServiceStub(channel)


def refused(call: Any, request: Any) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(request, timeout=DEADLINE)
    return caught.value.code().name, dict(caught.value.trailing_metadata())["mq-reason"]


def test_channels_have_a_limit(stubs: tuple[Any, Any]) -> None:
    stub, admin = stubs
    for number in range(3):
        stub.CreateChannel(pb.CreateChannelRequest(channel=f"c{number}"), timeout=DEADLINE)
    assert refused(stub.CreateChannel, pb.CreateChannelRequest(channel="c3"))[0] == "RESOURCE_EXHAUSTED"
    stub.CreateChannel(pb.CreateChannelRequest(channel="c2"), timeout=DEADLINE)
    admin.DeleteChannel(pb.DeleteChannelRequest(channel="c0"), timeout=DEADLINE)
    stub.CreateChannel(pb.CreateChannelRequest(channel="c3"), timeout=DEADLINE)


def test_groups_and_members_have_a_limit(stubs: tuple[Any, Any]) -> None:
    stub, admin = stubs
    stub.CreateChannel(pb.CreateChannelRequest(channel="c"), timeout=DEADLINE)
    for number in range(2):
        admin.CreateGroup(pb.CreateGroupRequest(channel="c", group=f"g{number}"), timeout=DEADLINE)
    request = pb.CreateGroupRequest(channel="c", group="g2")
    assert refused(admin.CreateGroup, request) == ("RESOURCE_EXHAUSTED", "ResourceExhausted")
    assert refused(stub.Pull, pb.PullRequest(channel="c", group="g3", member="m"))[0] == "RESOURCE_EXHAUSTED"
    for number in range(2):
        stub.Pull(pb.PullRequest(channel="c", group="g0", member=f"m{number}"), timeout=DEADLINE)
    assert refused(stub.Pull, pb.PullRequest(channel="c", group="g0", member="m2"))[0] == "RESOURCE_EXHAUSTED"
    stub.Leave(pb.LeaveRequest(channel="c", group="g0", member="m0"), timeout=DEADLINE)
    stub.Pull(pb.PullRequest(channel="c", group="g0", member="m2"), timeout=DEADLINE)


def test_partitions_have_a_limit(stubs: tuple[Any, Any]) -> None:
    stub, admin = stubs
    assert refused(stub.CreateChannel, pb.CreateChannelRequest(channel="c", partitions=5))[0] == "INVALID_ARGUMENT"
    stub.CreateChannel(pb.CreateChannelRequest(channel="c", partitions=4), timeout=DEADLINE)
    assert refused(admin.UpdateChannel, pb.UpdateChannelRequest(channel="c", partitions=5))[0] == "INVALID_ARGUMENT"
