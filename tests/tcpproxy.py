"""A TCP proxy for tests of bad networks: it can reset, swallow, hold, slice or slow down what passes through it."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mq
from mq.testing import broker


class Proxy:
    """Listens on a port of its own and passes bytes on to another, until it is told otherwise."""

    def __init__(self, port: int) -> None:
        self.target = port
        self.delay = 0.0  # seconds before each piece is passed on
        self.slice_bytes = 1 << 16  # the largest piece
        self._swallowed: set[int] = set()  # ports whose bytes are gone: the target's, our own
        self.swallowed_bytes = 0
        self._flows = threading.Event()
        self._flows.set()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.connections = 0
        self.refuses = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"mq://127.0.0.1:{self.port}"

    def swallow(self, is_on: bool = True) -> None:
        """Take bytes and pass none on: a network that is gone without a word."""
        self._swallowed = {self.target, self.port} if is_on else set()

    def swallow_requests(self) -> None:
        """One way only: answers to what came before still arrive."""
        self._swallowed = {self.target}

    def swallow_answers(self) -> None:
        """One way only: the server does what it is asked, and nobody hears of it."""
        self._swallowed = {self.port}

    def hold(self, is_on: bool = True) -> None:
        """Keep what comes and pass it on later, however late."""
        if is_on:
            self._flows.clear()
        else:
            self._flows.set()

    def let_pass(self) -> None:
        """Pass on what comes from now on; the connections stay, and nobody hears of what was lost."""
        self._swallowed = set()

    def heal(self) -> None:
        """A sound network again; where bytes were lost, connections are lost with them."""
        if self._swallowed:
            self.reset()
        self._swallowed = set()
        self.delay, self.slice_bytes = 0.0, 1 << 16
        self.hold(False)

    def reset(self) -> None:
        """Break every connection, the hard way."""
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for each in pair:
                with contextlib.suppress(OSError):
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()

    def close(self) -> None:
        self._listener.close()
        self.hold(False)
        self.reset()

    def __enter__(self) -> "Proxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refuses:
                client.close()
                continue
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            self.connections += 1
            self._pairs.append((client, server))
            for source, goal, port in ((client, server, self.target), (server, client, self.port)):
                with contextlib.suppress(OSError):  # a reset may have come between
                    goal.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pass_on, args=(source, goal, port), daemon=True).start()

    def _pass_on(self, source: socket.socket, goal: socket.socket, port: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(self.slice_bytes):
                if self.delay:
                    time.sleep(self.delay)
                self._flows.wait()
                if port in self._swallowed:
                    self.swallowed_bytes += len(data)
                else:
                    goal.sendall(data)
        for each in (source, goal):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextmanager
def connected(directory: Path | None = None) -> Iterator[tuple[mq.Client, Proxy]]:
    """A client of a broker behind a proxy, with a channel `c`."""
    with (
        broker(directory, LOG_LEVEL="ERROR") as running,
        Proxy(running.server.wire.port) as proxy,
        mq.Client(proxy.address) as client,
    ):
        client.create_channel("c")
        yield client, proxy
