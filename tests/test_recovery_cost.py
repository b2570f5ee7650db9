"""What a start costs does not grow with what is kept: a replay begins at the last snapshot."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from filebroker import LIMITS, OPTIONS, FileBroker
from handbroker import all_stopped
from process import DEADLINE, Process
from torture import sized

from mq.client.wire import WireTransport
from mq.pb import mq_pb2 as pb

__all__ = ["all_stopped"]


@pytest.mark.shows("T8", "records that a start replays after ever more was published")
def test_a_start_replays_no_more_however_much_is_kept(tmp_path: Path, figures: dict[str, Any]) -> None:
    replayed: list[int] = []
    broker = FileBroker(tmp_path)
    broker.create("c")
    for _ in range(4):
        for number in range(sized(150, 1_500)):
            broker.put("c", *[f"{number}" * 20] * 5)
        broker.stop()
        broker = FileBroker(tmp_path, broker.clock)
        replayed.append(broker.recovered.records)
    kept = broker.recovered.messages
    figures |= {"messages kept": kept, "records replayed at most": max(replayed)}
    assert kept == 4 * sized(150, 1_500) * 5
    # Between two runs of snapshots, and what came while the second was written.
    smallest_record = 5 * 20
    assert max(replayed) < 2 * (LIMITS.snapshot_bytes + OPTIONS.segment_bytes) // smallest_record
    broker.stop()


@pytest.mark.shows("T8", "SIGKILL of the real broker, and how long until the first message after it")
def test_the_first_message_after_a_kill_comes_whatever_is_stored(tmp_path: Path, figures: dict[str, Any]) -> None:
    batches = sized(40, 4_000)
    broker = Process(tmp_path)
    transport = WireTransport("127.0.0.1", broker.wait_for_port("wire"))
    transport.call("mq.MQService/CreateChannel", pb.CreateChannelRequest(channel="c").SerializeToString())
    batch = pb.Batch(messages=[pb.BatchMessage(content=bytes(100))] * 500)
    request = pb.PublishBatchRequest(channel="c", partition=0, batch=batch).SerializeToString()
    for _ in range(batches):
        transport.call("mq.MQService/PublishBatch", request, DEADLINE)
    transport.close()
    broker.signal(signal.SIGKILL)
    broker.wait()
    began = time.monotonic()
    broker = Process(tmp_path)
    transport = WireTransport("127.0.0.1", broker.wait_for_port("wire"))
    pull = pb.PullRequest(channel="c", group="g", member="m")
    answer = pb.PullResponse.FromString(transport.call("mq.MQService/Pull", pull.SerializeToString(), DEADLINE))
    seconds = time.monotonic() - began
    transport.close()
    broker.signal(signal.SIGTERM)
    assert broker.wait() == 0
    recovered = re.search(r"recovered .* in ([\d.]+) s", broker.output)
    assert recovered
    assert answer.batches[0].base_offset == 0
    figures |= {"messages stored": batches * 500, "recovery": f"{recovered[1]} s"}
    figures["first message after"] = f"{seconds:.2f} s, Python's own start included"
