"""The page of the Python client: all of `mq.__all__` with signatures, docstrings and examples."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import mq

HEAD = """# The Python client, name by name

Made from the code; [client.md](../client.md) explains it. Every example is run by a test, against a broker with a
channel `orders` that holds `one`, `two` and `three`. What is raised is in [errors.md](errors.md).

In signatures, `pb.ChannelInfo` and the like are messages of [rpc.md](rpc.md#messages); a `Start` is `"earliest"`,
`"latest"` or made by one of three [functions](#where-to-start-reading); a `HeaderValue` is text or bytes;
`OnPartitions` takes a frozenset of partition numbers.
"""

# a reader's order: what one begins with first
SECTIONS = {
    "Threads": [
        "Client",
        "Producer",
        "Sent",
        "Consumer",
        "Message",
        "Batch",
        "Reader",
        "View",
        "Transaction",
        "Published",
    ],
    "Where to start reading": ["at_offset", "at_time", "last"],
    "Values": ["Codec", "JsonCodec", "MessagePackCodec", "ProtobufCodec"],
    "asyncio": [
        *("AsyncClient", "AsyncProducer", "AsyncSent", "AsyncConsumer", "AsyncMessage", "AsyncBatch", "AsyncReader"),
        "AsyncTransaction",
    ],
}
LINE_WIDTH = 100


def page() -> str:
    told = {name for names in SECTIONS.values() for name in names}
    errors = {name for name in mq.__all__ if _is_error(getattr(mq, name))}
    assert told | errors == set(mq.__all__), sorted(set(mq.__all__) ^ (told | errors))
    parts = [HEAD]
    for title, names in SECTIONS.items():
        parts.append(f"\n## {title}\n")
        for name in names:
            parts += _class(name) if inspect.isclass(getattr(mq, name)) else _entry(f"mq.{name}", getattr(mq, name))
    return "".join(parts)


def _is_error(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, BaseException)


def _class(name: str) -> Iterator[str]:
    kind = getattr(mq, name)
    doc = inspect.getdoc(kind) or ""
    yield f"\n### mq.{name}\n"
    if not doc.startswith("Made by") and not getattr(kind, "_is_protocol", False):
        yield f"\n```python\n{_signature(f'mq.{name}', kind)}\n```\n"
    yield _prose(doc)
    for method, value in _members(kind):
        yield from _entry(f"{name}.{method}", value, level=4)


def _members(kind: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties in the order of the source; those of a base class after its own."""
    seen: set[str] = set()
    for each in kind.__mro__:
        if not each.__module__.startswith("mq."):
            continue
        for name, value in vars(each).items():
            if name.startswith("_") or name in seen or not isinstance(value, property | staticmethod | type(_members)):
                continue
            seen.add(name)
            yield name, value


def _entry(name: str, value: Any, level: int = 3) -> Iterator[str]:
    yield f"\n{'#' * level} {name}\n\n```python\n"
    if isinstance(value, property):
        assert value.fget is not None
        yield f"{name}: {_annotation(inspect.signature(value.fget).return_annotation)}"
    else:
        awaits = "async " if inspect.iscoroutinefunction(value) else ""
        yield f"{awaits}{_signature(name, value)}"
    yield f"\n```\n{_prose(inspect.getdoc(value) or '')}"


def _signature(name: str, value: Any) -> str:
    signature = inspect.signature(value)
    shown = [_parameter(each) for each in signature.parameters.values() if each.name != "self"]
    kinds = [each.kind for each in signature.parameters.values() if each.name != "self"]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        shown.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    back = "" if inspect.isclass(value) else f" -> {_annotation(signature.return_annotation)}"
    line = f"{name}({', '.join(shown)}){back}"
    if len(line) <= LINE_WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {each}," for each in shown), f"){back}"])


def _parameter(each: inspect.Parameter) -> str:
    stars = "*" if each.kind is each.VAR_POSITIONAL else "**" if each.kind is each.VAR_KEYWORD else ""
    default = "" if each.default is each.empty else f" = {each.default!r}"
    return f"{stars}{each.name}: {_annotation(each.annotation)}{default}"


def _annotation(annotation: Any) -> str:
    if isinstance(annotation, str):
        return annotation
    return getattr(annotation, "__forward_arg__", None) or getattr(annotation, "__name__", None) or str(annotation)


def _prose(doc: str) -> str:
    """A docstring as Markdown: its paragraphs, with examples as blocks of code."""
    parts = []
    for paragraph in doc.split("\n\n"):
        if paragraph.lstrip().startswith(">>>"):
            parts.append(f"\n```pycon\n{paragraph}\n```\n")
        elif paragraph:
            parts.append(f"\n{paragraph}\n")
    return "".join(parts)
