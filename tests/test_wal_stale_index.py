"""An index is believed only for the very file it was made from: the salt tells, not the name."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from logowner import DIRECTORY, History, Owner
from modeldisk import ModelDisk

import wal.index
import wal.reader
from wal.record import Published

SEGMENT = "00000000000000000001-0"


def sealed_log(seed: int, partitions: list[int]) -> tuple[Owner, list[Published]]:
    """A log whose first segment holds one record for each item, in these partitions; equal in size to all others."""
    owner = Owner(ModelDisk(), History(), Random(seed))
    offsets = [0, 0]
    records = []
    for partition in partitions:
        batch = owner.rng.randbytes(100)
        records.append(
            Published(channel_id=1, partition=1 + partition, base_offset=1 + offsets[partition], count=1, batch=batch)
        )
        offsets[partition] += 1
    owner.append([*records])
    owner.log.rotate()
    owner.log.close()
    return owner, records


def foreign_index() -> tuple[ModelDisk, list[Published]]:
    """A log beside whose first segment lies the index of another file of that name and size."""
    owner, records = sealed_log(1, [0, 0, 1, 0])
    other, _ = sealed_log(2, [0, 1, 1, 1])
    sidecar = f"{DIRECTORY}/{SEGMENT}.idx"
    sizes = {len(disk.names[f"{DIRECTORY}/{SEGMENT}.wal"].cache) for disk in (owner.disk, other.disk)}
    assert len(sizes) == 1, "nothing but the salt may tell them apart"
    assert owner.disk.names[sidecar].cache != other.disk.names[sidecar].cache
    owner.disk.names[sidecar] = other.disk.names[sidecar]
    return owner.disk, records


def read_all(disk: ModelDisk, partition: int) -> list[Published]:
    owner = Owner(disk, History(), Random(3))
    try:
        return asyncio.run(owner.log.read(1, 1 + partition, 0, 1 << 20))
    finally:
        owner.log.close()


def test_an_index_of_another_file_is_not_believed_and_made_again() -> None:
    disk, records = foreign_index()
    wrong = bytes(disk.names[f"{DIRECTORY}/{SEGMENT}.idx"].cache)
    assert read_all(disk, 0) == [records[0], records[1], records[3]]
    assert read_all(disk, 1) == [records[2]]
    assert bytes(disk.names[f"{DIRECTORY}/{SEGMENT}.idx"].cache) != wrong


def test_believing_an_index_of_another_file_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = wal.index.unpack_summary

    def believe(data: bytes, salt: bytes, segment_bytes: int) -> wal.index.Summary | None:
        return whole(data, data[8:16], segment_bytes)

    monkeypatch.setattr(wal.index, "unpack_summary", believe)
    monkeypatch.setattr(wal.reader, "unpack_summary", believe)
    disk, records = foreign_index()
    assert read_all(disk, 0) != [records[0], records[1], records[3]]


@pytest.mark.parametrize("size", [0, 1, 30, 100])
def test_a_torn_index_is_made_again(size: int) -> None:
    owner, records = sealed_log(1, [0, 0, 1, 0])
    del owner.disk.names[f"{DIRECTORY}/{SEGMENT}.idx"].cache[size:]
    assert read_all(owner.disk, 0) == [records[0], records[1], records[3]]
