"""Waiting for a log's marks: on a condition, with a deadline, never by sleeping."""

from __future__ import annotations

import threading

DEADLINE_SECONDS = 30


class Marks:
    """Takes a log's callbacks and lets a test wait for them."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []
        self.failures: list[BaseException] = []
        self._changed = threading.Condition()

    def on_marks(self, written: int, synced: int) -> None:
        with self._changed:
            self.seen.append((written, synced))
            self._changed.notify_all()

    def on_failure(self, error: BaseException) -> None:
        with self._changed:
            self.failures.append(error)
            self._changed.notify_all()

    def wait_synced(self, sequence: int) -> None:
        self._wait(lambda: any(synced >= sequence for _, synced in self.seen), f"{sequence} is not synced")

    def wait_written(self, sequence: int) -> None:
        self._wait(lambda: any(written >= sequence for written, _ in self.seen), f"{sequence} is not written")

    def wait_failure(self) -> BaseException:
        self._wait(lambda: bool(self.failures), "the log did not fail")
        return self.failures[0]

    def _wait(self, is_so, what: str) -> None:  # type: ignore[no-untyped-def]
        with self._changed:
            assert self._changed.wait_for(is_so, DEADLINE_SECONDS), f"{what}; seen: {self.seen}"
