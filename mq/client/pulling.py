"""Pulls: requests out, deliveries in. Pure: bytes and values, no connection here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mq.client.codec import varint
from mq.client.message import Delivery
from mq.client.position import Start, start_of
from mq.client.value import Codec
from mq.errors import MqError, ResourceExhausted
from mq.pb import mq_pb2 as pb
from mq.pb import raw_pb2 as raw

PULL = "mq.MQService/Pull"
LEAVE = "mq.MQService/Leave"
LONGEST_WAIT_SECONDS = 30.0
_TURN = b"\x60"  # PullRequest.turn = 12
_AFRESH = b"\x68\x01"  # PullRequest.afresh = 13
OnPartitions = Callable[[frozenset[int]], None]


class Pulled(NamedTuple):
    """An answer to a pull."""

    deliveries: list[Delivery]
    next: list[tuple[int, int]]  # partition and offset to go on at; without a group
    assigned: frozenset[int]
    channel_id: int
    group_id: int
    size: int  # bytes

    @classmethod
    def nothing(cls, assigned: frozenset[int]) -> Pulled:
        """In the place of an answer that does not count any more."""
        return cls([], [], assigned, 0, 0, 0)

    @property
    def messages(self) -> int:
        count = 0
        for delivery in self.deliveries:
            count += delivery.count
        return count


class MemberPull:
    """A member's pulls: all alike, but for how many, how long and, where order counts, their turn.

    They are of the channel and the group that the first answer came from: what is made anew under a name is another.

    A pull whose answer never came may still be on its way, or may have got messages that this member holds without
    knowing. Where order counts they must come before what follows: so a pull that begins afresh gives back all that
    the member holds, and fences what was sent before it.
    """

    def __init__(self, channel: str, group: str, member: str, start: pb.Start, turn: int = 0) -> None:
        """`turn`: the time in microseconds, where order counts; else 0, and pulls have none."""
        self.channel = channel
        self.group = group
        self.member = member
        self.turn = turn  # of the last pull
        self._since = turn + 1 if turn else 0
        self._is_astray = False  # a pull got no answer, nor one that began afresh after it
        self._afresh = 0  # the turn that began afresh last
        self._start = start
        self._channel_id = self._group_id = 0
        self._last: tuple[tuple[int, ...], bytes] = (), b""  # what the last pull asked for, and how

    @property
    def begins_afresh(self) -> bool:
        """Whether the next pull does, and what is held until then is to be forgotten."""
        return self._since > 0 and self._is_astray

    def request(self, max_messages: int, wait_seconds: float, max_bytes: int = 0) -> bytes:
        """The next pull."""
        afresh = self.begins_afresh
        if self._since:
            self.turn += 1
        if afresh:
            self._afresh = self.turn
        asked = (max_messages, round(wait_seconds * 1_000), max_bytes, self._channel_id, self._group_id)
        before, request = self._last
        if before != asked:
            request = self._request(*asked)
            self._last = asked, request
        if self._since:
            request += _TURN + varint(self.turn)
        return request + _AFRESH if afresh else request

    def _request(self, max_messages: int, wait_ms: int, max_bytes: int, channel_id: int, group_id: int) -> bytes:
        """What is the same in all pulls that ask for this."""
        return pb.PullRequest(
            channel=self.channel,
            group=self.group,
            member=self.member,
            max_messages=max_messages,
            max_bytes=max_bytes,
            max_wait_ms=wait_ms,
            start=self._start,
            channel_id=channel_id,
            group_id=group_id,
            since=self._since,
        ).SerializeToString()

    def leave(self) -> bytes:
        return pb.LeaveRequest(
            channel=self.channel, group=self.group, member=self.member, turn=self.turn
        ).SerializeToString()

    def is_void(self, turn: int) -> bool:
        """Whether what a pull brought was given back by one that began afresh after it."""
        return turn < self._afresh

    def lost(self, turn: int) -> None:
        """A pull got no answer."""
        if not self.is_void(turn):
            self._is_astray = True

    def failed(self, turn: int, error: BaseException) -> None:
        """A pull came to nothing. What the broker answered is an end, and nothing was given out by it."""
        is_answer = isinstance(error, ResourceExhausted) or (
            isinstance(error, MqError) and not error.retryable and type(error) is not MqError
        )  # an MqError and no more: the transport did not understand, so it may be anything
        if not is_answer:
            self.lost(turn)

    def answer(self, data: bytes, turn: int, codec: Codec | None) -> Pulled:
        answer = read_answer(data, self.channel, self.group, codec)
        if not self.is_void(turn):
            self._is_astray = False
        self._channel_id, self._group_id = answer.channel_id, answer.group_id
        return answer


class Membership(NamedTuple):
    """Who a consumer is, and how it pulls."""

    pull: MemberPull
    batch_size: int
    interval: float
    codec: Codec | None
    on_assigned: OnPartitions | None
    on_revoked: OnPartitions | None

    def tell(self, before: frozenset[int], assigned: frozenset[int]) -> None:
        """Other partitions are assigned. Both callbacks are called, though the first raises."""
        try:
            if self.on_revoked and before - assigned:
                self.on_revoked(before - assigned)
        finally:
            if self.on_assigned and assigned - before:
                self.on_assigned(assigned - before)


class Cursor:
    """A reader's place in a channel, without a group."""

    def __init__(self, channel: str, start: Start, partition: int | None, codec: Codec | None) -> None:
        self.channel = channel
        self.positions: list[tuple[int, int]] = []  # empty: the start was not looked up yet
        self._start = start_of(start)
        self._partition = partition
        self._codec = codec
        self._channel_id = 0  # of the first answer

    def request(self, max_messages: int, wait_seconds: float, max_bytes: int = 0) -> bytes:
        asked = pb.PullRequest(
            channel=self.channel, max_messages=max_messages, max_bytes=max_bytes, channel_id=self._channel_id
        )
        if self._partition is not None:
            asked.partition = self._partition
        if self.positions:
            asked.max_wait_ms = round(wait_seconds * 1_000)
            asked.positions.extend(pb.Position(partition=number, offset=offset) for number, offset in self.positions)
        else:
            asked.start.CopyFrom(self._start)  # without a wait: where "latest" is, is to be known at once
        return asked.SerializeToString()

    def advance(self, data: bytes) -> Pulled:
        answer = read_answer(data, self.channel, "", self._codec)
        self.positions = answer.next
        self._channel_id = answer.channel_id
        return answer


def read_answer(data: bytes, channel: str, group: str, codec: Codec | None) -> Pulled:
    """The deliveries in a PullResponse; no message of them is looked at."""
    answer = raw.PullResponse.FromString(data)
    # Slices of what protobuf repeats are lists, which are gone through faster.
    return Pulled(
        [Delivery(raw.PulledBatch.FromString(each), channel, group, codec) for each in answer.batches[:]],
        [] if group else [(position.partition, position.offset) for position in answer.next],
        frozenset(answer.assigned[:]),
        answer.channel_id,
        answer.group_id,
        len(data),
    )


def cut(deliveries: Sequence[Delivery], count: int) -> int:
    """How many of these deliveries hold at most so many messages; at least one."""
    total = 0
    for number, delivery in enumerate(deliveries):
        total += delivery.count
        if total > count:
            return max(1, number)
    return len(deliveries)
