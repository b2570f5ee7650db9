"""The client and processes: a broker that is killed, a fork, a program that ends without closing anything."""

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from process import DEADLINE, Process, wait_until
from tcpproxy import Proxy

import mq


class Restarted:
    """A broker behind a proxy, so that clients see one address over its lives."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.process = Process(directory)
        self.proxy = Proxy(self.process.wait_for_port("wire"))

    def kill(self) -> None:
        self.process.signal(signal.SIGKILL)
        self.process.wait()
        self.process = Process(self._directory)
        self.proxy.target = self.process.wait_for_port("wire")

    def close(self) -> None:
        self.proxy.close()
        self.process.signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def restarted(tmp_path: Path) -> Iterator[Restarted]:
    made = Restarted(tmp_path)
    yield made
    made.close()


def test_a_broker_killed_in_the_middle_loses_nothing_and_doubles_no_publish(restarted: Restarted) -> None:
    with mq.Client(restarted.proxy.address) as client:
        client.create_channel("c")
        client.create_group("c", "g", ack_wait_ms=10_000, backoff_ms=[1])
        total, kills = 20_000, 3
        acked: list[bytes] = []
        is_over = threading.Event()

        def consume() -> None:
            seen: set[bytes] = set()
            with client.consumer("c", "g") as consumer:
                for message in consumer:
                    seen.add(message.content)
                    acked.append(message.content)
                    message.ack()
                    if len(seen) == total + 100 * kills:
                        break
            is_over.set()

        thread = threading.Thread(target=consume)
        thread.start()
        single: list[tuple[bytes, int]] = []
        with client.producer("c", batch_size=50) as producer:
            for number in range(total):
                producer.send(b"%d" % number)
                if number % 5_000 == 2_500 and number < 5_000 * kills:
                    killing = threading.Thread(target=restarted.kill)
                    killing.start()
                    for turn in range(100):
                        value = b"single-%d-%d" % (number, turn)
                        single.append((value, client.publish("c", value).offset))
                    killing.join(DEADLINE)
        assert is_over.wait(DEADLINE)
        thread.join(DEADLINE)
        stored = [message.content for message in client.read("c", follow=False)]
        assert len(stored) == len(set(stored)) == total + 100 * kills
        assert [value for value in stored if not value.startswith(b"single")] == [b"%d" % n for n in range(total)]
        assert all(stored[offset] == value for value, offset in single)
        assert set(acked) == set(stored)
        wait_until(lambda: client.describe_group("c", "g").lag == 0)


@pytest.mark.parametrize("fork", ["os.fork()", "ctypes.PyDLL(None).fork()"], ids=["Python's", "a server's in C"])
def test_a_client_made_before_a_fork_says_so_in_the_child_and_works_on_in_the_parent(mq_broker: str, fork: str) -> None:
    code = f"""
import ctypes, os, mq
client = mq.Client({str(mq_broker)!r})
client.create_channel("c", exist_ok=True)
producer, consumer = client.producer("c"), client.consumer("c", "g")
child = {fork}
if not child:
    for act in (lambda: client.publish("c", b"x"), lambda: producer.send(b"x"), lambda: consumer.fetch(1)):
        try:
            act()
            os._exit(1)
        except mq.Unavailable as error:
            assert "fork" in str(error)
    producer.close(); consumer.close(); client.close()
    with mq.Client({str(mq_broker)!r}) as fresh:
        fresh.publish("c", b"from the child")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
producer.send(b"from the parent").result()
assert consumer.fetch(10, timeout=10).values()[0] == b"from the child"
client.close()
"""
    answer = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=DEADLINE
    )
    assert (answer.returncode, answer.stderr) == (0, "")


def test_a_program_that_closes_nothing_is_warned_and_ends_and_loses_nothing(
    mq_broker: str, mq_client: mq.Client
) -> None:
    code = f"""
import mq
client = mq.Client({str(mq_broker)!r})
client.create_channel("c", exist_ok=True)
client.publish("c", b"a")
producer = client.producer("c", linger_ms=60_000)
consumer = client.consumer("c", "g")
for message in consumer:
    message.ack()
    break
producer.send(b"lingers")
"""
    command = [sys.executable, "-W", "default", "-c", code]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
    assert answer.returncode == 0
    assert re.search(r"ResourceWarning: <mq.Producer of c> was not closed", answer.stderr)
    assert re.search(r"ResourceWarning: <mq.Consumer .* of c/g> was not closed", answer.stderr)
    assert [message.content for message in mq_client.read("c", follow=False)] == [b"a", b"lingers"]
    assert mq_client.describe_group("c", "g").lag == 1


def test_a_client_that_is_forgotten_warns(mq_broker: str) -> None:
    client = mq.Client(mq_broker)
    with pytest.warns(ResourceWarning, match="not closed"):
        del client


def test_an_older_broker_without_a_method_is_named(mq_client: mq.Client) -> None:
    from mq import wire

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(wire.METHODS, "mq.AdminService/ServerInfo", 4_000)
        with pytest.raises(mq.MqError, match=r"does not know mq\.AdminService/ServerInfo"):
            mq_client.server_info()
    assert mq_client.server_info().version == mq.__version__
