"""The wire's yardstick: the door of mq/doors/wire.py before a service that answers at once and keeps nothing.

python benchmarks/bare_wire.py ANSWER_FILE      prints its port, serves until killed
"""

import asyncio
import sys
from pathlib import Path

import uvloop

from mq.doors.listening import listen
from mq.doors.wire import WireDoor


class Bare:
    """Stands where the service is."""

    def __init__(self, answer: bytes) -> None:
        self._answer = [answer]

    def call(self, method: object, connection: object, request: bytes, done: object) -> None:
        done(self._answer)


async def main(answer: bytes) -> None:
    door = WireDoor(max_request_bytes=4 << 20, server="bare", start_id="")
    door.serve(Bare(answer))
    await door.open(listen("127.0.0.1", 0))
    print(door.port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]).read_bytes()))
