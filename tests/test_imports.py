"""The layers of the project, enforced on the source text: nothing is imported to check it.

A new module needs a line in LAYERS. That is the moment to ask what it may know.
"""

import ast
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

# Bottom first. A module may import its own layer and those below, without cycles; a name stands for what is under it
# too. `wal` comes before `mq` and never imports it.
LAYERS = [
    # the log
    {"wal.pb", "wal.errors", "wal.varint"},
    {"wal.frame", "wal.joined", "wal.record", "wal.straight", "wal.disk", "wal.reserve", "wal.clock"},
    {"wal.segment", "wal.index", "wal.manifest", "wal.watermark", "wal.space", "wal.options", "wal.proposal"},
    {"wal.chain", "wal.tail", "wal.reader", "wal.rewrite", "wal.live"},
    {"wal.continuity", "wal.check"},
    {"wal.verify", "wal.install"},
    {"wal.clean", "wal.backup"},
    {"wal.log", "wal.restore"},
    {"wal.memory", "wal.writer"},
    {"wal.recovery", "wal.apart", "wal.upkeep", "wal.drive"},
    {"wal.filelog"},
    {"wal.repair"},
    {"wal.spark.java", "wal.spark.progress"},
    {"wal.spark.read"},
    {"wal.spark.audit", "wal.spark.compact", "wal.spark.export"},
    {"wal.spark"},
    {"wal"},
    # the broker
    {"mq.pb", "mq.errors", "mq.units", "mq.wire"},
    {"mq.config", "mq.variable"},
    {"mq.command", "mq.reply", "mq.limits"},
    {"mq.ranges", "mq.retry", "mq.cursor", "mq.lease", "mq.assignment", "mq.ownership", "mq.producer", "mq.batch"},
    {"mq.ladder", "mq.timetable"},
    {"mq.buffer", "mq.channel", "mq.group"},
    {"mq.snapshot", "mq.draft", "mq.store"},
    {"mq.state"},
    {"mq.decision", "mq.vigil", "mq.company"},
    {"mq.publication", "mq.delivery", "mq.deadletter", "mq.settlement", "mq.transaction", "mq.description", "mq.admin"},
    {"mq.retention", "mq.horizon", "mq.rules", "mq.judge", "mq.redrive"},
    {"mq.deciders"},
    {"mq.commitqueue", "mq.longpoll", "mq.snapshotter", "mq.readback"},
    {"mq.owner"},
    {"mq.pulls", "mq.cleaner", "mq.scrubber", "mq.installer"},
    {"mq.agenda"},
    {"mq.broker"},
    {"mq.service"},
    {"mq.doors"},
    {"mq.server", "mq.logs"},
    # its users
    {"mq.client"},
    {"mq"},
    {"mq.contrib"},
    {"mq.testing", "mq.pytest_plugin"},
    {"mq.cli"},
]

# Spark reads and rewrites segments, and never owns a log.
OF_SPARK = {
    "wal.errors", "wal.varint", "wal.frame", "wal.joined", "wal.record", "wal.pb", "wal.clock", "wal.disk",
    "wal.segment", "wal.index", "wal.manifest", "wal.watermark", "wal.chain", "wal.continuity", "wal.check",
    "wal.tail", "wal.rewrite", "wal.verify", "wal.install", "wal.clean", "wal.proposal",
}  # fmt: skip

# All that these may import of the project beside themselves, where the layer alone would allow more.
ONLY = {
    "wal.spark.read": OF_SPARK,
    "wal.spark.audit": OF_SPARK | {"wal.spark.read"},
    "wal.spark.compact": OF_SPARK | {"wal.spark.read"},
    "wal.spark.export": OF_SPARK | {"wal.spark.read", "wal.spark.progress"},
    "wal.spark": OF_SPARK | {"wal.spark.read", "wal.spark.java"},
    "mq.doors": {"mq.errors", "mq.config", "mq.limits", "mq.pb", "mq.service", "mq.wire"},
    "mq.client": {"mq.errors", "mq.pb", "mq.wire"},  # usable without the broker
    "mq": {"mq.errors", "mq.client"},
    "mq.contrib": {"mq.errors", "mq.client"},
}

# The broker's state and what decides about it.
CORE = {
    "mq.ranges", "mq.retry", "mq.cursor", "mq.lease", "mq.assignment", "mq.ownership", "mq.producer", "mq.batch",
    "mq.ladder", "mq.timetable", "mq.retention", "mq.horizon", "mq.rules", "mq.judge", "mq.redrive",
    "mq.buffer", "mq.channel", "mq.group", "mq.snapshot", "mq.draft", "mq.store", "mq.state", "mq.decision",
    "mq.publication", "mq.delivery", "mq.deadletter", "mq.settlement", "mq.transaction", "mq.description", "mq.admin",
    "mq.deciders",
}  # fmt: skip

# What of `wal` a module of mq may import. Nothing above the log knows about files: the broker sees its interface, and
# only those that put a broker together or work on a directory see more.
OF_WAL = {
    "mq.server": {"*"},
    "mq.testing": {"*"},
    "mq.cli": {"*"},
    "mq.broker": {"wal.clock", "wal.errors", "wal.log", "wal.record", "wal.pb"},
    "mq.service": {"wal.errors", "wal.varint", "wal.log", "wal.record", "wal.pb", "wal.proposal"},
    "mq.command": {"wal.record", "wal.pb"},
    "mq.reply": {"wal.record", "wal.pb"},
    "mq.limits": {"wal.record", "wal.pb"},
    "mq.commitqueue": {"wal.errors", "wal.log", "wal.joined", "wal.record", "wal.pb"},
    "mq.owner": {"wal.clock", "wal.log", "wal.record"},
    "mq.cleaner": {"wal.errors", "wal.log"},
    "mq.installer": {"wal.errors", "wal.log"},
    "mq.scrubber": {"wal.errors", "wal.log"},
    "mq.snapshotter": {"wal.record", "wal.pb"},
    "mq.readback": {"wal.errors", "wal.log", "wal.record", "wal.pb"},
    **{module: {"wal.record", "wal.pb"} for module in CORE},
    "mq.state": {"wal.joined", "wal.record", "wal.pb"},
    "mq.rules": {"wal.record", "wal.pb", "wal.proposal"},
    "mq.judge": {"wal.record", "wal.pb", "wal.errors"},
}

# Commands and bytes go in, values come out: no files, no clock, no loop, no luck, no logger.
PURE = {
    "wal.errors", "wal.varint", "wal.frame", "wal.joined", "wal.record",
    "mq.errors", "mq.units", "mq.wire", "mq.command", "mq.reply", "mq.limits", *CORE,
}  # fmt: skip
IMPURE = {
    "asyncio", "concurrent", "io", "logging", "loguru", "multiprocessing", "os", "random", "secrets",
    "selectors", "shutil", "signal", "socket", "subprocess", "tempfile", "threading", "time", "uvloop",
}  # fmt: skip

# Heavy or optional packages, and the modules that may import them.
CONFINED = {
    "pyspark": {"wal.spark*"},
    "pyarrow": {"wal.spark*"},
    "numpy": {"wal.spark*"},
    "taskiq": {"mq.contrib.taskiq"},
    "kombu": {"mq.contrib.kombu"},
    "celery": {"mq.contrib.kombu"},
    "grpc*": {"mq.doors.grpc*", "mq.server*", "mq.client.grpc*", "mq.pb.*_pb2_grpc"},
}


class Import(NamedTuple):
    """One imported name: `from module import name`, or `import module` where name is empty."""

    line: int
    module: str
    name: str


def imports_of(module: str, source: str, is_package: bool) -> Iterator[Import]:
    """All imports of a source text, also those inside functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node.lineno, alias.name, "")
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                kept = parts[: len(parts) - node.level + is_package]
                base = ".".join([*kept, base] if base else kept)
            for alias in node.names:
                yield Import(node.lineno, base, alias.name)


def unit_of(module: str) -> str | None:
    """The longest name in LAYERS that is the module or holds it."""
    units = [unit for layer in LAYERS for unit in layer if module == unit or module.startswith(unit + ".")]
    # `wal` and `mq` stand for their own __init__ only: a new module under them must be placed.
    units = [unit for unit in units if unit not in ("wal", "mq") or unit == module]
    return max(units, key=len, default=None)


def height_of(unit: str) -> int:
    return next(height for height, layer in enumerate(LAYERS) if unit in layer)


def violations(sources: Mapping[str, str], packages: frozenset[str] = frozenset()) -> list[str]:
    """What the modules (dotted name -> source) do against the rules above, one line each."""
    known = {*sources, *(unit for layer in LAYERS for unit in layer)}
    problems = []
    graph: dict[str, set[str]] = {}
    for module, source in sources.items():
        if unit_of(module) is None:
            problems.append(f"{module} has no place in LAYERS")
            continue
        for line, base, name in imports_of(module, source, module in packages):
            target = f"{base}.{name}" if f"{base}.{name}" in known else base
            if target == "mq" and name == "__version__":
                continue
            if problem := judge(module, target):
                problems.append(f"{module}:{line} imports {target}: {problem}")
            if target in sources and target not in ("mq", "wal") and module not in ("mq", "wal"):
                graph.setdefault(module, set()).add(target)
    # a package and its modules may know each other
    graph = {module: {t for t in targets if unit_of(t) != unit_of(module)} for module, targets in graph.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        problems.append(f"cycle: {' -> '.join(error.args[1])}")
    return problems


def judge(module: str, target: str) -> str | None:
    """Why the module may not import the target; None where it may."""
    unit = unit_of(module)
    assert unit is not None
    top = target.split(".")[0]
    if unit in PURE and top in IMPURE:
        return "a pure module does no I/O and knows no clock, loop, luck or logger"
    for pattern, allowed in CONFINED.items():
        if fnmatchcase(top, pattern) and not any(fnmatchcase(module, name) for name in allowed):
            return f"only {', '.join(sorted(allowed))} may"
    if top not in ("mq", "wal"):
        return None
    if module.startswith("wal") and top == "mq":
        return "wal never imports mq"
    goal = unit_of(target)
    if goal is None:
        return "it has no place in LAYERS"
    if goal == unit:
        return None
    if height_of(goal) > height_of(unit):
        return "it is in a layer above"
    if unit in ONLY and goal not in ONLY[unit]:
        return f"only {', '.join(sorted(ONLY[unit]))} may be imported here"
    if unit.startswith("mq") and top == "wal" and not OF_WAL.get(unit, set()) & {"*", goal}:
        return f"of wal, only {', '.join(sorted(OF_WAL.get(unit, {'nothing'})))} may be imported here"
    if unit.startswith("wal.") and goal == "wal":
        return "inside the package, import the module that has the name"
    return None


def project_sources(root: Path) -> tuple[dict[str, str], frozenset[str]]:
    sources, packages = {}, set()
    for path in sorted([*root.glob("mq/**/*.py"), *root.glob("wal/**/*.py")]):
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        if module.endswith(".__init__"):
            module = module.removesuffix(".__init__")
            packages.add(module)
        sources[module] = path.read_text()
    return sources, frozenset(packages)


def test_the_project_keeps_its_layers(root: Path) -> None:
    sources, packages = project_sources(root)
    assert {"mq", "wal", "wal.record", "mq.cli"} <= sources.keys()
    assert violations(sources, packages) == []


@pytest.mark.parametrize(
    ("module", "line", "reason"),
    [
        ("wal.log", "import mq.errors", "wal never imports mq"),
        ("wal.spark.audit.job", "from mq import errors", "wal never imports mq"),
        ("wal.frame", "import os.path", "a pure module"),
        ("wal.record", "def f():\n    from time import monotonic", "a pure module"),
        ("mq.state", "from loguru import logger", "a pure module"),
        ("mq.state", "import asyncio as aio", "a pure module"),
        ("wal.index", "from pyspark.sql import SparkSession", "only wal.spark*"),
        ("mq.cli.spark", "import pyarrow as pa", "only wal.spark*"),
        ("mq.service", "import grpc.aio", "may"),
        ("mq.doors.wire", "from grpc_health.v1 import health", "may"),
        ("mq.client.wire", "import grpc", "may"),
        ("mq.client.consumer", "import kombu", "only mq.contrib.kombu may"),
        ("mq.contrib.taskiq", "from mq.server import Server", "may be imported here"),
        ("mq.client.consumer", "from mq.broker import Broker", "may be imported here"),
        ("mq.client.consumer", "from wal import record", "may be imported here"),
        ("mq.broker", "from wal.segment import Segment", "may be imported here"),
        ("mq.config", "from wal.record import Published", "of wal, only nothing may be imported here"),
        ("mq.broker", "from mq import service", "a layer above"),
        ("mq.broker", "from . import service", "a layer above"),
        ("mq.doors.grpc.calls", "from ...server import serve", "a layer above"),
        ("wal.frame", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import wal.log", "a layer above"),
        ("wal.segment", "from wal import Log", "a layer above"),
        ("wal.spark.read.scan", "from wal.filelog import FileLog", "may be imported here"),
        ("mq.config", "from mq import Client", "a layer above"),
        ("mq.helpers", "", "no place in LAYERS"),
        ("mq.cli", "import mq.helpers", "no place in LAYERS"),
    ],
)
def test_the_check_catches_a_planted_violation(module: str, line: str, reason: str) -> None:
    problems = violations({module: line})
    assert len(problems) == 1
    assert problems[0].startswith(module)
    assert reason in problems[0]


def test_the_check_catches_a_planted_cycle() -> None:
    assert violations({"mq.channel": "import mq.group", "mq.group": "from mq import channel"})[0].startswith("cycle")


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("mq.doors.grpc", "import grpc\nfrom mq.service import Service"),
        ("mq.client.grpc_transport", "import grpc\nfrom mq.pb import mq_pb2"),
        ("mq.pb.mq_pb2_grpc", "import grpc"),
        ("mq.server", "import os, asyncio\nfrom wal import open_log\nfrom mq import __version__"),
        ("mq.state", "import bisect\nfrom wal.record import Published\nfrom mq.errors import MqError"),
        (
            "wal.spark.audit.job",
            "import pyspark.sql, pyarrow\nfrom ..read import scan\nfrom wal.frame import Frame",
        ),
        ("mq.client", "from .consumer import Consumer"),
    ],
)
def test_the_check_lets_good_imports_pass(module: str, line: str) -> None:
    assert violations({module: line}, frozenset({"mq.client"})) == []
