"""The same jobs on a cluster: a standalone master and two workers, submitted by spark-submit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from process import wait_until
from smalllog import make_log

from wal.spark.java import find_java
from wal.spark.read.listing import visible

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SECONDS = 150
MESSAGES = 400

JOB = """
import sys
import time

from mq.cli import main
from wal.spark.session import session

data, out = sys.argv[1:]
spark = session("cluster")
print("master", spark.sparkContext.master)
executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus
deadline = time.monotonic() + 60
while executors().size() < 3 and time.monotonic() < deadline:
    time.sleep(0.1)
print("executors", executors().size() - 1)
print("messages", spark.read.format("mqwal").load(data).count())
for job in ("audit", "export"):
    try:
        main(["spark", job, "--data-dir", data, "--out", f"{out}/{job}"], standalone_mode=False)
    except SystemExit as end:
        assert not end.code, job
"""


class Daemon:
    """A process of Spark's own, and what it logs."""

    def __init__(self, environ: dict[str, str], log: Path, *command: str) -> None:
        self._log = log
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                command, env=environ, stdout=stream, stderr=stream, start_new_session=True, cwd=log.parent
            )

    def wait_for(self, pattern: str) -> str:
        wait_until(lambda: self._found(pattern) is not None or self.process.poll() is not None, SECONDS)
        found = self._found(pattern)
        assert found, self._log.read_text()
        return found[1]

    def _found(self, pattern: str) -> re.Match[str] | None:
        return re.search(pattern, self._log.read_text())

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def environ() -> dict[str, str]:
    import pyspark

    return {
        **os.environ,
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_NICE": "19",  # as `mq spark` sets it; here it is for nobody
        "PYTHONPATH": os.pathsep.join(sys.path),
    }


@contextmanager
def cluster(environ: dict[str, str], scratch: Path) -> Iterator[str]:
    """A master and two workers of one core each; yields the master's address."""
    spark_class = f"{environ['SPARK_HOME']}/bin/spark-class"
    here = ("--host", "127.0.0.1", "--webui-port", "0")
    daemons = [
        Daemon(
            environ, scratch / "master.log", spark_class, "org.apache.spark.deploy.master.Master", *here, "--port", "0"
        )
    ]
    try:
        address = daemons[0].wait_for(r"Starting Spark master at (spark://\S+)")
        worker = (spark_class, "org.apache.spark.deploy.worker.Worker", *here, "--cores", "1", "--memory", "1g")
        for number in range(2):
            work = ("--work-dir", str(scratch / f"work{number}"), address)
            daemons.append(Daemon(environ, scratch / f"worker{number}.log", *worker, *work))
        for daemon in daemons[1:]:
            daemon.wait_for(r"(Successfully registered with master)")
        yield address
    finally:
        for daemon in reversed(daemons):
            daemon.kill()


def test_jobs_run_unchanged_on_a_cluster(environ: dict[str, str], tmp_path: Path) -> None:
    data = make_log(tmp_path / "data", count=MESSAGES)
    job = tmp_path / "job.py"
    job.write_text(JOB)
    with cluster(environ, tmp_path) as address:
        submit = [f"{environ['SPARK_HOME']}/bin/spark-submit", "--master", address]
        for setting in (
            "driver.host=127.0.0.1",
            "driver.bindAddress=127.0.0.1",
            "executor.memory=512m",
            "ui.enabled=false",
        ):
            submit += ["--conf", f"spark.{setting}"]
        answer = subprocess.run(
            [*submit, str(job), str(data), str(tmp_path)],
            env=environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    assert answer.returncode == 0, answer.stderr[-5000:]
    assert f"master {address}" in answer.stdout
    assert "executors 2" in answer.stdout
    assert f"messages {MESSAGES}" in answer.stdout
    exported = sum(pq.read_metadata(path).num_rows for path in (tmp_path / "export").rglob("*.parquet"))
    assert exported == MESSAGES
    assert (tmp_path / "audit" / "report.html").exists()
    assert len(visible(str(data))) > 2
