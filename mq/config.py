"""The server's settings: one frozen dataclass, every default in its literal with the reason beside it.

A flag beats the environment, which beats `.env`, which beats the default. Reading collects every problem before it
raises, so that one start shows them all. No I/O but reading the `.env` file; nothing here knows the broker.
`python -m mq.config` writes `.env.sample`.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mq.units import duration_ms, format_duration, format_size, size_bytes
from mq.variable import (
    Setting,
    boolean,
    bytes_within,
    durations,
    file_extension,
    format_boolean,
    format_durations,
    host_name,
    one_of,
    setting,
    whole_number,
)

PREFIXES = ("SERVER_", "STORAGE_", "WAL_", "CHANNEL_", "GROUP_", "LOG_", "BROKER_", "BACKUP_", "MQ_")
# Variables of clients, examples and tools: no business of the server's, and no mistake either.
ELSEWHERE = {"MQ_SERVER", "BROKER_HOST", "SPARK_MASTER"}
RESERVED = {
    "MQ_TOKEN": "tokens are not supported yet: unset it, and keep the broker on a trusted network",
    "MQ_TLS_CA": "TLS is not supported yet: unset it, and keep the broker on a trusted network",
}


class ConfigError(Exception):
    """The settings can't be used; `problems` has a line for each reason."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


_PORT = whole_number(0, 65_535)
_COUNT = whole_number(0, 1 << 62)


def _show_wire_port(port: int) -> str:
    return "" if port < 0 else str(port)


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that can be set from outside. Fields are named as in code, variables as in the environment."""

    # production turns logs into JSON
    environment: str = setting("development", "ENV", str, str, "ENVIRONMENT")
    # loopback: whoever wants to be reached from outside says so
    host: str = setting("127.0.0.1", "SERVER_HOST", host_name)
    # the first broker's port; 0 takes a free one
    port: int = setting(50051, "SERVER_PORT", _PORT, str, "BROKER_PORT")
    # the pipelined door of the Python client: one above SERVER_PORT where it is not set, 0 turns it off
    wire_port: int = setting(-1, "SERVER_WIRE_PORT", _PORT, _show_wire_port)
    # as long as an orchestrator usually waits, halved
    graceful_shutdown_ms: int = setting(5_000, "SERVER_GRACEFUL_SHUTDOWN_TIMEOUT", duration_ms, format_duration)
    # 0: who has nothing to do sleeps; else it stays awake for so long after an answer, which costs a processor
    busy_poll_ms: int = setting(0, "SERVER_BUSY_POLL", duration_ms, format_duration)
    # the limit of generated clients too; a message may have 64 KiB less
    max_request_bytes: int = setting(4 << 20, "SERVER_MAX_RECV_MSG_SIZE", bytes_within(256 << 10, 32 << 20))

    # memory keeps nothing on disk: for tests and caches
    storage_mode: str = setting("wal", "STORAGE_MODE", one_of("wal", "memory"))
    # messages that a Subscribe reads at once: its default and its cap
    batch_size: int = setting(500, "STORAGE_BATCH_SIZE", whole_number(1, 10_000))
    # false: what was published before a start is not served, and not deleted either
    sync_on_startup: bool = setting(True, "STORAGE_SYNC_ON_STARTUP", boolean, format_boolean)
    # buffers of all channels together; older batches are read back from disk
    max_memory_bytes: int = setting(256 << 20, "STORAGE_MAX_MEMORY_BYTES", bytes_within(1 << 20), format_size)

    # beside the code, so that a first try needs no rights
    wal_dir: str = setting("./data", "WAL_DIR_PATH", str)
    # one file of the log: large enough that files are few, small enough to drop and to ship
    segment_bytes: int = setting(52_428_800, "WAL_SEGMENT_SIZE", bytes_within(64 << 10, 4 << 30))
    segment_extension: str = setting(".wal", "WAL_SEGMENT_FILE_EXT", file_extension)
    # what an answer waits for where a request does not say: true is on disk
    wal_sync: bool = setting(True, "WAL_SYNC", boolean, format_boolean)
    # the most that a power cut may cost where WAL_SYNC=false
    bytes_per_sync: int = setting(8 << 20, "WAL_BYTES_PER_SYNC", bytes_within(4 << 10), format_size)
    # a quiet broker's messages reach tools that read sealed segments within this time
    segment_max_age_ms: int = setting(3_600_000, "WAL_SEGMENT_MAX_AGE", duration_ms, format_duration)
    # longer than a tool reads one segment
    retire_grace_ms: int = setting(600_000, "WAL_RETIRE_GRACE", duration_ms, format_duration)
    # the only directory that clients may have backups made in; without one the broker makes none
    backup_dir: str = setting("", "BACKUP_DIR", str)

    # of channels that are made without any setting of their own, and of dead-letter channels; 0: nothing is dropped
    channel_max_age_ms: int = setting(0, "CHANNEL_MAX_AGE", duration_ms, format_duration)
    channel_max_bytes: int = setting(0, "CHANNEL_MAX_BYTES", size_bytes, format_size)
    channel_max_messages: int = setting(0, "CHANNEL_MAX_MESSAGES", _COUNT)
    # true drops what every group of the channel has acked; where there is no group, nothing
    channel_drop_acked: bool = setting(False, "CHANNEL_DROP_ACKED", boolean, format_boolean)

    # long enough for most work on a message; a member that needs more extends its lease
    group_ack_wait_ms: int = setting(30_000, "GROUP_ACK_WAIT", duration_ms, format_duration)
    # then the message goes to the dead-letter channel
    group_max_deliver: int = setting(5, "GROUP_MAX_DELIVER", whole_number(0, 1_000_000))
    # before the second, third and every later delivery
    group_backoff_ms: tuple[int, ...] = setting((1_000, 5_000, 30_000), "GROUP_BACKOFF", durations, format_durations)
    # a member that was not heard of for so long is gone
    group_session_timeout_ms: int = setting(10_000, "GROUP_SESSION_TIMEOUT", duration_ms, format_duration)

    log_level: str = setting("INFO", "LOG_LEVEL", one_of("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"))
    # auto: json when ENV=production, pretty on a terminal, plain elsewhere
    log_format: str = setting("auto", "LOG_FORMAT", one_of("auto", "pretty", "plain", "json"))

    # not settings: what reading them had to say
    notes: tuple[str, ...] = ()

    @property
    def is_production(self) -> bool:
        return self.environment.lower() in {"production", "prod"}

    @classmethod
    def from_env(cls, environment: Mapping[str, str]) -> Config:
        """Settings from one mapping of variables. Raises ConfigError with everything that is wrong."""
        return cls.load(environment=environment)

    @classmethod
    def load(
        cls,
        flags: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        env_file: Path | None = None,
    ) -> Config:
        """Settings from all layers; a flag is given under its variable's name. Raises ConfigError."""
        problems: list[str] = []
        layers = {"": flags or {}, "environment": environment or {}, str(env_file): _read_env_file(env_file, problems)}
        values: dict[str, Any] = {}
        for each in fields(cls):
            how: Setting | None = each.metadata.get("setting")
            found = _find(how, layers) if how else None
            if how and found:
                try:
                    values[each.name] = how.parse(found[1])
                except ValueError as error:
                    problems.append(f"{found[0]}={found[1]!r} {error}")
        notes = _review_names(layers, problems)
        config = cls(**values, notes=tuple(notes))
        problems += config._conflicts()
        if problems:
            raise ConfigError(problems)
        return config

    def _conflicts(self) -> list[str]:
        problems = []
        if self.wire_port > 0 and self.wire_port == self.port:
            problems.append(f"SERVER_WIRE_PORT={self.wire_port} is SERVER_PORT too; 0 turns the wire off")
        if self.storage_mode == "wal" and self.segment_bytes < self.max_request_bytes:
            problems.append(f"WAL_SEGMENT_SIZE={self.segment_bytes} holds no request of SERVER_MAX_RECV_MSG_SIZE")
        if self.backup_dir and Path(self.backup_dir).absolute().is_relative_to(Path(self.wal_dir).absolute()):
            problems.append(f"BACKUP_DIR={self.backup_dir} is in the log's own directory")
        return problems

    def variables(self) -> dict[str, str]:
        """Every variable with its value, as it would be written in an environment."""
        hows = [(each.name, each.metadata["setting"]) for each in fields(self) if "setting" in each.metadata]
        return {how.variables[0]: how.show(getattr(self, name)) for name, how in hows}


def _find(how: Setting, layers: Mapping[str, Mapping[str, str]]) -> tuple[str, str] | None:
    """The variable that counts and its text; an empty one counts as not set, as compose files write it."""
    for layer in layers.values():
        for name in how.variables:
            if layer.get(name, "").strip():
                return name, layer[name].strip()
    return None


def _read_env_file(path: Path | None, problems: list[str]) -> dict[str, str]:
    if path is None:
        return {}
    from dotenv import dotenv_values

    try:
        with path.open(encoding="utf-8") as stream:
            return {name: value or "" for name, value in dotenv_values(stream=stream, interpolate=False).items()}
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{path} can't be read: {getattr(error, 'strerror', None) or 'it is no UTF-8 text'}")
        return {}


def _review_names(layers: Mapping[str, Mapping[str, str]], problems: list[str]) -> list[str]:
    """Adds names that can only be mistakes to the problems, and returns a note for each one that is left aside."""
    known = [name for each in fields(Config) if (s := each.metadata.get("setting")) for name in s.variables]
    notes = []
    for name in dict.fromkeys(name for layer in layers.values() for name in layer):
        if name in RESERVED:
            problems.append(f"{name}: {RESERVED[name]}")
        elif name == "BROKER_HOST":
            notes.append("BROKER_HOST is for clients and left aside; SERVER_HOST says where the server listens")
        elif name.startswith(PREFIXES) and name not in known and name not in ELSEWHERE:
            like = [other for other in known if other.split("_")[0] == name.split("_")[0]]
            close = difflib.get_close_matches(name, like, n=1, cutoff=0.7)
            if close:
                problems.append(f"{name} is unknown; did you mean {close[0]}?")
            else:
                notes.append(f"{name} is no setting of mq and is left aside")
    return notes


def described() -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Every setting: its variable and aliases, its default, and the reason for it, which stands above its field."""
    source = Path(__file__).read_text(encoding="utf-8").splitlines()
    defaults = Config().variables()
    for each in fields(Config):
        how: Setting | None = each.metadata.get("setting")
        if how is None:
            continue
        at = next(number for number, line in enumerate(source) if line.startswith(f"    {each.name}: "))
        reason = source[at - 1].strip() if source[at - 1].startswith("    # ") else ""
        yield how.variables, defaults[how.variables[0]], reason.removeprefix("# ")


def sample() -> str:
    """The text of .env.sample: every setting with its default, commented out, under the reason it has that value."""
    lines = ["# Settings of the broker. Copy to .env and uncomment what you change; the real environment wins.", ""]
    for names, default, reason in described():
        lines += [f"# {reason}"] if reason else []
        lines += [f"# (or {alias})" for alias in names[1:]]
        lines.append(f"#{names[0]}={default}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(sample())
