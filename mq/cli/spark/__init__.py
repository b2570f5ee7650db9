"""`mq spark`: the jobs over a log. A subcommand's module is imported when it runs, and pyspark only by its work."""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

import click

from mq.cli import LazyGroup
from mq.cli.failure import CONFLICT, DENIED, FAILED, NOT_FOUND, UNAVAILABLE, say

# name -> ("module:attribute" of the click command, one-line help)
JOBS: dict[str, tuple[str, str]] = {
    "audit": ("mq.cli.spark.audit:audit", "check every byte of a log and report on it"),
    "compact": ("mq.cli.spark.compact:compact", "drop what a log no longer needs"),
    "export": ("mq.cli.spark.export:export", "write messages to Parquet"),
    "replay": ("mq.cli.spark.replay:replay", "publish a selection of a log again"),
    "maintain": ("mq.cli.spark.maintain:maintain", "audit, export and compact in one go"),
}


class SparkGroup(LazyGroup):
    """Errors of Spark and of Java are one line too, whatever they wrapped."""

    table = JOBS

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return click.Group.invoke(self, ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            from wal.spark.failure import reason

            line = reason(error)
            if line is None or (ctx.params.get("verbose") and not isinstance(error, OSError)):
                raise
            say(line)
            sys.exit(_code(error))


def _code(error: Exception) -> int:
    from wal.errors import InstallRefused, LogLocked

    if isinstance(error, FileNotFoundError | NotADirectoryError) or type(error).__name__ == "NotALog":
        return NOT_FOUND
    if isinstance(error, LogLocked | InstallRefused) or type(error).__name__ == "ExportRefused":
        return CONFLICT
    if isinstance(error, PermissionError):
        return DENIED
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UNAVAILABLE
    return FAILED


@click.group(cls=SparkGroup, short_help="audit, compact, export and replay a log with Spark")
def spark() -> None:
    """Work on logs with Spark: on this machine, or on a cluster by --master or spark-submit.

    Needs `pip install 'mq-broker[spark]'` and a Java from 17 on. A broker may run meanwhile: on this machine Spark
    gives way to it (SPARK_NICE, 19 where it is not set).
    """
    os.environ.setdefault("SPARK_NICE", "19")
