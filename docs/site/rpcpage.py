"""The page of the API: services, methods and messages of proto/mq.proto, with its comments.

A reader of the one form that the file has: declarations on lines of their own, comments above them or at their ends.
What it finds is compared with the generated code, so that nothing can be overlooked.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import mq

SOURCE = Path(__file__).resolve().parents[2] / "proto" / "mq.proto"

OPENS = re.compile(r"(service|message|enum|oneof) (\w+) \{(\})?$")
RPC = re.compile(r"rpc (\w+)\((stream )?(\w+)\) returns \((stream )?(\w+)\);$")
FIELD = re.compile(r"(?:(optional|repeated) )?([\w.]+) (\w+) = (\d+);(?: +// (.*))?$")
VALUE = re.compile(r"(\w+) = (\d+);(?: +// (.*))?$")

HEAD = """# RPCs and messages

Made from [proto/mq.proto](../../proto/mq.proto), which is the whole API; [languages.md](../languages.md) says how the
calls belong together, [wire.md](../wire.md) how they travel over the wire. Times are microseconds since the Unix epoch
(`_us`), durations milliseconds (`_ms`), sizes bytes. What can go wrong is in [errors.md](errors.md).
"""


@dataclass
class Block:
    """A service, message or enum. An enum in a message is named as there: `SubscribeRequest.Offset`."""

    kind: str
    name: str
    comment: str
    rows: list[tuple[str, ...]] = field(default_factory=list)


def blocks(text: str) -> list[Block]:
    """All declarations, in their order."""
    found: list[Block] = []
    path: list[Block] = []  # what is open, the innermost last; a oneof is a block that nobody keeps
    comment: list[str] = []
    for line in map(str.strip, text.splitlines()):
        if line.startswith("//"):
            comment.append(line.removeprefix("//").strip())
            continue
        said, comment = " ".join(comment), []
        if opened := OPENS.match(line):
            kind, name, closed = opened.groups()
            outer = path[-1].name + "." if path and kind != "oneof" else ""
            block = Block(kind, outer + name, said)
            if kind != "oneof":
                found.append(block)
            if not closed:
                path.append(block)
        elif line == "}":
            path.pop()
        elif rpc := RPC.match(line):
            name, asks, request, answers, response = rpc.groups()
            types = (f"{asks or ''}{request}", f"{answers or ''}{response}")
            path[-1].rows.append((name, *types, said))
        elif path and path[-1].kind == "enum" and (value := VALUE.match(line)):
            path[-1].rows.append((value[2], value[1], value[3] or said))
        elif path and (each := FIELD.match(line)):
            label, kind, name, number, beside = each.groups()
            where = path[-2] if path[-1].kind == "oneof" else path[-1]
            label = f"one of {path[-1].name}" if path[-1].kind == "oneof" else label or ""
            where.rows.append((number, name, f"{label} {kind}".strip(), beside or said))
    return found


def page() -> str:
    found = blocks(SOURCE.read_text(encoding="utf-8"))
    known = {block.name for block in found if block.kind != "service"}
    services = [_service(block, known) for block in found if block.kind == "service"]
    rest = [_block(block, known) for block in found if block.kind != "service"]
    return "".join([HEAD, *services, "\n## Messages\n", *rest])


def _service(block: Block, known: set[str]) -> str:
    rows = [
        f"| `{name}` | {_type(asks, known)} | {_type(answers, known)} | {said or _client_says(name)} |\n"
        for name, asks, answers, said in block.rows
    ]
    return f"\n## {block.name}\n\n| call | request | answer | |\n|---|---|---|---|\n{''.join(rows)}"


def _client_says(call: str) -> str:
    """For a call whose name says it all to who reads the .proto file: what the client's method of that name does."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", call).lower()
    method = getattr(mq.Client, name, None) or getattr(mq.Message, name, None)
    return " ".join((inspect.getdoc(method) or "").split("\n\n")[0].split()) if method else ""


def _block(block: Block, known: set[str]) -> str:
    return f"\n### {block.name}\n" + (f"\n{block.comment}\n" if block.comment else "") + "".join(_rows(block, known))


def _rows(block: Block, known: set[str]) -> Iterator[str]:
    if block.kind == "enum":
        yield "\n| number | value | |\n|---|---|---|\n"
        yield from (f"| {number} | `{name}` | {said} |\n" for number, name, said in block.rows)
    elif block.rows:
        yield "\n| number | field | type | |\n|---|---|---|---|\n"
        for number, name, kind, said in block.rows:
            inner = f"{block.name}.{kind}"
            linked = _type(inner, known, kind) if inner in known else _type(kind, known)
            yield f"| {number} | `{name}` | {linked} | {said} |\n"
    else:
        yield "\nNothing.\n"


def _type(words: str, known: set[str], shown: str = "") -> str:
    """A type, linked to where it is told; the words before it stay."""
    *before, name = words.split()
    linked = f"[{shown or name}](#{name.lower().replace('.', '')})" if name in known else name
    return " ".join([*before, linked])
