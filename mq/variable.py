"""How a setting is written in an environment: its variable, how its text is read, how its value is shown.

Pure. A parser takes the text of a variable and raises ValueError with the end of a sentence that starts with it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mq.units import duration_ms, format_duration, format_size, size_bytes

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Setting:
    """How one field of Config is written outside."""

    variables: tuple[str, ...]  # the name, then its aliases
    parse: Callable[[str], Any]
    show: Callable[[Any], str]


def whole_number(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]+", text) or not low <= int(text) <= high:
            raise ValueError(f"is no whole number from {low} to {high}")
        return int(text)

    return parse


def boolean(text: str) -> bool:
    words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if text.lower() not in words:
        raise ValueError("is neither true nor false")
    return words[text.lower()]


def one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        found = [word for word in words if word.lower() == text.lower()]
        if not found:
            raise ValueError(f"is none of {', '.join(words)}")
        return found[0]

    return parse


def bytes_within(low: int, high: int = 1 << 50) -> Callable[[str], int]:
    def parse(text: str) -> int:
        size = size_bytes(text)
        if not low <= size <= high:
            raise ValueError(f"is not from {format_size(low)} to {format_size(high)}")
        return size

    return parse


def host_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9.:_\-\[\]]+", text):
        raise ValueError("is no host name or address")
    return text


def file_extension(text: str) -> str:
    if not re.fullmatch(r"\.[a-z0-9]{1,8}", text) or text in {".idx", ".tmp", ".torn"}:
        raise ValueError("is no file extension like .wal")
    return text


def durations(text: str) -> tuple[int, ...]:
    return tuple(duration_ms(part) for part in text.split(",") if part.strip())


def format_boolean(value: bool) -> str:
    return "true" if value else "false"


def format_durations(value: tuple[int, ...]) -> str:
    return ",".join(map(format_duration, value))


def setting(default: T, name: str, parse: Callable[[str], T], show: Callable[[T], str] = str, *aliases: str) -> T:
    made: T = field(default=default, metadata={"setting": Setting((name, *aliases), parse, show)})
    return made
