"""What to do about batches that failed: the order, the numbers, the outcomes. Pure: whoever drives this does the calls.

Nothing is in flight when it begins. What failed is sent again in the order of its sequence. Where one is refused for
good, its number is free, and those after it, none of which the broker has taken, move up by one.

A refusal says nothing of a try before it that had no answer: that one may be stored. Given to another batch, its number
would be refused, or the other batch taken for a retry. So those after it end as it does, and the numbers start over.
Only what can never succeed as it is was not stored by any try.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from mq.client.outbox import OutBatch
from mq.client.sequence import Sequence
from mq.errors import InvalidArgument, MqError, SequenceRefused

Outcome = bytes | MqError
Failed = list[tuple[OutBatch, MqError]]


def resend(
    failed: Failed, sequence: Sequence, finish: Callable[[OutBatch, Outcome], None]
) -> Generator[OutBatch, Outcome, None]:
    """Gives the batches to send once more, one by one, and takes the outcome of each; `finish` hears of every one."""
    failed = sorted(failed, key=lambda item: item[0].sequence)
    if isinstance(failed[0][1], SequenceRefused):  # nothing failed before it: the broker has forgotten us
        _renumber([batch for batch, _ in failed], sequence)
    unknown: MqError | None = None
    refused = 0
    for batch, error in failed:
        outcome: Outcome
        if unknown is not None:
            outcome = unknown
        elif error.leaves_open or isinstance(error, SequenceRefused):
            batch.sequence -= refused
            outcome = yield batch
        else:
            outcome = error
        if isinstance(outcome, MqError):
            refused += 1
            if _may_be_stored(error, outcome):  # and so may those after it
                unknown = outcome
        finish(batch, outcome)
    sequence.next -= refused
    if unknown is not None:
        sequence.renew()


def _may_be_stored(first: MqError, last: MqError) -> bool:
    return (first.leaves_open or last.leaves_open) and not isinstance(last, InvalidArgument)


def _renumber(batches: list[OutBatch], sequence: Sequence) -> None:
    """None of these is stored: start over under another name."""
    sequence.renew()
    for batch in batches:
        batch.sequence = sequence.next
        sequence.next += 1
