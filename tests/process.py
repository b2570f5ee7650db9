"""`mq serve` as a process of its own, for tests that kill it."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

DEADLINE = 30.0


def wait_until(condition: Callable[[], bool], seconds: float = DEADLINE) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)


class Process:
    """`mq serve` in a directory of its own, with nothing in its environment but what a test gives it."""

    prefix: tuple[str, ...] = ()  # a program that runs the command
    entry: tuple[str, ...] = ("-m", "mq.cli")

    def __init__(self, directory: Path, *arguments: str, **variables: str) -> None:
        settings = {"PATH": os.environ["PATH"], "WAL_SEGMENT_SIZE": "8MiB", "SERVER_PORT": "0", **variables}
        command = [*self.prefix, sys.executable, *self.entry, "serve", *arguments]
        self.process = subprocess.Popen(command, env=settings, cwd=directory, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as stream:
            for line in stream:
                self.lines.append(line.rstrip("\n"))

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def wait_for_port(self, door: str = "gRPC") -> int:
        wait_until(lambda: "listening on" in self.output or self.process.poll() is not None)
        found = re.search(rf":(\d+) \({door}\)", self.output)
        assert found, self.output
        return int(found[1])

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        code = self.process.wait(DEADLINE)
        self._reader.join(DEADLINE)
        return code
