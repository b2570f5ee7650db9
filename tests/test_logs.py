"""The server's own log: its forms, and that nobody can forge a line of it."""

import io
import json
from collections.abc import Iterator

import pytest
from loguru import logger

from mq import logs
from mq.config import Config


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    yield
    logger.remove()
    logger.configure(patcher=lambda record: None)


def test_control_characters_from_outside_are_escaped() -> None:
    stream = io.StringIO()
    logs.configure(Config(log_format="plain"), stream)
    logger.warning("refused {}", "x\n2026-01-01 INFO forged\x1b[31m\u2028y\x7f")
    (line,) = stream.getvalue().splitlines()
    assert line.endswith(r"refused x\n2026-01-01 INFO forged\x1b[31m\u2028y\x7f")


def test_json_lines_hold_the_fields_and_the_traceback_without_values() -> None:
    stream = io.StringIO()
    logs.configure(Config(environment="production"), stream)
    secret = b"payload"
    try:
        secret.decode("no such codec")
    except LookupError as error:
        logger.opt(exception=error).error("{} failed", "Publish")
    (line,) = stream.getvalue().splitlines()
    record = json.loads(line)
    assert (record["level"], record["message"]) == ("ERROR", "Publish failed")
    assert "LookupError" in record["traceback"]
    assert "payload" not in line


def test_braces_and_markup_in_foreign_text_stay_text() -> None:
    stream = io.StringIO()
    logs.configure(Config(log_format="pretty"), stream)
    logger.info("{}", "<red>{x}</red>")
    assert "<red>{x}</red>" in stream.getvalue()


def test_the_level_is_respected() -> None:
    stream = io.StringIO()
    logs.configure(Config(log_level="ERROR", log_format="plain"), stream)
    logger.warning("quiet")
    logger.error("loud")
    assert len(stream.getvalue().splitlines()) == 1
