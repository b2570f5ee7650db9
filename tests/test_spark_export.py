"""Export: everything once, in files that pyarrow, DuckDB and Spark read, whatever happens between runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from process import wait_until
from smalllog import grow, make_log, open_here
from walsample import published

import mq
import mq.testing
from mq.cli import main
from wal.disk import DirectDisk
from wal.errors import LogLocked
from wal.filelog import FileLog
from wal.frame import Frame
from wal.manifest import read_manifest, swap_manifest
from wal.options import Options
from wal.record import ChannelCreated, ChannelSnapshot, Published, SnapshotBegin, SnapshotEnd
from wal.spark.export import destination as journal
from wal.spark.export.destination import Commit, Destination, ExportRefused, Kind, PartFile, partition_folder
from wal.spark.export.jsontype import BadSchema
from wal.spark.export.partfiles import DAY_US, PartFiles, by_channel_and_day
from wal.spark.read.listing import Segment, visible

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rotate(client: mq.Client, log: Path) -> None:
    """Returns when Spark can see it: the call itself only asks for it."""
    active = visible(str(log))[-1].first_sequence
    client.rotate_segment()
    wait_until(lambda: visible(str(log))[-1].first_sequence > active)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of a real broker with several segments; nobody writes to it."""
    directory = tmp_path_factory.mktemp("log")
    with mq.testing.broker(directory) as address, mq.Client(address) as client:
        for channel in ("007", "42"):
            client.create_channel(channel)
        fill(client, "007", 0, 300)
        client.rotate_segment()
        fill(client, "42", 0, 200)
        client.rotate_segment()
        fill(client, "007", 300, 50)
    return directory


def fill(client: mq.Client, channel: str, start: int, count: int) -> None:
    with client.producer(channel) as producer:
        for number in range(start, start + count):
            producer.send(f'{{"n": {number}}}', key=f"k{number % 7}", headers={"h": "v"})


def everything(out: Path) -> list[tuple[str, int]]:
    """Channel and offset of each row, as one who knows nothing of mq finds them."""
    table = ds.dataset(out, format="parquet", partitioning="hive").to_table(columns=["channel", "offset"])
    return sorted(zip(table["channel"].to_pylist(), table["offset"].to_pylist(), strict=True))


def expected(**channels: int) -> list[tuple[str, int]]:
    return sorted((name.strip("_"), offset) for name, count in channels.items() for offset in range(count))


# ---------------------------------------------------------------- readers


@pytest.mark.spark
def test_an_export_reads_the_same_in_pyarrow_duckdb_and_spark(
    spark: SparkSession, sample: Path, tmp_path: Path
) -> None:
    from wal.spark.export.job import export

    out = tmp_path / "out"
    result = export(spark, str(sample), str(out))
    assert result.messages == 550
    assert result.damage == []
    assert everything(out) == expected(_007=350, _42=200)  # strings, though all of them are numbers

    table = pq.read_table(out)
    assert table.schema.field("timestamp").type == pa.timestamp("us", "UTC")
    assert set(table["headers"].to_pylist()[0][0]) == {"key", "value"}

    with duckdb.connect() as database:
        rows = database.execute(
            f"SELECT channel, count(*), min(date), any_value(decode(value)) FROM '{out}/**/*.parquet' "
            "WHERE channel = '007' GROUP BY ALL"
        ).fetchall()
        kinds = database.execute(f"DESCRIBE SELECT channel, date FROM '{out}/**/*.parquet'").fetchall()
    assert [(row[0], row[1]) for row in rows] == [("007", 350)]
    assert [kind[1] for kind in kinds] == ["VARCHAR", "DATE"]
    assert isinstance(rows[0][2], date)

    frame = spark.read.parquet(str(out))
    assert dict(frame.dtypes)["channel"] == "string"
    assert {row["channel"]: row["count"] for row in frame.groupBy("channel").count().collect()} == {
        "007": 350,
        "42": 200,
    }


@pytest.mark.spark
def test_json_values_are_typed_and_misfits_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    from wal.spark.export.job import INFER, export

    log, out = tmp_path / "log", tmp_path / "out"
    with mq.testing.broker(log) as address, mq.Client(address) as client:
        client.create_channel("orders")
        client.create_channel("other")
        client.publish("other", b"never JSON")
        client.publish("orders", b'{"id": 1, "price": 2.5}')
        client.publish("orders", b"broken")
        rotate(client, log)
        export(spark, str(log), str(out), channels=["orders"], json_schema=INFER)
        client.publish("orders", b'{"id": "two", "price": 3}')
        client.publish("orders", b'{"id": 3, "more": true}')
        rotate(client, log)
        again = export(spark, str(log), str(out), channels=["orders"], json_schema=INFER)
        assert again.messages == 2
        client.publish("orders", b"{}")
        with pytest.raises(ExportRefused, match="another choice of channels"):
            export(spark, str(log), str(out), json_schema=INFER)
    table = pq.read_table(out).sort_by("offset")
    assert table["channel"].unique().to_pylist() == ["orders"]
    assert table["value"].to_pylist() == [{"id": 1, "price": 2.5}, None, None, {"id": 3, "price": None}]
    assert table["_corrupt_record"].to_pylist() == [None, "broken", '{"id": "two", "price": 3}', None]
    with duckdb.connect() as database:
        total = database.execute(f"SELECT sum(value.id) FROM '{out}/channel=orders/**/*.parquet'").fetchone()
    assert total == (4,)
    bad = {"type": "struct", "fields": [{"name": "id", "type": "decimal(3,1)"}]}
    with pytest.raises(BadSchema, match="decimal"):
        export(spark, str(log), str(tmp_path / "bad"), json_schema=bad)


# ---------------------------------------------------------------- exactly once


@pytest.mark.spark
def test_each_run_adds_what_is_new_and_only_that(spark: SparkSession, tmp_path: Path) -> None:
    from wal.spark.export.job import export

    log, out = tmp_path / "log", tmp_path / "out"
    with mq.testing.broker(log) as address, mq.Client(address) as client:
        client.create_channel("a")
        fill(client, "a", 0, 10)
        assert export(spark, str(log), str(out), sealed_only=True).messages == 0
        assert until(spark, log, out, 10) == 10
        assert export(spark, str(log), str(out)).messages == 0
        fill(client, "a", 10, 10)  # into the segment that is exported in part
        assert until(spark, log, out, 10) == 10
        rotate(client, log)
        assert export(spark, str(log), str(out)).messages == 0
        client.create_channel("b")
        fill(client, "b", 0, 5)
        assert until(spark, log, out, 5) == 5
    assert export(spark, str(log), str(out)).messages == 0
    assert everything(out) == expected(a=20, b=5)


def until(spark: SparkSession, log: Path, out: Path, wanted: int) -> int:
    """Exports until so many came: that something is durable is noted on disk a moment after it was answered."""
    from wal.spark.export.job import export

    found = 0

    def has_all() -> bool:
        nonlocal found
        found += export(spark, str(log), str(out)).messages
        return found >= wanted

    wait_until(has_all)
    return found


@pytest.mark.spark
def test_the_export_of_another_log_is_refused(spark: SparkSession, sample: Path, tmp_path: Path) -> None:
    from wal.spark.export.job import export

    other, out = tmp_path / "log", tmp_path / "out"
    with mq.testing.broker(other) as address, mq.Client(address) as client:
        client.create_channel("a")
        fill(client, "a", 0, 2000)
    export(spark, str(sample), str(out))
    before = everything(out)
    with pytest.raises(ExportRefused, match="another log"):
        export(spark, str(other), str(out))
    assert everything(out) == before


class Killed(BaseException):
    """Stands for the end of the process: nothing that cleans up catches it."""


STEPS = ["stage", "write", "commit", "rename", "rename again", "remove"]


@pytest.mark.spark
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_step_leaves_nothing_half_and_nothing_twice(
    spark: SparkSession, sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    from wal.spark.export import job

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        fail_at(step, patch)
        with pytest.raises(Killed):
            job.export(spark, str(sample), str(out), is_shown=False)
    seen = Counter(everything(out)) if (out / journal.SCHEMA_FILE).exists() else Counter()
    assert set(seen) <= set(expected(_007=350, _42=200))
    assert not seen or max(seen.values()) == 1
    with duckdb.connect() as database:  # which looks into every directory
        found = database.execute(f"SELECT count(*) FROM '{out}/**/*.parquet'").fetchone()
    assert found == (sum(seen.values()),)
    job.export(spark, str(sample), str(out))
    assert everything(out) == expected(_007=350, _42=200)
    assert not (out / journal.JOURNAL / "staging").exists() or not any((out / journal.JOURNAL / "staging").iterdir())


def fail_at(step: str, patch: pytest.MonkeyPatch) -> None:
    """Plants the end of the process just before, or in the middle of, a step."""

    def end(*_: Any, **__: Any) -> None:
        raise Killed

    if step == "stage":
        patch.setattr(Destination, "stage", end)
    elif step == "write":
        patch.setattr(Destination, "commit", end)
    elif step == "commit":
        write = journal._write

        def cut(path: Path, content: Any) -> None:
            if path.parent.name == "commits":
                path.with_suffix(".new").write_text('{"number": 1, "aft')
                raise Killed
            write(path, content)

        patch.setattr(journal, "_write", cut)
    elif step == "remove":
        patch.setattr(journal.shutil, "rmtree", lambda path, **options: options or end())
    else:
        rename, left = Path.rename, [0 if step == "rename" else 1]

        def some(self: Path, target: Path) -> Path:
            if self.suffix == journal.STAGED:
                if not left[0]:
                    raise Killed
                left[0] -= 1
            return rename(self, target)

        patch.setattr(Path, "rename", some)


class KeepsFirst:
    """Channel 1 is needed, channel 2 is not."""

    def start_of(self, channel_id: int, partition: int) -> int:
        return 0 if channel_id == 1 else 1 << 40

    def needs(self, record: Any) -> bool:
        return isinstance(record, Published) and record.channel_id == 1


@pytest.fixture
def rewritten(tmp_path: Path) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A log of two channels, and what rewrites its segments without the second, then appends to the first."""
    options = Options(segment_bytes=64 << 10, snapshot_bytes=16 << 10, soft_free_bytes=0, retire_grace_us=0)
    log = FileLog.open(str(tmp_path / "log"), options, is_threaded=False)
    log.start(lambda written, synced: None, lambda error: None)
    log.append([ChannelCreated(channel_id=number, name=name, partitions=1) for number, name in ((1, "a"), (2, "b"))])
    for base in range(400):
        log.append([published(base, b"kept", channel=1), published(base, b"x" * 900, channel=2)])
        log.pump()

    def rewrite() -> None:
        for _ in range(2):
            begin = log.append([SnapshotBegin(channel_ids=[1, 2])])
            snapshots = [ChannelSnapshot(channel_id=number, name=name) for number, name in ((1, "a"), (2, "b"))]
            log.append([*snapshots, SnapshotEnd(begin_sequence=begin)])
        log.rotate()
        log.pump()
        idle = 0
        while idle < 3:
            idle = 0 if log.clean_now(KeepsFirst(), 1 << 20) else idle + 1
        log.append([published(400, b"new", channel=1)])
        log.pump()

    yield tmp_path / "log", rewrite
    log.close()


@pytest.mark.spark
def test_rewritten_segments_are_not_exported_again(
    spark: SparkSession, rewritten: tuple[Path, Callable[[], None]], tmp_path: Path
) -> None:
    from wal.spark.export.job import export

    (log, rewrite), out = rewritten, tmp_path / "out"
    assert export(spark, str(log), str(out)).messages == 800
    rewrite()
    assert export(spark, str(log), str(out)).messages == 1
    assert everything(out) == expected(a=401, b=400)


def test_a_segment_that_is_rewritten_after_it_was_listed_is_read_from_its_replacement(
    rewritten: tuple[Path, Callable[[], None]],
) -> None:
    from wal.spark.export.job import frames_between

    log, rewrite = rewritten
    before = [each for each in visible(str(log)) if each.is_sealed]
    rewrite()
    manifest = read_manifest(DirectDisk(), str(log))
    assert manifest is not None
    for retired in manifest.retired:
        (log / retired.name).unlink(missing_ok=True)  # their grace is over
    assert not (log / before[0].name).exists()
    items = [item for each in before for item in frames_between(each, 5, 700)]
    sequences = [item.sequence for item in items if isinstance(item, Frame)]
    assert len(sequences) == len(items), "a rewritten segment is no damage"
    assert sequences == sorted(set(sequences))
    assert [item.sequence for item in items if item.sequence in range(6, 40)] == list(range(7, 40, 2))
    assert sequences[-1] <= 700


@pytest.mark.spark
def test_what_is_damaged_or_gone_is_told_and_the_rest_is_exported(spark: SparkSession, tmp_path: Path) -> None:
    from wal.spark.export.job import export

    log, out = make_log(tmp_path / "log"), tmp_path / "out"
    second = visible(str(log))[1]
    with (log / second.name).open("r+b") as file:
        file.seek(second.size // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    result = export(spark, str(log), str(out))
    (line,) = result.damage
    assert second.name in line
    assert (result.messages, result.missed) == (59, 0)
    assert len(set(everything(out))) == 59

    grown = open_here(log)
    grow(grown, 120, base=60)
    grown.close()
    manifest = read_manifest(DirectDisk(), str(log))
    assert manifest is not None
    new = [each for each in manifest.segments if each.first_sequence > result.through]
    # what came first was retired in between, and so was one in the middle
    swap_manifest(DirectDisk(), str(log), manifest.with_segments((new[1], *new[3:])))
    later = export(spark, str(log), str(out))
    middle = new[3].first_sequence - new[2].first_sequence
    assert later.missed == new[1].first_sequence - result.through - 1 + middle > middle > 0
    assert later.rewritten == 0
    assert 0 < later.messages < 120
    assert len(set(everything(out))) == 59 + later.messages


@pytest.mark.spark
def test_a_name_that_is_told_outside_of_what_is_exported_is_found(spark: SparkSession, tmp_path: Path) -> None:
    from wal.spark.export.job import export

    directory = tmp_path / "log"
    log = open_here(directory)
    log.start(lambda written, synced: None, lambda error: None)
    log.append([ChannelCreated(channel_id=1, name="orders", partitions=1)])
    log.rotate()
    log.pump()
    grow(log, 10)
    log.rotate()
    begin = log.append([SnapshotBegin(channel_ids=[1])])
    log.append([ChannelSnapshot(channel_id=1, name="orders"), SnapshotEnd(begin_sequence=begin)])
    log.pump()
    log.close()
    manifest = read_manifest(DirectDisk(), str(directory))
    assert manifest is not None
    swap_manifest(DirectDisk(), str(directory), manifest.with_segments(manifest.segments[1:]))
    assert export(spark, str(directory), str(tmp_path / "out"), sealed_only=True).messages == 10
    assert everything(tmp_path / "out") == expected(orders=10)


def test_one_export_at_a_time(tmp_path: Path) -> None:
    with Destination(tmp_path), pytest.raises(LogLocked, match="another export"):
        Destination(tmp_path)
    Destination(tmp_path).__exit__()


@pytest.mark.spark
@pytest.mark.slow
def test_a_driver_that_is_killed_is_made_up_for(spark: SparkSession, sample: Path, tmp_path: Path) -> None:
    """A process of its own, killed when the first file is in its place and the others are not."""
    from wal.spark.export.job import export

    out = tmp_path / "out"
    program = (
        "import sys; from pathlib import Path\n"
        "from wal.spark.session import session; from wal.spark.export.job import export\n"
        "rename = Path.rename\n"
        "def slow(self, target):\n"
        "    rename(self, target)\n"
        "    if self.suffix == '.staged': print('renamed', flush=True); sys.stdin.read()\n"
        "Path.rename = slow\n"
        "export(session('killed', master='local[2]'), sys.argv[1], sys.argv[2])\n"
    )
    driver = subprocess.Popen(
        [sys.executable, "-c", program, str(sample), str(out)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert driver.stdin is not None
    assert driver.stdout is not None
    with driver, driver.stdin, driver.stdout:
        line = driver.stdout.readline()
        os.killpg(driver.pid, signal.SIGKILL)
    assert line == "renamed\n"
    assert 0 < len(everything(out)) < 550
    assert export(spark, str(sample), str(out)).messages == 0
    assert everything(out) == expected(_007=350, _42=200)


# ---------------------------------------------------------------- the command


@pytest.mark.spark
def test_the_command_exports_and_tells_what_it_did(spark: SparkSession, sample: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["spark", "export", "--data-dir", str(sample), "--out", out, *arguments])

    would = json.loads(run("--dry-run", "-o", "json").stdout)
    assert (would["exported"], would["segments"] > 1, would["bytes"] > 0) == (0, True, True)
    assert not Path(out).exists()
    first = run("-o", "json", "--channel", "42", "--channel", "later")
    told = json.loads(first.stdout)
    assert (told["messages"], told["missed"], told["damage"]) == (200, 0, [])
    assert told["through"] == would["through"]
    assert "no channel 'later'" in first.stderr
    assert everything(Path(out)) == expected(_42=200)
    again = run("--channel", "later", "--channel", "42")
    assert "messages   0" in again.stdout
    other = run()
    assert (other.exit_code, other.stderr.count("\n")) == (4, 1)
    assert "another choice of channels" in other.stderr


def test_what_is_wrong_with_an_export_is_one_line(sample: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.json").write_text('{"type": ')
    (tmp_path / "decimal.json").write_text('{"type": "struct", "fields": [{"name": "x", "type": "decimal(9,2)"}]}')
    (tmp_path / "latin").write_bytes(b"gr\xf6\xdfe DOUBLE")
    new, bad = str(tmp_path / "new"), str(tmp_path / "bad.json")
    for arguments, code, line in (
        (["--data-dir", str(sample), "--out", "s3://bucket/lake"], 2, "is a directory"),
        (["--data-dir", str(sample), "--out", new, "--json-schema", bad], 2, "is no JSON"),
        (["--data-dir", str(sample), "--out", new, "--json-schema", str(tmp_path / "latin")], 2, "is not UTF-8"),
        (["--data-dir", str(sample), "--out", new, "--json-schema", str(tmp_path / "decimal.json")], 1, "decimal"),
        (["--data-dir", str(tmp_path / "empty"), "--out", new], 3, "holds no log"),
        (["--data-dir", str(tmp_path / "missing"), "--out", new], 3, "No such file"),
        (["--data-dir", "nosuch://bucket/log", "--out", new], 1, "nosuch://bucket/log"),
        (["--data-dir", str(sample), "--out", "/proc/nowhere"], 3, "No such file"),
    ):
        result = CliRunner().invoke(main, ["spark", "export", *arguments])
        assert result.exit_code == code, result.output
        assert line in result.stderr
        assert "Traceback" not in result.output
    assert not Path(new).exists() or not any(Path(new).rglob("*.parquet"))


# ---------------------------------------------------------------- parts


def test_spans_cover_the_log_without_overlap_and_are_alike() -> None:
    from wal.spark.export.job import SPAN_BYTES, plan

    def segment(first: int, last: int, size: int) -> Segment:
        return Segment("u", "/log", f"{first}", first, last, 0, b"", size, True)

    some = [segment(10 * n + 1, 10 * n + 10, 10 << 20) for n in range(100)]
    spans = plan(some, 5, cores=2)
    assert [each for span in spans for each in span.segments] == some
    assert (spans[0].after, spans[-1].through) == (5, 1000)
    assert all(one.through == other.after for one, other in pairwise(spans))
    assert len(spans) == 6
    assert len(plan(some[:9], 5, cores=2)) == 3, "a task is worth its files"
    large = [segment(10 * n + 1, 10 * n + 10, 2 * SPAN_BYTES) for n in range(30)]
    assert [len(span.segments) for span in plan(large, 0, cores=2)] == [1] * 30


def test_a_commit_is_finished_by_whoever_opens_the_directory_next(tmp_path: Path) -> None:
    with Destination(tmp_path) as destination:
        destination.begin(Kind("uuid"))
        staging = destination.stage()
        for name in ("a.staged", "b.staged", "stray.staged"):
            (staging / name).write_text(name)
        files = tuple(PartFile(f"{name}.staged", f"channel=x/date=d/{name}.parquet", 1, 8) for name in "ab")
        done = destination.commit(staging, Commit(0, 0, 9, "", files))
        assert (done.number, destination.through) == (1, 9)
    assert sorted(path.name for path in tmp_path.rglob("*.parquet")) == ["a.parquet", "b.parquet"]
    (tmp_path / "channel=x/date=d/a.parquet").unlink()  # its owner's business
    with Destination(tmp_path) as destination:
        assert destination.last == done
    assert sorted(path.name for path in tmp_path.rglob("*.parquet")) == ["b.parquet"]


def test_a_damaged_journal_is_refused_and_nothing_stays_locked(tmp_path: Path) -> None:
    with Destination(tmp_path) as destination:
        destination.commit(destination.stage(), Commit(0, 0, 9, ""))
    path = tmp_path / journal.JOURNAL / "commits" / "00000001.json"
    intact = path.read_text()
    for damaged in ("", "[]", intact[:40], intact.replace('"through"', '"trough"')):
        path.write_text(damaged)
        with pytest.raises(ExportRefused, match=r"00000001\.json is damaged"):
            Destination(tmp_path)
    path.write_text(intact)
    with Destination(tmp_path) as destination:
        assert destination.through == 9


def test_an_export_that_nobody_knows_the_kind_or_the_commits_of_is_refused(tmp_path: Path) -> None:
    with Destination(tmp_path) as destination:
        destination.begin(Kind("uuid"))
    path = tmp_path / journal.JOURNAL / "export.json"
    intact = path.read_text()
    for damaged in (b"", b"[]", b"\xff\xfe", intact[:40].encode(), intact.replace('"channels"', '"canals"').encode()):
        path.write_bytes(damaged)
        with Destination(tmp_path) as destination, pytest.raises(ExportRefused, match=r"export\.json is damaged"):
            destination.kind()
    path.write_text(intact)
    stray = tmp_path / journal.JOURNAL / "commits" / "copy of 1.json"
    stray.touch()
    with pytest.raises(ExportRefused, match="copy of 1"):
        Destination(tmp_path)


def test_the_way_to_what_a_commit_names_is_synced_before_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[Path] = []
    sync, write = journal._sync, journal._write

    def noted_sync(path: Path) -> None:
        steps.append(path)
        sync(path)

    def noted_write(path: Path, content: Any) -> None:
        steps.append(path)
        write(path, content)

    with Destination(tmp_path / "new" / "export") as destination:
        monkeypatch.setattr(journal, "_sync", noted_sync)
        monkeypatch.setattr(journal, "_write", noted_write)
        staging = destination.stage()
        destination.commit(staging, Commit(0, 0, 9, ""))
    before = steps[: steps.index(destination.journal / "commits" / "00000001.json")]
    assert {staging, staging.parent, destination.journal, destination.root, tmp_path / "new"} <= set(before)


@pytest.mark.parametrize("name", ["orders", "007", "#77", "a=b", "50%", "a/../../b", "tab\there", "ü", ".."])
def test_any_channel_has_a_directory_that_readers_take_for_its_name(name: str, tmp_path: Path) -> None:
    folder = tmp_path / partition_folder(name, "2026-05-01")
    assert folder.parent.parent == tmp_path
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"offset": [1]}), folder / "x.parquet")
    other = tmp_path / partition_folder("-schema-", "1970-01-01")
    other.mkdir(parents=True)
    pq.write_table(pa.table({"offset": pa.array([], pa.int64())}), other / "schema.parquet")
    assert pq.read_table(tmp_path)["channel"].to_pylist() == [name]
    with duckdb.connect() as database:
        assert database.execute(f"SELECT channel FROM '{tmp_path}/**/*.parquet'").fetchall() == [(name,)]


def batches(rows: list[tuple[int, int, int]]) -> pa.RecordBatch:
    channels, days, offsets = zip(*rows, strict=True)
    times = pa.array([day * DAY_US + 5 for day in days], pa.int64()).cast(pa.timestamp("us", "UTC"))
    return pa.record_batch({"channel_id": list(channels), "timestamp": times, "offset": list(offsets)})


def test_rows_go_to_their_channel_and_their_day_in_the_order_of_the_log() -> None:
    rows = [(1, 0, 0), (2, 0, 0), (1, 1, 1), (2, 0, 1), (1, 0, 2), (1, -1, 3)]
    found = [
        (channel, day, part.column("offset").to_pylist()) for channel, day, part in by_channel_and_day(batches(rows))
    ]
    assert found == [
        (1, "1969-12-31", [3]),
        (1, "1970-01-01", [0, 2]),
        (1, "1970-01-02", [1]),
        (2, "1970-01-01", [0, 1]),
    ]


def test_rows_that_wait_for_their_file_keep_nothing_but_themselves() -> None:
    rows = batches([(number % 50, 0, number) for number in range(1000)])
    rows = rows.append_column("value", pa.array([bytes(1000)] * 1000))
    parts = [part for _, _, part in by_channel_and_day(rows)]
    assert len(parts) == 50
    assert sum(part.get_total_buffer_size() for part in parts) < 2 * rows.nbytes


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("OPEN_FILES", 2), ("ROW_GROUP_BYTES", 64), ("WAITING_BYTES", 128)):
        monkeypatch.setattr(f"wal.spark.export.partfiles.{name}", value)


@pytest.mark.usefixtures("tiny")
def test_more_channels_than_files_may_be_open_take_turns(tmp_path: Path) -> None:
    schema = pa.schema([("offset", pa.int64())])
    files = PartFiles(tmp_path, "x", schema, "snappy")
    for offset in range(40):
        for channel in range(5):
            files.add(channel, "d", pa.record_batch({"offset": [offset]}, schema=schema))
            assert sum(1 for shelf in files._shelves.values() if shelf.writer) <= 2
    rows: dict[int, list[int]] = {}
    for file in files.close():
        found = pq.read_table(tmp_path / file.name)["offset"].to_pylist()
        assert file.rows == len(found)
        assert file.bytes == (tmp_path / file.name).stat().st_size
        rows.setdefault(file.channel_id, []).extend(found)
    assert {channel: sorted(offsets) for channel, offsets in rows.items()} == {c: list(range(40)) for c in range(5)}
