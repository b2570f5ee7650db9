"""What deciding a command gives: the records it makes and the reply that may leave once they are durable."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mq.reply import Reply
from wal.record import Record


class Decision(NamedTuple):
    """`records` are to be applied in order, all of them.

    `reply` may be a call to make after that, where it tells what is there then; None where nobody asked.
    """

    records: list[Record]
    reply: Reply | Callable[[], Reply] | None
