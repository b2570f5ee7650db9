"""Values that are JSON, as typed columns: the schema, guessing one, and putting values into it. No pyspark here.

A schema is what `df.schema.json()` of Spark prints. A value that does not fit as a whole is a misfit: its columns are
null and its text goes to `_corrupt_record`, as Spark's readers do it. Fields that are missing are null, fields that the
schema does not know are left out, anything fits into a string (as JSON text). Times without a zone are UTC.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime
from math import isinf
from struct import pack
from typing import Any, NoReturn

import pyarrow as pa

from wal.errors import WalError

CORRUPT = "_corrupt_record"
MOST_DEPTH = 32  # of types in types: readers of Parquet give up at about a hundred, and an array takes several

Schema = dict[str, Any]
_Fit = Callable[[Any], Any]


class BadSchema(WalError):
    """The schema is none, or asks for what can't be had."""


class Typer:
    """Puts values into a schema."""

    def __init__(self, schema: Any) -> None:
        """Raises BadSchema."""
        if not isinstance(schema, dict) or schema.get("type") != "struct":
            raise BadSchema("the schema of JSON values is a struct, as df.schema.json() prints it")
        self.type, self._fit = _compiled(schema)

    def columns(self, values: Iterable[bytes]) -> tuple[pa.Array, pa.Array]:
        """The typed values, and the text of those that are misfits."""
        typed: list[Any] = []
        corrupt: list[str | None] = []
        for value in values:
            try:
                typed.append(self._fit(parsed(value)))
                corrupt.append(None)
            except (ValueError, RecursionError, OverflowError):
                typed.append(None)
                corrupt.append(value.decode("utf-8", "backslashreplace"))
        return pa.array(typed, self.type), pa.array(corrupt, pa.string())


def parsed(value: bytes) -> Any:
    """The JSON in a value that is an object. Raises ValueError, RecursionError."""
    content = json.loads(value, parse_constant=_refuse)
    if not isinstance(content, dict):
        raise ValueError("no object")
    return content


def inferred(values: Iterable[bytes]) -> Schema:
    """A schema that the objects among the values fit into. Raises BadSchema where there are none."""
    merged: Any = None
    for value in values:
        try:
            merged = _merge(merged, _kind(parsed(value)))
        except (ValueError, RecursionError):
            continue
    if merged is None:
        raise BadSchema("no JSON objects were found to guess a schema from; give one in a file")
    told = _told(merged)
    if not isinstance(told, dict):
        raise BadSchema("the JSON objects that were found have no fields to make columns of")
    return told


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


# ---------------------------------------------------------------- fitting


def _compiled(kind: Any, room: int = MOST_DEPTH) -> tuple[pa.DataType, _Fit]:
    """The Arrow type of a schema's type, and what puts a JSON value into it."""
    if isinstance(kind, str) and kind in _SIMPLE:
        return _SIMPLE[kind]
    if isinstance(kind, dict):
        if not room:
            raise BadSchema(f"the schema of JSON values is more than {MOST_DEPTH} types deep")
        try:
            if kind["type"] == "struct" and kind["fields"]:
                return _struct([(each["name"], *_compiled(each["type"], room - 1)) for each in kind["fields"]])
            if kind["type"] == "array":
                return _array(*_compiled(kind["elementType"], room - 1))
            if kind["type"] == "map" and kind["keyType"] == "string":
                return _map(*_compiled(kind["valueType"], room - 1))
        except (KeyError, TypeError, UnicodeEncodeError):
            pass
    raise BadSchema(
        f"JSON values can't be exported as {json.dumps(kind)}; there are {', '.join(_SIMPLE)}, arrays, structs"
    )


def _struct(fields: Sequence[tuple[str, pa.DataType, _Fit]]) -> tuple[pa.DataType, _Fit]:
    def fit(value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValueError("no object")
        return {
            name: None if (inner := value.get(name)) is None else put(inner)  # null and missing are the same
            for name, _, put in fields
        }

    return pa.struct([(name, kind) for name, kind, _ in fields]), fit


def _array(kind: pa.DataType, put: _Fit) -> tuple[pa.DataType, _Fit]:
    def fit(value: Any) -> Any:
        if not isinstance(value, list):
            raise ValueError("no array")
        return [None if inner is None else put(inner) for inner in value]

    return pa.list_(kind), fit


def _map(kind: pa.DataType, put: _Fit) -> tuple[pa.DataType, _Fit]:
    def fit(value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValueError("no object")
        return [(_string(name), None if inner is None else put(inner)) for name, inner in value.items()]

    return pa.map_(pa.string(), kind), fit


def _whole(bits: int) -> _Fit:
    limit = 1 << (bits - 1)

    def fit(value: Any) -> Any:
        if type(value) is not int or not -limit <= value < limit:
            raise ValueError("no such number")
        return value

    return fit


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise ValueError("no number")
    number = float(value)
    if isinf(number):  # JSON has no infinity: this one has more digits than there is room for
        raise ValueError("too large")
    return number


def _small_number(value: Any) -> float:
    number = _number(value)
    pack("<f", number)  # raises OverflowError where it would become an infinity
    return number


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("neither true nor false")
    return value


def _string(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    text.encode()  # JSON can name half a character, Parquet can't
    return text


def _timestamp(value: Any) -> datetime:
    if not isinstance(value, str):
        raise ValueError("no time")
    when = datetime.fromisoformat(value)
    return when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)


def _date(value: Any) -> date:
    if isinstance(value, str) and len(value) <= len("2026-05-01"):
        return date.fromisoformat(value)
    return _timestamp(value).date()


_SIMPLE: dict[str, tuple[pa.DataType, _Fit]] = {
    "string": (pa.string(), _string),
    "long": (pa.int64(), _whole(64)),
    "integer": (pa.int32(), _whole(32)),
    "short": (pa.int16(), _whole(16)),
    "byte": (pa.int8(), _whole(8)),
    "double": (pa.float64(), _number),
    "float": (pa.float32(), _small_number),
    "boolean": (pa.bool_(), _boolean),
    "date": (pa.date32(), _date),
    "timestamp": (pa.timestamp("us", tz="UTC"), _timestamp),
}


# ---------------------------------------------------------------- guessing
# A kind is None (only nulls so far), a name in _SIMPLE, a dict of fields, or a list with the kind of its elements.


def _kind(value: Any, room: int = MOST_DEPTH) -> Any:
    if value is None:
        return None
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "long" if -(1 << 63) <= value < 1 << 63 else "double"
    if isinstance(value, float):
        return "double"
    if isinstance(value, str):
        return "string"
    if not room:
        return "string"  # the rest as text
    if isinstance(value, dict):
        return {name: _kind(inner, room - 1) for name, inner in value.items() if _can_be_a_column(name)}
    merged = None
    for inner in value:
        merged = _merge(merged, _kind(inner, room - 1))
    return [merged]


def _can_be_a_column(name: str) -> bool:
    """JSON can name half a character, Parquet can't."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _merge(one: Any, other: Any) -> Any:
    if one is None or one == other:
        return other
    if other is None:
        return one
    if isinstance(one, dict) and isinstance(other, dict):
        return {name: _merge(one.get(name), other.get(name)) for name in {**one, **other}}
    if isinstance(one, list) and isinstance(other, list):
        return [_merge(one[0], other[0])]
    numbers = {"long", "double"}
    return "double" if isinstance(one, str) and isinstance(other, str) and {one, other} == numbers else "string"


def _told(kind: Any) -> Any:
    """A kind as Spark writes it; what nothing is known of is a string."""
    if isinstance(kind, dict) and kind:
        fields = [
            {"name": name, "type": _told(inner), "nullable": True, "metadata": {}} for name, inner in kind.items()
        ]
        return {"type": "struct", "fields": fields}
    if isinstance(kind, list):
        return {"type": "array", "elementType": _told(kind[0]), "containsNull": True}
    return kind or "string"
