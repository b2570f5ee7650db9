"""`python -m mq.cli` is `mq`."""

from mq.cli import main

main(prog_name="mq")
