"""Long polls: pulls that found nothing yet, kept where what they wait for will happen, so that nothing is scanned."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count

from mq.channel import Partition
from mq.command import Pull
from mq.group import Group
from mq.reply import PullReply

Key = Partition | Group
Queue = OrderedDict["LongPoll", None]

_NOBODY: Queue = OrderedDict()  # stays empty


class LongPoll:
    """A pull that waits for messages; `cancel` is for when nobody wants the answer any more."""

    __slots__ = ("_polls", "deadline", "done", "is_over", "keys", "pull", "reply")

    def __init__(self, polls: LongPolls, pull: Pull, done: Callable[..., None], deadline: float) -> None:
        self._polls = polls
        self.pull = pull
        self.done = done
        self.deadline = deadline
        self.is_over = False  # answered, or cancelled
        self.keys: list[Key] = []
        self.reply = PullReply([])  # what it gets when its time is up

    def cancel(self) -> None:
        """Do not answer any more. Idempotent."""
        self.is_over = True
        self.done = _tell_nobody  # this may lie among the deadlines for long, and whoever was answered holds messages
        self._polls.remove(self)


def _tell_nobody(answer: object) -> None:
    """In the place of whoever was answered."""


class LongPolls:
    """All of them, by the partition or the group that they wait for, and by the time that ends their wait."""

    def __init__(self) -> None:
        self._queues: dict[Key, Queue] = {}
        self._groups: dict[int, dict[Group, None]] = {}  # by channel: the groups that somebody waits on
        self._deadlines: list[tuple[float, int, LongPoll]] = []
        self._numbers = count()

    def add(self, poll: LongPoll, keys: list[Key]) -> None:
        poll.keys = keys
        for key in keys:
            self._queues.setdefault(key, OrderedDict())[poll] = None
            if isinstance(key, Group):
                self._groups.setdefault(key.channel_id, {})[key] = None
        heappush(self._deadlines, (poll.deadline, next(self._numbers), poll))

    def remove(self, poll: LongPoll) -> None:
        for key in poll.keys:
            queue = self._queues.get(key)
            if queue is None or poll not in queue:
                continue
            del queue[poll]
            if not queue:
                del self._queues[key]
                if isinstance(key, Group):
                    groups = self._groups[key.channel_id]
                    del groups[key]
                    if not groups:
                        del self._groups[key.channel_id]
        poll.keys = []

    def on(self, key: Key) -> Queue:
        """Who waits for a partition or a group, longest first."""
        return self._queues.get(key, _NOBODY)

    def groups_of(self, channel_id: int) -> list[Group]:
        return list(self._groups.get(channel_id, ()))

    def __iter__(self) -> Iterator[LongPoll]:
        """All of them, once each."""
        return iter({poll: None for queue in self._queues.values() for poll in queue})

    @property
    def next_deadline(self) -> float | None:
        while self._deadlines and not self._deadlines[0][2].keys:
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def overdue(self, now: float) -> list[LongPoll]:
        """Those whose time is up."""
        found = []
        while (deadline := self.next_deadline) is not None and deadline <= now:
            found.append(heappop(self._deadlines)[2])
        return found
