"""Brings the other brokers into .peers, from Debian, Go and Maven packages; says what it can't bring."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from .native import TOOLS
from .peers import PEERS

HOME = Path(__file__).parents[2] / ".peers"
KAFKA = [
    ("org.apache.kafka", "kafka_2.13", "4.1.0"),
    ("org.apache.kafka", "kafka-tools", "4.1.0"),
    ("org.slf4j", "slf4j-nop", "1.7.36"),
]
# the newest of its load tool that Maven has
PERF_TEST = [("com.rabbitmq", "perf-test", "2.16.0"), ("ch.qos.logback", "logback-classic", "1.2.11")]


def debian(program: str, package: str = "") -> None:
    if shutil.which(program):
        return
    if not shutil.which("apt-get") or os.geteuid():
        raise RuntimeError(f"install {package or program} by your package manager")
    # a package's own service must not take the ports and the memory of this machine
    policy = Path("/usr/sbin/policy-rc.d")
    is_mine = not policy.exists()
    if is_mine:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        subprocess.run(["apt-get", "install", "-y", "-q", package or program], check=True)
    finally:
        if is_mine:
            policy.unlink()


def nats() -> None:
    environment = {**os.environ, "GOBIN": str(HOME / "bin")}
    subprocess.run(["go", "install", "github.com/nats-io/nats-server/v2@latest"], check=True, env=environment)


def maven(directory: Path, *packages: tuple[str, str, str]) -> None:
    """Copies them there, with all that they need."""
    directory.mkdir(parents=True, exist_ok=True)
    wanted = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        for group, name, version in packages
    )
    pom = directory / "pom.xml"
    pom.write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion><groupId>mq</groupId>'
        f"<artifactId>peers</artifactId><version>1</version><dependencies>{wanted}</dependencies></project>"
    )
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={directory}"]
    subprocess.run(["mvn", "-q", "-f", str(pom), *goal], check=True)


def _tool(name: str) -> str | None:
    return TOOLS[name].name if TOOLS[name].is_there() else None


def main() -> int:
    HOME.mkdir(exist_ok=True)
    for name, what, bring in (
        ("Redis", PEERS["Redis"].server.version, lambda: debian("redis-server")),
        ("Redis", lambda: _tool("Redis"), lambda: debian("redis-benchmark", package="redis-tools")),
        ("RabbitMQ", PEERS["RabbitMQ"].server.version, lambda: debian("rabbitmq-server")),
        ("RabbitMQ", lambda: _tool("RabbitMQ"), lambda: maven(HOME / "rabbitmq", *PERF_TEST)),
        ("NATS", PEERS["NATS"].server.version, nats),
        ("Kafka", lambda: PEERS["Kafka"].server.version() and _tool("Kafka"), lambda: maven(HOME / "kafka", *KAFKA)),
    ):
        if what() is None:
            try:
                bring()
            except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
                print(f"{name}: {error}", file=sys.stderr)
        print(f"{name}: {what() or 'NOT THERE'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
