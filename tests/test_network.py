"""Bad networks between the clients and the real broker: a publish that timed out and was sent again is stored once."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from scene import Scene, scene
from tcpproxy import Proxy
from torture import sized

CALL_SECONDS = 0.5
FAULTS = {
    "latency": lambda proxy, rng: setattr(proxy, "delay", rng.choice((0.005, 0.05, 0.2))),
    "blackhole": lambda proxy, rng: proxy.swallow(),
    "requests lost": lambda proxy, rng: proxy.swallow_requests(),
    "answers lost": lambda proxy, rng: proxy.swallow_answers(),
    "reset": lambda proxy, rng: proxy.reset(),
    "tiny slices": lambda proxy, rng: setattr(proxy, "slice_bytes", rng.randint(1, 7)),
    "held": lambda proxy, rng: proxy.hold(),
}


def harm(it: Scene, proxy: Proxy, kind: str) -> None:
    """For longer than clients wait for an answer, or only for a moment."""
    it.load.wait_for(answered=it.rng.randint(1, 10))
    FAULTS[kind](proxy, it.rng)
    it.load.is_over.wait(it.rng.choice((0.05, 0.2, 2 * CALL_SECONDS)))
    proxy.heal()


@pytest.mark.shows("T9", "latency, blackhole, one way lost, resets, tiny slices, late bytes; and kills meanwhile")
def test_whatever_the_network_does_each_idempotent_publish_is_stored_once(
    tmp_path: Path, figures: dict[str, Any]
) -> None:
    rounds = sized(2, 150)
    with scene(tmp_path, figures, call_seconds=CALL_SECONDS) as it:
        it.serve()
        with Proxy(it.load.port) as proxy:
            it.load.direct_port, it.load.port = it.load.port, proxy.port
            it.load.prepare()
            it.load.start()
            for number in range(rounds):
                for kind in it.rng.sample(list(FAULTS), len(FAULTS)):
                    harm(it, proxy, kind)
                if number % 5 == 1:
                    it.kill()
                    it.serve()
                    it.load.direct_port = proxy.target = it.load.port
                    it.load.port = proxy.port
                    proxy.reset()
            figures |= {"faults": rounds * len(FAULTS), "connections": proxy.connections}
            it.finish()
    assert figures["publishes retried"] >= rounds


def test_a_client_that_forgets_its_sequence_is_caught(tmp_path: Path) -> None:
    """The planted bug: what timed out is sent again under a new number, and is there twice."""
    with scene(tmp_path, {}, call_seconds=CALL_SECONDS) as it:
        it.load.forgets_sequences = True
        it.serve()
        with Proxy(it.load.port) as proxy:
            it.load.direct_port, it.load.port = it.load.port, proxy.port
            it.load.prepare()
            it.load.start()
            it.load.wait_for(answered=10)
            proxy.swallow_answers()
            it.load.is_over.wait(CALL_SECONDS / 2)
            proxy.heal()
            it.load.wait_for(answered=10)
            it.load.drain()
            it.load.stop()
            assert [line for line in it.load.check() if "is stored 2 times" in line]
            assert it.broker is not None
            it.broker.signal(signal.SIGTERM)
            assert it.broker.wait() == 0
