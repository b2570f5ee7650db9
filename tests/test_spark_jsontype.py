"""JSON values as typed columns: what fits, what does not, and which schema is guessed."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.spark.export.jsontype import MOST_DEPTH, BadSchema, Typer, inferred


def struct(**fields: Any) -> dict[str, Any]:
    told = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields.items()]
    return {"type": "struct", "fields": told}


def fitted(kind: Any, text: str) -> Any:
    """What a field of that type makes of a JSON text; the string "misfit" where it does not fit."""
    typed, corrupt = Typer(struct(x=kind)).columns([f'{{"x":{text}}}'.encode()])
    if corrupt[0].as_py() is not None:
        assert typed[0].as_py() is None
        return "misfit"
    return typed[0].as_py()["x"]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("long", "5", 5),
        ("long", "5.5", "misfit"),
        ("long", "true", "misfit"),
        ("long", '"5"', "misfit"),
        ("long", str(1 << 63), "misfit"),
        ("long", str((1 << 63) - 1), (1 << 63) - 1),
        ("byte", "128", "misfit"),
        ("integer", "-2147483648", -2147483648),
        ("double", "5", 5.0),
        ("double", "NaN", "misfit"),
        ("double", "1" * 400, "misfit"),
        ("double", "1e400", "misfit"),
        ("float", "0.5", 0.5),
        ("float", "1e300", "misfit"),
        ("float", "-3.5e38", "misfit"),
        ("boolean", "true", True),
        ("boolean", "1", "misfit"),
        ("string", '"é"', "é"),
        ("string", '{"a": [1]}', '{"a":[1]}'),
        ("string", '"\\ud800"', "misfit"),
        ("date", '"2026-05-01"', date(2026, 5, 1)),
        ("date", '"2026-05-01T23:30:00-02:00"', date(2026, 5, 2)),
        ("date", '"soon"', "misfit"),
        ("timestamp", '"2026-05-01T12:00:00+02:00"', datetime(2026, 5, 1, 10, tzinfo=UTC)),
        ("timestamp", '"2026-05-01 12:00:00"', datetime(2026, 5, 1, 12, tzinfo=UTC)),
        ("timestamp", "5", "misfit"),
        ({"type": "array", "elementType": "long", "containsNull": True}, "[1, null]", [1, None]),
        ({"type": "array", "elementType": "long", "containsNull": True}, "[1, []]", "misfit"),
        ({"type": "map", "keyType": "string", "valueType": "long"}, '{"a": 1}', [("a", 1)]),
        (struct(y="long"), '{"y": 1, "z": 2}', {"y": 1}),
        (struct(y="long"), "{}", {"y": None}),
        ("long", "null", None),
    ],
)
def test_a_value_fits_its_type_or_is_a_misfit(kind: Any, text: str, expected: Any) -> None:
    assert fitted(kind, text) == expected


@pytest.mark.parametrize(
    "value", [b"", b"plain", b"5", b"[1]", b"null", b'{"x":1} {"x":2}', b"\xff\xfe", b"[" * 100_000]
)
def test_what_is_no_json_object_is_kept_as_text(value: bytes) -> None:
    typed, corrupt = Typer(struct(x="long")).columns([b'{"x":1}', value, b'{"x":2}'])
    assert typed.to_pylist() == [{"x": 1}, None, {"x": 2}]
    assert corrupt.to_pylist() == [None, value.decode("utf-8", "backslashreplace"), None]


def test_a_schema_is_guessed_from_what_is_there() -> None:
    guessed = inferred(
        [
            b'{"id": 1, "price": 1, "tags": [], "who": {"name": "a"}, "odd": 1}',
            b"no json",
            b'{"id": 2, "price": 1.5, "tags": ["x"], "who": {"age": 3}, "odd": "b", "none": null}',
        ]
    )
    expected = struct(
        id="long",
        price="double",
        tags={"type": "array", "elementType": "string", "containsNull": True},
        who=struct(name="string", age="long"),
        odd="string",
        none="string",
    )
    assert guessed == expected


@pytest.mark.parametrize("values", [[], [b"plain", b"5"], [b"{}"]])
def test_nothing_is_guessed_from_nothing(values: list[bytes]) -> None:
    with pytest.raises(BadSchema):
        inferred(values)


@pytest.mark.parametrize(
    "schema",
    ["long", {}, struct(), struct(x="decimal(10,2)"), struct(x={"type": "array"}), [1], struct(**{"\ud800": "long"})],
)
def test_a_schema_that_asks_for_the_impossible_is_refused(schema: Any) -> None:
    with pytest.raises(BadSchema):
        Typer(schema)


def nested(depth: int, kind: str) -> bytes:
    opening, closing = {"array": (b"[", b"]"), "object": (b'{"x":', b"}")}[kind]
    return b'{"x":' + opening * (depth - 1) + b"1" + closing * (depth - 1) + b"}"


def test_a_name_that_is_no_text_is_no_column_and_keeps_nothing_from_being_one() -> None:
    values = [b'{"\\ud800": 1, "x": 2, "y": {"\\ud800": 3, "z": 4}}']
    schema = inferred(values)
    assert schema == struct(x="long", y=struct(z="long"))
    assert Typer(schema).columns(values)[0].to_pylist() == [{"x": 2, "y": {"z": 4}}]


@pytest.mark.parametrize("kind", ["array", "object"])
@pytest.mark.parametrize("depth", [MOST_DEPTH, MOST_DEPTH + 1, 200])
def test_what_is_nested_deeper_than_a_file_may_be_is_text_from_there_on(tmp_path: Path, kind: str, depth: int) -> None:
    values = [nested(depth, kind)]
    typed, corrupt = Typer(inferred(values)).columns(values)
    assert corrupt.to_pylist() == [None]
    pq.write_table(pa.table({"value": typed}), tmp_path / "deep.parquet")
    assert pq.read_table(tmp_path / "deep.parquet")["value"].to_pylist() == typed.to_pylist()


def test_a_schema_that_is_too_deep_is_refused() -> None:
    schema: Any = "long"
    for _ in range(MOST_DEPTH):
        schema = struct(x=schema)
    Typer(schema)
    with pytest.raises(BadSchema, match="deep"):
        Typer(struct(x=schema))


leaves = st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats(allow_nan=False) | st.text(max_size=5)
trees = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
)
objects = st.dictionaries(st.text(min_size=1, max_size=3), trees, min_size=1, max_size=4)


@given(st.lists(objects, min_size=1, max_size=5))
def test_everything_fits_the_schema_that_was_guessed_from_it(some: list[dict[str, Any]]) -> None:
    def encodable(value: Any) -> bool:
        try:
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        except ValueError:
            return False
        return True

    values = [json.dumps(each).encode() for each in some if encodable(each)]
    if not values:
        return
    typed, corrupt = Typer(inferred(values)).columns(values)
    assert corrupt.to_pylist() == [None] * len(values)
    assert typed.null_count == 0
