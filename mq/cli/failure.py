"""How a command fails: one line on stderr, and an exit code that a script can use."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import click

from mq.errors import MqError

FAILED, USAGE, NOT_FOUND, CONFLICT, DENIED, UNAVAILABLE, TIMED_OUT = 1, 2, 3, 4, 5, 6, 7

EXIT_CODES = {
    "INVALID_ARGUMENT": USAGE,
    "OUT_OF_RANGE": USAGE,
    "NOT_FOUND": NOT_FOUND,
    "ALREADY_EXISTS": CONFLICT,
    "FAILED_PRECONDITION": CONFLICT,
    "ABORTED": CONFLICT,
    "UNAUTHENTICATED": DENIED,
    "PERMISSION_DENIED": DENIED,
    "UNAVAILABLE": UNAVAILABLE,
    "RESOURCE_EXHAUSTED": UNAVAILABLE,
    "DEADLINE_EXCEEDED": TIMED_OUT,
}


def explain(error: Exception) -> NoReturn:
    """Say what went wrong, and exit. Raises what is no user's business again."""
    if isinstance(error, BrokenPipeError):  # whoever read our output has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    if isinstance(error, MqError):
        say(str(error))
        sys.exit(EXIT_CODES.get(error.status, FAILED))
    from wal.errors import BackupRefused, LogLocked, WalError

    if isinstance(error, WalError):
        say(str(error))
        sys.exit(CONFLICT if isinstance(error, LogLocked | BackupRefused) else FAILED)
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        say(f"{error.filename}: {error.strerror}")
        sys.exit(NOT_FOUND)
    if isinstance(error, PermissionError):
        say(f"{error.filename}: {error.strerror}")
        sys.exit(DENIED)
    if isinstance(error, OSError) and error.strerror:
        say(f"{error.filename}: {error.strerror}" if error.filename else error.strerror)
        sys.exit(FAILED)
    raise error


def say(line: str) -> None:
    """One line for the person at the terminal; data goes to stdout."""
    click.echo(f"mq: {line}", err=True)
