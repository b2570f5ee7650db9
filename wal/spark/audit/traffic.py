"""What one segment tells of publishing: sizes, rates over time, producers, times of offsets. Pure, no pyspark."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

from wal.continuity import Key
from wal.record import Published, Scheduled
from wal.spark.audit.steps import Steps

WIDTHS_US = [seconds * 1_000_000 for seconds in (60, 600, 3_600, 21_600, 86_400, 604_800)]
_MOST_BUCKETS = 4_096  # of time, for all partitions of a segment; more, and they become wider
_MOST_PRODUCERS = 20_000  # held at a time
_MOST_RANGES = 400_000


class _Merging(Protocol):
    def merge(self, later: Any) -> None: ...


V = TypeVar("V", bound=_Merging)


class Buckets(Generic[V]):
    """Values by key and time, in buckets that widen where there would be too many."""

    def __init__(self) -> None:
        self.width_us = WIDTHS_US[0]
        self.values: dict[tuple[Any, int], V] = {}

    def start_of(self, time_us: int) -> int:
        return time_us - time_us % self.width_us

    def put(self, key: Any, time_us: int, value: V) -> V:
        """A value for a bucket that has none."""
        self.values[key, self.start_of(time_us)] = value
        while len(self.values) > _MOST_BUCKETS and self.width_us < WIDTHS_US[-1]:
            self.width_us = WIDTHS_US[WIDTHS_US.index(self.width_us) + 1]
            narrow, self.values = self.values, {}
            for (each, start), held in narrow.items():
                known = self.values.get((each, self.start_of(start)))
                if known is None:
                    self.values[each, self.start_of(start)] = held
                else:
                    known.merge(held)
        return value


class _Rate:
    __slots__ = ("bytes", "end_offset", "messages")

    def __init__(self, messages: int, size: int, end_offset: int) -> None:
        self.messages = messages
        self.bytes = size
        self.end_offset = end_offset

    def merge(self, later: _Rate) -> None:
        self.messages += later.messages
        self.bytes += later.bytes
        self.end_offset = max(self.end_offset, later.end_offset)


class _Partition:
    __slots__ = (
        "batches", "bytes", "end_offset", "first_offset", "frames", "max_batch", "max_us", "messages", "min_us",
    )  # fmt: skip

    def __init__(self, first_offset: int, time_us: int) -> None:
        self.frames = self.messages = self.bytes = self.max_batch = 0
        self.first_offset = self.end_offset = first_offset
        self.min_us = self.max_us = time_us
        self.batches = [0] * 33  # by the number of bits of their count


class Traffic:
    """Everything that was published in a segment."""

    def __init__(self) -> None:
        self.messages = 0
        self._partitions: dict[Key, _Partition] = {}
        self._rates: Buckets[_Rate] = Buckets()
        self._producers: dict[tuple[int, str], list[list[int]]] = {}  # ranges of sequences
        self.times: Steps[Key] = Steps()  # when offsets were published

    def published(self, key: Key, record: Published, end: int, size: int) -> None:
        """A publish of so many bytes whose last offset is the one before `end`."""
        base, count, time_us = record.base_offset, record.count, record.max_timestamp_us
        self.messages += count
        known = self._partitions.get(key)
        if known is None:
            known = self._partitions[key] = _Partition(base, record.min_timestamp_us or time_us)
        known.frames += 1
        known.messages += count
        known.bytes += size
        known.batches[count.bit_length()] += 1
        if end > known.end_offset:
            known.end_offset = end
        if count > known.max_batch:
            known.max_batch = count
        if time_us > known.max_us:
            known.max_us = time_us
        rate = self._rates.values.get((key, self._rates.start_of(time_us)))
        if rate is None:
            self._rates.put(key, time_us, _Rate(count, size, end))
        else:
            rate.messages += count
            rate.bytes += size
            if end > rate.end_offset:
                rate.end_offset = end
        parts = record.parts
        if not parts:
            self.times.add(key, base, end, time_us)
        for part in parts:
            start = part.base_offset
            self.times.add(key, start, start + part.count, part.timestamp_us)
            producer = part.producer
            if producer:
                self.produced(key[0], producer, part.sequence)

    def scheduled(self, record: Scheduled) -> None:
        if record.producer:
            self.produced(record.channel_id, record.producer, record.sequence)

    def produced(self, channel_id: int, producer: str, sequence: int) -> None:
        ranges = self._producers.get((channel_id, producer))
        if ranges is None:
            self._producers[channel_id, producer] = [[sequence, sequence]]
        elif ranges[-1][1] + 1 == sequence:
            ranges[-1][1] = sequence
        elif ranges[-1][1] != sequence:  # a batch that was split over partitions has one sequence
            ranges.append([sequence, sequence])

    def is_large(self) -> bool:
        return len(self._producers) > _MOST_PRODUCERS or self.times.ranges > _MOST_RANGES

    def take_large(self) -> dict[str, list[Any]]:
        """What grows with the messages; forgotten here, and adds up elsewhere."""
        producers = [
            (channel_id, producer, first, last)
            for (channel_id, producer), ranges in self._producers.items()
            for first, last in ranges
        ]
        self._producers.clear()
        return {"producers": producers}

    def take(self) -> dict[str, list[Any]]:
        width = self._rates.width_us
        return {
            **self.take_large(),
            "partitions": [(*key, *_fields(value)) for key, value in self._partitions.items()],
            "batches": [
                (channel_id, bits, frames)
                for (channel_id, _), value in self._partitions.items()
                for bits, frames in enumerate(value.batches)
                if frames
            ],
            "rates": [
                (*key, start, width, rate.messages, rate.bytes, rate.end_offset)
                for (key, start), rate in self._rates.values.items()
            ],
        }


def _fields(value: _Partition) -> tuple[int, ...]:
    return (
        value.frames, value.messages, value.bytes, value.first_offset, value.end_offset, value.max_batch,
        value.min_us, value.max_us,
    )  # fmt: skip
