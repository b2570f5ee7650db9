"""What of a record stays, and the last of each key, beside plain protobuf; no JVM."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wal.frame import Frame
from wal.pb.wal_pb2 import Batch, BatchMessage, Header
from wal.record import PUBLISHED, Published
from wal.spark.compact.latest import LastKeys, joined, latest_of
from wal.spark.compact.selection import Selection, offsets_of, shortened
from wal.spark.read.decode import keyed

KEY = (1, 0)
messages = st.lists(
    st.builds(
        BatchMessage,
        content=st.sampled_from([b"", b"x", b"y" * 200]),
        key=st.none() | st.sampled_from([b"", b"a", b"b", b"\x12\x01c"]),
        headers=st.lists(st.builds(Header, name=st.just("h"), value=st.binary(max_size=3)), max_size=2),
    ),
    min_size=1,
    max_size=70,
)


class AllPassed:
    """Rules of a log that needs every publish, and whose groups are past everything."""

    latest = [KEY]  # noqa: RUF012

    def start_of(self, channel_id: int, partition: int) -> int:
        return 0

    def needs(self, record: object) -> bool:
        return True

    def passed(self, channel_id: int, partition: int) -> int:
        return 1 << 62

    def tombstones_before(self, channel_id: int, partition: int) -> int | None:
        return 1 << 60


def published(batch: list[BatchMessage], base: int) -> Published:
    made = Batch(messages=batch).SerializeToString()
    return Published(channel_id=1, base_offset=base, count=len(batch), max_timestamp_us=1, batch=made)


def frame(record: Published, sequence: int) -> Frame:
    return Frame(0, PUBLISHED, sequence, 0, 0, record.SerializeToString())


@given(messages)
def test_ends_and_keys_are_those_that_protobuf_finds(batch: list[BatchMessage]) -> None:
    data = Batch(messages=batch).SerializeToString()
    known = keyed(data)
    assert known is not None
    ends, has_key = known
    assert has_key.tolist() == [message.HasField("key") for message in batch]
    assert ends.tolist() == [
        len(Batch(messages=batch[: number + 1]).SerializeToString()) for number in range(len(batch))
    ]


@given(messages, st.data())
def test_a_shortened_record_has_the_same_messages_at_the_same_offsets(
    batch: list[BatchMessage], data: st.DataObject
) -> None:

    record = published(batch, 1_000)
    stays = np.array(data.draw(st.lists(st.booleans(), min_size=len(batch), max_size=len(batch))))
    if not stays.any():
        stays[-1] = True
    known = keyed(record.batch)
    assert known is not None
    made = Published.FromString(shortened(record, record.batch, offsets_of(record), known[0], stays))
    kept = [number for number in range(len(batch)) if stays[number]]
    assert offsets_of(made).tolist() == [1_000 + number for number in kept]
    assert list(Batch.FromString(made.batch).messages) == [batch[number] for number in kept]
    again = np.ones(len(kept), bool)
    again[0] = len(kept) == 1
    bounds = keyed(made.batch)
    assert bounds is not None
    twice = Published.FromString(shortened(made, made.batch, offsets_of(made), bounds[0], again))
    assert offsets_of(twice).tolist() == [1_000 + number for number in (kept if len(kept) == 1 else kept[1:])]


@given(st.lists(messages, min_size=1, max_size=6), st.integers(1, 3))
def test_of_each_key_the_last_stays_and_an_old_tombstone_goes_with_what_it_ended(
    batches: list[list[BatchMessage]], workers: int
) -> None:
    frames, everything, base = [], [], 0
    for number, batch in enumerate(batches):
        frames.append(frame(published(batch, base), number + 1))
        everything += batch
        base += len(batch)
    hands = [LastKeys(AllPassed()) for _ in range(workers)]
    for number, each in enumerate(frames):
        hands[number * workers // len(frames)].meet(each)
    blobs: dict[int, list[bytes]] = {}
    for hand in hands:
        for bucket, blob in hand.buckets(2):
            blobs.setdefault(bucket, []).append(blob)
    latest = joined(latest_of(each, AllPassed()) for each in blobs.values())
    selection = Selection(AllPassed(), latest)
    left: list[int] = []
    for each in frames:
        cut = selection.cut(each)
        if cut.payload is not None:
            left += offsets_of(Published.FromString(cut.payload)).tolist()
    last = {message.key: offset for offset, message in enumerate(everything) if message.HasField("key")}
    expected = [
        offset
        for offset, message in enumerate(everything)
        if not message.HasField("key") or (last[message.key] == offset and message.content)
    ]
    assert left == expected
