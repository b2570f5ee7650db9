"""Gathers the pages of the site in one directory: every text of the repository, wherever it is kept.

Texts stay where a forge shows them (README.md, wal/FORMAT.md beside its code), with links that work there. Here each
gets a page, and its links are turned to pages. What is linked and is no text (a test, a .proto file, a directory)
becomes a page with its source, so that no link leaves the site. A link that leads nowhere stays as it is, and the
generator of the site, which is strict, names it.

    python docs/site/pages.py build/docs
"""

from __future__ import annotations

import posixpath
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# texts outside docs/ and their pages; the README of each example gets one too
OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "wal/FORMAT.md": "format.md",
    "examples/README.md": "examples/index.md",
}
KINDS = {".py": "python", ".go": "go", ".proto": "protobuf", ".yaml": "yaml", ".sample": "sh", ".service": "ini"}

FENCED = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"""(\]\(|^\[[^\]\n]+\]: +|\b(?:src|srcset|href)=")(?![a-z]+:|#|/)([^)#\s"]+)""", re.MULTILINE)


def pages() -> dict[str, str]:
    """Every text and picture: its path in the repository, and its place on the site."""
    found = dict(OUTSIDE)
    for each in sorted(ROOT.glob("examples/*/README.md")):
        found[f"examples/{each.parent.name}/README.md"] = f"examples/{each.parent.name}.md"
    for each in sorted((ROOT / "docs").rglob("*")):
        if each.suffix in {".md", ".svg", ".png", ".css"}:
            place = each.relative_to(ROOT / "docs").as_posix()
            found[f"docs/{place}"] = place
    return found


def links(text: str) -> Iterator[str]:
    """What a text links to within the repository, without anchors."""
    for found in LINK.finditer(FENCED.sub("", text)):
        yield found[2]


def turned(text: str, turn: Callable[[str], str]) -> str:
    """The text with other links; what looks like one in a block of code is none."""
    parts, at = [], 0
    for block in [*FENCED.finditer(text), None]:
        end = block.start() if block else len(text)
        parts.append(LINK.sub(lambda found: found[1] + turn(found[2]), text[at:end]))
        if block:
            parts.append(block[0])
            at = block.end()
    return "".join(parts)


def meant(path: str, target: str) -> str:
    """The path in the repository that a text at `path` means; a directory means the text in it."""
    found = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return f"{found}/README.md" if (ROOT / found / "README.md").is_file() else found


def sources(texts: dict[str, str], known: dict[str, str]) -> dict[str, str]:
    """What the texts link to and is no page yet: its path in the repository, and the place of its source."""
    linked = {meant(path, target) for path, text in texts.items() for target in links(text)} - known.keys()
    found: dict[str, str] = {}
    for path in sorted(each for each in linked if (ROOT / each).exists()):
        if (ROOT / path).is_file():
            found[path] = f"source/{path.lstrip('.')}.md"  # generators pass over names with a dot in front
            continue
        found[path] = f"source/{path}/index.md"
        found |= {each: f"source/{each}.md" for each in files_in(path)}
    return found


def files_in(path: str) -> list[str]:
    names = (each.name for each in (ROOT / path).iterdir() if each.is_file() and not each.name.startswith("."))
    return [posixpath.normpath(f"{path}/{name}") for name in sorted(names)]


def source(path: str) -> str:
    """A file as it is, or the names in a directory, as a page."""
    place = ROOT / path
    head = f"---\nsearch:\n  exclude: true\n---\n\n# `{path}`\n\n"
    if place.is_dir():
        return head + "".join(f"- [{(name := posixpath.basename(each))}]({name}.md)\n" for each in files_in(path))
    kind = KINDS.get(place.suffix, "text")
    return f"{head}``````{kind}\n{place.read_text(encoding='utf-8')}``````\n"


def gather(target: Path) -> None:
    """Write all pages into a directory that is nothing else."""
    shutil.rmtree(target, ignore_errors=True)
    known = pages()
    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in known if path.endswith(".md")}
    shown = sources(texts, known)
    place_of = known | shown

    def turn(path: str, link: str) -> str:
        place = place_of.get(meant(path, link))
        return posixpath.relpath(place, posixpath.dirname(place_of[path])) if place else link

    for path, place in place_of.items():
        page = target / place
        page.parent.mkdir(parents=True, exist_ok=True)
        if path in texts:
            page.write_text(turned(texts[path], partial(turn, path)), encoding="utf-8")
        elif path in shown:
            page.write_text(source(path), encoding="utf-8")
        else:
            shutil.copyfile(ROOT / path, page)


if __name__ == "__main__":
    gather(Path(sys.argv[1]))
