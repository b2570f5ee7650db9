"""A consumer as a process of its own, for tests that kill and pause it: `python groupmember.py ADDRESS NAME FILE`.

It takes one message at a time from an ordered group, acks it, waits until the ack is durable, and writes what happened
to a file, a line per fact and each line before the next act: what a SIGKILL leaves behind is true.
"""

import signal
import sys
import time
from pathlib import Path

import mq

CHANNEL, GROUP = "orders", "billing"
DELIVERED, ACKING, ACKED, LOST = "delivered", "acking", "acked", "lost"


def consume(address: str, name: str, file: Path) -> None:
    with (
        file.open("ab", buffering=0) as facts,
        mq.Client(address) as client,
        client.consumer(CHANNEL, GROUP, ordered=True, member=name, batch_size=20) as consumer,
    ):
        signal.signal(signal.SIGTERM, lambda *_: consumer.stop())

        def note(fact: str, message: mq.Message) -> None:
            words = (fact, time.monotonic_ns(), message.partition, message.offset, message.delivery_count)
            facts.write(" ".join(map(str, words)).encode() + b" " + message.content + b"\n")

        for message in consumer:
            note(DELIVERED, message)
            note(ACKING, message)
            message.ack()
            consumer.flush()
            # Lost is no proof that the ack was refused: the lease may have ended right after it.
            note(LOST if message.part()[0].is_lost else ACKED, message)


if __name__ == "__main__":
    consume(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
