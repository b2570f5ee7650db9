"""`mq spark compact`: segments written anew without what nobody needs, and proposed to the log's owner."""

from __future__ import annotations

import errno
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from mq.cli import output as out
from mq.cli.failure import CONFLICT, say
from mq.cli.option import output_option, server_option
from mq.cli.spark.option import one_data_dir_option, session_options

if TYPE_CHECKING:
    from mq.state import State
    from wal.manifest import Manifest
    from wal.proposal import Offer
    from wal.spark.compact.job import Plan


@click.command(short_help="drop what a log no longer needs")
@one_data_dir_option
@click.option("--dry-run", is_flag=True, help="tell what would go, and write nothing")
@click.option("--install", is_flag=True, help="put the result in place at once, by the broker")
@click.option("--offline", is_flag=True, help="with --install: without a broker, where none has the log")
@click.option(
    "--worth", type=click.IntRange(0, 100), default=10, show_default=True, metavar="PERCENT",
    help="leave alone what would shrink by less",
)  # fmt: skip
@server_option
@session_options
@output_option
def compact(
    data_dir: str,
    dry_run: bool,
    install: bool,
    offline: bool,
    worth: int,
    server: str | None,
    master: str | None,
    verbose: bool,
    output: str,
) -> None:
    """Write segments anew without what is trimmed, expired or deleted, and, in channels that keep the latest message of
    each key, without what a later one replaced. Offsets and times of the rest stay as they are.

    What comes of it waits in staging/ until `mq wal install` puts it in place, or --install does so at once: by the
    broker that has the log open (MQ_SERVER), or with --offline without one. What waited from before is given up.

    \b
    Example:
      mq spark compact --data-dir ./data --dry-run
      mq spark compact --data-dir ./data --install
    """
    if offline and not install:
        raise click.UsageError("--offline says how to install: it goes with --install")
    result = run(
        data_dir, dry_run=dry_run, install=install, is_offline=offline, worth=worth,
        server=server, master=master, verbose=verbose,
    )  # fmt: skip
    _show(result, output)
    if result["refused"]:
        sys.exit(CONFLICT)


def run(
    data_dir: str,
    *,
    dry_run: bool = False,
    install: bool = False,
    is_offline: bool = False,
    worth: int = 10,
    at_least_bytes: int = 1,
    through: int | None = None,
    server: str | None = None,
    master: str | None = None,
    verbose: bool = False,
) -> dict[str, Any]:
    """A whole compaction, of records through a sequence, if it frees so many bytes; what it did, or would do."""
    from mq.cli.spark.present import present_state
    from mq.rules import Rules, grounds
    from wal.spark.compact.hands import SparkHands
    from wal.spark.compact.job import candidates, plan
    from wal.spark.compact.staging import clear, stage
    from wal.spark.progress import run as with_bar
    from wal.spark.read.listing import manifest_of
    from wal.spark.read.storage import folder_of, is_local
    from wal.spark.session import session

    if not is_local(data_dir):
        raise click.UsageError(f"{data_dir} is no directory of this machine: a log is compacted where it lies")
    root = folder_of(data_dir)
    manifest_of(root)  # what is no log gets no folder from us
    with _staging(root, dry_run):
        manifest, state = present_state(root)
        segments = [each for each in candidates(root, manifest) if through is None or each.last_sequence <= through]
        if not segments:
            say("nothing may go yet: segments are compacted once two snapshots lie behind them")
            return _result(manifest, state, None, None)
        rules = Rules(state, _now_us())
        spark = session("mq compact", master=master, verbose=verbose)
        hands = SparkHands(spark)
        planned = with_bar(spark, "looking", lambda: plan(hands, segments, rules, worth=worth / 100))
        if planned.is_damaged:
            say("part of the log is damaged: nothing goes for the sake of a later message (mq wal repair comes first)")
        if damaged := sum(each.is_damaged for each in planned.surveys):
            say(f"damaged segments that are left alone: {damaged} (mq wal repair comes first)")
        if dry_run or not planned.runs or planned.freed_bytes < at_least_bytes:
            return _result(manifest, state, planned, None)
        _check_room(root, planned)
        try:
            offers = with_bar(
                spark,
                "writing",
                lambda: stage(hands, root, manifest, planned, rules, lambda keys: grounds(state, keys), _now_us, say),
            )
        except BaseException:
            clear(root)
            raise
        result = _result(manifest, state, planned, offers)
        if install:
            _install(root, str(manifest.log_uuid), result, server, is_offline)
        return result


def _now_us() -> int:
    return time.time_ns() // 1_000


@contextmanager
def _staging(root: str, dry_run: bool) -> Iterator[None]:
    """One compaction of a log at a time: it clears what others left, before anybody asks how much room there is."""
    from wal.disk import DirectDisk
    from wal.errors import LogLocked
    from wal.proposal import STAGING, path_in_staging
    from wal.spark.compact.job import LOCK
    from wal.spark.compact.staging import clear

    if dry_run:
        yield
        return
    disk = DirectDisk()
    disk.make_directory(f"{root}/{STAGING}")
    try:
        lock = disk.lock(path_in_staging(root, LOCK))
    except LogLocked:
        raise LogLocked(f"another compaction of {root} is running") from None
    try:
        clear(root)
        yield
    finally:
        disk.close(lock)


def _check_room(root: str, planned: Plan) -> None:
    """Raises OSError."""
    free = shutil.disk_usage(root).free
    if free < planned.kept_bytes:
        text = f"{root} has {out.size(free)} free, and what stays takes {out.size(planned.kept_bytes)} beside the old"
        raise OSError(errno.ENOSPC, text)


def _install(root: str, log_uuid: str, result: dict[str, Any], server: str | None, is_offline: bool) -> None:
    """Whether a broker has the log is told, not looked for: one that is just starting again would find it taken."""
    from mq.cli.install import install_live, install_offline
    from mq.errors import ProposalRefused, Unavailable
    from wal.disk import DirectDisk
    from wal.proposal import remove_offer

    for row in result["proposals"]:
        try:
            if is_offline:
                install_offline(root, [row["proposal"]])
            else:
                install_live(server, [row["proposal"]], log_uuid)
            row["state"] = "installed"
            result["freed_bytes"] += row["freed_bytes"]
        except ProposalRefused as error:
            say(f"proposal {row['proposal']} is refused: {error}")
            row["state"] = "refused"
            result["refused"] += 1
            remove_offer(DirectDisk(), root, row["proposal"])
        except Unavailable:
            say("what was made waits in staging/ for `mq wal install`; where no broker has the log, take --offline")
            raise


def _result(manifest: Manifest, state: State, planned: Plan | None, offers: list[Offer] | None) -> dict[str, Any]:
    dropped = planned.dropped if planned else {}
    would = sum(map(len, planned.runs)) if planned else 0
    names = {channel_id: channel.name for channel_id, channel in state.channels_by_id.items()}
    return {
        "log": str(manifest.log_uuid),
        "segments": len(planned.surveys) if planned else 0,
        "rewritten": would if offers is None else sum(len(offer.inputs) for offer in offers),
        "droppable_messages": sum(dropped.values()),
        "droppable_bytes": planned.freed_bytes if planned else 0,
        "channels": [
            {"channel": names.get(key[0], f"(deleted, id {key[0]})"), "partition": key[1], "messages": count}
            for key, count in sorted(dropped.items())
        ],
        "proposals": [
            {
                "proposal": offer.id,
                "inputs": len(offer.inputs),
                "outputs": len(offer.outputs),
                "records": offer.dropped_records,
                "messages": offer.dropped_messages,
                "freed_bytes": offer.freed_bytes,
                "state": "waiting",
            }
            for offer in offers or ()
        ],
        "freed_bytes": 0,
        "refused": 0,
    }


def _show(result: dict[str, Any], output: str) -> None:
    lists = ("channels", "proposals")
    fields = {name: value for name, value in result.items() if name not in lists}
    out.show_one(fields, output, result if output != "table" else None)
    if output != "table":
        return
    for name in lists:
        if result[name]:
            click.echo()
            out.show_table(result[name], list(result[name][0]))
