"""The link to one peer on the wire: bytes in and out, the greeting's magic, back-pressure, silence, the end.

What the frames say is not known here. A peer that does not read is not read from: what it has already sent waits, the
rest stays in the socket.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from mq import wire
from mq.doors.foreign import answer_to
from mq.doors.wire_outbox import HIGH_WATER_BYTES, Outbox
from mq.errors import InvalidArgument, MqError, ResourceExhausted, Unavailable
from mq.pb import mq_pb2 as pb
from mq.service import Connection

if TYPE_CHECKING:
    from mq.doors.wire import WireDoor

HANDSHAKE_SECONDS = 5.0
IDLE_SECONDS = 60.0  # of silence, then a ping; of as much again, then the end
CLOSE_SECONDS = 5.0  # for a peer to read our last words


class Link(asyncio.BufferedProtocol):
    """One TCP connection; a subclass says what its frames mean."""

    __slots__ = (
        "_address", "_backlog", "_connection", "_door", "_heard", "_held_bytes", "_holds", "_inbox", "_is_deaf",
        "_is_greeted", "_is_over", "_is_pinged", "_magic", "_outbox", "_since", "_transport", "_writable",
    )  # fmt: skip

    def __init__(self, door: WireDoor) -> None:
        self._door = door
        self._inbox = wire.Inbox(door.scratch, door.max_frame_bytes)
        self._magic: bytes | None = b""  # what came of it; None: it is behind us
        self._is_greeted = False
        self._is_over = False  # nothing more is taken from the peer
        self._backlog: list[wire.Frame] = []  # read, and not looked at while the peer does not read
        self._holds = 0
        self._is_deaf = False  # nothing is read at the moment
        self._held_bytes = 0  # of an unfinished frame, as the door counts them
        self._writable: asyncio.Event | None = None  # only where a stream has to wait
        self._heard = self._since = door.loop.time()  # `_since`: the connection was made, or its end began
        self._is_pinged = False
        self._transport: asyncio.Transport
        self._outbox: Outbox

    def take(self, id_: int, code: int, flags: int, payload: bytes) -> None:
        """A frame came."""
        raise NotImplementedError

    def give_up(self) -> None:
        """The peer is gone: nobody wants what is in flight."""
        raise NotImplementedError

    def drain(self) -> None:
        """Tell the peer to ask nothing more."""
        raise NotImplementedError

    @property
    def is_busy(self) -> bool:
        """Something is in flight."""
        raise NotImplementedError

    # ------------------------------------------------------------ asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._outbox = Outbox(self._door.mail, self._transport, self._go_on)
        address, port, *_ = transport.get_extra_info("peername") or ("", 0)
        self._address = str(address)
        self._connection = Connection(f"{address}:{port}", holds_answers=True)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        refusal = self._door.admit(self, self._address)
        if refusal is not None:
            self.say_goodbye(refusal)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._inbox.room()

    def buffer_updated(self, nbytes: int) -> None:
        self._heard = self._door.loop.time()
        self._is_pinged = False
        if self._is_over:
            return
        try:
            if self._magic is not None:
                nbytes = self._skip_magic(nbytes)
            frames = self._inbox.received(nbytes)
            if (held := self._inbox.held_bytes) != self._held_bytes:
                self._count_held(held)
        except wire.FrameTooLong as error:
            self.say_goodbye(InvalidArgument(str(error)))
            return
        if self._backlog:
            self._backlog += frames
        else:
            self._work(frames)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_over = True
        self._backlog = []
        self._door.forget(self, self._address, self._held_bytes)
        self.give_up()
        self._outbox.drop()

    def pause_writing(self) -> None:
        self.hold()
        if self._writable is not None:
            self._writable.clear()

    def resume_writing(self) -> None:
        self._outbox.note_sent()
        if self._writable is not None:
            self._writable.set()
        self.let_go()

    # ------------------------------------------------------------ back-pressure

    def hold(self) -> None:
        """Take nothing from the peer until as many have let go as held."""
        self._holds += 1
        if not self._transport.is_closing():
            self._stop_reading()

    def stop_waiting(self) -> None:
        """The broker was starting: whoever greeted meanwhile was held."""
        if self._is_greeted:
            self.let_go()

    def let_go(self) -> None:
        self._holds -= 1
        self._go_on()

    def _stop_reading(self) -> None:
        self._is_deaf = True
        self._transport.pause_reading()

    def _go_on(self) -> None:
        """There may be room again: take what was read before, then read on."""
        if not self._is_deaf:
            return
        if self._backlog and not (self._holds or self._is_over or self._transport.is_closing()):
            frames, self._backlog = self._backlog, []
            self._work(frames)
        if not (self._holds or self._backlog or self._is_over or self._transport.is_closing()):
            self._is_deaf = False
            self._transport.resume_reading()

    def _work(self, frames: list[wire.Frame]) -> None:
        outbox = self._outbox
        for index, frame in enumerate(frames):
            if self._holds or outbox.bytes > HIGH_WATER_BYTES:
                self._backlog = frames[index:]
                self._stop_reading()
                return
            self.take(*frame)
            if self._is_over:
                return

    def _count_held(self, held: int) -> None:
        has_room = self._door.hold_bytes(held - self._held_bytes)
        self._held_bytes = held
        if not has_room:
            self.say_goodbye(ResourceExhausted("too many unfinished requests are held; send them again later"))

    # ------------------------------------------------------------ beginnings and ends

    def _skip_magic(self, nbytes: int) -> int:
        """Until the magic is there, gather; then leave what follows it where the inbox looks. Returns its size."""
        assert self._magic is not None
        data = self._magic + bytes(self._inbox.room()[:nbytes])
        self._magic, rest = data[: len(wire.MAGIC)], data[len(wire.MAGIC) :]
        if not wire.MAGIC.startswith(self._magic):
            self._transport.write(answer_to(self._magic))
            self.close()
            return 0
        if len(self._magic) < len(wire.MAGIC):
            return 0
        self._magic = None
        self._inbox.room()[: len(rest)] = rest
        return len(rest)

    async def writable(self) -> None:
        """Wait until the peer has read enough."""
        if self._outbox.unsent_bytes <= HIGH_WATER_BYTES:
            return
        self._outbox.flush()
        if self._outbox.unsent_bytes > HIGH_WATER_BYTES:
            self._writable = self._writable or asyncio.Event()
            self._writable.clear()
            await self._writable.wait()

    def say_goodbye(self, error: MqError) -> None:
        """The peer broke the rules, or can't be served: say why, and close."""
        text = pb.WireError(reason=type(error).__name__, message=str(error)).SerializeToString()
        opening = b"" if self._is_greeted else wire.MAGIC
        self._outbox.put(opening + wire.pack(0, wire.GOODBYE, 0, text))
        self.close()

    def check_alive(self, now: float) -> None:
        """Called every second or so."""
        self._outbox.note_sent()
        silence = now - self._heard
        if self._is_over:
            if now - self._since > CLOSE_SECONDS:
                self._transport.abort()
        elif not self._is_greeted:
            if now - self._since > HANDSHAKE_SECONDS:
                self.say_goodbye(Unavailable(f"no hello came within {HANDSHAKE_SECONDS:.0f} s"))
        elif silence > 2 * IDLE_SECONDS and not self._connection.streams:
            self.say_goodbye(Unavailable("no word and no pong came for too long"))
        elif silence > IDLE_SECONDS and not self._is_pinged:
            self._is_pinged = True
            self._outbox.put(wire.pack(0, wire.PING))

    def close(self) -> None:
        """End the connection once what was said has left."""
        if not self._is_over:
            self._is_over = True
            self._since = self._door.loop.time()
        self._outbox.flush()
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()
