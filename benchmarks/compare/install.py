"""Brings the other brokers into .peers, from Debian, Go and Maven packages; says what it can't bring."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from .peers import PEERS

HOME = Path(__file__).parents[2] / ".peers"
KAFKA = "4.1.0"
POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>mq</groupId><artifactId>peers</artifactId><version>1</version><dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{KAFKA}</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
</dependencies></project>
"""


def debian(*packages: str) -> None:
    if all(shutil.which(each) for each in packages):
        return
    if not shutil.which("apt-get") or os.geteuid():
        raise RuntimeError(f"install {', '.join(packages)} by your package manager")
    # a package's own service must not take the ports and the memory of this machine
    policy = Path("/usr/sbin/policy-rc.d")
    is_mine = not policy.exists()
    if is_mine:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        subprocess.run(["apt-get", "install", "-y", "-q", *packages], check=True)
    finally:
        if is_mine:
            policy.unlink()


def nats() -> None:
    environment = {**os.environ, "GOBIN": str(HOME / "bin")}
    subprocess.run(["go", "install", "github.com/nats-io/nats-server/v2@latest"], check=True, env=environment)


def kafka() -> None:
    (HOME / "kafka").mkdir(parents=True, exist_ok=True)
    pom = HOME / "pom.xml"
    pom.write_text(POM)
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={HOME / 'kafka'}"]
    subprocess.run(["mvn", "-q", "-f", str(pom), *goal], check=True)


def main() -> int:
    HOME.mkdir(exist_ok=True)
    for name, bring in (
        ("Redis", lambda: debian("redis-server")),
        ("RabbitMQ", lambda: debian("rabbitmq-server")),
        ("NATS", nats),
        ("Kafka", kafka),
    ):
        if PEERS[name].server.version() is None:
            try:
                bring()
            except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
                print(f"{name}: {error}", file=sys.stderr)
        print(f"{name}: {PEERS[name].server.version() or 'NOT THERE'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
