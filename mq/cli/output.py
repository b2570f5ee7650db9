"""Answers as tables, JSON or lines of JSON. Data goes to stdout; boxes and colours only to a terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click
from google.protobuf.message import Message

Row = Mapping[str, Any]


def as_dict(message: Message) -> dict[str, Any]:
    """A message of the API with all its fields, numbers as numbers and enums by name."""
    return {field.name: _value(message, field) for field in message.DESCRIPTOR.fields}


def _value(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.is_repeated:
        return [_plain(item, field) for item in value]
    if field.message_type is not None and not message.HasField(field.name):
        return None
    return _plain(value, field)


def _plain(value: Any, field: Any) -> Any:
    if field.message_type is not None:
        return as_dict(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name.lower()
    return value.hex() if isinstance(value, bytes) else value


def show_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def show_line(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False))


def show_rows(rows: Sequence[Row], columns: Sequence[str], output: str, data: Iterable[Any] | None = None) -> None:
    """Rows as a table of the named columns; as JSON, `data` (or the rows) whole."""
    items = list(rows if data is None else data)
    if output == "json":
        show_json(items)
    elif output == "jsonl":
        for item in items:
            show_line(item)
    else:
        show_table(rows, columns)


def show_one(fields: Row, output: str, data: Any = None) -> None:
    """One thing: its fields below each other, or as JSON."""
    value = fields if data is None else data
    if output == "json":
        show_json(value)
    elif output == "jsonl":
        show_line(value)
    else:
        width = max(map(len, fields), default=0)
        for name, text in fields.items():
            click.echo(f"{name.ljust(width)}  {text}")


def show_table(rows: Sequence[Row], columns: Sequence[str]) -> None:
    lines = [[str(row.get(column, "")) for column in columns] for row in rows]
    numeric = [bool(lines) and all(_is_number(line[place]) for line in lines) for place in range(len(columns))]
    if is_terminal():
        from rich.console import Console

        Console().print(rich_table(columns, lines, numeric))
        return
    table = [list(columns), *lines]
    widths = [max(len(line[place]) for line in table) for place in range(len(columns))]
    for line in table:
        cells = zip(line, widths, numeric, strict=True)
        text = "  ".join(cell.rjust(width) if is_right else cell.ljust(width) for cell, width, is_right in cells)
        click.echo(text.rstrip())


def rich_table(columns: Sequence[str], lines: Sequence[Sequence[str]], numeric: Sequence[bool]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, header_style="bold")
    for column, is_right in zip(columns, numeric, strict=True):
        table.add_column(column, justify="right" if is_right else "left")
    for line in lines:
        table.add_row(*line)
    return table


def is_terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def count(number: float) -> str:
    return f"{number:,.0f}"


def size(number: int) -> str:
    """Bytes for human eyes."""
    value = float(number)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def when(microseconds: int) -> str:
    if not microseconds:
        return ""
    return datetime.fromtimestamp(microseconds / 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _is_number(text: str) -> bool:
    return text.replace(",", "").replace(".", "", 1).lstrip("-").isdigit()
