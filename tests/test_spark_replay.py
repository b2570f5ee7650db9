"""Replay: a selection published again, each message once, whatever is interrupted or run twice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from process import wait_until

import mq
from mq.cli import main
from mq.cli.spark import replay as command
from mq.cli.spark.ledger import CHANNEL, Entry, Ledger, ReplayConflict
from mq.errors import SequenceRefused, Unavailable
from mq.testing import Running, broker
from wal.frame import HEADER_BYTES, Frame
from wal.record import PUBLISHED
from wal.spark.read.listing import visible
from wal.spark.read.scan import read
from wal.spark.replay import Selected, Wanted, batches, in_order

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    directory = tmp_path_factory.mktemp("replay") / "data"
    with broker(directory) as address, mq.Client(address) as client:
        client.create_channel("orders")
        with client.producer("orders", batch_size=20) as producer:
            for number in range(100):
                producer.send(f'{{"n": {number}}}', key=f"k{number % 7}", headers={"h": str(number)})
        client.rotate_segment()
        wait_until(lambda: any(each.is_sealed for each in visible(str(directory))))
        yield address


@pytest.fixture
def client(running: Running) -> Iterator[mq.Client]:
    with mq.Client(running) as client:
        yield client


@pytest.fixture
def target(client: mq.Client, request: pytest.FixtureRequest) -> str:
    name = f"t{abs(hash(request.node.name))}"
    client.create_channel(name)
    return name


@pytest.fixture
def replay(running: Running, spark: SparkSession) -> Callable[..., Result]:
    """Runs the command in this process, on the session of the tests."""

    def run(*arguments: str) -> Result:
        where = ["--data-dir", str(running.server.config.wal_dir), "--server", running]
        return CliRunner().invoke(main, ["spark", "replay", "--channel", "orders", *where, *arguments])

    return run


def numbers(client: mq.Client, channel: str) -> list[int]:
    return [message.json()["n"] for message in client.read(channel, follow=False)]


# ---------------------------------------------------------------- with Spark and a broker


@pytest.mark.spark
def test_a_replay_that_is_run_twice_publishes_once(
    replay: Callable[..., Result], client: mq.Client, target: str
) -> None:
    condition = ["--to", target, "--where", "get_json_object(cast(value AS string), '$.n') >= 40"]
    first = replay(*condition)
    assert first.exit_code == 0, first.output
    assert "messages  60" in first.stdout
    second = replay(*condition)
    assert second.exit_code == 0
    assert "messages  0" in second.stdout
    assert "was done before" in second.stderr
    assert numbers(client, target) == list(range(40, 100))
    message = next(iter(client.read(target, follow=False)))
    assert (message.key, message.headers["h"]) == (b"k5", "40")
    again = replay(*condition, "--id", "once-more")
    assert again.exit_code == 0
    assert numbers(client, target) == [*range(40, 100), *range(40, 100)]


@pytest.mark.spark
def test_a_replay_into_its_own_channel_ends(replay: Callable[..., Result], client: mq.Client, running: Running) -> None:
    client.create_channel("loop")
    for number in range(5):
        client.publish("loop", {"n": number})
    client.rotate_segment()
    wait_until(lambda: visible(str(running.server.config.wal_dir))[-1].first_sequence > 5)
    result = CliRunner().invoke(
        main,
        [
            "spark",
            "replay",
            "-d",
            str(running.server.config.wal_dir),
            "-s",
            running,
            "--channel",
            "loop",
            "--to",
            "loop",
        ],
    )
    assert result.exit_code == 0, result.output
    assert numbers(client, "loop") == [*range(5), *range(5)]


@pytest.mark.spark
def test_a_dry_run_counts_and_publishes_nothing(replay: Callable[..., Result], client: mq.Client, target: str) -> None:
    result = replay("--to", target, "--where", "offset < 30", "--to-time", "2999-01-01", "--dry-run")
    assert "messages  30" in result.stdout
    assert numbers(client, target) == []


@pytest.mark.spark
@pytest.mark.parametrize("moment", ["before it is sent", "after it was stored"])
def test_a_replay_that_dies_is_gone_on_with(
    replay: Callable[..., Result],
    client: mq.Client,
    target: str,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    monkeypatch.setattr(command, "BATCH_MESSAGES", 7)  # records are cut in the middle
    write, left = Ledger._write, [4]

    def dies(self: Ledger, entry: Entry, messages: Any) -> None:
        if left[0] == 0 and moment == "before it is sent":
            raise Unavailable("the process died")
        write(self, entry, messages)
        if left[0] == 0:
            raise Unavailable("the process died")
        left[0] -= 1

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "_write", dies)
        assert replay("--to", target).exit_code == 6
    assert 0 < len(numbers(client, target)) < 100
    rest = replay("--to", target)
    assert rest.exit_code == 0, rest.output
    assert numbers(client, target) == list(range(100))


@pytest.mark.spark
def test_what_is_wrong_with_a_replay_is_one_line(replay: Callable[..., Result], client: mq.Client, target: str) -> None:
    for arguments, code, line in (
        (["--to", "nowhere"], 3, "nowhere"),
        (["--to", target, "--where", "no such thing"], 1, "syntax"),
        (["--to", target, "--where", "nosuch = 1"], 1, "nosuch"),
    ):
        result = replay(*arguments)
        assert result.exit_code == code, result.output
        assert line.lower() in result.stderr.lower()
        assert result.stderr.count("\n") == 1
    assert numbers(client, target) == []
    assert replay("--to", target, "--id", target, "--where", "nosuch = 1").exit_code == 1
    assert replay("--to", target, "--id", target, "--where", "offset = 1").exit_code == 0, "nothing had begun"
    assert replay("--to", target, "--id", target, "--where", "offset = 2").exit_code == 4
    assert numbers(client, target) == [1]


@pytest.mark.spark
def test_damage_ends_a_replay_unless_it_may_be_left_out_and_then_it_is_told(
    replay: Callable[..., Result], client: mq.Client, running: Running, target: str, tmp_path: Path
) -> None:
    client.create_channel("harmed")
    for number in range(100, 105):
        client.publish("harmed", {"n": number})
    source = str(running.server.config.wal_dir)
    active = visible(source)[-1].first_sequence
    client.rotate_segment()
    wait_until(lambda: visible(source)[-1].first_sequence > active)
    directory = Path(shutil.copytree(source, tmp_path / "data", ignore=shutil.ignore_patterns("spare*")))
    segment, lost = next(
        (segment, item)
        for segment in visible(str(directory))
        for item in read(segment)
        if isinstance(item, Frame) and item.type == PUBLISHED and b'{"n":102}' in bytes(item.payload)
    )
    rest = [*range(102), 103, 104]
    with (directory / segment.name).open("r+b") as file:
        file.seek(lost.position + HEADER_BYTES + 30)
        file.write(b"\xff\xff\xff")
    asked = ["--data-dir", str(directory), "--channel", "harmed", "--to", target]
    failed = replay(*asked)
    assert failed.exit_code == 1, failed.output
    assert (failed.stderr.count("\n"), segment.name in failed.stderr) == (1, True)
    assert replay(*asked, "--dry-run").exit_code == 1
    would = replay(*asked, "--dry-run", "--skip-damaged", "-o", "json")
    assert (json.loads(would.stdout)["messages"], json.loads(would.stdout)["damaged"]) == (len(rest), 1)
    done = replay(*asked, "--skip-damaged", "--where", "offset >= 0", "-o", "json")
    told = json.loads(done.stdout)
    assert (told["messages"], told["damaged"]) == (len(rest), 1)
    assert f"left out: {segment.name}" in done.stderr
    assert numbers(client, target) == rest
    assert json.loads(replay(*asked, "--skip-damaged", "-o", "json").stdout)["damaged"] == 1, "it goes on"


# ---------------------------------------------------------------- the ledger


def selected(*offsets: int) -> list[Selected]:
    return [Selected((offset, 1, 0, offset), None, b'{"n": %d}' % offset, []) for offset in offsets]


def test_a_step_that_is_sent_again_is_stored_once(client: mq.Client, target: str) -> None:
    ledger = Ledger(client, target)
    first = ledger.begin(Entry(target, {}, target, 99))
    ledger.publish(first, selected(1, 2))
    ledger.publish(first, selected(1, 2))  # the request of a process that was thought dead comes late
    assert numbers(client, target) == [1, 2]
    with pytest.raises(SequenceRefused):
        ledger.publish(first, selected(1, 2, 3))
    assert numbers(client, target) == [1, 2]


def test_the_ledger_needs_no_producers_to_know_what_was_published(
    client: mq.Client, target: str, running: Running
) -> None:
    ledger = Ledger(client, target)
    entry = ledger.publish(ledger.begin(Entry(target, {}, target, 99)), selected(1, 2))
    state = running.server.broker.state
    for channel in (target, CHANNEL):
        state.channels[channel].producers._known.clear()  # as after a week
    present = Ledger(client, target).begin(Entry(target, {}, target, 500))
    assert present == entry
    assert present.place == (2, 1, 0, 2)
    ledger.finish(ledger.publish(present, selected(3)))
    assert numbers(client, target) == [1, 2, 3]
    done = ledger.last()
    assert done is not None
    assert (done.is_done, done.published, done.through) == (True, 3, 99)


def test_an_id_belongs_to_one_selection(client: mq.Client, target: str) -> None:
    ledger = Ledger(client, target)
    ledger.begin(Entry(target, {"where": "a"}, target, 99))
    with pytest.raises(ReplayConflict, match="another selection"):
        ledger.begin(Entry(target, {"where": "b"}, target, 99))


# ---------------------------------------------------------------- order


def row(sequence: int, channel_id: int, partition: int, offset: int) -> Any:
    return SimpleNamespace(
        sequence=sequence,
        channel_id=channel_id,
        partition=partition,
        offset=offset,
        key=None,
        value=bytearray(b"v"),
        headers=[{"key": "a", "value": bytearray(b"1")}, {"key": "a", "value": bytearray(b"2")}],
        damage=None,
    )


def test_messages_have_one_order_and_any_point_of_it_can_be_gone_on_from() -> None:
    rows = [row(1, 1, 0, 0), row(2, 2, 0, 5), row(2, 1, 1, 0), row(2, 1, 0, 2), row(2, 1, 0, 1), row(3, 1, 0, 3)]
    places = [each.place for each in in_order(rows)]
    assert places == sorted(places)
    for after in places:
        assert [each.place for each in in_order(rows, after)] == [place for place in places if place > after]
    dropped = [each for each in rows if each.offset != 2]  # compaction took one
    assert [each.place for each in in_order(dropped, (2, 1, 0, 2))] == [(2, 1, 1, 0), (2, 2, 0, 5), (3, 1, 0, 3)]
    assert next(in_order(rows)).headers == [("a", b"1"), ("a", b"2")]


def test_batches_keep_to_both_limits_and_never_lose_a_large_message() -> None:
    some = [Selected((n, 1, 0, n), None, bytes(size), []) for n, size in enumerate([10, 10, 500, 10, 10, 10])]
    cut = [[len(each.value) for each in batch] for batch in batches(some, 2, 100)]
    assert cut == [[10, 10], [500], [10, 10], [10]]


def test_the_name_of_a_replay_comes_from_its_selection() -> None:
    wanted = Wanted("u", ("a",), where="x = 1")
    assert wanted.name("t") == Wanted("u", ("a",), where="x = 1").name("t")
    others = {wanted.name("other"), Wanted("u", ("a",)).name("t"), Wanted("v", ("a",), where="x = 1").name("t")}
    assert len(others | {wanted.name("t")}) == 4


def test_the_example_in_the_help_is_a_command(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["spark", "replay", "--help"])
    assert result.exit_code == 0
    assert "mq.replays" in result.output
