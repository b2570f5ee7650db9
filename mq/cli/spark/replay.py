"""`mq spark replay`: a selection of a log, published again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from mq.cli import output as out
from mq.cli.failure import say
from mq.cli.option import TIME, connect, output_option, server_option
from mq.cli.progress import progress
from mq.cli.spark.option import one_data_dir_option, session_options

if TYPE_CHECKING:
    from mq.cli.spark.ledger import Entry, Ledger
    from wal.spark.replay import Wanted

BATCH_MESSAGES = 1_000
BATCH_BYTES = 1 << 20  # a request may have four times as much


@click.command(short_help="publish a selection of a log again")
@one_data_dir_option
@click.option(
    "--channel",
    "channels",
    multiple=True,
    required=True,
    metavar="NAME",
    help="of this one; may be given several times",
)
@click.option("--to", "target", required=True, metavar="CHANNEL", help="where to publish them")
@click.option("--from-time", type=TIME, metavar="TIME", help="only messages from this time on")
@click.option("--to-time", type=TIME, metavar="TIME", help="only messages before this time")
@click.option("--where", metavar="SQL", help="only messages for which this is true")
@click.option(
    "--id", "replay_id", metavar="NAME", help="of this replay; the same id publishes once  [made from the selection]"
)
@click.option("--also-dropped", is_flag=True, help="also what is trimmed, expired or deleted and still in the log")
@click.option("--skip-damaged", is_flag=True, help="leave out what is damaged, and tell; else it ends the replay")
@click.option("--dry-run", is_flag=True, help="count the messages, and publish none")
@server_option
@session_options
@output_option
def replay(
    data_dir: str,
    channels: tuple[str, ...],
    target: str,
    from_time: datetime | None,
    to_time: datetime | None,
    where: str | None,
    replay_id: str | None,
    also_dropped: bool,
    skip_damaged: bool,
    dry_run: bool,
    server: str | None,
    master: str | None,
    verbose: bool,
    output: str,
) -> None:
    """Publish messages of a log again, each once: run it twice, or again after a crash, and nothing comes twice.

    The channel mq.replays of the broker remembers what was replayed, by an id. A replay ends with the last record that
    was durable when it began, so that it never feeds on itself. Another --id replays the same selection again.

    A replay that comes to damage ends with an error, because a selection with holes in it is another one. Run it again
    with --skip-damaged, and it goes on behind what is lost.

    \b
    Example:
      mq spark replay --channel orders --to orders.again --from-time 2026-05-01 \\
        --where "get_json_object(cast(value AS string), '$.country') = 'NO'"
    """
    from wal.spark.replay import Wanted, counted, log_of, matching
    from wal.spark.session import session

    log_uuid, through = log_of(data_dir)
    times = [None if each is None else each.isoformat() for each in (from_time, to_time)]
    wanted = Wanted(log_uuid, tuple(sorted(set(channels))), times[0], times[1], where, also_dropped)

    def start() -> Any:
        return session("mq replay", master=master, verbose=verbose)

    if dry_run:
        found = matching(start(), data_dir, wanted, through, skip_damaged=skip_damaged)
        messages, damaged = counted(found)
        fields = {"replay": replay_id or wanted.name(target), "messages": messages, "damaged": damaged}
        out.show_one({**fields, "through": through}, output)
        return
    from mq.cli.spark.ledger import Entry, Ledger

    with connect(server) as client:
        client.describe_channel(target)
        ledger = Ledger(client, replay_id or wanted.name(target))
        selection = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(wanted).items()}
        if ledger.last() is None:
            matching(start(), data_dir, wanted, through)  # a condition that Spark refuses begins no replay
        first = ledger.begin(Entry(replay_id or wanted.name(target), selection, target, through))
        left_out: list[str] = []
        done = first
        if not first.is_done:
            done = run(start, data_dir, wanted, ledger, first, left_out if skip_damaged else None)
    if first.is_done:
        say(f"replay {done.replay} was done before; give another --id to publish the same again")
    fields = {"replay": done.replay, "messages": done.published - first.published, "before": first.published}
    out.show_one({**fields, "damaged": len(left_out), "to": target, "through": done.through}, output)
    for line in left_out:
        say(f"left out: {line}")


def run(
    start: Callable[[], Any], root: str, wanted: Wanted, ledger: Ledger, entry: Entry, left_out: list[str] | None
) -> Entry:
    """Publish what is left of a replay; damage is an error where there is no list to put it into.

    This process holds one batch; Spark's driver what is wanted of two tasks, the one that is being published and the
    next. A task has a segment, or as many small ones as make `PARTITION_BYTES`.
    """
    from wal.spark.replay import batches, in_order, matching

    frame = matching(start(), root, wanted, entry.through, entry.place, skip_damaged=left_out is not None)
    with progress("replaying") as advance:
        rows = frame.toLocalIterator(prefetchPartitions=True)
        for batch in batches(in_order(rows, entry.place, left_out), BATCH_MESSAGES, BATCH_BYTES):
            entry = ledger.publish(entry, batch)
            advance(batch[-1].place[0], entry.through)
    return ledger.finish(entry)
