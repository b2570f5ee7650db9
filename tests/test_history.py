"""The checker catches what it is for: a history that keeps the rules, then every way to break one."""

from collections.abc import Callable

import pytest
from history import FAILED, OK, UNKNOWN, History


def good() -> History:
    """A publish, an idempotent one, one without an answer, one that was delayed; all delivered and acked."""
    history = History()
    history.published(b"a", OK, (0, 0))
    history.published(b"b", OK, (0, 1), is_idempotent=True)
    history.published(b"c", UNKNOWN)
    history.published(b"never", FAILED)
    history.published(b"d", OK)
    history.stored = {(0, 0): b"a", (0, 1): b"b", (0, 2): b"c", (0, 3): b"d"}
    history.ranges = {0: (0, 4)}
    for offset, content in enumerate((b"a", b"b", b"c", b"d")):
        history.delivered(content, (0, offset), 1, "g", b"receipt %d" % offset)
        history.acked((0, offset), "g", OK, b"receipt %d" % offset)
    return history


def test_a_history_that_keeps_the_rules_is_clean() -> None:
    assert good().check(["g"], ordered=["g"]) == []


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
    history.published(b"b", UNKNOWN, is_idempotent=True)
    history.stored[0, 4] = b"b"
    history.ranges = {0: (0, 5)}
    history.delivered(b"b", (0, 4), 1, "g")


def leave_a_hole(history: History) -> None:
    history.ranges = {0: (0, 5)}


def lose_the_beginning(history: History) -> None:
    history.publishes[b"a"] = (UNKNOWN, None, False)
    del history.stored[0, 0]


def lose_a_delayed_publish(history: History) -> None:
    del history.stored[0, 3]
    history.ranges = {0: (0, 3)}
    del history.deliveries[3], history.acks[3]


def store_a_delayed_publish_twice(history: History) -> None:
    history.stored[0, 4] = b"d"
    history.ranges = {0: (0, 5)}
    history.delivered(b"d", (0, 4), 1, "g")


def give_an_answered_offset_to_another(history: History) -> None:
    """As after a restart that forgot the first, and of which no reader found it."""
    history.publishes[b"c"] = (OK, (0, 1), False)
    history.lost.add((0, 2))
    del history.stored[0, 2]


def deliver_elsewhere_than_answered(history: History) -> None:
    history.deliveries[0] = (b"a", (0, 9), 1, "g")
    history.delivered(b"a", (0, 0), 1, "g")
    history.acks.clear()


def deliver_what_failed(history: History) -> None:
    history.delivered(b"never", (0, 8), 1, "g")


def deliver_another_content_than_a_reader_finds(history: History) -> None:
    history.deliveries[0] = (b"b", (0, 0), 1, "g")


def ack_by_the_receipt_of_another(history: History) -> None:
    history.acks[1] = (*history.acks[1][:4], b"receipt 0")


def give_one_offset_two_contents(history: History) -> None:
    history.published(b"z", OK, (0, 9))
    history.stored[0, 9] = b"z"
    history.delivered(b"z", (0, 9), 1, "g")
    history.delivered(b"a", (0, 9), 2, "g")


def deliver_what_nobody_sent(history: History) -> None:
    history.delivered(b"phantom", (0, 8), 1, "g")


def deliver_out_of_order(history: History) -> None:
    history.deliveries = [history.deliveries[at] for at in (1, 0, 2, 3)]
    history.acks.clear()


def deliver_after_the_ack(history: History) -> None:
    history.delivered(b"a", (0, 0), 2, "g")


def take_the_ack_of_two_holders(history: History) -> None:
    history.acked((0, 0), "g", OK, b"another")


def never_deliver(history: History) -> None:
    history.deliveries.pop()
    history.acks.pop()


@pytest.mark.parametrize(
    ("breaking", "words"),
    [
        (lose_an_answered_publish, "is gone"),
        (store_what_nobody_sent, "never sent"),
        (store_what_failed, "whose publish failed"),
        (answer_another_offset, "and is at"),
        (store_a_retry_twice, "stored 2 times"),
        (leave_a_hole, "is missing"),
        (lose_the_beginning, "is missing"),
        (store_a_delayed_publish_twice, "stored 2 times"),
        (deliver_what_nobody_sent, "never published"),
        (lose_a_delayed_publish, "answered with None and is gone"),
        (give_an_answered_offset_to_another, "which holds"),
        (deliver_elsewhere_than_answered, "and delivered as"),
        (give_one_offset_two_contents, "was delivered as"),
        (deliver_what_failed, "never published"),
        (deliver_another_content_than_a_reader_finds, "and holds"),
        (deliver_out_of_order, "was first delivered after"),
        (deliver_after_the_ack, "after its ack was confirmed"),
        (take_the_ack_of_two_holders, "by two holders"),
        (ack_by_the_receipt_of_another, "by a receipt for"),
        (never_deliver, "was never delivered"),
    ],
)
def test_a_broken_rule_is_told(breaking: Callable[[History], None], words: str) -> None:
    history = good()
    breaking(history)
    assert [line for line in history.check(["g"]) if words in line]


def test_what_was_reported_as_lost_is_no_violation() -> None:
    history = good()
    del history.stored[0, 1]
    history.lost.add((0, 1))
    assert history.check(["g"]) == []


def ack_out_of_order(history: History) -> None:
    history.acks = [history.acks[at] for at in (1, 0, 2, 3)]


def skip_a_message(history: History) -> None:
    del history.acks[1]


def leave_the_last_one(history: History) -> None:
    history.acks.pop()


def ack_one_twice(history: History) -> None:
    history.acks.insert(2, history.acks[0])


@pytest.mark.parametrize("breaking", [ack_out_of_order, skip_a_message, leave_the_last_one, ack_one_twice])
def test_a_broken_rule_of_ordered_groups_is_told(breaking: Callable[[History], None]) -> None:
    history = good()
    breaking(history)
    assert history.check([], ordered=["g"]) != []


def test_an_ack_whose_answer_never_came_may_fill_a_gap_and_is_no_second_ack() -> None:
    history = good()
    when, place, group, _, receipt = history.acks[1]
    history.acks[1] = (when, place, group, UNKNOWN, receipt)
    assert history.check(["g"], ordered=["g"]) == []
    history.acks.insert(2, (when + 1, place, group, OK, b"of the next owner"))
    assert history.check(["g"], ordered=["g"]) == []


def test_a_delivery_whose_first_answer_was_lost_may_come_late() -> None:
    history = good()
    deliver_out_of_order(history)
    history.deliveries[1] = (*history.deliveries[1][:2], 2, "g")
    assert history.check(["g"]) == []


def lose_an_answer(history: History) -> None:
    """The first one: the second was seen, and then the broker was killed."""
    deliver_out_of_order(history)
    history.breaks = [(0, "g"), (1, None)]


def test_what_was_in_a_lost_answer_may_come_late_after_a_kill_and_counts_anew() -> None:
    history = good()
    lose_an_answer(history)
    assert history.check(["g"]) == []


@pytest.mark.parametrize(
    "breaks",
    [[(0, "g")], [(1, None)], [(0, "other"), (1, None)], [(1, "g"), (1, None)], [(0, None), (0, "g")]],
    ids=["no kill", "no lost answer", "another's answer", "the last answer", "a kill before it"],
)
def test_otherwise_it_may_not(breaks: list[tuple[int, str | None]]) -> None:
    history = good()
    lose_an_answer(history)
    history.breaks = breaks
    assert [line for line in history.check(["g"]) if "was first delivered after" in line]


def test_what_is_noted_of_breaks_is_where_it_happened() -> None:
    history = good()
    history.lost_an_answer("g")
    history.started_again()
    assert history.breaks == [(4, "g"), (4, None)]
