"""`mq completion`: a script that makes a shell complete `mq`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(short_help="print a shell's completion script")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that makes SHELL complete commands and options of mq.

    \b
    Examples:
      mq completion bash > ~/.local/share/bash-completion/completions/mq
      mq completion zsh > ~/.zfunc/_mq
      mq completion fish > ~/.config/fish/completions/mq.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "mq", "_MQ_COMPLETE").source())
