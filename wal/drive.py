"""Who drives the writer: a thread of its own, for a moment the owner itself, or whoever pumps a log without a thread.

Whoever holds the baton is the writer. Items of the owner reach it in log order, through a queue that the thread
empties, a group's size at a time. Handing a group over and hearing of it takes two changes of thread, which on a quick
disk costs about as much as the sync; so an owner with time may commit a small group in its own thread, if nothing of
what it handed over before is still to be done.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVarTuple

from wal.writer import TEND_SECONDS, Group, Item, Task, Writer

Given = TypeVarTuple("Given")

LINGER_SECONDS = 0.001  # of silence, then what nobody waits for is synced too: a stream of it shares few syncs


class Drive:
    """One owner calls `hand`, `commit` and `rest`; anybody may call `do_between_groups`."""

    def __init__(
        self, writer: Writer, group_bytes: int, on_failure: Callable[[BaseException], None], *, is_threaded: bool
    ) -> None:
        self.failure: BaseException | None = None  # final
        self._writer = writer
        self._group_bytes = group_bytes
        self._on_failure = on_failure
        self._queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._baton = threading.Lock()
        self._handed = self._done = 0  # items of the owner's
        self._is_over = False
        self._is_lingering = False  # the thread has written what it has not synced
        self._thread = threading.Thread(target=self._run, name="wal-writer", daemon=True) if is_threaded else None

    def start(self) -> None:
        if self._thread is not None and not self._thread.is_alive():
            self._thread.start()

    def hand(self, item: Item) -> None:
        """Have the writer do this, after all that was handed over before."""
        self._handed += 1
        self._queue.put(item)

    def do_between_groups(self, act: Callable[[Writer], None]) -> None:
        """Have the writer do something on its own terms (an install)."""
        self._queue.put(Task(lambda: act(self._writer)))

    # ------------------------------------------------------------ in the owner's thread

    @property
    def likely_seconds(self) -> float:
        """How long a small commit is likely to take; a guess, from what the last ones took."""
        return self._writer.likely_seconds

    def commit(self, group: Group, patience: float, meanwhile: Callable[[], None]) -> bool:
        """Write a group here and now, and make it durable where somebody waits for that, if the writer has nothing else
        to do and the disk was quick the last time.

        False: hand it over; `meanwhile` was not called. A failure is told as ever, and then the group is not durable.
        """
        return self._here(patience, self._writer.commit, group, meanwhile)

    def rest(self, patience: float, meanwhile: Callable[[], None]) -> None:
        """Do what a commit left over: sync what it only wrote, note in the watermark what it synced."""
        if self._writer.has_unsynced:
            if not self._here(patience, self._sync, meanwhile) and self.failure is None:
                self._queue.put(Task(lambda: None))  # the thread looks whether anything is left to sync
        elif self._writer.has_news:
            self._here(float("inf"), self._mark)

    def _sync(self, meanwhile: Callable[[], None]) -> bool:
        self._writer.sync_here(meanwhile)
        return True

    def _mark(self) -> bool:
        self._writer.mark_at_once()
        return True

    def _here(self, patience: float, act: Callable[[*Given], bool], *given: *Given) -> bool:
        """Be the writer for a moment, if it has nothing else to do and the disk was quick the last time."""
        if self._writer.likely_seconds > patience or self._handed != self._done:
            return False
        if not self._baton.acquire(blocking=False):
            return False
        try:
            return self._may_write and act(*given)
        except BaseException as error:
            self.failure = error  # before anybody else has the baton: a second sync would succeed, and prove nothing
        finally:
            self._baton.release()
        self._on_failure(self.failure)  # without the baton: whoever hears of it may close the log
        if not isinstance(self.failure, Exception):  # not the disk's: an interrupt
            raise self.failure
        return True

    def pump(self) -> None:
        """Do everything that is queued, without a thread."""
        self._done = self._handed
        items: list[Item] = []
        while not self._queue.empty():
            item = self._queue.get_nowait()
            if item is not None:
                items.append(item)
        try:
            self._writer.process(items)
            self._writer.rest()
        except Exception as error:
            self._fail(error)
            raise

    def tend(self) -> None:
        """What can wait, without a thread."""
        try:
            self._writer.tend(is_idle=True)
        except Exception as error:
            self._fail(error)
            raise

    def stop(self) -> None:
        """Do what is queued, leave a clean log, and let nobody else be the writer again."""
        try:
            if self._thread is not None and self._thread.is_alive():
                self._queue.put(None)
                self._thread.join()
            elif self.failure is None:
                self.pump()
        finally:
            with self._baton:
                self._is_over = True
                if self.failure is None:
                    self._writer.close()
                else:
                    self._writer.abandon()

    @property
    def _may_write(self) -> bool:
        """Asked by whoever has the baton."""
        return self.failure is None and not self._is_over

    # ------------------------------------------------------------ in the writer's

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as error:
            self._fail(error)

    def _step(self) -> bool:
        """Take what is queued, up to a group's size, and make it durable; False when asked to stop."""
        items: list[Item] = []
        size = 0
        before = self._writer.written
        try:
            item = self._queue.get(timeout=LINGER_SECONDS if self._is_lingering else TEND_SECONDS)
        except queue.Empty:
            with self._baton:
                return self._try(lambda: self._tend(is_quiet=self._writer.written == before))
        try:
            while item is not None:
                items.append(item)
                size += item.bytes if isinstance(item, Group) else 0
                if size >= self._group_bytes:
                    break
                item = self._queue.get_nowait()
        except queue.Empty:
            pass
        with self._baton:
            return self._try(lambda: self._do(items, is_last=item is None)) and item is not None

    def _do(self, items: list[Item], *, is_last: bool) -> None:
        self._writer.process(items)
        is_idle = self._queue.empty()
        self._writer.settle(is_idle=is_idle)
        self._is_lingering = self._writer.has_unsynced
        self._done += sum(not isinstance(each, Task) for each in items)
        if not is_last:
            self._writer.tend(is_idle=is_idle)

    def _tend(self, *, is_quiet: bool) -> None:
        if is_quiet:
            self._writer.rest()
        else:
            self._writer.settle(is_idle=True)  # the owner writes, and will sync
        self._is_lingering = self._is_lingering and self._writer.has_unsynced
        self._writer.tend(is_idle=True)

    def _try(self, act: Callable[[], None]) -> bool:
        """Whether the writer may, and does; where it fails, the owner is not to have it after that."""
        if self._may_write:
            try:
                act()
                return True
            except BaseException as error:
                self.failure = error
                raise
        return False

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        self._on_failure(error)
