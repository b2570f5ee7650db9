"""The Dockerfile as tests read it: its stages, and rules as a linter has them. No engine is needed."""

import json
import re
from dataclasses import dataclass, field
from io import BytesIO

from dockerfile_parse import DockerfileParser

# What builds things: none of it may run where a final image is made.
BUILDERS = re.compile(r"\b(gcc|g\+\+|make|cc|build-essential|pip3?|apt-get|apk|cargo|go)\b")


@dataclass
class Stage:
    """One FROM and what follows it."""

    name: str
    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)  # instruction, its text

    def all(self, instruction: str) -> list[str]:
        return [text for name, text in self.steps if name == instruction]


def stages_of(text: str) -> dict[str, Stage]:
    parser = DockerfileParser(fileobj=BytesIO(text.encode()))
    arguments: dict[str, str] = {}
    found: dict[str, Stage] = {}
    stage: Stage | None = None
    for step in parser.structure:
        name, value = step["instruction"], step["value"]
        if name == "ARG" and stage is None:
            key, _, default = value.partition("=")
            arguments[key] = default
        elif name == "FROM":
            image, _, alias = re.sub(r"\$\{(\w+)\}", lambda at: arguments[at[1]], value).partition(" AS ")
            stage = found[alias or str(len(found))] = Stage(alias or str(len(found)), image)
        elif name != "COMMENT" and stage is not None:
            stage.steps.append((name, value))
    return found


def lineage(stages: dict[str, Stage], name: str) -> list[Stage]:
    """A stage and those it stands on, lowest first; what is copied from elsewhere does not count."""
    stage = stages[name]
    return [*(lineage(stages, stage.base) if stage.base in stages else []), stage]


def last(stages: dict[str, Stage], name: str, instruction: str) -> str:
    """What an image ends up with: the last such instruction of its lineage, or nothing."""
    return next(iter([text for stage in lineage(stages, name) for text in stage.all(instruction)][::-1]), "")


def environment(stages: dict[str, Stage], name: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for stage in lineage(stages, name):
        for text in stage.all("ENV"):
            pairs |= dict(re.findall(r"(\w+)=(\S+)", text))
    return pairs


def command(stages: dict[str, Stage], name: str) -> list[str]:
    """What an image runs: ENTRYPOINT, then CMD."""
    return [*json.loads(last(stages, name, "ENTRYPOINT")), *json.loads(last(stages, name, "CMD"))]


def health_command(stages: dict[str, Stage], name: str) -> list[str]:
    found: list[str] = json.loads(last(stages, name, "HEALTHCHECK").partition("CMD ")[2])
    return found


def problems(text: str, images: list[str]) -> list[str]:
    """What is wrong with a Dockerfile, one line each; `images` are the stages that become images."""
    stages = stages_of(text)
    found = [problem for stage in stages.values() for problem in _stage_problems(stage, stages)]
    for name in images:
        found += _image_problems(stages, name)
    return found


def _stage_problems(stage: Stage, stages: dict[str, Stage]) -> list[str]:
    found = []
    if stage.base not in stages and (":" not in stage.base or stage.base.endswith(":latest")):
        found.append(f"{stage.name}: {stage.base} has no fixed tag")
    if stage.all("ADD"):
        found.append(f"{stage.name}: ADD does more than it says; COPY")
    for text in stage.all("WORKDIR"):
        if not text.startswith("/"):
            found.append(f"{stage.name}: WORKDIR {text} is relative")
    for text in stage.all("COPY"):
        if text.split()[-2] == ".":
            found.append(f"{stage.name}: COPY {text} takes all there is, and any change makes all that follows again")
    no_cache = any("PIP_NO_CACHE_DIR" in text for each in lineage(stages, stage.name) for text in each.all("ENV"))
    for text in stage.all("RUN"):
        if "apt-get install" in text and "rm -rf /var/lib/apt/lists" not in text:
            found.append(f"{stage.name}: the lists of apt stay in the layer")
        if re.search(r"\bpip3? ", text) and not no_cache and "--no-cache-dir" not in text:
            found.append(f"{stage.name}: pip leaves its cache in the layer")
        if re.search(r"\bsudo\b", text):
            found.append(f"{stage.name}: sudo")
    return found


def _image_problems(stages: dict[str, Stage], name: str) -> list[str]:
    found = []
    user = last(stages, name, "USER")
    if not re.fullmatch(r"[1-9]\d*:[1-9]\d*", user):
        found.append(f"{name}: runs as {user or 'root'}; a number other than 0 is wanted, for the user and the group")
    for instruction in ("ENTRYPOINT", "CMD"):
        if not last(stages, name, instruction).startswith("["):
            found.append(f"{name}: {instruction} has no exec form, so a shell gets the signals")
    for stage in lineage(stages, name):
        for text in stage.all("RUN"):
            if at := BUILDERS.search(text):
                found.append(f"{name}: {at[0]} runs where the image is made")
    return found
