"""A work queue: workers share jobs; one that fails is tried again later, one that always fails is set aside."""

import threading

import mq

JOBS = ["resize cat.png", "resize dog.png", "resize broken.png", "resize owl.png"]


def resize(job: str) -> None:
    if "broken" in job:
        raise ValueError("not an image")


def work(client: mq.Client, name: str, done: threading.Semaphore) -> mq.Consumer:
    """A worker in a thread; in production each is a process of its own, on any machine."""
    consumer = client.consumer("jobs", group="workers", batch_size=1)

    def run() -> None:
        for message in consumer:
            try:
                with message.process():  # acks at the end, hands back where the block raises
                    resize(message.text())
                    done.release()
            except ValueError as error:
                print(f"try {message.delivery_count} of {message.text()!r} failed: {error}", flush=True)

    threading.Thread(target=run, name=name).start()
    return consumer


def main() -> None:
    with mq.Client() as client:
        for channel in ("jobs", "jobs.dlq"):  # the second would come with the first dead letter
            client.create_channel(channel, exist_ok=True)
        # three tries, 50 ms and 100 ms apart; then the job goes to jobs.dlq
        client.create_group("jobs", "workers", max_deliver=3, backoff_ms=[50, 100])
        with client.producer("jobs") as producer:
            for job in JOBS:
                producer.send(job)

        done = threading.Semaphore(0)
        workers = [work(client, f"worker {number}", done) for number in (1, 2)]
        for _ in range(len(JOBS) - 1):
            done.acquire()
        print(f"{len(JOBS) - 1} jobs are done")

        letter = next(iter(client.read("jobs.dlq")))  # waits for it
        print(f"set aside: {letter.text()!r} after {letter.headers['mq-delivery-count']} tries")
        for worker in workers:
            worker.close()


if __name__ == "__main__":
    main()
