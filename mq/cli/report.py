"""What reading a whole log found, for people and for programs: `mq wal verify` and `mq backup` say the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mq.cli import output as out

if TYPE_CHECKING:
    from wal.verify import Report


def show_report(report: Report, output: str) -> None:
    damage = [
        {
            "segment": each.segment,
            "position": each.position,
            "end": each.end,
            "first_sequence": each.first_sequence,
            "last_sequence": each.last_sequence,
            "reason": each.reason,
            "offsets": [
                {"channel_id": loss.channel_id, "partition": loss.partition, "start": loss.start, "end": loss.end}
                for loss in each.offsets
            ],
        }
        for each in report.damage
    ]
    fields: dict[str, Any] = {
        "log": str(report.log_uuid),
        "segments": report.segments,
        "frames": report.frames,
        "messages": report.messages,
        "bytes": report.bytes,
        "torn_bytes": report.torn_bytes,
        "intact": report.is_intact,
    }
    out.show_one(fields, output, {**fields, "damage": damage} if output != "table" else None)
    if damage and output == "table":
        click.echo()
        out.show_table(damage, ["segment", "position", "end", "first_sequence", "last_sequence", "reason"])
