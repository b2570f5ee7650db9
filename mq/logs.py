"""What the server writes about itself: one line per event on stderr, for eyes or for machines.

Strings that came from outside are escaped, so that nobody can forge a line; payloads are never logged, which is also
why tracebacks come without the values of variables.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, TextIO

from loguru import logger

from mq.config import Config

if TYPE_CHECKING:
    from loguru import Message, Record

# C0 and C1 controls, and the separators that some viewers take for a new line; written as in a Python string.
ESCAPES = {code: ascii(chr(code))[1:-1] for code in (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029)}
PRETTY = "<dim>{time:HH:mm:ss.SSS}</dim> <level>{level: <8}</level> {message}"
PLAIN = "{time:YYYY-MM-DDTHH:mm:ss.SSSZZ} {level: <8} {message}"


def configure(config: Config, stream: TextIO | None = None) -> None:
    """Send the log to a stream (default: stderr) in the configured form."""
    stream = stream or sys.stderr
    kind = config.log_format
    if kind == "auto":
        kind = "json" if config.is_production else "pretty" if stream.isatty() else "plain"
    logger.remove()
    logger.configure(patcher=_escape)
    common: dict[str, Any] = {"level": config.log_level, "diagnose": False, "backtrace": False}
    if kind == "json":
        logger.add(lambda message: _write_json(stream, message), format="{message}", **common)
    else:
        logger.add(stream, format=PRETTY if kind == "pretty" else PLAIN, colorize=kind == "pretty", **common)


def _escape(record: Record) -> None:
    record["message"] = record["message"].translate(ESCAPES)


def _write_json(stream: TextIO, message: Message) -> None:
    record = message.record
    line: dict[str, object] = {
        "time": record["time"].isoformat(),
        "level": record["level"].name,
        "message": record["message"],
        "where": f"{record['name']}:{record['line']}",
        **record["extra"],
    }
    if record["exception"] is not None:
        line["traceback"] = str(message).partition("\n")[2]
    stream.write(json.dumps(line, default=str) + "\n")
    stream.flush()
