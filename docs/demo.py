"""Records the picture of the README from a real run: publish, kill -9, start again, nothing lost. `make demo`.

    python docs/demo.py [FILE]

Every line in the picture is what a command printed; only the times in front of the broker's lines are left out, since
they differ with each run.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

ORDERS = 100_000
DEADLINE = 60.0
TYPING_SECONDS = 0.5  # whoever types the kill takes that long: by then the log has noted that all is on disk
WIDTH = 100
TITLE = "publish, kill -9, nothing lost"

# Without the web font that rich would fetch: the picture shows the same without a network.
SVG = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, monospace; font-size: {char_height}px;
  line-height: {line_height}px; font-variant-east-asian: full-width }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: system-ui, sans-serif }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


class Recorder:
    """Runs commands in an empty directory against a broker of its own, and writes down what they print."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"))  # noqa: SIM115
        port = free_port()
        self.environment = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "SERVER_PORT": str(port),
            "MQ_SERVER": f"mq://127.0.0.1:{port + 1}",
            "COLUMNS": str(WIDTH),
        }

    def say(self, command: str) -> None:
        self.console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))

    def run(self, command: str) -> None:
        """A line of shell, as a user types it."""
        self.say(command)
        answer = subprocess.run(
            ["sh", "-c", command],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
        if answer.returncode:
            sys.exit(f"{command}: {answer.stderr}")
        self.show(answer.stdout + answer.stderr)

    def show(self, text: str) -> None:
        for line in text.splitlines():
            self.console.print(Text(line))

    @contextmanager
    def broker(self, ends_with: signal.Signals) -> Iterator[None]:
        """`mq serve`, until the block ends; then what it gets is the signal."""
        self.say("mq serve &")
        log = self.directory / "broker.log"
        with log.open("w") as file:
            process = subprocess.Popen(
                ["mq", "serve"], cwd=self.directory, env=self.environment, stdout=file, stderr=file
            )
        try:
            end = time.monotonic() + DEADLINE
            while "listening" not in log.read_text():
                if process.poll() is not None or time.monotonic() > end:
                    sys.exit(f"the broker does not serve:\n{log.read_text()}")
                time.sleep(0.05)
            self.show(re.sub(r"^\S+ (\w+) +", "", log.read_text(), flags=re.MULTILINE))
            yield
        finally:
            process.send_signal(ends_with)
            process.wait(DEADLINE)


def free_port() -> int:
    """One whose neighbour is free too: the wire takes that."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
            try:
                two.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def record(target: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        recorder = Recorder(Path(scratch))
        with recorder.broker(ends_with=signal.SIGKILL):
            recorder.run(f"seq 1 {ORDERS} | sed 's/^/order /' | mq pub orders --create")
            recorder.say("kill -9 %1")
            time.sleep(TYPING_SECONDS)
        with recorder.broker(ends_with=signal.SIGTERM):
            recorder.run("mq channel ls")
            recorder.run("mq sub orders --last 2 -e -f '%o  %v\\n'")
            recorder.run("mq wal verify ./data | grep -E 'messages|torn|intact'")
        recorder.console.save_svg(str(target), title=TITLE, code_format=SVG, unique_id="mq-demo")


if __name__ == "__main__":
    record(Path(sys.argv[1]) if sys.argv[1:] else Path(__file__).with_name("demo.svg"))
