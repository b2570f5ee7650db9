"""The `mq` command.

A command's module is imported when the command runs, not before: `mq --help` must answer at once, and
`mq pub` has no use for the server. So the table below also holds the one-line help of each command.
"""

from importlib import import_module
from typing import Any

import click

from mq import __version__

# name -> ("module:attribute" of the click command, one-line help)
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("mq.cli.serve:serve", "start the broker"),
    "pub": ("mq.cli.pub:pub", "publish messages"),
    "sub": ("mq.cli.sub:sub", "read or consume messages"),
    "channel": ("mq.cli.channel:channel", "list, make, change and browse channels"),
    "group": ("mq.cli.group:group", "list, make, inspect and move groups"),
    "dlq": ("mq.cli.dlq:dlq", "look after dead-letter channels"),
    "wal": ("mq.cli.wal:wal", "list, verify, dump and repair a log"),
    "spark": ("mq.cli.spark:spark", "audit, compact, export and replay a log with Spark"),
    "backup": ("mq.cli.backup:backup", "make, verify and restore backups of a log"),
    "server": ("mq.cli.server:server", "ask a broker how it is"),
    "bench": ("mq.cli.bench:bench", "measure a broker"),
    "top": ("mq.cli.top:top", "watch channels and groups"),
    "doctor": ("mq.cli.doctor:doctor", "check settings, ports, disk and broker"),
    "completion": ("mq.cli.completion:completion", "print a shell's completion script"),
}


class LazyGroup(click.Group):
    """A group that knows the names and the help of its commands, and imports only the one that is run."""

    table = COMMANDS

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.table:
            return None
        module, attribute = self.table[name][0].split(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}:{attribute} is no click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.table:
            with formatter.section("Commands"):
                formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Errors that a user can do something about are a line and an exit code, never a traceback."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            from mq.cli.failure import explain

            explain(error)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mq", message="%(prog)s %(version)s")
def main() -> None:
    """mq: a durable, pull-based message broker.

    Commands that talk to a broker find it by --server or MQ_SERVER. Exit codes: 0 done, 1 failed, 2 wrong usage,
    3 not found, 4 conflict, 5 denied, 6 unavailable, 7 timed out.
    """
