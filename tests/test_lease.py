"""Receipts: each another one, made from a secret, several at a time."""

from mq.lease import RECEIPT_BYTES, Receipts

SECRET = bytes(range(32))


def test_no_two_receipts_are_the_same() -> None:
    receipts = Receipts(SECRET)
    taken = [receipts.take() for _ in range(10_000)]
    assert len(set(taken)) == len(taken)
    assert {len(each) for each in taken} == {RECEIPT_BYTES}


def test_who_does_not_have_the_secret_makes_others() -> None:
    ours, theirs = Receipts(SECRET), Receipts(bytes(32))
    assert not {ours.take() for _ in range(1_000)} & {theirs.take() for _ in range(1_000)}
