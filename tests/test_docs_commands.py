"""Every `mq` command line that a text shows is one that the command takes: its names, its options, its arguments."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from mq.cli import main


def shown(text: str) -> Iterator[str]:
    """The command lines of a text's blocks of code, without what is beside them: comments, pipes, prose of a column."""
    blocks = re.findall(r"^( *)```(?:sh|console)\n(.*?)^\1```", text, re.MULTILINE | re.DOTALL)
    blocks += [("", block) for block in re.findall(r"(?:^ {4}mq .*\n)+", text, re.MULTILINE)]
    for _, block in blocks:
        for line in re.findall(r"^ *(?:\$ )?(mq (?:.*\\\n)*.*)$", block, re.MULTILINE):
            yield re.split(r" {2,}| #| > | \| ", re.sub(r"\\\n *", "", line))[0]


def problem(line: str) -> str:
    """What the command would say against a line; a value that only stands for one is none."""
    command: click.Command = main
    words = shlex.split(line)[1:]
    context = click.Context(main)
    try:
        while isinstance(command, click.Group):
            _, found, words = command.resolve_command(context, words)
            assert found is not None
            command, context = found, click.Context(found, parent=context)
        command.make_context(command.name, [re.sub(r"[\[\]]", "", word) for word in words])
    except (click.NoSuchOption, click.MissingParameter) as error:
        return error.format_message()
    except click.BadParameter:
        return ""
    except click.UsageError as error:
        return error.format_message()
    return ""


def test_every_command_line_of_the_texts_is_taken(root: Path) -> None:
    texts = [root / "README.md", *root.glob("docs/*.md"), *root.glob("examples/*/README.md")]
    lines = {line: path.name for path in texts for line in shown(path.read_text())}
    assert len(lines) > 60
    assert {f"{lines[line]}: {line}": said for line in lines if (said := problem(line))} == {}


@pytest.mark.parametrize("line", ["mq pubb orders", "mq pub orders --kee 3", "mq group add orders", "mq top now"])
def test_a_line_that_is_not_taken_is_found(line: str) -> None:
    assert problem(line)


def test_lines_are_read_as_they_are_shown() -> None:
    text = "```sh\nmq sub a -e \\\n  --raw > x.txt\n```\n\n    mq wal ls [DIRECTORY]    the files\n\n"
    text += "```console\n$ mq top\nmq: no\n```\n"
    assert list(shown(text)) == ["mq sub a -e --raw", "mq top", "mq wal ls [DIRECTORY]"]
