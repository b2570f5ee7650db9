"""The wire's listening sockets, made before the broker is even imported: who connects meanwhile waits a moment in the
operating system's queue instead of being refused, and a taken port is known at once. So nothing heavy is imported here.
"""

from __future__ import annotations

import errno
import os
import socket
from contextlib import ExitStack

from mq.config import Config

BACKLOG = 4_096  # connections that wait to be taken: all clients come back at once when a broker does

HIGHEST_PORT = 65_535


def wire_sockets(config: Config) -> list[socket.socket]:
    """Those that the settings ask for; none where the wire is off. Raises OSError where an address can't be had."""
    if not config.wire_port:
        return []
    if config.wire_port > 0:
        return listen(config.host, config.wire_port)
    # One above gRPC's, unless it is set; any free one where gRPC's is any free one.
    if config.port == HIGHEST_PORT:
        raise OSError(f"there is no port above SERVER_PORT={config.port} for the wire: set SERVER_WIRE_PORT")
    return listen(config.host, config.port + 1 if config.port else 0)


def check_free(host: str, port: int) -> None:
    """A port on which gRPC will listen, once it is loaded. Raises OSError where another does."""
    for each in listen(host, port) if port else ():
        each.close()


def listen(host: str, port: int) -> list[socket.socket]:
    """A socket for each address of the host. Raises OSError where one can't be had."""
    try:
        found = socket.getaddrinfo(host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        with ExitStack() as opened:
            sockets = [
                opened.enter_context(socket.create_server(address, family=family, backlog=BACKLOG))
                for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found)
                if _is_spoken(family)
            ]
            opened.pop_all()  # all are there, so they stay
            return sockets
    except (OSError, UnicodeError) as error:  # the latter where a name can't even be asked for
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror):
            reason = os.strerror(error.errno)  # without what `create_server` adds
        raise OSError(f"can't listen on {host}:{port}: {reason}") from None


def _is_spoken(family: int) -> bool:
    """A name may have addresses of a kind that the machine was told not to speak, such as IPv6."""
    try:
        socket.socket(family).close()
    except OSError as error:
        if error.errno == errno.EAFNOSUPPORT:
            return False
        raise
    return True
