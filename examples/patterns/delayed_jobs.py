"""Delayed jobs: the broker keeps a message until it is due, across restarts; until then it can be called off."""

from datetime import UTC, datetime, timedelta

import mq


def main() -> None:
    with mq.Client() as client:
        client.create_channel("reminders", exist_ok=True)
        client.publish("reminders", "second: by a delay", delay_ms=700)
        client.publish("reminders", "third: at a time", deliver_at=datetime.now(UTC) + timedelta(milliseconds=1_400))
        never = client.publish("reminders", "never: called off", delay_ms=1_000)
        client.publish("reminders", "first: at once")
        client.cancel_schedule("reminders", never.schedule_id)

        with client.consumer("reminders", group="bell") as consumer:
            for number, message in enumerate(consumer, 1):
                with message.process():
                    print(message.text(), flush=True)
                if number == 3:
                    consumer.stop()
        waiting = client.describe_channel("reminders").scheduled
        print(f"{waiting} are still to come")


if __name__ == "__main__":
    main()
