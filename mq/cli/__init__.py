"""The `mq` command.

A command's module is imported when the command runs, not before: `mq --help` must answer at once, and
`mq pub` has no use for the server. So the table below also holds the one-line help of each command.
"""

from importlib import import_module

import click

from mq import __version__

# name -> ("module:attribute" of the click command, one-line help)
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("mq.cli.serve:serve", "start the broker"),
}


class LazyGroup(click.Group):
    """A group that knows the names and the help of its commands, and imports only the one that is run."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, attribute = COMMANDS[name][0].split(":")
        command = getattr(import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}:{attribute} is no click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if COMMANDS:
            with formatter.section("Commands"):
                formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mq", message="%(prog)s %(version)s")
def main() -> None:
    """mq: a durable, pull-based message broker."""
