"""Addresses as people write them: `mq://host`, `grpc://host:50051`, `host:50051`, several by comma. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from mq.errors import InvalidArgument

GRPC_PORT = 50051
WIRE_PORT = 50052
DEFAULT = "mq://localhost"
RESERVED = {"MQ_TOKEN": "tokens are", "MQ_TLS_CA": "TLS is"}


class Address(NamedTuple):
    """Where a broker listens, and what it speaks there."""

    scheme: str  # mq: the wire; grpc
    host: str
    port: int
    is_default: bool = False  # the port was not given: where the wire is closed, gRPC may be open

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def fallback(self) -> Address | None:
        """Where to try next, if this is not to be reached."""
        return Address("grpc", self.host, GRPC_PORT) if self.is_default and self.scheme == "mq" else None


def parse(text: str) -> list[Address]:
    """All addresses in a text. Raises InvalidArgument."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise InvalidArgument("the address is empty: write it like mq://localhost or localhost:50051")
    return [_one(part) for part in parts]


def from_environment(environment: Mapping[str, str]) -> str:
    """What MQ_SERVER says. Raises InvalidArgument for variables that promise what is not there."""
    for name, what in RESERVED.items():
        if environment.get(name):
            raise InvalidArgument(f"{name} is set, but {what} not supported yet: unset it, on a trusted network only")
    return environment.get("MQ_SERVER") or DEFAULT


def _one(text: str) -> Address:
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "", text
    if scheme not in ("", "mq", "grpc"):
        raise InvalidArgument(f"{text!r} begins with {scheme}://; mq:// and grpc:// are known")
    host, port = _host_and_port(rest.rstrip("/"), text)
    if not scheme:  # a bare host:port means gRPC, as everywhere
        scheme = "mq" if port is None else "grpc"
    if port is None:
        return Address(scheme, host, WIRE_PORT if scheme == "mq" else GRPC_PORT, True)
    return Address(scheme, host, port)


def _host_and_port(rest: str, text: str) -> tuple[str, int | None]:
    if rest.startswith("["):
        host, _, tail = rest[1:].partition("]")
        port = tail[1:] if tail.startswith(":") else ""
    elif rest.count(":") > 1:
        host, port = rest, ""  # a bare IPv6 address
    else:
        host, _, port = rest.partition(":")
    if not host or any(each in host for each in "/@ ") or (port and not port.isdigit()) or int(port or 1) > 65_535:
        raise InvalidArgument(f"{text!r} is no address: write it like mq://localhost or localhost:50051")
    return host, int(port) if port else None
