"""Every Python sample of the texts runs, against a real broker."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mq

SAMPLE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
TEXTS = ["README.md", "docs/client.md", "docs/delivery.md", "docs/integrations.md"]


@pytest.mark.parametrize("name", TEXTS)
def test_the_samples_of_a_text_run_in_order(name: str, root: Path, mq_broker: str) -> None:
    samples = SAMPLE.findall((root / name).read_text())
    assert samples
    program = "\n".join(samples).replace("mq://localhost", str(mq_broker))
    environment = {"PATH": os.environ["PATH"], "MQ_SERVER": str(mq_broker)}
    command = [sys.executable, "-W", "error", "-c", program]
    answer = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert answer.returncode == 0, answer.stderr
    assert "Warning" not in answer.stderr


def test_the_page_names_the_whole_public_surface(root: Path) -> None:
    page = (root / "docs" / "client.md").read_text()
    methods = {name for name in vars(mq.Client) if not name.startswith("_")} - {"close"}
    assert [name for name in sorted(methods) if f"client.{name}(" not in page] == []


def test_the_fixtures_are_registered_by_the_package(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(
        "def test_mine(mq_broker, mq_client):\n"
        "    mq_client.create_channel('c')\n"
        "    assert mq_client.publish('c', b'x').offset == 0\n"
        "    assert mq_broker.startswith('mq://')\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "mq.pytest_plugin", str(tmp_path)]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert "1 passed" in answer.stdout, answer.stdout
