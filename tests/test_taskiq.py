"""taskiq on mq: a real worker process, tasks that fail, wait, and outlive a worker that is killed."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from process import wait_until
from taskiq import BrokerMessage, TaskiqMessage

import mq
from mq.contrib.taskiq import MqBroker

pytestmark = pytest.mark.slow

TASKS = """
import os, time
from pathlib import Path
from taskiq import Context, SimpleRetryMiddleware, TaskiqDepends
from mq.contrib.taskiq import MqBroker

here = Path(__file__).parent
broker = MqBroker(ack_wait_ms=1_000)
broker.add_middlewares(SimpleRetryMiddleware(default_retry_count=3))

def tell(line):
    with (here / "lines").open("a") as lines:
        lines.write(line + "\\n")

@broker.task("add")
async def add(a: int, b: int) -> None:
    tell(f"sum {a + b}")

@broker.task("shaky", retry_on_error=True)
async def shaky() -> None:
    first = not (here / "tried").exists()
    (here / "tried").touch()
    tell("shaky fails" if first else "shaky works")
    if first:
        raise RuntimeError("the first time fails")

@broker.task("patient")
def patient() -> None:
    tell("patient begins")
    while not (here / "go").exists():
        time.sleep(0.01)
    tell("patient ends")
"""


class Worker:
    """`taskiq worker` with one child, which does the work."""

    def __init__(self, folder: Path, address: str) -> None:
        (folder / "tasks.py").write_text(TASKS)
        self.lines_path = folder / "lines"
        self.lines_path.touch()
        self.folder = folder
        command = [
            sys.executable,
            "-m",
            "taskiq",
            "worker",
            "--workers",
            "1",
            "--shutdown-timeout",
            "20",
            "tasks:broker",
        ]
        environment = {**os.environ, "MQ_SERVER": address}
        with (folder / "output").open("w") as output:
            self.process = subprocess.Popen(command, cwd=folder, env=environment, stderr=output)

    def wait_for(self, *lines: str) -> None:
        wait_until(lambda: set(lines) <= set(self.lines()) or self.process.poll() is not None)
        assert set(lines) <= set(self.lines()), (self.folder / "output").read_text()

    def lines(self) -> list[str]:
        return self.lines_path.read_text().splitlines()

    def kill(self) -> None:
        """Kill what works; the parent starts another."""
        (child,) = [
            each
            for each in psutil.Process(self.process.pid).children()
            if "resource_tracker" not in str(each.cmdline())
        ]
        child.send_signal(signal.SIGKILL)


@pytest.fixture
def worker(tmp_path: Path, mq_broker: str) -> Iterator[Worker]:
    worker = Worker(tmp_path, mq_broker)
    yield worker
    (tmp_path / "go").touch()
    worker.process.terminate()
    worker.process.wait(30)


def send(address: str, *names: str, **labels: object) -> None:
    """Send tasks as another program would, which does not have their code."""

    async def kick() -> None:
        broker = MqBroker(address, ack_wait_ms=1_000)
        await broker.startup()
        try:
            for name in names:
                task, *arguments = name.split()
                message = TaskiqMessage(task_id=task, task_name=task, labels=labels, args=arguments, kwargs={})
                await broker.kick(broker.formatter.dumps(message))
        finally:
            await broker.shutdown()

    asyncio.run(kick())


def test_a_worker_runs_tasks_retries_them_and_leaves_nothing(
    worker: Worker, mq_broker: str, mq_client: mq.Client
) -> None:
    send(mq_broker, "add 1 2", "add 3 4")
    send(mq_broker, "shaky", retry_on_error=True)
    worker.wait_for("sum 3", "sum 7", "shaky fails", "shaky works")
    worker.process.terminate()
    assert worker.process.wait(30) == 0
    assert mq_client.describe_group("taskiq", "taskiq").lag == 0
    assert mq_client.describe_channel("taskiq").settings.drop_acked, "what is done is not kept"


def test_the_task_of_a_killed_worker_comes_again(worker: Worker, mq_broker: str, mq_client: mq.Client) -> None:
    send(mq_broker, "patient")
    worker.wait_for("patient begins")
    # heard of long after the begin: an ack that was given too early would have been sent by now
    begin_us = mq_client.describe_group("taskiq", "taskiq").members[0].seen_us
    wait_until(lambda: mq_client.describe_group("taskiq", "taskiq").members[0].seen_us > begin_us + 1_000_000)
    assert mq_client.describe_group("taskiq", "taskiq").pending == 1, "it is not acked while it runs"
    worker.kill()
    (worker.folder / "go").touch()
    worker.wait_for("patient ends")
    assert worker.lines() == ["patient begins", "patient begins", "patient ends"]


def test_a_worker_holds_no_more_than_it_took(mq_broker: str, mq_client: mq.Client) -> None:
    send(mq_broker, *(f"add 1 {number}" for number in range(10)))

    async def take(count: int) -> tuple[int, int]:
        broker = MqBroker(mq_broker, ack_wait_ms=1_000)
        await broker.startup()
        tasks = broker.listen()
        for _ in range(count):
            await (await anext(tasks)).ack()
        await anext(tasks)
        held = mq_client.describe_group("taskiq", "taskiq").pending
        await tasks.aclose()
        await broker.shutdown()
        return held, mq_client.describe_group("taskiq", "taskiq").lag

    held, left = asyncio.run(take(3))
    assert held <= 4, "three that are acked, perhaps not sent yet, and the one in hand"
    assert left == 7, "what was not acked is there for the next"


def test_a_delayed_task_is_held_back(mq_broker: str, mq_client: mq.Client) -> None:
    send(mq_broker, "add 1 2", delay=3600)
    assert mq_client.describe_channel("taskiq").scheduled == 1


def test_a_delay_that_is_no_number_and_a_broker_not_started_are_told(mq_broker: str) -> None:
    with pytest.raises(mq.InvalidArgument, match="no number of seconds"):
        send(mq_broker, "add 1 2", delay="soon")
    message = BrokerMessage(task_id="1", task_name="add", message=b"{}", labels={})
    with pytest.raises(mq.Unavailable, match="was not started"):
        asyncio.run(MqBroker(mq_broker).kick(message))
