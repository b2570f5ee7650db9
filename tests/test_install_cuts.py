"""A power cut, or the death of the broker, at any step of an install: the old set or the new one, and nothing lost."""

from __future__ import annotations

import asyncio
import errno
import shutil
import signal
import threading
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from filebroker import FileBroker
from google.protobuf.message import Message
from handbroker import all_stopped, offsets
from modeldisk import ModelDisk
from process import Process
from proposer import propose
from test_clean import DIRECTORY, FAST, SLOW, SMALL, LogClock, fill
from torture import sized

import wal.upkeep
from mq.client.wire import WireTransport
from mq.command import Pull, Start
from mq.errors import Unavailable
from mq.pb import mq_pb2 as pb
from mq.reply import PullReply
from wal import FileLog
from wal.chain import open_entry, walk_entry
from wal.disk import DirectDisk
from wal.errors import InstallRefused, LogClosed
from wal.frame import Frame
from wal.install import examine
from wal.manifest import read_manifest
from wal.proposal import STAGING, Offer, Output, path_in_staging, staged_name, write_claim, write_offer
from wal.record import PUBLISHED, SEAL, Published, Unknown
from wal.segment import SealedWriter, SegmentFile, SegmentHeader
from wal.verify import verify

__all__ = ["all_stopped"]

ID = "0123456789abcdef"


class Yes:
    """A judge who approves: who is judged here is the log."""

    is_in_doubt = False

    def approves(self, sequence: int, before: Message | Unknown, after: Message | Unknown | None) -> bool:
        return True

    def sees(self, record: Message | Unknown) -> None:
        pass

    def conclude(self, earlier: Iterable[Message | Unknown]) -> None:
        pass


async def engaged() -> Yes:
    return Yes()


def opened(disk: ModelDisk) -> FileLog:
    options = replace(SMALL, retire_grace_us=1 << 60)
    log = FileLog.open(DIRECTORY, options, disk=disk, clock=LogClock(), random=Random(3).randbytes, is_threaded=False)
    log.start(lambda written, synced: None, lambda error: None)
    return log


def offer_slow_only(log: FileLog) -> Offer:
    """Two files that keep the publishes of the slow channel, in the place of everything that no replay needs."""
    disk, manifest = log._disk, log.manifest
    floor = manifest.snapshots[0].begin
    inputs = [entry for entry in manifest.segments if entry.is_sealed and entry.last_sequence < floor]
    half = len(inputs) // 2
    disk.make_directory(f"{DIRECTORY}/{STAGING}")
    outputs = []
    for number, entries in enumerate((inputs[:half], inputs[half:])):
        name = staged_name(ID, number)
        fd = disk.create(path_in_staging(DIRECTORY, name))
        header = SegmentHeader(manifest.log_uuid, entries[0].first_sequence, 1, bytes([number] * 8))
        writer = SealedWriter(disk, fd, header)
        for entry in entries:
            with open_entry(disk, DIRECTORY, manifest, entry) as segment:
                for frame in walk_entry(segment, entry):
                    assert isinstance(frame, Frame)
                    if frame.type == PUBLISHED and Published.FromString(frame.payload).channel_id == SLOW:
                        writer.add(frame.type, frame.sequence, [frame.payload])
        size = writer.seal()
        disk.close(fd)
        outputs.append(Output(name, writer.frames, size, writer.last_crc))
    names = tuple(entry.name(".wal") for entry in inputs)
    return Offer(ID, manifest.log_uuid, 0, names, tuple(outputs), 0, 0, 0)


async def install(log: FileLog, confirm: Any = lambda: None) -> None:
    """An install in a log without a thread: its writer is turned until it is through."""
    task = asyncio.create_task(log.install_offer(ID, engaged, confirm))
    while not task.done():
        log.pump()
        await asyncio.sleep(0)
    await task


def bases(log: FileLog, channel: int) -> list[int]:
    return [found.base_offset for found in asyncio.run(log.read(channel, 0, 0, 1 << 20))]


@pytest.mark.shows("T6", "power cuts at each step of an install, on a model disk")
def test_a_power_cut_at_any_step_of_an_install_leaves_the_old_set_or_the_new_one(figures: dict[str, int]) -> None:
    disk = ModelDisk()
    log = opened(disk)
    fill(log)
    old = [entry.name(".wal") for entry in log.manifest.segments]
    all_fast = bases(log, FAST)
    offer = offer_slow_only(log)
    rng = Random(11)
    states: list[ModelDisk] = []
    count = sized(12, 400)
    disk.before = lambda kind, path: states.extend(disk.crash_states(rng, count))
    write_offer(disk, DIRECTORY, offer)
    asyncio.run(install(log))
    disk.before = None
    states += disk.crash_states(rng, count)
    figures |= {"seed": 11, "states": len(states)}
    new = [entry.name(".wal") for entry in log.manifest.segments]
    fast_left = bases(log, FAST)
    assert len(fast_left) < len(all_fast) / 2
    assert set(new) != set(old)
    assert len(states) > 40
    seen = set()
    for at, state in enumerate(states):
        again = opened(state)
        assert not again.report.damage
        names = [entry.name(".wal") for entry in again.manifest.segments]
        is_new = "00000000000000000001-1.wal" in names
        seen.add(is_new)
        assert set(new[:-1] if is_new else old[:-1]) <= set(names)
        assert bases(again, SLOW) == [0, 1, 2, 3, 4]
        assert bases(again, FAST) == (fast_left if is_new else all_fast)
        assert is_new or at < len(states) - count, "it was answered, and is gone"
        again.close()
        assert verify(DIRECTORY, disk=state).is_intact
    assert seen == {False, True}


def test_an_install_that_is_not_confirmed_leaves_no_file_behind() -> None:
    disk = ModelDisk()
    log = opened(disk)
    fill(log)
    write_offer(disk, DIRECTORY, offer_slow_only(log))
    before = log.manifest

    def refuse() -> None:
        raise InstallRefused("a group came back")

    with pytest.raises(InstallRefused, match="came back"):
        asyncio.run(install(log, refuse))
    assert log.manifest == before
    assert not [name for name in disk.list(DIRECTORY) if "-1." in name]


def test_an_install_that_the_writer_refuses_leaves_no_file_behind() -> None:
    """Something else replaced the inputs since they were checked."""
    disk = ModelDisk()
    log = opened(disk)
    fill(log)
    offer = offer_slow_only(log)
    write_offer(disk, DIRECTORY, offer)

    def retire_first() -> None:
        log.run_between_groups(lambda writer: writer.replace_segments(offer.inputs[:1], []))

    with pytest.raises(InstallRefused, match="any more"):
        asyncio.run(install(log, retire_first))
    assert not [name for name in disk.list(DIRECTORY) if "-1." in name]
    assert len(log.manifest.segments) > 1


@pytest.mark.parametrize("fault", [errno.ENOENT, errno.EIO])
def test_an_install_that_took_place_is_told_whatever_becomes_of_its_proposal(fault: int) -> None:
    disk = ModelDisk()
    log = opened(disk)
    fill(log)
    offer = offer_slow_only(log)
    write_claim(disk, DIRECTORY, offer)
    write_offer(disk, DIRECTORY, offer)
    disk.schedule("unlink", 1, fault)
    asyncio.run(install(log))
    assert not set(offer.inputs) & {entry.name(".wal") for entry in log.manifest.segments}
    if fault == errno.ENOENT:
        assert len(disk.list(f"{DIRECTORY}/{STAGING}")) == 1, "who else removes one of the files removes only that"


def test_every_frame_that_an_install_reads_is_a_place_to_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The staged ones too, and those that come before: any of them may be most of the log."""
    disk = ModelDisk()
    log = opened(disk)
    fill(log)
    offer = offer_slow_only(log)
    frames = breaths = 0
    walk = SegmentFile.walk

    def counting(*args: Any, **kwargs: Any) -> Any:
        nonlocal frames
        for item in walk(*args, **kwargs):
            frames += isinstance(item, Frame) and item.type != SEAL
            yield item

    class Thorough(Yes):
        def conclude(self, earlier: Iterable[Message | Unknown]) -> None:
            assert list(earlier)

    def breathe(last: int = 1 << 30) -> None:
        nonlocal breaths
        breaths += 1
        if breaths == last:
            raise LogClosed("the log is closing")

    monkeypatch.setattr(SegmentFile, "walk", counting)
    examine(disk, DIRECTORY, log.manifest, offer, Thorough(), breathe)
    assert breaths >= frames > 50
    for last in range(1, breaths + 1):
        breaths = 0
        with pytest.raises(LogClosed):
            examine(disk, DIRECTORY, log.manifest, offer, Thorough(), partial(breathe, last))


def test_a_log_that_closes_does_not_wait_for_an_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check may take minutes, and a stop has seconds."""
    log = FileLog.open(tmp_path / "log", SMALL)
    log.start(lambda written, synced: None, lambda error: None)
    begun = threading.Event()

    def examine_for_ever(*args: Any) -> Any:
        begun.set()
        breathe = args[-1]
        while True:
            breathe()

    monkeypatch.setattr(wal.upkeep, "examine", examine_for_ever)
    monkeypatch.setattr(wal.upkeep, "read_offer", lambda *args: Offer(ID, log.uuid, 0, (), (), 0, 0, 0))

    async def install_and_close() -> None:
        task = asyncio.create_task(log.install_offer(ID, engaged, lambda: None))
        assert await asyncio.to_thread(begun.wait, 30)
        await asyncio.to_thread(log.close)
        with pytest.raises(LogClosed):
            await asyncio.wait_for(task, 30)

    asyncio.run(install_and_close())


# ---------------------------------------------------------------- a real broker

KEYS = 50


class Life:
    """A real broker on a copy of a directory, which dies at a step."""

    def __init__(self, directory: Path, step: int) -> None:
        fuse = directory / "fuse"

        class Dying(Process):
            entry = (str(Path(__file__).with_name("dyingserve.py")), str(fuse))

        self._process = Dying(directory, WAL_SEGMENT_SIZE="1MiB", SERVER_MAX_RECV_MSG_SIZE="256KiB")
        self.transport = WireTransport("127.0.0.1", self._process.wait_for_port("wire"))
        if step:
            fuse.write_text(str(step))

    def ask(self, method: str, request: Message) -> bytes:
        return self.transport.call(f"mq.{method}", request.SerializeToString(), 30.0)

    def end(self, number: int = signal.SIGKILL) -> None:
        self.transport.close()
        self._process.signal(number)
        self._process.wait()


def publish(life: Life, rounds: range) -> None:
    for at in rounds:
        messages = [pb.BatchMessage(key=b"k%d" % key, content=b"%d " % at + b"x" * 200) for key in range(KEYS)]
        life.ask("MQService/PublishBatch", pb.PublishBatchRequest(channel="prices", batch=pb.Batch(messages=messages)))


@pytest.fixture(scope="module")
def compacted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A directory with a proposal that waits, and its id. Every clean stop leaves a snapshot run."""
    directory = tmp_path_factory.mktemp("install")
    settings = pb.ChannelSettings(keep=pb.ChannelSettings.KEEP_LATEST_PER_KEY)
    life = Life(directory, 0)
    life.ask("MQService/CreateChannel", pb.CreateChannelRequest(channel="prices", settings=settings))
    publish(life, range(100))
    life.ask("AdminService/RotateSegment", pb.RotateSegmentRequest())
    for round_ in (100, 101):
        life.end(signal.SIGTERM)
        life = Life(directory, 0)
        publish(life, range(round_, round_ + 1))
    life.end(signal.SIGTERM)
    (offer,) = propose(directory / "data", 0)
    assert offer.dropped_messages > 4_000
    return directory, offer.id


def found_in(directory: Path) -> tuple[list[str], list[int]]:
    """The segments of a log, and the offsets that a reader gets, by a broker of this process."""
    manifest = read_manifest(DirectDisk(), str(directory))
    assert manifest is not None
    assert verify(str(directory)).is_intact
    broker = FileBroker(directory)
    found: list[int] = []
    place: list[Any] = []
    while (reply := broker.ask(Pull("prices", positions=place, start=None if place else Start("earliest")))).batches:
        assert isinstance(reply, PullReply)
        found += offsets(reply)
        place = reply.next
    broker.stop()
    return [entry.name(".wal") for entry in manifest.segments], found


@pytest.mark.slow
@pytest.mark.shows("T6", "SIGKILL of the real broker at each step of an install")
def test_a_broker_killed_at_any_step_of_an_install_has_the_old_set_or_the_new_one(
    compacted: tuple[Path, str], tmp_path: Path, figures: dict[str, int]
) -> None:
    source, proposal = compacted
    everything = list(range(102 * KEYS))
    outcomes = []
    for step in range(1, 60):
        directory = tmp_path / str(step)
        shutil.copytree(source, directory)
        life = Life(directory, step)
        try:
            life.ask("AdminService/InstallSegments", pb.InstallSegmentsRequest(proposal=proposal))
            is_said = True
        except Unavailable:
            is_said = False
        life.end()
        names, left = found_in(directory / "data")
        is_new = names[0].endswith("-1.wal")
        assert is_new or not is_said, f"killed at step {step}: it was said to be installed"
        if is_new:
            assert left[-2 * KEYS :] == everything[-2 * KEYS :]
            assert len(left) == 3 * KEYS, "the last of each key before the older snapshot run, and all behind it"
        else:
            assert left == everything
        outcomes.append((is_said, is_new))
        shutil.rmtree(directory)
        if is_said:
            break
    figures["kills"] = len(outcomes) - 1
    assert outcomes[-1] == (True, True)
    assert outcomes.count((False, False)) >= 5, "deaths before the swap"
    assert outcomes.count((False, True)) >= 1, "a death after it"
