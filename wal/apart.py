"""Examines a proposal in a process of its own.

Reading and judging gigabytes of small messages is minutes of computing, and a thread that computes takes the
interpreter from the owner whenever it can. Another process takes only a processor, and gives way there. What it is
told comes in a file, what it finds leaves by a pipe; it changes nothing.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from wal.disk import DirectDisk
from wal.errors import InstallRefused, LogClosed, WalError
from wal.install import Judge, examine
from wal.manifest import Manifest, SegmentEntry
from wal.proposal import STAGING, Offer

NICE = 19
LOOK_SECONDS = 0.1  # how soon it ends when the log is closed


def examine_apart(
    directory: str, manifest: Manifest, offer: Offer, judge: Judge, closing: threading.Event
) -> list[SegmentEntry]:
    """As `wal.install.examine`; the judge here knows in the end what the one there found.

    Raises InstallRefused; LogClosed; WalError where it can't be done, or not to the end; OSError where there can be no
    other process.
    """
    if not sys.executable:
        raise OSError("nobody knows where Python is")
    # Not by a pipe, which a large state would fill; and beside the log, because there may be no other place to write.
    with tempfile.TemporaryFile(dir=os.path.join(directory, STAGING)) as told:
        pickle.dump((directory, manifest, offer, judge), told)
        told.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from wal.apart import main; main()"],
            stdin=told,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(each or os.getcwd() for each in sys.path)},
            start_new_session=True,  # signals of a terminal are the broker's business
        )
    answer: bytes | None = None
    try:
        while answer is None:
            if closing.is_set():
                raise LogClosed("the log is closing")
            with suppress(subprocess.TimeoutExpired):
                answer, _ = process.communicate(timeout=LOOK_SECONDS)
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
    parent = os.getppid()

    def breathe() -> None:
        if os.getppid() != parent:
            raise LogClosed("nobody wants to know any more")

    try:
        entries = examine(DirectDisk(), directory, manifest, offer, judge, breathe)
    except InstallRefused as error:
        return InstallRefused, str(error)
    except (WalError, OSError) as error:
        return WalError, str(error)
    return None, (entries, judge.findings)


def main() -> None:
    with suppress(OSError):  # where that is not allowed, it is as important as the broker
        os.nice(NICE)
    with suppress(OSError):  # and if memory ends, it is not the broker who goes
        Path("/proc/self/oom_score_adj").write_text("0")
    told = pickle.load(sys.stdin.buffer)  # noqa: S301 - of our parent
    sys.stdout.buffer.write(pickle.dumps(answer_to(*told)))
