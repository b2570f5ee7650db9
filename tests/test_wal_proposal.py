"""What a proposal claims, and what is no proposal: whoever writes files into staging/ harms nobody."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from dictdisk import DictDisk

from wal.errors import InstallRefused
from wal.frame import crc32c
from wal.proposal import CLAIM_US, STAGING, Ground, Offer, Output, claimed, staged_name, write_claim

DIRECTORY = "/data/log"
ID = "0123456789abcdef"
NOW = 1_800_000_000_000_000
OFFER = Offer(
    ID, UUID(int=7), NOW, ("a.wal",), (Output(staged_name(ID, 0), 3, 400, 5),), 1, 2, -3,
    (Ground(1, "prices", 0, 0, True, 60_000, {"g": 4}),),
)  # fmt: skip


def claim(made_us: Any) -> DictDisk:
    disk = DictDisk()
    disk.make_directory(f"{DIRECTORY}/{STAGING}")
    write_claim(disk, DIRECTORY, replace(OFFER, made_us=made_us))
    return disk


@pytest.mark.parametrize("age", [0, 1, CLAIM_US - 1])
def test_a_claim_is_respected_for_an_hour(age: int) -> None:
    assert claimed(claim(NOW), DIRECTORY, NOW + age) == {"a.wal"}


@pytest.mark.parametrize(
    "made_us", [NOW - CLAIM_US, NOW + 1, 10**18, "x", None, 1.5, True, -1, 10**40], ids=lambda made: f"{made}"
)
def test_a_claim_of_another_time_or_of_none_claims_nothing(made_us: Any) -> None:
    assert claimed(claim(made_us), DIRECTORY, NOW) == frozenset()


def packed(**changes: Any) -> bytes:
    """A proposal with other values, and a checksum that fits."""
    body = json.dumps({**json.loads(OFFER.pack().partition(b"\n")[2]), **changes}).encode()
    return f"mq-wal-proposal 1 {crc32c(body):08x}\n".encode() + body


def test_a_proposal_is_read_as_it_was_written() -> None:
    assert Offer.unpack(OFFER.pack(), ID) == Offer.unpack(packed(), ID) == OFFER


OUTPUT: dict[str, Any] = {"name": staged_name(ID, 0), "frames": 3, "bytes": 400, "crc": 5}
GROUND: dict[str, Any] = {
    "channel_id": 1, "channel": "prices", "partition": 0, "start_offset": 0, "keeps_latest": True,
    "tombstone_grace_ms": 60_000, "groups": {},
}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"made_us": "x"},
        {"dropped_messages": -1},
        {"dropped_records": 1 << 64},
        {"freed_bytes": None},
        {"id": 7},
        {"inputs": [1]},
        {"inputs": 5},
        {"outputs": [{**OUTPUT, "bytes": "400"}]},
        {"outputs": [{**OUTPUT, "frames": 3.0}]},
        {"grounds": [{**GROUND, "keeps_latest": 1}]},
        {"grounds": [{**GROUND, "channel": ["prices"]}]},
        {"grounds": {"a": 1}},
    ],
    ids=str,
)
def test_values_of_another_type_or_size_are_no_proposal(changes: dict[str, Any]) -> None:
    with pytest.raises(InstallRefused, match="is not what a compaction writes"):
        Offer.unpack(packed(**changes), ID)
