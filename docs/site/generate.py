"""Writes docs/reference/: what the code itself says of its client, command, settings, calls and errors.

    python docs/site/generate.py            write the pages
    python docs/site/generate.py --check    write nothing; exit 1 where a page is not what the code says

The pages are committed, so that they can be read on a forge; a test compares them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import clientpage
import clipage
import errorspage
import rpcpage
import settingspage

TARGET = Path(__file__).resolve().parents[1] / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "client.md": clientpage.page,
    "cli.md": clipage.page,
    "settings.md": settingspage.page,
    "rpc.md": rpcpage.page,
    "errors.md": errorspage.page,
}


def stale() -> dict[str, str]:
    """The pages that are not what the code says, with what it says."""
    said = {name: page() for name, page in PAGES.items()}
    found = {path.name: path.read_text(encoding="utf-8") for path in TARGET.glob("*.md")}
    return {name: text for name, text in said.items() if found.get(name) != text}


def main(arguments: list[str]) -> int:
    changed = stale()
    if arguments == ["--check"]:
        for name in changed:
            print(f"docs/reference/{name} is not what the code says: run `make docs`", file=sys.stderr)
        return bool(changed)
    TARGET.mkdir(exist_ok=True)
    for name, text in changed.items():
        (TARGET / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
