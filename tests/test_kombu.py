"""kombu on mq: queues, acks, prefetch, fan-out, and what happens to messages that nobody acked."""

import inspect
import threading
from collections.abc import Iterator
from pathlib import Path

import kombu
import pytest
from process import wait_until

import mq
import mq.contrib.kombu
from mq.contrib.kombu import GROUP, Channel, channel_of
from mq.contrib.taskiq import MqBroker
from mq.testing import broker

TASKS = kombu.Queue("tasks", kombu.Exchange("tasks", type="direct"), routing_key="tasks")


@pytest.fixture
def connection(mq_broker: str) -> Iterator[kombu.Connection]:
    with kombu.Connection(mq_broker) as made:
        yield made


def publish(connection: kombu.Connection, *bodies: object, **options: object) -> None:
    with connection.Producer() as producer:
        for body in bodies:
            producer.publish(body, exchange=TASKS.exchange, routing_key="tasks", declare=[TASKS], **options)


def receive(connection: kombu.Connection, count: int) -> list[kombu.Message]:
    """So many messages, not acked, through a consumer that is cancelled then."""
    found: list[kombu.Message] = []
    with connection.Consumer(TASKS, on_message=found.append):
        while len(found) < count:
            connection.drain_events(timeout=10)
    return found


def test_what_is_sent_is_received_once_and_acked(connection: kombu.Connection, mq_client: mq.Client) -> None:
    publish(connection, *({"number": number} for number in range(20)))
    messages = receive(connection, 20)
    assert [message.payload["number"] for message in messages] == list(range(20))
    for message in messages:
        message.ack()
    connection.close()
    assert mq_client.describe_group(channel_of("tasks"), GROUP).lag == 0


def test_what_was_not_acked_comes_again_to_the_next(connection: kombu.Connection, mq_broker: str) -> None:
    publish(connection, "first", "second")
    first, _ = receive(connection, 2)
    first.ack()
    connection.close()
    with kombu.Connection(mq_broker) as other:
        (message,) = receive(other, 1)
        assert message.payload == "second"
        message.ack()


def test_an_ack_after_the_end_of_its_connection_is_an_error_that_celery_knows(connection: kombu.Connection) -> None:
    publish(connection, "late")
    (message,) = receive(connection, 1)
    connection.close()
    with pytest.raises(connection.connection_errors, match="comes again"):
        message.ack()


def test_a_requeued_message_comes_again_and_a_rejected_one_is_a_dead_letter(
    connection: kombu.Connection, mq_client: mq.Client
) -> None:
    publish(connection, "once more")
    (message,) = receive(connection, 1)
    assert message.delivery_info["redelivered"] is False
    message.requeue()
    (message,) = receive(connection, 1)
    assert message.delivery_info["redelivered"] is True
    message.reject()
    connection.close()
    letters = [loaded.json() for loaded in mq_client.read(channel_of("tasks") + ".dlq", follow=False)]
    assert len(letters) == 1


def test_a_message_that_is_requeued_as_often_as_it_may_be_delivered_is_a_dead_letter(
    connection: kombu.Connection, mq_client: mq.Client
) -> None:
    connection.transport_options["max_deliver"] = 2
    publish(connection, "never done")
    for _ in range(2):
        (message,) = receive(connection, 1)
        message.requeue()
    wait_until(lambda: mq_client.describe_group(channel_of("tasks"), GROUP).lag == 0)
    assert mq_client.describe_channel(channel_of("tasks") + ".dlq").messages == 1


def test_what_is_no_message_of_kombu_is_a_dead_letter_and_stops_nobody(
    connection: kombu.Connection, mq_client: mq.Client
) -> None:
    publish(connection, "good")
    for bad in (b"\xff", b"[1]", b"{}", b'{"properties": 7}'):
        mq_client.publish(channel_of("tasks"), bad)
    publish(connection, "good too")
    assert [message.payload for message in receive(connection, 2)] == ["good", "good too"]
    connection.close()
    assert mq_client.describe_channel(channel_of("tasks") + ".dlq").messages == 4


def test_a_consumer_holds_no_more_than_its_prefetch_count(connection: kombu.Connection, mq_client: mq.Client) -> None:
    publish(connection, *range(50))
    found: list[kombu.Message] = []
    with connection.Consumer(TASKS, on_message=found.append, prefetch_count=4):
        while len(found) < 4:
            connection.drain_events(timeout=10)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.2)
        assert mq_client.describe_group(channel_of("tasks"), GROUP).pending == 4
        found[0].ack()
        connection.drain_events(timeout=10)
        assert len(found) == 5


def fill_queues(connection: kombu.Connection, names: str, count: int) -> list[kombu.Queue]:
    queues = [kombu.Queue(name, TASKS.exchange, routing_key=name) for name in names]
    with connection.Producer() as producer:
        for queue in queues:
            for number in range(count):
                producer.publish(number, exchange=queue.exchange, routing_key=queue.name, declare=[queue])
    return queues


def test_a_consumer_of_several_queues_holds_no_more_than_its_prefetch_count(
    connection: kombu.Connection, mq_client: mq.Client
) -> None:
    queues = fill_queues(connection, "abcd", 5)
    found: list[kombu.Message] = []
    with connection.Consumer(queues, on_message=found.append, prefetch_count=4):
        while len(found) < 4:
            connection.drain_events(timeout=10)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.2)
        assert len(found) == sum(mq_client.describe_group(channel_of(name), GROUP).pending for name in "abcd") == 4
        for number in range(20):
            while len(found) == number:
                connection.drain_events(timeout=10)
            found[number].ack()
    assert len(found) == 20


def test_queues_take_turns_and_an_empty_one_takes_no_room(connection: kombu.Connection) -> None:
    queues = [*fill_queues(connection, "e", 0), *fill_queues(connection, "ab", 3)]
    found: list[str] = []

    def on_message(message: kombu.Message) -> None:
        found.append(message.delivery_info["routing_key"])
        message.ack()

    with connection.Consumer(queues, on_message=on_message, prefetch_count=1):
        while len(found) < 6:
            connection.drain_events(timeout=10)
    assert set(found[:3]) == set(found[3:]) == {"a", "b"}


def consuming_threads() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith(("mq-puller", "mq-consumer"))]


def test_a_cancelled_consumer_leaves_when_nothing_of_it_is_leased(
    connection: kombu.Connection, mq_client: mq.Client
) -> None:
    publish(connection, "long")
    before = len(consuming_threads())
    (message,) = receive(connection, 1)
    for _ in range(3):
        with connection.Consumer(TASKS, on_message=print), pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.05)
    wait_until(lambda: len(mq_client.describe_group(channel_of("tasks"), GROUP).members) == 1)
    message.ack()
    group = mq_client.describe_group(channel_of("tasks"), GROUP)
    assert (len(group.members), group.lag) == (0, 0)
    wait_until(lambda: len(consuming_threads()) == before)


def test_the_queue_can_be_asked_purged_and_got_from(connection: kombu.Connection) -> None:
    publish(connection, *range(5))
    channel = connection.default_channel
    bound = TASKS(channel)
    assert bound.queue_declare(passive=True).message_count == 5
    got = bound.get()
    assert got.payload == 0
    got.ack()
    assert bound.get(no_ack=True).payload == 1
    assert bound.purge() >= 3
    assert bound.get() is None
    bound.delete()
    with pytest.raises(connection.channel_errors):
        bound.queue_declare(passive=True)


def test_a_queue_that_somebody_deleted_is_made_again(
    connection: kombu.Connection, mq_broker: str, mq_client: mq.Client
) -> None:
    publish(connection, "before")
    mq_client.delete_channel(channel_of("tasks"))
    publish(connection, "after")
    (message,) = receive(connection, 1)
    assert message.payload == "after"
    with connection.Consumer(TASKS, on_message=print):
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=0.05)  # it waits, when the channel goes
        mq_client.delete_channel(channel_of("tasks"))
        with pytest.raises(connection.connection_errors, match="can't be consumed"):
            connection.drain_events(timeout=10)
    with kombu.Connection(mq_broker) as other:
        publish(other, "again")
        assert receive(other, 1)[0].payload == "again"


def test_an_expired_message_is_not_delivered(connection: kombu.Connection) -> None:
    publish(connection, "too late", expiration=0.001)
    publish(connection, "in time")
    (message,) = receive(connection, 1)
    assert message.payload == "in time"
    message.ack()


def test_a_fanout_exchange_reaches_everyone_who_listens(connection: kombu.Connection, mq_broker: str) -> None:
    news = kombu.Exchange("news", type="fanout")
    found: list[tuple[str, object]] = []
    with kombu.Connection(mq_broker) as other:
        consumers = []
        for name, each in (("a", connection), ("b", other)):
            queue = kombu.Queue(f"news@{name}", news, auto_delete=True)
            consumer = each.Consumer(
                queue, callbacks=[lambda body, _, name=name: found.append((name, body))], no_ack=True
            )
            consumer.consume()
            consumers.append(consumer)
        with kombu.Connection(mq_broker) as third, third.Producer() as producer:
            producer.publish("hello", exchange=news, declare=[news])
        connection.drain_events(timeout=10)
        other.drain_events(timeout=10)
        for consumer in consumers:
            consumer.cancel()
    assert found == [("a", "hello"), ("b", "hello")]


def test_what_is_fanned_out_can_be_acked_and_takes_no_room_where_it_is_not(connection: kombu.Connection) -> None:
    news = kombu.Exchange("news", type="fanout")
    found: list[kombu.Message] = []
    queues = [kombu.Queue("news@a", news, auto_delete=True), TASKS]
    with connection.Consumer(queues, on_message=found.append, prefetch_count=1):
        with connection.Producer() as producer:
            for number in range(4):
                producer.publish(number, exchange=news, declare=[news])
        while len(found) < 4:
            connection.drain_events(timeout=10)
        found[0].ack()
        found[1].reject()
        found[2].requeue()
        publish(connection, "task", "another")
        for expected in ("task", "another"):
            connection.drain_events(timeout=10)
            assert found[-1].payload == expected
            found[-1].ack()


def test_a_message_for_a_topic_goes_to_the_queues_that_match(connection: kombu.Connection) -> None:
    topic = kombu.Exchange("log", type="topic")
    errors = kombu.Queue("errors", topic, routing_key="*.error")
    everything = kombu.Queue("everything", topic, routing_key="#")
    with connection.Producer() as producer:
        for key in ("db.error", "db.info"):
            producer.publish(key, exchange=topic, routing_key=key, declare=[errors, everything])
    channel = connection.default_channel
    assert errors(channel).get(no_ack=True).payload == "db.error"
    assert errors(channel).get() is None
    assert [everything(channel).get(no_ack=True).payload for _ in range(2)] == ["db.error", "db.info"]


def test_a_passing_queue_hears_the_topics_that_it_asked_for(connection: kombu.Connection, mq_broker: str) -> None:
    topic = kombu.Exchange("events", type="topic", durable=False, delivery_mode="transient")
    found: list[str] = []
    queue = kombu.Queue("monitor", topic, routing_key="db.#", auto_delete=True, durable=False)
    with connection.Consumer(queue, callbacks=[lambda body, _: found.append(body)], no_ack=True):
        with kombu.Connection(mq_broker) as other, other.Producer(exchange=topic) as producer:
            for key in ("db.error", "web.error", "db.disk.full"):
                producer.publish(key, routing_key=key, declare=[topic])
        while "db.disk.full" not in found:
            connection.drain_events(timeout=10)
    assert found == ["db.error", "db.disk.full"]


def test_a_broker_that_is_away_is_an_error_that_kombu_retries() -> None:
    with kombu.Connection("mq://127.0.0.1:9") as connection, pytest.raises(connection.connection_errors):
        connection.connect()


def test_a_consumer_goes_on_where_the_broker_comes_back(tmp_path: Path) -> None:
    with broker(tmp_path, LOG_LEVEL="ERROR") as first:
        address, ports = str(first), {"SERVER_PORT": str(first.port), "SERVER_WIRE_PORT": first.rpartition(":")[2]}
        connection = kombu.Connection(address)
        publish(connection, "before")
        found: list[kombu.Message] = []
        consumer = connection.Consumer(TASKS, on_message=lambda message: (found.append(message), message.ack()))
        consumer.consume()
        connection.drain_events(timeout=10)
        with mq.Client(address) as client:
            wait_until(lambda: client.describe_group(channel_of("tasks"), GROUP).lag == 0)
    with broker(tmp_path, LOG_LEVEL="ERROR", **ports):
        with kombu.Connection(address) as other:
            publish(other, "after")
        connection.drain_events(timeout=20)
        connection.close()
    assert [message.payload for message in found] == ["before", "after"]


def test_a_connection_can_be_closed_where_the_broker_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("mq.contrib.puller", "mq.contrib.kombu"):
        monkeypatch.setattr(f"{module}.CLOSE_SECONDS", 0.2)
    with broker(LOG_LEVEL="ERROR") as address:
        connection = kombu.Connection(address)
        publish(connection, "one", "two")
        first, _ = receive(connection, 2)
    first.ack()
    connection.close()
    assert not connection.connected


def test_every_name_of_a_queue_is_a_name_of_a_channel() -> None:
    assert channel_of("celery") == "kombu.celery"
    assert channel_of("celery@host.celery.pidbox") == "kombu.celery_40host.celery.pidbox"
    assert channel_of("a_b") != channel_of("a@b")


def test_the_page_names_every_option(root: Path) -> None:
    page = (root / "docs" / "integrations.md").read_text()
    own = set(Channel.from_transport_options) - set(kombu.transport.virtual.Channel.from_transport_options)
    for name in [*inspect.signature(MqBroker).parameters, *own, "address"]:
        assert f"`{name}`" in page, name
