"""The picture of the README comes from a real run, and shows what the commands print today."""

import re
import subprocess
import sys
from html import unescape
from pathlib import Path


def text_of(svg: str) -> str:
    """What a reader sees, a line for each line of the terminal."""
    lines: dict[float, str] = {}
    for y, text in re.findall(r'<text[^>]* y="([\d.]+)"[^>]*>(.*?)</text>', svg):
        lines[float(y)] = lines.get(float(y), "") + unescape(text).replace("\xa0", " ")
    return "\n".join(line.strip() for _, line in sorted(lines.items()))


def shape_of(text: str) -> str:
    """Without what differs from run to run: times, ports, how a stream was cut into requests."""
    return re.sub(r"(?<!\d)[\d.]+ s\b|:\d{5}|\d+ (?=frames|records)", "…", text)


def test_the_picture_shows_what_the_commands_print(root: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "demo.svg"
    subprocess.run([sys.executable, root / "docs" / "demo.py", fresh], check=True, timeout=120)
    shown, now = text_of((root / "docs" / "demo.svg").read_text()), text_of(fresh.read_text())
    assert "published 100,000 messages" in now
    assert "kill -9" in now
    assert shape_of(shown) == shape_of(now), "the picture is old: make demo"


def test_the_picture_needs_no_network(root: Path) -> None:
    svg = (root / "docs" / "demo.svg").read_text()
    assert set(re.findall(r"https?://[^\s\"')]+", svg)) == {"http://www.w3.org/2000/svg"}
