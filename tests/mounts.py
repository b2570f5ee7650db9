"""Real file systems for tests to fill, break and cut the power of. Where a machine lets nobody mount, tests skip."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2  # what is not in the journal yet is lost, as with the power


def run(*command: str | Path) -> None:
    """Raises CalledProcessError."""
    subprocess.run(command, check=True, capture_output=True, text=True)


@contextmanager
def tmpfs(where: Path, size: str) -> Iterator[Path]:
    where.mkdir()
    try:
        run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", where)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"NOT SHOWN on this machine: a real full disk needs the right to mount: {words_of(error)}")
    try:
        yield where
    finally:
        run("umount", "--lazy", where)


class Ext4:
    """An ext4 file system in a file, behind a loop device."""

    def __init__(self, image: Path, where: Path, size_bytes: int) -> None:
        self._image = image
        self.where = where
        where.mkdir()
        with image.open("wb") as file:
            file.truncate(size_bytes)
        run("mkfs.ext4", "-q", image)
        self.mount()

    def mount(self) -> None:
        run("mount", "-o", "loop,errors=remount-ro", self._image, self.where)

    def unmount(self) -> None:
        run("umount", self.where)

    def cut_power(self) -> None:
        """From now on nothing reaches the disk; a mount finds what was synced, and what happened to be written."""
        fd = os.open(self.where, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def turn_read_only(self) -> None:
        """What the kernel does when it finds an error in its own structures."""
        device = os.stat(self.where).st_dev
        name = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve().name
        Path(f"/sys/fs/ext4/{name}/trigger_fs_error").write_text("planted by a test")

    def repair(self) -> None:
        """As an operator does after such an error; unmounted."""
        subprocess.run(["e2fsck", "-fy", self._image], check=False, capture_output=True)


@contextmanager
def ext4(directory: Path, size_bytes: int = 256 << 20) -> Iterator[Ext4]:
    try:
        made = Ext4(directory / "image", directory / "ext4", size_bytes)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"NOT SHOWN on this machine: a file system of its own needs loop devices: {words_of(error)}")
    try:
        yield made
    finally:
        subprocess.run(["umount", "--lazy", made.where], check=False, capture_output=True)


def words_of(error: Exception) -> str:
    return str(getattr(error, "stderr", "") or error).strip()[:200]


def needs(program: str, why: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"NOT SHOWN on this machine: {why}")
    return found
