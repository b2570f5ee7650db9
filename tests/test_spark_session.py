"""The session that jobs get, how they are watched and stopped, and what is said when they fail."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from _thread import interrupt_main
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from process import wait_until

from wal.spark.failure import reason
from wal.spark.java import JavaNotFound
from wal.spark.read.listing import NotALog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_a_session_of_this_machine_listens_nowhere_else(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.driver.host") == conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert conf.get("spark.ui.enabled") == "false"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_the_session_of_a_process_is_one(spark: SparkSession) -> None:
    from wal.spark.session import session

    assert session("another", master="local[7]").sparkContext is spark.sparkContext
    assert spark.sparkContext.master == "local[2]"


def test_work_with_progress_gives_its_result_and_its_error(spark: SparkSession) -> None:
    from wal.spark.progress import run

    assert run(spark, "counting", lambda: spark.range(100, numPartitions=4).count(), is_shown=True) == 100
    with pytest.raises(ZeroDivisionError):
        run(spark, "dividing", lambda: 1 // 0)


def test_tasks_that_are_done_are_counted(spark: SparkSession) -> None:
    from wal.spark.progress import tasks

    spark.sparkContext.setJobGroup("counted", "counted")
    assert spark.sparkContext.parallelize(range(6), 3).count() == 6
    wait_until(lambda: tasks(spark.sparkContext, "counted") == (3, 3))


def test_an_interrupt_cancels_the_jobs(spark: SparkSession, tmp_path: Path) -> None:
    from wal.spark.progress import run

    marker = str(tmp_path / "started")

    def wait_for_ever(rows: object) -> list[int]:
        Path(marker).touch()
        threading.Event().wait()
        return []

    def interrupt() -> None:
        wait_until(Path(marker).exists)
        interrupt_main()

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    with pytest.raises(KeyboardInterrupt):
        run(spark, "waiting", lambda: spark.sparkContext.parallelize([1], 1).mapPartitions(wait_for_ever).count())
    watcher.join()
    wait_until(lambda: not spark.sparkContext.statusTracker().getActiveJobsIds())


def test_what_a_worker_raised_is_one_line(spark: SparkSession) -> None:
    def fail(rows: object) -> list[int]:
        raise NotALog("/data holds no log: there is no MANIFEST in it")

    with pytest.raises(Exception, match="holds no log") as caught:
        spark.sparkContext.parallelize([1], 1).mapPartitions(fail).count()
    assert reason(caught.value) == "/data holds no log: there is no MANIFEST in it"


def test_what_a_user_can_help_is_told_and_what_he_can_not_is_not() -> None:
    assert reason(ModuleNotFoundError("no", name="pyspark.sql")) == (
        "this needs Spark (pyspark.sql is not installed): pip install 'mq-broker[spark]'"
    )
    assert reason(JavaNotFound("no Java")) == "no Java"
    assert reason(OSError(28, "No space left on device", "/out")) == "/out: No space left on device"
    assert reason(OSError("AWS Error ACCESS_DENIED\nrequest id 5")) == "AWS Error ACCESS_DENIED"
    assert reason(OSError()) == "OSError"
    assert reason(pa.ArrowInvalid("Cannot parse URI: 's3:// '\nmore")) == "Cannot parse URI: 's3:// '"
    assert reason(BrokenPipeError(32, "Broken pipe")) is None
    assert reason(ModuleNotFoundError("no", name="mq.nosuch")) is None
    assert reason(ZeroDivisionError()) is None


@pytest.mark.skipif(sys.platform != "linux", reason="only there a thread has a priority of its own")
def test_spark_gives_way_and_its_driver_does_not() -> None:
    from wal.spark.session import _nicely

    before = os.getpriority(os.PRIO_PROCESS, 0)
    command = [sys.executable, "-c", "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"]
    lowered = _nicely(lambda: subprocess.check_output(command), 7)
    assert int(lowered) == max(7, before)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
