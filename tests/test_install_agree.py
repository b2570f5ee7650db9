"""Whatever a log holds: what a compaction proposes is installed, and what is left is what a simple model leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from filebroker import FileBroker
from handbroker import HandClock, all_stopped
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from proposer import propose
from test_install_offer import everything

from mq.command import CreateGroup, DeleteChannel, Publish, PurgeChannel, Start, Transact
from wal.pb.wal_pb2 import Batch, BatchMessage, ChannelSettings
from wal.verify import verify

__all__ = ["all_stopped"]

GRACE_MS = 10_000
CHANNELS = {
    "latest": ChannelSettings(keep=ChannelSettings.KEEP_LATEST_PER_KEY, tombstone_grace_ms=GRACE_MS),
    "plain": ChannelSettings(),
    "gone": ChannelSettings(),
}


class Message(NamedTuple):
    key: str | None
    content: str
    at_us: int
    ttl_ms: int
    is_in_transaction: bool


messages = st.lists(
    st.tuples(st.sampled_from([None, "a", "b", "c", "d"]), st.sampled_from(["", "x", "y" * 200])),
    min_size=1,
    max_size=8,
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from(sorted(CHANNELS)), messages, st.sampled_from([0, 0, 1_000])),
        st.tuples(st.just("transact"), st.sampled_from(["latest", "plain"]), messages),
        st.tuples(st.just("purge"), st.integers(0, 30)),
        st.tuples(st.just("pass"), st.integers(0, 2 * GRACE_MS)),
        st.just(("rotate",)),
    ),
    min_size=10,
    max_size=40,
)


class Model:
    """What was published, and what of it a compaction leaves."""

    def __init__(self) -> None:
        self.published: dict[str, list[Message]] = {channel: [] for channel in CHANNELS}
        self.start = 0  # of channel "plain"

    def left(self, channel: str, now_us: int, passed: int) -> set[int]:
        known = self.published[channel]
        first = self.start if channel == "plain" else 0
        alive = {offset for offset, each in enumerate(known) if offset >= first and not self._expired(each, now_us)}
        if channel != "latest":
            return alive
        last = {each.key: offset for offset, each in enumerate(known) if each.key is not None}
        kept = set()
        for offset in alive:
            each = known[offset]
            if each.key is None or offset >= passed or each.is_in_transaction or last[each.key] == offset:
                kept.add(offset)
        return kept

    def _expired(self, each: Message, now_us: int) -> bool:
        return each.ttl_ms > 0 and now_us >= each.at_us + each.ttl_ms * 1_000


def play(broker: FileBroker, model: Model, script: list[Any]) -> None:
    for channel, how in CHANNELS.items():
        broker.create(channel, how)
    for step in script:
        broker.clock.pass_ms(1)
        if step[0] in ("publish", "transact"):
            channel, rows, ttl_ms = step[1], step[2], step[3] if step[0] == "publish" else 0
            batch = Batch(
                messages=[BatchMessage(key=key and key.encode(), content=text.encode()) for key, text in rows]
            )
            publish = Publish(channel, batch.SerializeToString(), len(rows), ttl_ms=ttl_ms)
            broker.ask(publish if step[0] == "publish" else Transact([publish]))
            made = [Message(*row, broker.clock.us, ttl_ms, step[0] == "transact") for row in rows]
            model.published[channel] += made
        elif step[0] == "purge":
            end = len(model.published["plain"])
            if 0 < step[1] <= end:
                broker.ask(PurgeChannel("plain", before_offset=step[1]))
                model.start = max(model.start, step[1])
        elif step[0] == "pass":
            broker.clock.pass_ms(step[1])
        else:
            broker.loop.call_soon(broker.broker.rotate)
            broker.settle()


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(script=steps, passed=st.none() | st.floats(0, 1))
def test_what_a_compaction_proposes_is_installed_and_leaves_what_the_model_leaves(
    tmp_path_factory: Any, script: list[Any], passed: float | None
) -> None:
    directory: Path = tmp_path_factory.mktemp("agree") / "log"
    clock, model = HandClock(), Model()
    broker = FileBroker(directory, clock)
    try:
        play(broker, model, script)
        end = len(model.published["latest"])
        position = end if passed is None else int(end * passed)
        if passed is not None:
            broker.ask(CreateGroup("latest", "g", start=Start("offset", position)))
        broker.ask(DeleteChannel("gone"))
        broker.settle_history()
        offers = propose(directory, clock.us)
        event(f"{min(len(offers), 3)} proposals")
        gone = sum(broker.install(offer.id).dropped_messages for offer in offers)
        event("something went" if gone else "nothing went")
        broker = broker.again()
        for channel in ("latest", "plain"):
            found, left = set(everything(broker, channel)), model.left(channel, clock.us, position)
            missing, known = left - found, model.published[channel]
            for offset in missing:  # a tombstone whose time has come, the last of its key, with nothing before it
                each = known[offset]
                assert (each.content, channel) == ("", "latest")
                assert clock.us >= each.at_us + GRACE_MS * 1_000
                assert offset < position
                assert not [at for at in found if at < offset and known[at].key == each.key]
            assert found <= left | set(range(position, end) if channel == "latest" else ())
        assert verify(str(directory)).is_intact
    finally:
        broker.stop()
