"""Durations and sizes as people write them: `5s`, `100ms`, `1h30m`, `4MB`, `64MiB`. Pure: text in, numbers out."""

from __future__ import annotations

import re

MILLISECONDS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
BYTES = {
    "": 1,
    "b": 1,
    "kb": 1_000,
    "mb": 1_000_000,
    "gb": 1_000_000_000,
    "tb": 1_000_000_000_000,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?i?b)?", re.IGNORECASE)


def duration_ms(text: str) -> int:
    """Milliseconds of `1h30m`, `5s`, `100ms`; a bare number is seconds. Raises ValueError."""
    text = text.strip().lower()
    if _NUMBER.fullmatch(text):
        return round(float(text) * 1_000)
    if not _DURATION.fullmatch(text):
        raise ValueError("is no duration; write it like 100ms, 5s or 1h30m")
    return round(sum(float(number) * MILLISECONDS[unit] for number, unit in _PART.findall(text)))


def size_bytes(text: str) -> int:
    """Bytes of `4MB`, `64MiB`; a bare number is bytes. Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if not match or (match[2] or "").lower() not in BYTES:
        raise ValueError("is no size; write it like 4194304, 4MB or 64MiB")
    return round(float(match[1]) * BYTES[(match[2] or "").lower()])


def format_duration(milliseconds: int) -> str:
    """The shortest form that `duration_ms` reads back."""
    if milliseconds == 0:
        return "0s"
    parts = []
    for unit, size in reversed(MILLISECONDS.items()):
        count, milliseconds = divmod(milliseconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)


def format_size(size: int) -> str:
    """`64MiB` where that is exact, else plain bytes."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % BYTES[unit.lower()] == 0:
            return f"{size // BYTES[unit.lower()]}{unit}"
    return str(size)
