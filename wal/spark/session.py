"""A Spark session for a job, on this machine or on whatever cluster the job was submitted to.

Where `spark-submit` (or a configuration) says which master to use, it wins; else a master that was asked for by name or
by SPARK_MASTER; else all cores of this machine. Only a session of this machine gets the settings that fit one: no UI,
loopback, few shuffle partitions.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from wal.spark.java import find_java
from wal.spark.read.source import MqWal

__all__ = ["SparkNotStarted", "SparkSession", "session"]

_LOOPBACK = "127.0.0.1"
_TAIL_BYTES = 2_000


class SparkNotStarted(Exception):
    """The JVM ended before it was ready; the text holds its last words."""


def session(name: str, *, master: str | None = None, verbose: bool = False) -> SparkSession:
    """The session of this process; made where there is none.

    Raises JavaNotFound, SparkNotStarted.
    """
    # Spark's Python side writes every refused query to stderr, beside raising it
    for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(logger).setLevel(logging.NOTSET if verbose else logging.CRITICAL)
    if SparkContext._active_spark_context is not None:
        return SparkSession.builder.getOrCreate()
    conf = SparkConf(loadDefaults=False).setAppName(name)
    conf.set("spark.sql.session.timeZone", "UTC")
    if SparkContext._gateway is None:
        if "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit started us, and a JVM
            _prepare(conf, master or os.environ.get("SPARK_MASTER") or None)
        _start_jvm(conf, verbose)
    spark = SparkSession.builder.config(conf=_over_defaults(conf)).getOrCreate()
    spark.sparkContext.setLogLevel("WARN" if verbose else "OFF")
    # found without that where the package is installed, but not in an editable install or shipped by --py-files
    spark.dataSource.register(MqWal)
    return spark


def _prepare(conf: SparkConf, master: str | None) -> None:
    """What has to be known before there is a JVM."""
    os.environ["JAVA_HOME"] = str(find_java().home)
    if master is not None:
        conf.setMaster(master)
    if master is None or master.startswith("local"):
        os.environ["PYSPARK_PYTHON"] = (
            sys.executable
        )  # workers of another one die with nothing but "exited unexpectedly"
        os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
        for key in ("spark.driver.host", "spark.driver.bindAddress"):
            conf.set(key, _LOOPBACK)
        conf.set("spark.ui.enabled", "false")
        conf.set("spark.sql.shuffle.partitions", str(max(4, os.cpu_count() or 1)))
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _start_jvm(conf: SparkConf, verbose: bool) -> None:
    """Spark's own noise goes to a file without a name; if it does not start, the end of that says why."""
    with tempfile.TemporaryFile() as noise:
        launch = partial(launch_gateway, conf, None if verbose else {"stderr": noise})
        try:
            gateway = _nicely(launch, int(os.environ.get("SPARK_NICE") or 0))
        except PySparkException as error:
            noise.seek(max(0, noise.tell() - _TAIL_BYTES))
            lines = noise.read().decode("utf-8", "replace").strip().splitlines()
            raise SparkNotStarted(f"Spark did not start: {lines[-1] if lines else error}") from error
    SparkContext._ensure_initialized(gateway=gateway)


def _nicely(launch: Callable[[], Any], nice: int) -> Any:
    """Have a process started that gives way to others, and its children with it, but not this process.

    A thread of Linux has a priority of its own, and what it starts inherits that.
    """
    if nice <= 0 or sys.platform != "linux":
        return launch()

    def lowered() -> Any:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), max(nice, os.getpriority(os.PRIO_PROCESS, 0)))
        return launch()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lowered).result()


def _over_defaults(conf: SparkConf) -> SparkConf:
    """What a JVM was started with (spark-submit, spark-defaults.conf), and ours where that says nothing."""
    given = SparkConf(_jvm=SparkContext._jvm)
    for key, value in conf.getAll():
        given.setIfMissing(key, value)
    return given
