"""`mq spark audit`: every byte of a log checked, and a report on what is in it."""

from __future__ import annotations

import sys
from typing import Any

import click

from mq.cli import output as out_
from mq.cli.failure import say
from mq.cli.option import output_option
from mq.cli.spark.option import one_data_dir_option, out_option, session_options


@click.command(short_help="check every byte of a log and report on it")
@one_data_dir_option
@out_option("./audit", "directory or URI for report.html and the tables")
@click.option("--deep", is_flag=True, help="look into every message, not into a sample of 1 %")
@output_option
@session_options
def audit(data_dir: str, out: str, deep: bool, output: str, master: str | None, verbose: bool) -> None:
    """Check every checksum, sequence and offset of a log, and report on its channels, groups and producers.

    Changes nothing in the log; a broker may run. Exits with 0 where all is intact, with 1 where something is damaged.

    \b
    Example:
      mq spark audit -d ./data --out ./audit && open ./audit/report.html
    """
    from wal.spark.audit.files import prepare, write
    from wal.spark.audit.job import audit as audit_log
    from wal.spark.audit.verdict import chain_of
    from wal.spark.progress import run
    from wal.spark.session import session

    chain_of(data_dir)  # what is wrong with the paths should not cost the start of a JVM to learn
    prepare(out)
    spark = session("mq spark audit", master=master, verbose=verbose)
    found = run(spark, "auditing", lambda: audit_log(spark, data_dir, is_deep=deep))
    report = write(found, out)
    _show(found.fields(), output)
    say(f"the report is {report}")
    if not found.is_intact:
        ranges = len(found.report.damage)
        say(f"the log is damaged: {ranges} range{'' if ranges == 1 else 's'}")
    sys.exit(0 if found.is_intact else 1)


def _show(fields: dict[str, Any], output: str) -> None:
    if output != "table":
        out_.show_one(fields, output)
        return
    lists = {name for name, value in fields.items() if isinstance(value, list)}
    facts = {name: value for name, value in fields.items() if name not in lists and name != "savings"}
    facts["compaction_frees"] = out_.size(sum(fields["savings"].values()))
    out_.show_one({**facts, "bytes": out_.size(fields["bytes"])}, output)
    tables = {
        "damage": ["segment", "position", "end", "first_sequence", "last_sequence", "reason"],
        "channels": ["channel", "partitions", "messages", "size", "dead", "mean_size", "compression", "distinct_keys"],
        "groups": ["channel", "group", "acked", "lag", "p50_ms", "p99_ms", "redelivered", "dead_letters"],
    }
    for name, columns in tables.items():
        if fields[name]:
            click.echo()
            out_.show_table([_row(row) for row in fields[name]], columns)


def _row(row: dict[str, Any]) -> dict[str, Any]:
    """The same for human eyes."""
    shown = {name: "" if value is None else value for name, value in row.items()}
    if "dead_bytes" in row:
        shown.update(size=out_.size(row["bytes"]), dead=out_.size(row["dead_bytes"]))
        shown.update({name: f"{row[name]:.1f}" for name in ("mean_size", "compression") if row[name] is not None})
    for name in ("p50", "p99"):
        if row.get(f"ack_{name}") is not None:
            shown[f"{name}_ms"] = f"{row[f'ack_{name}'] / 1000:.1f}"
    return shown
