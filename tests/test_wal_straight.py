"""Writes past the page cache: the same bytes as by the usual way, wherever they begin and end, and none beside them."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wal import straight
from wal.disk import DirectDisk
from wal.filelog import FileLog
from wal.record import Published
from wal.straight import BLOCK_BYTES, Straight

FILE_BYTES = 64 * BLOCK_BYTES


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """A file of zeros, as a live segment is."""
    fd = os.open(tmp_path / "segment", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(fd, 0, FILE_BYTES)
    yield fd
    os.close(fd)


def content(fd: int) -> bytes:
    return os.pread(fd, 2 * FILE_BYTES, 0)


def is_direct(fd: int) -> bool:
    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)


def possible(fd: int) -> None:
    """Some file systems know no other way than through the cache."""
    disk = DirectDisk()
    disk.write_past_cache(fd, [b"x"], 0)
    if not disk._straight.is_possible:
        pytest.skip("the file system of the tests takes nothing past its cache")


def cached_pages(fd: int, size: int) -> int:
    """How many pages of a file's beginning are in memory. A read, also one that does not wait, may bring them there."""
    with mmap.mmap(fd, size) as view:
        seen = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        first = ctypes.c_char.from_buffer(view)
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), seen)
        del first  # else the view can't be closed
    assert not failed, os.strerror(ctypes.get_errno())
    return sum(each & 1 for each in seen)


acts = st.lists(
    st.tuples(st.sampled_from(["past", "usual", "cut"]), st.lists(st.integers(0, 9000), min_size=1, max_size=4)),
    max_size=12,
)


@settings(deadline=None)
@given(acts)
def test_a_file_holds_what_was_appended_whichever_way(tmp_path_factory: pytest.TempPathFactory, acts: Any) -> None:
    disk = DirectDisk()
    path = str(tmp_path_factory.mktemp("straight") / "segment")
    fd = disk.create(path)
    try:
        disk.allocate(fd, FILE_BYTES)
        expected = bytearray(FILE_BYTES)
        position = 64
        for number, (act, sizes) in enumerate(acts):
            pieces = [bytes([1 + number]) * size for size in sizes]
            data = b"".join(pieces)
            if act == "cut":  # as a failed write is cut back, and its space taken again
                position -= min(sizes[0], position - 64)
                disk.truncate(fd, position)
                disk.allocate(fd, FILE_BYTES)
                expected[position:] = bytes(FILE_BYTES - position)
            else:
                write = disk.write_past_cache if act == "past" else disk.write
                assert write(fd, pieces, position) == len(data)
                expected[position : position + len(data)] = data
                position += len(data)
            assert content(fd) == expected
            assert not is_direct(fd)
    finally:
        disk.close(fd)
        os.unlink(path)


def test_nothing_of_it_stays_in_the_page_cache(file: int, tmp_path: Path) -> None:
    possible(file)
    kind = subprocess.run(["stat", "-f", "-c", "%T", tmp_path], capture_output=True, text=True, check=True).stdout
    if kind.strip() in ("tmpfs", "ramfs"):
        pytest.skip("the file system of the tests is nothing but a cache")
    disk = DirectDisk()
    data = os.urandom(20 * BLOCK_BYTES)
    disk.write_past_cache(file, [data], 0)
    assert cached_pages(file, len(data)) == 0
    assert content(file)[: len(data)] == data
    assert cached_pages(file, len(data)) > 0  # by that read: so it would have been seen


def test_a_file_does_not_grow_by_the_zeros_behind_the_last_byte(file: int) -> None:
    os.ftruncate(file, 3 * BLOCK_BYTES + 100)
    data = os.urandom(3 * BLOCK_BYTES + 100)
    assert DirectDisk().write_past_cache(file, [data], 0) == len(data)
    assert content(file) == data


def by_a_write(disk: DirectDisk, fd: int, path: Path) -> int:
    disk.write(fd, [b"b" * 100], 4900)
    return fd


def by_a_cut(disk: DirectDisk, fd: int, path: Path) -> int:
    disk.truncate(fd, 4900)
    with path.open("r+b") as other:  # not by this disk, so that nothing else tells it
        os.posix_fallocate(other.fileno(), 0, FILE_BYTES)
        os.pwrite(other.fileno(), b"b" * 100, 4900)
    return fd


def by_another_file(disk: DirectDisk, fd: int, path: Path) -> int:
    disk.close(fd)
    path.write_bytes(b"a" * 4900 + b"b" * 100 + bytes(FILE_BYTES - 5000))
    again = disk.open(str(path))
    assert again == fd, "descriptors are used again"
    return again


@pytest.mark.parametrize("change", [by_a_write, by_a_cut, by_another_file])
def test_the_end_of_the_last_write_is_not_believed_where_it_was_changed(change: Any, tmp_path: Path) -> None:
    disk, path = DirectDisk(), tmp_path / "segment"
    fd = disk.create(str(path))
    disk.allocate(fd, FILE_BYTES)
    disk.write_past_cache(fd, [b"a" * 5000], 0)
    fd = change(disk, fd, path)
    disk.write_past_cache(fd, [b"c" * 5000], 5000)
    assert content(fd)[:10_000] == b"a" * 4900 + b"b" * 100 + b"c" * 5000
    disk.close(fd)


def test_more_than_the_buffer_takes_the_usual_way(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(straight, "BUFFER_BYTES", 2 * BLOCK_BYTES)
    assert Straight().write(file, [bytes(3 * BLOCK_BYTES)], 0) is None
    data = os.urandom(3 * BLOCK_BYTES)
    assert DirectDisk().write_past_cache(file, [data], 10) == len(data)
    assert content(file)[10 : 10 + len(data)] == data


def test_a_file_system_that_refuses_is_asked_once(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, asked = DirectDisk(), []

    def refuse(fd: int, command: int, flags: int = 0) -> int:
        asked.append(command)
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "not here")
        return 0

    monkeypatch.setattr(straight.fcntl, "fcntl", refuse)
    for number in range(3):
        assert disk.write_past_cache(file, [b"y" * BLOCK_BYTES], number * BLOCK_BYTES) == BLOCK_BYTES
    assert asked == [fcntl.F_GETFL, fcntl.F_SETFL, fcntl.F_SETFL]  # and as it was
    assert content(file)[: 3 * BLOCK_BYTES] == b"y" * 3 * BLOCK_BYTES


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_an_error_is_told_and_the_descriptor_is_as_before(
    number: int, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    possible(file)
    disk = DirectDisk()
    disk.write_past_cache(file, [b"a" * 100], 0)

    def fail(*_: object) -> int:
        raise OSError(number, "told so")

    with monkeypatch.context() as patch:
        patch.setattr(straight.os, "pwritev", fail)
        with pytest.raises(OSError, match="told so"):
            disk.write_past_cache(file, [b"b" * 100], 100)
    assert not is_direct(file)
    disk.truncate(file, 100)
    disk.allocate(file, FILE_BYTES)
    disk.write_past_cache(file, [b"c" * 100], 100)
    assert content(file) == b"a" * 100 + b"c" * 100 + bytes(FILE_BYTES - 200)


@pytest.mark.parametrize("written", [0, BLOCK_BYTES, 2 * BLOCK_BYTES])
def test_what_a_short_write_did_not_take_is_not_counted(
    written: int, file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Straight()
    whole = os.pwritev
    data = os.urandom(3 * BLOCK_BYTES)
    with monkeypatch.context() as patch:
        patch.setattr(straight.os, "pwritev", lambda fd, blocks, at: whole(fd, [blocks[0][:written]], at))
        count = disk.write(file, [data], 1000)
    if count is None:
        pytest.skip("the file system of the tests takes nothing past its cache")
    assert count == max(0, written - 1000)
    rest = data[count:]
    assert disk.write(file, [rest], 1000 + count) == len(rest)
    assert content(file)[1000 : 1000 + len(data)] == data


def test_a_log_writes_its_large_groups_past_the_cache_and_reads_them_back(tmp_path: Path) -> None:
    seen: list[int] = []

    class Seen(DirectDisk):
        def write_past_cache(self, fd: int, buffers: Any, position: int) -> int:
            seen.append(sum(map(len, buffers)))
            return super().write_past_cache(fd, buffers, position)

    sizes = [10, 100_000, 50, 300_000, 3, 200_000, 70_000]
    batches = [os.urandom(size) for size in sizes]
    log = FileLog.open(tmp_path, disk=Seen(), is_threaded=False)
    for offset, batch in enumerate(batches):
        log.append([Published(channel_id=1, base_offset=offset, count=1, batch=batch)])
        log._drive.pump()
    assert [size > 64 << 10 for size in seen] == [True] * 4
    log._writer.abandon()  # as a kill leaves it
    log._disk.close(log._lock_fd)
    again = FileLog.open(tmp_path, is_threaded=False)
    assert [record.batch for _, record in again.replay()] == batches  # type: ignore[union-attr]
    again.close()
