"""Options that many commands share, and the types of their values."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mq.units import duration_ms, size_bytes

if TYPE_CHECKING:
    from mq.client.client import Client

F = TypeVar("F", bound=Callable[..., Any])


class _Type(click.ParamType[Any]):
    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(f"{value!r} {error}", param, ctx)


def _rate(text: str) -> float:
    number = float(text.removesuffix("/s"))
    if number <= 0:
        raise ValueError("is no rate; write it like 500 or 500/s")
    return number


def _time(text: str) -> datetime:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("is no time; write it like 2026-05-01T12:00 (UTC, unless it says otherwise)") from None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


DURATION = _Type("duration", duration_ms)  # milliseconds
SIZE = _Type("size", size_bytes)
RATE = _Type("rate", _rate)
TIME = _Type("time", _time)


def server_option(command: F) -> F:
    return click.option("-s", "--server", metavar="ADDRESS", help="the broker, like mq://host  [MQ_SERVER]")(command)


def output_option(command: F) -> F:
    choice = click.Choice(["table", "json", "jsonl"])
    return click.option("-o", "--output", type=choice, default="table", show_default=True, help="form of the output")(
        command
    )


def force_option(command: F) -> F:
    return click.option("-f", "--force", is_flag=True, help="do not ask")(command)


def connect(server: str | None, timeout: float = 30.0) -> Client:
    """A client of the broker that the user means. Raises MqError."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what gRPC has to say, errors here say in our words
    from mq.client.client import Client

    return Client(server, timeout=timeout)


def confirm(question: str, force: bool) -> None:
    """Ask before something is destroyed; ends the command where the answer is no."""
    if not force:
        click.confirm(question, abort=True, err=True)
