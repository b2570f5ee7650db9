"""What work leaves to the garbage collector: whatever lies in a cycle stays in memory until that comes by."""

from __future__ import annotations

import gc
from collections.abc import Callable


def litter_of(work: Callable[[], None]) -> set[str]:
    """The names of mq's own types, in this process, of which something could only be collected."""
    gc.collect()
    before = gc.get_debug()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        work()
        gc.collect()
        return {type(each).__name__ for each in gc.garbage if type(each).__module__.startswith(("mq.", "wal."))}
    finally:
        gc.set_debug(before)
        gc.garbage.clear()
        gc.collect()
