"""Frames of the wire: their bytes, how a stream of bytes becomes frames, what a broken one costs."""

import random
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torture import seed_of_run, sized

from mq import wire
from mq.service import METHODS

FRAMES = st.lists(
    st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**16 - 1), st.integers(0, 2**16 - 1), st.binary(max_size=300)),
    max_size=30,
)


def feed(inbox: wire.Inbox, data: bytes, sizes: list[int]) -> list[wire.Frame]:
    """Give the bytes to an inbox as a socket would: as much as there is room for, cut at the given sizes."""
    frames, turn = [], 0
    while data:
        room = inbox.room()
        size = min(len(room), len(data), sizes[turn % len(sizes)] if sizes else len(data))
        turn += 1
        room[:size] = data[:size]
        frames += inbox.received(size)
        data = data[size:]
    return frames


@given(FRAMES, st.lists(st.integers(1, 700), max_size=10), st.integers(1, 600))
def test_frames_come_out_as_they_went_in_however_the_bytes_are_cut(
    frames: list[wire.Frame], sizes: list[int], scratch: int
) -> None:
    data = b"".join(wire.pack(*frame) for frame in frames)
    inbox = wire.Inbox(bytearray(scratch), 1_000)
    assert feed(inbox, data, sizes) == frames
    assert inbox.held_bytes == 0


@given(st.binary(max_size=200), st.integers(0, 300))
def test_what_is_unfinished_is_held_and_nothing_else(payload: bytes, cut: int) -> None:
    data = wire.pack(7, 2, 0, payload)
    inbox = wire.Inbox(bytearray(64), 1_000)
    assert feed(inbox, data[: min(cut, len(data) - 1)], []) == []
    assert feed(inbox, data[min(cut, len(data) - 1) :], []) == [(7, 2, 0, payload)]


def test_a_frame_that_is_too_long_is_refused_as_soon_as_its_length_is_known() -> None:
    for sizes in ([], [1], [5], [12]):
        inbox = wire.Inbox(bytearray(64), 100)
        with pytest.raises(wire.FrameTooLong, match="101 bytes, 100 are allowed"):
            feed(inbox, wire.pack(1, 2, 0, b"x" * 101)[:12], sizes)


def test_a_length_that_is_only_announced_costs_nothing() -> None:
    inbox = wire.Inbox(bytearray(1 << 16), 1 << 30)
    feed(inbox, wire.pack_header(1 << 30, 1, 2, 0) + b"x" * 100, [])
    assert inbox.held_bytes < 8_192


def test_memory_follows_the_bytes_that_came() -> None:
    inbox = wire.Inbox(bytearray(1 << 16), 1 << 30)
    data = wire.pack_header(64 << 20, 1, 2, 0)
    tracemalloc.start()
    for _ in range(8):
        feed(inbox, data, [])
        data = b"x" * (1 << 16)
    assert inbox.held_bytes <= wire.GROWTH * 8 * (1 << 16)
    assert tracemalloc.get_traced_memory()[1] < 2 * wire.GROWTH * 8 * (1 << 16)
    tracemalloc.stop()


def test_large_frames_survive_the_growth() -> None:
    payload = random.Random(1).randbytes(3 << 20)
    inbox = wire.Inbox(bytearray(1 << 16), 4 << 20)
    data = wire.pack(9, 4, 0, payload) + wire.pack(10, 2, 0, b"next")
    assert feed(inbox, data, [1_000, 65_536, 70_000]) == [(9, 4, 0, payload), (10, 2, 0, b"next")]


def test_methods_and_statuses_have_one_number_each() -> None:
    assert wire.METHODS.keys() == METHODS.keys()
    assert len(set(wire.METHODS.values())) == len(wire.METHODS)
    assert max(wire.METHODS.values()) < wire.CONTROL
    assert sorted(wire.STATUS.values()) == list(range(17))


def test_statuses_have_the_numbers_of_grpc() -> None:
    import grpc

    assert {code.name: code.value[0] for code in grpc.StatusCode} == wire.STATUS


def mutated(rng: random.Random, good: bytes) -> bytes:
    data = bytearray(good)
    for _ in range(rng.randint(1, 4)):
        match rng.randrange(4):
            case 0:
                data[rng.randrange(len(data))] = rng.randrange(256)
            case 1:
                del data[rng.randrange(len(data)) :]
            case 2:
                at = rng.randrange(len(data) + 1)
                data[at:at] = rng.randbytes(rng.randint(1, 20))
            case 3:
                data[0:4] = rng.choice((0, 1, 2**31, 2**32 - 1, len(data))).to_bytes(4, "little")
        if not data:
            return b"\0"
    return bytes(data)


def fuzz(rounds: int, seed: int) -> int:
    """Mutated frames through one inbox after the other; returns how many were refused."""
    rng = random.Random(seed)
    scratch = bytearray(1 << 12)
    goods = [wire.pack(rng.getrandbits(32), rng.choice((1, 2, 6, wire.PING)), 0, rng.randbytes(n)) for n in range(60)]
    refused = 0
    inbox = wire.Inbox(scratch, 4_096)
    for _ in range(rounds):
        data = mutated(rng, rng.choice(goods))
        try:
            frames = feed(inbox, data, [])
        except wire.FrameTooLong:
            refused += 1
            inbox = wire.Inbox(scratch, 4_096)
            continue
        assert all(len(payload) <= 4_096 for _, _, _, payload in frames)
        assert inbox.held_bytes <= 4_096 + wire.HEADER_BYTES
    return refused


def test_mutated_frames_are_frames_or_are_refused() -> None:
    assert 0 < fuzz(100_000, 1) < 100_000


@pytest.mark.torture
@pytest.mark.shows("T5", "the reader of the wire's frames, on mutated bytes")
def test_a_million_mutated_frames_are_frames_or_are_refused(figures: dict[str, Any]) -> None:
    figures |= {"seed": seed_of_run(), "frames": sized(100_000, 1_000_000)}
    figures["refused"] = fuzz(figures["frames"], figures["seed"])
    assert 0 < figures["refused"] < figures["frames"]
