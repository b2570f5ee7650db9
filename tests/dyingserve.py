"""`mq serve` that dies by SIGKILL at its n-th change of the disk: `python dyingserve.py FILE serve ...`.

As long as FILE is not there, it is the plain broker. From then on it counts the changes that it makes, and at the
number that FILE holds it is killed: a write is cut in half first, everything else does not happen.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mq.cli import main
from wal.disk import DirectDisk

STEPS = ("create", "write", "allocate", "truncate", "sync", "rename", "link", "unlink", "sync_directory")


class Fuse:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._done = 0
        self._lock = threading.Lock()

    def burn(self, before_death: Callable[[], object]) -> None:
        with self._lock:
            if not self._file.exists():
                return
            self._done += 1
            if self._done >= int(self._file.read_text()):
                before_death()
                os.kill(os.getpid(), signal.SIGKILL)
                threading.Event().wait()  # the signal is on its way


def fused(name: str, fuse: Fuse) -> Callable[..., Any]:
    plain = getattr(DirectDisk, name)

    def act(self: DirectDisk, *args: Any) -> Any:
        fuse.burn(lambda: tear(self, *args) if name == "write" else None)
        return plain(self, *args)

    def tear(disk: DirectDisk, fd: int, buffers: list[bytes], position: int) -> None:
        whole = b"".join(buffers)
        os.pwrite(fd, whole[: len(whole) // 2], position)

    return act


if __name__ == "__main__":
    the_fuse = Fuse(Path(sys.argv.pop(1)))
    for step in STEPS:
        setattr(DirectDisk, step, fused(step, the_fuse))
    main(prog_name="mq")
