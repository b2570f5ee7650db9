"""Every part of the public surface shows how it is used, and the examples are run against a real broker."""

import asyncio
import doctest
import inspect
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

import mq
from mq.testing import broker

# Values that the API hands out, and things of which one says all: their class has the example, if any.
PLAIN = {"Codec", "AsyncSent", "AsyncBatch", "AsyncMessage"}


def surface() -> Iterator[tuple[str, Any]]:
    """All public classes and functions, and every method of the client and of what is made from it."""
    for name in mq.__all__:
        found = getattr(mq, name)
        if inspect.isclass(found) and issubclass(found, BaseException):
            continue
        yield name, found
        if inspect.isclass(found):
            for method, value in inspect.getmembers(found):
                if not method.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                    yield f"{name}.{method}", value


EXAMPLES = {name: found for name, found in surface() if ">>>" in (inspect.getdoc(found) or "")}


def test_every_class_function_and_method_of_the_client_has_an_example() -> None:
    needed = {name for name, _ in surface() if "." not in name or name.startswith("Client.")} - PLAIN
    assert sorted(needed - EXAMPLES.keys()) == []


def test_every_public_method_says_what_it_does() -> None:
    silent = {"Codec.encode", "Codec.decode"}
    silent |= {
        f"{codec}.{way}" for codec in ("JsonCodec", "MessagePackCodec", "ProtobufCodec") for way in ("encode", "decode")
    }
    assert [name for name, found in surface() if not inspect.getdoc(found) and name not in silent] == []


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    backups = str(tmp_path_factory.mktemp("backups"))
    with broker(tmp_path_factory.mktemp("data"), LOG_LEVEL="ERROR", BACKUP_DIR=backups) as running:
        yield str(running)


@pytest.fixture
def client(address: str) -> Iterator[mq.Client]:
    """What every example may count on: two channels, three messages and a group."""
    with mq.Client(address) as made:
        for found in made.list_channels():
            made.delete_channel(found.channel)
        for name in ("orders", "orders.dlq", "invoices"):
            made.create_channel(name)
        for word in (b"one", b"two", b"three"):
            made.publish("orders", word)
        made.create_group("orders", "billing")
        yield made


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_example_does_what_it_says(name: str, address: str, client: mq.Client) -> None:
    if name == "MessagePackCodec":
        pytest.importorskip("msgpack")
    known = {"mq": mq, "asyncio": asyncio, "datetime": datetime, "client": client, "address": address}
    (example,) = doctest.DocTestFinder(recurse=False).find(EXAMPLES[name], name, globs=known)
    told: list[str] = []
    outcome = doctest.DocTestRunner().run(example, out=told.append)
    assert outcome.attempted
    assert not outcome.failed, "".join(told)
