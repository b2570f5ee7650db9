"""A peer on the wire made of a bare socket: tests say what it sends, to the byte."""

from __future__ import annotations

import socket
from types import TracebackType

from mq import wire
from mq.pb import mq_pb2 as pb

DEADLINE = 20.0
HELLO = wire.pack(0, wire.HELLO, 0, pb.WireHello(version=wire.VERSION, client="test").SerializeToString())


class Closed(Exception):
    """The server closed the connection."""


class Peer:
    """`with Peer(port) as peer`: connected, and greeted unless a test wants to do that itself."""

    def __init__(self, port: int, *, is_greeting: bool = True, receive_buffer: int = 0) -> None:
        self.socket = socket.socket()
        self.socket.settimeout(DEADLINE)
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._buffer = b""
        self.welcome = pb.WireWelcome()
        try:
            self.socket.connect(("127.0.0.1", port))
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if is_greeting:
                self.greet()
        except BaseException:
            self.socket.close()
            raise

    def greet(self) -> None:
        self.socket.sendall(wire.MAGIC + HELLO)
        self.take_magic()
        id_, code, _, payload = self.take()
        assert (id_, code) == (0, wire.WELCOME)
        self.welcome = pb.WireWelcome.FromString(payload)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.socket.close()

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(frames))

    def take_magic(self) -> None:
        while len(self._buffer) < len(wire.MAGIC):
            self._receive()
        assert self._buffer[: len(wire.MAGIC)] == wire.MAGIC
        self._buffer = self._buffer[len(wire.MAGIC) :]

    def take(self) -> wire.Frame:
        """The next frame. Raises Closed."""
        while True:
            if len(self._buffer) >= wire.HEADER_BYTES:
                length = int.from_bytes(self._buffer[:4], "little")
                if len(self._buffer) >= wire.HEADER_BYTES + length:
                    head, self._buffer = self._buffer[:12], self._buffer[12:]
                    payload, self._buffer = self._buffer[:length], self._buffer[length:]
                    id_, code, flags = (
                        int.from_bytes(head[4:8], "little"),
                        int.from_bytes(head[8:10], "little"),
                        int.from_bytes(head[10:12], "little"),
                    )
                    return id_, code, flags, payload
            self._receive()

    def take_goodbye(self) -> pb.WireError:
        """The server's last words, after which it has closed; answers that come before are passed over."""
        while True:
            _, code, _, payload = self.take()
            if code == wire.GOODBYE:
                self.wait_for_end()
                return pb.WireError.FromString(payload)

    def wait_for_end(self) -> bytes:
        """Everything that still comes until the server closes."""
        try:
            while True:
                self._receive()
        except Closed:
            rest, self._buffer = self._buffer, b""
            return rest

    def call(self, id_: int, method: str, message: object) -> None:
        self.send(request(id_, method, message))

    def _receive(self) -> None:
        try:
            data = self.socket.recv(65_536)
        except ConnectionError:
            data = b""
        if not data:
            raise Closed
        self._buffer += data


def request(id_: int, method: str, message: object, flags: int = 0) -> bytes:
    """The frame of a request to MQService."""
    payload = message if isinstance(message, bytes) else message.SerializeToString()  # type: ignore[attr-defined]
    return wire.pack(id_, wire.METHODS[f"mq.MQService/{method}"], flags, payload)
