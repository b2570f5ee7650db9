"""What was opened and not closed: at the end of the program it is closed, with a warning."""

from __future__ import annotations

import atexit
import contextlib
import os
import warnings
from typing import Protocol
from weakref import WeakSet

LAST_SECONDS = 3.0


class Closable(Protocol):
    _pid: int  # whose it is

    def close(self, timeout: float | None = None) -> None: ...


_open: WeakSet[Closable] = WeakSet()


def opened(each: Closable) -> None:
    _open.add(each)


def closed(each: Closable) -> None:
    _open.discard(each)


@atexit.register
def _close_all() -> None:
    for each in list(_open):
        if each._pid != os.getpid():
            continue  # this is a child, and that is its parent's
        warnings.warn(f"{each!r} was not closed: use `with`, or call close()", ResourceWarning, stacklevel=1)
        with contextlib.suppress(Exception):
            each.close(LAST_SECONDS)
