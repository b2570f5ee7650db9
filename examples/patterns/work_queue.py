"""A work queue: workers share jobs; one that fails is tried again later, one that always fails is set aside."""

import threading

import mq

JOBS = ["resize cat.png", "resize dog.png", "resize broken.png", "resize owl.png"]


def resize(job: str) -> None:
    if "broken" in job:
        raise ValueError("not an image")


def work(consumer: mq.Consumer, done: threading.Semaphore) -> None:
    for message in consumer:  # until stop
        try:
            with message.process():  # acks at the end, hands back where the block raises
                resize(message.text())
                done.release()
        except ValueError as error:
            print(f"try {message.delivery_count} of {message.text()!r} failed: {error}", flush=True)


def main() -> None:
    with mq.Client() as client:
        for channel in ("jobs", "jobs.dlq"):  # the second would come with the first dead letter
            client.create_channel(channel, exist_ok=True)
        # three tries, 50 ms and 100 ms apart; then the job goes to jobs.dlq
        client.create_group("jobs", "workers", max_deliver=3, backoff_ms=[50, 100])
        with client.producer("jobs") as producer:
            for job in JOBS:
                producer.send(job)

        # two workers in threads; in production each is a process of its own, on any machine
        done = threading.Semaphore(0)
        workers = [client.consumer("jobs", group="workers", batch_size=1) for _ in range(2)]
        threads = [threading.Thread(target=work, args=(worker, done)) for worker in workers]
        for thread in threads:
            thread.start()
        for _ in range(len(JOBS) - 1):
            done.acquire()
        print(f"{len(JOBS) - 1} jobs are done")

        letter = next(iter(client.read("jobs.dlq")))  # waits for it
        print(f"set aside: {letter.text()!r} after {letter.headers['mq-delivery-count']} tries")
        for worker in workers:
            worker.stop()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
