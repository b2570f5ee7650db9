"""What a failed query means for the person who ran it: one line, without Java's stack and Python's.

A worker's exception reaches the driver as text, wrapped by Spark several times over. The last line of the innermost
traceback is what was raised.
"""

from __future__ import annotations

import re

from wal.errors import WalError
from wal.spark.java import JavaNotFound

_RAISED = re.compile(r"^\s*((?:[A-Za-z_]\w*\.)+)?([A-Z]\w*): (.+)$")
_FULL = "No space left on device"


def reason(error: BaseException) -> str | None:
    """The line to show; None where the error is no user's business and its traceback is."""
    if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] in _NEEDED:
        return f"this needs Spark ({error.name} is not installed): pip install 'mq-broker[spark]'"
    if isinstance(error, JavaNotFound | WalError):
        return str(error)
    kind = type(error)
    if kind.__module__ == "wal.spark.session":
        return str(error)
    if kind.__module__.startswith(("pyspark.", "py4j.")):
        return _raised_in_worker(str(error))
    if isinstance(error, BrokenPipeError):
        return None
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    # a store behind a URI has no numbers for its errors, and pyarrow has errors of its own for what is no URI
    if isinstance(error, OSError) or any(each.__module__ == "pyarrow.lib" for each in kind.__mro__):
        return next((line.strip() for line in str(error).splitlines() if line.strip()), kind.__name__)
    return None


_NEEDED = ("pyspark", "pyarrow", "numpy", "py4j", "pandas")


def _raised_in_worker(text: str) -> str:
    if _FULL in text:
        return _FULL
    lines = text.splitlines()
    for at, line in enumerate(lines):
        found = _RAISED.match(line)
        # Python's own line stands right after an indented one of the traceback; Java's begin with a package
        if found and at and lines[at - 1].startswith("  ") and not (found[1] or "").startswith(("org.", "java.")):
            return found[3]
    return next((line.strip() for line in lines if line.strip()), "Spark failed without a word")
