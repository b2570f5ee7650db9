"""The patterns in examples/patterns run against a real broker, and print what they promise."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from process import wait_until

import mq

LINES = 60
OUTPUT = {
    "work_queue": """\
try 1 of 'resize broken.png' failed: not an image
try 2 of 'resize broken.png' failed: not an image
try 3 of 'resize broken.png' failed: not an image
3 jobs are done
set aside: 'resize broken.png' after 3 tries
""",
    "ordered_events": "600 events of 20 accounts, each account in order\n",
    "delayed_jobs": """\
first: at once
second: by a delay
third: at a time
0 are still to come
""",
    "request_reply": "is anybody there? IS ANYBODY THERE?\nreally? REALLY?\n",
    "fan_out": """\
mail: ['ada', 'bob']
mail: ['cyd']
audit: ['ada', 'bob', 'cyd']
search: ['ada', 'bob', 'cyd']
welcome: []
welcome: ['dan']
""",
    "outbox": """\
an order was refused, and its message with it
ordered pizza
ordered salad
ordered wine
""",
}
UNORDERED = {"work_queue"}  # two threads print


def command(root: Path, name: str) -> list[str]:
    return [sys.executable, "-W", "error", str(root / "examples" / "patterns" / f"{name}.py")]


def environment(address: str, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "MQ_SERVER": address, **more}


@pytest.mark.parametrize("name", OUTPUT)
def test_a_pattern_prints_what_it_promises(name: str, root: Path, mq_broker: str) -> None:
    answer = subprocess.run(command(root, name), env=environment(mq_broker), capture_output=True, text=True, timeout=60)
    assert (answer.returncode, answer.stderr) == (0, "")
    shown, expected = answer.stdout.splitlines(), OUTPUT[name].splitlines()
    assert (sorted(shown), len(shown)) == (sorted(expected), len(expected)) if name in UNORDERED else shown == expected


def test_the_web_service_answers_when_the_order_is_stored(root: Path, mq_broker: str, mq_client: mq.Client) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    service = subprocess.Popen(command(root, "fastapi_service"), env=environment(mq_broker, PORT=str(port)))
    try:
        wait_until(lambda: is_up(f"{url}/health") or service.poll() is not None)
        for number, item in enumerate(["pizza", "salad"]):
            asked = urllib.request.Request(
                f"{url}/orders",
                data=json.dumps({"item": item}).encode(),
                headers={"content-type": "application/json"},
            )
            with urllib.request.urlopen(asked, timeout=30) as answer:
                assert (answer.status, json.load(answer)) == (201, {"order": number})
        stored = [message.json() for message in mq_client.read("web-orders", follow=False)]
        assert stored == [{"item": "pizza", "count": 1}, {"item": "salad", "count": 1}]
    finally:
        service.send_signal(signal.SIGTERM)
        service.wait(30)


def is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError):
        return False


def test_every_pattern_is_short_and_listed_and_tested(root: Path) -> None:
    folder = root / "examples" / "patterns"
    page = (folder / "README.md").read_text()
    names = {path.stem for path in folder.glob("*.py")}
    assert names == {*OUTPUT, "fastapi_service"}
    for name in names:
        assert f"[{name}.py]({name}.py)" in page
        assert len((folder / f"{name}.py").read_text().splitlines()) < LINES, name
