"""The site of the documentation: its reference is what the code says; it builds in strict mode and needs no network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from mq.pb import mq_pb2

DEADLINE = 120.0


def run(root: Path, *command: str, code: int = 0) -> str:
    answer = subprocess.run(
        [sys.executable, *command],
        cwd=root,
        env={"PATH": os.environ["PATH"], "NO_MKDOCS_2_WARNING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE,
    )
    assert answer.returncode == code, answer.stdout
    return answer.stdout


def test_the_reference_is_what_the_code_says(root: Path) -> None:
    run(root, "docs/site/generate.py", "--check")


def test_the_page_of_the_calls_has_every_call_message_and_field(root: Path) -> None:
    page = (root / "docs" / "reference" / "rpc.md").read_text()
    described = mq_pb2.DESCRIPTOR
    for service in described.services_by_name.values():
        told = page.split(f"## {service.name}\n")[1].split("\n## ")[0]
        assert re.findall(r"^\| `(\w+)`", told, re.MULTILINE) == [each.name for each in service.methods]
    for message in described.message_types_by_name.values():
        told = page.split(f"\n### {message.name}\n")[1].split("\n### ")[0]
        fields = [(str(each.number), each.name) for each in message.fields]
        assert sorted(re.findall(r"^\| (\d+) \| `(\w+)`", told, re.MULTILINE)) == sorted(fields)


@pytest.fixture(scope="module")
def place(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what `make docs` builds the site from."""
    if find_spec("mkdocs") is None or find_spec("material") is None:
        pytest.skip("THE SITE IS NOT BUILT: mkdocs and its theme, of the extra `dev`, are not installed")
    made = tmp_path_factory.mktemp("docs")
    run(root, "docs/site/pages.py", str(made / "pages"))
    settings = (root / "mkdocs.yml").read_text()
    assert "docs_dir: build/docs" in settings
    (made / "mkdocs.yml").write_text(settings.replace("docs_dir: build/docs", "docs_dir: pages"))
    return made


def build(place: Path, code: int = 0) -> str:
    # never --quiet: mkdocs would not count its warnings, and strict mode would let everything pass
    return run(place, "-m", "mkdocs", "build", code=code)


@pytest.fixture(scope="module")
def site(place: Path) -> Path:
    build(place)
    return place / "site"


@pytest.mark.slow
def test_every_text_has_its_page(site: Path, root: Path) -> None:
    expected = {f"{path.relative_to(root / 'docs').with_suffix('.html')}" for path in (root / "docs").rglob("*.md")}
    expected |= {"index.html", "format.html", "changelog.html", "contributing.html", "examples/go.html"}
    assert sorted(expected - {path.relative_to(site).as_posix() for path in site.rglob("*.html")}) == []


@pytest.mark.slow
def test_the_site_asks_nobody_else_for_anything(site: Path) -> None:
    loads = re.compile(r"""<(?:script|link|img|iframe)[^>]*(?:src|href)=["']?(?:https?:)?//""")
    assert loads.search('<script src="https://example.org/x.js">')
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    assert [path.name for path in pages if loads.search(path.read_text())] == []


@pytest.mark.slow
def test_links_to_files_beside_the_texts_lead_to_their_source(site: Path) -> None:
    assert 'href="source/proto/mq.proto.html"' in (site / "languages.html").read_text()
    assert "service MQService" in re.sub("<[^>]*>", "", (site / "source" / "proto" / "mq.proto.html").read_text())


@pytest.mark.slow
def test_a_link_a_heading_or_a_page_that_leads_nowhere_fails_the_build(site: Path, place: Path) -> None:
    (place / "pages" / "wire.md").write_text("# The wire\n\n[a](nowhere.md) [b](cli.md#no-such-heading)\n")
    (place / "pages" / "lonely.md").write_text("# In no menu\n")
    told = build(place, code=1)
    assert "'nowhere.md'" in told
    assert "#no-such-heading" in told
    assert "lonely.md" in told
