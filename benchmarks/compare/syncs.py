"""Is each broker in the class that it is said to be in? Counts its calls of fsync while one caller publishes."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from .peers import Peer
from .run import alive, clients

CALLS = "fsync,fdatasync,sync_file_range,msync"
SECONDS = 1.0


def syncs_per_message(peer: Peer, durability: str) -> float | None:
    """None where nothing can be counted here."""
    if not shutil.which("strace"):
        return None
    work = {"work": "singles", "size": 100, "callers": 1, "seconds": SECONDS}
    with alive(peer, durability) as server, tempfile.TemporaryDirectory() as scratch:
        clients(server, [work])  # what it syncs when it starts and when it first meets a client is not asked for
        told = Path(scratch) / "told"
        pids = [option for each in server.processes() for option in ("-p", str(each.pid))]
        command = ["strace", "-f", "-c", "-e", f"trace={CALLS}", "-o", str(told), *pids]
        tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert tracer.stderr
        if "attached" not in tracer.stderr.readline():
            tracer.kill()
            tracer.communicate()
            return None
        (answer,) = clients(server, [work])
        tracer.send_signal(signal.SIGINT)
        tracer.communicate()
        return counted(told.read_text()) / max(1, answer["count"])


def counted(table: str) -> int:
    """Of strace's table: share, seconds, microseconds of a call, calls, errors where there were any, name."""
    rows = re.findall(rf"^ *[\d.]+ +[\d.]+ +\d+ +(\d+) +(?:\d+ +)?(?:{CALLS.replace(',', '|')})$", table, re.M)
    return sum(map(int, rows))
