"""The page of the command: every command with its usage, help, arguments and options, as click knows them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import click

from mq.cli import main

HEAD = """# The `mq` command, option by option

Made from the code; [cli.md](../cli.md) explains it. `mq COMMAND --help` says the same.
"""


def page() -> str:
    # click's own formatter is left aside: how it breaks lines depends on its version
    return HEAD + "".join(_command(main, "mq"))


def _command(command: click.Command, name: str) -> Iterator[str]:
    if command is not main:
        level = "##" if name.count(" ") == 1 else "###"
        yield f"\n{level} {name}\n"
        yield f"\n```text\n{_usage(command, name)}\n```\n"
        yield _help(command)
        options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
        if options:
            yield "\n| option | |\n|---|---|\n"
            yield from map(_option, options)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            if found and not found.hidden:
                yield from _command(found, f"{name} {each}")


def _usage(command: click.Command, name: str) -> str:
    arguments = [each for each in command.params if isinstance(each, click.Argument)]
    words = [name, "[OPTIONS]", *map(_argument, arguments)]
    return " ".join([*words, "COMMAND"] if isinstance(command, click.Group) else words)


def _argument(each: click.Argument) -> str:
    word = _values(each) + ("..." if each.nargs == -1 else "")
    return word if each.required else f"[{word}]"


def _values(each: click.Parameter) -> str:
    if isinstance(each.type, click.Choice):
        return "|".join(str(choice) for choice in each.type.choices)
    if each.metavar:
        return each.metavar
    if isinstance(each, click.Argument):
        return (each.name or "").upper()
    return "N" if isinstance(each.type, click.IntRange) else each.type.name.upper()


def _help(command: click.Command) -> str:
    """The help as Markdown: paragraphs; what click shall not wrap, such as examples, is a block."""
    parts = []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b"):
            title, _, lines = paragraph.removeprefix("\b").lstrip("\n").partition("\n")
            parts.append(f"\n{title}\n\n```text\n{inspect.cleandoc(lines)}\n```\n")
        elif paragraph:
            parts.append(f"\n{paragraph}\n")
    return "".join(parts)


def _option(each: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in each.opts)
    names += f" / `{each.secondary_opts[0]}`" if each.secondary_opts else ""
    value = "" if each.is_flag else f" `{_values(each).replace('|', chr(92) + '|')}`"
    says = (each.help or "").replace("|", "\\|")
    default: Any = each.default
    if each.show_default and isinstance(default, str | int | float) and not isinstance(default, bool):
        says += f"  [default: {default}]"
    return f"| {names}{value} | {says}{' (needed)' if each.required else ''} |\n"
