"""SIGKILL of the real broker under mixed load, again and again; then everything is read and the history checked."""

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from load import SETTINGS, Load
from process import Process
from torture import seed_of_run, sized

KILLS = int(os.environ.get("MQ_KILLS", sized(50, 1_000)))


@pytest.mark.shows("T1", "publish, idempotent publish, delayed publish, pull, ack, nack, shared and ordered groups")
def test_kills_under_load_lose_nothing_and_invent_nothing(tmp_path: Path, figures: dict[str, Any]) -> None:
    figures |= {"seed": seed_of_run(), "kills": KILLS}
    rng = random.Random(figures["seed"])
    load = Load(figures["seed"])
    process = serve(tmp_path, load)
    load.prepare()
    load.start()
    try:
        for _ in range(KILLS):
            load.wait_for(answered=rng.randrange(150), handled=rng.randrange(20))
            process.signal(signal.SIGKILL)
            process.wait()
            process = serve(tmp_path, load)
        load.drain()
    finally:
        load.stop()
    broken = load.check()
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    figures |= load.figures()
    assert not broken, f"seed {figures['seed']}: {broken[:10]}"
    assert figures["answered"] > KILLS
    assert figures["publishes retried"] > 0


def serve(directory: Path, load: Load) -> Process:
    process = Process(directory, **SETTINGS)
    load.port = process.wait_for_port("wire")
    return process
