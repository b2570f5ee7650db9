"""The processes of the benchmark: broker, bare server, clients. Each ends with its `with` block."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
from load import batch

from mq.pb import mq_pb2 as pb

HERE = Path(__file__).parent
LARGE = [("grpc.max_receive_message_length", 64 << 20)]


class Broker:
    """One broker process on its own directory."""

    def __init__(self, directory: Path, **environment: str) -> None:
        self.directory = directory
        # its own settings and nobody else's; the log level keeps the terminal for the table
        self._environment = {"PATH": os.environ["PATH"], "LOG_LEVEL": "WARNING", "SERVER_WIRE_PORT": "0", **environment}
        self.port = free_port()
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "mq.cli", "serve", "--port", str(self.port), "--data-dir", self.directory]
        return subprocess.Popen(command, env=self._environment, cwd=HERE.parent)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def call(self, method: str, request: object, answer: type, deadline: float = 60.0) -> object:
        with grpc.insecure_channel(self.address, options=LARGE) as channel:
            call = channel.unary_unary(f"/mq.{method}", response_deserializer=answer.FromString)
            return call(request.SerializeToString(), timeout=deadline, wait_for_ready=True)

    def wait_until_serving(self) -> float:
        begin = time.perf_counter()
        while True:
            with suppress(grpc.RpcError):
                self.call("AdminService/ServerInfo", pb.ServerInfoRequest(), pb.ServerInfoResponse, 5.0)
                return time.perf_counter() - begin
            if self.process.poll() is not None:
                sys.exit("the broker ended")
            time.sleep(0.01)

    def end_offset(self, name: str) -> int:
        request = pb.DescribeChannelRequest(channel=name)
        return self.call("AdminService/DescribeChannel", request, pb.ChannelInfo).partitions[0].next_offset

    def create(self, *names: str) -> None:
        for name in names:
            self.call("MQService/CreateChannel", pb.CreateChannelRequest(channel=name), pb.CreateChannelResponse)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def restart(self) -> float:
        """Seconds from the start of the process to the first answer."""
        self.stop()
        begin = time.perf_counter()
        self.process = self._start()
        self.wait_until_serving()
        return time.perf_counter() - begin

    def resident_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def broker(parent: Path, **environment: str) -> Iterator[Broker]:
    parent.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(dir=parent))
    started = Broker(directory, **environment)
    try:
        started.wait_until_serving()
        yield started
    finally:
        with suppress(subprocess.TimeoutExpired):
            started.stop()
        started.process.kill()
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def bare_process(pull_answer: bytes = b"", item: bytes = b"x") -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """The bare server and its address."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, "pull"), Path(folder, "item")]
        for file, content in zip(files, (pull_answer, item), strict=True):
            file.write_bytes(content)
        process = subprocess.Popen([sys.executable, HERE / "bare.py", *files], stdout=subprocess.PIPE)
        try:
            yield process, f"127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()
            process.wait()


@contextmanager
def bare(pull_answer: bytes = b"", item: bytes = b"x") -> Iterator[str]:
    """The address of a bare server."""
    with bare_process(pull_answer, item) as (_, address):
        yield address


@contextmanager
def client(address: str, **spec: object) -> Iterator[subprocess.Popen[str]]:
    whole = {"address": address, "connections": 1, "in_flight": 1, "durability": 0, **spec}
    process = subprocess.Popen([sys.executable, HERE / "load.py", json.dumps(whole)], stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def load(address: str, **spec: object) -> dict[str, float]:
    with client(address, **spec) as process:
        answer = process.stdout.read()
    return json.loads(answer)


def fill(server: Broker, channel: str, messages: int, count: int, size: int) -> None:
    """Publishes batches until the channel holds so many messages."""
    request = pb.PublishBatchRequest(channel=channel, batch=batch(count, size)).SerializeToString()
    with grpc.insecure_channel(server.address, options=LARGE) as channel_:
        call = channel_.unary_unary("/mq.MQService/PublishBatch")
        waiting = [call.future(request) for _ in range(min(4, messages // count))]
        for _ in range(messages // count - len(waiting)):
            waiting.pop(0).result()
            waiting.append(call.future(request))
        for each in waiting:
            each.result()
