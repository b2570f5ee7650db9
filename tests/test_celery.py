"""Celery on mq: real worker processes, with retries, late acks, remote control, a clean end and a kill -9."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from celery import Celery
from process import wait_until

import mq
import mq.contrib.kombu
from mq.contrib.kombu import GROUP, channel_of

pytestmark = pytest.mark.slow

QUEUE = channel_of("celery")
TASKS = """
import os, time
from pathlib import Path
from celery import Celery
import mq.contrib.kombu

here = Path(__file__).parent
app = Celery("tasks", broker=os.environ["MQ_SERVER"])
app.conf.update(
    broker_transport_options={"visibility_timeout": 1.5},
    worker_prefetch_multiplier=1,
    task_ignore_result=True,
)

def tell(line):
    with (here / "lines").open("a") as lines:
        lines.write(line + "\\n")

@app.task(name="add")
def add(a, b):
    tell(f"sum {a + b}")

@app.task(name="shaky", bind=True, max_retries=3)
def shaky(self):
    tell(f"try {self.request.retries}")
    if self.request.retries < 2:
        raise self.retry(countdown=0)

@app.task(name="patient", acks_late=True)
def patient():
    tell("patient begins")
    while not (here / "go").exists():
        time.sleep(0.01)
    tell("patient ends")
"""


class Worker:
    """`celery worker` with two children, in a process group of its own."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        self.output = folder / f"output-{time.monotonic_ns()}"
        options = ["--concurrency", "2", "--loglevel", "INFO", "--task-events"]
        command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", *options]
        environment = {**os.environ, "MQ_SERVER": address}
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
            )

    def wait_for(self, *lines: str) -> None:
        wait_until(lambda: set(lines) <= set(self.lines()) or self.process.poll() is not None)
        assert set(lines) <= set(self.lines()), self.output.read_text()

    def lines(self) -> list[str]:
        path = self.folder / "lines"
        return path.read_text().splitlines() if path.exists() else []

    def kill(self) -> None:
        """The worker and its children at once, as when the machine is gone."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)


@pytest.fixture
def start(tmp_path: Path, mq_broker: str) -> Iterator[Callable[[], Worker]]:
    (tmp_path / "tasks.py").write_text(TASKS)
    workers: list[Worker] = []

    def one() -> Worker:
        workers.append(Worker(tmp_path, mq_broker))
        return workers[-1]

    yield one
    for worker in workers:
        if worker.process.poll() is None:
            worker.kill()


@pytest.fixture
def app(mq_broker: str) -> Iterator[Celery]:
    """A program that sends tasks and does not have their code."""
    with Celery("sender", broker=mq_broker, broker_transport_options={"visibility_timeout": 1.5}) as made:
        yield made


def test_tasks_run_and_are_retried_and_the_worker_answers_and_ends_cleanly(
    start: Callable[[], Worker], app: Celery, mq_client: mq.Client
) -> None:
    for number in range(20):
        app.send_task("add", [number, number])
    app.send_task("shaky")
    worker = start()
    worker.wait_for(*(f"sum {2 * number}" for number in range(20)), "try 0", "try 1", "try 2")
    (answer,) = app.control.ping(timeout=10, limit=1)
    assert list(answer.values()) == [{"ok": "pong"}]

    app.send_task("patient")
    worker.wait_for("patient begins")
    worker.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "Warm shutdown" in worker.output.read_text())
    (worker.folder / "go").touch()
    assert worker.process.wait(30) == 0, worker.output.read_text()
    assert worker.lines()[-1] == "patient ends"
    assert sorted(worker.lines()) == sorted(set(worker.lines())), "nothing ran twice"
    assert mq_client.describe_group(QUEUE, GROUP).lag == 0, "the late ack was sent before the end"
    assert not [each.channel for each in mq_client.list_channels() if "reply" in each.channel], "answers leave nothing"


def test_a_monitor_hears_what_the_worker_does(start: Callable[[], Worker], app: Celery) -> None:
    heard: list[str] = []
    start()
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": lambda event: heard.append(event["type"])})
        for _ in receiver.itercapture(timeout=30, wakeup=False):
            if "task-succeeded" in heard:
                break
            if heard and not any(each.startswith("task-") for each in heard):  # it listens, and the worker lives
                app.send_task("add", [1, 2])
    assert {"task-received", "task-started", "task-succeeded"} <= set(heard)


def test_the_task_of_a_killed_worker_comes_again_and_an_acked_one_does_not(
    start: Callable[[], Worker], app: Celery, mq_client: mq.Client
) -> None:
    first = start()
    app.send_task("add", [1, 2])
    app.send_task("patient")
    first.wait_for("sum 3", "patient begins")
    wait_until(lambda: mq_client.describe_group(QUEUE, GROUP).lag == 1)
    first.kill()
    second = start()
    (second.folder / "go").touch()
    second.wait_for("patient ends")
    wait_until(lambda: mq_client.describe_group(QUEUE, GROUP).lag == 0)
    assert sorted(second.lines()) == ["patient begins", "patient begins", "patient ends", "sum 3"]
