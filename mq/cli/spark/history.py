"""What one run of `mq spark maintain` leaves for the next: its line in the history, and which segments are checked.

The history only grows, so it is read from its end and no further than somebody asks. What is checked is as long as the
log is, so it is no part of a line: it has a file of its own, which each run replaces.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

HISTORY = "history.jsonl"
CHECKED = "checked.json"
BLOCK_BYTES = 64 << 10  # of the history that are read at once


class History:
    """The files in one directory. Used under the lock of the log that they are about."""

    def __init__(self, out: Path) -> None:
        self._out = out

    def add(self, line: Mapping[str, Any]) -> None:
        self._out.mkdir(parents=True, exist_ok=True)
        with (self._out / HISTORY).open("a") as history:
            history.write(json.dumps(line) + "\n")

    def lines(self) -> Iterator[dict[str, Any]]:
        """Newest first; one that was cut short by a full disk is passed over."""
        for text in self._texts():
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict):
                yield line

    def last_report(self) -> tuple[float, bool] | None:
        """When the whole log was last audited, and whether it was intact; None: never."""
        for line in self.lines():
            audit = line.get("audit", {})
            if audit.get("report"):
                return datetime.fromisoformat(line["at"]).timestamp(), not audit.get("damage")
        return None

    def checked(self) -> dict[str, int]:
        """The segments that were intact when they were checked, with their sizes. Where that is not told: none."""
        try:
            found = json.loads((self._out / CHECKED).read_text())
        except (FileNotFoundError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def keep_checked(self, checked: Mapping[str, int]) -> None:
        """All at once: a run that dies leaves the old ones or these."""
        self._out.mkdir(parents=True, exist_ok=True)
        draft = self._out / f"{CHECKED}.new"
        draft.write_text(json.dumps(checked) + "\n")
        os.replace(draft, self._out / CHECKED)

    def _texts(self) -> Iterator[bytes]:
        try:
            file = (self._out / HISTORY).open("rb")
        except FileNotFoundError:
            return
        with file:
            at = file.seek(0, os.SEEK_END)
            rest = b""  # the end of a line whose beginning is not yet read
            while at:
                size = min(BLOCK_BYTES, at)
                at -= size
                file.seek(at)
                rest, *lines = (file.read(size) + rest).split(b"\n")
                yield from reversed(lines)
            yield rest
