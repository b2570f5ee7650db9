"""The page of the errors: every class with what doors, clients and scripts make of it."""

from __future__ import annotations

import inspect

import mq
from mq.cli.failure import EXIT_CODES, FAILED

HEAD = """# Errors

Made from the code. Everything that mq raises on purpose is an `mq.MqError`. Over gRPC an error is its status, with the
name of the class in the trailing metadata `mq-reason`; on the wire both are in the answer; the Python client raises the
class again, and `mq` exits with the code. *Again?* is `error.retryable`: the same request may succeed later.

| class | status | again? | exit code | |
|---|---|---|---|---|
"""


def page() -> str:
    rows = []
    for name in sorted(mq.__all__):
        kind = getattr(mq, name)
        if not (inspect.isclass(kind) and issubclass(kind, mq.MqError)):
            continue
        again = "yes" if kind.retryable else ""
        says = " ".join((inspect.getdoc(kind) or "").split())
        rows.append(f"| `{name}` | {kind.status} | {again} | {EXIT_CODES.get(kind.status, FAILED)} | {says} |\n")
    return HEAD + "".join(rows) + TAIL


TAIL = """
`OffsetOutOfRange` has `partition`, `start_offset` and `next_offset`; `DataLoss` has `partition`, `start` and `end`.
`mq` exits with 0 where it did what was asked, and with 2 where the command line itself is wrong. What another language
does about each: [languages.md](../languages.md#errors).
"""
