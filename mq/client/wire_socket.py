"""A blocking socket that speaks the wire: connected, greeted, frames in, bytes out. One reader, one sender at a time.

The socket object never has a timeout: it would hold for both directions, and cost a poll before each read. The system
ends a read after some seconds instead, and only whoever has less time polls.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from contextlib import suppress

from mq import wire
from mq.client import greeting
from mq.client.transport import TimedOut
from mq.errors import Unavailable

SCRATCH_BYTES = 64 << 10
CONNECT_SECONDS = 5.0
STUCK_SECONDS = 20  # a server that takes nothing for so long is as good as gone
READ_SECONDS = 5  # then a read that waits looks at its deadline
LARGE_BYTES = 32 << 10  # from here on a copy costs more than a second call
YIELD_SECONDS = 15e-6  # who waits longer to get his processor back has lent it to somebody

CAN_LOOK = hasattr(socket, "MSG_DONTWAIT") and hasattr(os, "sched_yield")
_MORE = getattr(socket, "MSG_MORE", 0)  # Linux: it leaves together with what is sent next


class WireSocket:
    """Raises Unavailable when made and the server can't be reached, InvalidArgument where it speaks something else."""

    def __init__(self, host: str, port: int, connect_timeout: float = CONNECT_SECONDS) -> None:
        self.address = f"{host}:{port}"
        deadline = time.monotonic() + connect_timeout
        try:
            self._socket = socket.create_connection((host, port), connect_timeout)
        except OSError as error:
            raise Unavailable(f"can't connect to {self.address}: {error.strerror or error}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        with suppress(OSError):  # where the system takes another form of it, a stuck send stays stuck
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", STUCK_SECONDS, 0))
        self._socket.settimeout(None)
        self._read_seconds = float("inf")
        with suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", READ_SECONDS, 0))
            self._read_seconds = READ_SECONDS
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._inbox = wire.Inbox(bytearray(SCRATCH_BYTES), greeting.LONGEST_ANSWER)
        self._early: list[wire.Frame] = []  # came together with the welcome
        try:
            self.welcome = self._greet(deadline)
        except BaseException:
            self._socket.close()
            raise

    def send(self, data: bytes, rest: bytes = b"") -> None:
        """Raises Unavailable; then part of it may have left, so the socket is of no more use."""
        try:
            if len(rest) < LARGE_BYTES:
                self._socket.sendall(data + rest)
            else:
                self._socket.sendall(data, _MORE)
                self._socket.sendall(rest)
        except OSError as error:
            raise self._broken(error) from None

    def read(self, deadline: float | None = None, awake_until: float = 0.0) -> list[wire.Frame]:
        """The frames that came, perhaps none. Raises TimedOut, which harms nothing; Unavailable is the end.

        `awake_until`: the caller does not sleep before that time (see `CAN_LOOK`).
        """
        if self._early:
            early, self._early = self._early, []
            return early
        try:
            size = self._look(awake_until) if awake_until else None
            if size is None:
                size = self._receive(deadline)
        except OSError as error:
            raise self._broken(error) from None
        if not size:
            raise Unavailable(f"{self.address} closed the connection")
        try:
            return self._inbox.received(size)
        except (ValueError, wire.FrameTooLong) as error:
            raise Unavailable(f"the connection to {self.address} broke: {error}") from None

    def _broken(self, error: OSError) -> Exception:
        """What an error of the socket means. One without a number is not the system's: a signal's handler raised it."""
        if error.errno is None:
            return error
        return Unavailable(f"the connection to {self.address} broke: {error.strerror or error}")

    def _look(self, until: float) -> int | None:
        """What comes before a time, without a sleep; None: nothing has, or whoever is to answer shares our processor.

        Then to look on would be in the way: when the disk is done with what the other one waits for, he finds his
        processor taken, and is moved to one that sleeps.
        """
        room = self._inbox.room()
        now = time.monotonic()
        while now < until:
            os.sched_yield()  # first: no answer comes in less time than a request takes to arrive
            before, now = now, time.monotonic()
            if now - before > YIELD_SECONDS:
                return None
            try:
                return self._socket.recv_into(room, 0, socket.MSG_DONTWAIT)
            except BlockingIOError as error:
                if error.errno is None:
                    raise
        return None

    def _receive(self, deadline: float | None) -> int:
        while True:
            left = self._read_seconds if deadline is None else deadline - time.monotonic()
            if left < self._read_seconds and not self._poll.poll(max(0.0, left) * 1_000):
                raise TimedOut(f"{self.address} did not answer in time")
            try:
                return self._socket.recv_into(self._inbox.room())
            except BlockingIOError as error:  # nothing came for so long
                if error.errno is None:
                    raise

    def has_news(self) -> bool:
        """Is there something to read, or is the connection gone?"""
        return bool(self._early or self._poll.poll(0))

    def shut(self) -> None:
        """End the connection; whoever reads wakes up."""
        self.cut()
        self._socket.close()

    def cut(self) -> None:
        """End what is said on it; it is still ours to close."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def let_go(self) -> None:
        """Close our copy: after a fork the connection is the parent's."""
        self._socket.close()

    def _greet(self, deadline: float) -> greeting.Welcome:
        self.send(greeting.HELLO)
        start = b""
        while len(start) < len(wire.MAGIC):
            if not self._poll.poll(max(0.0, deadline - time.monotonic()) * 1_000):
                raise Unavailable(f"{self.address} did not greet in time")
            try:
                more = self._socket.recv(len(wire.MAGIC) - len(start))
            except OSError as error:
                raise Unavailable(f"{self.address} did not greet: {error.strerror or error}") from None
            if not more:
                break
            start += more
        greeting.check_magic(start, self.address)
        frames: list[wire.Frame] = []
        while not frames:
            frames = self.read(deadline)
        self._early = frames[1:]
        return greeting.read_welcome(frames[0], self.address)
