"""A progress bar on stderr, where that is a terminal and the work takes long enough to be asked about."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int, int], None]  # done, in all (0: nobody knows)


@contextmanager
def progress(what: str) -> Iterator[Advance]:
    """Hands out a function to be called with how much is done of how much."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)
