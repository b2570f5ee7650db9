"""Units and manifests for running a broker: valid by their schemas, and true to the settings and the image."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from dockerfile import last, stages_of

from mq.config import Config
from mq.units import duration_ms

KUBERNETES = "1.31"  # the oldest that the manifests are for; the newest that the validator knows is tried too


@pytest.fixture(scope="module")
def manifests(root: Path) -> dict[str, dict[str, Any]]:
    """All objects, by kind and name."""
    found = {}
    for path in sorted((root / "deploy" / "kubernetes").glob("*.yaml")):
        for made in yaml.safe_load_all(path.read_text()):
            if path.name != "kustomization.yaml":
                found[f"{made['kind']}/{made['metadata']['name']}"] = made
    return found


@pytest.fixture(scope="module")
def pod(manifests: dict[str, dict[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = manifests["StatefulSet/mq"]["spec"]["template"]["spec"]
    return found


@pytest.fixture(scope="module")
def config(manifests: dict[str, dict[str, Any]], pod: dict[str, Any]) -> Config:
    """The settings that the pod's environment makes."""
    own = {each["name"]: each["value"] for each in pod["containers"][0]["env"]}
    return Config.from_env({**manifests["ConfigMap/mq"]["data"], **own})


# ------------------------------------------------------------ Kubernetes


@pytest.mark.parametrize("version", [KUBERNETES, kubernetes_validate.latest_version()])
def test_the_manifests_are_valid(manifests: dict[str, dict[str, Any]], version: str) -> None:
    kinds = {name.split("/")[0] for name in manifests}
    assert kinds >= {"StatefulSet", "Service", "PodDisruptionBudget", "ConfigMap"}
    for made in manifests.values():
        kubernetes_validate.validate(made, version, strict=True)


def test_the_validation_catches_a_planted_mistake(manifests: dict[str, dict[str, Any]]) -> None:
    planted = {**manifests["PodDisruptionBudget/mq"], "spec": {"maxUnavailabel": 0}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(planted, KUBERNETES, strict=True)


def test_the_kustomization_names_every_file(root: Path) -> None:
    folder = root / "deploy" / "kubernetes"
    named = set(yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"])
    assert named == {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}


def test_every_variable_of_the_pod_is_a_setting(manifests: dict[str, dict[str, Any]], config: Config) -> None:
    assert config.notes == ()
    assert manifests["ConfigMap/mq"]["data"].keys() <= config.variables().keys()


def test_the_service_puts_no_variables_into_the_pod(pod: dict[str, Any]) -> None:
    assert Config.from_env({"MQ_SERVICE_HOST": "10.0.0.1"}).notes, "they would be taken for settings"
    assert pod["enableServiceLinks"] is False


def test_the_pod_has_time_to_stop(pod: dict[str, Any], config: Config) -> None:
    assert pod["terminationGracePeriodSeconds"] * 1_000 > 2 * config.graceful_shutdown_ms


def test_the_pod_has_no_rights_and_the_user_of_the_image(root: Path, pod: dict[str, Any], config: Config) -> None:
    user = last(stages_of((root / "Dockerfile").read_text()), "broker", "USER")
    asked = pod["securityContext"]
    assert asked["runAsNonRoot"] is True
    assert f"{asked['runAsUser']}:{asked['runAsGroup']}" == user
    container = pod["containers"][0]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    (mount,) = container["volumeMounts"]
    assert config.wal_dir.startswith(mount["mountPath"] + "/")


def test_ports_and_probes_are_those_of_the_broker(
    manifests: dict[str, dict[str, Any]], pod: dict[str, Any], config: Config
) -> None:
    container = pod["containers"][0]
    doors = {"grpc": config.port, "wire": config.wire_port}
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == doors
    for name in ("Service/mq", "Service/mq-headless"):
        assert {port["targetPort"]: port["port"] for port in manifests[name]["spec"]["ports"]} == doors
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["grpc"]["port"] == config.port
    wants = manifests["StatefulSet/mq"]["spec"]
    assert manifests[f"Service/{wants['serviceName']}"]["spec"]["clusterIP"] == "None"
    memory = int(container["resources"]["limits"]["memory"].removesuffix("Gi")) << 30
    assert memory >= 2 * config.max_memory_bytes


def test_every_selector_finds_the_pod(manifests: dict[str, dict[str, Any]]) -> None:
    labels = manifests["StatefulSet/mq"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        manifests["Service/mq"]["spec"]["selector"],
        manifests["Service/mq-headless"]["spec"]["selector"],
        manifests["PodDisruptionBudget/mq"]["spec"]["selector"]["matchLabels"],
        manifests["NetworkPolicy/mq"]["spec"]["podSelector"]["matchLabels"],
        manifests["StatefulSet/mq"]["spec"]["selector"]["matchLabels"],
    ]
    assert all(selector.items() <= labels.items() for selector in selectors)


# ------------------------------------------------------------ systemd


def test_the_unit_is_valid_and_tight(root: Path, tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("NOT TESTED: there is no systemd-analyze here, so the unit was not verified")
    text = (root / "deploy" / "systemd" / "mq.service").read_text()
    unit = tmp_path / "mq.service"
    unit.write_text(text.replace("/opt/mq/bin/mq", str(Path(sys.executable).parent / "mq")))
    verified = subprocess.run([tool, "verify", unit], capture_output=True, text=True, timeout=60)
    assert (verified.returncode, verified.stderr) == (0, "")
    judged = subprocess.run(
        [tool, "security", "--offline=true", "--threshold=20", unit], capture_output=True, text=True, timeout=60
    )
    assert judged.returncode == 0, judged.stdout


def test_the_unit_fits_the_broker(root: Path) -> None:
    text = (root / "deploy" / "systemd" / "mq.service").read_text()
    given = dict(
        pair.split("=") for line in re.findall(r"^Environment=(.*)$", text, re.MULTILINE) for pair in line.split()
    )
    config = Config.from_env(given)
    assert config.notes == ()
    state = re.search(r"^StateDirectory=(\S+)$", text, re.MULTILINE)
    assert state
    assert config.wal_dir == f"/var/lib/{state[1]}"
    stop = re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert stop
    assert duration_ms(stop[1] + "s") > 2 * config.graceful_shutdown_ms


# ------------------------------------------------------------ the workflow


def test_the_workflow_is_valid(root: Path) -> None:
    for schema in ("vendor.github-workflows", "custom.github-workflows-require-timeout"):
        program = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, ".github/workflows/ci.yml"]
        answer = subprocess.run(program, cwd=root, capture_output=True, text=True, timeout=60)
        assert answer.returncode == 0, answer.stdout + answer.stderr


def test_the_workflow_tests_every_python_that_the_package_names(root: Path) -> None:
    workflow = yaml.safe_load((root / ".github" / "workflows" / "ci.yml").read_text())
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    named = [each.split(" :: ")[-1] for each in project["classifiers"] if re.search(r":: 3\.\d+$", each)]
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == named
    assert project["requires-python"] == f">={named[0]}"


def test_the_workflow_runs_goals_that_exist(root: Path) -> None:
    workflow = yaml.safe_load((root / ".github" / "workflows" / "ci.yml").read_text())
    lines = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    goals = {goal for line in lines for goal in re.findall(r"^make ([a-z-]+)", line)}
    assert goals == {"lint", "test", "dist", "build"}
    makefile = (root / "Makefile").read_text()
    assert [goal for goal in goals if not re.search(rf"^{goal}:", makefile, re.MULTILINE)] == []
