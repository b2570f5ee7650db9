"""Settings: where they come from, which one wins, and what is said about those that are wrong."""

from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from mq.config import Config, ConfigError, sample
from mq.units import duration_ms, format_duration, format_size, size_bytes


def problems_of(**variables: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        Config.from_env(variables)
    return caught.value.problems


def test_nothing_set_gives_the_defaults() -> None:
    assert Config.from_env({}) == Config()


def test_a_config_can_not_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Config().port = 1  # type: ignore[misc]


def test_backups_are_not_kept_in_the_log_s_own_directory() -> None:
    for inside in ("./data", "data/backups", "/srv/mq/../mq/b"):
        log = "/srv/mq/../mq" if inside.startswith("/") else "./data"
        with pytest.raises(ConfigError, match="BACKUP_DIR"):
            Config.from_env({"BACKUP_DIR": inside, "WAL_DIR_PATH": log})
    assert Config.from_env({"BACKUP_DIR": "./data-backups"}).backup_dir == "./data-backups"


def test_every_variable_is_read() -> None:
    variables = {
        "ENV": "production",
        "SERVER_HOST": "0.0.0.0",
        "SERVER_PORT": "6000",
        "SERVER_WIRE_PORT": "0",
        "SERVER_GRACEFUL_SHUTDOWN_TIMEOUT": "1m30s",
        "SERVER_BUSY_POLL": "2ms",
        "SERVER_MAX_RECV_MSG_SIZE": "8MiB",
        "STORAGE_MODE": "memory",
        "STORAGE_BATCH_SIZE": "100",
        "STORAGE_SYNC_ON_STARTUP": "no",
        "STORAGE_MAX_MEMORY_BYTES": "64MiB",
        "WAL_DIR_PATH": "/somewhere",
        "WAL_SEGMENT_SIZE": "16MiB",
        "WAL_SEGMENT_FILE_EXT": ".log",
        "WAL_SYNC": "no",
        "WAL_BYTES_PER_SYNC": "1MiB",
        "WAL_SEGMENT_MAX_AGE": "2h",
        "WAL_RETIRE_GRACE": "20m",
        "BACKUP_DIR": "/somewhere-else",
        "CHANNEL_MAX_AGE": "7d",
        "CHANNEL_MAX_BYTES": "1GB",
        "CHANNEL_MAX_MESSAGES": "1000000",
        "CHANNEL_DROP_ACKED": "yes",
        "GROUP_ACK_WAIT": "1s",
        "GROUP_MAX_DELIVER": "7",
        "GROUP_BACKOFF": "100ms, 1s",
        "GROUP_SESSION_TIMEOUT": "3s",
        "LOG_LEVEL": "debug",
        "LOG_FORMAT": "json",
    }
    config = Config.from_env(variables)
    assert set(config.variables()) == set(variables)
    for each in fields(Config):
        if each.name != "notes":
            assert getattr(config, each.name) != getattr(Config(), each.name), each.name
    assert Config.from_env(config.variables()) == config
    assert config.graceful_shutdown_ms == 90_000
    assert config.channel_max_bytes == 1_000_000_000
    assert config.group_backoff_ms == (100, 1_000)
    assert config.log_level == "DEBUG"
    assert config.is_production


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("SERVER_PORT=1\nSTORAGE_BATCH_SIZE=1\nLOG_LEVEL=ERROR\n# a comment\n")
    config = Config.load({"SERVER_PORT": "3"}, {"SERVER_PORT": "2", "STORAGE_BATCH_SIZE": "2"}, file)
    assert (config.port, config.batch_size, config.log_level, config.host) == (3, 2, "ERROR", "127.0.0.1")


def test_an_alias_is_as_good_as_the_name_and_a_layer_above_wins(tmp_path: Path) -> None:
    assert Config.from_env({"BROKER_PORT": "7"}).port == 7
    assert Config.from_env({"ENVIRONMENT": "production"}).is_production
    assert Config.from_env({"BROKER_PORT": "7", "SERVER_PORT": "8"}).port == 8
    file = tmp_path / ".env"
    file.write_text("SERVER_PORT=8\n")
    assert Config.load(environment={"BROKER_PORT": "7"}, env_file=file).port == 7


def test_an_empty_variable_counts_as_not_set() -> None:
    assert Config.from_env({"SERVER_PORT": "", "LOG_LEVEL": "  "}) == Config()


def test_all_problems_are_told_at_once() -> None:
    problems = problems_of(SERVER_PORT="http", STORAGE_MODE="disk", WAL_SYNC="maybe", GROUP_ACK_WAIT="soon")
    assert len(problems) == 4
    assert "SERVER_PORT='http' is no whole number from 0 to 65535" in problems
    assert "STORAGE_MODE='disk' is none of wal, memory" in problems


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SERVER_PORT", "65536"),
        ("SERVER_PORT", "-1"),
        ("SERVER_PORT", "5\u0660"),  # a digit, but not one of ours
        ("SERVER_HOST", "a b"),
        ("SERVER_MAX_RECV_MSG_SIZE", "1KiB"),
        ("SERVER_GRACEFUL_SHUTDOWN_TIMEOUT", "5 parsecs"),
        ("STORAGE_BATCH_SIZE", "0"),
        ("STORAGE_MAX_MEMORY_BYTES", "64 elephants"),
        ("WAL_SEGMENT_FILE_EXT", "../x"),
        ("WAL_SEGMENT_FILE_EXT", ".idx"),
        ("WAL_SEGMENT_SIZE", "64KiB"),
        ("CHANNEL_MAX_MESSAGES", "many"),
        ("GROUP_BACKOFF", "1s,never"),
        ("LOG_LEVEL", "LOUD"),
    ],
)
def test_a_bad_value_is_named_with_its_variable(name: str, text: str) -> None:
    (problem,) = problems_of(**{name: text})
    assert problem.startswith(f"{name}=")


def test_a_misspelt_name_gets_a_suggestion() -> None:
    assert problems_of(SERVER_PROT="1") == ["SERVER_PROT is unknown; did you mean SERVER_PORT?"]
    assert problems_of(WAL_DIR="x") == ["WAL_DIR is unknown; did you mean WAL_DIR_PATH?"]


def test_a_foreign_name_with_our_prefix_is_left_aside_with_a_note() -> None:
    config = Config.from_env({"MQ_SERVICE_HOST": "10.0.0.1", "PATH": "/bin"})
    assert config.notes == ("MQ_SERVICE_HOST is no setting of mq and is left aside",)


def test_names_of_clients_and_tools_are_nothing_to_talk_about() -> None:
    assert Config.from_env({"MQ_SERVER": "mq://x", "SPARK_MASTER": "local"}).notes == ()


def test_broker_host_is_ignored_and_the_server_says_so() -> None:
    config = Config.from_env({"BROKER_HOST": "localhost"})
    assert config.host == "127.0.0.1"
    assert "SERVER_HOST" in config.notes[0]


@pytest.mark.parametrize("name", ["MQ_TOKEN", "MQ_TLS_CA"])
def test_security_settings_that_do_nothing_yet_are_refused(name: str) -> None:
    (problem,) = problems_of(**{name: "secret-value"})
    assert problem.startswith(f"{name}: ")
    assert "not supported yet" in problem
    assert "secret-value" not in problem


def test_a_port_can_not_be_both() -> None:
    (problem,) = problems_of(SERVER_PORT="6000", SERVER_WIRE_PORT="6000")
    assert "SERVER_WIRE_PORT" in problem


def test_an_unreadable_env_file_is_a_problem(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        with pytest.raises(ConfigError, match="can't be read"):
            Config.load(env_file=path)


def test_env_sample_is_what_the_config_generates(root: Path) -> None:
    assert (root / ".env.sample").read_text() == sample(), "run: python -m mq.config > .env.sample"


def test_env_sample_read_with_every_line_uncommented_gives_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    lines = [line.removeprefix("#") for line in sample().splitlines() if line.startswith("#") and "# " not in line]
    file.write_text("\n".join(lines))
    assert len(lines) > 20
    assert Config.load(env_file=file) == Config()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("100ms", 100), ("5s", 5_000), ("1h30m", 5_400_000), ("5", 5_000), ("0.5s", 500), ("1d", 86_400_000), ("0", 0)],
)
def test_durations_are_read(text: str, expected: int) -> None:
    assert duration_ms(text) == expected
    assert duration_ms(format_duration(expected)) == expected


@pytest.mark.parametrize("text", ["", "s", "5x", "-5s", "5s 3", "1e9", "½s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no duration"):
        duration_ms(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("1", 1), ("4MB", 4_000_000), ("64MiB", 64 << 20), ("1.5 KiB", 1536), ("2gb", 2 * 10**9)],
)
def test_sizes_are_read(text: str, expected: int) -> None:
    assert size_bytes(text) == expected
    assert size_bytes(format_size(expected)) == expected


@pytest.mark.parametrize("text", ["", "MB", "4XB", "-4MB", "ib", "4ib", "1e3"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no size"):
        size_bytes(text)
