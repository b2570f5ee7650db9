"""How long messages waited to be acked, from parts of the log that different workers read. Pure: no I/O, no pyspark.

An ack may stand many segments after what it acks. So each segment yields two small things: steps (start, end, time)
that tell when each offset was published, and the same for each group's acks. Both are cut at fixed offsets, so that the
two halves of one stretch of a partition meet wherever they come from, and nobody ever holds more than a stretch.
`latencies` puts them together into a histogram; histograms of all stretches add up.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

STRETCH_BITS = 18  # offsets of a stretch: 6 MB of steps where every message was published alone
_MOST_OFFSETS = 1 << 34  # a range beyond this is no ack of ours, and would be cut for ever
_ACKS_AT_ONCE = 1 << 16
_FINE_BITS = 5  # a bucket is 1/32 of a power of two wide, so a percentile is right within 2 %

K = TypeVar("K", bound=Hashable)


class Steps(Generic[K]):
    """Collects ranges of offsets that share a time, by key and stretch."""

    def __init__(self) -> None:
        self._stretches: dict[tuple[K, int], array[int]] = {}
        self.ranges = 0

    def add(self, key: K, start: int, end: int, time_us: int) -> None:
        stretch = start >> STRETCH_BITS
        if (end - 1) >> STRETCH_BITS == stretch:
            self._add(key, stretch, start, end, time_us)
            return
        if end - start > _MOST_OFFSETS:
            return
        while start < end:
            cut = min(end, (start >> STRETCH_BITS) + 1 << STRETCH_BITS)
            self._add(key, start >> STRETCH_BITS, start, cut, time_us)
            start = cut

    def _add(self, key: K, stretch: int, start: int, end: int, time_us: int) -> None:
        steps = self._stretches.get((key, stretch))
        if steps is None:
            steps = self._stretches[key, stretch] = array("q")
        elif steps[-2] == start and steps[-1] == time_us:
            steps[-2] = end
            return
        steps.extend((start, end, time_us))
        self.ranges += 1

    def take(self) -> Iterator[tuple[K, int, bytes]]:
        """Key, stretch and packed steps of everything collected, which is then forgotten."""
        for (key, stretch), steps in self._stretches.items():
            yield key, stretch, pack(np.array(steps, np.int64).reshape(-1, 3))
        self._stretches.clear()
        self.ranges = 0


def pack(steps: NDArray[np.int64]) -> bytes:
    """Differences compress well: most steps go on where the last one ended, a moment later."""
    columns = np.stack([steps[:, 0], steps[:, 1] - steps[:, 0], steps[:, 2]])
    columns[0, 1:] -= steps[:-1, 1]
    columns[2, 1:] -= steps[:-1, 2]
    return len(steps).to_bytes(4, "little") + bytes(pa.compress(columns.tobytes(), "zstd", asbytes=True))


def unpack(packed: bytes) -> NDArray[np.int64]:
    count = int.from_bytes(packed[:4], "little")
    data = pa.decompress(packed[4:], 24 * count, "zstd", asbytes=True)
    jumps, lengths, times = np.frombuffer(data, np.int64).reshape(3, -1)
    ends = np.cumsum(jumps + lengths)
    return np.stack([ends - lengths, ends, np.cumsum(times)], axis=1)


def latencies(published: Iterable[bytes], acked: Iterable[bytes]) -> dict[int, int]:
    """A histogram (bucket -> messages) of the time from publish to ack, over one stretch of a partition."""
    steps = [unpack(each) for each in published]
    acks = [unpack(each) for each in acked]
    if not steps or not acks:
        return {}
    known = np.concatenate(steps)
    known = known[np.argsort(known[:, 0], kind="stable")]
    starts, ends = known[:, 0], np.maximum.accumulate(known[:, 1])
    counts = np.zeros(0, np.int64)
    everything = np.concatenate(acks)
    for at in range(0, len(everything), _ACKS_AT_ONCE):
        some = everything[at : at + _ACKS_AT_ONCE]
        low = np.searchsorted(ends, some[:, 0], side="right")
        high = np.maximum(np.searchsorted(starts, some[:, 1], side="left"), low)
        spans = high - low
        ack = np.repeat(np.arange(len(some)), spans)
        step = np.arange(spans.sum()) - np.repeat(np.cumsum(spans) - spans, spans) + np.repeat(low, spans)
        messages = np.minimum(some[ack, 1], known[step, 1]) - np.maximum(some[ack, 0], starts[step])
        is_there = messages > 0
        buckets = buckets_of(some[ack, 2] - known[step, 2])[is_there]
        more = np.bincount(buckets, weights=messages[is_there]).astype(np.int64)
        size = max(len(counts), len(more))
        counts = np.pad(counts, (0, size - len(counts))) + np.pad(more, (0, size - len(more)))
    return {int(bucket): int(counts[bucket]) for bucket in np.flatnonzero(counts)}


def group_latencies(steps: Iterable[tuple[int | None, bytes]]) -> list[tuple[int, int, int]]:
    """The same for all groups of a channel: group, bucket, messages. Steps without a group are the publishes."""
    published: list[bytes] = []
    acked: dict[int, list[bytes]] = {}
    for group_id, packed in steps:
        (published if group_id is None else acked.setdefault(group_id, [])).append(packed)
    return [
        (group_id, bucket, messages)
        for group_id, acks in acked.items()
        for bucket, messages in latencies(published, acks).items()
    ]


def buckets_of(microseconds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers of the buckets: one for each microsecond first, then as many for every further power of two."""
    value = np.maximum(microseconds, 0)
    _, exponent = np.frexp(value.astype(np.float64))
    shift = np.maximum(exponent.astype(np.int64) - _FINE_BITS - 1, 0)
    return (shift << _FINE_BITS) + (value >> shift)


def middle_of(bucket: int) -> float:
    """The microseconds that a bucket stands for."""
    shift = max((bucket >> _FINE_BITS) - 1, 0)
    start = (bucket - (shift << _FINE_BITS)) << shift
    return start + ((1 << shift) - 1) / 2


def percentile(histogram: Mapping[int, int], share: float) -> float:
    """The microseconds that so great a share of all messages (0 to 1) took at most."""
    wanted = share * sum(histogram.values())
    passed = 0
    for bucket in sorted(histogram):
        passed += histogram[bucket]
        if passed >= wanted:
            return middle_of(bucket)
    return 0.0
