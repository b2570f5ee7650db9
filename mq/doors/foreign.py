"""Peers that speak something else to the wire's port: the last words to each."""

from __future__ import annotations

_LINE = "mq: this port speaks the mq wire"
_METHODS = (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"DELE", b"PATC", b"CONN")


def answer_to(start: bytes) -> bytes:
    """What to tell a peer that began with these bytes."""
    if start.startswith(b"PRI "):
        # HTTP/2, so most likely gRPC. Its clients know this answer, and give up instead of trying again at once.
        return _bad_request("; gRPC is served on another port, 50051 by default")
    if start.startswith(_METHODS):
        return _bad_request(", not HTTP")
    if start.startswith(b"\x16\x03"):
        return f"{_LINE}, without TLS\r\n".encode()
    return f"{_LINE}, and not what you sent\r\n".encode()


def _bad_request(hint: str) -> bytes:
    body = f"{_LINE}{hint}\n"
    head = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()
