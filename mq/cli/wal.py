"""`mq wal`: work on a log's directory, without a broker; `rotate` and `install` ask a running one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from google.protobuf.message import DecodeError, Message

from mq.cli import output as out
from mq.cli.failure import CONFLICT, say
from mq.cli.option import F, confirm, connect, force_option, output_option, server_option
from mq.cli.progress import progress
from mq.cli.report import show_report
from wal.chain import walk_chain
from wal.disk import DirectDisk
from wal.frame import Frame
from wal.manifest import Manifest, read_manifest
from wal.pb import wal_pb2
from wal.record import Unknown, decode
from wal.segment import Gap

DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)


def directory_argument(command: F) -> F:
    return click.argument("directory", type=DIRECTORY, default="./data", envvar="WAL_DIR_PATH")(command)


@click.group(short_help="list, verify, dump and repair a log")
def wal() -> None:
    """Work on a log's directory (default ./data, or WAL_DIR_PATH). `rotate` and `install` ask a broker."""


@wal.command("ls", short_help="list the files of a log")
@directory_argument
@output_option
def list_(directory: Path, output: str) -> None:
    """List the segments of the log in DIRECTORY."""
    manifest = _manifest(directory)
    rows = []
    for entry in manifest.segments:
        name = entry.name(manifest.extension)
        path = directory / name
        rows.append(
            {
                "segment": name,
                "first": entry.first_sequence,
                "last": entry.last_sequence if entry.is_sealed else "",
                "generation": entry.generation,
                "size": entry.size or (path.stat().st_size if path.exists() else 0),
                "state": "sealed" if entry.is_sealed else "live",
            }
        )
    rows += [{"segment": each.name, "state": "retired"} for each in manifest.retired]
    out.show_rows(rows, ["segment", "first", "last", "generation", "size", "state"], output)


@wal.command(short_help="read everything and tell what is damaged")
@directory_argument
@output_option
def verify(directory: Path, output: str) -> None:
    """Check every frame of the log in DIRECTORY: checksums, sequences, offsets. Changes nothing; a broker may run.

    Exits with 0 where all is intact, with 1 where something is damaged.

    \b
    Example:
      mq wal verify ./data -o json | jq '.damage[].offsets'
    """
    from wal.verify import verify as verify_log

    with progress("verifying") as advance:
        report = verify_log(str(directory), progress=advance)
    show_report(report, output)
    if report.damage:
        say(f"{len(report.damage)} damaged ranges; mq wal repair puts them aside, on a stopped log")
    sys.exit(0 if report.is_intact else 1)


@wal.command(short_help="print the records of a log")
@directory_argument
@click.option("--from", "first", type=click.IntRange(0), default=0, metavar="SEQUENCE", help="begin here")
@click.option("-n", "--count", type=click.IntRange(1), metavar="N", help="end after so many")
@click.option("-t", "--type", "types", multiple=True, metavar="TYPE", help="only these, like Published")
@output_option
def dump(directory: Path, first: int, count: int | None, types: tuple[str, ...], output: str) -> None:
    """Print the records of the log in DIRECTORY, oldest first, and where something is damaged.

    \b
    Example:
      mq wal dump ./data -t Published -n 10 -o jsonl
    """
    manifest = _manifest(directory)
    wanted = {each.lower() for each in types}
    items: list[dict[str, Any]] = []
    for number, item in enumerate(_records(directory, manifest, first, wanted)):
        if count is not None and number >= count:
            break
        if output == "json":
            items.append(item)
        elif output == "jsonl":
            out.show_line(item)
        else:
            fields = " ".join(f"{name}={value}" for name, value in item["record"].items() if value not in ("", 0, []))
            click.echo(f"{item['sequence']:>10}  {item['segment']}:{item['position']:<10}  {item['type']:<16} {fields}")
    if output == "json":
        out.show_json(items)


def _records(directory: Path, manifest: Manifest, first: int, wanted: set[str]) -> Iterator[dict[str, Any]]:
    for entry, item in walk_chain(DirectDisk(), str(directory), manifest, first):
        where = {"segment": entry.name(manifest.extension), "position": item.position}
        if isinstance(item, Gap):
            lost = {"end": item.end, "last_sequence": item.last_sequence, "reason": item.reason}
            yield {"sequence": item.first_sequence, **where, "type": "(damaged)", "record": lost}
            continue
        kind, fields = _decoded(item)
        if not wanted or kind.lower() in wanted:
            yield {"sequence": item.sequence, **where, "type": kind, "record": fields}


def _decoded(frame: Frame) -> tuple[str, dict[str, Any]]:
    try:
        record = decode(frame.type, frame.payload)
    except DecodeError:
        return "(unreadable)", {"bytes": len(frame.payload)}
    if isinstance(record, Unknown):
        return f"type {frame.type}", {"bytes": len(frame.payload)}
    return type(record).__name__, _short(record)


def _short(record: Message) -> dict[str, Any]:
    """A record's fields that are set; of a batch only its size: contents may be anything."""
    fields: dict[str, Any] = {}
    for field, value in record.ListFields():
        if field.name == "batch":
            data = value if isinstance(value, bytes) else value.SerializeToString()
            fields["batch_bytes"] = len(data)
        elif field.is_repeated and field.message_type is not None:
            fields[field.name] = [_short(each) for each in value]
        elif field.message_type is not None:
            fields[field.name] = _short(value)
        elif isinstance(value, bytes):
            fields[field.name] = value.hex() if len(value) <= 32 else f"{len(value)} bytes"
        else:
            fields[field.name] = list(value) if field.is_repeated else value
    if isinstance(record, wal_pb2.Atomic):
        fields["items"] = [CLASS_NAMES.get(item.type, str(item.type)) for item in record.items]
    return fields


CLASS_NAMES = {number: name for name, number in wal_pb2.RecordType.items()}


@wal.command(short_help="go on without what is damaged")
@directory_argument
@force_option
def repair(directory: Path, force: bool) -> None:
    """Make the stopped log in DIRECTORY whole again: damaged bytes go to quarantine/, everything intact stays.

    \b
    Example:
      mq wal verify ./data || mq wal repair ./data
    """
    from wal.errors import LogLocked
    from wal.repair import repair as repair_log

    confirm(f"put what is damaged in {directory} aside for good?", force)
    try:
        with progress("repairing") as advance:
            done = repair_log(str(directory), progress=advance)
    except LogLocked:
        say(f"{directory} is in use: stop its broker first")
        sys.exit(CONFLICT)
    if done.is_manifest_rebuilt:
        say("the manifest is rebuilt from the segments")
    for name in done.rewritten:
        say(f"{name} is rewritten")
    lost = sum(each.last_sequence - each.first_sequence + 1 for each in done.skipped)
    say(f"{lost:,} records are given up" if done.skipped else "nothing was damaged")


@wal.command(short_help="put in place what a compaction proposes")
@click.argument("proposal")
@click.option("--offline", "directory", type=DIRECTORY, help="the log's directory, where no broker has it open")
@server_option
@output_option
def install(proposal: str, directory: Path | None, server: str | None, output: str) -> None:
    """Install the segments that `mq spark compact` has staged under the id PROPOSAL.

    Every frame is read and compared first. Where anything would go that is live by now, because a group sought back, a
    new one came or settings are others, it is refused and the log stays as it is.

    \b
    Example:
      mq wal install 3f9ad20c81b7e465
      mq wal install 3f9ad20c81b7e465 --offline ./data
    """
    from mq.cli.install import install_live, install_offline
    from wal.errors import LogLocked

    try:
        (done,) = install_offline(str(directory), [proposal]) if directory else install_live(server, [proposal])
    except LogLocked:
        say(f"{directory} is in use: leave out --offline, or stop its broker first")
        sys.exit(CONFLICT)
    fields = {
        "segments": ", ".join(done.segments),
        "records": done.dropped_records,
        "messages": done.dropped_messages,
        "freed": done.bytes_before - done.bytes_after,
    }
    out.show_one(fields, output, out.as_dict(done) if output != "table" else None)


@wal.command(short_help="begin the next file, on a running broker")
@server_option
def rotate(server: str | None) -> None:
    """Ask a running broker to seal its current segment and to begin the next."""
    with connect(server) as client:
        client.rotate_segment()
    say("the segment is sealed as soon as what was appended before is durable")


def _manifest(directory: Path) -> Manifest:
    manifest = read_manifest(DirectDisk(), str(directory))
    if manifest is None:
        raise click.UsageError(f"{directory} holds no log: there is no MANIFEST in it")
    return manifest
