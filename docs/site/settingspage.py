"""The page of the settings: the same source as .env.sample."""

from __future__ import annotations

from mq.config import RESERVED, described

HEAD = """# Settings

Made from the code, as [.env.sample](../../.env.sample) is. A flag of `mq serve` beats the environment, which beats
`.env`, which beats the default. Durations are written `100ms`, `5s`, `1h30m`, sizes `4MB`, `64MiB`; a bare number is
seconds or bytes. An empty variable counts as not set. `mq serve --check-config` shows what would be used, or every
problem at once.

## The broker

| variable | default | |
|---|---|---|
"""

CLIENTS = """
## Clients and tools

| variable | default | |
|---|---|---|
| `MQ_SERVER` | `mq://localhost` | where the Python client and the `mq` command find the broker; several by comma |
| `BROKER_HOST` | | of the examples, as with the first broker; the broker notes it and leaves it aside |
| `SPARK_NICE` | 19 | how far Spark on the broker's machine gives way to it |
| `SPARK_MASTER` | | the cluster that `mq spark` uses where nothing else names one; this machine without it |
| `WAL_DIR_PATH` | `./data` | also where `mq wal`, `mq spark` and `mq doctor` look for a log |

## Reserved

| variable | |
|---|---|
"""


def page() -> str:
    rows = []
    for names, default, reason in described():
        also = f" (or {', '.join(f'`{name}`' for name in names[1:])})" if names[1:] else ""
        rows.append(f"| `{names[0]}`{also} | {f'`{default}`' if default else ''} | {reason} |\n")
    reserved = [f"| `{name}` | {reason} |\n" for name, reason in RESERVED.items()]
    return HEAD + "".join(rows) + CLIENTS + "".join(reserved)
