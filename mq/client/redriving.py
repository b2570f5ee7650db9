"""A dead-letter channel sent back from its start to its end, slice by slice and no faster than asked. Pure.

The caller sets the pace, not the broker: each request is answered when its slice is durable, and when the caller is
gone nothing goes on. What dies again meanwhile stays for the next time, else this might never end.
"""

from __future__ import annotations

from mq.pb import mq_pb2 as pb

SUFFIX = ".dlq"
SLICE = 500  # messages of one request
SLICES_A_SECOND = 10  # where there is a rate: small enough slices to keep to it


class Redriving:
    def __init__(
        self, channel: str, to: str, reason: str, min_age_ms: int, max_age_ms: int, rate: float, begin: float
    ) -> None:
        """`rate`: messages a second, 0 for no limit. `begin`: the time when it begins, in seconds."""
        self._asked = pb.RedriveRequest(
            channel=channel + SUFFIX, to=to, reason=reason, min_age_ms=min_age_ms, max_age_ms=max_age_ms
        )
        self._rate = rate
        self._begin = begin
        self._end = 0
        self.told = pb.RedriveResponse()

    def find_end(self, info: pb.ChannelInfo) -> None:
        """The dead-letter channel as it is now: what comes later is not for this time."""
        self._end = info.partitions[0].next_offset
        self.told.done = self._end == 0

    def request(self) -> bytes:
        """The next slice to ask for."""
        self._asked.start_offset = self.told.next_offset
        most = round(self._rate / SLICES_A_SECOND) if self._rate else SLICE
        self._asked.max_messages = max(1, min(self._end - self.told.next_offset, most))
        return self._asked.SerializeToString()

    def take(self, answer: bytes, now: float) -> float:
        """Count a slice in; returns the seconds to wait before the next one."""
        found, told = pb.RedriveResponse.FromString(answer), self.told
        told.moved += found.moved
        told.left += found.left
        told.next_offset = found.next_offset
        told.done = found.done or found.next_offset >= self._end
        return max(0.0, self._begin + told.moved / self._rate - now) if self._rate and not told.done else 0.0
