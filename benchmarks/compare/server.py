"""A broker's process: started on its own directory and port, measured, killed. One subclass for each broker."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import psutil

FSYNC = "fsync"  # an answer means: it survives a power cut
CACHE = "cache"  # an answer means: it is in memory or in the page cache
START_SECONDS = 90.0
LOOK_SECONDS = 0.005  # between two looks whether it listens


class Server:
    """One broker. A subclass says how it is found, started and set up for each class of durability."""

    name: ClassVar[str]
    client: ClassVar[str]  # the Python package that drives it
    settings: ClassVar[dict[str, str]]  # class of durability -> what was set, for the reader

    def __init__(self, directory: Path, durability: str) -> None:
        self.directory = directory
        self.durability = durability
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    # ------------------------------------------------------------ for a subclass

    @classmethod
    def version(cls) -> str | None:
        """What would run here; None where the broker is not installed."""
        raise NotImplementedError

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return {}

    def prepare(self) -> None:
        """Before the first start."""

    # ------------------------------------------------------------ a life

    def start(self) -> None:
        self.launch()
        self._wait()

    def launch(self) -> None:
        """Start, and do not wait until it listens."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.process is None:
            self.prepare()
        log = (self.directory.parent / f"{self.directory.name}.log").open("ab")
        with log:
            self.process = subprocess.Popen(
                self.command(),
                env={**os.environ, **self.environment()},
                cwd=self.directory,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        """As a power cut does it to a process, with everything that it started."""
        assert self.process is not None
        for each in self.processes():
            with suppress(psutil.NoSuchProcess):
                each.kill()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def memory(self) -> int:
        """Resident bytes, of all its processes."""
        total = 0
        for each in self.processes():
            with suppress(psutil.NoSuchProcess):
                total += each.memory_info().rss
        return total

    def disk(self) -> int:
        """Bytes that its directory takes, as du counts them."""
        return sum(each.stat().st_blocks * 512 for each in self.directory.rglob("*") if each.is_file())

    def processes(self) -> list[psutil.Process]:
        assert self.process is not None
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self.process.pid)
            return [parent, *parent.children(recursive=True)]
        return []

    def _wait(self) -> None:
        assert self.process is not None
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self.process.returncode}: see {self.directory}.log")
            if is_open(self.port):
                return
            time.sleep(LOOK_SECONDS)
        raise RuntimeError(f"{self.name} does not listen after {START_SECONDS:.0f} s: see {self.directory}.log")


def is_open(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def found(name: str, variable: str) -> str | None:
    """A program: named by a variable, put there by `make compare-install`, or on the PATH."""
    installed = Path(__file__).parents[2] / ".peers" / "bin" / name
    return os.environ.get(variable) or (str(installed) if installed.exists() else shutil.which(name))


def output_of(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
