"""docs/wire.md, checked against the code: its bytes, its tables, its limits. Its examples are the golden bytes."""

import re
from pathlib import Path

import pytest

from mq import wire
from mq.client import greeting
from mq.doors import wire as door
from mq.doors import wire_connection, wire_link, wire_outbox
from mq.doors.foreign import answer_to
from mq.pb import mq_pb2 as pb

ORDERS = "orders"
# Every example of the document by its name, made by the code. A change here is a change of the protocol.
EXAMPLES: dict[str, bytes] = {
    "hello": wire.MAGIC + wire.pack(0, wire.HELLO, 0, pb.WireHello(version=1, client="example").SerializeToString()),
    "welcome": wire.MAGIC
    + wire.pack(
        0,
        wire.WELCOME,
        0,
        pb.WireWelcome(
            version=1, server="mq/1", max_frame_bytes=4_195_328, window=8_192, idle_ms=60_000, start_id="c0ffee"
        ).SerializeToString(),
    ),
    "publish": wire.pack(1, 2, 0, pb.PublishRequest(channel=ORDERS, content=b"hello").SerializeToString()),
    "published": wire.pack(
        1,
        0,
        0,
        pb.PublishResponse(offset=300, timestamp_us=1_700_000_000_000_000, durable=pb.FSYNC).SerializeToString(),
    ),
    "refused": wire.pack(
        2, 9, 0, pb.WireError(reason="ChannelNotFound", message="there is no channel 'nosuch'").SerializeToString()
    ),
    "subscribe": wire.pack(
        3,
        3,
        0,
        pb.SubscribeRequest(channel=ORDERS, offset=pb.SubscribeRequest.OFFSET_LATEST).SerializeToString(),
    ),
    "begun": wire.pack(3, 0, wire.MORE),
    "item": wire.pack(
        3, 0, wire.MORE, pb.Message(id="a-0-7", content=b"hi", created_at=1, offset=7).SerializeToString()
    ),
    "cancel": wire.pack(3, wire.CANCEL),
    "cancelled": wire.pack(
        3, 1, 0, pb.WireError(reason="Cancelled", message="cancelled by the client").SerializeToString()
    ),
    "ping": wire.pack(0, wire.PING, 0, b"42"),
    "pong": wire.pack(0, wire.PONG, 0, b"42"),
    "drain": wire.pack(0, wire.DRAIN),
    "goodbye": wire.pack(
        0,
        wire.GOODBYE,
        0,
        pb.WireError(reason="Unavailable", message="the broker is shutting down").SerializeToString(),
    ),
}


@pytest.fixture(scope="module")
def text(root: Path) -> str:
    return (root / "docs" / "wire.md").read_text()


def hex_of(data: bytes) -> list[str]:
    """Lines of sixteen bytes."""
    return [data[at : at + 16].hex(" ") for at in range(0, len(data), 16)]


def examples_in(text: str) -> dict[str, list[str]]:
    """Name and bytes of each example; what stands behind two blanks is for the reader."""
    found = re.findall(r"<!-- example (\w+) -->\n```\n(.*?)```", text, re.DOTALL)
    return {name: [line.split("  ")[0] for line in body.splitlines()] for name, body in found}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_has_the_bytes_that_the_code_makes(text: str, name: str) -> None:
    assert examples_in(text).get(name) == hex_of(EXAMPLES[name]), "\n".join(hex_of(EXAMPLES[name]))


def test_every_example_is_checked(text: str) -> None:
    assert examples_in(text).keys() == EXAMPLES.keys()


def test_every_method_is_listed_with_its_number(text: str) -> None:
    listed = {name: int(number) for number, name in re.findall(r"^\| (\d+) \| `([\w.]+/\w+)` \|", text, re.MULTILINE)}
    assert listed == wire.METHODS


def test_every_status_is_listed_with_its_number(text: str) -> None:
    listed = {name: int(number) for number, name in re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", text, re.MULTILINE)}
    assert listed == wire.STATUS


def test_every_control_code_is_listed(text: str) -> None:
    listed = {name: int(code, 16) for code, name in re.findall(r"^\| (0x\w{4}) \| ([A-Z]+) \|", text, re.MULTILINE)}
    names = ("HELLO", "WELCOME", "PING", "PONG", "CANCEL", "DRAIN", "GOODBYE")
    assert listed == {name: getattr(wire, name) for name in names}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("magic", wire.MAGIC.hex(" ")),
        ("version", str(wire.VERSION)),
        ("window", f"{wire_connection.WINDOW:,}"),
        ("frame", f"SERVER_MAX_RECV_MSG_SIZE + {door.FRAME_ROOM_BYTES:,}"),
        ("handshake", f"{wire_link.HANDSHAKE_SECONDS:.0f} s"),
        ("idle", f"{wire_link.IDLE_SECONDS:.0f} s"),
        ("ping payload", f"{wire_connection.PING_BYTES} bytes"),
        ("high-water mark", f"{wire_outbox.HIGH_WATER_BYTES >> 20} MiB"),
        ("most unread output", f"{wire_outbox.MOST_BYTES >> 20} MiB"),
    ],
)
def test_a_limit_has_the_value_that_the_code_has(text: str, name: str, value: str) -> None:
    assert re.search(rf"^\| {name} \| `?{re.escape(value)}`? \|", text, re.MULTILINE), f"| {name} | {value} |"


def test_the_client_says_hello_as_the_document_does() -> None:
    ours = EXAMPLES["hello"].replace(b"\x12\x07example", b"\x12\x09mq-python")
    assert greeting.HELLO[:8] == ours[:8]
    assert greeting.HELLO[20:] == ours[20:]


def test_strangers_are_answered_as_the_document_says(text: str) -> None:
    for start in (b"PRI * ", b"\x16\x03\x01", b"other"):
        words = answer_to(start).decode().splitlines()[-1]
        assert words in text
