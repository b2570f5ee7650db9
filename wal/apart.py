"""Examines a proposal in a process of its own.

Reading and judging gigabytes of small messages is minutes of computing, and a thread that computes takes the
interpreter from the owner whenever it can. Another process takes only a processor, and gives way there. What it is
told and what it finds travels through its pipes; it writes nothing.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from typing import Any

from wal.disk import DirectDisk
from wal.errors import InstallRefused, LogClosed, WalError
from wal.install import Judge, examine
from wal.manifest import Manifest, SegmentEntry
from wal.proposal import Offer

NICE = 10
LOOK_SECONDS = 0.1  # how soon it ends when the log is closed


def examine_apart(
    directory: str, manifest: Manifest, offer: Offer, judge: Judge, closing: threading.Event
) -> list[SegmentEntry]:
    """As `wal.install.examine`; the judge here knows in the end what the one there found.

    Raises InstallRefused; LogClosed; WalError where it can't be done, or not to the end; OSError where there can be no
    other process.
    """
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "wal.apart"],  # it imports what this process would, and nothing that lies about
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(each or os.getcwd() for each in sys.path)},
        start_new_session=True,  # signals of a terminal are the broker's business
    )
    told: bytes | None = pickle.dumps((directory, manifest, offer, judge))
    try:
        while True:
            if closing.is_set():
                raise LogClosed("the log is closing")
            try:
                answer, _ = process.communicate(told, LOOK_SECONDS)
                break
            except subprocess.TimeoutExpired:
                told = None  # it has that, or will
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    if process.returncode:
        raise WalError(f"the check of proposal {offer.id} ended with {process.returncode}")
    kind, found = pickle.loads(answer)  # noqa: S301 - of our own child
    if kind is not None:
        raise kind(found)
    entries: list[SegmentEntry]
    entries, judge.findings = found
    return entries


def answer_to(directory: str, manifest: Manifest, offer: Offer, judge: Judge) -> tuple[type[WalError] | None, Any]:
    """What was found; or of which kind the refusal is, and its text."""
    try:
        entries = examine(DirectDisk(), directory, manifest, offer, judge, lambda: None)
    except InstallRefused as error:
        return InstallRefused, str(error)
    except (WalError, OSError) as error:
        return WalError, str(error)
    return None, (entries, judge.findings)


def main() -> None:
    os.nice(NICE)
    told = pickle.load(sys.stdin.buffer)  # noqa: S301 - of our parent
    sys.stdout.buffer.write(pickle.dumps(answer_to(*told)))


if __name__ == "__main__":
    main()
