"""Fixtures for tests of programs that use mq. pytest loads this by itself, so it imports nothing before it is used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mq.client.client import Client


@pytest.fixture
def mq_broker() -> Iterator[str]:
    """The address of a broker of this test's own, on a free port; it keeps nothing on disk."""
    from mq.testing import broker

    with broker(LOG_LEVEL="ERROR") as address:
        yield address


@pytest.fixture
def mq_client(mq_broker: str) -> Iterator[Client]:
    """A client of a broker of this test's own."""
    from mq.client.client import Client

    with Client(mq_broker) as client:
        yield client
