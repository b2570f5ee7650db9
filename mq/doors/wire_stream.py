"""Streams on the wire: Subscribe and PublishStream. They alone have a task each."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from mq import wire
from mq.errors import InvalidArgument, MqError
from mq.service import Connection, Kind, Method, Service
from mq.service.publish_stream import PublishStream

if TYPE_CHECKING:
    from mq.doors.wire_connection import WireConnection


class Stream:
    """A request whose answer, or whose request, is more than one frame."""

    def __init__(
        self, peer: WireConnection, task: asyncio.Task[None], code: int = 0, publishes: PublishStream | None = None
    ) -> None:
        self._peer = peer
        self._task = task
        self._code = code
        self._publishes = publishes
        self._waiting: asyncio.Task[None] | None = None
        self._is_ended = publishes is None  # the peer has said all

    def takes(self, code: int) -> bool:
        """May the peer send another frame of this request?"""
        return not self._is_ended and code == self._code

    def feed(self, payload: bytes, *, is_last: bool) -> None:
        assert self._publishes is not None
        if payload or not is_last:
            self._publishes.feed(payload)
        if is_last:
            self._is_ended = True
            self._publishes.finish()
        elif not self._publishes.has_room and self._waiting is None:
            self._waiting = asyncio.create_task(self._wait_for_room(self._publishes))

    async def _wait_for_room(self, publishes: PublishStream) -> None:
        self._peer.hold()
        try:
            await publishes.room()
        finally:
            self._waiting = None
            self._peer.let_go()

    def cancel(self) -> None:
        self._task.cancel()
        if self._waiting is not None:
            self._waiting.cancel()


def open_stream(
    peer: WireConnection,
    service: Service,
    connection: Connection,
    method: Method,
    id_: int,
    flags: int,
    payload: bytes,
) -> Stream | None:
    """Begin a stream; None where it was refused, and the peer told so."""
    if method.kind is Kind.SUBSCRIBE:
        if flags:
            peer.answer(id_, InvalidArgument("this method takes one frame"))
            return None
        return Stream(peer, asyncio.create_task(_subscribe(peer, service, connection, id_, payload)))
    try:
        publishes = service.publish_stream(connection)
    except MqError as error:
        peer.answer(id_, error)
        return None
    task = asyncio.create_task(_publish(peer, service, connection, id_, publishes))
    stream = Stream(peer, task, wire.METHODS[method.name], publishes)
    stream.feed(payload, is_last=not flags & wire.MORE)
    return stream


async def _subscribe(peer: WireConnection, service: Service, connection: Connection, id_: int, payload: bytes) -> None:
    try:
        async with aclosing(service.subscribe(connection, payload)) as lists:  # type: ignore[type-var]
            async for items in lists:
                if not items:
                    peer.send_item(id_, b"")  # the place is found: from here on nothing is missed
                for item in items:
                    peer.send_item(id_, item)
                await peer.writable()
    except MqError as error:
        peer.end_stream(id_, error)
    else:
        peer.end_stream(id_)


async def _publish(
    peer: WireConnection, service: Service, connection: Connection, id_: int, publishes: PublishStream
) -> None:
    try:
        async for answers in publishes:
            for answer in answers:
                peer.send_item(id_, answer)
            await peer.writable()
        peer.end_stream(id_)
    finally:
        service.close_stream(connection)
