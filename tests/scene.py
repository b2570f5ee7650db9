"""A load and the broker it works on, which a test replaces as often as it breaks it; in the end the history decides."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from load import SETTINGS, Load
from process import Process
from torture import seed_of_run


class Scene:
    """A load, and brokers one after the other in one directory."""

    def __init__(self, directory: Path, figures: dict[str, Any], **options: Any) -> None:
        figures["seed"] = seed_of_run()
        self.directory, self.figures = directory, figures
        self.rng = random.Random(figures["seed"])
        self.load = Load(figures["seed"], **options)
        self.broker: Process | None = None

    def serve(self, broker: Process | None = None, **settings: str) -> Process:
        self.broker = broker or Process(self.directory, **SETTINGS | settings)
        port = self.broker.wait_for_port("wire")
        self.load.history.started_again()
        self.load.port = port
        return self.broker

    def begin(self, **settings: str) -> Process:
        broker = self.serve(**settings)
        self.load.prepare()
        self.load.start()
        return broker

    def kill(self) -> None:
        assert self.broker is not None
        if self.broker.process.poll() is None:
            self.broker.signal(signal.SIGKILL)
        self.broker.wait()

    def finish(self) -> None:
        """To the end with the broker that is there; nothing may be broken."""
        self.load.wait_for(answered=20)
        self.load.drain()
        self.load.stop()
        broken = self.load.check()
        self.figures |= self.load.figures()
        print(self.load.errors)
        assert not broken, f"seed {self.figures['seed']}: {broken[:10]}"

    def close(self) -> None:
        self.load.is_over.set()
        if self.broker is not None:
            self.kill()


@contextmanager
def scene(directory: Path, figures: dict[str, Any], **options: Any) -> Iterator[Scene]:
    made = Scene(directory, figures, **options)
    try:
        yield made
    finally:
        made.close()
