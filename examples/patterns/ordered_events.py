"""Ordered events: what has one key is worked on in its order, while different keys go in parallel."""

import threading
from collections import defaultdict

import mq

ACCOUNTS, EVENTS = 20, 30


class Ledger:
    """The last event of each account, which refuses to go back."""

    def __init__(self) -> None:
        self.last: dict[str, int] = defaultdict(int)
        self.events = 0
        self.is_complete = threading.Event()
        self._lock = threading.Lock()

    def book(self, account: str, number: int) -> None:
        with self._lock:
            assert number == self.last[account] + 1, f"{account}: {number} came after {self.last[account]}"
            self.last[account] = number
            self.events += 1
            if self.events == ACCOUNTS * EVENTS:
                self.is_complete.set()


def follow(consumer: mq.Consumer, ledger: Ledger) -> None:
    for message in consumer:
        with message.process():
            ledger.book(message.key.decode(), message.json()["number"])


def main() -> None:
    ledger = Ledger()
    with mq.Client() as client:
        client.create_channel("transfers", partitions=8, exist_ok=True)
        # ordered: each partition belongs to one member at a time; a key always has the same partition
        members = [client.consumer("transfers", group="ledger", ordered=True, member=name) for name in ("ann", "bob")]
        threads = [threading.Thread(target=follow, args=(member, ledger)) for member in members]
        for thread in threads:
            thread.start()
        with client.producer("transfers") as producer:
            for number in range(1, EVENTS + 1):
                for account in range(ACCOUNTS):
                    producer.send({"number": number}, key=f"account-{account}")
        assert ledger.is_complete.wait(30)
        for member in members:
            member.stop()
        for thread in threads:
            thread.join()
    print(f"{ledger.events} events of {len(ledger.last)} accounts, each account in order")


if __name__ == "__main__":
    main()
