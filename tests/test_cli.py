"""The `mq` command, run as users run it: real processes against a real broker."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from process import wait_until

import mq
from mq.cli import COMMANDS, doctor, main
from mq.cli.output import as_dict
from mq.testing import broker

DEADLINE = 60.0


class Command:
    """Runs `mq …` against one broker."""

    def __init__(self, server: str) -> None:
        self.environment = {"PATH": os.environ["PATH"], "MQ_SERVER": server, "COLUMNS": "200"}

    def __call__(self, *arguments: str, stdin: bytes = b"", code: int = 0) -> str:
        answer = self.run(*arguments, stdin=stdin)
        assert answer.returncode == code, answer.stderr.decode()
        return answer.stdout.decode()

    def run(self, *arguments: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        command = [sys.executable, "-W", "error", "-m", "mq.cli", *arguments]
        return subprocess.run(command, input=stdin, capture_output=True, env=self.environment, timeout=DEADLINE)

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-u", "-m", "mq.cli", *arguments]
        return subprocess.Popen(command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with broker(LOG_LEVEL="ERROR") as running:
        yield str(running)


@pytest.fixture(scope="module")
def command(address: str) -> Command:
    return Command(address)


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[mq.Client]:
    with mq.Client(address) as made:
        yield made


# ---------------------------------------------------------------- pub and sub


def test_what_is_published_is_read_back(command: Command, client: mq.Client) -> None:
    client.create_channel("orders")
    answer = command.run("pub", "orders", "hi", "-k", "c-42", "-H", "source:web")
    assert (answer.returncode, answer.stdout) == (0, b"")
    assert b"published 1 message to orders, partition 0, offset 0" in answer.stderr
    assert command("sub", "orders", "-e") == "0\tc-42\thi\n"
    assert command("sub", "orders", "-e", "-f", "%c %p %o %k %v %h %d %%\\n") == "orders 0 0 c-42 hi source=web 0 %\n"
    (line,) = command("sub", "orders", "-e", "-J").splitlines()
    shown = json.loads(line)
    assert {**shown, "timestamp": ""} == {
        "channel": "orders",
        "partition": 0,
        "offset": 0,
        "timestamp": "",
        "key": "c-42",
        "headers": {"source": "web"},
        "value": "hi",
    }
    told = json.loads(command("pub", "orders", "again", "-o", "json"))
    assert told == {"channel": "orders", "messages": 1, "partition": 0, "offset": 1}


def test_lines_of_a_file_and_of_stdin_are_messages(command: Command, client: mq.Client, tmp_path: Path) -> None:
    client.create_channel("lines")
    lines = b"".join(b"line %d\n" % number for number in range(10_000)) + b"unfinished"
    (tmp_path / "in.txt").write_bytes(lines)
    command("pub", "lines", "-l", str(tmp_path / "in.txt"))
    assert command.run("sub", "lines", "-e", "--raw").stdout == lines + b"\n"
    command("pub", "lines", stdin=b"a\r\nb\n")
    command("pub", "lines", "--send-on", "eof", stdin=b"c\nd\n")
    command("pub", "lines", "-k", "k", "-l", "-", stdin=b"e\n")
    command("pub", "lines", "f", "--count", "3", "--rate", "1000/s")
    found = [message.content for message in client.read("lines", mq.at_offset(10_001), follow=False)]
    assert found == [b"a", b"b", b"c\nd\n", b"e", b"f", b"f", b"f"]
    assert command("sub", "lines", "--last", "1", "-e", "-r") == "f\n"
    assert command("sub", "lines", "--offset", "9999", "-c", "2", "-r") == "line 9999\nunfinished\n"
    assert command("sub", "lines", "--since", "1h", "-c", "1", "-r") == "line 0\n"
    assert command("sub", "lines", "--new", "-e") == ""


def test_a_terminal_sees_the_progress_of_a_file_and_a_pipe_does_not(
    command: Command, client: mq.Client, tmp_path: Path
) -> None:
    client.create_channel("watched", exist_ok=True)
    file = tmp_path / "lines"
    file.write_bytes(b"one line\n" * 10_000)
    assert b"publishing" not in command.run("pub", "watched", "-l", str(file)).stderr
    ours, theirs = pty.openpty()
    arguments = [sys.executable, "-m", "mq.cli", "pub", "watched", "-l", str(file)]
    environment = {**command.environment, "TERM": "xterm"}
    with subprocess.Popen(arguments, env=environment, stderr=theirs) as running:
        os.close(theirs)
        seen = b""
        with contextlib.suppress(OSError):  # the terminal is gone with its last user
            while piece := os.read(ours, 1 << 16):
                seen += piece
        assert running.wait(DEADLINE) == 0
    os.close(ours)
    assert b"publishing to watched" in seen
    assert b"100%" in seen
    assert b"published 10,000 messages" in seen


def test_a_group_is_acked_unless_it_shall_not(command: Command, client: mq.Client) -> None:
    client.create_channel("work")
    command("pub", "work", stdin=b"1\n2\n3\n4\n")
    assert command("sub", "work", "-g", "g", "-c", "1", "-r") == "1\n"
    assert command("sub", "work", "-g", "g", "-e", "--no-ack", "-r") == "2\n3\n4\n"
    assert command("sub", "work", "-g", "g", "-e", "--batch", "2", "--interval", "1ms", "-r") == "2\n3\n4\n"
    assert client.describe_group("work", "g").lag == 0
    command("sub", "work", "-g", "g", "-e", "--partition", "0", code=2)
    assert "skipped" in command("group", "info", "work", "g")


def test_a_delayed_message_is_scheduled(command: Command, client: mq.Client) -> None:
    client.create_channel("later")
    told = json.loads(command("pub", "later", "wake up", "--delay", "1h", "-o", "json"))
    assert told["schedule_id"]
    command("pub", "later", "wake up", "--at", "2099-01-01T00:00")
    command("pub", "later", "--lines", "-", "--delay", "1h", stdin=b"1\n2\n", code=2)
    command("pub", "later", "wake up", "--count", "3", "--delay", "1h", code=2)
    assert client.describe_channel("later").scheduled == 2


@pytest.mark.parametrize("group", [(), ("-g", "g")])
def test_ctrl_c_ends_a_subscription_in_good_order(command: Command, client: mq.Client, group: tuple[str, ...]) -> None:
    name = f"stopped{len(group)}"
    client.create_channel(name)
    client.publish(name, b"first")
    process = command.start("sub", name, *group, "-r")
    assert process.stdout is not None
    assert process.stdout.readline() == b"first\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, out, err) == (0, b"", b"")
    if group:
        info = client.describe_group(name, "g")
        assert (info.lag, len(info.members)) == (0, 0)


def test_a_reader_that_has_enough_ends_the_command_quietly(command: Command, client: mq.Client) -> None:
    client.create_channel("piped")
    with client.producer("piped") as producer:
        producer.send_many([b"x" * 100] * 50_000)
    process = command.start("sub", "piped", "-r")
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(DEADLINE) == 0
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()


# ---------------------------------------------------------------- administration


def test_channels_are_made_shown_changed_and_removed(command: Command, client: mq.Client) -> None:
    command("channel", "add", "made", "-p", "3", "--max-age", "7d", "--max-messages", "1000")
    command("channel", "add", "made", code=4)
    command("channel", "add", "made", "--exist-ok")
    shown = json.loads(command("channel", "info", "made", "-o", "json"))
    assert shown == as_dict(client.describe_channel("made"))
    assert (shown["settings"]["max_age_ms"], len(shown["partitions"])) == (7 * 86_400_000, 3)
    listed = json.loads(command("channel", "ls", "made", "-o", "json"))
    assert listed == [as_dict(each) for each in client.list_channels("made")]
    assert re.search(r"^made +3 +0 ", command("channel", "ls"), re.MULTILINE)
    command("channel", "edit", "made", "--max-age", "1h", "-p", "4")
    info = client.describe_channel("made")
    assert (info.settings.max_age_ms, info.settings.max_messages, len(info.partitions)) == (3_600_000, 1000, 4)
    assert "start offset" in command("channel", "info", "made")
    command("pub", "made", stdin=b"a\nb\n")
    assert len(command("channel", "view", "made", "-n", "1").splitlines()) == 1
    assert command.run("channel", "purge", "made", stdin=b"n\n").returncode == 1
    assert client.describe_channel("made").messages == 2
    command("channel", "purge", "made", stdin=b"y\n")
    assert client.describe_channel("made").messages == 0
    command("channel", "rm", "made", "-f")
    command("channel", "info", "made", code=3)


def test_groups_are_made_shown_moved_and_removed(command: Command, client: mq.Client) -> None:
    client.create_channel("grouped")
    command("pub", "grouped", stdin=b"a\nb\nc\n")
    command("group", "add", "grouped", "g", "--ack-wait", "1m", "--backoff", "1s", "--backoff", "1m")
    command("group", "add", "grouped", "g", "--ack-wait", "2m", code=4)
    shown = json.loads(command("group", "info", "grouped", "g", "-o", "json"))
    assert shown["settings"]["backoff_ms"] == [1_000, 60_000]
    assert shown["lag"] == 3
    assert "grouped" in command("group", "ls", "grouped")
    rows = json.loads(command("group", "reset", "grouped", "g", "--to-latest", "-o", "json"))
    assert rows == [{"partition": 0, "before": 0, "after": 3}]
    assert client.describe_group("grouped", "g").lag == 3
    command("group", "reset", "grouped", "g", "--to-latest", "--execute")
    assert client.describe_group("grouped", "g").lag == 0
    command("group", "reset", "grouped", "g", "--shift-by", "-1", "--execute")
    command("group", "reset", "grouped", "g", code=2)
    with client.consumer("grouped", "g") as consumer:
        assert len(consumer.fetch(1, timeout=DEADLINE)) == 1
        (held,) = json.loads(command("group", "pending", "grouped", "g", "-o", "json"))
        assert (held["start"], held["end"], held["member"]) == (2, 3, consumer.member)
    command("group", "rm", "grouped", "g", "-f")
    command("group", "info", "grouped", "g", code=3)


def test_dead_letters_are_shown_sent_back_and_dropped(command: Command, client: mq.Client) -> None:
    client.create_channel("ill")
    with client.consumer("ill", "g") as consumer:
        for number in range(3):
            client.publish("ill", b"%d" % number, key="k", headers={"mine": "yes"})
        consumer.fetch(3, timeout=DEADLINE).reject("poison")
    listed = json.loads(command("dlq", "ls", "-o", "json"))
    assert [(each["channel"], each["messages"]) for each in listed] == [("ill.dlq", 3)]
    assert "poison" in command("dlq", "view", "ill")
    command("dlq", "redrive", "ill", "--rate", "1000/s")
    command("dlq", "redrive", "ill")
    back = list(client.read("ill", mq.at_offset(3), follow=False))
    assert [(each.content, each.key, each.headers) for each in back] == [
        (b"%d" % number, b"k", {"mine": "yes"}) for number in range(3)
    ]
    command("dlq", "purge", "ill", "-f")
    assert client.describe_channel("ill.dlq").messages == 0


def test_the_server_tells_how_it_is(command: Command, client: mq.Client) -> None:
    shown = json.loads(command("server", "info", "-o", "json"))
    assert shown["version"] == mq.__version__
    assert shown["start_id"] == client.server_info().start_id
    assert b"it serves" in command.run("server", "check").stderr
    assert "in/s" in command("top", "-n", "1", "--interval", "0.01")


def test_the_doctor_finds_a_healthy_machine_healthy(command: Command, tmp_path: Path) -> None:
    found = json.loads(command("doctor", "--data-dir", str(tmp_path / "data"), "-o", "json"))
    states = {each["check"]: each["state"] for each in found}
    assert {"settings", "versions", "clock", "data directory", "disk space", "fsync", "broker"} <= states.keys()
    assert states["broker"] == states["broker's clock"] == "ok"
    (tmp_path / "file").write_text("")
    bad = json.loads(command("doctor", "--data-dir", str(tmp_path / "file"), "-o", "json", code=1))
    assert any(each["state"] == "FAIL" and each["hint"] for each in bad)


@pytest.mark.parametrize(
    ("its", "state", "found"),
    [(99.5, "ok", "agrees"), (101.0, "ok", "agrees"), (90.0, "warn", "10.0 s behind"), (112.0, "warn", "10.0 s ahead")],
)
def test_the_doctor_compares_clocks_but_for_the_time_an_answer_takes(its: float, state: str, found: str) -> None:
    finding = doctor._clock_of_broker(its, begin=100.0, end=102.0)
    assert finding.state == state
    assert found in finding.found


# ---------------------------------------------------------------- the log


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with broker(tmp_path / "data", LOG_LEVEL="ERROR") as running, mq.Client(running) as client:
        client.create_channel("c")
        for turn in range(3):
            with client.producer("c") as producer:
                producer.send_many(b"%d-%d" % (turn, number) for number in range(1_000))
            Command(str(running))("wal", "rotate")
            wait_until(lambda turn=turn: len(client.list_segments()) == turn + 2)  # type: ignore[misc]
    return tmp_path / "data"


def test_a_log_is_listed_verified_dumped_and_repaired_without_a_broker(command: Command, log: Path) -> None:
    segments = json.loads(command("wal", "ls", str(log), "-o", "json"))
    assert [each["state"] for each in segments][:3] == ["sealed"] * 3
    shown = json.loads(command("wal", "verify", str(log), "-o", "json"))
    assert (shown["intact"], shown["messages"], shown["damage"]) == (True, 3_000, [])
    records = [json.loads(line) for line in command("wal", "dump", str(log), "-o", "jsonl").splitlines()]
    assert [each["sequence"] for each in records] == sorted(each["sequence"] for each in records)
    published = command("wal", "dump", str(log), "-t", "published", "-n", "2")
    assert len(published.splitlines()) == 2
    assert "Published" in published
    path = log / segments[1]["segment"]
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    found = json.loads(command("wal", "verify", str(log), "-o", "json", code=1))
    (damage,) = found["damage"]
    assert damage["segment"] == path.name
    assert damage["offsets"]
    assert "(damaged)" in command("wal", "dump", str(log))
    assert b"1 damaged ranges" in command.run("wal", "verify", str(log)).stderr
    command("wal", "repair", str(log), "-f")
    assert "(damaged)" not in command("wal", "dump", str(log))


def test_a_log_in_use_is_not_repaired_and_no_log_is_told(command: Command, tmp_path: Path) -> None:
    with broker(tmp_path / "data", LOG_LEVEL="ERROR"):
        command("wal", "verify", str(tmp_path / "data"))
        command("wal", "repair", str(tmp_path / "data"), "-f", code=4)
    (tmp_path / "empty").mkdir()
    command("wal", "ls", str(tmp_path / "empty"), code=2)
    command("wal", "ls", str(tmp_path / "nowhere"), code=2)


# ---------------------------------------------------------------- bench


@pytest.mark.parametrize(
    "arguments",
    [
        ("pub", "--msgs", "2000", "--clients", "2"),
        ("pub", "--msgs", "200", "--style", "publish", "--threads", "4"),
        ("pub", "--duration", "200ms", "--style", "send", "--rate", "2000/s"),
        ("sub", "--msgs", "2000"),
        ("sub", "--msgs", "2000", "--style", "iterate", "--clients", "2"),
        ("sub", "--msgs", "2000", "--style", "read"),
        ("e2e", "--msgs", "200", "--rate", "1000"),
        ("rt", "--msgs", "50"),
    ],
)
def test_a_benchmark_tells_rates_percentiles_and_settings(
    command: Command, client: mq.Client, arguments: tuple[str, ...]
) -> None:
    shown = json.loads(command("bench", *arguments, "--size", "100B", "-o", "json"))
    assert shown["msgs_per_second"] > 0
    assert shown["settings"]["size"] == 100
    assert shown["machine"]["broker"] == mq.__version__
    if arguments[0] in ("e2e", "rt"):
        latency = shown["latency_ms"]
        assert 0 < latency["p50"] <= latency["p99"] <= latency["max"]
    assert client.list_channels("bench-") == []


def test_a_benchmark_ends_with_lines_for_people(command: Command) -> None:
    shown = command("bench", "rt", "--msgs", "20")
    assert re.search(r"round trip: 20 messages in .* msgs/s", shown)
    assert "of bare" in shown
    assert "p99 " in shown


# ---------------------------------------------------------------- how it fails


def test_a_broker_that_is_not_there_is_one_line_and_its_own_code() -> None:
    answer = Command("mq://127.0.0.1:1").run("pub", "c", "x")
    assert answer.returncode == 6
    (line,) = answer.stderr.decode().splitlines()
    assert line.startswith("mq: can't connect to 127.0.0.1:1")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("pub", "no-such", "x"), 3),
        (("sub", "no-such", "-e"), 3),
        (("pub", "bad name", "x"), 2),
        (("sub", "c", "--new", "--all"), 2),
        (("sub", "c", "-J", "-r"), 2),
        (("pub", "c", "x", "--delay", "soon"), 2),
        (("pub", "c", "x", "-H", "none"), 2),
        (("pub", "c", "x", "--rate", "-1"), 2),
        (("sub", "c", "--server", "ftp://x"), 2),
        (("group", "info", "orders"), 2),
    ],
)
def test_what_is_wrong_has_an_exit_code_and_no_traceback(
    command: Command, arguments: tuple[str, ...], code: int
) -> None:
    answer = command.run(*arguments)
    assert answer.returncode == code, answer.stderr
    assert b"Traceback" not in answer.stderr
    assert answer.stdout == b""


# ---------------------------------------------------------------- help


def all_commands() -> list[tuple[list[str], Any]]:
    found = []
    context = click.Context(main)
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        found.append(([name], command))
        if isinstance(command, click.Group):
            found += [([name, each], command.get_command(context, each)) for each in command.list_commands(context)]
    return found


def test_every_command_and_option_says_what_it_does() -> None:
    for path, command in all_commands():
        assert command.help, path
        assert command.short_help, path
        for option in command.params:
            if isinstance(option, click.Option) and path != ["serve"]:
                assert option.help or option.name == "output", (path, option.name)


def test_the_help_the_table_and_the_page_agree(root: Path) -> None:
    page = (root / "docs" / "cli.md").read_text()
    for path, command in all_commands():
        assert f"mq {' '.join(path)}" in page, path
        for option in command.params:
            if isinstance(option, click.Option) and len(path) > 1:
                assert any(name in page for name in option.opts), (path, option.opts)
        assert COMMANDS[path[0]][1] == main.get_command(click.Context(main), path[0]).short_help  # type: ignore[union-attr]
    named = set(re.findall(r"^\s*mq ([a-z]+)", page, re.MULTILINE))
    assert named <= COMMANDS.keys()


@pytest.mark.parametrize(("shell", "word"), [("bash", "complete "), ("zsh", "#compdef mq"), ("fish", "complete ")])
def test_every_shell_gets_a_completion_script(command: Command, shell: str, word: str) -> None:
    script = command("completion", shell)
    assert word in script
    assert "_MQ_COMPLETE" in script


def test_no_colour_or_box_leaves_the_terminal(command: Command, client: mq.Client) -> None:
    client.create_channel("plain", exist_ok=True)
    assert command("channel", "ls").isascii()
