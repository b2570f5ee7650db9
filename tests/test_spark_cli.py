"""`mq spark` as a command: what it imports, and how it fails. No JVM here."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from mq.cli.spark import SparkGroup
from wal.errors import LogLocked
from wal.spark.java import JavaNotFound
from wal.spark.read.listing import NotALog


def test_the_help_of_the_spark_commands_starts_no_spark() -> None:
    code = (
        "import sys, mq.cli\n"
        "try: mq.cli.main(['spark', '--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in ('pyspark', 'pyarrow', 'numpy', 'wal') if name in sys.modules], file=sys.stderr)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.startswith("Usage:")
    assert answer.stderr == "[]\n"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ModuleNotFoundError("no", name="pyspark"), 1, "pip install 'mq-broker[spark]'"),
        (JavaNotFound("Spark needs Java 17 or newer"), 1, "Spark needs Java 17"),
        (NotALog("./data holds no log"), 3, "./data holds no log"),
        (FileNotFoundError(2, "No such file or directory", "./data"), 3, "./data: No such file or directory"),
        (PermissionError(13, "Permission denied", "./data"), 5, "./data: Permission denied"),
        (OSError(28, "No space left on device", "/out"), 6, "/out: No space left on device"),
        (LogLocked("./data is in use by another process"), 4, "./data is in use"),
    ],
)
def test_what_goes_wrong_is_one_line_and_an_exit_code(error: Exception, code: int, line: str) -> None:
    @click.command
    def job() -> None:
        raise error

    group = SparkGroup("spark")
    group.table = {"job": ("", "")}
    group.get_command = lambda ctx, name: job  # type: ignore[method-assign]
    answer = CliRunner().invoke(group, ["job"])
    assert answer.exit_code == code
    assert line in answer.stderr
    assert answer.stderr.count("\n") == 1
    assert answer.stdout == ""
