"""Request and reply: a request names the channel for its answer; the answer names the request."""

import threading
import uuid

import mq


class Caller:
    """Asks questions, and waits for their answers on a channel of its own, which goes when the caller goes."""

    def __init__(self, client: mq.Client) -> None:
        self.client = client
        self.replies = f"replies.{uuid.uuid4().hex}"
        client.create_channel(self.replies, max_age_ms=60_000)

    def ask(self, question: str, timeout: float = 10.0) -> str:
        number = uuid.uuid4().hex
        headers = {"reply-to": self.replies, "request": number}
        self.client.publish("questions", question, headers=headers, ttl_ms=int(timeout * 1_000))
        with self.client.consumer(self.replies, group="caller") as consumer:
            while batch := consumer.fetch(1, timeout=timeout):
                batch.ack()
                if batch[0].headers["request"] == number:  # else it is a late one, of a question that timed out
                    return batch[0].text()
        raise TimeoutError(f"nobody answered {question!r} within {timeout} s")

    def close(self) -> None:
        self.client.delete_channel(self.replies)


def answer_all(client: mq.Client, consumer: mq.Consumer) -> None:
    """A server; any number of them share the questions."""
    for message in consumer:
        with message.process():
            asked = message.headers
            client.publish(asked["reply-to"], message.text().upper(), headers={"request": asked["request"]})


def main() -> None:
    with mq.Client() as client:
        client.create_channel("questions", exist_ok=True)
        server = client.consumer("questions", group="servers", batch_size=1)
        thread = threading.Thread(target=answer_all, args=(client, server))
        thread.start()
        caller = Caller(client)
        for question in ("is anybody there?", "really?"):
            print(f"{question} {caller.ask(question)}")
        caller.close()
        server.stop()
        thread.join()


if __name__ == "__main__":
    main()
