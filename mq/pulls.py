"""Pulls: answered at once, or kept until something happens for them. Nothing is scanned to find out.

Runs on the loop. A task is made only where a batch, or a position by time, has to be read from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from loguru import logger

from mq.channel import Missing, Partition
from mq.command import CreateGroup, Position, Pull
from mq.commitqueue import Done
from mq.deciders import decide, decide_pull
from mq.delivery import resolve
from mq.errors import MqError
from mq.group import Group
from mq.longpoll import Key, LongPoll, LongPolls
from mq.owner import Owner
from mq.readback import Readback
from mq.reply import Leased, PullReply, Reply
from mq.settlement import decide_takeover, release


class Pulls:
    def __init__(self, owner: Owner, readback: Readback, arm: Callable[[], None]) -> None:
        """`arm` is called when there may be something new to wait for."""
        self._owner = owner
        self._state = owner.state
        self._clock = owner.clock
        self._readback = readback
        self._arm = arm
        self._polls = LongPolls()

    @property
    def next_deadline(self) -> float | None:
        return self._polls.next_deadline

    def begin(self, pull: Pull, done: Done) -> LongPoll | None:
        poll = LongPoll(self._polls, pull, done, self._clock.monotonic() + pull.max_wait_ms / 1000)
        try:
            if self._readback.is_time_asked(pull):
                self._owner.spawn(self._answered(poll, self._pull_after_lookup(poll)))
                return poll
            self._prepare(poll)
        except MqError as error:
            self._owner.answer(done, error)
            return None
        if self._retry(poll):
            return None if poll.is_over else poll
        self._park(poll)
        return poll

    def release(self, leased: Leased) -> None:
        """Give back at once the leases of an answer that could not be sent, as if it had never been pulled."""
        group = release(self._state, leased)
        if group is not None and self._owner.refusal is None:
            self.wake(group)

    def _prepare(self, poll: LongPoll) -> None:
        """Make what the pull needs to be decided: the group, or the positions of a reader."""
        pull = poll.pull
        channel = self._state.same_channel(pull.channel, pull.channel_id)
        if not pull.group:
            poll.pull = pull._replace(positions=resolve(channel, pull))
            return
        if pull.group not in channel.groups and not pull.group_id:
            made = CreateGroup(pull.channel, pull.group, start=pull.start, positions=pull.positions)
            self._owner.take(decide(self._state, made, self._clock.now_us()))
        if pull.turn:
            self._take_turn(channel.same_group(pull.group, pull.group_id), pull)

    def _take_turn(self, group: Group, pull: Pull) -> None:
        """A member's pulls before this one are over: whoever waits for their answers does so in vain."""
        now = self._clock.now_us()
        is_another = group.take_turn(pull.member, pull.turn, pull.since, now, self._owner.limits.members)
        self.end_of_member(group, pull.member)
        if is_another:
            self._owner.take(decide_takeover(self._state, pull, now))
        elif pull.afresh:
            group.give_back_all(pull.member)
        if is_another or pull.afresh:
            self.wake(group)

    def _park(self, poll: LongPoll) -> None:
        """Keep a pull until something happens for it."""
        channel = self._state.channels[poll.pull.channel]
        keys: list[Key]
        if poll.pull.group:
            keys = [channel.groups[poll.pull.group]]
        else:
            keys = [channel.partitions[position.partition] for position in poll.pull.positions]
        self._polls.add(poll, keys)
        self._arm()

    def _retry(self, poll: LongPoll) -> bool:
        """Try to answer a pull; false: it has to wait (on)."""
        try:
            reply = self._pull(poll.pull)
        except Missing as missing:
            if missing.reached:
                # What has expired is passed over once: reading it again for each batch behind it would never end.
                places = [Position(number, missing.reached[number]) for number, _ in poll.pull.positions]
                poll.pull = poll.pull._replace(positions=places)
            self._polls.remove(poll)
            self._owner.spawn(self._answered(poll, self._pull_after_reading(poll, missing)))
            return True
        except MqError as error:
            self._answer(poll, error)
            return True
        except Exception as error:
            self._answer_mistake(poll, error)  # others wait behind it
            return True
        if reply.batches or poll.deadline <= self._clock.monotonic():
            self._answer(poll, reply)
            return True
        poll.reply = reply
        return False

    def _pull(self, pull: Pull) -> PullReply:
        while True:
            decision = decide_pull(self._state, pull, self._clock.now_us())
            reply = self._owner.take(decision)
            assert isinstance(reply, PullReply)
            if reply.batches or not decision.records:
                self._arm()
                return reply

    def _answer(self, poll: LongPoll, reply: Reply | MqError) -> None:
        if poll.is_over:
            if isinstance(reply, PullReply):
                self.release(reply.leased())
            return
        done = poll.done
        poll.cancel()
        self._owner.answer(done, reply)

    def wake(self, group: Group) -> None:
        """Something may be there for a group: give it to those who wait, longest first."""
        queue = self._polls.on(group)
        if not queue:
            return
        is_picky = group.is_ordered or group.max_pending_per_member  # what one can't get, another may
        for poll in list(queue):
            if poll.keys and not self._retry(poll) and not is_picky and poll.pull.partition is None:
                break

    def end_of_member(self, group: Group, member: str) -> None:
        """A member has left, or pulls anew: what it waits with gets an empty answer, and is not tried again."""
        for poll in list(self._polls.on(group)):
            if poll.pull.member == member:
                self._answer(poll, poll.reply)

    def wake_orphans(self) -> None:
        """Pulls that wait on a channel or a group which is gone get their error."""
        for poll in list(self._polls):
            channel = self._state.channels.get(poll.pull.channel)
            key = poll.keys[0]
            if channel is None or (
                channel.groups_by_id.get(key.group_id) is not key
                if isinstance(key, Group)
                else key not in channel.partitions
            ):
                self._retry(poll)

    async def _answered(self, poll: LongPoll, work: Coroutine[Any, Any, None]) -> None:
        """Whatever goes wrong in a task, also what nobody expected, whoever pulled is told."""
        try:
            await work
        except Exception as error:
            self._answer_mistake(poll, error)

    def _answer_mistake(self, poll: LongPoll, error: Exception) -> None:
        logger.opt(exception=error).error("a pull failed")
        self._answer(poll, MqError("internal error; the server's log has the reason"))

    async def _pull_after_lookup(self, poll: LongPoll) -> None:
        try:
            poll.pull = poll.pull._replace(positions=await self._readback.positions(poll.pull))
            if self._is_over(poll):
                return
            self._prepare(poll)
        except MqError as error:
            self._answer(poll, error)
            return
        if not self._retry(poll):
            self._park(poll)

    async def _pull_after_reading(self, poll: LongPoll, missing: Missing) -> None:
        try:
            await self._readback.read(missing)
        except MqError as error:
            self._answer(poll, error)
            return
        if self._has_left(poll):
            self._answer(poll, poll.reply)
        elif not self._is_over(poll) and not self._retry(poll):
            self._park(poll)

    def _has_left(self, poll: LongPoll) -> bool:
        """Whether a member that pulled is none any more: it was one before the log was read."""
        channel = self._state.channels.get(poll.pull.channel)
        group = channel.groups.get(poll.pull.group) if channel else None
        return group is not None and poll.pull.member not in group.members

    def _is_over(self, poll: LongPoll) -> bool:
        """Whether nobody waits for it any more; a failure while the log was read ends it here."""
        if self._owner.failed is not None and not poll.is_over:
            self._answer(poll, self._owner.failed)
        return poll.is_over

    def moved(self, partitions: list[Partition]) -> None:
        """More is visible in these partitions."""
        for partition in partitions:
            if readers := self._polls.on(partition):
                for poll in list(readers):
                    if poll.keys:
                        self._retry(poll)
            for group in self._polls.groups_of(partition.channel_id):
                self.wake(group)

    def end_overdue(self) -> None:
        """Pulls that waited long enough get what there is: nothing."""
        for poll in self._polls.overdue(self._clock.monotonic()):
            self._answer(poll, poll.reply)

    def end_all(self, refusal: MqError | None = None) -> None:
        """Nobody waits any more: they get an empty answer, or the refusal at once."""
        for poll in list(self._polls):
            if refusal is None:
                self._answer(poll, poll.reply)
            else:
                done = poll.done
                poll.cancel()
                self._owner.queue.tell(done, refusal)

    def keep_alive(self) -> None:
        """Who waits is alive."""
        now = self._clock.now_us()
        for poll in list(self._polls):
            key = poll.keys[0]
            if isinstance(key, Group) and poll.pull.member in key.members:
                key.touch(poll.pull.member, now, self._owner.limits.members)
