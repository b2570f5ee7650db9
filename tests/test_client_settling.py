"""A consumer's book: which acks wait for others, and what is told of them."""

from __future__ import annotations

from mq.client.message import Delivery
from mq.client.settling import ACK, ACKED_DELIVERIES, ACKED_MESSAGES, Book
from mq.pb import raw_pb2 as raw


def held(book: Book, number: int, messages: int) -> Delivery:
    pulled = raw.PulledBatch(receipt=b"%d" % number, base_offset=number * messages, count=messages)
    delivery = Delivery(pulled, "c", "g")
    book.hold(delivery)
    return delivery


def test_acks_of_a_few_deliveries_wait_for_more() -> None:
    book = Book()
    for number in range(ACKED_DELIVERIES - 1):
        book.ack(held(book, number, 1), 0, 1)
    assert not book.is_urgent
    book.ack_one(held(book, ACKED_DELIVERIES, 1), 0)
    assert book.is_urgent


def test_acks_of_many_messages_do_not_wait_however_few_their_deliveries() -> None:
    book = Book()
    delivery = held(book, 0, ACKED_MESSAGES)
    book.ack(delivery, 0, ACKED_MESSAGES - 1)
    assert not book.is_urgent
    book.ack_one(delivery, ACKED_MESSAGES - 1)
    assert book.is_urgent


def test_what_was_taken_to_be_sent_is_not_urgent_any_more() -> None:
    book = Book()
    deliveries = [held(book, number, 1) for number in range(ACKED_DELIVERIES)]
    for delivery in deliveries:
        book.ack(delivery, 0, 1)
    (settlement,) = book.take_all()
    assert settlement.act == ACK
    assert [each.receipt for each in settlement.receipts] == [each.receipt for each in deliveries]
    assert not book.is_urgent
    assert not book.held


def test_what_is_given_back_is_lost_from_its_end_on_and_counts_what_was_handed_out() -> None:
    order: list[Delivery] = []

    class Noting(Book):
        def lose(self, delivery: Delivery) -> None:
            order.append(delivery)
            super().lose(delivery)

    book = Noting()
    deliveries = [held(book, number, 4) for number in range(3)]
    deliveries[0].given, deliveries[1].given = 4, 3
    book.ack(deliveries[0], 0, 4)
    book.ack(deliveries[1], 0, 1)
    assert [settlement.act for settlement in book.take_all()] == [ACK]
    book.ack(deliveries[1], 1, 2)
    assert book.lose_all() == 2  # one was acked, and it was not sent; one was worked on
    assert order == [deliveries[2], deliveries[1]]
    assert [delivery.is_lost for delivery in deliveries] == [False, True, True]
    assert book.take_all() == []
