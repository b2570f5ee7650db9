"""What publisher and subscriber share: the settings, the signal, and how a failure is told."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

import grpc

DEADLINE_SECONDS = 10.0  # a call that takes longer has no broker at its other end
NO_BROKER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class BadSetting(Exception):
    """A variable holds what it can't mean."""


@dataclass(frozen=True)
class Settings:
    address: str
    channel: str
    group: str
    count: int
    batch_size: int
    pull_interval_ms: int

    @classmethod
    def from_env(cls, count: int) -> Settings:
        return cls(
            address=f"{_text('BROKER_HOST', 'localhost')}:{_number('BROKER_PORT', 50051)}",
            channel=_text("CHANNEL", "orders"),
            group=_text("GROUP", "billing"),
            count=_number("COUNT", count),
            batch_size=_number("BATCH_SIZE", 10, least=1),
            pull_interval_ms=_number("PULL_INTERVAL", 100, least=1),
        )


def _text(name: str, default: str) -> str:
    return os.environ.get(name) or default


def _number(name: str, default: int, least: int = 0) -> int:
    text = _text(name, str(default))
    if not (text.isascii() and text.isdecimal() and least <= int(text) < 1 << 31):
        raise BadSetting(f"{name} must be a whole number from {least} on, not '{text}'")
    return int(text)


def run(scenario: Callable[[Settings, threading.Event], None], count: int) -> None:
    """Runs a scenario until it ends or SIGTERM or SIGINT stops it; a failure is one line and exit code 1."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        settings = Settings.from_env(count)
    except BadSetting as error:
        sys.exit(f"mq: {error}")
    try:
        scenario(settings, stop)
    except grpc.RpcError as error:
        if error.code() in NO_BROKER:
            sys.exit(f"mq: no broker answers at {settings.address}")
        sys.exit(f"mq: {error.details()}")
