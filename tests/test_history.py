"""The checker catches what it is for: a history that keeps the rules, then every way to break one."""

from collections.abc import Callable

import pytest
from history import FAILED, OK, UNKNOWN, History


def good() -> History:
    """Three publishes, one without an answer, all delivered and acked."""
    history = History()
    history.published(b"a", OK, (0, 0))
    history.published(b"b", OK, (0, 1), is_idempotent=True)
    history.published(b"c", UNKNOWN)
    history.published(b"never", FAILED)
    history.stored = {(0, 0): b"a", (0, 1): b"b", (0, 2): b"c"}
    history.ranges = {0: (0, 3)}
    for offset, content in enumerate((b"a", b"b", b"c")):
        history.delivered(content, (0, offset), 1, "g")
        history.acked((0, offset), "g", OK, b"receipt")
    return history


def test_a_history_that_keeps_the_rules_is_clean() -> None:
    assert good().check(["g"]) == []


def lose_an_answered_publish(history: History) -> None:
    del history.stored[0, 1]
    history.lost.add((0, 5))


def store_what_nobody_sent(history: History) -> None:
    history.stored[0, 2] = b"phantom"


def store_what_failed(history: History) -> None:
    history.stored[0, 2] = b"never"


def answer_another_offset(history: History) -> None:
    history.published(b"a", OK, (0, 7))


def store_a_retry_twice(history: History) -> None:
    history.stored[0, 3] = b"b"
    history.ranges = {0: (0, 4)}
    history.delivered(b"b", (0, 3), 1, "g")


def leave_a_hole(history: History) -> None:
    history.ranges = {0: (0, 4)}


def give_one_offset_two_contents(history: History) -> None:
    history.published(b"z", OK, (0, 9))
    history.stored[0, 9] = b"z"
    history.delivered(b"z", (0, 9), 1, "g")
    history.delivered(b"a", (0, 9), 2, "g")


def deliver_what_nobody_sent(history: History) -> None:
    history.delivered(b"phantom", (0, 8), 1, "g")


def deliver_out_of_order(history: History) -> None:
    history.deliveries = [history.deliveries[at] for at in (1, 0, 2)]
    history.acks.clear()


def deliver_after_the_ack(history: History) -> None:
    history.delivered(b"a", (0, 0), 2, "g")


def take_the_ack_of_two_holders(history: History) -> None:
    history.acked((0, 0), "g", OK, b"another")


def never_deliver(history: History) -> None:
    history.deliveries.pop()
    history.acks.pop()


@pytest.mark.parametrize(
    "breaking",
    [
        lose_an_answered_publish,
        store_what_nobody_sent,
        store_what_failed,
        answer_another_offset,
        store_a_retry_twice,
        leave_a_hole,
        give_one_offset_two_contents,
        deliver_what_nobody_sent,
        deliver_out_of_order,
        deliver_after_the_ack,
        take_the_ack_of_two_holders,
        never_deliver,
    ],
)
def test_a_broken_rule_is_told(breaking: Callable[[History], None]) -> None:
    history = good()
    breaking(history)
    assert history.check(["g"]) != []


def test_what_was_reported_as_lost_is_no_violation() -> None:
    history = good()
    del history.stored[0, 1]
    history.lost.add((0, 1))
    assert history.check(["g"]) == []
