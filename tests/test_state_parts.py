"""The parts of the state against plain sets, dicts and lists."""

from itertools import pairwise

import pytest
from handbroker import batch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mq import snapshot
from mq.assignment import ASSIGNMENTS
from mq.batch import Batch, message_bounds
from mq.channel import Channel, Partition
from mq.cursor import Cursor
from mq.group import Group
from mq.limits import default_group
from mq.producer import Answer, Producers
from mq.ranges import RangeSet
from mq.retry import Retries
from mq.timetable import Timetable
from wal.pb.wal_pb2 import Batch as PlainBatch
from wal.pb.wal_pb2 import BatchMessage, ChannelSettings

ranges = st.tuples(st.integers(0, 30), st.integers(0, 30))


@pytest.fixture(params=[1, 2, 512], ids="blocks of {}".format)
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones, so that few ranges are many blocks."""
    monkeypatch.setattr("mq.ranges.BLOCK", request.param)
    monkeypatch.setattr("mq.timetable.BLOCK", request.param)


entries = st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 2))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.booleans(), entries)), entries, st.integers(1, 5))
def test_a_timetable_is_a_sorted_set(block, steps, probe, most) -> None:
    kept, plain = Timetable(), set()
    for is_add, entry in steps:
        if is_add:
            kept.add(entry)
            plain.add(entry)
        else:
            kept.remove(entry)
            plain.discard(entry)
        assert (list(kept), len(kept)) == (sorted(plain), len(plain))
    assert not plain or kept.first == min(plain)
    assert kept.after(probe, most) == sorted(entry for entry in plain if entry > probe)[:most]
    assert list(kept.without(1)) == sorted(entry for entry in plain if entry[2] != 1)
    assert list(Timetable(plain)) == sorted(plain)
    assert list(kept.joined(Timetable([probe]))) == sorted(plain | {probe})
    assert list(Timetable([probe]).joined(kept)) == sorted(plain | {probe})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.booleans(), ranges)), ranges)
def test_a_range_set_is_a_set(block, steps, probe) -> None:
    kept, plain = RangeSet(), set()
    for is_add, (start, end) in steps:
        wanted = set(range(start, end))
        if is_add:
            assert kept.add(start, end) == len(wanted - plain)
            plain |= wanted
        else:
            assert kept.remove(start, end) == len(wanted & plain)
            plain -= wanted
        assert {offset for at in kept for offset in range(*at)} == plain
        found = list(kept)
        assert (len(kept), bool(kept)) == (len(found), bool(plain))
        assert kept == RangeSet(found)
        assert all(left[1] < right[0] for left, right in pairwise(found))
    start, end = probe
    wanted = set(range(start, end))
    assert kept.covers(start, end) == (wanted <= plain)
    assert {offset for at in kept.missing(start, end) for offset in range(*at)} == wanted - plain
    assert {offset for at in kept.within(start, end) for offset in range(*at)} == wanted & plain
    assert kept.total() == len(plain)
    behind = [at for at, _ in kept if at >= start]
    assert [kept.start_of(start, index, 99) for index in range(4)] == [*behind, 99, 99, 99, 99][:4]
    assert kept.end_of(start) == next(offset for offset in range(start, 99) if offset not in plain)
    assert kept.next_start(start, 99) == next(
        (offset for offset in range(start, 40) if offset in plain and (offset - 1 not in plain or offset == 0)), 99
    )


@given(st.lists(st.tuples(st.sampled_from(["put", "carve", "lease", "release"]), ranges, st.integers(1, 3))))
def test_retries_are_a_dict_of_offsets(steps) -> None:
    kept, plain = Retries(), {}
    for verb, (start, end), number in steps:
        if verb == "put":
            kept.put(start, end, number, number)
            plain |= {offset: [number, False] for offset in range(start, end)}
        elif verb == "carve":
            kept.carve(start, end)
            plain = {offset: item for offset, item in plain.items() if not start <= offset < end}
        elif verb == "lease":
            due = kept.first_due(number)
            free = [offset for offset, (count, is_leased) in plain.items() if count <= number and not is_leased]
            assert (due is None) == (not free)
            if due is not None:
                start, end = due.start, due.end
                kept.lease(start, end)
                for offset in range(start, end):
                    plain[offset][1] = True
        else:
            kept.release(start, end)
            touched = {at for at in plain if start <= at < end}
            for item in kept:  # a release is of whole leases
                if touched & set(range(item.start, item.end)):
                    for offset in range(item.start, item.end):
                        plain[offset][1] = item.is_leased
        found = {at: [item.count, item.is_leased] for item in kept for at in range(item.start, item.end)}
        assert found == plain
        assert kept.total == len(plain)
        behind = [item.start for item in kept if item.start >= start]
        assert [kept.start_of(start, index, 99) for index in range(4)] == [*behind, 99, 99, 99, 99][:4]
        joined = {at: item.count for item in kept.joined(start, end) for at in range(item.start, item.end)}
        assert joined == {offset: count for offset, (count, _) in plain.items() if start <= offset < end}


@given(
    st.lists(st.binary(max_size=200), min_size=1, max_size=12),
    st.data(),
    st.booleans(),
)
def test_a_cut_is_a_slice_of_the_messages(contents, data, has_holes) -> None:
    deltas = sorted(data.draw(st.sets(st.integers(0, 30), min_size=len(contents), max_size=len(contents))))
    deltas = deltas if has_holes else list(range(len(contents)))
    base = 100
    stored = Batch(base, len(contents), batch(*contents), 1, (1, 1), 0, tuple(deltas) if has_holes else ())
    all_of_it = [(base + delta, content) for delta, content in zip(deltas, contents, strict=True)]
    start, stop = data.draw(st.integers(100, 135)), data.draw(st.integers(100, 135))
    most, size = data.draw(st.integers(1, 12)), data.draw(st.integers(0, 600))
    is_first = data.draw(st.booleans())
    cut = stored.cut(start, stop, most, size, is_first)
    wanted = [item for item in all_of_it if start <= item[0] < stop][:most]
    fitting = [item for n, item in enumerate(wanted) if len(batch(*[text for _, text in wanted[: n + 1]])) <= size]
    fitting = fitting or (wanted[:1] if is_first else [])
    if not fitting:
        assert cut is None
        return
    assert cut is not None
    offsets = [cut.base + delta for delta in (cut.deltas or range(cut.messages))]
    texts = [message.content for message in PlainBatch.FromString(cut.batch).messages]
    assert list(zip(offsets, texts, strict=True)) == fitting
    following = [offset for offset, _ in all_of_it if offset > fitting[-1][0]]
    assert cut.end == (following[0] if following else stored.end)


def test_a_batch_with_fields_that_nobody_knows_is_cut_all_the_same() -> None:
    strange = batch("a") + b"\x12\x01x" + batch("b")  # field 2 between the messages
    stored = Batch(0, 2, strange, 1, (1, 1), 0)
    cut = stored.cut(1, 2, 1, 100, True)
    assert cut is not None
    assert cut.batch == batch("b")
    assert list(message_bounds(batch("a", "b"))) == [0, 5, 10]
    assert PlainBatch(messages=[BatchMessage(content=b"a")]).SerializeToString() == batch("a")


@given(st.data())
def test_a_snapshot_brings_a_channel_back(data) -> None:
    producers = Producers(10, 5, 10**15)
    channel = Channel(7, "a", ChannelSettings(ttl_ms=5), 9, producers)
    for number in range(data.draw(st.integers(1, 3))):
        partition = Partition(7, number, data.draw(st.integers(0, 5)), data.draw(st.integers(5, 30)))
        partition.bytes = data.draw(st.integers(0, 99))
        for start, end in data.draw(st.lists(ranges, max_size=3)):
            partition.damaged.add(start, end)
        channel.partitions.append(partition)
    group = Group(3, "g", default_group(), 7, 8)
    for _ in channel.partitions:
        cursor = Cursor(data.draw(st.integers(0, 5)))
        for start, end in data.draw(st.lists(ranges, max_size=4)):
            cursor.ack(start, end)
        for start, end in data.draw(st.lists(ranges, max_size=4)):
            cursor.retry(start, end, data.draw(st.integers(1, 5)), data.draw(st.integers(0, 3)), False)
        group.cursors.append(cursor)
    channel.add_group(group)
    for sequence in range(data.draw(st.integers(0, 9))):
        producers.note("p", Answer(sequence, 1, 0, sequence, 1, 5), 6)
    taken = snapshot.take(channel)
    again = snapshot.restore(taken, Producers(10, 5, 10**15))
    assert snapshot.take(again) == taken
    for before, after in zip(group.cursors, again.groups["g"].cursors, strict=True):
        assert (before.offset, before.acked) == (after.offset, after.acked)
        assert [(r.start, r.end, r.count) for r in before.retries.joined()] == [
            (r.start, r.end, r.count) for r in after.retries.joined()
        ]


names = st.lists(st.sampled_from("abcdefgh"), unique=True)


@given(names, names, st.integers(1, 20), st.sampled_from(sorted(ASSIGNMENTS)))
def test_every_assignment_is_complete_and_balanced(before, after, partitions, name) -> None:
    assign = ASSIGNMENTS[name]
    owned = assign(before, partitions, {})
    result = assign(after, partitions, owned)
    if not after:
        assert result == {}
        return
    assert result.keys() == set(range(partitions))
    shares = [list(result.values()).count(member) for member in after]
    assert max(shares) - min(shares) <= 1


@given(names.filter(bool), st.sampled_from("abcdefgh"), st.integers(1, 20))
def test_sticky_moves_only_what_balance_asks_for(members, newcomer, partitions) -> None:
    sticky = ASSIGNMENTS["sticky"]
    owned = sticky(members, partitions, {})
    joined = sticky([*members, newcomer] if newcomer not in members else members, partitions, owned)
    moved = [number for number in range(partitions) if joined[number] != owned[number]]
    assert all(joined[number] == newcomer for number in moved)
    left = sticky([name for name in members if name != newcomer], partitions, owned)
    assert all(left[number] == owned[number] for number in left if owned[number] != newcomer)
