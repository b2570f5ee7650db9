"""The options of the source, as text in and values out. Imports no pyspark."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

VIEWS = ("messages", "batches", "records", "segments")
MODES = ("PERMISSIVE", "FAILFAST")
NAMES = (
    "path", "paths", "view", "channels", "columns", "fromTs", "toTs", "sealedOnly", "liveOnly", "mode",
    "startingOffsets", "failOnDataLoss", "maxSegmentsPerTrigger",
)  # fmt: skip
PARTITION_BYTES = 64 << 20  # segments are put together up to this much, so that tiny ones share a task


@dataclass(frozen=True, slots=True)
class Options:
    """What a query asks for."""

    roots: tuple[str, ...]
    view: str = "messages"
    channels: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    from_us: int | None = None
    to_us: int | None = None
    sealed_only: bool = False
    live_only: bool = True
    is_strict: bool = False  # damage fails the query
    # of streams
    starting: str | int = "earliest"  # or "latest", or the sequence after which to begin
    fail_on_data_loss: bool = True
    max_segments: int | None = None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Raises ValueError, which names what is wrong and what there is."""
        known = {name.lower(): name for name in NAMES}
        unknown = [name for name in given if name.lower() not in known]
        if unknown:
            raise ValueError(f"mqwal has no option {unknown[0]!r}; there are {', '.join(NAMES)}")
        values = {known[name.lower()]: value for name, value in given.items()}
        view = _one_of("view", values.get("view", "messages").lower(), VIEWS)
        from_us, to_us = _time(values, "fromTs"), _time(values, "toTs")
        if (from_us is not None or to_us is not None) and view not in ("messages", "batches"):
            raise ValueError(f"fromTs and toTs select messages and batches, not {view}")
        return cls(
            roots=_roots(values),
            view=view,
            channels=_words(values.get("channels")),
            columns=_words(values.get("columns")),
            from_us=from_us,
            to_us=to_us,
            sealed_only=_flag(values, "sealedOnly", False),
            live_only=_flag(values, "liveOnly", True),
            is_strict=_one_of("mode", values.get("mode", MODES[0]).upper(), MODES) == "FAILFAST",
            starting=_starting(values.get("startingOffsets", "earliest")),
            fail_on_data_loss=_flag(values, "failOnDataLoss", True),
            max_segments=_count(values, "maxSegmentsPerTrigger"),
        )


def _roots(values: Mapping[str, str]) -> tuple[str, ...]:
    roots = json.loads(values["paths"]) if "paths" in values else []
    roots += [values["path"]] if "path" in values else []
    if not roots:
        raise ValueError("mqwal needs a path: the directory of a log, or its URI")
    # Spark makes file:/x out of file:///x
    return tuple("file:///" + root[6:].lstrip("/") if root.startswith("file:/") else root for root in roots)


def _words(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(word.strip() for word in text.split(",") if word.strip())


def _one_of(name: str, value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ValueError(f"{name} is one of {', '.join(known)}, not {value!r}")
    return value


def _flag(values: Mapping[str, str], name: str, default: bool) -> bool:
    text = values.get(name, str(default)).lower()
    return _one_of(name, text, ("true", "false")) == "true"


def _count(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name)
    if text is None:
        return None
    if not text.isdigit() or not int(text):
        raise ValueError(f"{name} is a number from 1 on, not {text!r}")
    return int(text)


def _time(values: Mapping[str, str], name: str) -> int | None:
    """Microseconds. ISO 8601, in UTC unless it says otherwise, or milliseconds as in Spark's Kafka source."""
    text = values.get(name)
    if text is None:
        return None
    if text.isdigit():
        return int(text) * 1000
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{name} is a time like 2026-05-01T12:00, or milliseconds, not {text!r}") from None
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    seconds = when.replace(microsecond=0).timestamp()
    return int(seconds) * 1_000_000 + when.microsecond


def _starting(text: str) -> str | int:
    if text.isdigit():
        return int(text)
    if text.lower() not in ("earliest", "latest"):
        raise ValueError(f"startingOffsets is earliest, latest or a sequence, not {text!r}")
    return text.lower()
