"""The wire from another language: a small client in Go, written from docs/wire.md alone."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mq.testing import broker

LINES = 250


@pytest.fixture(scope="module")
def client(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    go = shutil.which("go")
    if go is None:
        pytest.skip("NOT TESTED: there is no Go here, so the wire's example client was not built")
    built = tmp_path_factory.mktemp("go") / "mqwire"
    environment = {**os.environ, "GOFLAGS": "-mod=mod", "GOPROXY": "off", "CGO_ENABLED": "0"}
    subprocess.run([go, "vet", "."], cwd=root / "examples" / "wire-go", env=environment, check=True)
    subprocess.run([go, "build", "-o", built, "."], cwd=root / "examples" / "wire-go", env=environment, check=True)
    return built


@pytest.mark.toolchain
def test_a_client_in_go_publishes_and_pulls(client: Path, tmp_path: Path) -> None:
    with broker(tmp_path) as running:
        address = f"127.0.0.1:{running.server.wire.port}"
        command = [client, "-addr", address, "-channel", "from-go", "-count", "20000"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert answer.stderr == ""
    assert answer.stdout.splitlines() == [
        "published 20000",
        "pulled 20000",
        "refused ChannelNotFound: there is no channel 'nosuch'",
    ]


@pytest.mark.toolchain
def test_a_client_in_go_says_when_the_port_is_another(client: Path) -> None:
    with broker() as running:
        command = [client, "-addr", f"127.0.0.1:{running.server.grpc.port}"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert answer.returncode == 1
    assert "does not speak the mq wire" in answer.stderr


def test_the_example_is_as_short_as_it_says(root: Path) -> None:
    for path in (root / "examples" / "wire-go").glob("*.go"):
        assert len(path.read_text().splitlines()) < LINES
