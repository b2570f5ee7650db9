"""How a client opens a wire connection, and how it reads errors. Bytes in, values out; no sockets here."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from mq import wire
from mq.client.transport import error_of
from mq.errors import InvalidArgument, MqError, Unavailable
from mq.pb import mq_pb2 as pb

Welcome = pb.WireWelcome
HELLO = wire.MAGIC + wire.pack(
    0, wire.HELLO, 0, pb.WireHello(version=wire.VERSION, client="mq-python").SerializeToString()
)
LONGEST_ANSWER = 1 << 30  # what a server answers is not bounded by what it takes

_STATUS_NAMES = {number: name for name, number in wire.STATUS.items()}


def check_magic(start: bytes, address: str) -> None:
    """Raises InvalidArgument where a server did not begin like the wire does, Unavailable where it went away."""
    if start == wire.MAGIC:
        return
    if wire.MAGIC.startswith(start):  # a broker that is stopped, or a proxy in front of one
        raise Unavailable(f"{address} closed the connection before it said what it is")
    if start[3:4] == b"\x04" and start[:2] == b"\0\0":  # the SETTINGS frame that opens HTTP/2
        hint = f"it speaks gRPC: use grpc://{address}"
    elif start.startswith(b"HTTP/"):
        hint = "it speaks HTTP"
    else:
        hint = "it speaks something else"
    raise InvalidArgument(f"{address} is no port of the mq wire: {hint}")


def read_welcome(frame: wire.Frame, address: str) -> pb.WireWelcome:
    """The server's answer to a hello. Raises MqError where it is a refusal."""
    _, code, _, payload = frame
    if code == wire.WELCOME:
        try:
            welcome = pb.WireWelcome.FromString(payload)
        except DecodeError:
            welcome = pb.WireWelcome()
        if not wire.OLDEST_VERSION <= welcome.version <= wire.VERSION:
            raise InvalidArgument(f"{address} speaks version {welcome.version} of the wire, this client does not")
        return welcome
    if code == wire.GOODBYE:
        said = _read(payload)
        raise error_of("UNAVAILABLE", said.reason, said.message)
    raise InvalidArgument(f"{address} answered a hello with code {code:#x}")


def lost(payload: bytes, address: str) -> Unavailable:
    """What a goodbye means for the requests in flight: whether they had their effect is unknown."""
    said = _read(payload)
    return Unavailable(f"{address} ended the connection: {said.message or 'it did not say why'}")


def read_error(code: int, payload: bytes) -> MqError:
    """The error in an answer whose status is not OK."""
    said = _read(payload)
    return error_of(_STATUS_NAMES.get(code, "UNKNOWN"), said.reason, said.message)


def _read(payload: bytes) -> pb.WireError:
    try:
        return pb.WireError.FromString(payload)
    except DecodeError:
        return pb.WireError(message="the server's words can't be read")
