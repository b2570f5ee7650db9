"""What is shipped, run as it is shipped: wheel and sdist, and the steps of the Dockerfile in a plain directory.

Where the tests run as a root that may, the broker gets the container's user and a root file system that is really
read-only, in a mount namespace of its own; elsewhere it runs as whoever runs the tests.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from dockerfile import Stage, command, environment, health_command, last, stages_of
from process import wait_until

import mq

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stages(root: Path) -> dict[str, Stage]:
    return stages_of((root / "Dockerfile").read_text())


@pytest.fixture(scope="module")
def image(root: Path, stages: dict[str, Stage]) -> Iterator[Path]:
    """A directory as the root of an image: the steps of the stage `builder`, with its paths moved here."""
    place = Path(tempfile.mkdtemp(prefix="mq-image-"))
    place.chmod(0o755)  # pytest's own directories are closed to other users
    (place / "var/lib/mq").mkdir(parents=True)
    (place / "src").mkdir()
    tools = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PIP_QUIET": "1"}
    for instruction, step in stages["builder"].steps:
        if instruction == "COPY":
            *sources, _ = step.split()
            for source in sources:
                copy(root / source, place / "src" / source)
        elif instruction == "RUN":
            moved = re.sub(r"(?<!\S)/(wheels|opt/mq)\b", rf"{place}/\1", step)
            subprocess.run(["sh", "-c", moved], cwd=place / "src", env=tools, check=True)
    yield place
    shutil.rmtree(place)


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


class Container:
    """The image's command in a read-only root with one writable directory; its environment is the image's."""

    def __init__(self, image: Path, stages: dict[str, Stage], **variables: str) -> None:
        self.data = image / "var/lib/mq"
        moved = {name: value.replace("/var/lib/mq", str(self.data)) for name, value in variables.items()}
        given = environment(stages, "broker")
        given["PATH"] = f"{image}/opt/mq/bin:{os.environ['PATH']}"
        given["WAL_DIR_PATH"] = str(self.data)
        self.environment = {**given, "HOME": "/nonexistent", **moved}
        self.user = [int(each) for each in last(stages, "broker", "USER").split(":")]
        self.is_isolated = os.geteuid() == 0 and may_unshare()
        if self.is_isolated:
            os.chown(self.data, *self.user)
        self.cwd = image / "opt/mq"
        self.image = image

    def start(self, program: list[str], **streams: object) -> "subprocess.Popen[str]":
        found = shutil.which(program[0], path=self.environment["PATH"])
        assert found
        line = [found, *program[1:]]
        if self.is_isolated:
            uid, gid = self.user
            drop = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--no-new-privs", "--"]
            mounts = [f"mount --bind {self.data} {self.data}", *show_python(self.image), "mount -o remount,bind,ro /"]
            line = ["unshare", "--mount", "sh", "-c", " && ".join([*mounts, 'exec "$@"']), "sh", *drop, *line]
        return subprocess.Popen(line, env=self.environment, cwd=self.cwd, text=True, **streams)  # type: ignore[call-overload,no-any-return]

    def run(self, program: list[str]) -> "subprocess.CompletedProcess[str]":
        process = self.start(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(program, process.returncode, out, err)


def show_python(image: Path) -> list[str]:
    """Commands that let others reach this Python where it lies in somebody's closed home; none where it does not."""
    base = Path(sys.base_prefix).resolve()
    closed = next((each for each in reversed(base.parents) if not each.stat().st_mode & 0o001), None)
    if closed is None:
        return []
    (image / "python").mkdir(exist_ok=True)
    return [
        f"mount --bind {base} {image}/python",
        f"mount -t tmpfs -o mode=755 tmpfs {closed}",
        f"mkdir -p {base}",
        f"mount --bind {image}/python {base}",
    ]


def may_unshare() -> bool:
    tool = shutil.which("unshare")
    return tool is not None and subprocess.run([tool, "--mount", "true"], stderr=subprocess.DEVNULL).returncode == 0


def free_pair() -> int:
    """A port that is free, as is the one above it."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                continue
            return port


def serve_once(container: Container, stages: dict[str, Stage], port: int, text: str) -> str:
    """Start, ask for its health, publish through both doors, stop; returns what it wrote."""
    lines: list[str] = []
    with container.start(command(stages, "broker"), stderr=subprocess.PIPE) as broker:
        assert broker.stderr is not None
        reader = threading.Thread(target=lines.extend, args=[broker.stderr])
        reader.start()
        try:
            wait_until(lambda: any("listening on" in line for line in lines) or broker.poll() is not None)
            healthy = container.run(health_command(stages, "broker"))
            assert healthy.returncode == 0, (healthy.stderr, lines)
            for address in (f"grpc://127.0.0.1:{port}", f"mq://127.0.0.1:{port + 1}"):
                with mq.Client(address) as client:
                    client.create_channel("orders", exist_ok=True)
                    client.publish("orders", text)
        finally:
            broker.send_signal(signal.SIGTERM)
            code = broker.wait(30)
            reader.join()
    assert code == 0
    return "".join(lines)


def test_the_image_serves_with_a_read_only_root_and_stops_cleanly(image: Path, stages: dict[str, Stage]) -> None:
    port = free_pair()
    # as the first broker's containers were started
    container = Container(image, stages, BROKER_PORT=str(port), BROKER_HOST="localhost", WAL_SEGMENT_SIZE="8MiB")
    assert container.run(health_command(stages, "broker")).returncode == 6
    if container.is_isolated:
        assert container.run(["touch", str(image / "opt/mq/x")]).returncode != 0
        assert container.run(["id", "-u"]).stdout.strip() == str(container.user[0])
    for turn in range(2):
        output = serve_once(container, stages, port, f"turn {turn}")
        assert "BROKER_HOST is for clients" in output
        assert "was not clean" not in output
    assert {path.name for path in container.data.iterdir()} >= {"MANIFEST"}


def test_the_image_has_no_build_tools_and_no_spark(image: Path) -> None:
    packages = {path.name.split("-")[0] for path in (image / "opt/mq/lib").glob("python*/site-packages/*.dist-info")}
    assert "mq_broker" in packages
    assert packages.isdisjoint({"pip", "setuptools", "wheel", "pyspark", "pytest", "celery", "taskiq"})


def test_wheel_and_sdist_hold_everything(image: Path, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "build", "--sdist", "--outdir", tmp_path, image / "src"]
    subprocess.run(program, check=True, capture_output=True, timeout=120)
    (wheel,) = (image / "wheels").glob("mq_broker*")
    assert wheel.name == f"mq_broker-{mq.__version__}-py3-none-any.whl"
    (sdist,) = tmp_path.iterdir()
    assert sdist.name == f"mq_broker-{mq.__version__}.tar.gz"
    with tarfile.open(sdist) as archive:
        packed = {Path(*Path(name).parts[1:]) for name in archive.getnames()}
    (installed,) = (image / "opt/mq/lib").glob("python*/site-packages")
    for package in ("mq", "pyspark_mqwal", "wal"):
        sources = {path.relative_to(image / "src") for path in (image / "src" / package).rglob("*") if is_shipped(path)}
        assert sources
        assert sources == {path.relative_to(installed) for path in (installed / package).rglob("*") if is_shipped(path)}
        assert sources <= packed


def is_shipped(path: Path) -> bool:
    return path.suffix in (".py", ".pyi") or path.name == "py.typed"


def test_a_broker_of_the_wheel_serves_the_client_of_the_wheel(image: Path, tmp_path: Path) -> None:
    python = image / "opt/mq/bin/python"
    program = (
        "import mq, mq.testing\n"
        "assert mq.__file__.startswith(__import__('sys').prefix), mq.__file__\n"
        "with mq.testing.broker('log') as address, mq.Client(address) as client:\n"
        "    client.create_channel('c')\n"
        "    client.publish('c', b'from a wheel')\n"
        "    with client.consumer('c', group='g') as consumer:\n"
        "        (message,) = consumer.fetch(1, timeout=10)\n"
        "        print(message.text())\n"
    )
    answer = subprocess.run(
        [python, "-W", "error", "-c", program], cwd=tmp_path, env={}, capture_output=True, text=True, timeout=60
    )
    assert answer.stdout == "from a wheel\n", answer.stderr
