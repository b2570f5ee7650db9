"""The container: the Dockerfile by rules, the compose file by its schema. `test_install` runs what they say."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from dockerfile import command, environment, health_command, last, lineage, problems, stages_of

from mq.cli import main
from mq.config import ELSEWHERE, Config

IMAGES = ["broker", "spark", "examples"]
# Variables that belong to Python, Spark or the system, not to mq.
FOREIGN = {"PATH", "HOME", "PYTHONUNBUFFERED", "SPARK_LOCAL_DIRS"}
EXAMPLE = {"BROKER_HOST", "BROKER_PORT", "CHANNEL", "COUNT", "BATCH_SIZE", "PULL_INTERVAL"}


@pytest.fixture(scope="module")
def text(root: Path) -> str:
    return (root / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def compose(root: Path) -> dict[str, Any]:
    made: dict[str, Any] = yaml.safe_load((root / "docker-compose.yaml").read_text())
    return made


def settings() -> set[str]:
    return {*Config().variables(), "BROKER_PORT", "ENVIRONMENT"}


# ------------------------------------------------------------ the Dockerfile


def test_the_dockerfile_keeps_the_rules(text: str) -> None:
    assert problems(text, IMAGES) == []


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("python:3.13-slim-bookworm", "python", "no fixed tag"),
        ("python:3.13-slim-bookworm", "python:latest", "no fixed tag"),
        ("COPY mq mq", "ADD mq mq", "ADD"),
        ("COPY mq mq", "COPY . .", "takes all there is"),
        ("WORKDIR /src", "WORKDIR src", "is relative"),
        (" PIP_NO_CACHE_DIR=1", "", "pip leaves its cache"),
        ("RUN pip wheel", "RUN apt-get install -y gcc && pip wheel", "lists of apt"),
        ("RUN groupadd", "RUN apt-get install gcc && rm -rf /var/lib/apt/lists && groupadd", "apt-get runs where"),
        ("RUN groupadd", "RUN pip install --no-cache-dir x && groupadd", "pip runs where"),
        ("USER 10001:10001", "USER root", "runs as root"),
        ("USER 10001:10001\n", "", "runs as root"),
        ("USER 10001:10001", "USER 0:0", "runs as 0:0"),
        ('CMD ["serve"]', "CMD mq serve", "no exec form"),
        ('ENTRYPOINT ["mq"]', "ENTRYPOINT mq", "no exec form"),
    ],
)
def test_the_rules_catch_a_planted_mistake(text: str, before: str, after: str, reason: str) -> None:
    assert before in text
    found = problems(text.replace(before, after), IMAGES)
    assert found
    assert all(reason in each for each in found), found


def test_the_broker_is_the_default_image_and_has_all_it_needs(text: str) -> None:
    stages = stages_of(text)
    assert list(stages)[-1] == "broker"
    assert command(stages, "broker") == ["mq", "serve"]
    assert health_command(stages, "broker")[:4] == ["mq", "server", "check", "--local"]
    config = Config.from_env(environment(stages, "broker"))
    assert config.notes == ()
    assert last(stages, "broker", "EXPOSE").split() == [str(config.port), str(config.port + 1)]
    assert config.host == "0.0.0.0"
    assert f'"{config.wal_dir}"' in last(stages, "broker", "VOLUME")
    made = " ".join(text for stage in lineage(stages, "broker") for text in stage.all("RUN"))
    assert f"--mode=0700 {config.wal_dir}" in made


def test_the_command_of_the_first_broker_still_works(text: str) -> None:
    image = environment(stages_of(text), "broker")
    config = Config.from_env({**image, "BROKER_PORT": "50051", "BROKER_HOST": "localhost"})
    assert (config.host, config.port) == ("0.0.0.0", 50051)
    assert [note.split()[0] for note in config.notes] == ["BROKER_HOST"]


def test_every_variable_of_the_images_is_a_setting(text: str) -> None:
    stages = stages_of(text)
    for name in IMAGES:
        assert environment(stages, name).keys() <= settings() | FOREIGN


def test_all_images_have_one_user_so_that_spark_reads_what_the_broker_wrote(text: str) -> None:
    stages = stages_of(text)
    assert len({last(stages, name, "USER") for name in IMAGES}) == 1
    uid, gid = last(stages, "broker", "USER").split(":")
    assert f"--uid {uid} --gid {gid}" in text


def test_every_package_is_copied_and_nothing_that_is_not_there(root: Path, text: str) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())
    packages = {name for name in project["tool"]["setuptools"]["packages"]["find"]["include"] if "." not in name}
    stages = stages_of(text)
    copied = {source for step in stages["builder"].all("COPY") for source in step.split()[:-1]}
    assert packages <= copied
    from_context = [step for each in stages.values() for step in each.all("COPY") if not step.startswith("--from")]
    sources = {source for step in from_context for source in step.split()[:-1]}
    assert [source for source in sorted(sources) if not (root / source).exists()] == []
    # the builder is sent these and nothing else
    sent = {line[1:] for line in (root / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert all(any(source == each or source.startswith(each + "/") for each in sent) for source in sources)
    assert all(any(source == each or source.startswith(each + "/") for source in sources) for each in sent)


# ------------------------------------------------------------ the compose file


def valid_by(root: Path, schema: str, path: str) -> None:
    program = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, path]
    answer = subprocess.run(program, cwd=root, capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_the_compose_file_is_valid(root: Path) -> None:
    valid_by(root, "vendor.compose-spec", "docker-compose.yaml")


def test_the_services_fit_the_images(compose: dict[str, Any], text: str) -> None:
    stages = stages_of(text)
    assert compose["services"].keys() == {"broker", "publisher", "subscriber", "spark", "audit"}
    for name, service in compose["services"].items():
        assert service["build"]["target"] in IMAGES, name
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["tmpfs"] == (["/tmp:exec"] if service["build"]["target"] == "spark" else ["/tmp"]), name
        variables = settings() | ELSEWHERE | (EXAMPLE if service["build"]["target"] == "examples" else set())
        assert set(service.get("environment", ())) <= variables, name
        for volume in service.get("volumes", ()):
            source, place = volume.split(":")[:2]
            assert source in compose["volumes"]
            assert f'"{place}"' in last(stages, service["build"]["target"], "VOLUME")
    broker = compose["services"]["broker"]
    assert [port.rsplit(":", 1)[1] for port in broker["ports"]] == last(stages, "broker", "EXPOSE").split()
    assert "data:/var/lib/mq:ro" in compose["services"]["audit"]["volumes"]


def test_no_setting_of_a_developer_moves_the_broker_in_its_container(compose: dict[str, Any], text: str) -> None:
    image = environment(stages_of(text), "broker")
    here = compose["services"]["broker"]["environment"]
    for name in ("SERVER_HOST", "WAL_DIR_PATH"):
        assert here[name] == image[name]
    config = Config.from_env({"SERVER_PORT": "7000", "WAL_DIR_PATH": "./data", **here})
    assert (config.port, config.wire_port, config.wal_dir) == (50051, 50052, "/var/lib/mq")


def test_a_stop_has_time_to_be_a_clean_one(compose: dict[str, Any]) -> None:
    broker = compose["services"]["broker"]
    config = Config.from_env(broker["environment"])
    assert config.notes == ()
    assert int(broker["stop_grace_period"].removesuffix("s")) * 1_000 > 2 * config.graceful_shutdown_ms


def test_the_example_reads_the_variables_that_its_services_get(root: Path, compose: dict[str, Any]) -> None:
    source = "".join(path.read_text() for path in (root / "examples" / "python").glob("*.py"))
    for name in ("publisher", "subscriber"):
        service = compose["services"][name]
        assert (root / "examples" / "python" / service["command"][0]).exists()
        assert [each for each in service["environment"] if not re.search(rf"\b{each}\b", source)] == []


def test_the_spark_services_give_options_that_exist(compose: dict[str, Any]) -> None:
    services = compose["services"]
    context = click.Context(main)
    spark = main.get_command(context, "spark")
    assert isinstance(spark, click.Group)
    for job, *arguments in [services["audit"]["command"], services["spark"]["command"]]:
        found = spark.get_command(context, job)
        if found is None:
            pytest.skip(f"NOT TESTED: there is no `mq spark {job}` here")
        options = {name for option in found.params for name in option.opts}
        assert [each for each in arguments if each.startswith("--") and each not in options] == []


# ------------------------------------------------------------ make, and the page


@pytest.mark.parametrize("goal", ["build", "up", "down", "logs", "ps"])
def test_make_wraps_compose(root: Path, goal: str) -> None:
    program = ["make", "--no-print-directory", "--silent", goal, "COMPOSE=echo compose"]
    answer = subprocess.run(program, cwd=root, capture_output=True, text=True, check=True)
    assert re.fullmatch(rf"compose (--profile spark )?{goal}\b.*\n", answer.stdout)


def test_the_page_tells_what_the_files_say(root: Path, compose: dict[str, Any], text: str) -> None:
    page = (root / "docs" / "deploy.md").read_text()
    stages = stages_of(text)
    assert f"| user | {last(stages, 'broker', 'USER')};" in page
    assert "| ports | {} gRPC, {} the wire;".format(*last(stages, "broker", "EXPOSE").split()) in page
    assert f"| health | `{' '.join(health_command(stages, 'broker')[:4])}`" in page
    profiles = {profile for service in compose["services"].values() for profile in service.get("profiles", ())}
    assert set(re.findall(r"--profile (\w+)", page)) == profiles
    goals = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", page)) <= goals
