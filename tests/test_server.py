"""The server as a process: starting, stopping, failing, and what it says about each."""

import asyncio
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from process import DEADLINE, Process, wait_until

import mq
import mq.server
from mq.broker import Broker
from mq.config import Config
from mq.limits import Limits
from mq.pb import mq_pb2 as pb
from mq.pb import mq_pb2_grpc
from mq.testing import broker
from wal import FileLog, MemoryLog, WalError
from wal.clock import SystemClock

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@contextmanager
def serving(directory: Path, *arguments: str, **variables: str) -> Iterator[tuple[Process, grpc.Channel]]:
    process = Process(directory, *arguments, **variables)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{process.wait_for_port()}") as channel:
            yield process, channel
    finally:
        process.process.kill()
        process.wait()


def publish(channel: grpc.Channel, name: str, *contents: bytes) -> None:
    stub = mq_pb2_grpc.MQServiceStub(channel)
    stub.CreateChannel(pb.CreateChannelRequest(channel=name), timeout=DEADLINE)
    batch = pb.Batch(messages=[pb.BatchMessage(content=content) for content in contents])
    stub.PublishBatch(pb.PublishBatchRequest(channel=name, batch=batch), timeout=DEADLINE)


def health_of(channel: grpc.Channel, service: str = "") -> int:
    request = health_pb2.HealthCheckRequest(service=service)
    return health_pb2_grpc.HealthStub(channel).Check(request, timeout=DEADLINE).status


# ---------------------------------------------------------------- a life


def test_it_starts_in_an_empty_directory_and_stops_cleanly(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, channel):
        publish(channel, "orders", b"a", b"b")
        process.signal()
        assert process.wait() == 0
        assert "recovered 0 channels" in process.output
        assert (tmp_path / "data").is_dir()
    with serving(tmp_path) as (process, channel):
        assert "recovered 1 channel, 0 groups, 2 messages" in process.output
        assert "not clean" not in process.output


def test_after_a_kill_it_says_so_and_has_everything(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, channel):
        publish(channel, "orders", b"a", b"b", b"c")
        process.signal(signal.SIGKILL)
        process.wait()
    with serving(tmp_path) as (process, channel):
        assert "the last stop was not clean" in process.output
        assert "recovered 1 channel, 0 groups, 3 messages" in process.output
        request = pb.PullRequest(channel="orders")
        (pulled,) = mq_pb2_grpc.MQServiceStub(channel).Pull(request, timeout=DEADLINE).batches
        assert [message.content for message in pulled.batch.messages] == [b"a", b"b", b"c"]


def test_a_stop_answers_what_waits_and_ends_what_streams(tmp_path: Path) -> None:
    with serving(tmp_path, SERVER_GRACEFUL_SHUTDOWN_TIMEOUT="20s") as (process, channel):
        publish(channel, "orders", b"a")
        stub = mq_pb2_grpc.MQServiceStub(channel)
        latest = pb.PullRequest(channel="orders", start=pb.Start(latest=True), max_wait_ms=60_000)
        waiting = [stub.Pull.future(latest, timeout=DEADLINE) for _ in range(20)]
        subscribe = pb.SubscribeRequest(channel="orders", offset=pb.SubscribeRequest.OFFSET_BEGINNING)
        slow = pb.SubscribeRequest(channel="orders", offset=subscribe.offset, pull_interval=1 << 63)
        streams = [stub.Subscribe(each, timeout=DEADLINE) for each in (subscribe, slow)]
        assert [next(stream).content for stream in streams] == [b"a", b"a"]
        idle = threading.Event()

        def requests() -> Iterator[pb.PublishBatchRequest]:
            yield pb.PublishBatchRequest(channel="orders", batch=pb.Batch(messages=[pb.BatchMessage(content=b"z")]))
            idle.wait(DEADLINE)

        publishing = stub.PublishStream(requests(), timeout=DEADLINE)
        next(publishing)
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=DEADLINE)
        assert next(watch).status == SERVING
        begin = time.monotonic()
        process.signal()
        assert process.wait() == 0
        assert time.monotonic() - begin < 10
        for each in waiting:
            assert each.exception() is None or each.code() == grpc.StatusCode.UNAVAILABLE
        for stream in (*streams, publishing):
            with pytest.raises(grpc.RpcError) as caught:
                list(stream)
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        idle.set()


def test_a_stop_under_load_loses_no_answered_publish(tmp_path: Path) -> None:
    answered = 0
    with serving(tmp_path) as (process, channel):
        publish(channel, "orders", b"first")
        call = mq_pb2_grpc.MQServiceStub(channel).Publish
        request = pb.PublishRequest(channel="orders", content=b"x")
        pending = [call.future(request, timeout=DEADLINE) for _ in range(200)]
        pending[0].result()
        process.signal()
        assert process.wait() == 0
        for each in pending:
            if each.exception() is None:
                answered += 1
            else:
                assert each.code() == grpc.StatusCode.UNAVAILABLE
    with serving(tmp_path) as (process, channel):
        info = mq_pb2_grpc.AdminServiceStub(channel).ServerInfo(pb.ServerInfoRequest(), timeout=DEADLINE)
        assert info.messages >= answered + 1 > 1


def test_a_second_signal_exits_at_once(tmp_path: Path) -> None:
    code = (
        "import asyncio, mq.server\nfrom mq.config import Config\n"
        "async def never(self): await asyncio.sleep(3600)\n"
        "mq.server.Server.stop = never\n"
        "raise SystemExit(mq.server.run(Config.from_env({'SERVER_PORT': '0', 'STORAGE_MODE': 'memory'})))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stderr is not None
    for line in process.stderr:
        if "listening on" in line:
            process.send_signal(signal.SIGTERM)
        elif "stopping" in line:
            process.send_signal(signal.SIGINT)
            break
    assert process.wait(DEADLINE) == 1
    process.stderr.close()


# ---------------------------------------------------------------- starts that fail


def run_to_end(directory: Path, *arguments: str, **variables: str) -> tuple[int, list[str]]:
    process = Process(directory, *arguments, **variables)
    return process.wait(), process.lines


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with broker() as other:
        code, lines = run_to_end(tmp_path, "--port", str(other.port), "--wire-port", "0")
    assert code == 1
    (line,) = lines
    assert line == f"mq: can't listen on 127.0.0.1:{other.port}: Address already in use"


def test_a_locked_directory_is_one_clear_line(tmp_path: Path) -> None:
    with broker(tmp_path / "data"):
        code, lines = run_to_end(tmp_path)
    assert code == 1
    (line,) = lines
    assert line.startswith("mq: ")
    assert "data" in line


def test_a_directory_that_is_none_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, lines = run_to_end(tmp_path, "--data-dir", "file")
    assert code == 1
    (line,) = lines
    assert line.startswith("mq: ")
    assert "file" in line


def test_bad_settings_are_all_told_and_nothing_starts(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("STORAGE_MODE=tape\n")
    code, lines = run_to_end(tmp_path, SERVER_PORT="x", WAL_DIR_PAHT="y")
    assert code == 2
    assert len(lines) == 3
    assert all(line.startswith("mq: ") for line in lines)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_an_error_of_the_disk_is_one_clear_line(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(config: Config) -> MemoryLog:
        raise OSError(number, os.strerror(number), "/somewhere/x.wal")

    monkeypatch.setattr(mq.server, "open_log", fail)

    async def start() -> str:
        with pytest.raises(mq.server.StartFailed) as caught:
            await mq.server.Server(Config(port=0)).start()
        return str(caught.value)

    assert asyncio.run(start()) == f"/somewhere/x.wal: {os.strerror(number)}"


# ---------------------------------------------------------------- health


def test_health_says_not_serving_while_it_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    is_recovered = threading.Event()
    opening = threading.Event()
    servers: list[Any] = []

    async def slow(config: Config) -> MemoryLog:
        opening.set()
        await asyncio.to_thread(is_recovered.wait, DEADLINE)
        return MemoryLog()

    class Remembered(mq.server.Server):
        def __init__(self, config: Config) -> None:
            super().__init__(config)
            servers.append(self)

    monkeypatch.setattr(mq.server, "open_log", slow)
    monkeypatch.setattr("mq.testing.Server", Remembered)

    def run() -> None:
        with broker():
            is_done.wait(DEADLINE)

    is_done = threading.Event()
    thread = threading.Thread(target=run)
    thread.start()
    assert opening.wait(DEADLINE)
    wait_until(lambda: servers[0]._grpc is not None and servers[0].grpc.port > 0)
    with grpc.insecure_channel(f"127.0.0.1:{servers[0].grpc.port}") as channel:
        for service in ("", "mq.MQService", "mq.AdminService"):
            assert health_of(channel, service) == NOT_SERVING
        with pytest.raises(grpc.RpcError) as caught:
            publish(channel, "orders", b"x")
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert dict(caught.value.trailing_metadata())["mq-reason"] == "Unavailable"
        is_recovered.set()
        wait_until(lambda: health_of(channel) == SERVING)
        publish(channel, "orders", b"x")
    is_done.set()
    thread.join(DEADLINE)


def test_the_wire_of_a_log_that_is_recovered_at_once_does_not_wait_for_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[bool] = []
    opened = mq.server.Server._open_grpc

    async def noted(self: mq.server.Server, *service: Any) -> None:
        served.append(self.wire.service is not None)
        await opened(self, *service)

    monkeypatch.setattr(mq.server.Server, "_open_grpc", noted)
    with broker() as running, grpc.insecure_channel(running.address) as channel:
        assert health_of(channel) == SERVING
        publish(channel, "orders", b"x")
    assert served == [True]


def test_who_waited_for_the_start_is_answered_before_grpc_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    answered, in_time = threading.Event(), []
    opened, open_log = mq.server.Server._open_grpc, mq.server.open_log

    async def noted(self: mq.server.Server, *service: Any) -> None:
        in_time.append(answered.is_set())
        await opened(self, *service)

    async def when_somebody_waits(config: Config) -> Any:
        wire = servers[0].wire
        caller = threading.Thread(target=call, args=(f"mq://127.0.0.1:{wire.port}",))
        caller.start()
        await asyncio.to_thread(wait_until, lambda: bool(wire.connections))
        await asyncio.sleep(0.05)  # so that its call is there
        return await open_log(config)

    def call(address: str) -> None:
        with mq.Client(address) as client:
            client.create_channel("c")
            answered.set()

    class Remembered(mq.server.Server):
        def __init__(self, config: Config) -> None:
            super().__init__(config)
            servers.append(self)

    servers: list[Any] = []
    monkeypatch.setattr(mq.server, "SHORT_SECONDS", DEADLINE)
    monkeypatch.setattr(mq.server, "FIRST_SECONDS", 1.0)
    monkeypatch.setattr(mq.server, "open_log", when_somebody_waits)
    monkeypatch.setattr(mq.server.Server, "_open_grpc", noted)
    monkeypatch.setattr("mq.testing.Server", Remembered)
    with broker():
        assert in_time == [True]


def test_a_start_that_fails_for_whatever_reason_leaves_a_log_that_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(**_: Any) -> None:
        raise RuntimeError("another gRPC than this was made for")

    with monkeypatch.context() as patch:
        patch.setattr("mq.doors.grpc.GrpcDoor", broken)
        with pytest.raises(RuntimeError, match="another gRPC"), broker(tmp_path):
            pass
    with broker(tmp_path) as running, grpc.insecure_channel(running.address) as channel:
        publish(channel, "orders", b"x")


@pytest.mark.parametrize(
    ("error", "raised"),
    [(ValueError("strange"), ValueError), (WalError("damaged"), mq.server.StartFailed), (OSError(5, "io"), None)],
    ids=["a mistake", "the log", "the disk"],
)
def test_a_replay_that_fails_leaves_a_log_that_can_be_opened(
    error: Exception, raised: type[Exception] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replay(self: FileLog) -> Iterator[Any]:
        raise error

    with broker(tmp_path) as running, grpc.insecure_channel(running.address) as channel:
        publish(channel, "orders", b"x")
    with monkeypatch.context() as patch:
        patch.setattr(FileLog, "replay", replay)
        with pytest.raises(raised or mq.server.StartFailed), broker(tmp_path):
            pass
    FileLog.open(tmp_path).close()
    with broker(tmp_path) as running, grpc.insecure_channel(running.address) as channel:
        publish(channel, "orders", b"y")


@pytest.mark.parametrize("moment", ["opens", "replays"])
def test_a_start_that_is_cancelled_leaves_a_log_that_can_be_opened(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_there, may_go_on = threading.Event(), threading.Event()
    open_plainly = FileLog.open

    def open_slowly(*args: Any) -> FileLog:
        is_there.set()
        assert may_go_on.wait(DEADLINE)
        return open_plainly(*args)

    async def replay_slowly(self: Broker) -> int:
        is_there.set()
        await asyncio.Event().wait()
        return 0

    if moment == "opens":
        monkeypatch.setattr(FileLog, "open", open_slowly)
    else:
        monkeypatch.setattr(Broker, "_replay", replay_slowly)

    async def start_and_cancel() -> None:
        config = Config.from_env({"SERVER_PORT": "0", "WAL_DIR_PATH": str(tmp_path), "WAL_SEGMENT_SIZE": "8MiB"})
        starting = asyncio.create_task(mq.server.Server(config).start())
        await asyncio.to_thread(is_there.wait, DEADLINE)
        starting.cancel()
        await asyncio.sleep(0)
        may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(start_and_cancel())
    open_plainly(tmp_path).close()


def test_a_broker_that_can_not_be_closed_well_closes_its_log_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: Broker) -> None:
        raise ValueError("strange")

    async def start_and_close() -> None:
        log_broker = Broker(FileLog.open(tmp_path), SystemClock(), Limits())
        await log_broker.start()
        log_broker._agenda.stop()
        monkeypatch.setattr(Broker, "drain", fail)
        with pytest.raises(ValueError, match="strange"):
            await log_broker.close()

    asyncio.run(start_and_close())
    FileLog.open(tmp_path).close()


def test_a_port_that_is_taken_in_the_last_moment_leaves_a_log_that_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mq.server, "check_free", lambda *_: None)
    with broker() as other:
        with pytest.raises(mq.server.StartFailed, match="in use"), broker(tmp_path, SERVER_PORT=str(other.port)):
            pass
        with broker(tmp_path) as running, grpc.insecure_channel(running.address) as channel:
            publish(channel, "orders", b"x")


def test_a_failed_log_stops_the_serving_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryLog()

    async def given(config: Config) -> MemoryLog:
        return log

    monkeypatch.setattr(mq.server, "open_log", given)
    with broker() as running, grpc.insecure_channel(running.address) as channel:
        publish(channel, "orders", b"x")
        running.loop.call_soon_threadsafe(log.fail, OSError(errno.EIO, "Input/output error"))
        wait_until(lambda: health_of(channel) == NOT_SERVING)
        for _ in range(2):
            with pytest.raises(grpc.RpcError) as caught:
                publish(channel, "orders", b"y")
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


def test_a_directory_that_is_removed_stops_the_serving(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, channel):
        publish(channel, "orders", b"x")
        shutil.rmtree(tmp_path / "data")
        wait_until(lambda: health_of(channel) == NOT_SERVING)
        with pytest.raises(grpc.RpcError) as caught:
            publish(channel, "orders", b"y")
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        process.signal(signal.SIGTERM)
        assert process.wait() == 1
        said = process.output
    assert "storage failed" in said
    assert "Traceback" not in said


# ---------------------------------------------------------------- what it says


def test_in_production_every_line_is_json(tmp_path: Path) -> None:
    with serving(tmp_path, ENV="production", BROKER_HOST="localhost") as (process, _):
        process.signal()
        assert process.wait() == 0
        lines = [json.loads(line) for line in process.lines]
    assert {"time", "level", "message"} <= lines[0].keys()
    assert any("SERVER_HOST" in line["message"] for line in lines)
    assert any(line["message"].startswith("listening on") for line in lines)


def test_listening_beyond_loopback_without_tls_is_told_loudly(tmp_path: Path) -> None:
    with serving(tmp_path, SERVER_HOST="0.0.0.0", STORAGE_MODE="memory") as (process, _):
        wait_until(lambda: "without TLS" in process.output)
        assert "nothing is kept on disk" in process.output


def test_check_config_prints_the_settings_and_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("STORAGE_BATCH_SIZE=7\n")
    command = [sys.executable, "-m", "mq.cli", "serve", "--check-config", "--addr", "0.0.0.0:1"]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "STORAGE_BATCH_SIZE=7\n" in answer.stdout
    assert "SERVER_HOST=0.0.0.0\nSERVER_PORT=1\n" in answer.stdout
    assert not (tmp_path / "data").exists()
