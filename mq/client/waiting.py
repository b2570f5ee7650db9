"""What a consumer has pulled and not handed out yet, in order. Pure: no I/O, no locks; others may look at any time.

A delivery stays here until its last message is handed out, and knows how many were. So whoever stops in the middle of
one, by leaving a loop, by a pause or by fetching fewer, leaves the rest for the next who asks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from mq.client.message import Delivery, Part


class Waiting:
    def __init__(self) -> None:
        self._deliveries: deque[Delivery] = deque()

    def add(self, deliveries: Iterable[Delivery]) -> None:
        self._deliveries.extend(deliveries)

    def __len__(self) -> int:
        """Messages."""
        return sum(each.count - each.given for each in self._deliveries.copy() if not each.is_lost)

    def first(self) -> Delivery | None:
        """The delivery to hand out of. One whose lease is gone is passed over."""
        while self._deliveries:
            delivery = self._deliveries[0]
            if delivery.given < delivery.count and not delivery.is_lost:
                return delivery
            self._deliveries.popleft()
        return None

    def take(self, count: int) -> list[Part]:
        """Up to so many messages, to be handed out now."""
        parts: list[Part] = []
        while count > 0 and (delivery := self.first()) is not None:
            start = delivery.given
            delivery.given = min(delivery.count, start + count)
            count -= delivery.given - start
            parts.append((delivery, start, delivery.given))
        return parts

    def deliveries(self) -> list[Delivery]:
        """Those of which something waits."""
        return [each for each in self._deliveries.copy() if each.given < each.count and not each.is_lost]

    def clear(self) -> None:
        """Nothing of this is handed out any more, also by a loop that is in the middle of a delivery."""
        for delivery in self._deliveries.copy():
            delivery.given = delivery.count
        self._deliveries.clear()
