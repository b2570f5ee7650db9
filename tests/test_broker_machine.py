"""The broker against a model of plain lists and dicts, with crashes at any moment.

The model keeps its durable part after each command under the sequence that the command's last record got. After a
crash it goes back to the newest one that was synced, and the restarted broker must agree with it.
"""

from __future__ import annotations

import copy
from typing import Any
from unittest.mock import patch

from handbroker import HandBroker, contents, durable, offsets_of, publish, replayed
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, rule

from mq.command import (
    Ack,
    CancelSchedule,
    CreateChannel,
    CreateGroup,
    Extend,
    Leave,
    ListSchedules,
    Nack,
    Position,
    Pull,
    PurgeChannel,
    Receipt,
    Reject,
    Seek,
    Start,
    Transact,
)
from mq.errors import LeaseLost, SequenceRefused
from mq.limits import Limits
from wal.pb.wal_pb2 import Batch, ChannelSettings, GroupSettings

CHANNELS = ["a", "b"]
GROUPS = ["g", "h"]
MEMBERS = ["m", "n"]
BACKOFF_MS = 1000
ACK_WAIT_MS = 30_000
MAX_DELIVER = 3
MOST = {"a": 0, "b": 25}  # messages that a channel keeps; 0: all
TTL_MS = 1500


def new_group(start: int) -> dict[str, Any]:
    return {"start": start, "acked": set(), "count": {}, "not_before": {}, "skipped": 0}


class Model:
    """What must survive, as plain data."""

    def __init__(self) -> None:
        self.messages: dict[str, list[str]] = {name: [] for name in CHANNELS}
        self.trimmed: dict[str, int] = dict.fromkeys(CHANNELS, 0)
        self.groups: dict[tuple[str, str], dict[str, Any]] = {}
        self.dead: dict[str, list[tuple[str, int, str]]] = {name: [] for name in CHANNELS}
        self.producers: dict[tuple[str, str], list[tuple[list[str], int]]] = {}
        self.expiry: dict[str, dict[int, int]] = {name: {} for name in CHANNELS}  # offset to time
        self.delayed: list[tuple[int, int, str, str]] = []  # due, id, channel, content


class BrokerMachine(RuleBasedStateMachine):
    leases = Bundle("leases")

    @initialize(held=st.booleans(), small=st.booleans(), drafted=st.booleans())
    def begin(self, held: bool, small: bool, drafted: bool) -> None:
        self.patches: list[Any] = []
        if drafted:  # every snapshot is made in many steps
            self.patches += [patch("mq.snapshotter.is_large", lambda channel: True)]
            self.patches += [patch("mq.draft.STEP", 2), patch("mq.draft.CHUNK", 1), patch("mq.draft.AGAIN", 1)]
            for each in self.patches:
                each.start()
        limits = Limits(
            group=GroupSettings(
                ack_wait_ms=ACK_WAIT_MS, max_deliver=MAX_DELIVER, backoff_ms=[BACKOFF_MS], session_timeout_ms=10_000
            ),
            buffer_bytes=1200 if small else 1 << 20,  # a batch or two: everything else is read back
            snapshot_bytes=2000 if small else 1 << 20,
            read_bytes=64,
            fetched_bytes=64,
        )
        self.hand = HandBroker(limits=limits)
        self.hand.log.is_held = held
        self.model = Model()
        self.out: dict[tuple[str, str], dict[int, bytes]] = {}  # who holds an offset: the receipt
        self.until: dict[bytes, int] = {}
        self.free: dict[tuple[str, str], set[int]] = {}  # given back: may come again out of order
        self.high: dict[tuple[str, str], int] = {}
        self.number = 0
        self.saved: dict[int, Model] = {}
        for name in CHANNELS:
            self.hand.ask(CreateChannel(name, settings=ChannelSettings(max_messages=MOST[name])))
            self.hand.ask(CreateGroup(name, "g"))
            self.model.groups[name, "g"] = new_group(0)
            self.save()
            self.publish(name, 4, True)

    # ------------------------------------------------------------ the model's side

    def save(self) -> None:
        self.saved[self.hand.broker._queue.last] = copy.deepcopy(self.model)

    def visible(self, channel: str) -> int:
        synced = max(at for at in self.saved if at <= self.hand.log.synced)
        return len(self.saved[synced].messages[channel])

    def now(self) -> int:
        return self.hand.clock.us

    def ready(self, channel: str, name: str) -> set[int]:
        """Offsets that a pull of the group may give now."""
        group = self.model.groups[channel, name]
        low = max(group["start"], self.model.trimmed[channel])
        out = self.out.get((channel, name), {})
        return {
            offset
            for offset in range(low, self.visible(channel))
            if offset not in group["acked"]
            and offset not in out
            and group["not_before"].get(offset, 0) <= self.now()
            and group["count"].get(offset, 0) < MAX_DELIVER
            and not self.has_expired(channel, offset)
        }

    def has_expired(self, channel: str, offset: int) -> bool:
        return self.model.expiry[channel].get(offset, self.now() + 1) <= self.now()

    def publish_due(self) -> None:
        """Delayed messages get their offsets when their time has come, in that order."""
        due = sorted(item for item in self.model.delayed if item[0] <= self.now())
        for item in due:
            self.model.delayed.remove(item)
            self.model.messages[item[2]].append(item[3])

    def follow_trims(self) -> None:
        """Retention may have acted: only on what has expired or is too much."""
        for channel in CHANNELS:
            start = self.hand.state.channels[channel].partitions[0].start_offset
            end = len(self.model.messages[channel])
            for offset in range(self.model.trimmed[channel], start):
                assert self.has_expired(channel, offset) or (MOST[channel] and offset < end - MOST[channel])
            if start > self.model.trimmed[channel]:
                self.trim(channel, start)

    def trim(self, channel: str, start: int) -> None:
        self.model.trimmed[channel] = start
        for (of, _), out in self.out.items():
            if of == channel:
                for offset in [offset for offset in out if offset < start]:
                    del out[offset]

    def came_back(self, channel: str, name: str, given: list[int], not_before: int) -> None:
        """A delivery ended without an ack."""
        group = self.model.groups[channel, name]
        for offset in given:
            self.out[channel, name].pop(offset)
            if offset in group["acked"] or offset < self.model.trimmed[channel]:
                continue
            group["count"][offset] = group["count"].get(offset, 0) + 1
            group["not_before"][offset] = not_before
            if group["count"][offset] >= MAX_DELIVER:
                self.bury(channel, name, [offset])

    def bury(self, channel: str, name: str, given: list[int]) -> None:
        group = self.model.groups[channel, name]
        for offset in given:
            group["acked"].add(offset)
            self.model.dead[channel].append((self.model.messages[channel][offset], offset, name))

    def expire(self) -> None:
        """What the clock ended. In the order in which the leases end."""
        for receipt, until in sorted(self.until.items(), key=lambda item: item[1]):
            if until > self.now():
                continue
            for (channel, name), out in list(self.out.items()):
                given = [offset for offset, holder in out.items() if holder == receipt]
                self.came_back(channel, name, sorted(given), self.now() + BACKOFF_MS * 1000)
            del self.until[receipt]
        self.publish_due()
        self.follow_trims()

    # ------------------------------------------------------------ publishing

    @rule(channel=st.sampled_from(CHANNELS), size=st.integers(1, 5), sync=st.booleans())
    def publish(self, channel: str, size: int, sync: bool) -> None:
        texts = [f"{channel}{self.number + index}" for index in range(size)]
        self.number += size
        asked = self.hand.send(publish(channel, *texts))
        base = len(self.model.messages[channel])
        self.model.messages[channel] += texts
        self.save()
        if sync:
            self.hand.settle()
            assert asked.answer.base_offset == base
        elif self.hand.log.is_held:
            assert not asked.is_answered

    @rule(channel=st.sampled_from(CHANNELS), sizes=st.lists(st.integers(1, 3), min_size=2, max_size=6))
    def publish_at_once(self, channel: str, sizes: list[int]) -> None:
        """Several in one turn of the loop: they share a record, and nobody can tell."""
        asked = []
        for size in sizes:
            texts = [f"{channel}{self.number + index}" for index in range(size)]
            self.number += size
            answers: list[Any] = []
            self.hand.loop.call_soon(self.hand.broker.submit, publish(channel, *texts), answers.append)
            asked.append((answers, len(self.model.messages[channel])))
            self.model.messages[channel] += texts
        self.hand.settle()
        self.save()
        assert [answers[0].base_offset for answers, _ in asked] == [base for _, base in asked]

    @rule(channel=st.sampled_from(CHANNELS), size=st.integers(1, 3))
    def publish_for_a_while(self, channel: str, size: int) -> None:
        texts = [f"{channel}{self.number + index}" for index in range(size)]
        self.number += size
        base = self.hand.ask(publish(channel, *texts, ttl_ms=TTL_MS)).base_offset
        self.model.messages[channel] += texts
        self.model.expiry[channel] |= dict.fromkeys(range(base, base + size), self.now() + TTL_MS * 1000)
        self.save()

    @rule(channel=st.sampled_from(CHANNELS), delay=st.sampled_from([500, 2000, 40_000]))
    def publish_later(self, channel: str, delay: int) -> None:
        text = f"{channel}{self.number}"
        self.number += 1
        number = self.hand.ask(publish(channel, text, delay_ms=delay)).schedule_id
        self.model.delayed.append((self.now() + delay * 1000, number, channel, text))
        self.save()

    @rule(which=st.integers(0, 5))
    def cancel(self, which: int) -> None:
        if which < len(self.model.delayed):
            _, number, channel, _ = self.model.delayed.pop(which)
            self.hand.ask(CancelSchedule(channel, number))
            self.save()

    @rule(channel=st.sampled_from(CHANNELS), producer=st.sampled_from("pq"), back=st.integers(-1, 3))
    def publish_as_producer(self, channel: str, producer: str, back: int) -> None:
        """A new sequence, a retry of an older one, or one that leaves a gap."""
        known = self.model.producers.setdefault((channel, producer), [])
        sequence = max(0, len(known) - back)
        if sequence < len(known):
            texts, base = known[sequence]
            again = self.hand.ask(publish(channel, *texts, producer_id=producer, sequence=sequence, crc=len(texts)))
            assert (again.base_offset, again.duplicate) == (base, True)
            self.save()
            return
        texts = [f"{channel}{self.number}"]
        asked = self.hand.send(publish(channel, *texts, producer_id=producer, sequence=sequence, crc=1))
        if sequence > len(known):
            self.hand.settle()
            assert isinstance(asked.answer, SequenceRefused)
            return
        self.number += 1
        known.append((texts, len(self.model.messages[channel])))
        self.model.messages[channel] += texts
        self.save()

    # ------------------------------------------------------------ groups

    @rule(channel=st.sampled_from(CHANNELS), name=st.sampled_from(GROUPS), at=st.sampled_from(["earliest", "latest"]))
    def create_group(self, channel: str, name: str, at: str) -> None:
        self.hand.ask(CreateGroup(channel, name, start=Start(at)))
        start = self.model.trimmed[channel] if at == "earliest" else len(self.model.messages[channel])
        self.model.groups.setdefault((channel, name), new_group(start))
        self.save()

    @rule(
        target=leases,
        channel=st.sampled_from(CHANNELS),
        name=st.sampled_from(["g", "g", "h"]),
        member=st.sampled_from(MEMBERS),
        most=st.integers(1, 8),
        size=st.sampled_from([0, 1, 20]),
    )
    def pull(self, channel: str, name: str, member: str, most: int, size: int) -> Any:
        if (channel, name) not in self.model.groups:
            return multiple()
        self.hand.tick()
        self.expire()
        self.save()
        ready = self.ready(channel, name)
        reply = self.hand.ask(Pull(channel, name, member, max_messages=most, max_bytes=size))
        group = self.model.groups[channel, name]
        out = self.out.setdefault((channel, name), {})
        given: list[int] = []
        leases = []
        for pulled in reply.batches:
            here = offsets_of(pulled)
            assert [message.content.decode() for message in Batch.FromString(pulled.batch).messages] == [
                self.model.messages[channel][offset] for offset in here
            ]
            assert {group["count"].get(offset, 0) + 1 for offset in here} == {pulled.delivery_count}
            given += here
            self.until[pulled.receipt] = pulled.lease_until_us
            leases.append((channel, name, member, pulled.receipt, tuple(here)))
        assert set(given) <= ready
        assert len(set(given)) == len(given) <= most
        fresh = (
            [offset for offset in given if not group["count"].get(offset) and offset not in self.free[channel, name]]
            if (channel, name) in self.free
            else [offset for offset in given if not group["count"].get(offset)]
        )
        assert fresh == sorted(fresh)
        if fresh:
            assert fresh[0] >= self.high.get((channel, name), 0)
            self.high[channel, name] = fresh[-1] + 1
        assert bool(given) == bool(ready), "something was there, or nothing"
        if not size and self.hand.state.channels[channel].partitions[0].buffer.floor == 0:
            assert len(given) == min(most, len(ready))
        for _, _, _, receipt, here in leases:
            out.update(dict.fromkeys(here, receipt))
        self.free.get((channel, name), set()).difference_update(given)
        return multiple(*leases)

    def is_held(self, lease: Any, part: list[int]) -> bool:
        channel, name, _, receipt, _ = lease
        out = self.out.get((channel, name), {})
        return all(out.get(offset) == receipt for offset in part)

    @rule(lease=leases, take=st.integers(1, 3), member=st.sampled_from(MEMBERS), sync=st.booleans())
    def ack(self, lease: Any, take: int, member: str, sync: bool) -> None:
        channel, name, holder, receipt, offsets = lease
        self.hand.tick()
        self.expire()
        self.save()
        part = list(offsets)[:take]
        group = self.model.groups.get((channel, name))
        held = self.is_held(lease, part)
        asked = self.hand.send(Ack(channel, name, member, [Receipt(receipt, [(part[0], part[-1] + 1)])]))
        if held and member == holder and group is not None:
            group["acked"].update(part)
            for offset in part:
                self.out[channel, name].pop(offset)
        self.save()
        if sync or not held:
            self.hand.settle()
            if held and member == holder:
                assert asked.answer.acked == len(part)
            elif member != holder:
                assert isinstance(asked.answer, LeaseLost)
            elif not isinstance(asked.answer, LeaseLost):
                assert asked.answer.acked < len(part)  # a repeated ack by the same holder

    @rule(lease=leases, delay=st.sampled_from([None, 0, 500]))
    def nack(self, lease: Any, delay: int | None) -> None:
        channel, name, holder, receipt, offsets = lease
        self.hand.tick()
        self.expire()
        out = self.out.get((channel, name), {})
        given = [offset for offset in offsets if out.get(offset) == receipt]
        command = Nack(channel, name, holder, [Receipt(receipt)], delay_ms=delay)
        if not given:
            assert isinstance(self.failure(command), LeaseLost)
            return
        self.hand.ask(command)
        self.came_back(channel, name, given, self.now() + (BACKOFF_MS if delay is None else delay) * 1000)
        self.hand.settle()
        self.save()

    @rule(lease=leases)
    def reject(self, lease: Any) -> None:
        channel, name, holder, receipt, offsets = lease
        self.hand.tick()
        self.expire()
        out = self.out.get((channel, name), {})
        given = [offset for offset in offsets if out.get(offset) == receipt]
        command = Reject(channel, name, holder, [Receipt(receipt)], reason="bad")
        if not given:
            assert isinstance(self.failure(command), LeaseLost)
            return
        assert self.hand.ask(command).rejected == len(given)
        for offset in given:
            out.pop(offset)
        self.bury(channel, name, given)
        self.save()

    @rule(lease=leases)
    def extend(self, lease: Any) -> None:
        channel, name, holder, receipt, _ = lease
        self.hand.tick()
        self.expire()
        self.save()
        held = any(other == receipt for other in self.out.get((channel, name), {}).values())
        command = Extend(channel, name, holder, [Receipt(receipt)])
        if held:
            self.until[receipt] = self.hand.ask(command).lease_until_us
        else:
            assert isinstance(self.failure(command), LeaseLost)

    @rule(channel=st.sampled_from(CHANNELS), name=st.sampled_from(GROUPS), member=st.sampled_from(MEMBERS))
    def leave(self, channel: str, name: str, member: str) -> None:
        if (channel, name) not in self.model.groups:
            return
        self.hand.tick()
        self.expire()
        self.save()
        mine = {
            lease.receipt
            for lease in self.hand.state.channels[channel].groups[name].leases.values()
            if lease.member == member
        }
        self.hand.ask(Leave(channel, name, member))
        out = self.out.get((channel, name), {})
        for offset in [offset for offset, receipt in out.items() if receipt in mine]:
            del out[offset]
            self.free.setdefault((channel, name), set()).add(offset)

    @rule(channel=st.sampled_from(CHANNELS), name=st.sampled_from(GROUPS), back=st.integers(0, 6))
    def seek(self, channel: str, name: str, back: int) -> None:
        if (channel, name) not in self.model.groups:
            return
        to = max(self.model.trimmed[channel], len(self.model.messages[channel]) - back)
        reply = self.hand.ask(Seek(channel, name, start=Start("offset", to)))
        assert reply.positions == [Position(0, to)]
        skipped = self.model.groups[channel, name]["skipped"]
        self.model.groups[channel, name] = new_group(to) | {"skipped": skipped}
        self.forget(channel, name)
        self.save()

    def forget(self, channel: str, name: str) -> None:
        self.out.pop((channel, name), None)
        self.free.pop((channel, name), None)
        self.high.pop((channel, name), None)

    @rule(channel=st.sampled_from(CHANNELS), keep=st.integers(0, 5))
    def purge(self, channel: str, keep: int) -> None:
        before = len(self.model.messages[channel]) - keep
        if before <= self.model.trimmed[channel]:
            return
        self.hand.ask(PurgeChannel(channel, before_offset=before))
        self.trim(channel, before)
        self.save()

    @rule(lease=leases, to=st.sampled_from(CHANNELS), stale=st.booleans())
    def transact(self, lease: Any, to: str, stale: bool) -> None:
        """Publish and ack in one step; with one stale receipt nothing of it happens."""
        channel, name, holder, receipt, offsets = lease
        self.hand.tick()
        self.expire()
        self.save()
        part = list(offsets)
        is_held = self.is_held(lease, part) and not stale
        texts = [f"{to}{self.number}", f"{to}{self.number + 1}"]
        publishes = [publish(to, text) for text in texts]
        acks = [Ack(channel, name, holder, [Receipt(receipt if not stale else b"x" * 16, [(part[0], part[-1] + 1)])])]
        asked = self.hand.send(Transact(publishes, acks))
        self.hand.settle()
        assert isinstance(asked.answer, LeaseLost) != is_held
        if not is_held:
            return
        self.number += 2
        base = len(self.model.messages[to])
        assert [reply.base_offset for reply in asked.answer.publishes] == [base, base + 1]
        self.model.messages[to] += texts
        group = self.model.groups[channel, name]
        group["acked"].update(part)
        for offset in part:
            self.out[channel, name].pop(offset, None)
        self.save()

    def failure(self, command: Any) -> Any:
        asked = self.hand.send(command)
        self.hand.settle()
        self.save()
        return asked.answer

    # ------------------------------------------------------------ time and crashes

    @rule(ms=st.sampled_from([100, 1000, 31_000, 31_000]))
    def time_passes(self, ms: int) -> None:
        self.hand.tick(ms)
        self.expire()
        self.hand.settle()
        self.save()

    @rule()
    def sync(self) -> None:
        self.hand.settle()
        self.save()

    @rule()
    def crash(self) -> None:
        self.hand = self.hand.crash()
        synced = max(at for at in self.saved if at <= self.hand.log.synced)
        self.model = copy.deepcopy(self.saved[synced])
        self.after_restart()

    @rule()
    def restart(self) -> None:
        self.hand.settle()
        self.save()
        self.hand = self.hand.restart()
        self.after_restart()

    def after_restart(self) -> None:
        self.out, self.until, self.free, self.high = {}, {}, {}, {}
        self.saved = {}
        self.hand.settle()
        self.follow_trims()
        self.save()
        self.check_contents()

    @rule(steps=st.integers(1, 4))
    def write_on_a_snapshot(self, steps: int) -> None:
        """A bit of a run; whatever comes before the next bit is in it, or follows it."""
        writer = self.hand.broker._snapshotter
        for step in range(steps):
            if not step and not writer._begin_sequence:
                self.hand.loop.call_soon(writer._begin)
            self.hand.loop.call_soon(writer._next)
            self.hand.spin()
            if not writer._begin_sequence:
                return

    @rule()
    def replay_equals_live(self) -> None:
        self.hand.settle()
        self.save()
        assert durable(replayed(self.hand.log, self.hand.limits)) == durable(self.hand.state)

    @rule()
    def check_contents(self) -> None:
        """What a reader without a group sees, and where the groups are."""
        self.hand.settle()
        self.save()
        for channel in CHANNELS:
            seen = self.read_all(channel)
            assert seen == [
                text
                for offset, text in enumerate(self.model.messages[channel])
                if offset >= self.model.trimmed[channel] and not self.has_expired(channel, offset)
            ]
            self.check_dead(channel)
            planned = self.hand.ask(ListSchedules(channel)).schedules
            assert [(at.due_us, at.schedule_id) for at in planned] == sorted(
                (due, number) for due, number, of, _ in self.model.delayed if of == channel
            )
        for (channel, name), group in self.model.groups.items():
            cursor = self.hand.state.channels[channel].groups[name].cursors[0]
            for offset in range(max(group["start"], self.model.trimmed[channel]), len(self.model.messages[channel])):
                if offset not in self.model.expiry[channel]:
                    assert cursor.is_done(offset) == (offset in group["acked"]), offset
            waiting = {
                offset: (retry.count, retry.not_before_us)
                for retry in cursor.retries
                for offset in range(retry.start, retry.end)
                if offset not in self.model.expiry[channel]
            }
            assert waiting == {
                offset: (count, group["not_before"][offset])
                for offset, count in group["count"].items()
                if offset not in group["acked"]
                and offset >= self.model.trimmed[channel]
                and offset not in self.model.expiry[channel]
            }

    def check_dead(self, channel: str) -> None:
        """A message that may expire may do so in one group's hands while another still has to bury it."""
        if self.model.dead[channel]:
            brief = {self.model.messages[channel][offset] for offset in self.model.expiry[channel]}
            found = self.read_all(channel + ".dlq") if channel + ".dlq" in self.hand.state.channels else []
            assert sorted(text for text in found if text not in brief) == sorted(
                text for text, _, _ in self.model.dead[channel] if text not in brief
            )

    def read_all(self, channel: str) -> list[str]:
        found: list[str] = []
        positions: Any = ()
        while True:
            reply = self.hand.ask(Pull(channel, max_messages=7, positions=positions))
            if not reply.batches:
                return found
            found += contents(reply)
            positions = reply.next

    @invariant()
    def nothing_above_the_mark_is_visible(self) -> None:
        if hasattr(self, "hand"):
            for name in CHANNELS:
                assert self.hand.state.channels[name].partitions[0].visible <= self.visible(name)

    def teardown(self) -> None:
        if hasattr(self, "hand"):
            self.hand.stop()
            for each in self.patches:
                each.stop()


TestBrokerMachine = BrokerMachine.TestCase
TestBrokerMachine.settings = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)
