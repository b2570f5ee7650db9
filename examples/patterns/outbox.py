"""A transactional outbox: a row and its message are written in one transaction of the database, or not at all.

A relay publishes what the outbox holds, in order. Each message carries its number, and the channel's last message tells
how far an earlier relay came: one that died after a publish and before its delete sends nothing twice.
"""

import sqlite3

import mq

TABLES = """
CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL CHECK (item <> ''));
CREATE TABLE outbox (id INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT NOT NULL);
"""


def place(database: sqlite3.Connection, item: str) -> None:
    with database:  # one transaction
        database.execute("INSERT INTO outbox (body) VALUES (?)", (f"ordered {item}",))
        database.execute("INSERT INTO orders (item) VALUES (?)", (item,))


def publish_new(database: sqlite3.Connection, client: mq.Client) -> int:
    """Publish what is not published yet; returns the number of the last message in the channel."""
    published = client.read("order-events", start=mq.last(1), follow=False)
    last = max((int(message.headers["outbox"]) for message in published), default=0)
    rows = database.execute("SELECT id, body FROM outbox WHERE id > ? ORDER BY id", (last,)).fetchall()
    with client.producer("order-events") as producer:  # leaving the block waits until all are durable
        for number, body in rows:
            producer.send(body, headers={"outbox": str(number)})
            last = number
    return last


def forget(database: sqlite3.Connection, last: int) -> None:
    with database:
        database.execute("DELETE FROM outbox WHERE id <= ?", (last,))


def main() -> None:
    database = sqlite3.connect(":memory:")
    database.executescript(TABLES)
    with mq.Client() as client:
        client.create_channel("order-events", exist_ok=True)
        for item in ("pizza", "", "salad"):
            try:
                place(database, item)
            except sqlite3.IntegrityError:
                print("an order was refused, and its message with it")
        publish_new(database, client)  # and here the relay dies: it forgets nothing
        place(database, "wine")
        forget(database, publish_new(database, client))
        for message in client.read("order-events", follow=False):
            print(message.text())
    database.close()


if __name__ == "__main__":
    main()
