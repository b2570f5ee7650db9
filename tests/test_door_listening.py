"""The wire's sockets, which listen before there is a broker."""

import asyncio
import socket
import time
from pathlib import Path

import pytest
from process import Process

import mq
from mq.config import Config
from mq.doors.listening import listen, wire_sockets
from mq.server import Server


def ports_of(sockets: list[socket.socket]) -> list[int]:
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def test_who_comes_before_the_broker_is_there_is_served() -> None:
    sockets = listen("127.0.0.1", 0)
    address = f"mq://127.0.0.1:{sockets[0].getsockname()[1]}"

    def create() -> None:
        with mq.Client(address) as client:
            client.create_channel("orders")

    async def main() -> list[str]:
        with socket.create_connection(sockets[0].getsockname()):  # the operating system takes it, nobody else yet
            asked = asyncio.create_task(asyncio.to_thread(create))
            server = Server(Config.from_env({"SERVER_PORT": "0", "STORAGE_MODE": "memory"}), sockets)
            await server.start()
            await asked
            assert server.broker is not None
            channels = list(server.broker.state.channels)
            await server.stop()
            return channels

    assert asyncio.run(main()) == ["orders"]


# Put before everything else in the broker's path: its import waits for a file.
HELD = """
import sys, time
from pathlib import Path

class Held:
    def find_spec(self, name, path=None, target=None):
        while name == "mq.server" and not Path({gate!r}).exists():
            time.sleep(0.01)

sys.meta_path.insert(0, Held())
"""


def test_mq_serve_listens_before_the_broker_is_imported(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    (tmp_path / "sitecustomize.py").write_text(HELD.format(gate=str(gate)))
    (port,) = ports_of(listen("127.0.0.1", 0))
    process = Process(tmp_path, "--wire-port", str(port), PYTHONPATH=str(tmp_path))
    end = time.monotonic() + 30
    while True:
        try:
            early = socket.create_connection(("127.0.0.1", port))
            break
        except ConnectionRefusedError:
            assert time.monotonic() < end, "it does not listen"
    with early:
        assert not process.lines
        gate.touch()
        with mq.Client(f"mq://127.0.0.1:{port}") as client:
            client.create_channel("orders")
    process.signal()
    assert process.wait() == 0


def test_what_is_no_address_is_an_error_in_words() -> None:
    with pytest.raises(OSError, match=r"can't listen on 10\.\.0\.1:0: "):
        listen("10..0.1", 0)
    with pytest.raises(OSError, match="no port above SERVER_PORT=65535"):
        wire_sockets(Config(host="127.0.0.1", port=65_535))


def test_the_wire_is_one_above_grpc_or_where_it_is_told_to_be_or_off() -> None:
    (free,) = ports_of(listen("127.0.0.1", 0))
    assert ports_of(wire_sockets(Config(host="127.0.0.1", port=free - 1))) == [free]
    assert ports_of(wire_sockets(Config(host="127.0.0.1", port=0, wire_port=free))) == [free]
    assert ports_of(wire_sockets(Config(host="127.0.0.1", port=0)))[0] > 0
    assert wire_sockets(Config(port=0, wire_port=0)) == []


def test_an_empty_host_is_every_address() -> None:
    sockets = listen("", 0)
    try:
        for each in sockets:
            host = "::1" if each.family == socket.AF_INET6 else "127.0.0.1"
            socket.create_connection((host, each.getsockname()[1])).close()
        assert socket.AF_INET in {each.family for each in sockets}
    finally:
        ports_of(sockets)


def test_a_taken_port_is_one_clear_line_before_anything_is_done(tmp_path: Path) -> None:
    (taken,) = sockets = listen("127.0.0.1", 0)
    port = taken.getsockname()[1]
    with pytest.raises(OSError, match=f"can't listen on 127.0.0.1:{port}: "):
        listen("127.0.0.1", port)
    process = Process(tmp_path, "--wire-port", str(port))
    assert process.wait() == 1
    (line,) = process.lines
    assert line.startswith(f"mq: can't listen on 127.0.0.1:{port}: ")
    assert not (tmp_path / "data").exists()
    ports_of(sockets)
