"""`mq backup`: have a broker make one, or make one of a stopped log; verify it; make a log of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import click

from mq.cli import output as out
from mq.cli.failure import CONFLICT, FAILED, NOT_FOUND, say
from mq.cli.option import connect, output_option, server_option
from mq.cli.progress import progress
from mq.cli.report import show_report

if TYPE_CHECKING:
    from mq.pb.mq_pb2 import BackupInfo
    from wal.backup import Backup

    Made: TypeAlias = BackupInfo | Backup

DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group(short_help="make, verify and restore backups of a log")
def backup() -> None:
    """Keep a copy of a broker's log: everything that was durable at one moment, with the positions of all groups.

    \b
    Example:
      mq backup create nightly
      mq backup verify /var/backups/mq/nightly
      mq backup restore /var/backups/mq/nightly --data-dir ./restored
    """


@backup.command(short_help="make a backup, or bring one up to date")
@click.argument("directory", metavar="DIR")
@click.option("--data-dir", type=DIRECTORY, metavar="PATH", help="the log of a stopped broker, instead of asking one")
@server_option
@output_option
def create(directory: str, data_dir: Path | None, server: str | None, output: str) -> None:
    """Bring the backup in DIR to what is durable now; the broker goes on meanwhile.

    Without --data-dir a running broker makes it, on its own machine: DIR is a name, or a whole path, in its BACKUP_DIR.
    Segments that are in DIR already are not taken again. Where it fails, the backup that was in DIR is as it was.
    Exits with 1 where segments are missing in the log itself: the backup has everything else then.

    \b
    Example:
      mq backup create nightly
      mq backup create /mnt/usb/mq --data-dir ./data
    """
    if data_dir is not None:
        if server is not None:
            raise click.UsageError("--server asks a broker, --data-dir does without one: give one of them")
        _create_stopped(directory, data_dir, output)
        return
    with connect(server) as client, progress("copying") as advance:
        info = client.create_backup(directory, lambda info: advance(info.copied_bytes, info.total_bytes))
    _show(info, output)


def _create_stopped(directory: str, data_dir: Path, output: str) -> None:
    from wal.errors import LogLocked
    from wal.restore import back_up_stopped

    try:
        with progress("copying") as advance:
            made = back_up_stopped(str(data_dir), directory, progress=advance)
    except LogLocked as error:
        say(f"{error}: a running broker makes its backups itself, without --data-dir")
        sys.exit(CONFLICT)
    _show(made, output)


def _show(made: Made, output: str) -> None:
    fields = {
        "directory": made.directory,
        "last_sequence": made.last_sequence,
        "segments": made.segments,
        "bytes": made.bytes,
        "linked": made.linked,
        "copied": made.copied,
        "kept": made.kept,
        "copied_bytes": made.copied_bytes,
        "missing": made.missing,
    }
    out.show_one(fields, output)
    if made.missing:
        say(f"{made.missing} segments are missing in the log, and so in its backup; mq backup verify names them")
        sys.exit(FAILED)


@backup.command(short_help="read a whole backup and tell what is damaged")
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@output_option
def verify(directory: Path, output: str) -> None:
    """Check every frame of the backup in DIR, as `mq wal verify` checks a log. Changes nothing.

    Exits with 0 where all is intact, with 1 where something is damaged, with 3 where DIR holds no backup.

    \b
    Example:
      mq backup verify /var/backups/mq/nightly -o json
    """
    from wal.backup import MARKER
    from wal.verify import verify as verify_log

    if not (directory / MARKER).exists():
        say(f"{directory} holds no backup")
        sys.exit(NOT_FOUND)
    with progress("verifying") as advance:
        report = verify_log(str(directory), progress=advance)
    show_report(report, output)
    if not report.is_intact:
        say(f"{len(report.damage)} damaged ranges; mq backup restore --accept-damage brings back everything else")
        say("where the log is intact: remove the named files, and the next mq backup create takes them anew")
    sys.exit(0 if report.is_intact else 1)


@backup.command(short_help="make a log of a backup, in a new directory")
@click.argument("directory", metavar="DIR", type=DIRECTORY)
@click.option("--data-dir", required=True, metavar="NEW", help="where the log shall be: a new or empty directory")
@click.option("--accept-damage", is_flag=True, help="restore what is intact, where not everything is")
@output_option
def restore(directory: Path, data_dir: str, accept_damage: bool, output: str) -> None:
    """Copy the backup in DIR to a new directory, as a log that a broker can be started on, and read all of it.

    It is another log from then on, with an id of its own. Exits with 1 where something is damaged: nothing is restored
    then, unless --accept-damage says so.

    \b
    Example:
      mq backup restore /var/backups/mq/nightly --data-dir ./restored && mq serve --data-dir ./restored
    """
    from wal.restore import restore as restore_log

    with progress("restoring") as advance:
        report = restore_log(str(directory), data_dir, progress=advance, accept_damage=accept_damage)
    show_report(report, output)
    if report.is_intact:
        say(f"restored; mq serve --data-dir {data_dir} serves it")
    elif accept_damage:
        say(f"restored, but for {len(report.damage)} damaged ranges; mq wal repair puts them aside for good")
    else:
        say(f"{len(report.damage)} damaged ranges: nothing was restored; --accept-damage restores everything else")
    sys.exit(0 if report.is_intact else 1)
