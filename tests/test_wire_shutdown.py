"""SIGTERM and SIGKILL while a thousand requests are in flight on the wire: each is answered, or fails as unknown."""

import asyncio
import signal
from pathlib import Path

import pytest
from process import Process

from mq.client.wire import WireTransport
from mq.client.wire_async import AsyncWireTransport
from mq.errors import MqError, Unavailable
from mq.pb import mq_pb2 as pb

PUBLISH, CREATE, PULL = "mq.MQService/Publish", "mq.MQService/CreateChannel", "mq.MQService/Pull"
IN_FLIGHT = 1_000
DEADLINE = 30.0


async def load(port: int, process: Process, number: int) -> dict[bytes, int | MqError]:
    """Keeps a thousand publishes in flight, stops the broker among them, and tells what came of each."""
    outcomes: dict[bytes, int | MqError] = {}
    transport = await AsyncWireTransport.connect("127.0.0.1", port)
    await transport.call(CREATE, pb.CreateChannelRequest(channel="orders").SerializeToString())
    room = asyncio.Semaphore(IN_FLIGHT)

    def note(content: bytes, answer: asyncio.Future[bytes]) -> None:
        room.release()
        error = answer.exception()
        if error is None:
            outcomes[content] = pb.PublishResponse.FromString(answer.result()).offset
        else:
            assert isinstance(error, MqError), error
            outcomes[content] = error

    sent = 0
    while transport.is_usable:
        await room.acquire()
        content = b"message %d" % sent
        try:
            answer = transport.submit(PUBLISH, pb.PublishRequest(channel="orders", content=content).SerializeToString())
        except Unavailable:
            room.release()
            break
        answer.add_done_callback(lambda answer, content=content: note(content, answer))  # type: ignore[misc]
        sent += 1
        if sent == 3 * IN_FLIGHT:
            process.signal(number)
    for _ in range(IN_FLIGHT):
        await room.acquire()
    assert len(outcomes) == sent
    await transport.close()
    return outcomes


def stored(directory: Path) -> dict[bytes, int]:
    """What a new start of the broker serves: contents with their offsets."""
    process = Process(directory)
    try:
        transport = WireTransport("127.0.0.1", process.wait_for_port("wire"))
        found: dict[bytes, int] = {}
        offset = 0
        while True:
            pull = pb.PullRequest(channel="orders", positions=[pb.Position(partition=0, offset=offset)])
            answer = pb.PullResponse.FromString(transport.call(PULL, pull.SerializeToString(), DEADLINE))
            if not answer.batches:
                break
            for pulled in answer.batches:
                for index, message in enumerate(pulled.batch.messages):
                    assert message.content not in found
                    found[message.content] = pulled.base_offset + index
            offset = answer.next_offset
        transport.close()
    finally:
        process.signal(signal.SIGKILL)
        process.wait()
    assert sorted(found.values()) == list(range(len(found)))
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_none_of_a_thousand_in_flight_is_lost_silently(tmp_path: Path, number: signal.Signals) -> None:
    process = Process(tmp_path)
    try:
        port = process.wait_for_port("wire")
        outcomes = asyncio.run(asyncio.wait_for(load(port, process, number), DEADLINE))
        code = process.wait()
    finally:
        process.process.kill()
    assert code == (0 if number == signal.SIGTERM else -number)
    answered = {content: offset for content, offset in outcomes.items() if isinstance(offset, int)}
    failed = [error for error in outcomes.values() if isinstance(error, MqError)]
    assert len(answered) >= 2 * IN_FLIGHT
    assert {type(error) for error in failed} <= {Unavailable}
    found = stored(tmp_path)
    assert answered.items() <= found.items()
    assert found.keys() <= outcomes.keys()
