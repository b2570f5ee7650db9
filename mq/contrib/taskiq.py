"""A broker for taskiq: tasks are messages of one channel, and its workers are one group.

    broker = MqBroker("mq://localhost")

A task is acked when taskiq says so, by default after its result is saved; leases are extended while it runs. The
tasks of a worker that was killed come again when their leases end. It uses mq.AsyncClient and knows no more.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress

from taskiq import AckableMessage, AsyncBroker, BrokerMessage

from mq.client.aio_client import AsyncClient
from mq.errors import GroupExists, InvalidArgument, MqError, Unavailable

WAIT_SECONDS = 5.0  # of one pull; the next follows at once
DELAY = "delay"  # the label, in seconds, that the other brokers of taskiq know too


class MqBroker(AsyncBroker):
    """Arguments: where the broker is, what the channel and the group are called, and how patient the group is.

    `ack_wait_ms`: how long a killed worker's tasks wait for the next one. `max_deliver`: how often a task is given out
    before it is a dead letter. Both count where the group does not exist yet; 0 is the server's default. `batch_size`:
    tasks that a worker takes at once. It pulls when it has room, so with 1 it holds none that another could run.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        channel: str = "taskiq",
        group: str = "taskiq",
        batch_size: int = 1,
        ack_wait_ms: int = 0,
        max_deliver: int = 0,
    ) -> None:
        super().__init__()
        self._address = address
        self._channel = channel
        self._group = group
        self._batch_size = batch_size
        self._ack_wait_ms = ack_wait_ms
        self._max_deliver = max_deliver
        self._client: AsyncClient | None = None

    async def startup(self) -> None:
        """Connect, and make the channel and the group where there are none."""
        self._client = await AsyncClient(self._address).connect()
        # a task that is done has no reader: nothing of it is kept
        await self._client.create_channel(self._channel, exist_ok=True, drop_acked=True)
        with suppress(GroupExists):  # with other settings: those that it has count
            await self._client.create_group(
                self._channel, self._group, ack_wait_ms=self._ack_wait_ms, max_deliver=self._max_deliver
            )
        await super().startup()

    async def shutdown(self) -> None:
        """Send the acks, give back what was not worked on, disconnect."""
        await super().shutdown()
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def kick(self, message: BrokerMessage) -> None:
        """Publish a task; returns when it is durable. A label `delay` holds it back for so many seconds."""
        headers = {"task-id": message.task_id, "task-name": message.task_name}
        delay_ms = _delay_ms(message.labels.get(DELAY))
        await self._connected().publish(self._channel, message.message, headers=headers, delay_ms=delay_ms)

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Tasks as they come. The client closes the consumer, not the end of this: tasks that still run are to ack."""
        consumer = await self._connected().consumer(self._channel, self._group)
        while self._client is not None:
            try:
                batch = await consumer.fetch(self._batch_size, WAIT_SECONDS)
            except MqError as error:
                if not error.retryable:
                    raise
                continue  # it was tried for long enough: again
            for message in batch:
                yield AckableMessage(data=message.content, ack=message.ack)

    def _connected(self) -> AsyncClient:
        if self._client is None:
            raise Unavailable("the broker was not started: await broker.startup() first")
        return self._client


def _delay_ms(label: object) -> int:
    if label is None:
        return 0
    try:
        return max(0, round(float(str(label)) * 1_000))
    except ValueError:
        raise InvalidArgument(f"the label {DELAY}={label!r} is no number of seconds") from None
