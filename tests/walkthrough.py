"""Runs what a page shows, block by block: writes its programs, runs its commands, compares what they print.

In a block of `console` a line that begins with `$ ` is a command, and the lines under it are what it prints: `…` stands
for anything within a line, a line with nothing else for any lines. A block of `python` with a title is a file. A remark
above a block changes how it is taken: `<!-- in any order -->`, `<!-- exits with 1 -->`.

The broker is a real one, but not where the page has it: `make run` and `mq serve` start it on free ports, and `pkill`
ends that one and no other.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from process import Process, wait_until

BLOCK = re.compile(
    r'^(?:<!-- (.*?) -->\n)?( *)```(console|python)(?: title="(.*?)")?\n(.*?)^\2```$', re.MULTILINE | re.DOTALL
)
DEADLINE = 120.0


@dataclass(frozen=True)
class Command:
    line: str
    shown: str  # what the page says that it prints
    remark: str

    @property
    def exit_code(self) -> int:
        if self.shown.endswith("Killed\n"):
            return -signal.SIGKILL
        told = re.fullmatch(r"exits with (\d+)", self.remark)
        return int(told[1]) if told else 0


def commands(block: str, remark: str = "") -> list[Command]:
    """The commands of one block; one that ends in a backslash goes on in the next line."""
    found = re.findall(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)
    return [Command(line.replace("\\\n", ""), shown, remark) for line, shown in found]


def matches(shown: str, printed: str, in_any_order: bool = False) -> bool:
    """Whether a program printed what a page shows."""
    if in_any_order:
        return sorted(shown.splitlines()) == sorted(printed.splitlines())
    lines = [
        r"(?:.*\n)*?" if line == "…" else re.escape(line.rstrip()).replace("…", ".*") + r"[ \t]*\n"
        for line in shown.splitlines()
    ]
    return re.fullmatch("".join(lines), printed) is not None


class Walk:
    """A directory in which a page is followed, and the broker that runs there."""

    def __init__(self, directory: Path, **variables: str) -> None:
        self.directory = directory
        self.ran: list[str] = []
        self._variables = variables
        self._broker: Process | None = None
        self.address = ""

    def follow(self, text: str) -> None:
        """Do everything that a text shows. Raises AssertionError where something else comes out."""
        for remark, _, kind, title, indented in BLOCK.findall(text):
            block = textwrap.dedent(indented)
            if kind == "console":
                for command in commands(block, remark):
                    self._run(command)
                    self.ran.append(command.line)
            elif title:
                (self.directory / title).write_text(block)

    def _run(self, command: Command) -> None:
        if started := re.fullmatch(r"make run|mq serve( --data-dir \S+)?", command.line):
            printed, code = self.start(*(started[1] or "").split()), 0
        elif killed := re.fullmatch(r'pkill -(9|TERM) -f "mq serve"', command.line):
            printed, code = self.end(signal.SIGKILL if killed[1] == "9" else signal.SIGTERM), 0
        else:
            printed, code = self._shell(command.line)
        assert code == command.exit_code, f"{command.line}: {code}\n{printed}"
        if command.shown:
            shown = command.shown.removesuffix("Killed\n")
            fits = matches(shown, printed, command.remark == "in any order")
            assert fits, f"{command.line} should print\n{shown}\nand printed\n{printed}"

    def _shell(self, line: str) -> tuple[str, int]:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {"PATH": path, "MQ_SERVER": self.address, "COLUMNS": "200", **self._variables}
        answer = subprocess.run(
            ["bash", "-c", line],
            cwd=self.directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE,
        )
        return answer.stdout, answer.returncode

    def start(self, *arguments: str) -> str:
        """Start the broker; what it printed, as if its ports were the usual ones."""
        assert self._broker is None, "there is a broker already"
        self._broker = broker = Process(self.directory, *arguments, **self._variables)
        self.address = f"mq://127.0.0.1:{broker.wait_for_port('wire')}"
        ports = {broker.wait_for_port("gRPC"): "50051", broker.wait_for_port("wire"): "50052"}
        return re.sub(r":(\d+) \(", lambda found: f":{ports[int(found[1])]} (", broker.output) + "\n"

    def end(self, number: int = signal.SIGTERM) -> str:
        """Stop the broker, or kill it."""
        assert self._broker is not None
        self._broker.signal(number)
        wait_until(lambda: self._broker is None or self._broker.process.poll() is not None)
        self._broker.wait()
        self._broker = None
        return ""

    def __enter__(self) -> Walk:
        return self

    def __exit__(self, *_: object) -> None:
        if self._broker is not None:
            self.end(signal.SIGKILL)
