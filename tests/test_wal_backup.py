"""Backups of a log, down to the disk: what is taken, what is left alone, and what a power cut may leave."""

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from logowner import DIRECTORY, SMALL, History, Owner, Violation
from modeldisk import ModelDisk, PowerCut
from process import wait_until
from waiting import DEADLINE_SECONDS
from walsample import published

import wal.backup
from wal.backup import MARKER, TAIL_GENERATION, Backup, back_up, read_backup
from wal.chain import walk_chain
from wal.disk import DirectDisk, Disk
from wal.errors import BackupRefused, LogLocked
from wal.filelog import FileLog
from wal.frame import Frame
from wal.manifest import MANIFEST, read_manifest
from wal.options import Options
from wal.record import ChannelSnapshot, Published, SnapshotBegin, SnapshotEnd
from wal.repair import repair
from wal.restore import back_up_stopped, restore
from wal.verify import verify

TARGET = "/backups/nightly"
RESTORED = "/restored/log"
Content = list[tuple[int, bytes]]
ROUNDS = 6


def nothing(*_: object) -> None:
    pass


def take(owner: Owner, target: str = TARGET) -> Backup:
    """A backup of a log without a thread."""
    owner.log.pump()
    writer = owner.log._writer
    moment = writer.hold()
    return back_up(
        owner.disk, DIRECTORY, moment, target, random=owner.rng.randbytes, progress=nothing, taken=writer.held.discard
    )


def content(disk: Disk, directory: str) -> Content:
    """Every record of a directory, which must be without damage and without holes."""
    report = verify(directory, disk=disk)
    assert report.is_intact, report.damage
    manifest = read_manifest(disk, directory)
    assert manifest is not None
    found = []
    for number, (_, item) in enumerate(walk_chain(disk, directory, manifest), 1):
        assert isinstance(item, Frame)
        assert item.sequence == number
        found.append((item.type, item.payload))
    return found


def an_owner(seed: int = 1) -> Owner:
    owner = Owner(ModelDisk(), History(), Random(seed))
    owner.publish(40)
    owner.log.pump()
    return owner


# ---------------------------------------------------------------- what is in it


def test_a_backup_holds_what_was_durable_and_nothing_else():
    owner = an_owner()
    made = take(owner)
    expected = list(owner.history.contents)
    owner.publish(5)
    owner.log.pump()
    assert content(owner.disk, TARGET) == expected
    assert made.last_sequence == len(expected)
    assert made.segments == made.linked + made.copied > 2
    assert made.bytes == sum(entry.size for entry in read_backup(owner.disk, TARGET).segments)


def test_everything_in_a_backup_is_sealed_and_the_log_needs_none_of_its_names():
    owner = an_owner()
    take(owner)
    manifest = read_backup(owner.disk, TARGET)
    assert all(entry.is_sealed for entry in manifest.segments)
    assert manifest.segments[-1].generation == TAIL_GENERATION
    assert not manifest.retired


def test_a_log_that_holds_nothing_has_a_backup_too():
    owner = Owner(ModelDisk(), History(), Random(1))
    made = take(owner)
    assert (made.segments, made.last_sequence) == (0, 0)
    assert restore(TARGET, RESTORED, disk=owner.disk).is_intact
    assert content(owner.disk, RESTORED) == []


def test_damage_of_the_live_segment_becomes_a_record_of_it():
    owner = an_owner()
    owner.log.rotate()
    owner.publish(3, size=200)
    owner.log.pump()
    live = f"{DIRECTORY}/{owner.log.segments()[-1].name}"
    owner.disk.names[live].cache[150] ^= 1
    take(owner)
    damage = verify(TARGET, disk=owner.disk).damage
    assert len(damage) == 1
    assert damage[0].reason.startswith("damage found when the log was opened")


@pytest.mark.parametrize("is_linked", [True, False], ids=["linked", "copied"])
def test_a_segment_that_is_missing_in_the_log_is_named_and_costs_no_other(is_linked: bool):
    owner = an_owner()
    if not is_linked:
        owner.disk.schedule("link", 1, errno.EXDEV)
    gone = owner.log.segments()[1]
    owner.disk.unlink(f"{DIRECTORY}/{gone.name}")
    made = take(owner)
    assert [each.segment for each in verify(TARGET, disk=owner.disk).damage] == [gone.name]
    assert made.missing == 1
    assert made.segments == made.linked + made.copied + made.missing
    assert take(owner).missing == 1, "it is still missing"


# ---------------------------------------------------------------- the next one


def test_the_next_backup_takes_only_what_is_new():
    owner = an_owner()
    first = take(owner)
    owner.publish(12)
    second = take(owner)
    assert second.kept == first.linked
    assert second.removed == 1  # the live segment of then
    assert content(owner.disk, TARGET) == owner.history.contents
    third = take(owner)
    assert (third.kept, third.linked, third.copied, third.removed) == (second.segments, 0, 0, 0)


@pytest.mark.parametrize("harm", ["removed", "cut short"])
def test_a_copy_of_the_live_segment_that_is_not_there_whole_is_written_again(harm: str):
    owner = an_owner()
    take(owner)
    tail = f"{TARGET}/{read_backup(owner.disk, TARGET).segments[-1].name('.wal')}"
    if harm == "removed":
        owner.disk.unlink(tail)
    else:
        del owner.disk.names[tail].cache[100:]
    again = take(owner)
    assert (again.copied, again.missing) == (1, 0)
    assert content(owner.disk, TARGET) == owner.history.contents


def test_a_decayed_copy_is_taken_anew_once_it_is_removed():
    owner = an_owner()
    owner.disk.schedule("link", 1, errno.EXDEV)
    take(owner)
    name = read_backup(owner.disk, TARGET).segments[1].name(".wal")
    owner.disk.names[f"{TARGET}/{name}"].cache[300] ^= 4
    assert [each.segment for each in verify(TARGET, disk=owner.disk).damage] == [name]
    owner.disk.unlink(f"{TARGET}/{name}")
    take(owner)
    assert content(owner.disk, TARGET) == owner.history.contents


def test_segments_that_were_rewritten_since_are_taken_anew_and_the_old_ones_go():
    owner = an_owner()
    take(owner)
    before = set(owner.disk.list(TARGET))
    owner.install()
    owner.publish(2)
    made = take(owner)
    assert made.linked >= 1
    assert before - set(owner.disk.list(TARGET))
    assert content(owner.disk, TARGET) == owner.history.contents
    names = {entry.name(".wal") for entry in read_backup(owner.disk, TARGET).segments}
    assert set(owner.disk.list(TARGET)) == {"LOCK", MANIFEST, MARKER} | names


def test_files_of_others_are_left_alone():
    owner = an_owner()
    take(owner)
    for name in ("notes.txt", "1-0.wal", "something.new"):
        owner.disk.close(owner.disk.create(f"{TARGET}/{name}"))
    take(owner)
    assert {"notes.txt", "1-0.wal", "something.new"} <= set(owner.disk.list(TARGET))


def test_a_copy_that_was_cut_short_goes_on_where_it_was():
    owner = an_owner()
    owner.disk.schedule("link", 1, errno.EXDEV)
    sealed = sum(1 for each in owner.log.segments() if each.is_sealed)
    copies = 0

    def stop(kind: str, path: str) -> None:
        nonlocal copies
        copies += kind == "rename" and path.startswith(TARGET) and path.endswith(".wal")
        if copies == 3:
            raise PowerCut

    owner.disk.before = stop
    with pytest.raises(PowerCut):
        take(owner)
    owner.disk.kill()
    owner.disk.schedule("link", 1, errno.EXDEV)
    made = back_up_stopped(DIRECTORY, TARGET, disk=owner.disk, random=owner.rng.randbytes)
    assert (made.kept, made.copied) == (2, sealed - 2 + 1)
    assert content(owner.disk, TARGET) == owner.history.contents


# ---------------------------------------------------------------- where it may not be


@pytest.mark.parametrize("target", [DIRECTORY, f"{DIRECTORY}/backup", "/data", "/data/log/../log", "/"])
def test_a_log_and_its_backup_are_not_in_each_other(target: str):
    owner = an_owner()
    with pytest.raises(BackupRefused, match="the directory of the log, or one is in the other"):
        take(owner, target)


def test_a_directory_that_holds_something_else_is_refused_and_left_alone():
    owner = an_owner()
    owner.disk.make_directory("/other")
    owner.disk.close(owner.disk.create("/other/precious"))
    with pytest.raises(BackupRefused, match="not empty and holds no backup"):
        take(owner, "/other")
    assert owner.disk.list("/other") == ["precious"]


def test_the_directory_of_another_log_s_backups_is_refused():
    owner = an_owner()
    take(owner)
    restore(TARGET, RESTORED, disk=owner.disk)
    with pytest.raises(BackupRefused, match="another log"):
        back_up_stopped(RESTORED, TARGET, disk=owner.disk)
    assert content(owner.disk, TARGET) == owner.history.contents


def test_two_backups_into_one_directory_at_a_time_are_refused():
    owner = an_owner()
    take(owner)
    lock = owner.disk.lock(f"{TARGET}/LOCK")
    with pytest.raises(LogLocked):
        take(owner)
    owner.disk.close(lock)


def test_a_backup_that_is_being_written_is_not_restored():
    owner = an_owner()
    take(owner)
    lock = owner.disk.lock(f"{TARGET}/LOCK")
    with pytest.raises(LogLocked):
        restore(TARGET, RESTORED, disk=owner.disk)
    owner.disk.close(lock)
    assert restore(TARGET, RESTORED, disk=owner.disk).is_intact


def test_a_backup_is_no_log_to_write_to():
    owner = an_owner()
    take(owner)
    with pytest.raises(BackupRefused, match="mq backup restore"):
        FileLog.open(TARGET, SMALL, disk=owner.disk)
    with pytest.raises(BackupRefused, match="no log"):
        back_up_stopped(TARGET, "/elsewhere", disk=owner.disk)


def test_a_repair_does_not_make_a_whole_backup_of_an_interrupted_one():
    owner = an_owner()
    take(owner)
    names = read_backup(owner.disk, TARGET).segments
    for name in (MANIFEST, names[-1].name(".wal"), names[-2].name(".wal")):  # the first backup, as a kill leaves it
        owner.disk.unlink(f"{TARGET}/{name}")
    before = owner.disk.list(TARGET)
    with pytest.raises(BackupRefused, match="mq backup restore"):
        repair(TARGET, disk=owner.disk)
    assert owner.disk.list(TARGET) == before
    with pytest.raises(BackupRefused, match="no complete backup"):
        restore(TARGET, RESTORED, disk=owner.disk)


def test_a_log_that_is_in_use_is_not_backed_up_as_a_stopped_one():
    owner = an_owner()
    with pytest.raises(LogLocked):
        back_up_stopped(DIRECTORY, TARGET, disk=owner.disk)


# ---------------------------------------------------------------- a full disk


def test_a_full_disk_leaves_the_backup_before_and_nothing_else():
    owner = an_owner()
    take(owner)
    before = owner.disk.list(TARGET), content(owner.disk, TARGET)
    owner.publish(6)
    owner.log.pump()
    owner.disk.schedule("link", 1, errno.EXDEV)
    owner.disk.schedule("write", 2, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        take(owner)
    assert (owner.disk.list(TARGET), content(owner.disk, TARGET)) == before


def test_what_does_not_fit_is_not_begun():
    owner = an_owner()
    owner.disk.capacity = sum(len(inode.cache) for inode in set(owner.disk.names.values())) + 300
    with pytest.raises(OSError, match="are to be copied"):
        take(owner)
    assert owner.disk.list(TARGET) == [MARKER, "LOCK"]


def test_a_backup_leaves_the_log_the_room_it_goes_on_with(tmp_path: Path, other_file_system: Path):
    options = Options(segment_bytes=1 << 16, snapshot_bytes=1 << 16, soft_free_bytes=0)
    log = FileLog.open(tmp_path / "log", options)
    log.start(nothing, nothing)
    append(log, 0, 100)
    log.close()
    log = FileLog.open(tmp_path / "log", replace(options, soft_free_bytes=1 << 60))  # more than any disk has
    log.start(nothing, nothing)
    with pytest.raises(OSError, match=r"are to be copied, 0 may be used"):
        asyncio.run(log.back_up(str(tmp_path / "backup")))
    assert sorted(os.listdir(tmp_path / "backup")) == [MARKER, "LOCK"]
    asyncio.run(log.back_up(str(other_file_system / "backup")))
    assert verify(str(other_file_system / "backup")).messages == 100
    log.close()


# ---------------------------------------------------------------- power cuts


def after_each_operation(owner: Owner, act: Callable[[], object], judge: Callable[[ModelDisk], None]) -> int:
    """Run something, and judge the disks that a power cut before each of its operations may leave."""
    states = 0

    def fork(kind: str, path: str) -> None:
        nonlocal states
        for state in owner.disk.crash_states(owner.rng, 4):
            states += 1
            judge(state)

    owner.disk.before = fork
    act()
    owner.disk.before = None
    fork("", "")
    return states


def cut_backups(is_linked: bool, seed: int) -> int:
    """Two backups, the second over the first, with the power cut everywhere; returns how many states were looked at."""
    owner = an_owner(seed)
    if not is_linked:
        for nth in (1, 2):  # of each backup the first: it says it all
            owner.disk.schedule("link", nth, errno.EXDEV)
    known: list[Content] = []

    def judge(state: ModelDisk) -> None:
        try:
            read_backup(state, TARGET)
        except BackupRefused:
            if len(known) > 1:
                raise Violation("the first backup is gone") from None
            return
        try:
            found = content(state, TARGET)
        except AssertionError as error:
            raise Violation(f"a broken backup: {error}") from error
        if found not in known[-2:]:
            raise Violation("a backup of no moment")

    known.append(list(owner.history.contents))
    states = after_each_operation(owner, lambda: take(owner), judge)
    owner.publish(8)
    owner.install()
    owner.log.pump()
    known.append(list(owner.history.contents))
    return states + after_each_operation(owner, lambda: take(owner), judge)


@pytest.mark.parametrize("is_linked", [True, False], ids=["linked", "copied"])
def test_a_power_cut_leaves_the_backup_before_or_the_new_one(is_linked: bool):
    assert sum(cut_backups(is_linked, seed) for seed in range(3)) > 500


def without_sync(disk: ModelDisk, what: object) -> None:
    pass


def removed_too_early(whole: Callable[..., int]) -> Callable[..., int]:
    return lambda self, wanted, is_over=False: whole(self, wanted, is_over=True)


def test_each_planted_bug_is_caught(monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr(ModelDisk, "sync", without_sync)
        with pytest.raises(Violation):
            cut_backups(False, 1)
    with monkeypatch.context() as patch:
        patch.setattr(ModelDisk, "sync_directory", without_sync)
        with pytest.raises(Violation):
            cut_backups(True, 1)
    with monkeypatch.context() as patch:
        patch.setattr(wal.backup._Backup, "_clear", removed_too_early(wal.backup._Backup._clear))
        with pytest.raises(Violation):
            cut_backups(True, 1)


# ---------------------------------------------------------------- restoring


def test_a_restored_log_has_everything_and_goes_on():
    owner = an_owner()
    owner.snapshot(between=True)
    take(owner)
    report = restore(TARGET, RESTORED, disk=owner.disk)
    assert report.is_intact
    log = FileLog.open(RESTORED, SMALL, disk=owner.disk, is_threaded=False)
    assert log.report.was_clean
    assert log.last_sequence == len(owner.history.contents)
    assert log.manifest.snapshots == owner.log.manifest.snapshots
    assert log.append([published(7, channel=9)]) == len(owner.history.contents) + 1
    log.close()
    assert len(content(owner.disk, RESTORED)) == len(owner.history.contents) + 1
    assert content(owner.disk, TARGET) == owner.history.contents


def test_a_backup_that_is_made_while_a_restore_begins_is_the_one_restored():
    owner = an_owner()
    take(owner)

    def bring_up_to_date(kind: str, path: str) -> None:
        if path == RESTORED and kind == "make_directory":
            owner.disk.before = None
            owner.publish(12)
            assert take(owner).removed == 1

    owner.disk.before = bring_up_to_date
    assert restore(TARGET, RESTORED, disk=owner.disk).is_intact
    assert owner.disk.before is None
    assert content(owner.disk, RESTORED) == owner.history.contents


def test_a_restored_log_is_another_log():
    owner = an_owner()
    take(owner)
    report = restore(TARGET, RESTORED, disk=owner.disk)
    assert report.log_uuid != owner.log.uuid
    assert read_backup(owner.disk, TARGET).log_uuid == owner.log.uuid


def test_only_an_empty_directory_is_restored_to():
    owner = an_owner()
    take(owner)
    owner.disk.make_directory(RESTORED)
    owner.disk.close(owner.disk.create(f"{RESTORED}/precious"))
    with pytest.raises(BackupRefused, match="not empty: precious"):
        restore(TARGET, RESTORED, disk=owner.disk)
    assert owner.disk.list(RESTORED) == ["precious"]
    with pytest.raises(BackupRefused, match="one is in the other"):
        restore(TARGET, f"{TARGET}/log", disk=owner.disk)


def test_only_a_complete_backup_is_restored():
    owner = an_owner()
    with pytest.raises(BackupRefused, match="holds no backup"):
        restore(DIRECTORY, RESTORED, disk=owner.disk)
    take(owner)
    owner.disk.unlink(f"{TARGET}/{MANIFEST}")
    with pytest.raises(BackupRefused, match="no complete backup"):
        restore(TARGET, RESTORED, disk=owner.disk)


def test_a_flipped_byte_is_found_where_it_is_and_not_restored_unless_told_so():
    owner = an_owner()
    owner.disk.schedule("link", 1, errno.EXDEV)
    take(owner)
    name = read_backup(owner.disk, TARGET).segments[1].name(".wal")
    owner.disk.names[f"{TARGET}/{name}"].cache[300] ^= 4
    found = verify(TARGET, disk=owner.disk).damage
    assert [each.segment for each in found] == [name]
    assert found[0].position <= 300 < found[0].end
    report = restore(TARGET, RESTORED, disk=owner.disk)
    assert [(each.segment, each.position) for each in report.damage] == [(name, found[0].position)]
    assert owner.disk.list(RESTORED) == []
    assert not restore(TARGET, RESTORED, disk=owner.disk, accept_damage=True).is_intact
    log = FileLog.open(RESTORED, SMALL, disk=owner.disk, is_threaded=False)
    assert log.last_sequence == len(owner.history.contents)
    log.close()


def test_a_restore_that_does_not_fit_leaves_the_directory_empty():
    owner = an_owner()
    take(owner)
    owner.disk.schedule("write", 4, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        restore(TARGET, RESTORED, disk=owner.disk)
    assert owner.disk.list(RESTORED) == []


def test_a_power_cut_leaves_nothing_restored_or_everything():
    owner = an_owner()
    take(owner)
    expected = list(owner.history.contents)

    def judge(state: ModelDisk) -> None:
        if MARKER in state.list(RESTORED):
            with pytest.raises(BackupRefused, match="unfinished restore"):
                FileLog.open(RESTORED, SMALL, disk=state, is_threaded=False)
        elif set(state.list(RESTORED)) - {"LOCK"}:
            assert content(state, RESTORED) == expected

    assert after_each_operation(owner, lambda: restore(TARGET, RESTORED, disk=owner.disk), judge) > 50


# ---------------------------------------------------------------- stopped logs


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_stopped_log_is_backed_up_as_the_next_start_would_find_it(is_clean: bool):
    owner = an_owner()
    owner.publish(3, sync=False)
    owner.log.pump()
    if is_clean:
        owner.log.close()
    else:
        owner.disk.kill()
        live = owner.disk.names[f"{DIRECTORY}/{owner.log.segments()[-1].name}"]
        live.put(b"torn", owner.log.segments()[-1].bytes)
    back_up_stopped(DIRECTORY, TARGET, disk=owner.disk, random=owner.rng.randbytes)
    assert content(owner.disk, TARGET) == owner.history.contents


# ---------------------------------------------------------------- real files and a thread


@pytest.fixture
def running(tmp_path: Path) -> Iterator[FileLog]:
    options = Options(segment_bytes=1 << 16, snapshot_bytes=1 << 16, soft_free_bytes=0, retire_grace_us=0)
    log = FileLog.open(tmp_path / "log", options)
    log.start(nothing, nothing)
    yield log
    log.close()


def append(log: FileLog, first: int, count: int) -> None:
    for base in range(first, first + count):
        log.append([published(base, b"x" * 1000)])
    wait_until(lambda: log.synced == log.last_sequence)


def test_unchanged_segments_are_the_same_files(running: FileLog, tmp_path: Path):
    append(running, 0, 200)
    target = tmp_path / "backup"
    first = asyncio.run(running.back_up(str(target)))
    sealed = [each.name for each in running.segments() if each.is_sealed]
    assert first.linked == len(sealed) > 1
    places = {name: os.stat(target / name) for name in sealed}
    for name, place in places.items():
        assert os.path.samestat(place, os.stat(tmp_path / "log" / name))
        assert place.st_nlink == 2
    append(running, 200, 100)
    second = asyncio.run(running.back_up(str(target)))
    assert second.kept == len(sealed)
    assert {name: os.stat(target / name).st_ino for name in sealed} == {n: p.st_ino for n, p in places.items()}
    assert verify(str(target)).messages == 300
    assert {oct(path.stat().st_mode & 0o777) for path in target.iterdir()} == {"0o600"}


def test_what_a_backup_still_has_to_take_is_not_unlinked(running: FileLog, tmp_path: Path, monkeypatch):
    """The log is emptied while its backup is being copied."""
    append(running, 0, 300)
    monkeypatch.setattr(DirectDisk, "link", refuse_to_link)
    names = [each.name for each in running.segments() if each.is_sealed]
    chain = running.manifest.segments
    retired = False

    def progress(done: int, total: int) -> None:
        nonlocal retired
        if retired or done < 2.5 * (1 << 16):
            return
        retired = True
        running.run_between_groups(lambda writer: writer.replace_segments(names[1:], []))
        wait_until(lambda: len(running.manifest.segments) < len(chain))
        wait_until(lambda: not os.path.exists(os.path.join(running.directory, names[1])))  # what was taken goes
        assert os.path.exists(os.path.join(running.directory, names[-1]))

    made = asyncio.run(running.back_up(str(tmp_path / "backup"), progress))
    assert retired
    assert made.segments == len(chain)
    assert verify(str(tmp_path / "backup")).messages == 300
    wait_until(lambda: not running.manifest.retired)
    assert not os.path.exists(os.path.join(running.directory, names[-1]))


def refuse_to_link(disk: DirectDisk, old: str, new: str) -> None:
    raise OSError(errno.EXDEV, "Invalid cross-device link")


class Horizon:
    """The cleaner's orders: of channel 1 everything before an offset may go, channel 2 stays."""

    def __init__(self, start: int) -> None:
        self.start = start

    def start_of(self, channel_id: int, partition: int) -> int:
        return self.start if channel_id == 1 else 0

    def needs(self, record: object) -> bool:
        if not isinstance(record, Published):
            return False
        return record.channel_id == 2 or record.base_offset + record.count > self.start


@pytest.mark.parametrize("is_linked", [True, False], ids=["linked", "copied"])
def test_backups_beside_writers_and_the_cleaner_lack_nothing_that_is_needed(
    running: FileLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_linked: bool
):
    if not is_linked:
        monkeypatch.setattr(DirectDisk, "link", refuse_to_link)
    appended = cleaned = 0
    freed = 0

    def write() -> None:
        nonlocal appended
        for _ in range(300):
            running.append([published(appended, b"x" * 1000), published(appended, b"y", channel=2)])
            appended += 1
        begin = running.append([SnapshotBegin(channel_ids=[1, 2])])
        running.append(
            [ChannelSnapshot(channel_id=1), ChannelSnapshot(channel_id=2), SnapshotEnd(begin_sequence=begin)]
        )

    async def clean() -> None:
        nonlocal cleaned, freed
        while appended < ROUNDS * 300:
            cleaned = max(cleaned, appended - 100)
            freed += await running.clean(Horizon(cleaned), 1 << 20)

    async def back_up_all() -> None:
        for number in range(ROUNDS):
            await asyncio.to_thread(write)
            expected = appended
            made = await running.back_up(str(tmp_path / "backup"))
            first = cleaned
            assert made.last_sequence == running.last_sequence
            directory = str(tmp_path / f"restored-{number}")
            report = await asyncio.to_thread(restore, str(tmp_path / "backup"), directory)
            assert report.is_intact, report.damage
            found = FileLog.open(directory, Options(segment_bytes=1 << 16, snapshot_bytes=1 << 16, soft_free_bytes=0))
            slow = await found.read(2, 0, 0, 1 << 30)
            assert [each.base_offset for each in slow] == list(range(expected))
            fast = await found.read(1, 0, first, 1 << 30)
            assert [each.base_offset for each in fast] == list(range(first, expected))
            found.close()

    async def all_at_once() -> None:
        await asyncio.gather(back_up_all(), clean())

    asyncio.run(all_at_once())
    assert freed > 1 << 20


def test_one_backup_of_a_log_at_a_time(running: FileLog, tmp_path: Path):
    async def two() -> list[object]:
        both = (running.back_up(str(tmp_path / name)) for name in "ab")
        return await asyncio.gather(*both, return_exceptions=True)

    first, second = asyncio.run(two())
    assert isinstance(first, Backup)
    assert isinstance(second, BackupRefused)


async def backed_up_at_last(log: FileLog, target: Path) -> Backup:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            with suppress(BackupRefused):
                return await log.back_up(str(target))
            await asyncio.sleep(0)


def test_a_cancelled_backup_is_being_made_until_its_thread_is_over(running: FileLog, tmp_path: Path):
    begun, goes_on = threading.Event(), threading.Event()

    def progress(done: int, total: int) -> None:
        begun.set()
        assert goes_on.wait(DEADLINE_SECONDS)

    async def cancel_and_begin_another() -> None:
        first = asyncio.create_task(running.back_up(str(tmp_path / "a"), progress))
        assert await asyncio.to_thread(begun.wait, DEADLINE_SECONDS)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        with pytest.raises(BackupRefused, match="another backup"):
            await running.back_up(str(tmp_path / "b"))
        goes_on.set()
        await backed_up_at_last(running, tmp_path / "b")

    append(running, 0, 100)
    asyncio.run(cancel_and_begin_another())
    for name in "ab":
        assert verify(str(tmp_path / name)).messages == 100


def test_a_backup_that_is_cancelled_before_the_writer_gets_to_it_holds_no_segment(running: FileLog, tmp_path: Path):
    goes_on, is_past = threading.Event(), threading.Event()

    async def cancel_early() -> None:
        running.run_between_groups(lambda writer: asserted(goes_on.wait(DEADLINE_SECONDS)))
        task = asyncio.create_task(running.back_up(str(tmp_path / "backup")))
        await asyncio.sleep(0)  # it is queued
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        running.run_between_groups(lambda writer: is_past.set())
        goes_on.set()
        assert await asyncio.to_thread(is_past.wait, DEADLINE_SECONDS)
        await asyncio.to_thread(wait_until, lambda: not running._writer.held)

    append(running, 0, 100)
    asyncio.run(cancel_early())


def asserted(fact: bool) -> None:
    assert fact


def test_closing_the_log_ends_its_backup(tmp_path: Path, monkeypatch):
    log = FileLog.open(tmp_path / "log", Options(segment_bytes=1 << 16, snapshot_bytes=1 << 16, soft_free_bytes=0))
    log.start(nothing, nothing)
    append(log, 0, 300)
    monkeypatch.setattr(DirectDisk, "link", refuse_to_link)
    with pytest.raises(wal.errors.LogClosed):
        asyncio.run(log.back_up(str(tmp_path / "backup"), lambda done, total: log._closing.set()))
    log.close()
    with pytest.raises(BackupRefused, match="no complete backup"):
        read_backup(DirectDisk(), str(tmp_path / "backup"))


def test_another_file_system_gets_copies(running: FileLog, tmp_path: Path, other_file_system: Path):
    append(running, 0, 200)
    made = asyncio.run(running.back_up(str(other_file_system / "backup")))
    assert made.linked == 0
    assert made.copied == made.segments > 2
    assert verify(str(other_file_system / "backup")).messages == 200
    again = asyncio.run(running.back_up(str(other_file_system / "backup")))
    assert (again.kept, again.copied_bytes) == (made.segments, 0)


@pytest.fixture
def other_file_system(tmp_path: Path) -> Iterator[Path]:
    """Memory is one on nearly every Linux."""
    import tempfile

    if not os.access("/dev/shm", os.W_OK) or os.stat("/dev/shm").st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("there is no other file system to write to")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)
