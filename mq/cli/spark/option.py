"""Options that the Spark commands share."""

from __future__ import annotations

from collections.abc import Callable

import click

from mq.cli.option import F


def one_data_dir_option(command: F) -> F:
    """Which log: one directory or URI, as `data_dir`."""
    return click.option(
        "-d", "--data-dir", default="./data", envvar="WAL_DIR_PATH", metavar="PATH",
        help="directory or URI of the log  [WAL_DIR_PATH, ./data]",
    )(command)  # fmt: skip


def out_option(default: str, what: str) -> Callable[[F], F]:
    """Where the results go, as `out`."""
    return click.option("--out", default=default, show_default=True, metavar="PATH", help=what)


def session_options(command: F) -> F:
    """How Spark runs: `master` and `verbose`."""
    command = click.option(
        "--master", envvar="SPARK_MASTER", metavar="URL", help="the cluster, like spark://host:7077  [SPARK_MASTER]"
    )(command)
    return click.option("-v", "--verbose", is_flag=True, help="let Spark say what it has to say")(command)
