"""The Python samples of docs/spark.md, run in the shared session on the log of a real broker."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow
import pyarrow.dataset
import pytest
from process import wait_until

import mq
from mq.testing import broker
from wal.spark.read.listing import visible

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SAMPLE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PLACES = ("data", "checkpoint", "orders", "lake")


@pytest.mark.spark
def test_the_samples_run_in_order(
    root: Path, tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    from wal.spark.export.job import export

    log = tmp_path / "data"
    with broker(log) as address, mq.Client(address) as client:
        client.create_channel("orders")
        for number in range(3):
            client.publish("orders", f"order {number}")
        client.rotate_segment()
        wait_until(lambda: any(each.is_sealed for each in visible(str(log))))
    export(spark, str(log), str(tmp_path / "lake"))
    program = "\n".join(SAMPLE.findall((root / "docs" / "spark.md").read_text()))
    for place in PLACES:
        assert f'"./{place}"' in program
        program = program.replace(f'"./{place}"', repr(os.fspath(tmp_path / place)))
    known = {"spark": spark, "pyarrow": pyarrow}
    if find_spec("pandas"):
        known["pandas"] = __import__("pandas")
    else:  # mq does not need it: the others read the same files
        program = re.sub(r"^pandas\..*$", "", program, flags=re.MULTILINE)
    exec(program, known)
    query = known["query"]
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert "order 2" in capsys.readouterr().out
    assert sorted(bytes(row.value) for row in spark.read.parquet(str(tmp_path / "orders")).collect()) == [
        b"order 0",
        b"order 1",
        b"order 2",
    ]
