"""`mq spark export`: the messages of a log as Parquet."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mq.cli import output as out_
from mq.cli.failure import say
from mq.cli.option import output_option
from mq.cli.spark.option import one_data_dir_option, out_option, session_options

if TYPE_CHECKING:
    from wal.spark.export.job import Result


@click.command(short_help="write messages to Parquet")
@one_data_dir_option
@out_option("./export", "directory of the Parquet files")
@click.option("--channel", "channels", multiple=True, metavar="NAME", help="only this one; may be given several times")
@click.option(
    "--json-schema",
    metavar="infer|FILE",
    help="values are JSON: guess their types, or take them from a file (Spark's DDL, or df.schema.json())",
)
@click.option("--sealed-only", is_flag=True, help="leave out the segment that is being written")
@click.option(
    "--compression",
    type=click.Choice(["snappy", "zstd", "gzip", "none"]),
    default="snappy",
    show_default=True,
    help="of the Parquet files",
)
@click.option("--dry-run", is_flag=True, help="tell what would be exported, and do nothing")
@session_options
@output_option
def export(
    data_dir: str,
    out: str,
    channels: tuple[str, ...],
    json_schema: str | None,
    sealed_only: bool,
    compression: str,
    dry_run: bool,
    master: str | None,
    verbose: bool,
    output: str,
) -> None:
    """Write the messages of a log to Parquet files, by channel and UTC day.

    Each run adds what is new since the last one, and every message once, whatever was interrupted. Any program that
    reads directories of Parquet reads them: pandas, DuckDB, Spark.

    \b
    Example:
      mq spark export --data-dir ./data --out ./lake
      duckdb -c "SELECT channel, date, count(*) FROM './lake/**/*.parquet' GROUP BY ALL"
    """
    if "://" in out:
        raise click.UsageError("--out is a directory: URIs have no rename that is all or nothing")
    if dry_run:
        _show_pending(data_dir, out, sealed_only, output)
        return
    from wal.spark.export.job import export as run
    from wal.spark.session import session

    def start() -> Any:
        return session("mq export", master=master, verbose=verbose)

    result = run(
        start,
        data_dir,
        out,
        channels=channels,
        json_schema=_schema(json_schema, start),
        sealed_only=sealed_only,
        compression=compression,
    )
    _show(result, out, output)
    _tell_unknown(data_dir, channels)


def _schema(text: str | None, start: Callable[[], Any]) -> Any:
    """What --json-schema says. Only Spark reads its own language."""
    if text is None or text == "infer":
        return text
    try:
        content = Path(text).read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise click.UsageError(f"{text} is no schema: it is not UTF-8") from None
    if content.startswith("{"):
        try:
            return json.loads(content)
        except ValueError as error:
            raise click.UsageError(f"{text} is no JSON: {error}") from None
    from wal.spark.export.job import schema_of_ddl

    start()
    return schema_of_ddl(content)


def _tell_unknown(data_dir: str, channels: tuple[str, ...]) -> None:
    if channels:
        from wal.spark.read.catalog import catalog_of

        known = set(catalog_of(data_dir).names.values())
        for name in channels:
            if name not in known:
                say(f"there is no channel {name!r} in the log so far")


def _show(result: Result, out: str, output: str) -> None:
    fields = {
        "out": out,
        "messages": result.messages,
        "files": len(result.files),
        "bytes": sum(each.bytes for each in result.files),
        "through": result.through,
        "missed": result.missed,
        "rewritten": result.rewritten,
        "damage": len(result.damage),
    }
    out_.show_one(fields, output, {**fields, "damage": result.damage} if output != "table" else None)
    if result.missed:
        say(f"{result.missed:,} records left the log before they were exported")
    if result.rewritten:
        say(f"{result.rewritten:,} segments were rewritten before they were exported: what went by that is not in here")
    for line in result.damage:
        say(f"left out: {line}")


def _show_pending(data_dir: str, out: str, sealed_only: bool, output: str) -> None:
    from wal.spark.export.destination import exported_through
    from wal.spark.export.job import pending

    after = exported_through(out)
    segments = pending(data_dir, after, sealed_only=sealed_only)
    fields = {
        "out": out,
        "exported": after,
        "segments": len(segments),
        "bytes": sum(each.size for each in segments),
        "through": segments[-1].last_sequence if segments else after,
    }
    out_.show_one(fields, output)
