"""The examples of all languages against one broker: the scenario of examples/README.md, to the byte.

Each publisher has a channel of its own, and each subscriber reads all of them, as a group of its own. A language whose
tools are missing, or whose registry is out of reach, is skipped and named; a build that fails otherwise is a failure.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from exampleprograms import (
    BATCH_SIZE,
    COMPAT,
    COUNT,
    DEADLINE,
    LANGUAGES,
    PYTHON,
    Program,
    build_all,
    published_lines,
    pulled_lines,
)
from process import wait_until

import mq
from mq.testing import Running, broker

# the first test waits for all the builds, with all that they download
pytestmark = [pytest.mark.toolchain, pytest.mark.timeout(900)]

of_each_language = pytest.mark.parametrize("name", LANGUAGES)
of_both_programs = pytest.mark.parametrize("program", ["publisher", "subscriber"])


class Starter:
    """Starts examples, and ends those that a failed test left behind."""

    def __init__(self, root: Path, unbuilt: dict[str, str], port: int) -> None:
        self.root = root
        self.unbuilt = unbuilt
        self.port = port
        self.started: list[Program] = []

    def __call__(self, name: str, program: str, *, compat: bool = False, port: int = 0, **variables: str) -> Program:
        if name in self.unbuilt:
            pytest.skip(self.unbuilt[name])
        command = (COMPAT if compat else LANGUAGES)[name].command(program)
        defaults = {"BATCH_SIZE": str(BATCH_SIZE), "PULL_INTERVAL": "1"}
        started = Program(self.root, command, port or self.port, **{**defaults, **variables})
        self.started.append(started)
        return started

    @property
    def languages(self) -> list[str]:
        return [name for name in LANGUAGES if name not in self.unbuilt]


@pytest.fixture(scope="module")
def unbuilt(root: Path) -> dict[str, str]:
    return build_all(root)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with broker(tmp_path_factory.mktemp("data")) as started:
        yield started


@pytest.fixture
def start(root: Path, unbuilt: dict[str, str], running: Running) -> Iterator[Starter]:
    starter = Starter(root, unbuilt, running.port)
    yield starter
    for each in starter.started:
        each.process.kill()
        each.process.wait()


@pytest.fixture(scope="module")
def outputs() -> dict[str, tuple[int, str, str]]:
    """What each publisher did; it runs when the first subscriber needs it."""
    return {}


# ---------------------------------------------------------------- the scenario


@pytest.mark.parametrize("subscriber", LANGUAGES)
@pytest.mark.parametrize("publisher", LANGUAGES)
def test_any_publisher_pairs_with_any_subscriber(
    start: Starter, outputs: dict[str, tuple[int, str, str]], publisher: str, subscriber: str
) -> None:
    channel, count = f"from-{publisher}", str(COUNT)
    if publisher not in outputs:
        outputs[publisher] = start(publisher, "publisher", CHANNEL=channel, COUNT=count).wait()
    assert outputs[publisher] == (0, published_lines(), "")
    pulled = start(subscriber, "subscriber", CHANNEL=channel, COUNT=count, GROUP=f"to-{subscriber}")
    assert pulled.wait() == (0, pulled_lines(), "")


@of_each_language
def test_a_subscriber_that_is_terminated_has_acked_what_it_printed_and_leaves(
    start: Starter, running: Running, name: str
) -> None:
    channel = f"terminated-{name}"
    subscriber = start(name, "subscriber", CHANNEL=channel)  # it may start first, and runs until the signal
    assert start(name, "publisher", CHANNEL=channel, COUNT=str(COUNT)).wait() == (0, published_lines(), "")
    subscriber.wait_for_lines(COUNT)
    subscriber.terminate()
    assert subscriber.wait() == (0, pulled_lines(), "")
    with mq.Client(running) as client:
        group = client.describe_group(channel, "billing")
    assert (group.lag, group.pending, list(group.members)) == (0, 0, [])


@of_each_language
def test_a_publisher_that_is_terminated_tells_how_many_are_stored(start: Starter, running: Running, name: str) -> None:
    publisher = start(name, "publisher", CHANNEL=f"cut-{name}", COUNT=str(2**31 - 1))
    publisher.wait_for_lines(3)
    publisher.terminate()
    code, output, errors = publisher.wait()
    with mq.Client(running) as client:
        stored = client.describe_channel(f"cut-{name}").messages
    assert (code, output, errors) == (0, published_lines(stored), "")


def test_members_of_one_group_in_all_languages_share_the_work(start: Starter) -> None:
    """A group is the broker's: it does not matter what its members are written in."""
    members = [start(name, "subscriber", CHANNEL="shared", BATCH_SIZE="1") for name in start.languages]
    assert start("python", "publisher", CHANNEL="shared", COUNT="200", BATCH_SIZE="200").wait()[0] == 0
    wait_until(lambda: sum(len(each.lines) for each in members) >= 200)
    for each in members:
        each.terminate()
    outputs = [each.wait() for each in members]
    assert [(code, errors) for code, _, errors in outputs] == [(0, "")] * len(members)
    lines = [line for _, output, _ in outputs for line in output.splitlines() if line.startswith("partition")]
    assert sorted(lines) == sorted(pulled_lines(200).splitlines()[:-1]), "each message once, in one language or another"


# ---------------------------------------------------------------- failures


@of_both_programs
@of_each_language
def test_without_a_broker_there_is_one_clear_line(start: Starter, name: str, program: str) -> None:
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        answer = start(name, program, port=port).wait()
    assert answer == (1, "", f"mq: no broker answers at 127.0.0.1:{port}\n")


@of_both_programs
@of_each_language
def test_a_refusal_is_told_in_the_brokers_words(start: Starter, name: str, program: str) -> None:
    code, output, errors = start(name, program, CHANNEL="no name").wait()
    assert (code, output) == (1, "")
    assert errors.startswith("mq: channel 'no name' is no name: ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize("text", ["+5", "-1", "1e3", "ten", str(2**31)])
def test_a_setting_that_is_no_number_is_told_alike_in_all_languages(start: Starter, text: str) -> None:
    programs = [start(name, "publisher", COUNT=text) for name in start.languages]
    for each in programs:
        assert each.wait() == (1, "", f"mq: COUNT must be a whole number from 0 on, not '{text}'\n")


def test_a_broker_that_goes_away_ends_the_subscribers_with_one_line(start: Starter) -> None:
    with broker() as short:
        port = short.port
        waiting = [start(name, "subscriber", port=port, GROUP=name) for name in start.languages]
        assert start("python", "publisher", port=port, COUNT="1").wait()[0] == 0
        for each in waiting:
            each.wait_for_lines(1)
    for each in waiting:
        code, output, errors = each.wait()
        assert (code, output.splitlines()[:1]) == (1, ["partition 0 offset 0: message 1"])
        assert errors == f"mq: no broker answers at 127.0.0.1:{port}\n"


# ---------------------------------------------------------------- clients of the first broker


@pytest.mark.parametrize("subscriber", COMPAT)
@pytest.mark.parametrize("publisher", COMPAT)
def test_clients_of_the_first_broker_work_unmodified(start: Starter, publisher: str, subscriber: str) -> None:
    channel = f"compat-{publisher}-{subscriber}"
    sent = start(publisher, "publisher", compat=True, CHANNEL=channel, COUNT=str(COUNT))
    assert sent.wait() == (0, f"{COUNT} published\n", "")
    received = "".join(f"message {n}\n" for n in range(1, COUNT + 1)) + f"{COUNT} received\n"
    for _ in range(2):  # without a group, every subscriber gets everything
        got = start(subscriber, "subscriber", compat=True, CHANNEL=channel, COUNT=str(COUNT))
        assert got.wait() == (0, received, "")
    until_signal = start(subscriber, "subscriber", compat=True, CHANNEL=channel)
    until_signal.wait_for_lines(COUNT)
    until_signal.terminate()
    assert until_signal.wait() == (0, received, "")
    # and what they publish is there for everybody else
    new = start("python", "subscriber", CHANNEL=channel, COUNT=str(COUNT))
    assert new.wait() == (0, pulled_lines(), "")


@pytest.mark.parametrize("name", COMPAT)
def test_clients_of_the_first_broker_are_told_of_a_missing_channel(start: Starter, name: str) -> None:
    code, output, errors = start(name, "subscriber", compat=True, CHANNEL="nobody-made-it").wait()
    assert (code, output) == (1, "")
    assert "there is no channel 'nobody-made-it'" in errors


# ---------------------------------------------------------------- what the texts say


def commands(readme: Path) -> str:
    """The last block of commands: what to do once it is built and a broker runs."""
    return re.findall(r"^```sh\n(.*?)^```", readme.read_text(), re.MULTILINE | re.DOTALL)[-1]


def shell(root: Path, folder: Path, script: str, **variables: str) -> str:
    path = f"{(root / PYTHON).parent}:{os.environ['PATH']}"
    answer = subprocess.run(
        ["bash", "-euc", script],
        cwd=folder,
        env={**os.environ, "PATH": path, "BROKER_HOST": "127.0.0.1", **variables},
        capture_output=True,
        text=True,
        timeout=DEADLINE * 4,
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@of_each_language
def test_the_commands_of_a_readme_do_what_they_say(
    root: Path, unbuilt: dict[str, str], running: Running, name: str
) -> None:
    if name in unbuilt:
        pytest.skip(unbuilt[name])
    folder = root / "examples" / name
    variables = {"BROKER_PORT": str(running.port), "CHANNEL": f"readme-{name}"}
    output = shell(root, folder, commands(folder / "README.md"), **variables)
    assert output == published_lines(100) + pulled_lines(100)


def test_the_commands_for_the_first_brokers_clients_do_what_they_say(
    root: Path, unbuilt: dict[str, str], running: Running
) -> None:
    for name in COMPAT:
        if name in unbuilt:
            pytest.skip(unbuilt[name])
    script = commands(root / "examples" / "compat" / "README.md")
    output = shell(root, root, script, BROKER_PORT=str(running.port), CHANNEL="readme-compat").splitlines()
    ends = [line for line in output if re.fullmatch(r"\d+ (published|received)", line)]
    assert ends == ["100 published", "100 received"] * 2


# ---------------------------------------------------------------- building


def test_make_examples_says_loudly_what_it_leaves_out(root: Path, tmp_path: Path) -> None:
    make = shutil.which("make")
    assert make
    (tmp_path / "make").symlink_to(make)
    command = ["make", "--dry-run", "--no-print-directory", f"PYTHON={PYTHON}", "examples"]
    answer = subprocess.run(command, cwd=root, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    assert answer.stderr.splitlines() == [
        f"SKIPPED examples/{name}: there is no {LANGUAGES[name].tool} here" for name in ("go", "node", "java", "rust")
    ]
    assert "cd examples/python" in answer.stdout


def test_no_lock_file_names_a_mirror(root: Path) -> None:
    """Who builds elsewhere takes the same versions from wherever their own tools are told to."""
    node = (root / "examples" / "node" / "package-lock.json").read_text()
    assert '"integrity"' in node
    assert '"resolved"' not in node
    rust = (root / "examples" / "rust" / "Cargo.lock").read_text()
    assert set(re.findall(r'source = "(.*)"', rust)) == {"registry+https://github.com/rust-lang/crates.io-index"}


def test_the_table_of_variables_names_what_the_examples_read(root: Path) -> None:
    told = set(re.findall(r"^\| ([A-Z_]+) \|", (root / "examples" / "README.md").read_text(), re.MULTILINE))
    for source in (
        "python/scenario.py",
        "go/scenario/scenario.go",
        "node/src/scenario.ts",
        "java/src/main/java/example/mq/Settings.java",
        "rust/src/lib.rs",
    ):
        read = set(re.findall(r"[\"']((?!SIG)[A-Z]+(?:_[A-Z]+)*)[\"']", (root / "examples" / source).read_text()))
        assert read == told, source
