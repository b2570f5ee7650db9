"""The programs in examples/: how each language's are built and started, and what they have to print."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

DEADLINE = 60.0
BUILD_DEADLINE = 600.0
COUNT, BATCH_SIZE = 25, 10
PYTHON = ".venv-proto/bin/python"  # has grpcio and protobuf, but no mq


@dataclass(frozen=True)
class Language:
    """How one language's programs are started; `tool` must be on the path to build them."""

    tool: str
    publisher: str
    subscriber: str

    def command(self, program: str) -> list[str]:
        return str(getattr(self, program)).split()


LANGUAGES = {
    "python": Language("make", f"{PYTHON} examples/python/publisher.py", f"{PYTHON} examples/python/subscriber.py"),
    "go": Language("go", "examples/go/build/publisher", "examples/go/build/subscriber"),
    "node": Language("npm", "node examples/node/build/publisher.js", "node examples/node/build/subscriber.js"),
    "java": Language(
        "mvn",
        "java -cp examples/java/target/mq-example.jar example.mq.Publisher",
        "java -cp examples/java/target/mq-example.jar example.mq.Subscriber",
    ),
    "rust": Language("cargo", "examples/rust/target/debug/publisher", "examples/rust/target/debug/subscriber"),
}

COMPAT = {
    "python": Language(
        "make", f"{PYTHON} examples/compat/python/publisher.py", f"{PYTHON} examples/compat/python/subscriber.py"
    ),
    "go": Language("go", "examples/compat/go/build/publisher", "examples/compat/go/build/subscriber"),
}

# What the tools say when a registry is out of reach. Only that excuses a build: any other failure is ours.
OUT_OF_REACH = re.compile(
    r"dial tcp|no such host|TLS handshake|i/o timeout"  # go
    r"|ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT"  # npm
    r"|Could not transfer artifact|Unknown host"  # mvn
    r"|[Cc]ould not resolve host|failed to download|[Cc]ould not connect to server"  # cargo
    r"|NameResolutionError|NewConnectionError"  # pip
)


def build_all(root: Path) -> dict[str, str]:
    """Builds what can be built, two at a time; returns why the others could not, and fails where that is our fault."""
    missing = {
        name: f"NOT TESTED: there is no {language.tool} here, so examples/{name} was not built"
        for name, language in LANGUAGES.items()
        if shutil.which(language.tool) is None
    }
    logs = {"python": build(root, "python")}  # first: it makes the environment that Go's generator needs as well
    with ThreadPoolExecutor(2) as pool:
        others = [name for name in ("rust", "go", "java", "node") if name not in missing]  # the slowest first
        logs.update(zip(others, pool.map(lambda name: build(root, name), others), strict=True))
    for name, log in logs.items():
        if log and OUT_OF_REACH.search(log):
            missing[name] = f"NOT TESTED: a registry that examples/{name} needs is out of reach"
        elif log:
            pytest.fail(f"make example-{name} failed:\n{log[-4000:]}")
    return missing


def build(root: Path, name: str) -> str:
    """Runs the language's goal; returns its output if it failed."""
    command = ["make", "--no-print-directory", f"example-{name}"]
    answer = subprocess.run(
        command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=BUILD_DEADLINE
    )
    return (answer.stdout or "it said nothing") if answer.returncode else ""


class Program:
    """A running example, with nothing in its environment but what a test gives it."""

    def __init__(self, root: Path, command: list[str], port: int, **variables: str) -> None:
        environment = {"PATH": os.environ["PATH"], "BROKER_HOST": "127.0.0.1", "BROKER_PORT": str(port), **variables}
        self.process = subprocess.Popen(
            command, cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._changed = threading.Condition()
        assert self.process.stdout
        assert self.process.stderr
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self.lines), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stderr, self.errors), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream, lines: list[str]) -> None:  # type: ignore[no-untyped-def]
        with stream:
            for line in stream:
                with self._changed:
                    lines.append(line)
                    self._changed.notify_all()

    def wait_for_lines(self, count: int) -> None:
        end = time.monotonic() + DEADLINE
        with self._changed:
            while len(self.lines) < count:
                assert self.process.poll() is None, f"it ended after {self.lines}: {self.errors}"
                assert time.monotonic() < end, f"only {self.lines}"
                self._changed.wait(0.1)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> tuple[int, str, str]:
        """The exit code, and all that it wrote to stdout and stderr."""
        try:
            code = self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        for reader in self._readers:
            reader.join(DEADLINE)
        return code, "".join(self.lines), "".join(self.errors)


def published_lines(count: int = COUNT) -> str:
    lines = []
    for first in range(1, count + 1, BATCH_SIZE):
        lines.append(f"published {first}-{min(first + BATCH_SIZE - 1, count)} at offset {first - 1}\n")
    return "".join(lines) + f"{count} published\n"


def pulled_lines(count: int = COUNT) -> str:
    lines = [f"partition 0 offset {offset}: message {offset + 1}\n" for offset in range(count)]
    return "".join(lines) + f"{count} acked\n"
