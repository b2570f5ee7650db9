"""Proposals that lie: whatever a program stages, the broker lets go what a simple model lets go, and nothing else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest
from filebroker import LATEST, FileBroker
from handbroker import HandClock, all_stopped
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mq.command import CreateGroup, PurgeChannel, Start
from mq.errors import ProposalRefused
from wal.chain import walk_chain
from wal.disk import DirectDisk
from wal.frame import Frame
from wal.manifest import read_manifest
from wal.pb.wal_pb2 import Batch, ChannelSettings
from wal.proposal import STAGING, Offer, Output, staged_name, write_offer
from wal.record import PUBLISHED, Acked, Published, encode
from wal.segment import SealedWriter, SegmentHeader

__all__ = ["all_stopped"]

ID = "0123456789abcdef"
PASSED = 60  # of channel "prices": where its group is
TRIMMED = 15  # of channel "plain"
EXAMPLES = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Row(NamedTuple):
    """A frame of a staged file."""

    type: int
    sequence: int
    payload: bytes


class Message(NamedTuple):
    channel: str
    offset: int
    key: str  # empty: none
    is_tombstone: bool


class Sample:
    """A log of which some may go, stopped, and what is in it; every test works on a copy."""

    def __init__(self, directory: Path) -> None:
        broker = FileBroker(directory)
        broker.create("prices", LATEST)
        broker.create("plain", ChannelSettings())
        for at in range(25):
            broker.put(
                "prices",
                (f"k{at % 3}", f"{at}"),
                (f"k{at % 5}", f"{at}"),
                "no key",
                (f"t{at // 2}", "" if at % 2 else "was"),
            )
            broker.put("plain", f"{at}", ("k0", f"{at}"))
        broker.ask(CreateGroup("prices", "g", start=Start("offset", PASSED)))
        broker.ask(PurgeChannel("plain", before_offset=TRIMMED))
        broker.settle_history()
        broker.clock.pass_ms(120_000)
        self.clock_us = broker.clock.us
        self.ids = {channel.channel_id: name for name, channel in broker.state.channels.items()}
        broker.stop()
        self.directory = directory
        manifest = read_manifest(DirectDisk(), str(directory))
        assert manifest is not None
        self.manifest = manifest
        floor = manifest.snapshots[0].begin
        self.inputs = [entry for entry in manifest.segments if entry.is_sealed and entry.last_sequence < floor]
        last = self.inputs[-1].last_sequence
        frames = [item for _, item in walk_chain(DirectDisk(), str(directory), manifest) if isinstance(item, Frame)]
        self.rows = [Row(each.type, each.sequence, each.payload) for each in frames if each.sequence <= last]
        self.later = [Row(each.type, each.sequence, each.payload) for each in frames if each.sequence > last]

    def broker(self, directory: Path) -> FileBroker:
        shutil.copytree(self.directory, directory)
        clock = HandClock()
        clock.us = self.clock_us
        return FileBroker(directory, clock)

    def messages(self, row: Row) -> list[Message]:
        record = Published.FromString(row.payload)
        deltas = record.offset_deltas or range(record.count)
        return [
            Message(self.ids[record.channel_id], record.base_offset + delta, each.key.decode(), not each.content)
            for delta, each in zip(deltas, Batch.FromString(record.batch).messages, strict=True)
        ]

    def offer(self, directory: Path, rows: Sequence[Row], **changes: object) -> Offer:
        """Stage rows as a well-formed file, and propose it."""
        folder = directory / STAGING
        folder.mkdir(exist_ok=True)
        outputs = []
        if rows:
            outputs.append(stage(self, folder / staged_name(ID, 0), rows))
        names = tuple(entry.name(".wal") for entry in self.inputs)
        offer = replace(Offer(ID, self.manifest.log_uuid, 0, names, tuple(outputs), 0, 0, 0), **changes)  # type: ignore[arg-type]
        write_offer(DirectDisk(), str(directory), offer)
        return offer


def stage(sample: Sample, path: Path, rows: Sequence[Row], *, log_uuid: UUID | None = None) -> Output:
    first = sample.inputs[0]
    header = SegmentHeader(
        log_uuid or sample.manifest.log_uuid, first.first_sequence, first.generation + 1, b"stranger"
    )
    disk = DirectDisk()
    path.unlink(missing_ok=True)
    fd = disk.create(str(path))
    writer = SealedWriter(disk, fd, header)
    for row in rows:
        writer.add(row.type, row.sequence, [row.payload])
    size = writer.seal()
    disk.close(fd)
    return Output(path.name, writer.frames, size, writer.last_crc)


def without(row: Row, gone: set[int]) -> Row | None:
    """A publish without the messages at some offsets, as a compaction writes it."""
    record = Published.FromString(row.payload)
    messages = Batch.FromString(record.batch).messages
    kept = [at for at in range(record.count) if record.base_offset + at not in gone]
    if not kept:
        return None
    made = Published()
    made.CopyFrom(record)
    made.base_offset, made.count = record.base_offset + kept[0], len(kept)
    if len(kept) != kept[-1] - kept[0] + 1:
        made.offset_deltas.extend(at - kept[0] for at in kept)
    made.batch = Batch(messages=[messages[at] for at in kept]).SerializeToString()
    return Row(row.type, row.sequence, made.SerializeToString())


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    return Sample(tmp_path_factory.mktemp("lies") / "log")


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[[], Path]:
    """Directories for the examples of one test."""
    made: list[Path] = []

    def one() -> Path:
        made.append(tmp_path / f"log-{len(made)}")
        return made[-1]

    return one


def may_all_go(sample: Sample, gone: set[Message]) -> bool:
    """The model: is each of these trimmed, replaced by one that stays, or ended by an old tombstone that goes too?"""
    rows = [row for row in [*sample.rows, *sample.later] if row.type == PUBLISHED]
    everything = [message for row in rows for message in sample.messages(row)]
    for message in gone:
        if message.channel == "plain":
            if message.offset >= TRIMMED:
                return False
            continue
        if message.channel != "prices" or not message.key or message.offset >= PASSED:
            return False
        same = [each for each in everything if (each.channel, each.key) == (message.channel, message.key)]
        if any(each.offset > message.offset and each not in gone for each in same):
            continue
        last = max((each for each in same if each in gone), key=lambda each: each.offset)
        if not last.is_tombstone or any(each.offset < last.offset and each not in gone for each in same):
            return False
    return True


@EXAMPLES
@given(data=st.data())
def test_the_broker_installs_exactly_what_the_model_lets_go(
    sample: Sample, fresh: Callable[[], Path], data: st.DataObject
) -> None:
    published = [row for row in sample.rows if row.type == PUBLISHED]
    messages = [message for row in published for message in sample.messages(row)]
    droppable = [message for message in messages if may_all_go(sample, {message})]
    gone = set(data.draw(st.lists(st.sampled_from(droppable), unique=True), label="may go, each by itself"))
    gone |= set(data.draw(st.lists(st.sampled_from(messages), unique=True, max_size=2), label="any"))
    ended = data.draw(st.sets(st.sampled_from([f"t{at}" for at in range(8)])), label="keys that go, tombstone and all")
    gone |= {message for message in messages if message.key in ended}
    keeps_others = data.draw(st.booleans(), label="keeps what only a replay would need")
    rows: list[Row | None] = []
    for row in sample.rows:
        if row.type == PUBLISHED:
            mine = {message.offset for message in sample.messages(row) if message in gone}
            rows.append(without(row, mine) if mine else row)
        elif keeps_others:
            rows.append(row)
    directory = fresh()
    broker = sample.broker(directory)
    try:
        offer = sample.offer(directory, [row for row in rows if row is not None])
        before = broker.names()
        if may_all_go(sample, gone):
            broker.install(offer.id)
            assert broker.names() != before
        else:
            with pytest.raises(ProposalRefused):
                broker.install(offer.id)
            assert broker.names() == before
    finally:
        broker.stop()
        shutil.rmtree(directory)


def _first_published(rows: Sequence[Row], number: int = 40) -> int:
    return [at for at, row in enumerate(rows) if row.type == PUBLISHED][number]


def _changed(rows: Sequence[Row], change: Callable[[Published], None]) -> list[Row]:
    at = _first_published(rows)
    record = Published.FromString(rows[at].payload)
    change(record)
    return [*rows[:at], Row(PUBLISHED, rows[at].sequence, record.SerializeToString()), *rows[at + 1 :]]


def _content(record: Published) -> None:
    batch = Batch.FromString(record.batch)
    batch.messages[0].content += b"!"
    record.batch = batch.SerializeToString()


def _key(record: Published) -> None:
    batch = Batch.FromString(record.batch)
    batch.messages[0].key = b"other"
    record.batch = batch.SerializeToString()


def _doubled(record: Published) -> None:
    batch = Batch.FromString(record.batch)
    record.batch = Batch(messages=[*batch.messages, batch.messages[-1]]).SerializeToString()
    record.count += 1


def _reversed(record: Published) -> None:
    batch = Batch.FromString(record.batch)
    record.batch = Batch(messages=list(reversed(batch.messages))).SerializeToString()


def _moved(record: Published) -> None:
    record.base_offset += 1


def _spread(record: Published) -> None:
    record.offset_deltas.extend(range(0, 2 * record.count, 2))


def _based_before(record: Published) -> None:
    """The same offsets, counted from one that is not kept: whoever goes by the first one alone finds another."""
    record.base_offset -= 1
    record.offset_deltas.extend(range(1, record.count + 1))


def _later(record: Published) -> None:
    record.max_timestamp_us += 1


def _expiring(record: Published) -> None:
    record.ttl_ms = 1


def _emptied(record: Published) -> None:
    record.batch, record.count = b"", 0


def _unknown_field(record: Published) -> None:
    record.MergeFromString(b"\xf8\x07\x01")


@pytest.mark.parametrize(
    "change",
    [
        _content,
        _key,
        _doubled,
        _reversed,
        _moved,
        _spread,
        _based_before,
        _later,
        _expiring,
        _emptied,
        _unknown_field,
    ],
    ids=lambda change: change.__name__.strip("_"),
)
def test_a_record_keeps_everything_but_messages_that_may_go(
    sample: Sample, tmp_path: Path, change: Callable[[Published], None]
) -> None:
    refused(sample, tmp_path / "log", _changed(sample.rows, change))


def test_the_same_rows_are_no_lie(sample: Sample, tmp_path: Path) -> None:
    """Else the tests around it would pass for another reason."""
    broker = sample.broker(tmp_path / "log")
    broker.install(sample.offer(tmp_path / "log", sample.rows).id)


def _invented(rows: Sequence[Row]) -> list[Row]:
    type_, pieces, _ = encode(Acked(channel_id=1))
    return [*rows[:5], Row(type_, rows[4].sequence, b"".join(pieces)), *rows[5:]]


ROWS: dict[str, Callable[[Sequence[Row]], list[Row]]] = {
    "a frame twice": lambda rows: [*rows[:30], rows[29], *rows[30:]],
    "two frames in the wrong order": lambda rows: [*rows[:30], rows[31], rows[30], *rows[32:]],
    "a frame that never was": _invented,
    "a frame from beyond the inputs": lambda rows: [*rows, Row(rows[-1].type, rows[-1].sequence + 1, rows[-1].payload)],
    "one frame's payload in the place of another": lambda rows: [
        *rows[:40], rows[40]._replace(payload=rows[42].payload), *rows[41:],
    ],
    "another type": lambda rows: [*rows[:40], rows[40]._replace(type=4000), *rows[41:]],
    "nothing at all": lambda rows: [],
}  # fmt: skip


@pytest.mark.parametrize("lie", ROWS)
def test_frames_are_those_of_the_inputs(sample: Sample, tmp_path: Path, lie: str) -> None:
    refused(sample, tmp_path / "log", ROWS[lie](sample.rows))


def refused(sample: Sample, directory: Path, rows: Sequence[Row], **changes: object) -> None:
    broker = sample.broker(directory)
    before = broker.names()
    offer = sample.offer(directory, rows, **changes)
    with pytest.raises(ProposalRefused) as caught:
        broker.install(offer.id)
    assert str(directory) not in str(caught.value), "no path leaves the broker"
    assert broker.names() == before
    assert not any("-1.wal" in name for name in os.listdir(directory))


@pytest.mark.parametrize(
    "changes",
    [
        {"log_uuid": UUID(int=7)},
        {"inputs": ()},
        {"inputs": ("00000000000000000001-0.wal", "00000000000000000001-0.wal")},
        {"inputs": ("../../etc/passwd",)},
        {"outputs": (Output("../MANIFEST", 1, 1, 1),)},
        {"outputs": (Output("fedcba9876543210-0.staged", 1, 1, 1),)},
        {"outputs": (Output(staged_name(ID, 1), 1, 1, 1),)},
        {"outputs": (Output(staged_name(ID, 0), 1, 64, 1),)},
        {"outputs": (Output(5, 1, 64, 1),)},
        {"id": "fedcba9876543210"},
    ],
    ids=str,
)
def test_a_proposal_names_its_own_files_of_this_log(sample: Sample, tmp_path: Path, changes: dict[str, object]) -> None:
    directory = tmp_path / "log"
    broker = sample.broker(directory)
    sample.offer(directory, sample.rows)
    path = directory / STAGING / f"{ID}.proposal"
    path.unlink()
    offer = replace(sample.offer(directory, sample.rows), **changes)  # type: ignore[arg-type]
    path.write_bytes(offer.pack())
    before = broker.names()
    with pytest.raises(ProposalRefused):
        broker.install(ID)
    assert broker.names() == before


def test_a_file_of_another_log_is_refused(sample: Sample, tmp_path: Path) -> None:
    directory = tmp_path / "log"
    broker = sample.broker(directory)
    offer = sample.offer(directory, sample.rows)
    output = stage(sample, directory / STAGING / staged_name(ID, 0), sample.rows, log_uuid=UUID(int=7))
    write_offer(DirectDisk(), str(directory), replace(offer, outputs=(output,)))
    with pytest.raises(ProposalRefused, match="another log"):
        broker.install(ID)


def test_every_damaged_byte_of_a_proposal_is_refused(sample: Sample, tmp_path: Path) -> None:
    directory = tmp_path / "log"
    broker = sample.broker(directory)
    sample.offer(directory, sample.rows)
    path = directory / STAGING / f"{ID}.proposal"
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        with pytest.raises(ProposalRefused):
            broker.install(ID)
    for size in range(0, len(whole), 50):
        path.write_bytes(whole[:size])
        with pytest.raises(ProposalRefused):
            broker.install(ID)
