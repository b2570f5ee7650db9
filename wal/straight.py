"""Large writes that go straight to the device, past the page cache (O_DIRECT), where the system lets them.

The cache would copy every byte into pages that nobody reads: what was just published is in the broker's own memory. On
a machine that has to be given each free page first, as virtual ones are, that copy costs more than all else that is
done for a batch; and it pushes out what others keep there.

The device takes whole blocks from aligned memory only. So what is written is gathered in a buffer, behind what lies
before it in its first block, and with the zeros that lie behind it in its last one: a live segment ends with zeros.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from mmap import mmap

BLOCK_BYTES = 4096  # what nearly every device and file system is content with
BUFFER_BYTES = 16 << 20  # most of it is never touched, and takes no memory
_UNFIT = frozenset({errno.EINVAL, errno.EOPNOTSUPP})  # not so here: larger blocks, or no device
_NOTHING = (-1, 0, b"")


class Straight:
    """For one thread at a time."""

    def __init__(self) -> None:
        self.is_possible = hasattr(os, "O_DIRECT")
        self._buffer: memoryview | None = None  # made when it is needed
        self._last = _NOTHING  # descriptor and end of the last write, and what of it is in the block of that end

    def write(self, fd: int, buffers: Sequence[bytes], position: int) -> int | None:
        """Write zeros behind the buffers, too, up to the end of a block. Returns how many of their bytes are written.

        None: nothing is, and they have to take the usual way.
        """
        start = position - position % BLOCK_BYTES
        end = position + sum(map(len, buffers))
        size = -(-(end - start) // BLOCK_BYTES) * BLOCK_BYTES
        if not self.is_possible or size > BUFFER_BYTES or start + size > os.fstat(fd).st_size:
            return None
        blocks = self._gather(fd, buffers, position, start, size)
        written = self._put(fd, blocks, start)
        if written is None:
            return None
        done = min(start + written, end)
        if done > position:
            self._last = fd, done, bytes(blocks[done - done % BLOCK_BYTES - start : done - start])
        return max(0, done - position)

    def forget(self, fd: int) -> None:
        """What lies in the file changes by other means, or the descriptor will be another file's."""
        if self._last[0] == fd:
            self._last = _NOTHING

    def _gather(self, fd: int, buffers: Sequence[bytes], position: int, start: int, size: int) -> memoryview:
        if self._buffer is None:
            self._buffer = memoryview(mmap(-1, BUFFER_BYTES))
        blocks = self._buffer[:size]
        at = position - start
        if self._last[:2] == (fd, position):
            blocks[:at] = self._last[2]
        elif at:
            blocks[:at] = os.pread(fd, at, start)
        for piece in buffers:
            blocks[at : at + len(piece)] = piece
            at += len(piece)
        blocks[at:] = bytes(size - at)
        return blocks

    def _put(self, fd: int, blocks: memoryview, start: int) -> int | None:
        self._last = _NOTHING
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        try:
            try:
                fcntl.fcntl(fd, fcntl.F_SETFL, flags | os.O_DIRECT)
                return os.pwritev(fd, [blocks], start)
            finally:
                fcntl.fcntl(fd, fcntl.F_SETFL, flags)
        except OSError as error:
            if error.errno not in _UNFIT:
                raise
            self.is_possible = False
            return None
