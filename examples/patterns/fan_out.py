"""Fan-out: every group gets every message, at its own pace; a group that comes later may begin at the beginning."""

import mq


def drain(client: mq.Client, group: str, **options: object) -> list[str]:
    """What is there for a group now."""
    found = []
    with client.consumer("signups", group=group, **options) as consumer:
        while batch := consumer.fetch(100):
            found += [message.text() for message in batch]
            batch.ack()
    return found


def main() -> None:
    with mq.Client() as client:
        client.create_channel("signups", exist_ok=True)
        for group in ("mail", "audit"):
            client.create_group("signups", group)
        for name in ("ada", "bob"):
            client.publish("signups", name)
        print("mail:", drain(client, "mail"))
        client.publish("signups", "cyd")
        print("mail:", drain(client, "mail"))
        print("audit:", drain(client, "audit"))  # it was away, and missed nothing
        print("search:", drain(client, "search", start="earliest"))  # a new one, from the beginning
        print("welcome:", drain(client, "welcome", start="latest"))  # another, for what comes from now on
        client.publish("signups", "dan")
        print("welcome:", drain(client, "welcome"))


if __name__ == "__main__":
    main()
