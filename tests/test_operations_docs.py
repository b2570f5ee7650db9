"""docs/operations.md: its commands, followed with a real broker, whose log is damaged where the page tells of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from walkthrough import Walk

import mq
from wal.options import Options

MESSAGES = 10


def sections(text: str) -> dict[str, str]:
    """What stands under each heading of the second level."""
    parts = re.split(r"^## (.*)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def flip(directory: Path, content: bytes) -> None:
    """Change one byte of a message in a sealed segment."""
    path = directory / "00000000000000000001-0.wal"
    data = bytearray(path.read_bytes())
    data[data.index(content)] ^= 1
    path.write_bytes(data)


@pytest.mark.slow
def test_the_commands_of_the_page_do_what_it_says(root: Path, tmp_path: Path) -> None:
    told = sections((root / "docs" / "operations.md").read_text())
    with Walk(tmp_path, BACKUP_DIR="./backups") as walk:
        walk.start()
        with mq.Client(walk.address) as client:
            client.create_channel("orders")
            for number in range(MESSAGES):
                client.publish("orders", f"order {number}")
        walk.follow(told["Watching"])
        walk.follow(told["Upgrading"])
        walk.follow(told["Backup and restore"])
        walk.end()
        walk.start()  # on the first log again
        walk.follow(told["A full disk"])
        with mq.Client(walk.address) as client:
            client.rotate_segment()
        walk.end()
        flip(tmp_path / "data", b"order 3")
        walk.start()
        walk.follow(told["Damage"])
        assert len(walk.ran) > 15


def test_the_mark_at_which_publishing_stops_is_that_of_the_code(root: Path) -> None:
    told = sections((root / "docs" / "operations.md").read_text())
    mark = f"{Options().soft_free_bytes >> 20} MiB"
    assert f"Below {mark} of free space" in told["A full disk"]
    assert f"well above {mark}" in told["Watching"]
