"""Backups of real brokers: under load, killed in the middle, asked for by strangers, from the command line."""

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from history import OK, UNKNOWN, History
from process import Process, wait_until

import mq
from mq.client.wire import WireTransport
from mq.pb import mq_pb2 as pb
from mq.service.backups import MOST
from mq.testing import Running, broker
from wal.backup import MARKER, read_backup
from wal.disk import DirectDisk
from wal.manifest import MANIFEST
from wal.verify import verify

DEADLINE = 60.0


def mq_command(*arguments: str, code: int = 0, server: str = "mq://127.0.0.1:1", **settings: object) -> str:
    environment = {"PATH": os.environ["PATH"], "MQ_SERVER": server, "COLUMNS": "200"}
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-m", "mq.cli", *arguments],
        text=True, env=environment, timeout=DEADLINE,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **settings},  # type: ignore[call-overload]
    )  # fmt: skip
    assert answer.returncode == code, answer.stderr
    assert "Traceback" not in f"{answer.stdout} {answer.stderr}"
    return str(answer.stdout or answer.stderr)


# ---------------------------------------------------------------- under load


class Load:
    """Publishers and a consumer that never pause, and what they were told."""

    def __init__(self, address: str) -> None:
        self.history = History()
        self.acked: list[int] = []  # offsets whose ack was confirmed, in the order of the answers
        self._address = address
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        works = [*(lambda name=name: self._publish(name) for name in "ab"), self._consume, self._fill_and_purge]
        self._threads = [threading.Thread(target=self._run, args=(work,)) for work in works]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(DEADLINE)
        assert self._failures == []

    def _run(self, work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except BaseException as error:
            self._failures.append(error)

    def _publish(self, name: str) -> None:
        with mq.Client(self._address) as client:
            number = 0
            while not self._stop.is_set():
                content = f"{name}-{number}-".encode() + b"x" * 3000
                self.history.published(content, UNKNOWN)
                ack = client.publish("orders", content)
                self.history.published(content, OK, (ack.partition, ack.offset), is_idempotent=True)
                number += 1

    def _consume(self) -> None:
        with mq.Client(self._address) as client, client.consumer("orders", group="workers") as consumer:
            while not self._stop.is_set():
                for message in (batch := consumer.fetch(20, timeout=0.1)):
                    self.history.delivered(message.value, (0, message.offset), 1, "workers")
                consumer.ack(batch)
                consumer.flush()
                self.acked += [message.offset for message in batch]

    def _fill_and_purge(self) -> None:
        """What the cleaner lives on: segments in which nearly everything is dead."""
        with mq.Client(self._address) as client:
            while not self._stop.is_set():
                client.publish("rubbish", b"y" * 50_000)
                client.purge_channel("rubbish")


def test_backups_under_load_hold_everything_answered_before_and_nothing_unknown(tmp_path: Path) -> None:
    small = {"WAL_SEGMENT_SIZE": "256KiB", "SERVER_MAX_RECV_MSG_SIZE": "256KiB"}
    environment = {"BACKUP_DIR": str(tmp_path / "backups"), "WAL_RETIRE_GRACE": "0s", **small}
    process = Process(tmp_path, "--data-dir", "data", **environment)
    address = f"mq://127.0.0.1:{process.wait_for_port('wire')}"
    moments: list[tuple[str, set[bytes], set[int]]] = []
    with mq.Client(address) as client:
        for name in ("orders", "rubbish"):
            client.create_channel(name)
        client.create_group("orders", "workers")
        with Load(address) as load:
            for number in range(6):
                wait_until(lambda number=number: len(load.acked) > 100 * (number + 1))  # type: ignore[misc]
                answered = {content for content, (outcome, *_) in list(load.history.publishes.items()) if outcome == OK}
                acked = set(load.acked)
                name = f"moment-{number // 2}"  # each is made, and then brought up to date
                made = client.create_backup(name)
                assert made.last_sequence > 0
                if number % 2:
                    moments.append((name, answered, acked))
                    assert made.kept or made.linked
    process.signal()
    assert process.wait() == 0, process.output
    for name, answered, acked in moments:
        check_restored(tmp_path, name, answered, acked, load.history)


def check_restored(tmp_path: Path, name: str, answered: set[bytes], acked: set[int], known: History) -> None:
    mq_command("backup", "verify", str(tmp_path / "backups" / name))
    mq_command("backup", "restore", str(tmp_path / "backups" / name), "--data-dir", str(tmp_path / name))
    history = History(publishes=dict(known.publishes))
    for content in known.publishes.keys() - answered:
        history.publishes[content] = (UNKNOWN, *known.publishes[content][1:])
    with broker(tmp_path / name, LOG_LEVEL="ERROR") as running, mq.Client(running) as client:
        partition = client.describe_channel("orders").partitions[0]
        history.ranges[0] = (partition.start_offset, partition.next_offset)
        for message in client.read("orders", start="earliest", follow=False):
            history.stored[0, message.offset] = message.value
        redelivered = set()
        with client.consumer("orders", group="workers") as consumer:
            while batch := consumer.fetch(500, timeout=0.3):
                redelivered |= {message.offset for message in batch}
                consumer.ack(batch)
    assert history.check([]) == []
    assert answered <= set(history.stored.values())
    assert not redelivered & acked, "an ack that was confirmed before the backup is not in it"
    places = {content: place for content, (_, place, _) in known.publishes.items()}
    assert all(places[content] in (place, None) for place, content in history.stored.items())


def test_the_check_notices_what_a_backup_lacks(tmp_path: Path) -> None:
    """The check above, on a backup that lacks the last ack and the last message."""
    backups = tmp_path / "backups"
    with broker(tmp_path / "data", BACKUP_DIR=str(backups)) as running, mq.Client(running) as client:
        client.create_channel("orders")
        client.create_group("orders", "workers")
        history = History()
        for number in range(3):
            if number == 2:
                client.create_backup("short")
            ack = client.publish("orders", b"%d" % number)
            history.published(b"%d" % number, OK, (0, ack.offset), is_idempotent=True)
        with client.consumer("orders", group="workers") as consumer:
            consumer.ack(consumer.fetch(3, timeout=2.0))
    with pytest.raises(AssertionError, match="gone"):
        check_restored(tmp_path, "short", set(history.publishes), set(), history)
    (tmp_path / "short").rename(tmp_path / "before")
    with pytest.raises(AssertionError, match="an ack that was confirmed"):
        check_restored(tmp_path, "short", {b"0", b"1"}, {0, 1}, history)


# ---------------------------------------------------------------- killed in the middle


@pytest.fixture
def other_file_system(tmp_path: Path) -> Iterator[Path]:
    """Memory is one on nearly every Linux: there is something to copy, not only to link."""
    if not os.access("/dev/shm", os.W_OK) or os.stat("/dev/shm").st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no other file system to write to")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


def test_a_broker_killed_in_the_middle_of_a_backup_leaves_the_one_before(
    tmp_path: Path, other_file_system: Path
) -> None:
    fuse = tmp_path / "fuse"

    class Dying(Process):
        entry = (str(Path(__file__).with_name("dyingserve.py")), str(fuse))

    settings = {
        "WAL_SEGMENT_SIZE": "256KiB", "SERVER_MAX_RECV_MSG_SIZE": "256KiB", "BACKUP_DIR": str(other_file_system),
    }  # fmt: skip
    nightly = other_file_system / "nightly"
    messages = 0
    was_cut = 0
    for step in (0, 3, 6, 9, 12, 15, 0):
        process = Dying(tmp_path, "--data-dir", "data", **settings)
        port = process.wait_for_port("wire")
        with mq.Client(f"mq://127.0.0.1:{port}") as client:
            client.create_channel("orders", exist_ok=True)
            for _ in range(4):  # each in a segment of its own
                client.publish("orders", b"x" * 150_000)
                messages += 1
            if not step:
                client.create_backup("nightly")
                process.signal()
                assert process.wait() == 0
                assert verify(str(nightly)).messages == messages
                continue
        before = verify(str(nightly)).messages
        once = WireTransport("127.0.0.1", port)  # a client would try again
        fuse.with_suffix(".new").write_text(str(step))
        fuse.with_suffix(".new").rename(fuse)
        with suppress(mq.Unavailable):
            once.call("mq.AdminService/CreateBackup", pb.CreateBackupRequest(directory="nightly").SerializeToString())
        assert process.wait() == -signal.SIGKILL
        once.close()
        fuse.unlink()
        found = verify(str(nightly))
        assert found.is_intact
        assert found.messages in (before, messages)
        was_cut += found.messages == before and bool(unneeded(nightly))
    assert was_cut >= 2
    assert unneeded(nightly) == set()


def unneeded(backup: Path) -> set[str]:
    """What a backup that was cut short left there."""
    manifest = read_backup(DirectDisk(), str(backup))
    needed = {entry.name(manifest.extension) for entry in manifest.segments} | {MANIFEST, MARKER, "LOCK"}
    return set(os.listdir(backup)) - needed


# ---------------------------------------------------------------- who may write where


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("backup")


@pytest.fixture(scope="module")
def address(home: Path) -> Iterator[Running]:
    with broker(home / "data", LOG_LEVEL="CRITICAL", BACKUP_DIR=str(home / "backups")) as running:
        with mq.Client(running) as client:
            client.create_channel("orders")
            for number in range(5):
                client.publish("orders", b"%d" % number)
        yield running


@pytest.mark.parametrize(
    "directory", ["../escape", "/etc/mq", "a/b", "/tmp/../tmp/x", "{home}/data", "{home}/backups/a/b"]
)
def test_a_backup_is_made_in_one_place_and_nowhere_else(home: Path, address: str, directory: str) -> None:
    with mq.Client(address) as client, pytest.raises(mq.PermissionDenied) as refused:
        client.create_backup(directory.format(home=home))
    assert str(home) not in str(refused.value)
    assert not (home / "escape").exists()


def test_the_whole_path_of_a_backup_is_as_good_as_its_name(home: Path, address: str) -> None:
    with mq.Client(address) as client:
        by_name = client.create_backup("same")
        by_path = client.create_backup(f"{home}/backups/same/")
    assert by_name.directory == by_path.directory == str(home / "backups" / "same")
    assert (by_path.linked, by_path.copied) == (0, 0)


def test_a_link_that_leads_elsewhere_is_not_followed(home: Path, address: str) -> None:
    (home / "elsewhere").mkdir()
    (home / "backups").mkdir(exist_ok=True)
    (home / "backups" / "linked").symlink_to(home / "elsewhere")
    with mq.Client(address) as client, pytest.raises(mq.BackupRefused, match="'linked'") as refused:
        client.create_backup("linked")
    assert str(home) not in str(refused.value)
    assert list((home / "elsewhere").iterdir()) == []


def test_there_are_only_so_many_backups(tmp_path: Path) -> None:
    """Each keeps segments on disk that the log has dropped: a loop with a new name every time would fill it."""
    backups = tmp_path / "backups"
    with (
        broker(tmp_path / "data", LOG_LEVEL="CRITICAL", BACKUP_DIR=str(backups)) as running,
        mq.Client(running) as client,
    ):
        client.create_backup("first")
        for number in range(MOST - 1):
            (backups / f"other-{number}").mkdir()
        (backups / "notes.txt").write_text("no backup")
        with pytest.raises(mq.BackupRefused, match="64 backups already") as refused:
            client.create_backup("next")
        assert str(tmp_path) not in str(refused.value)
        assert not (backups / "next").exists()
        client.create_backup("first")
        (backups / "other-0").rmdir()
        client.create_backup("next")


def test_what_is_no_backup_is_left_alone(home: Path, address: str) -> None:
    (home / "backups" / "photos").mkdir(parents=True)
    (home / "backups" / "photos" / "cat.jpg").write_bytes(b"cat")
    with mq.Client(address) as client, pytest.raises(mq.BackupRefused, match="holds no backup"):
        client.create_backup("photos")
    assert [path.name for path in (home / "backups" / "photos").iterdir()] == ["cat.jpg"]


def test_without_a_place_for_them_no_backups_are_made(tmp_path: Path) -> None:
    with broker(tmp_path / "data") as running, mq.Client(running) as client:
        with pytest.raises(mq.PermissionDenied, match="BACKUP_DIR"):
            client.create_backup("nightly")
        with pytest.raises(mq.BackupNotFound):
            client.describe_backup("0" * 16)


def test_a_broker_without_a_disk_has_no_backup(tmp_path: Path) -> None:
    with broker(BACKUP_DIR=str(tmp_path)) as running, mq.Client(running) as client:
        with pytest.raises(mq.BackupRefused) as refused:
            client.create_backup("nightly")
        assert "memory" in str(refused.value)


@pytest.mark.parametrize("scheme", ["mq", "grpc"])
def test_asyncio_and_both_doors_make_backups(address: Running, scheme: str) -> None:
    server = str(address) if scheme == "mq" else f"grpc://{address.address}"

    async def make() -> tuple[int, list[int]]:
        seen: list[int] = []
        async with mq.AsyncClient(server) as client:
            made = await client.create_backup("async", lambda info: seen.append(info.state))
            assert await client.describe_backup(made.backup_id) == made
        return made.state, seen

    state, seen = asyncio.run(make())
    assert state == seen[-1] == 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real disk of two mebibytes."""
    where = tmp_path / "small"
    where.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(where)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"NOT SHOWN on this machine: a real full disk needs the right to mount: {mounted.stderr.strip()}")
    yield where
    subprocess.run(["umount", "--lazy", str(where)], check=True)


def test_a_full_disk_of_backups_harms_neither_the_broker_nor_the_backup_before(
    tmp_path: Path, small_disk: Path
) -> None:
    settings = {"BACKUP_DIR": str(small_disk / "backups"), "LOG_LEVEL": "CRITICAL"}
    with broker(tmp_path / "data", **settings) as running, mq.Client(running) as client:
        client.create_channel("orders")
        client.publish("orders", b"first")
        client.create_backup("nightly")
        for _ in range(10):
            client.publish("orders", b"x" * 300_000)
        with pytest.raises(mq.ResourceExhausted, match="disk of the backup is full"):
            client.create_backup("nightly")
        assert verify(str(small_disk / "backups" / "nightly")).messages == 1
        assert client.publish("orders", b"next").offset == 11


# ---------------------------------------------------------------- the command


def test_a_backup_is_made_verified_and_restored_by_command(home: Path, address: str) -> None:
    made = json.loads(mq_command("backup", "create", "nightly", "-o", "json", server=address))
    directory = made["directory"]
    assert directory == str(home / "backups" / "nightly")
    assert made["segments"] == made["linked"] + made["copied"] + made["kept"]
    report = json.loads(mq_command("backup", "verify", directory, "-o", "json"))
    assert (report["intact"], report["messages"], report["damage"]) == (True, 5, [])
    assert "intact" in mq_command("backup", "restore", directory, "--data-dir", str(home / "restored"))
    with broker(home / "restored", LOG_LEVEL="ERROR") as running, mq.Client(running) as client:
        values = [message.value for message in client.read("orders", start="earliest", follow=False)]
        assert values == [b"%d" % number for number in range(5)]
        assert client.server_info().log_uuid != report["log"]
    mq_command("backup", "restore", directory, "--data-dir", str(home / "restored"), code=4)  # not empty any more
    mq_command("serve", "--data-dir", directory, "--port", "0", code=1)


def test_a_flipped_byte_is_told_with_its_place(home: Path, address: str) -> None:
    directory = Path(json.loads(mq_command("backup", "create", "flipped", "-o", "json", server=address))["directory"])
    (tail,) = [path for path in directory.glob("*.wal") if path.stat().st_nlink == 1]
    data = bytearray(tail.read_bytes())
    data[200] ^= 1
    tail.write_bytes(data)
    (damage,) = json.loads(mq_command("backup", "verify", str(directory), "-o", "json", code=1))["damage"]
    assert damage["segment"] == tail.name
    assert damage["position"] <= 200 < damage["end"]
    new = str(home / "from-flipped")
    mq_command("backup", "restore", str(directory), "--data-dir", new, code=1)
    assert os.listdir(new) == []
    mq_command("backup", "restore", str(directory), "--data-dir", new, "--accept-damage", code=1)
    with broker(new, LOG_LEVEL="CRITICAL") as running, mq.Client(running) as client:
        client.server_info()


def test_a_stopped_log_needs_no_broker_and_a_running_one_refuses(tmp_path: Path) -> None:
    data, target = str(tmp_path / "data"), str(tmp_path / "backup")
    with broker(data, LOG_LEVEL="ERROR") as running, mq.Client(running) as client:
        client.create_channel("orders")
        client.publish("orders", b"one")
        assert "without --data-dir" in mq_command("backup", "create", target, "--data-dir", data, code=4)
    mq_command("backup", "create", target, "--data-dir", data)
    assert json.loads(mq_command("backup", "verify", target, "-o", "json"))["messages"] == 1
    mq_command("backup", "create", f"{data}/backup", "--data-dir", data, code=4)
    mq_command("backup", "create", data, "--data-dir", data, code=4)
    mq_command("backup", "create", str(tmp_path / "other"), "--data-dir", str(tmp_path / "none"), code=2)
    mq_command("backup", "verify", data, code=3)
    mq_command("backup", "restore", data, "--data-dir", str(tmp_path / "new"), code=4)


@pytest.mark.parametrize("is_running", [True, False], ids=["of a broker", "of a stopped log"])
def test_a_backup_of_a_log_that_lacks_a_segment_is_made_and_fails(tmp_path: Path, is_running: bool) -> None:
    data, backups = tmp_path / "data", tmp_path / "backups"
    with broker(data, LOG_LEVEL="CRITICAL", BACKUP_DIR=str(backups)) as running:
        with mq.Client(running) as client:
            client.create_channel("orders")
            client.publish("orders", b"one")
            client.rotate_segment()
            client.publish("orders", b"two")  # the segment before is sealed by now
            min(data.glob("*.wal")).unlink()
        if is_running:
            told = mq_command("backup", "create", "nightly", code=1, server=running, stderr=subprocess.STDOUT)
    if not is_running:
        arguments = ("backup", "create", str(backups / "nightly"), "--data-dir", str(data))
        told = mq_command(*arguments, code=1, stderr=subprocess.STDOUT)
    assert "1 segments are missing in the log, and so in its backup" in told
    (damage,) = json.loads(mq_command("backup", "verify", str(backups / "nightly"), "-o", "json", code=1))["damage"]
    assert damage["segment"].startswith("00000000000000000001-")


def test_a_full_disk_is_one_line_and_leaves_the_backup_before(tmp_path: Path) -> None:
    data, target = str(tmp_path / "data"), tmp_path / "backup"
    with broker(data, LOG_LEVEL="ERROR") as running, mq.Client(running) as client:
        client.create_channel("orders")
        client.publish("orders", b"one")
    mq_command("backup", "create", str(target), "--data-dir", data)
    with broker(data, LOG_LEVEL="ERROR") as running, mq.Client(running) as client:
        client.publish("orders", b"x" * 500_000)
    before = sorted(path.name for path in target.iterdir())

    def little_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    told = mq_command("backup", "create", str(target), "--data-dir", data, code=1, preexec_fn=little_room)
    assert len(told.splitlines()) == 1
    assert sorted(path.name for path in target.iterdir()) == before
    assert verify(str(target)).messages == 1
