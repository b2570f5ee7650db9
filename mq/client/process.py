"""The number of this process. The system is asked once, and again in the child of a fork, not for every call."""

from __future__ import annotations

import os

pid = os.getpid()


def _ask_again() -> None:
    global pid
    pid = os.getpid()


if hasattr(os, "register_at_fork"):  # where there is no fork, there is no child
    os.register_at_fork(after_in_child=_ask_again)
